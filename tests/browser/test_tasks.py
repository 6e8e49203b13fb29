"""What somebody new wants to know, and how many clicks that takes: at most three."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.browser.chromium import chromium
from tests.browser.pages import column, wait_alive

TRACES = Path(__file__).parents[2] / "sample_traces" / "ladder" / "ep4" / "00_baseline"
MOST_CLICKS = 3


@pytest.fixture(scope="module")
def results() -> Any:
    return tracelens.report_files(TRACES)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, results: Any) -> Iterator[tuple[Any, str]]:
    """A browser, and the address of the report of four ranks."""
    folder = tmp_path_factory.mktemp("tasks")
    tracelens.render(results, folder / "report.html")
    with chromium(folder) as driver:
        yield driver, (folder / "report.html").as_uri()


@pytest.fixture
def browser(page: tuple[Any, str]) -> Any:
    """The report as it opens."""
    driver, address = page
    driver.get("about:blank")  # forgets what the address chose
    driver.get(address)
    return driver


@pytest.fixture
def click(browser: Any) -> Iterator[Callable[[str], None]]:
    """Click an element, which has to be in sight; a task has MOST_CLICKS of them."""
    clicks: list[str] = []

    def once(selector: str) -> None:
        clicks.append(selector)
        element = browser.find_element("css selector", selector)
        browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()

    yield once
    assert len(clicks) <= MOST_CLICKS


def shown(browser: Any, grid: str, name: str) -> list[str]:
    """The visible cells of a column."""
    wait_alive(browser, grid)
    heads = browser.execute_script(
        "return [...document.querySelectorAll(`#${arguments[0]} thead th`)].map(th => th.dataset.column)",
        grid,
    )
    return column(browser.execute_script, grid, heads.index(name))


def test_the_longest_gap_of_the_worst_rank_and_its_cause(
    browser: Any, click: Callable[[str], None], results: Any
) -> None:
    gaps = results["idle"]["gaps"]
    idle = results["idle"]["causes"].groupby("rank")["dur_ns"].sum()
    worst = gaps[gaps["rank"] == idle.idxmax()].sort_values("dur_ns").iloc[-1]
    click("nav a[href='#idle']")
    click(f"button[data-rank='{idle.idxmax()}']")
    assert float(shown(browser, "idle-gaps", "dur_ns")[0].replace(",", "")) == pytest.approx(
        worst["dur_ns"] / 1e3, abs=0.01
    )
    assert shown(browser, "idle-gaps", "cause")[0] == worst["cause"]


def test_the_expert_with_most_tokens(browser: Any, click: Callable[[str], None], results: Any) -> None:
    experts = results["moe"]["experts"].sort_values("tokens").iloc[-1]
    click("nav a[href='#moe']")
    row = [shown(browser, "moe-experts", name)[0] for name in ("rank", "layer", "expert")]
    assert row == [str(int(experts[name])) for name in ("rank", "layer", "expert")]
