"""The native scanner against the decoder in Python: what it takes, it takes as that does."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import effort
from tests.read.cores import check_cores, plain
from tracelens.native import core
from tracelens.read import open_source
from tracelens.read.json import Chunk, Encoded, Part, Scan, ScannedPart, Splitter, encode, merge

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "sample_traces").rglob("rank*.json*"))
EVENTS = json.loads(gzip.decompress((ROOT / "sample_traces/one_gpu/loop/rank0.json.gz").read_bytes()))[
    "traceEvents"
]

pytestmark = pytest.mark.skipif(core() is None, reason="the native core is not built")


def scanned(text: bytes) -> Encoded | None:
    """The columns of a chunk by the native core, None where it leaves the chunk to Python."""
    scan = Scan(core())
    return merge([ScannedPart(scan)]) if scan.take(0, text) else None


def check(text: bytes) -> bool:
    """Compare both; whether the native core took the text."""
    native = scanned(text)
    if native is None:
        return False
    part = Part()
    assert encode(part, Chunk(0, 0, text)) is None
    assert plain(native) == plain(merge([part]))
    return True


def array(*events: str) -> bytes:
    return f"[{','.join(events)}]".encode()


@pytest.mark.parametrize(
    "path", SAMPLES[:: effort(14, 1)], ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_samples_are_read_alike(path: Path) -> None:
    check_cores(path)


def test_recorded_chunks_are_taken() -> None:
    """Not that all of this passes since nothing is taken."""
    for path in SAMPLES[:: effort(8, 1)]:
        (source,) = open_source(str(path))
        chunks = [chunk for chunk in Splitter(source).chunks() if not chunk.is_rest]
        assert all(scanned(chunk.text) is not None for chunk in chunks), path


TAKEN = {
    "nothing": "",
    "an empty event": "{}",
    "no phase": '{"name": "x"}',
    "another phase": '{"ph": "C", "name": "x", "ts": 1}',
    "blanks": ' \t\r\n{ "ph" :\n"X" , "ts" : 1 , "dur" : 2 , "args" : { } } ',
    "no arguments": '{"ph": "X", "ts": 1, "args": null}',
    "null for text": '{"ph": "X", "cat": null, "name": null, "pid": null, "tid": null, "ts": null}',
    "escapes": r'{"ph": "X", "name": "\"\\\/\b\f\n\r\tA\u00e9", "ts": 1}',
    "the same name written twice": r'{"ph": "X", "name": "ab"},{"ph": "X", "name": "\u0061b"}',
    "characters of several bytes": '{"ph": "X", "name": "é€😀", "other": "߿ࠀ"}',
    "ids as text": '{"ph": "X", "pid": "7", "tid": "main"},{"ph": "X", "pid": 7, "tid": -1}',
    "a flow": '{"ph": "s", "id": 5, "ts": 1},{"ph": "f", "id": 5, "ts": 2, "args": {}}',
    "a collective": '{"ph": "X", "args": {"Collective name": "send", "Dst Rank": 3, "Rank": 1}}',
    "metadata": '{"ph": "M", "name": "thread_name", "pid": 1, "tid": "2", "args": {"name": "a\\u0062"}}',
    "labels": '{"ph": "M", "name": "process_labels", "pid": 1, "args": {"labels": ["a", 1]}}',
    "async": '{"ph": "b", "id": 12, "ts": 1},{"ph": "e", "id": 12, "ts": 2}',
    "an op": '{"ph": "X", "args": {"Input Dims": [[1, 2]], "External id": 4, "stream": 7, "bytes": 9}}',
    "an op by its number": '{"ph": "X", "args": {"Sequence number": 3, "Fwd thread id": 1}}',
    "no op": '{"ph": "X", "args": {"Sequence number": -1, "Input type": [1]}}',
    "grids": '{"ph": "X", "args": {"grid": [2, 3, 4]}},{"ph": "X", "args": {"grid": [0]}},{"ph": "X"}',
    "a kernel": '{"ph": "X", "args": {"kernel": "k"}},{"ph": "X", "args": {"kernel": ""}}',
    "memory": '{"ph": "i", "args": {"Bytes": 1, "Total Allocated": 5, "Device Type": 1}}',
    "memory of the host": '{"ph": "i", "args": {"bytes": 1, "Total Allocated": 5, "Device Type": 0}}',
    "negative sizes": '{"ph": "X", "args": {"bytes": -7, "correlation": -3}}',
    "the largest count": '{"ph": "X", "args": {"correlation": 9007199254740992}}',
    "deep": '{"a": ' + "[" * 90 + "]" * 90 + "}",
    "unknown numbers": '{"a": [0, -0, 1.5, 1e5, 1E+5, 0.1e-9, 123456789012345678901234567890]}',
    "times": '{"ph": "X", "ts": 1712195495519689.047, "dur": 0.5},{"ph": "X", "ts": 7, "dur": 12.25}',
    "whole times": '{"ph": "X", "ts": 1712195495519689, "dur": 0}',
    "negative times": '{"ph": "X", "ts": -1.005, "dur": -0.0},{"ph": "X", "ts": -0, "dur": -3}',
    "times of more decimals": '{"ph": "X", "ts": 1234567.0005, "dur": 0.123456789},{"ts": -1.0005}',
}


@pytest.mark.parametrize("events", TAKEN.values(), ids=TAKEN)
def test_what_is_taken(events: str) -> None:
    assert check(array(events))


LEFT = {
    "a repeated key": '{"ph": "X", "ts": 1, "ts": 2}',
    "a repeated argument": '{"ph": "X", "args": {"stream": 1, "stream": 2}}',
    "a key with an escape": r'{"p\u0068": "X"}',
    "a phase with an escape": r'{"ph": "\u0058"}',
    "an exponent": '{"ph": "X", "ts": 1e3}',
    "times as text": '{"ph": "X", "ts": "1.5"}',
    "exact times of more decimals": '{"ph": "X", "ts": 1712195495519689.0475, "dur": 1}',
    "exact times beside others": '{"ph": "X", "ts": 1712195495519689.047, "dur": 0.1234}',
    "times out of range": '{"ph": "X", "ts": 5000000000000000.0}',
    "a large count": '{"ph": "X", "args": {"stream": 9007199254740993}}',
    "a count with decimals": '{"ph": "X", "args": {"stream": 7.0}}',
    "a count as text": '{"ph": "X", "args": {"stream": "7"}}',
    "no count": '{"ph": "X", "args": {"stream": null}}',
    "a boolean": '{"ph": "X", "pid": true}',
    "an id with decimals": '{"ph": "X", "pid": 1.5}',
    "a long id": '{"ph": "X", "pid": 1234567890123456789}',
    "a name that is none": '{"ph": "X", "name": 7}',
    "a phase that is none": '{"ph": 7}',
    "arguments that are none": '{"ph": "X", "args": []}',
    "an element that is none": "7",
    "a pair of surrogates": r'{"name": "\ud83d\ude00"}',
    "half a pair": r'{"name": "\ud83d"}',
    "deeper than anybody nests": '{"a": ' + "[" * 200 + "]" * 200 + "}",
}
BROKEN = {
    "no end": '{"ph": "X"',
    "no value": '{"ph": }',
    "no colon": '{"ph" "X"}',
    "a trailing comma": '{"ph": "X",}',
    "a trailing comma in a list": '{"a": [1,]}',
    "a comma too many": '{"ph": "X"},',
    "no comma": '{"ph": "X"} {"ph": "X"}',
    "a bare word": '{"a": nul}',
    "a longer word": '{"a": nulll}',
    "NaN": '{"ts": NaN}',
    "a leading zero": '{"ts": 01}',
    "a leading plus": '{"ts": +1}',
    "a bare point": '{"ts": 1.}',
    "a point first": '{"ts": .5}',
    "an empty exponent": '{"a": 1e}',
    "a sign alone": '{"a": -}',
    "a control byte": '{"name": "a\x01"}',
    "a line break in a string": '{"name": "a\n"}',
    "a bad escape": r'{"name": "\x"}',
    "a short escape": r'{"name": "\u12"}',
    "an open string": '{"name": "a',
    "an open string behind an escape": '{"name": "a\\',
    "another bracket": '{"a": [1}',
    "a NUL": '{"a": 1\0}',
}


@pytest.mark.parametrize("events", [*LEFT.values(), *BROKEN.values()], ids=[*LEFT, *BROKEN])
def test_what_is_left_to_python(events: str) -> None:
    assert scanned(array(events)) is None
    assert scanned(array('{"ph": "X"}', events, '{"ph": "X"}')) is None


@pytest.mark.parametrize(
    "bad",
    ["80", "c0af", "c1bf", "c3", "c328", "e080af", "e28280c0", "eda080", "f0808080", "f4908080", "f8", "ff"],
)
def test_invalid_utf8_is_left_to_python(bad: str) -> None:
    assert scanned(b'[{"name": "' + bytes.fromhex(bad) + b'"}]') is None
    assert scanned(b'[{"name": "' + bytes.fromhex(bad)) is None
    assert scanned(b'[{"other": {"' + bytes.fromhex(bad) + b'": 1}}]') is None


def test_what_is_left_leaves_nothing_behind() -> None:
    scan = Scan(core())
    first = array(
        '{"ph": "X", "name": "kept", "cat": "c", "pid": 1, "args": {"grid": [1], "Input Dims": []}}'
    )
    broken = array('{"ph": "i", "name": "lost", "cat": "d", "pid": 2, "args": {"kernel": "k"}}', "7")
    assert scan.take(0, first)
    assert not scan.take(1, broken)
    assert scan.take(2, first)
    encoded = merge([ScannedPart(scan)])
    assert (encoded.names, encoded.categories, encoded.pids, encoded.phases) == (["kept"], ["c"], [1], ["X"])


def test_many_names_keep_their_codes() -> None:
    text = array(*(f'{{"ph": "X", "name": "op{number}", "pid": {number}}}' for number in range(5000)))
    assert check(text)
    scan = Scan(core())
    assert scan.take(0, text)
    assert not scan.take(1, array('{"ph": "X", "name": "new"}', "7"))
    assert scan.take(2, text)
    assert merge([ScannedPart(scan)]).columns.name.tolist() == [*range(5000)] * 2


NUMBERS = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**16), max_value=10**16),
    st.decimals(allow_nan=False, allow_infinity=False, places=5, min_value=-(10**9), max_value=10**9),
).map(str)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=4))
def test_times_of_any_form(times: list[tuple[str, str]]) -> None:
    check(array(*(f'{{"ph": "X", "ts": {ts}, "dur": {dur}}}' for ts, dur in times)))


@given(st.lists(st.tuples(*[st.decimals(-1_000_000, 10**13, places=3)] * 2), min_size=1, max_size=4))
def test_times_as_profilers_write_them_are_taken(times: list[tuple[Any, Any]]) -> None:
    assert check(array(*(f'{{"ph": "X", "ts": {ts:f}, "dur": {dur:f}}}' for ts, dur in times)))


ODD = [
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b" ",
    b"0",
    b"-",
    b".",
    b"e",
    b"\0",
    b"\xff",
    b"\xc3\xa9",
]
ODD += [
    b"null",
    b"true",
    b'"7"',
    b"1e3",
    b"\\u0041",
    b"\\ud800",
    b'"ph"',
    b'"ts"',
    b'"args"',
    b"99999999999999999999",
]


def mutants(count: int, seed: int) -> Iterator[bytes]:
    """Texts of a few recorded events with bytes or values replaced, left out or added."""
    rng = random.Random(seed)
    for _ in range(count):
        start = rng.randrange(len(EVENTS) - 4)
        text = bytearray(json.dumps(EVENTS[start : start + rng.randint(1, 4)], ensure_ascii=False).encode())
        for _ in range(rng.choice((1, 1, 2, 4))):
            begin = rng.randrange(len(text))
            end = begin + rng.choice((0, 1, 1, 2, 8))
            text[begin:end] = rng.choice((b"", rng.choice(ODD), bytes([rng.randrange(256)])))
        yield bytes(text)


def test_mutants_are_read_alike() -> None:
    taken = sum(check(text) for text in mutants(effort(1000, 50_000), seed=7))
    assert taken > 100


def test_mutants_among_their_like_are_read_alike() -> None:
    """What was read before is compared with what follows, so that a byte that differs must be seen."""
    taken = 0
    for mutant in mutants(effort(500, 20_000), seed=9):
        start = random.Random(mutant).randrange(len(EVENTS) - 60)
        before = json.dumps(EVENTS[start : start + 60], ensure_ascii=False).encode()
        taken += check(before[:-1] + b", " + mutant[1:-1] + b", " + before[1:])
    assert taken > 50


def test_what_follows_is_not_taken_for_what_was_read() -> None:
    """Texts that begin alike, keys in another order, and other blanks between them."""
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": 1, "args": {"Input Dims": dims}}
        for cat, name, dims in zip(
            ("a", "ab", "a"), ("x", "x", "xy"), ([[1]], [[1], []], [[1, 2]]), strict=True
        )
        for pid, tid in ((1, 12), (12, 1), ("1", -1), (1, "12"))
    ]
    texts = [json.dumps(event) for event in events]
    texts += [json.dumps(dict(reversed(event.items())), separators=(",", ":")) for event in events]
    texts += [json.dumps(event, indent=3) for event in events]
    rng = random.Random(10)
    assert check(array(*(rng.choice(texts) for _ in range(2000))))


VALUES = [
    None,
    True,
    0,
    -1,
    7,
    2**53 + 1,
    2**70,
    1.5,
    1e300,
    "",
    "7",
    "0x1f",
    "é",
    "\x00",
    [],
    [1, [2]],
    {},
    {"a": 1},
]


def test_events_with_other_values_are_read_alike() -> None:
    rng = random.Random(8)
    taken = 0
    for _ in range(effort(1000, 50_000)):
        event = json.loads(json.dumps(rng.choice(EVENTS)))
        for _ in range(rng.randint(1, 3)):
            owner = event["args"] if rng.random() < 0.6 and isinstance(event.get("args"), dict) else event
            key = rng.choice(
                [*owner, "ph", "id", "grid", "kernel", "Collective name", "Sequence number", "bytes"]
            )
            owner[key] = copy.deepcopy(rng.choice([*VALUES, rng.randrange(1000), rng.random() * 1000]))
        taken += check(json.dumps([event], ensure_ascii=rng.random() < 0.5).encode())
    assert taken > 100
