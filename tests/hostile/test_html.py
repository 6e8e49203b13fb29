"""HTML in a browser without the page's policy: no text runs, loads, links or adds an element."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.browser.chromium import becomes, chromium
from tests.browser.pages import open_sections
from tests.effort import effort
from tests.hostile.conftest import Outputs
from tests.hostile.reports import drawn, poisoned
from tracelens.rendering import RENDERERS
from tracelens.rendering.figures import figures
from tracelens.rendering.formats import fragment
from tracelens.table import Report

files = RENDERERS.get("html").files

POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')

FORBIDDEN = "img, iframe, object, embed, form, base, frame, video, audio, source, portal, foreignObject"
# Plotly draws heat maps as images that it makes, and measures texts in an element of its own.
FOREIGN = "image:not(.js-plotly-plot image), svg:not(.js-plotly-plot svg, #js-plotly-tester)"
# Every table made by the script.
ALIVE = """
const done = arguments[0];
const ids = [...document.querySelectorAll('script[id^="payload-"]')].map(one => one.id.slice(8));
const grids = ids.filter(id => document.getElementById(id));
Promise.all(grids.map(id => tracelens.table(id))).then(() => done(''), (error) => done(error.stack));
"""
# What stands in the place of each figure. They are drawn at once, as for print: where timers of a page run
# late, one after the other takes minutes.
FIGURES = """
window.tracelens?.drawFigures?.(true);
const shown = one => one.querySelector('.main-svg') ? 'drawn' : one.textContent;
return [...document.querySelectorAll('.figure')].map(shown);
"""
HANDLERS = """
const has = one => [...one.attributes].some(at => /^on/.test(at.name));
return [...document.querySelectorAll('*')].filter(has).length;
"""
LINKS = """
const of = one => one.getAttribute('href') ?? one.getAttribute('xlink:href');
return [...document.querySelectorAll('a')].map(of);
"""
# What appears under the pointer, and which links it has.
HOVER = """
const links = [];
for (const plot of document.querySelectorAll('.js-plotly-plot')) {
  (plot.data || []).forEach((trace, curveNumber) => {
    for (const pointNumber of [0, 1, 2, 5]) {
      try { Plotly.Fx.hover(plot, [{curveNumber, pointNumber}]); } catch (error) { continue; }
      for (const link of plot.querySelectorAll('a')) links.push(link.outerHTML);
    }
  });
}
return links;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium with an empty profile that logs every request."""
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def load(browser: Any, page: str, path: Path, plots: int) -> Any:
    """Open a page without its policy; returns what evaluates JavaScript in it."""
    bare, count = POLICY.subn("", page)
    assert count == 1 or "<html" not in page
    path.write_text(bare, encoding="utf-8")
    browser.get_log("performance")
    browser.get(path.as_uri())
    if "<html" in page:
        open_sections(browser)
        assert browser.execute_async_script(ALIVE) == ""
    becomes(lambda: browser.execute_script(FIGURES), ["drawn"] * plots)
    return browser.execute_script


def check(browser: Any, run: Any) -> None:
    """Nothing ran, nothing was asked for, and nothing is there that the format does not make."""
    assert run("return typeof window.__pwned") == "undefined"
    assert run(f"return document.querySelectorAll('{FORBIDDEN}').length") == 0
    assert run(f"return document.querySelectorAll(`{FOREIGN}`).length") == 0
    assert run(HANDLERS) == 0
    assert [link for link in run(LINKS) if link and not link.startswith("#")] == []
    assert [link for link in run(HOVER) if "href=" in link] == []
    assert run("return typeof window.__pwned") == "undefined"
    urls = requests(browser)
    assert [url for url in urls if not url.startswith(("file:", "data:", "blob:", "chrome:"))] == []
    assert len([url for url in urls if url.startswith("file:")]) == 1


def requests(browser: Any) -> list[str]:
    logged = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [message["params"] for message in logged if message["method"] == "Network.requestWillBeSent"]
    return [item["request"]["url"] for item in sent if item.get("documentURL", "").startswith("file:")]


@pytest.mark.rare
def test_every_table(browser: Any, tables: Report, tmp_path: Path) -> None:
    part = replace(tables, results=tables.results[:: effort(3, 1)])
    run = load(browser, files(part)["report.html"].decode(), tmp_path / "tables.html", 0)
    check(browser, run)
    assert run("return document.querySelectorAll('script:not([type])').length") == 1
    assert run("return document.querySelectorAll('tbody tr').length") > 2000


def test_every_figure(browser: Any, figured: Report, tmp_path: Path) -> None:
    plots = sum(len(figures(result)) for result in figured.results)
    assert plots > 25
    run = load(browser, files(figured)["report.html"].decode(), tmp_path / "figures.html", plots)
    check(browser, run)
    # The page's own, and the library for figures.
    assert run("return document.querySelectorAll('script:not([type])').length") == 2


@pytest.mark.parametrize("name", ["report", "diff", "whatif"])
def test_pages_of_commands(browser: Any, outputs: Outputs, tmp_path: Path, name: str) -> None:
    page = (outputs.folder / f"{name}.html").read_text(encoding="utf-8")
    run = load(browser, page, tmp_path / f"{name}.html", page.count('class="figure"'))
    check(browser, run)


def test_fragments_of_notebooks(browser: Any, tables: Report, figured: Report, tmp_path: Path) -> None:
    page = "<!doctype html><meta charset=utf-8>" + "".join(
        fragment(result) for result in (*tables.results, *figured.results)
    )
    check(browser, load(browser, page, tmp_path / "notebook.html", 0))


class Tags(HTMLParser):
    """Start tags and names of attributes, counted."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag] += 1
        self.found.update(f"{tag} {name}" for name, _ in attrs if name not in ("class", "title"))


def test_a_page_has_the_same_elements_whatever_its_texts(figured: Report) -> None:
    """Scripts and forms of a page are those of a page with other texts."""
    counts = []
    for shift in (0, 40, 90):
        results = tuple(poisoned(result, shift) for result in list(drawn())[:8])
        parser = Tags()
        page = files(Report(results))["report.html"].decode()
        parser.feed(page)
        counts.append(
            {tag: parser.found[tag] for tag in ("script", "style", "link", "meta", "figure", "table", "a")}
        )
    assert counts[0] == counts[1] == counts[2]
    assert counts[0]["script"] == 3 + page.count('<script type="application/octet-stream"')


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


OURS = {"<br>", "<extra>", "</extra>", "<b>", "</b>"}


def test_figures_have_no_tags_of_their_own(figured: Report) -> None:
    for result in figured.results:
        for drawing in figures(result):
            drawing["layout"].pop("title")  # shown by the page, not by plotly
            for text in strings(drawing):
                assert set(re.findall("<[^>]*>?", text)) <= OURS
