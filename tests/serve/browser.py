"""A headless Chromium for tests of the page: what a person can do, and what they then see.

Enters: the address of a running server. Leaves: elements, rectangles, and what the browser itself
complained about. It knows the ids of the page and nothing of the server.
"""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

Found = TypeVar("Found")
WAIT_S = 20.0
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
).split()
# Before the page's own script: what its content security policy stopped
LISTEN = """
window.violations = [];
document.addEventListener("securitypolicyviolation",
  (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""

# Text on what is really behind it, as WCAG 2 measures it; what is disabled is exempt
CONTRASTS = """
const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
const luminance = (colour) => channels(colour).slice(0, 3).map((value) => value / 255)
  .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
  .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if ((channels(colour)[3] ?? 1) > 0.5) return colour;
  }
  return "rgb(255, 255, 255)";
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const found = [];
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  const text = walker.currentNode.data.trim();
  if (!text || !node.checkVisibility() || node.closest(":disabled")) continue;
  const pair = [luminance(getComputedStyle(node).color), luminance(behind(node))];
  found.push([(Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05), text.slice(0, 40)]);
}
return found;
"""
NAMELESS = """
return [...document.querySelectorAll("button, input, select, a, meter, progress, summary")]
  .filter((node) => node.checkVisibility())
  .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim()
    || [...node.labels ?? []].some((label) => label.textContent.trim())))
  .map((node) => node.outerHTML);
"""
# The next answer to a request for a path is this one; then the server answers again
ANSWER_ONCE = """
const [path, status, body] = arguments;
const real = window.fetch;
window.fetch = (address, options) => {
  if (address !== path) return real(address, options);
  window.fetch = real;
  const headers = { "Retry-After": "1" };
  return Promise.resolve(new Response(JSON.stringify(body), { status, headers }));
};
"""
# Questions stay here, and no answer comes
KEEP_THE_PHOTO = """
window.photos = [];
window.fetch = (address, options) => {
  window.photos.push(options.body.get("photo"));
  return new Promise(() => {});
};
"""
# A photo drawn on the spot, pasted
PASTE = """
const canvas = document.createElement("canvas");
canvas.toBlob((blob) => {
  const clipboardData = new DataTransfer();
  clipboardData.items.add(new File([blob], "pasted.png", { type: blob.type }));
  document.dispatchEvent(new ClipboardEvent("paste", { clipboardData }));
});
"""


@dataclass(frozen=True, slots=True)
class Rect:
    """In CSS pixels of the window."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def part(self, left: float, top: float, right: float, bottom: float) -> Rect:
        """What these fractions of it are, in pixels of the window."""
        x, y = self.left + left * self.width, self.top + top * self.height
        return Rect(x, y, (right - left) * self.width, (bottom - top) * self.height)

    def near(self, other: Rect, pixels: float = 2.0) -> bool:
        sides = ("left", "top", "right", "bottom")
        return all(abs(getattr(self, side) - getattr(other, side)) <= pixels for side in sides)

    def touches(self, point: tuple[float, float], pixels: float = 2.0) -> bool:
        """Whether a point is in it or at its border."""
        x, y = point
        across = self.left - pixels <= x <= self.right + pixels
        return across and self.top - pixels <= y <= self.bottom + pixels


