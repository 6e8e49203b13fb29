"""Tables of a notebook that is alive: readers turn pages and choose ranks, without the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

display = pytest.importorskip("IPython.display", reason="notebooks need the extra `notebook`")

import plotly.io  # noqa: E402

from tests.browser.chromium import chromium, errors  # noqa: E402
from tests.rendering import sample  # noqa: E402

ROWS = """
    const grid = document.querySelectorAll(".grid")[arguments[0]];
    const shown = [...grid.querySelectorAll("tbody tr")].filter(row => row.checkVisibility());
    return shown.map(row => row.innerText);
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def page(browser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Shows what a notebook shows of results, one below the other."""
    outputs: list[str] = []
    monkeypatch.setattr(
        display, "display", lambda content, **raw: None if raw else outputs.append(content.data)
    )
    monkeypatch.setattr(plotly.io.renderers, "default", "plotly_mimetype")
    monkeypatch.setattr("tracelens.rendering.image.png", lambda figure: b"")

    def show(*results: Any) -> Any:
        for result in results:
            result._ipython_display_()
        path = tmp_path / "page.html"
        path.write_text("<!doctype html><meta charset=utf-8>" + "".join(outputs), encoding="utf-8")
        browser.get(path.as_uri())
        assert errors(browser) == []
        return browser

    return show


def rows(browser: Any, grid: int) -> list[str]:
    return list(browser.execute_script(ROWS, grid))


def bar(browser: Any, grid: int) -> Any:
    return browser.find_elements("css selector", ".grid")[grid].find_element("css selector", ".turn")


def test_pages_turn_until_the_last_row(page: Any) -> None:
    browser = page(sample.ranking("ops", "dur_ns", 50), sample.ranking("kernels", "sum_ns", 5))
    seen = rows(browser, 0)
    assert len(seen) == 20
    back, forward = bar(browser, 0).find_elements("css selector", "button")
    assert not back.is_enabled()
    while forward.is_enabled():
        forward.click()
        seen += rows(browser, 0)
    assert len(seen) == len(set(seen)) == 50
    back.click()
    assert rows(browser, 0) == seen[20:40]
    assert "21–40 of 50 rows" in bar(browser, 0).text
    assert len(rows(browser, 1)) == 5
    assert not browser.find_elements("css selector", ".grid")[1].find_elements("css selector", ".turn")


def test_readers_choose_a_rank(page: Any) -> None:
    browser = page(sample.timeline(ranks=3))
    select = bar(browser, 0).find_element("css selector", "select")
    options = select.find_elements("css selector", "option")
    assert [option.text for option in options] == ["all ranks", "rank 0", "rank 1", "rank 2"]
    together = rows(browser, 0)
    options[2].click()
    of_rank = rows(browser, 0)
    assert of_rank != together
    assert {row.split("\t")[0] for row in of_rank} == {"1"}
    options[0].click()
    assert rows(browser, 0) == together


def test_without_scripts_the_first_rows_stand_there(browser: Any, page: Any) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page(sample.ranking("ops", "dur_ns", 50))
        shown = browser.find_elements("css selector", "tbody tr")
        assert len(shown) == 20
        assert not browser.find_elements("css selector", ".turn")
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
