"""What tests do on a page of the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Run = Callable[..., Any]


def wait_alive(browser: Any, grid: str) -> None:
    """Until the script has taken over the table."""
    script = (
        "const done = arguments[1]; tracelens.table(arguments[0]).then(() => done(''), (e) => done(e.stack))"
    )
    error = browser.execute_async_script(script, grid)
    assert not error, error


def wait_drawn(browser: Any) -> None:
    """Until the picture of the step is drawn, on a page that has one."""
    script = """
        const done = arguments[0];
        Promise.resolve(tracelens.picture?.ready).then(() => done(""), (error) => done(String(error)));
    """
    error = browser.execute_async_script(script)
    assert not error, error


def open_sections(browser: Any) -> None:
    """Open every section, as the button above them does, and wait until their contents are drawn."""
    browser.execute_async_script(
        """
        for (const section of document.querySelectorAll('details.section')) section.open = true;
        requestAnimationFrame(() => setTimeout(arguments[0]));
        """
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


def sort_by(run: Run, grid: str, name: str) -> str:
    """Click the header of a column; returns how it is sorted then."""
    script = """
        const header = document.querySelector(`[id="${arguments[0]}"] th[data-column="${arguments[1]}"]`);
        header.querySelector("button").click();
        return header.ariaSort;
    """
    return str(run(script, grid, name))
