"""The HTML report in a browser: it draws, sorts, filters, folds, runs no name and asks for nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import becomes, chromium, errors, prefer, until
from tests.browser.pages import Run, fill, open_sections
from tests.rendering import sample
from tracelens.rendering import write
from tracelens.rendering.figures import figures

WIDEST = "return Math.max(...[...document.querySelectorAll('.main-svg')].map(svg => svg.clientWidth))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser that shows the sample report, all sections open."""
    folder = tmp_path_factory.mktemp("browser")
    write(sample.report(), folder / "report.html")
    with chromium(folder) as driver:
        driver.get((folder / "report.html").as_uri())
        open_sections(driver)
        yield driver


@pytest.fixture
def run(browser: Any) -> Run:
    """Evaluate JavaScript in the page."""
    script: Run = browser.execute_script
    return script


def drawn(run: Run) -> int:
    return int(run("return document.querySelectorAll('.js-plotly-plot:has(.main-svg)').length"))


def wait_for_figures(run: Run) -> int:
    """Number of figures that the sample should have; returns when they are drawn, or too late."""
    expected = sum(len(figures(result)) for result in sample.report().results)
    until(lambda: drawn(run) >= expected)
    return expected


def test_every_figure_is_drawn(run: Run) -> None:
    expected = wait_for_figures(run)
    assert drawn(run) == expected == 11
    assert run("return document.querySelectorAll('.figure').length") == expected


def test_buttons_of_a_figure_choose_what_it_shows(run: Run) -> None:
    wait_for_figures(run)
    group = "document.querySelector('#diff .views')"
    pressed = f"return [...{group}.children].map(button => button.ariaPressed)"
    visible = f"return {group}.nextElementSibling.data.map(trace => trace.visible)"
    labels = (
        f"return [...{group}.nextElementSibling.querySelectorAll('.ytick')].map(tick => tick.textContent)"
    )
    assert run(f"return [...{group}.children].map(button => button.textContent)") == ["by cause", "by stage"]
    assert run(pressed) == ["true", "false"]
    run(f"{group}.children[1].click()")
    assert run(pressed) == ["false", "true"]
    assert run(visible) == [False, True]
    assert run(labels) == ["base", "outside", "experts", "candidate"]
    run(f"{group}.children[0].click()")
    assert run(visible) == [True, False]


def test_the_filter_finds_entries(run: Run) -> None:
    shown = """
        const entries = [...document.querySelectorAll('[id="diff-changes"] .entries > li')];
        return entries.filter(entry => entry.checkVisibility()).length;
    """
    assert run(shown) == 8
    fill(run, '[id="diff-changes"] input', "EXCHANGED")
    assert run(shown) == 4
    fill(run, '[id="diff-changes"] input', "")
    assert run(shown) == 8


@pytest.mark.parametrize("width", [1400, 420])
def test_the_page_is_not_wider_than_the_window(browser: Any, run: Run, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    until(lambda: run(WIDEST) <= width)  # figures follow the window a moment later
    assert run(WIDEST) <= width
    assert run("return document.documentElement.scrollWidth") <= width


def test_colors_follow_the_system(browser: Any, run: Run) -> None:
    wait_for_figures(run)

    def colors() -> list[str]:
        page, label = "document.body", "document.querySelector('.xtick text')"
        script = f"return [getComputedStyle({page}).backgroundColor, getComputedStyle({label}).fill]"
        return list(run(script))

    prefer(browser, "light")  # as the browser does by itself
    light = colors()
    prefer(browser, "dark")
    assert until(lambda: all(dark != before for dark, before in zip(colors(), light, strict=True)))
    prefer(browser, "light")
    becomes(colors, light)


def test_a_narrow_page_shortens_the_labels_of_figures(browser: Any, run: Run) -> None:
    metrics = {"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.refresh()
    open_sections(browser)
    wait_for_figures(run)
    script = (
        "return [...document.querySelectorAll('[id=\"figure-3\"] .ytick text')].map(text => text.textContent)"
    )
    labels = run(script)
    assert labels[:2] == ["<script>wind…script>", "</script><im…wned=1>"]
    assert max(map(len, labels)) == 20


def test_nothing_ran_that_came_from_the_trace(run: Run) -> None:
    assert run("return typeof window.__pwned") == "undefined"
    assert run("return document.querySelectorAll('img, iframe, object, embed').length") == 0
    assert run("return document.querySelectorAll('.figure a[href]').length") == 0


def test_nothing_was_requested_and_nothing_failed(browser: Any) -> None:
    logged = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [
        message["params"]["request"]["url"]
        for message in logged
        if message["method"] == "Network.requestWillBeSent"
        and message["params"].get("documentURL", "").startswith("file:")
    ]
    assert {Path(url).name for url in urls if url.startswith("file:")} == {"report.html"}
    assert not [url for url in urls if not url.startswith(("file:", "data:", "blob:"))]
    assert not errors(browser)
