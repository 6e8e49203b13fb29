"""The page in a browser: its first screen, folded sections, one click for each action, keyboard, print."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import becomes, chromium, errors, until
from tests.browser.pages import Run
from tests.rendering import sample
from tests.rendering.test_page import findings
from tracelens.rendering import write
from tracelens.table import Report, Summary, Tile

keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed").Keys

TILES = (
    Tile("step_time", "Step time", 58.4e6, "ns", 57e6, 60e6, "2 steps", "timeline"),
    Tile("memory", "Peak memory", None, "bytes", note="record with `profile_memory=True`"),
)
COMMAND = "tracelens analyze moe run --step 2"


def report() -> Report:
    """A verdict, a finding that leads to a table, and sections with figures."""
    results = (findings(), sample.moe(8), sample.timeline(), sample.idle(), sample.unknown())
    return Report(results, title="Run", meta={"version": "1"}, summary=Summary("58.4 ms a step.", TILES))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    """A headless Chromium with an empty profile, and the address of the report."""
    folder = tmp_path_factory.mktemp("page")
    write(report(), folder / "report.html")
    with chromium(folder) as driver:
        yield driver, (folder / "report.html").as_uri()


@pytest.fixture
def browser(pages: tuple[Any, str]) -> Any:
    """The report, as it is at first, in a window of 1400 x 900."""
    driver, address = pages
    metrics = {"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    if driver.current_url.partition("#")[0] != address or driver.execute_script("return window.changed"):
        driver.get(address)
    else:
        # Loading the page anew for each test takes seconds.
        driver.execute_script("""
            history.replaceState(null, "", location.pathname);
            for (const details of document.querySelectorAll("details")) details.open = false;
            document.activeElement.blur();
            scrollTo({ top: 0, behavior: "instant" });
        """)
    return driver


@pytest.fixture
def run(browser: Any) -> Run:
    """Evaluate JavaScript in the page."""
    script: Run = browser.execute_script
    return script


def wait_until(run: Run, condition: str) -> Any:
    """The value of a JavaScript expression, once it is one."""
    return until(lambda: run(f"return {condition}"))


def test_the_first_screen_holds_verdict_tiles_and_the_first_finding(run: Run) -> None:
    bottom = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
    places = [run(bottom, selector) for selector in (".verdict", ".tiles", ".finding .actions")]
    assert places == sorted(places)
    assert places[-1] <= 900
    size = "return parseFloat(getComputedStyle(document.querySelector(arguments[0])).fontSize)"
    assert run(size, ".verdict") > run(size, "body")


def test_sections_are_closed_at_first_and_their_figures_not_drawn(browser: Any, run: Run) -> None:
    browser.refresh()  # another test may have opened the others
    assert run("return document.querySelectorAll('.result > details').length") == 5
    assert run("return document.querySelectorAll('.result > details[open]').length") == 0
    assert run("return document.querySelectorAll('.js-plotly-plot').length") == 0
    assert "computation 62%" in run("return document.querySelector('#timeline summary').innerText")


def test_an_opened_section_draws_its_figures_and_no_others(browser: Any, run: Run) -> None:
    browser.refresh()  # another test may have opened the others
    run("document.querySelector('#idle summary').click()")
    assert wait_until(run, "document.querySelectorAll('#idle .js-plotly-plot .main-svg').length > 0")
    assert run("return document.querySelectorAll('#moe .js-plotly-plot').length") == 0


def test_a_tile_opens_its_section(run: Run) -> None:
    run("document.querySelector('.tiles a').click()")
    assert wait_until(run, "document.querySelector('#timeline > details').open")
    assert run("return document.querySelector('.tiles .unknown').innerText").startswith("Peak memory")


def test_the_contents_open_a_section_also_when_it_was_closed_again(run: Run) -> None:
    for _ in range(2):
        run("document.querySelector('nav a[href=\"#idle\"]').click()")
        assert wait_until(run, "document.querySelector('#idle > details').open")
        run("document.querySelector('#idle > details').open = false")


def test_an_address_with_an_anchor_opens_its_section(pages: tuple[Any, str], run: Run) -> None:
    driver, address = pages
    driver.get("about:blank")
    driver.get(f"{address}#moe")
    assert wait_until(run, "document.querySelector('#moe > details').open")


def test_one_button_opens_and_closes_all_sections(run: Run) -> None:
    count = "return document.querySelectorAll('.section:not([open])').length"
    run("document.getElementById('fold-all').click()")
    assert run(count) == 0
    assert run("return document.getElementById('fold-all').ariaPressed") == "true"
    run("document.getElementById('fold-all').click()")
    assert run(count) == 6


def test_a_click_copies_a_command_and_says_so(browser: Any, run: Run) -> None:
    origin = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.execute_cdp_cmd("Browser.grantPermissions", origin)
    run("window.changed = true; window.copied = []; tracelens.copy = async (text) => { copied.push(text); }")
    run("document.querySelector('.copy').click()")
    assert wait_until(run, "copied.length") == 1
    assert run("return copied[0]") == COMMAND
    assert COMMAND in wait_until(run, "document.getElementById('announcer').textContent")
    assert run("return document.querySelector('.copy').ariaLabel") == "Copy evidence command"


def test_the_old_way_to_copy_is_taken_where_there_is_no_clipboard(run: Run) -> None:
    run("""
        window.changed = true;
        Object.defineProperty(navigator, "clipboard", { value: undefined });
        document.execCommand = (command) => { window.command = command; return true; };
    """)
    run("document.querySelector('.copy').click()")
    assert wait_until(run, "window.command") == "copy"
    assert wait_until(run, "document.querySelector('.copy').textContent === 'Copied'")


def test_what_a_button_copies_is_seen_under_the_pointer_or_focus(browser: Any, run: Run) -> None:
    run("document.querySelector('.show-row').focus()")
    browser.switch_to.active_element.send_keys(keys.TAB)
    shown = "return getComputedStyle(document.activeElement, '::after').content"
    assert COMMAND in run(shown)


def test_a_finding_leads_to_the_row_of_its_table(run: Run) -> None:
    run("document.querySelector('.show-row').click()")
    assert wait_until(run, "document.querySelector('#moe > details').open")
    rows = """[...document.querySelectorAll('[id="moe-stages"] tbody tr')].filter((row) =>
            row.checkVisibility() && [...row.cells].some((cell) => cell.innerText === 'experts')).length
    """
    assert wait_until(run, rows) > 0


def test_without_a_picture_nothing_leads_there(run: Run) -> None:
    assert not run("return document.querySelector('.show-picture').checkVisibility()")


def test_a_finding_leads_to_the_picture(run: Run) -> None:
    run("""
        window.changed = true;
        tracelens.picture = { show: (place) => { window.shown = place; } };
        document.querySelector(".show-picture").hidden = false;
        document.querySelector(".show-picture").click();
    """)
    assert run("return [shown.rank, shown.ts_ns]") == [0, 270_699_789]


def test_the_tab_key_follows_the_page(browser: Any, run: Run) -> None:
    # The first tab from wherever the last click was would go on from there.
    browser.refresh()
    visited: list[Any] = []
    while not visited or visited[-1][0]:
        browser.switch_to.active_element.send_keys(keys.TAB)
        visited.append(
            run("""
                const element = document.activeElement;
                const { top } = element.getBoundingClientRect();
                return [element.closest("nav, main, .skip")?.tagName, element.className, top + scrollY,
                        getComputedStyle(element).outlineStyle];
            """)
        )
    assert visited[0][1] == "skip"
    tags = [tag for tag, *_ in visited if tag]
    assert tags.index("MAIN") > tags.index("NAV")
    classes = [name for _, name, *_ in visited]
    assert classes.index("show-row") < classes.index("copy")
    tops = [top for tag, _, top, _ in visited if tag == "MAIN"]
    assert all(later > earlier - 60 for earlier, later in pairwise(tops))
    assert {outline for tag, *_, outline in visited if tag} == {"solid"}


def test_the_page_has_landmarks_and_names(run: Run) -> None:
    assert run("return document.querySelectorAll('main, nav[aria-label], h1').length") == 3
    unnamed = """
        const named = (element) => element.ariaLabel || element.labels?.length || element.textContent.trim()
            || element.getAttribute("aria-labelledby");
        return [...document.querySelectorAll("button, a, input, summary, [role=img], section")]
            .filter((element) => !named(element)).length;
    """
    assert run(unnamed) == 0
    assert (
        run(
            'return document.querySelectorAll(\'[tabindex]:not([tabindex="0"]):not([tabindex="-1"])\').length'
        )
        == 0
    )


def test_motion_is_reduced_where_that_is_asked_for(browser: Any, run: Run) -> None:
    behaviour = "return getComputedStyle(document.documentElement).scrollBehavior"
    seen = {}
    for setting in ("no-preference", "reduce"):
        features = [{"name": "prefers-reduced-motion", "value": setting}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        seen[setting] = run(behaviour)
    assert seen == {"no-preference": "smooth", "reduce": "auto"}


def test_print_opens_everything_and_closes_it_again(browser: Any, run: Run) -> None:
    run(
        "const closed = () => document.querySelectorAll('details:not([open])').length;"
        "addEventListener('beforeprint', () => { window.stillClosed = closed(); })"
    )
    printed = browser.execute_cdp_cmd("Page.printToPDF", {})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    assert run("return window.stillClosed") == 0
    assert wait_until(run, "document.querySelectorAll('.result > details[open]').length === 0")
    assert run("return document.querySelectorAll('.js-plotly-plot .main-svg').length") > 0


@pytest.mark.parametrize("width", [1400, 420])
def test_nothing_is_wider_than_the_window_with_all_sections_open(browser: Any, run: Run, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.refresh()
    run("document.getElementById('fold-all').click()")
    wait_until(run, "document.querySelectorAll('.figure:not(.js-plotly-plot)').length === 0")
    assert run("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1400, 420])
def test_no_legend_lies_under_a_toolbar_or_outside(browser: Any, run: Run, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.refresh()
    run("document.getElementById('fold-all').click()")
    wait_until(run, "document.querySelectorAll('.figure:not(.js-plotly-plot)').length === 0")
    overlaps = """
        const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top
            || b.bottom <= a.top;
        return [...document.querySelectorAll(".js-plotly-plot")].filter((plot) => {
            const legend = plot.querySelector(".legend")?.getBoundingClientRect();
            const bar = plot.querySelector(".modebar")?.getBoundingClientRect();
            const area = plot.querySelector(".nsewdrag")?.getBoundingClientRect();
            if (!legend) return false;
            return (bar && !apart(legend, bar)) || (area && !apart(legend, area))
                || legend.right > innerWidth;
        }).map((plot) => plot.id);
    """
    assert wait_until(run, "document.querySelectorAll('.js-plotly-plot .legend').length") > 0
    becomes(lambda: run(overlaps), [])


def test_the_page_asks_for_nothing_and_logs_no_error(browser: Any) -> None:
    logged = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [
        message["params"]["request"]["url"]
        for message in logged
        if message["method"] == "Network.requestWillBeSent"
        and message["params"].get("documentURL", "").startswith("file:")
    ]
    assert {Path(url).name.partition("#")[0] for url in urls if url.startswith("file:")} == {"report.html"}
    assert not [url for url in urls if not url.startswith(("file:", "data:", "blob:"))]
    assert not errors(browser)
