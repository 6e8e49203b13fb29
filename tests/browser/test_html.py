"""The HTML report in a browser: it draws, sorts, filters, folds, runs no name and asks for nothing."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rendering import sample
from tracelens.rendering.figures.figure import figures
from tracelens.rendering.renderer import write

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
WAIT_S = 30
WIDEST = "return Math.max(...[...document.querySelectorAll('.main-svg')].map(svg => svg.clientWidth))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium with an empty profile, showing the sample report; every request is logged."""
    if not CHROMIUM or not DRIVER:
        pytest.skip("no chromium and chromedriver on the PATH")
    folder = tmp_path_factory.mktemp("browser")
    write(sample.report(), folder / "report.html")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking"):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={folder / 'profile'}")
    options.add_argument("--window-size=1400,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        driver.get((folder / "report.html").as_uri())
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def run(browser: Any) -> Callable[..., Any]:
    """Evaluate JavaScript in the page."""
    script: Callable[..., Any] = browser.execute_script
    return script


def drawn(run: Callable[..., Any]) -> int:
    return int(run("return document.querySelectorAll('.js-plotly-plot:has(.main-svg)').length"))


def wait_for_figures(run: Callable[..., Any]) -> int:
    """Number of figures that the sample should have; returns when they are drawn, or too late."""
    expected = sum(len(figures(result)) for result in sample.report().results)
    until = time.monotonic() + WAIT_S
    while drawn(run) < expected and time.monotonic() < until:
        time.sleep(0.1)
    return expected


def column(run: Callable[..., Any], grid: str, index: int) -> list[str]:
    """Texts of a column, of the rows that are shown."""
    script = """
        const rows = [...document.querySelectorAll(`[id="${arguments[0]}"] tbody tr`)];
        return rows.filter(row => row.checkVisibility()).map(row => row.cells[arguments[1]].innerText.trim());
    """
    return list(run(script, grid, index))


def click(run: Callable[..., Any], selector: str) -> None:
    run("document.querySelector(arguments[0]).click()", selector)


def search(run: Callable[..., Any], grid: str, text: str) -> None:
    script = """
        const box = document.querySelector(`[id="${arguments[0]}"] input`);
        box.value = arguments[1];
        box.dispatchEvent(new Event("input", {bubbles: true}));
    """
    run(script, grid, text)


def test_every_figure_is_drawn(run: Callable[..., Any]) -> None:
    expected = wait_for_figures(run)
    assert drawn(run) == expected == 11
    assert run("return document.querySelectorAll('.figure').length") == expected


def test_a_click_on_a_header_sorts_numbers_by_value(run: Callable[..., Any]) -> None:
    header = '[id="ops-ops"] th:nth-child(4) button'
    state = "return document.querySelector('[id=\"ops-ops\"] th:nth-child(4)').getAttribute('aria-sort')"
    counts = [24 * number for number in range(1, 31)]
    assert run(state) == "none"
    click(run, header)
    assert run(state) == "descending"
    assert column(run, "ops-ops", 3) == [f"{count:,}" for count in reversed(counts)]
    click(run, header)
    assert run(state) == "ascending"
    assert column(run, "ops-ops", 3) == [f"{count:,}" for count in counts]


def test_a_click_on_a_header_sorts_texts(run: Callable[..., Any]) -> None:
    click(run, '[id="kernels-kernels"] th:nth-child(3) button')
    shown = column(run, "kernels-kernels", 2)
    assert shown == sorted(shown)
    assert len(shown) == 30


def test_the_filter_looks_into_whole_names(run: Callable[..., Any]) -> None:
    search(run, "kernels-kernels", "cute::c<3>")
    shown = column(run, "kernels-kernels", 1)
    assert len(shown) == 1
    assert shown[0].startswith("void cutlass::Kernel<")
    assert (
        run("return document.querySelector('[id=\"kernels-kernels\"] .found').innerText")
        == "1 of 30 rows match"
    )
    search(run, "kernels-kernels", "")
    assert len(column(run, "kernels-kernels", 1)) == 30


def test_buttons_of_a_figure_choose_what_it_shows(run: Callable[..., Any]) -> None:
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


def test_the_filter_finds_entries(run: Callable[..., Any]) -> None:
    shown = """
        const entries = [...document.querySelectorAll('[id="diff-changes"] .entries > li')];
        return entries.filter(entry => entry.checkVisibility()).length;
    """
    assert run(shown) == 8
    search(run, "diff-changes", "EXCHANGED")
    assert run(shown) == 4
    search(run, "diff-changes", "")
    assert run(shown) == 8


def test_a_long_name_opens_on_click(run: Callable[..., Any]) -> None:
    cell = '[id="kernels-kernels"] td.l'
    short = run("return document.querySelector(arguments[0]).innerText", cell)
    click(run, cell)
    opened = run("return document.querySelector(arguments[0]).innerText", cell)
    assert len(short) == 72
    assert len(opened) == 1200
    click(run, cell)
    assert run("return document.querySelector(arguments[0]).innerText", cell) == short


def test_a_tree_opens_and_closes(run: Callable[..., Any]) -> None:
    grid = "breakdown-breakdown"
    top = ["ProfilerStep#3", "collective", "attention", "gemm", "moe"]
    assert column(run, grid, 0) == top
    toggle = f'[id="{grid}"] tbody tr:nth-child(2) .tw'
    click(run, toggle)
    opened = column(run, grid, 0)
    assert opened[:3] == [*top[:2], "aten::collective_3"]
    assert len(opened) == 9
    click(run, toggle)
    assert column(run, grid, 0) == top
    click(run, f'[id="{grid}"] .all')
    assert len(column(run, grid, 0)) == len(sample.breakdown().data["breakdown"])
    click(run, f'[id="{grid}"] .all')
    assert column(run, grid, 0) == top


def test_a_tree_keeps_its_shape_when_sorted_and_filtered(run: Callable[..., Any]) -> None:
    grid = "breakdown-breakdown"
    click(run, f'[id="{grid}"] th:first-child button')
    assert column(run, grid, 0) == ["ProfilerStep#3", "attention", "collective", "gemm", "moe"]
    search(run, grid, "aten::moe_2")
    assert column(run, grid, 0) == ["ProfilerStep#3", "moe", "aten::moe_2"]
    search(run, grid, "")
    assert len(column(run, grid, 0)) == 5


@pytest.mark.parametrize("width", [1400, 420])
def test_the_page_is_not_wider_than_the_window(browser: Any, run: Callable[..., Any], width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    until = time.monotonic() + WAIT_S
    while run(WIDEST) > width and time.monotonic() < until:
        time.sleep(0.1)  # figures follow the window a moment later
    assert run(WIDEST) <= width
    assert run("return document.documentElement.scrollWidth") <= width


def test_colors_follow_the_system(browser: Any, run: Callable[..., Any]) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        time.sleep(0.5)
        seen[scheme] = (
            run("return getComputedStyle(document.body).backgroundColor"),
            run("return getComputedStyle(document.querySelector('.xtick text')).fill"),
        )
    assert seen["light"][0] != seen["dark"][0]
    assert seen["light"][1] != seen["dark"][1]


def test_a_narrow_page_shortens_the_labels_of_figures(browser: Any, run: Callable[..., Any]) -> None:
    metrics = {"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.refresh()
    wait_for_figures(run)
    script = (
        "return [...document.querySelectorAll('[id=\"figure-3\"] .ytick text')].map(text => text.textContent)"
    )
    labels = run(script)
    assert labels[:2] == ["<script>wind…script>", "</script><im…wned=1>"]
    assert max(map(len, labels)) == 20


def test_nothing_ran_that_came_from_the_trace(run: Callable[..., Any]) -> None:
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
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
