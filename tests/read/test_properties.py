"""What holds for any text: formatting changes nothing, damage stays local, repair and times are exact."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracelens
from tracelens.errors import ParseError
from tracelens.read import parse, source
from tracelens.read.json.events import exact_ns
from tracelens.read.json.mend import repair_text
from tracelens.trace import Trace

Json = dict[str, Any]

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "one_gpu/loop/rank0.json.gz"
COLUMNS = ["name", "kind", "ts_ns", "dur_ns", "parent_id"]

one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def checked(path: Path, data: bytes) -> Trace | str:
    """The trace in `data`, or the one line that refuses it; any other outcome fails the test."""
    path.write_bytes(data)
    try:
        (trace,) = parse(str(path))
    except ParseError as error:
        refusal = str(error)
    else:
        assert trace.meta.read == trace.meta.kept + sum(trace.meta.dropped.values())
        assert len(trace.events) > 0
        return trace
    assert path.name in refusal
    assert "\n" not in refusal
    return refusal


def tables(trace: Trace | str) -> tuple[Any, ...]:
    """What must not depend on how a trace is written."""
    assert isinstance(trace, Trace)
    events = trace.events[COLUMNS].astype({"name": str, "kind": str})
    return (
        events.to_dict("list"),
        trace.links.to_dict("list"),
        trace.ops[["event_id", "sequence", "forward_thread"]].to_dict("list"),
        [json.loads(shapes or "null") for shapes in trace.ops["shapes"]],
        trace.meta.read,
        dict(trace.meta.dropped),
        dict(trace.meta.repaired),
        trace.meta.rank,
    )


# Formatting

# Lone surrogates are no text and cannot be written as UTF-8.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "aten::mm",
        '},\n{"ph": "X"',
        '"traceEvents": [',
        "]}",
        "\\",
        "void f<T, [](int) { }>(…)",
        "🙂\u2028\x00",
    ]
)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
times = st.integers(0, 10**7).map(lambda ns: ns / 1000)
KINDS = ("cpu_op", "cuda_runtime", "kernel", "gpu_memcpy", "user_annotation", "python_function")


@st.composite
def events(draw: Callable[..., Any]) -> Json:
    """One event of any phase that a profiler writes."""
    phase = draw(st.sampled_from("XXXXXXsfiMCBE"))
    event = {"ph": phase, "name": draw(texts), "ts": draw(times), "pid": draw(st.integers(0, 2))}
    event["tid"] = draw(st.sampled_from([1, 2, "1", "main", ""]))
    args = {"extra": draw(anything)}
    if phase == "X":
        event |= {"cat": draw(st.sampled_from(KINDS)), "dur": draw(times)}
        args["correlation"] = draw(st.integers(0, 5))
        if event["cat"] == "cpu_op":
            args |= {"External id": draw(st.integers(0, 5)), "Input Dims": [[2, 3], []]}
    elif phase in "sf":
        event |= {"cat": "ac2g", "id": draw(st.integers(1, 5))}
    return event | ({"args": args} if draw(st.booleans()) else {})


layouts = st.fixed_dictionaries(
    {
        "indent": st.sampled_from([None, 1, 2, 4, "\t"]),
        "separators": st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")]),
        "sort_keys": st.booleans(),
        "ensure_ascii": st.booleans(),
    }
)
SHAPES = {
    "before": lambda found, rest: {**rest, "traceEvents": found},
    "after": lambda found, rest: {"traceEvents": found, **rest},
    "alone": lambda found, _: {"traceEvents": found},
    "array": lambda found, _: found,
}


def has_keys(shape: str) -> bool:
    """Whether a file of this shape has keys beside the events."""
    return shape in ("before", "after")


PACKERS = {"plain": bytes, "gz": gzip.compress, "zst": zstandard.compress}


@one_folder
@given(
    found=st.lists(events(), max_size=25),
    layout=layouts,
    shape=st.sampled_from(list(SHAPES)),
    pack=st.sampled_from(list(PACKERS)),
    block=st.integers(64, 4096),
    crlf=st.booleans(),
    extra=anything,
)
def test_formatting_changes_nothing(
    tmp_path: Path, found: Any, layout: Any, shape: str, pack: str, block: int, crlf: bool, extra: Any
) -> None:
    first = {"ph": "X", "cat": "cpu_op", "name": "first", "ts": 0, "dur": 1, "pid": 0, "tid": 1}
    found = [first, *found]
    rest = {"schemaVersion": 1, "distributedInfo": {"rank": 3}, "extra": extra} if has_keys(shape) else {}
    reference = checked(tmp_path / "plain.json", json.dumps({**rest, "traceEvents": found}).encode())
    text = json.dumps(SHAPES[shape](found, rest), **layout)
    data = (text.replace("\n", "\r\n") if crlf else text).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BLOCK", block)
        trace = checked(tmp_path / "other.json", PACKERS[pack](data))
    assert tables(trace) == tables(reference)
    assert isinstance(trace, Trace)
    assert trace.meta.problems == ()


# Damage


def real_text() -> list[bytes]:
    """Texts of events of a real trace: its first ones and some kernels, as they stand in the file."""
    text = gzip.decompress(SAMPLE.read_bytes())
    head, _, body = text.partition(b'"traceEvents": [\n')
    found = body.split(b"\n  },\n  {\n")
    kernels = [event for event in found if b'"cat": "kernel"' in event]
    wanted = [found[0].removeprefix(b"  {\n"), *found[1:200], *kernels[:20]]
    return [head + b'"traceEvents": [\n', *(b"  {\n" + event + b"\n  }" for event in wanted)]


def built_text() -> list[bytes]:
    """The same of a written trace: minified, with texts that look like borders."""
    found = [
        {
            "ph": "X", "cat": "kernel", "name": f"k{number} " + "},{" * (number % 3), "pid": 0, "tid": 7,
            "ts": 10.5 * number, "dur": 2, "args": {"nested": [{"a": [{}, {}]}, [[2, 3]]], "stream": 7},
        }
        for number in range(120)
    ]  # fmt: skip
    return [b'{"traceEvents":[', *(json.dumps(event, separators=(",", ":")).encode() for event in found)]


SAMPLES = {"real": cache(real_text), "built": cache(built_text)}
each_sample = pytest.mark.parametrize("sample", list(SAMPLES))


def joined(parts: list[bytes]) -> bytes:
    """The whole trace."""
    return parts[0] + b",\n".join(parts[1:]) + b"\n]}\n"


def mutated(data: bytes, kind: str, at: int, size: int, noise: bytes) -> bytes:
    """The text with one change at `at`."""
    if kind == "flip":
        flipped = bytes(
            byte ^ (noise[place % len(noise)] or 1) for place, byte in enumerate(data[at : at + size])
        )
        return data[:at] + flipped + data[at + size :]
    return {
        "delete": data[:at] + data[at + size :],
        "insert": data[:at] + noise + data[at:],
        "duplicate": data[: at + size] + data[at:],
        "truncate": data[:at],
    }[kind]


CHANGES = ("delete", "insert", "flip", "duplicate")
changes = st.tuples(
    st.sampled_from([*CHANGES, "truncate"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 400),
    st.binary(min_size=1, max_size=12)
    | st.sampled_from([b'"', b"{", b"}", b"]}", b"[", b",", b"\\", b"\r\n"]),
)


@each_sample
@one_folder
@given(found=st.lists(changes, min_size=1, max_size=5), block=st.sampled_from([256, 4096, 1 << 19]))
def test_any_damage_is_told_or_refused(tmp_path: Path, sample: str, found: Any, block: int) -> None:
    data = joined(SAMPLES[sample]())
    for kind, where, size, noise in found:
        data = mutated(data, kind, int(where * len(data)), size, noise) or b"{"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BLOCK", block)
        checked(tmp_path / "trace.json", data)


@each_sample
@one_folder
@given(where=st.floats(0, 1, exclude_max=True), block=st.sampled_from([256, 4096, 1 << 19]))
def test_a_cut_loses_only_what_is_behind_it(tmp_path: Path, sample: str, where: float, block: int) -> None:
    parts = SAMPLES[sample]()
    data = joined(parts)
    at = int(where * len(data))
    whole = len([part for place, part in enumerate(parts) if place and ends(parts, place) <= at])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BLOCK", block)
        trace = checked(tmp_path / "trace.json", data[:at] or b" ")
    if whole:
        assert isinstance(trace, Trace)
        assert whole <= trace.meta.kept <= trace.meta.read <= whole + 1
        assert any("cut off" in problem for problem in trace.meta.problems) == (at < len(data) - len("]}\n"))


def ends(parts: list[bytes], place: int) -> int:
    """Where an event ends in the whole text."""
    return sum(map(len, parts[: place + 1])) + 2 * (place - 1)


def keys(parts: list[bytes]) -> list[tuple[int, int]]:
    """Start and length in ns of each event that becomes a row."""
    found = [json.loads(part, parse_float=Decimal) for part in parts[1:]]
    return [
        (int(event["ts"] * 1000), int(event.get("dur", 0) * 1000)) for event in found if event["ph"] == "X"
    ]


@each_sample
@one_folder
@given(
    kind=st.sampled_from(CHANGES),
    victim=st.floats(0, 1, exclude_max=True),
    where=st.floats(0, 1, exclude_max=True),
    size=st.integers(1, 60),
    noise=st.binary(min_size=1, max_size=12),
    block=st.sampled_from([512, 4096, 1 << 19]),
)
def test_damage_within_an_event_costs_at_most_its_neighbours(
    tmp_path: Path,
    sample: str,
    kind: str,
    victim: float,
    where: float,
    size: int,
    noise: bytes,
    block: int,
) -> None:
    parts = SAMPLES[sample]()
    place = 1 + int(victim * (len(parts) - 1))
    inner = parts[place]
    at = 1 + int(where * (len(inner) - 2))
    size = min(size, len(inner) - 1 - at)
    damaged = [*parts[:place], mutated(inner, kind, at, size, noise), *parts[place + 1 :]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BLOCK", block)
        trace = checked(tmp_path / "trace.json", joined(damaged))
    assert isinstance(trace, Trace)
    read = set(zip(trace.events["ts_ns"].tolist(), trace.events["dur_ns"].tolist(), strict=True))
    survivors = [parts[0], *parts[1 : max(place - 1, 1)], *parts[place + 2 :]]
    assert set(keys(survivors)) <= read


# Repair and times


@given(st.binary(max_size=200) | st.text('{}[]":,\\\n N/Aé0x1-.eE', max_size=80).map(str.encode))
def test_repair_never_raises(data: bytes) -> None:
    assert isinstance(repair_text(data), bytes)


@given(value=st.dictionaries(texts, anything, max_size=4), layout=layouts)
def test_repair_leaves_valid_json_alone(value: Any, layout: Any) -> None:
    text = json.dumps(value, **layout)
    assert json.loads(repair_text(text.encode())) == value


@given(st.decimals(-18 * 10**14, 18 * 10**14, places=6), st.integers(0, 6))
def test_times_are_exact(value: Decimal, places: int) -> None:
    us = round(value, places)
    expected = int((us * 1000).to_integral_value())
    assert exact_ns(f"{us:f}") == expected
    assert exact_ns(f'"{us:f}"') == expected
    assert exact_ns(f"{us:e}".encode()) == expected
    assert exact_ns(f"{-us:f}") == -expected


# Several processes


def test_children_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = real_text()
    path = tmp_path / "large.json"
    broken = b'{"ph": "X", "name": "a "quoted" name", "ts": 1, "dur": 2}, {"ph"}'
    path.write_bytes(joined([parts[0], *parts[1:] * 30, broken, *parts[1:] * 30]))
    assert path.stat().st_size > 4 << 20
    read = []
    for jobs in ("1", "2"):
        monkeypatch.setenv("TRACELENS_JOBS", jobs)
        (trace,) = tracelens.load(path).traces
        read.append((tables(trace), dict(trace.meta.first_drop), dict(trace.meta.threads)))
    assert read[0] == read[1]
