"""The picture of the rooms says what the imports say, and is easy to follow."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"

spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "generate" / "rooms.py")
assert spec
assert spec.loader
rooms = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rooms)


class Drawing(NamedTuple):
    """The picture before it has coordinates."""

    imports: dict[str, set[str]]
    arrows: dict[str, set[str]]
    rows: dict[str, int]
    layers: list[list[tuple[str, ...]]]
    links: list[tuple[tuple[str, ...], tuple[str, ...]]]


@pytest.fixture(scope="module")
def drawing() -> Drawing:
    """Of this package: all its modules are parsed for it, which collecting tests need not wait for."""
    imports = rooms.imports()
    arrows = rooms.direct(imports)
    rows = rooms.rows(arrows)
    return Drawing(imports, arrows, rows, *rooms.layered(arrows, rows))


def test_every_room_is_there_and_imports_something_or_nothing_that_is_known(drawing: Drawing) -> None:
    folders = {path.parent.name for path in (ROOT / "tracelens").glob("*/__init__.py")}
    assert drawing.arrows.keys() == folders
    assert drawing.arrows["trace"] == {"table"}
    assert drawing.arrows["table"] == {"native"}
    assert "read" not in rooms.below(drawing.arrows, "analysis")


def test_left_out_arrows_are_those_that_a_longer_way_implies(drawing: Drawing) -> None:
    for room in drawing.imports:
        assert rooms.below(drawing.arrows, room) == rooms.below(drawing.imports, room)
        for target in drawing.arrows[room]:
            without = {**drawing.arrows, room: drawing.arrows[room] - {target}}
            assert target not in rooms.below(without, room)


def test_arrows_lead_down_from_row_to_row(drawing: Drawing) -> None:
    assert all(
        drawing.rows[room] > drawing.rows[target]
        for room in drawing.arrows
        for target in drawing.arrows[room]
    )
    row = {node: index for index, nodes in enumerate(drawing.layers) for node in nodes}
    assert all(row[lower] == row[upper] + 1 for upper, lower in drawing.links)


def test_rooms_that_import_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="circle"):
        rooms.rows({"a": {"b"}, "b": {"a"}})


@pytest.mark.parametrize(
    ("upper", "lower", "count"), [("ab", "cd", 0), ("ab", "dc", 1), ("ba", "dc", 0)], ids=str
)
def test_crossings(upper: str, lower: str, count: int) -> None:
    links = [(("a",), ("c",)), (("b",), ("d",))]
    layers = [[(name,) for name in upper], [(name,) for name in lower]]
    assert rooms.crossings(layers, links) == count


def test_few_arrows_cross(drawing: Drawing) -> None:
    assert rooms.crossings(drawing.layers, drawing.links) <= 6


def test_nothing_overlaps_in_a_row(drawing: Drawing) -> None:
    x = rooms.places(drawing.layers, drawing.links)
    for row in drawing.layers:
        for left, right in pairwise(row):
            width = (rooms.BOX if len(left) == 1 else 0) + (rooms.BOX if len(right) == 1 else 0)
            assert x[right] - x[left] > width / 2
        assert all(rooms.BOX / 2 <= x[node] <= rooms.WIDTH - rooms.BOX / 2 for node in row if len(node) == 1)


def test_the_picture_has_a_box_a_room_and_an_arrow_an_import(drawing: Drawing) -> None:
    picture = ET.fromstring(rooms.svg())
    texts = [text.text or "" for text in picture.iter(f"{SVG}text")]
    assert set(drawing.arrows) <= set(texts)
    lines = [path for path in picture.iter(f"{SVG}path") if path.get("class") == "line"]
    assert len(lines) == sum(map(len, drawing.arrows.values()))


def test_the_table_has_the_first_line_of_each_docstring(drawing: Drawing) -> None:
    cells = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", rooms.table(), re.MULTILINE))
    assert cells.keys() == drawing.arrows.keys()
    assert cells["devices"] == (
        "Devices: what a GPU can do at most, and what was measured on it, one TOML file each."
    )
