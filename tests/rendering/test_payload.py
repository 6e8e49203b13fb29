"""Tables inside pages: what is packed is what a page unpacks; read here as `payload.js` reads it."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.rendering import sample
from tracelens.rendering.interactive import packed
from tracelens.table import Coded, Column, Schema, Table


def unpacked(payload: bytes) -> dict[str, list[Any]]:
    content = gzip.decompress(base64.b64decode(payload))
    length = int.from_bytes(content[:4], "little")
    header = json.loads(content[4 : 4 + length])
    assert (4 + length) % 8 == 0
    columns = {}
    for name, entry in header["columns"].items():
        at = 4 + length + entry["at"]
        assert at % 8 == 0
        values = np.frombuffer(content, f"<{entry['type']}", header["rows"], at)
        if "first" in entry:
            values = entry["first"] + np.cumsum(values, dtype=np.float64)
        numbers = values.tolist()
        texts = entry.get("texts")
        columns[name] = [texts[int(number)] for number in numbers] if texts is not None else numbers
    return columns


def table(**columns: Any) -> Table:
    kinds = {"i": "int64", "f": "float64"}
    schema = Schema(
        "numbers",
        tuple(
            Column(name, "str" if isinstance(values, list | Coded) else kinds[values.dtype.kind])  # type: ignore[arg-type]
            for name, values in columns.items()
        ),
    )
    return schema.table(columns)


@given(st.lists(st.integers(-(2**53), 2**53), max_size=40), st.randoms())
def test_integers_survive(numbers: list[int], random: Any) -> None:
    texts = [random.choice(["a", "b", "ß核", ""]) for _ in numbers]
    found = unpacked(packed(table(number=np.array(numbers, np.int64), text=texts)))
    assert found == {"number": numbers, "text": texts}


@given(st.lists(st.floats(allow_nan=False), max_size=20))
def test_floats_survive(numbers: list[float]) -> None:
    assert unpacked(packed(table(number=np.array(numbers, np.float64)))) == {"number": numbers}


def test_times_that_grow_are_stored_as_differences() -> None:
    times = np.cumsum(np.full(10_000, 1_234)) + 10**15
    payload = packed(table(ts_ns=times))
    assert unpacked(payload)["ts_ns"] == times.tolist()
    assert len(payload) < 2_000


def test_texts_that_no_row_has_are_left_out() -> None:
    coded = Coded(np.array([2, 2, 0]), ["a", "b", "c"])
    assert unpacked(packed(table(text=coded)))["text"] == ["c", "c", "a"]
    assert b"b" not in gzip.decompress(base64.b64decode(packed(table(text=coded)))).split(b"texts")[1][:12]


def test_texts_are_on_one_line_beside_their_short_form() -> None:
    payload = packed(table(text=["a\nb", "long name"]), {"text": {"long name": "long"}})
    assert unpacked(payload)["text"] == ["a b", "long name"]
    assert b'"short":{"1":"long"}' in gzip.decompress(base64.b64decode(payload))


def test_lone_surrogates_do_not_break_the_header() -> None:
    names = sample.NASTY
    assert len(unpacked(packed(table(text=list(names))))["text"]) == len(names)
