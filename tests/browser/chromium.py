"""A headless Chromium that shows pages from files and logs every request."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
WAIT_S = 240
FLAGS = (
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-background-networking",
    # Nobody looks at the window, and the page must go on drawing all the same.
    "disable-background-timer-throttling",
    "disable-backgrounding-occluded-windows",
    "disable-renderer-backgrounding",
    "disable-dev-shm-usage",  # containers often have 64 MB of it
)

T = TypeVar("T")


_WHOLE = """
    const done = arguments[0];
    document.readyState === "complete" ? done() : addEventListener("load", () => done(), {once: true});
"""


@contextmanager
def chromium(folder: Path) -> Iterator[Any]:
    """A driver of a Chromium with an empty profile below `folder`; skips the test where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not CHROMIUM or not DRIVER:
        pytest.skip("no chromium and chromedriver on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={folder / 'profile'}")
    options.add_argument("--window-size=1400,900")
    options.set_capability("unhandledPromptBehavior", "ignore")  # what a page opens stays for the test to see
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(WAIT_S)
    # Without a window of its own a page may be without the focus, and then it gets no events of it.
    driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
    get = driver.get

    def whole(url: str) -> None:
        """A large page is sometimes said to be there before its end is."""
        get(url)
        driver.execute_async_script(_WHOLE)

    driver.get = whole
    try:
        yield driver
    finally:
        driver.quit()


def resize(driver: Any, width: int, height: int = 900) -> None:
    """Show pages in a window of this size, which may be narrower than Chromium's own."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefer(driver: Any, scheme: str) -> None:
    """Show pages as somebody sees them who prefers "light" or "dark"."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def until(holds: Callable[[], Any]) -> Any:
    """What `holds` returns, as soon as that is true, or too late."""
    end = time.monotonic() + WAIT_S
    while not (value := holds()) and time.monotonic() < end:
        time.sleep(0.05)
    return value


def becomes(value: Callable[[], T], expected: T) -> None:
    """Assert that a value is as expected, perhaps a moment later: a page takes time to follow."""
    until(lambda: value() == expected)
    last = value()
    assert last == expected, f"{last!r}, not {expected!r}"


def requests(driver: Any) -> list[str]:
    """URLs that pages from files asked for since the last call."""
    logged = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [
        message["params"]["request"]["url"]
        for message in logged
        if message["method"] == "Network.requestWillBeSent"
        and message["params"].get("documentURL", "").startswith("file:")
    ]


def errors(driver: Any) -> list[str]:
    """Errors on the console since the last call."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
