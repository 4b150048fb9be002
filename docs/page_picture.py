"""The README's picture of the page: a real server, a real browser, the page's own second example.

python docs/page_picture.py docs/page.png
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "serve")]

from browser import browsing  # noqa: E402

from benchmarks.server_process import ServerProcess  # noqa: E402

EXAMPLE = 2
SIZE = (1_280, 860)


def main(picture: Path) -> None:
    server = ServerProcess("--port", "0", "--no-uploads", "--no-key")
    try:
        server.wait_ready()
        with tempfile.TemporaryDirectory() as profile, browsing(Path(profile)) as browser:
            browser.size(*SIZE)
            browser.open(f"http://127.0.0.1:{server.port}/#example={EXAMPLE}")
            browser.until(lambda: browser.all("path.edge"))
            browser.next_frame()
            browser.screenshot(picture)
    finally:
        server.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