def executables() -> tuple[str, str] | None:
    """Chromium and its driver, where this machine has both."""
    browser = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None
    )
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """A new document, even where only the part after # differs from the last."""
        self.driver.get("about:blank")
        self.driver.get(address)
        self.until(lambda: self.all("#example-list button"))

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self._command("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, **features: str) -> None:
        """Media features such as prefers_color_scheme="dark"; without any, the usual ones."""
        named = [{"name": n.replace("_", "-"), "value": v} for n, v in features.items()]
        self._command("Emulation.setEmulatedMedia", {"features": named})

    def get(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.get(selector).text

    def shown(self, selector: str) -> bool:
        return self.get(selector).is_displayed()

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, found: Callable[[], Found], seconds: float = WAIT_S) -> Found:
        """What `found` returns as soon as that is true of anything."""
        end = time.monotonic() + seconds
        while not (value := found()):
            if time.monotonic() > end:
                raise AssertionError(f"not seen within {seconds} s; {self.complaints()}")
            time.sleep(0.02)
        return value

    def next_frame(self) -> None:
        """Sizes are observed in one frame and drawn in the next."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame("
            "() => requestAnimationFrame(() => done())));"
        )

    @property
    def fragment(self) -> str:
        """The address after #."""
        return str(self.driver.current_url).partition("#")[2]

    def rects(self, selector: str) -> list[Rect]:
        script = """return [...document.querySelectorAll(arguments[0])].map((node) => {
          const {left, top, width, height} = node.getBoundingClientRect();
          return [left, top, width, height]; });"""
        return [Rect(*sides) for sides in self.run(script, selector)]

    def rect(self, selector: str) -> Rect:
        (found,) = self.rects(selector)
        return found

    def line_ends(self, selector: str) -> tuple[tuple[float, float], tuple[float, float]]:
        """Where an SVG path begins and ends, in pixels of the window."""
        script = """const path = document.querySelector(arguments[0]);
          const at = (length) => {
            const point = path.getPointAtLength(length).matrixTransform(path.getScreenCTM());
            return [point.x, point.y]; };
          return [at(0), at(path.getTotalLength())];"""
        start, end = self.run(script, selector)
        return tuple(start), tuple(end)

    def keys(self, *pressed: str) -> None:
        """Typed into whatever has the focus."""
        ActionChains(self.driver).send_keys(*pressed).perform()

    def focused(self) -> str:
        """The id of what has the focus."""
        return str(self.run("return document.activeElement.id"))

    def move(self, selector: str, value: float) -> None:
        """A slider to a value, as a drag ends."""
        script = """const slider = document.querySelector(arguments[0]);
          slider.value = arguments[1]; slider.dispatchEvent(new Event("input", {bubbles: true}));"""
        self.run(script, selector, value)

    def drop(self, selector: str, path: Path) -> None:
        """A file or folder from the desktop onto the middle of an element."""
        on = self.rect(selector)
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        place = {"x": on.left + on.width / 2, "y": on.top + on.height / 2, "data": data}
        for kind in ("dragEnter", "dragOver", "drop"):
            self._command("Input.dispatchDragEvent", {"type": kind, **place})

    def paste_photo(self) -> None:
        self.run(PASTE)

    def contrasts(self) -> list[tuple[float, str]]:
        """Of every text that can be seen, with its beginning."""
        return [(float(ratio), str(text)) for ratio, text in self.run(CONTRASTS)]

    def nameless(self) -> list[str]:
        """Controls that a screen reader could not name."""
        return list(self.run(NAMELESS))

    def answer_once(self, path: str, status: int, body: dict[str, Any]) -> None:
        """The page's next request to a path gets this answer, as from a server in trouble."""
        self.run(ANSWER_ONCE, path, status, body)

    def keep_questions(self) -> None:
        """Questions no longer leave the page; their photos gather in `window.photos`."""
        self.run(KEEP_THE_PHOTO)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self._command("Page.captureScreenshot", {"captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Errors that the console has seen since the last call, and violations of the policy."""
        logged = [str(entry["message"]) for entry in self.driver.get_log("browser")]
        return [*logged, *(self.run("return window.violations") or [])]

    def requests(self) -> list[str]:
        """Method and address of what was requested since the last call."""
        sent = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                request = message["params"]["request"]
                sent.append(f"{request['method']} {request['url']}")
        return sent

    def _command(self, name: str, parameters: dict[str, Any]) -> Any:
        return self.driver.execute_cdp_cmd(name, parameters)


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser with a new profile in an empty folder."""
    found = executables()
    assert found is not None
    browser, driver = found
    options = Options()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    try:
        started.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": LISTEN})
        yield Browser(started)
    finally:
        started.quit()
