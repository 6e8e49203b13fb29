"""A browser with a page of the report in it, and what tests do there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
WAIT_S = 30

Run = Callable[..., Any]


@contextmanager
def chromium(folder: Path) -> Iterator[Any]:
    """A headless Chromium with an empty profile below `folder`; every request is logged."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not CHROMIUM or not DRIVER:
        pytest.skip("no chromium and chromedriver on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking"):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={folder / 'profile'}")
    options.add_argument("--window-size=1400,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(WAIT_S)
    try:
        yield driver
    finally:
        driver.quit()


def wait_alive(browser: Any, grid: str) -> None:
    """Until the script has taken over the table."""
    script = (
        "const done = arguments[1]; tracelens.table(arguments[0]).then(() => done(''), (e) => done(e.stack))"
    )
    error = browser.execute_async_script(script, grid)
    assert not error, error


def open_sections(browser: Any) -> None:
    """Open every section, as the button above them does."""
    browser.execute_script(
        "for (const section of document.querySelectorAll('details.section')) section.open = true"
    )


def column(run: Run, grid: str, index: int) -> list[str]:
    """Texts of a column, of the rows that are shown."""
    script = """
        const rows = [...document.querySelectorAll(`[id="${arguments[0]}"] tbody tr:not(.space)`)];
        return rows.filter(row => row.checkVisibility()).map(row => row.cells[arguments[1]].innerText.trim());
    """
    return list(run(script, grid, index))


def click(run: Run, selector: str) -> None:
    """Click the first element that matches."""
    run("document.querySelector(arguments[0]).click()", selector)


def fill(run: Run, selector: str, text: str) -> None:
    """Type into a box, replacing what is there."""
    script = """
        const box = document.querySelector(arguments[0]);
        box.value = arguments[1];
        box.dispatchEvent(new Event("input", {bubbles: true}));
    """
    run(script, selector, text)


def errors(browser: Any) -> list[Any]:
    """What the console has logged as an error."""
    return [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def sort_by(run: Run, grid: str, name: str) -> str:
    """Click the header of a column; returns how it is sorted then."""
    script = """
        const header = document.querySelector(`[id="${arguments[0]}"] th[data-column="${arguments[1]}"]`);
        header.querySelector("button").click();
        return header.ariaSort;
    """
    return str(run(script, grid, name))
