"""Peak resident memory of this process, since it started or since the last reset.

Enters: nothing. Leaves: bytes, from the operating system's own count.
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path


def forget_peak() -> None:
    """Reset the peak. Only Linux can; elsewhere it remains the peak of the whole process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int | None:
    """The peak resident memory; None if the system does not report it."""
    with contextlib.suppress(OSError):
        if found := re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()):
            return 1024 * int(found[1])
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
