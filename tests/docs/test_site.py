"""The documentation builds without a warning, its links lead somewhere, and reading it needs no network."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

pytestmark = pytest.mark.rare
PICTURES_BYTES = 5_000_000


class Page(HTMLParser):
    """The targets, ids and fetched resources of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.resources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {values[name] or "" for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"] or "")
        source = values.get("href") if tag == "link" else values.get("src")
        if source:
            self.resources.append(source)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def is_local(link: str) -> bool:
    return not re.match(r"[a-z]+:|//", link)


@pytest.mark.slow
def test_every_link_leads_to_a_page_and_a_place_on_it(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 50
    dead = []
    for path, page in pages.items():
        for link in filter(is_local, page.links):
            target, fragment = urldefrag(link)
            file = (path.parent / unquote(target)).resolve() if target else path
            known = pages.get(file)
            if not file.exists() or (fragment and known is not None and unquote(fragment) not in known.ids):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert not dead, "\n".join(dead)


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert all(map(is_local, page.resources)), path
        assert all((path.parent / unquote(urldefrag(name)[0])).exists() for name in page.resources), path
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?(?:https?:)?//", sheet.read_text()), sheet


@pytest.mark.slow
def test_pictures_are_small(site: Path) -> None:
    pictures = [path for path in (site / "images").rglob("*") if path.suffix in {".png", ".svg", ".webp"}]
    assert pictures
    assert sum(path.stat().st_size for path in pictures) < PICTURES_BYTES
