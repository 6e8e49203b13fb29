"""The pictures of the documentation: the committed ones say what reports say, the others are made once."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.browser.chromium import CHROMIUM, DRIVER

ROOT = Path(__file__).parents[2]
BYTES = 400_000


def load(name: str) -> ModuleType:
    """A module of docs/generate, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/generate/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


pictures, timelines = load("pictures"), load("timelines")


@pytest.mark.slow
def test_pictures_of_the_readme_say_what_the_report_says() -> None:
    page = pictures.report("baseline").read_text(encoding="utf-8")
    shown = (pictures.COMMITTED / pictures.WORDS).read_text(encoding="utf-8")
    assert pictures.words(page) == shown, "the report changed: make pictures"


def test_pictures_of_the_readme_are_small_and_no_others_are_kept() -> None:
    sizes = {path.name: path.stat().st_size for path in pictures.COMMITTED.glob("*.webp")}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(sizes) == set(re.findall(r"docs/images/([\w-]+\.webp)", readme))
    assert set(sizes) == {f"{name}.webp" for name in pictures.README_PICTURES}
    assert all(1_000 < size < BYTES for size in sizes.values())


@pytest.mark.rare
@pytest.mark.slow
def test_a_picture_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not CHROMIUM or not DRIVER:
        pytest.skip("no chromium and chromedriver on the PATH")
    page = pictures.report("baseline")
    monkeypatch.setattr(pictures, "CACHE", tmp_path)
    shutil.copy(page, tmp_path)
    first = pictures.pictures(["finding"])
    assert set(first) == {"finding.webp", "finding-dark.webp"}
    assert all(picture[:4] == b"RIFF" and picture[8:12] == b"WEBP" for picture in first.values())
    assert first["finding.webp"] != first["finding-dark.webp"]

    monkeypatch.setattr(pictures.shutil, "which", lambda name: None)
    assert pictures.pictures(["finding"]) == first
    monkeypatch.setattr(pictures, "LOOK", "another")
    with pytest.raises(pictures.NoPictures, match=r"^pictures need chromium and chromedriver on the PATH$"):
        pictures.pictures(["finding"])


def test_pages_show_pictures_that_are_made() -> None:
    links = [
        name
        for path in (ROOT / "docs").rglob("*.md")
        for name in re.findall(r"!\[[^\]]+\]\((?:\.\./)*images/([\w-]+)\.(?:webp|svg)\)", path.read_text())
    ]
    made = {*pictures.PICTURES, *timelines.TIMELINES, "rooms"}
    assert set(links) <= made
    assert made - set(links) - {"rooms"} == set()


def test_boxes_and_brackets_stand_where_their_letters_do() -> None:
    drawn = timelines.Timeline(
        "",
        """
        rank 0     ccww..mm
        |           |A|
        """,
        "A=late",
    )
    svg = timelines.svg(drawn, "#000", "#111", "#222")
    left, cell = timelines.LEFT, timelines.CELL
    boxes = re.findall(r'<rect x="(\d+)" y="\d+" width="(\d+)"', svg)
    spans = [((int(x) - left) / cell, round(int(width) / cell)) for x, width in boxes]
    assert spans == [(0, 8), (0, 2), (2, 2), (6, 2)]
    assert re.findall(r'<path d="M(\d+) \d+v6H(\d+)', svg) == [
        (str(left + 2 * cell), str(left + 4 * cell - 1))
    ]
    assert ">late</text>" in svg
