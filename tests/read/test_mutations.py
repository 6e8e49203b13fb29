"""Damaged and oddly formatted text gives a report with its losses or one clear error, nothing else."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracelens.errors import ParseError
from tracelens.read import parse, source
from tracelens.read.json.events import exact_ns
from tracelens.read.json.mend import repair_text
from tracelens.trace import Trace

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "one_gpu/loop/rank0.json.gz"
CORPUS = ("misc/backward_thread.json", "mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz")

shared_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def contents(path: Path) -> bytes:
    """A trace's text."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


@pytest.fixture(scope="module")
def real() -> bytes:
    """The start of a real trace: header, ops, and the cut where a full disk would leave it."""
    return contents(SAMPLE)[:60_000]


def read(path: Path, data: bytes) -> list[Trace] | None:
    """Parse `data`; None if it is refused as the contract has it. All other outcomes fail the test."""
    path.write_bytes(data)
    try:
        traces = parse(str(path))
    except ParseError as error:
        refusal = str(error)
    else:
        return checked(traces)
    assert path.name in refusal
    assert "\n" not in refusal
    return None


def checked(traces: list[Trace]) -> list[Trace]:
    """The traces, whose counts must add up."""
    for trace in traces:
        assert trace.meta.read == trace.meta.kept + sum(trace.meta.dropped.values())
        assert len(trace.events) > 0
        assert len(trace.work.event) == len(trace.links)
    return traces


edits = st.lists(
    st.tuples(
        st.sampled_from(["delete", "insert", "replace", "repeat", "token"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 3000),
        st.binary(min_size=1, max_size=30),
        st.sampled_from(
            [b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\n", b"NaN", b"N/A", b"null", b"\xff"]
        ),
    ),
    min_size=1,
    max_size=8,
)


def damaged(data: bytes, changes: list[tuple[str, float, int, bytes, bytes]]) -> bytes:
    """The text with the changes made one after the other."""
    for kind, where, length, noise, token in changes:
        at = int(where * len(data))
        new = {
            "delete": data[:at] + data[at + length :],
            "insert": data[:at] + noise + data[at:],
            "replace": data[:at] + noise + data[at + len(noise) :],
            "repeat": data[: at + length] + data[at:],
            "token": data[:at] + token + data[at + 1 :],
        }
        data = new[kind]
    return data


@shared_folder
@given(changes=edits, cut=st.booleans())
def test_damaged_real_text(tmp_path: Path, real: bytes, changes: Any, cut: bool) -> None:
    data = damaged(real, changes)
    if cut:
        data = gzip.compress(data)[: -max(1, len(data) // 50)]
    read(tmp_path / "trace.json", data)


@shared_folder
@given(changes=edits, name=st.sampled_from(CORPUS))
def test_damaged_corpus_text(tmp_path: Path, corpus: Path, changes: Any, name: str) -> None:
    read(tmp_path / "trace.json", damaged(contents(corpus / name), changes))


def event(number: int) -> dict[str, Any]:
    """A kernel; its time is its name."""
    return {
        "ph": "X", "cat": "kernel", "name": f"k{number}", "pid": 0, "tid": 7,
        "ts": 10.25 * number, "dur": 1.5,
        "args": {"stream": 7, "nested": [{"ph": "X"}, {"a": [1, {"b": "},{"}]}]},
    }  # fmt: skip


@shared_folder
@given(victim=st.integers(0, 39), where=st.floats(0, 1), noise=st.binary(min_size=1, max_size=20))
def test_damage_in_one_event_costs_at_most_its_neighbours(
    tmp_path: Path, victim: int, where: float, noise: bytes
) -> None:
    texts = [json.dumps(event(number)).encode() for number in range(40)]
    inner = texts[victim]
    at = 1 + int(where * (len(inner) - 2))
    texts[victim] = inner[:at] + noise + inner[at + len(noise) :]
    traces = read(tmp_path / "trace.json", b'{"traceEvents": [\n' + b",\n".join(texts) + b"\n]}")
    assert traces is not None
    names = set(traces[0].events["name"])
    lost = {number for number in range(40) if f"k{number}" not in names}
    assert lost <= {victim - 1, victim, victim + 1}


formats = st.fixed_dictionaries(
    {
        "indent": st.sampled_from([None, 1, 2, 4, "\t"]),
        "separators": st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :")]),
        "sort_keys": st.booleans(),
        "ensure_ascii": st.booleans(),
    }
)


@shared_folder
@given(
    layout=formats,
    count=st.integers(1, 60),
    block=st.sampled_from([64, 200, 1000, 5000, 1 << 19]),
    shape=st.sampled_from(["object", "array", "open array", "keys behind"]),
    pack=st.sampled_from([bytes, gzip.compress, zstandard.compress]),
)
def test_formatting_changes_nothing(
    tmp_path: Path, layout: Any, count: int, block: int, shape: str, pack: Any
) -> None:
    events = [event(number) for number in range(count)]
    value: Any = {"metadata": {"traceEvents": "none"}, "traceEvents": events}
    if shape == "keys behind":
        value |= {"list": [{"ph": "X", "name": "not an event"}] * 3, "distributedInfo": {"rank": 5}}
    elif shape != "object":
        value = events
    text = json.dumps(value, **layout)
    data = (text.rstrip().removesuffix("]") if shape == "open array" else text).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BLOCK", block)
        traces = read(tmp_path / "trace.json", pack(data))
    assert traces is not None
    (trace,) = traces
    assert trace.events["name"].tolist() == [f"k{number}" for number in range(count)]
    assert trace.events["ts_ns"].tolist() == [10250 * number for number in range(count)]
    assert (trace.meta.read, trace.meta.dropped, trace.meta.repaired) == (count, {}, {})
    assert trace.meta.rank == (5 if shape == "keys behind" else -1)


@given(st.binary(max_size=300))
def test_repair_never_raises(data: bytes) -> None:
    repair_text(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(json_values)
def test_repair_leaves_valid_json_alone(value: Any) -> None:
    assert json.loads(repair_text(json.dumps({"k": value}).encode())) == {"k": value}


@given(st.decimals(min_value=-(4 * 10**15), max_value=4 * 10**15, places=3))
def test_times_are_exact(us: Decimal) -> None:
    """To the year 2096; what lies further would not leave room for sums in int64."""
    assert exact_ns(str(us)) == int(us * 1000)
    assert exact_ns(f'"{us}"') == int(us * 1000)
