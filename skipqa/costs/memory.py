"""How much memory this process has had at most, since it started or since it was last asked."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path


def forget_peak() -> None:
    """From here on the peak counts anew. Only Linux can; elsewhere it stays that of the process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int | None:
    """The most resident memory; None where the system does not say."""
    with contextlib.suppress(OSError):
        if found := re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()):
            return 1024 * int(found[1])
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
