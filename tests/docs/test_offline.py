"""The site opened as files, without a network: pages are whole, and the search works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import chromium, errors, prefer, requests, resize, until

pytestmark = pytest.mark.rare
SHOWN = "[...document.images].filter((image) => image.checkVisibility())"
"""Not the pictures for the other color scheme."""
SCHEMES = {"light": "default", "dark": "slate"}
SIZES = {"desktop": 1280, "phone": 420}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        driver.execute_cdp_cmd("Network.enable", {})
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        yield driver


def open_page(driver: Any, page: Path) -> None:
    requests(driver), errors(driver)
    driver.get(page.as_uri())


def results(driver: Any) -> list[str]:
    """Addresses of the pages that the search shows, best first."""
    script = "return [...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)"
    return list(driver.execute_script(script))


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index.html", "concepts/waiting.html"])
def test_search_works_from_files(browser: Any, site: Path, page: str) -> None:
    open_page(browser, site / page)
    browser.execute_script("document.querySelector('#__search').click()")
    box = browser.find_element("css selector", ".md-search__input")
    box.send_keys("stragglers")
    expected = (site / "reference/analyzers/stragglers.html").as_uri()
    # Results come while the word is typed, and change with it.
    assert until(lambda: any(link.startswith(expected) for link in results(browser)))
    browser.get(results(browser)[0])
    assert "straggler" in browser.find_element("css selector", "article").text.lower()
    assert errors(browser) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_pages_show_whole_without_a_network(browser: Any, site: Path, width: int, scheme: str) -> None:
    resize(browser, width)
    prefer(browser, scheme)
    browser.get((site / "index.html").as_uri())
    browser.execute_script("localStorage.clear()")  # the choice of the first visit
    for page in ("index.html", "tutorial.html", "concepts/steps.html", "reference/analyzers/idle.html"):
        open_page(browser, site / page)
        assert browser.execute_script("return document.body.dataset.mdColorScheme") == SCHEMES[scheme], page
        assert until(lambda: browser.execute_script(f"return {SHOWN}.every((image) => image.complete)"))
        broken = f"return {SHOWN}.filter((image) => !image.naturalWidth).map((image) => image.src)"
        assert browser.execute_script(broken) == [], page
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, page
        assert all(url.startswith(("file:", "data:", "about:")) for url in requests(browser)), page
        assert errors(browser) == [], page
