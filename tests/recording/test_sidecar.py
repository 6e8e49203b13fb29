"""run.json: what JSON cannot hold, and a reader never sees half of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tracelens.recording import plain
from tracelens.recording.sidecar import SCHEMA, write

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


def test_traces_of_a_larger_job_that_was_here_before_go(tmp_path: Path) -> None:
    for name in ("rank0.json.gz", "rank1.json.gz", "rank7.json.gz", "notes.txt"):
        (tmp_path / name).touch()
    # An older sidecar may name whatever: only what looks like a trace of ours is removed.
    names = {"0": "rank0.json.gz", "1": "rank1.json.gz", "2": "rank2.json.gz", "3": "notes.txt", "4": "../x"}
    write(tmp_path, {"files": names})
    write(tmp_path, {"files": {0: "rank0.json.gz"}})
    there = sorted(path.name for path in tmp_path.iterdir())
    assert there == ["notes.txt", "rank0.json.gz", "rank7.json.gz", "run.json"]


def test_a_file_of_another_kind_is_replaced(tmp_path: Path) -> None:
    for text in ("not JSON", "[]", '{"files": []}', '{"files": {"0": 1}}'):
        (tmp_path / "run.json").write_text(text)
        write(tmp_path, {"files": None})
        assert json.loads((tmp_path / "run.json").read_text()) == {"schema": SCHEMA, "files": None}
