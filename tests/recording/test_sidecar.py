"""run.json: what JSON cannot hold, and a reader never sees half of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tracelens.recording.sidecar import SCHEMA, plain, write

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner)
    ),
)


@dataclass
class Sizes:
    hidden: int
    where: Path


def test_what_json_lacks_becomes_text() -> None:
    value = {
        "size": Sizes(8, Path("a/b")),
        3: {1},
        "r": range(2),
        "nan": float("nan"),
        "inf": [float("-inf")],
    }
    expected = {"size": {"hidden": 8, "where": "a/b"}, "3": [1], "r": [0, 1], "nan": "nan", "inf": ["-inf"]}
    assert plain(value) == expected


@given(VALUES)
def test_anything_becomes_json_and_stays_that(value: Any) -> None:
    text = json.dumps(plain(value), allow_nan=False)
    assert json.loads(text) == plain(json.loads(text))


def test_the_file_replaces_the_one_before(tmp_path: Path) -> None:
    write(tmp_path, {"world_size": 1})
    path = write(tmp_path, {"world_size": 2})
    assert json.loads(path.read_text()) == {"schema": SCHEMA, "world_size": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
