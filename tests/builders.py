"""Traces drawn as text, so that a test shows what happened right above what it expects.

    trace = draw('''
        step 0                      | ----------------------
        python train.py(3): forward | -------------
        op aten::mm seq=4           |  -----
        launch                      |   a   b
        s7 gemm                     |      aaaaaa
        s9 ncclDevKernel_AllReduce  |         bbbbbbb
        s7 copy bytes=64            |              =====
    ''')

Left of the bar stands what the row is, right of it time runs: one column is `ns_per_char`. Each run of one
character is one event: it starts at its first column and lasts as many columns as it has characters. Runs of
different characters may touch (`--==`). Letters and digits are correlation ids: the call `a` launches all
GPU work `a`, and flow arrows join them. `-` and `=` have no id: GPU work drawn so has no launch call in the
trace. `!` is an event without extent (`corr=a` on the row gives it an id).

Rows: `step N`, `scope NAME` (record_function), `python FRAME`, `op NAME`, `launch [CALL]`, `driver [CALL]`,
`sN KERNEL`, `sN copy [NAME]`, `sN fill [NAME]` (GPU work on stream N), `gpu NAME` (annotation on the GPU).
Options stand among the words as key=value: tid, device, corr, and those of ARGUMENTS below.

A row without a label is a ruler. Everything is written as Kineto JSON and read by the real parser.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from msgspec.structs import replace

from tracelens.limits import VARIABLE
from tracelens.native import core
from tracelens.read import parse
from tracelens.table import Coded
from tracelens.trace import Run, Trace, make_run

ARGUMENTS = {
    "seq": "Sequence number",
    "fwd": "Fwd thread id",
    "ext": "External id",
    "shapes": "Input Dims",
    "types": "Input type",
    "strides": "Input Strides",
    "values": "Concrete Inputs",
    "bytes": "bytes",
    "kernel": "kernel",
    "grid": "grid",
    "collective": "Collective name",
    "group": "Process Group Name",
    "ranks": "Process Group Ranks",
    "size": "Group size",
    "dtype": "dtype",
    "in": "In msg nelems",
    "out": "Out msg nelems",
    "insplit": "In split size",
    "outsplit": "Out split size",
    "description": "Process Group Description",
}
"""Options that become event arguments: short name to Kineto's."""

CPU_PID, GPU_PID, MAIN_TID = 100, 0, 1

_CPU_ROWS = {
    "step": ("user_annotation", ""),
    "scope": ("user_annotation", ""),
    "python": ("python_function", ""),
    "op": ("cpu_op", ""),
    "launch": ("cuda_runtime", "cudaLaunchKernel"),
    "driver": ("cuda_driver", "cuLaunchKernel"),
}
_GPU_ROWS = {
    "copy": ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)"),
    "fill": ("gpu_memset", "Memset (Device)"),
}
_CALLS = ("cuda_runtime", "cuda_driver")
_RUN = re.compile(r"!|([^\s!])\1*")
_QUOTED_TIME = re.compile(r'("ts": )"(\d+\.\d{3})"')
_STREAM = re.compile(r"s\d+$")

Event = dict[str, Any]


def draw(
    text: str,
    *,
    ns_per_char: int = 1000,
    start_ns: int = 0,
    flows: bool = True,
    correlations: bool = True,
    **header: Any,
) -> Trace:
    """The trace that a drawing stands for.

    Args:
        text: the drawing; see the module's docstring.
        ns_per_char: nanoseconds a column.
        start_ns: time of the first column.
        flows: whether arrows from launch calls to GPU work are written.
        correlations: whether GPU work says its correlation id.
        header: keys of the JSON object beside traceEvents; `rank` and `name` as in `read`.
    """
    found = events(text, ns_per_char=ns_per_char, start_ns=start_ns, flows=flows, correlations=correlations)
    return read(found, **header)


def aligned(text: str) -> str:
    """A drawing with its bars in one column, behind the longest label."""
    rows = [line.strip().partition("|") for line in text.splitlines() if line.strip()]
    width = max(len(label) for label, _, _ in rows)
    return "\n".join(f"{label:{width}}|{line}" for label, _, line in rows)


def draw_run(*texts: str, **options: Any) -> Run:
    """A run of one drawing a rank, in order of rank."""
    return make_run(draw(text, rank=rank, **options) for rank, text in enumerate(texts))


def events(
    text: str,
    *,
    ns_per_char: int = 1000,
    start_ns: int = 0,
    flows: bool = True,
    correlations: bool = True,
) -> list[Event]:
    """The drawing as Kineto events; see `draw`."""
    found: list[Event] = []
    lines = list(filter(str.strip, text.splitlines()))
    if len({line.find("|") for line in lines}) > 1 or "|" not in lines[0]:
        raise ValueError(f"the bars do not stand in one column: {text}")
    for line in lines:
        label, _, timeline = line.partition("|")
        if label.strip():  # one blank behind the bar is for the eye
            found += _row(label.split(), timeline.removeprefix(" "), ns_per_char, start_ns)
    if flows:
        found += list(_flows(found))
    if not correlations:
        for event in found:
            if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
                event["args"].pop("correlation", None)
    return found


def read(
    found: Iterable[Mapping[str, Any]], *, rank: int = -1, name: str = "drawn.json", **header: Any
) -> Trace:
    """Raw events as a trace, through a file and the real parser; `rank` -1 writes no distributedInfo."""
    trace = _parsed(_text(found, rank, header), name, os.environ.get(VARIABLE), core() is None)
    # A trace of its own, which has nothing yet of what analyzers made of another. The folder's name differs
    # in each process; what is compared must not.
    return replace(trace, meta=replace(trace.meta, path=name))


@lru_cache(maxsize=256)  # a quarter of what tests draw was drawn just before
def _parsed(text: str, name: str, limits: str | None, is_pure: bool) -> Trace:
    (Path(_folder().name) / name).write_text(text, encoding="utf-8")
    (trace,) = parse(str(Path(_folder().name) / name))
    for table in trace.tables.values():
        for column in table.columns.values():
            array = column.codes if isinstance(column, Coded) else column
            if isinstance(array, np.ndarray):
                array.flags.writeable = False  # the next test reads it, too
    return trace


@cache
def _folder() -> TemporaryDirectory[str]:
    """Its files are written over: to remove one takes longer than to read a drawn trace."""
    return TemporaryDirectory()


def write(path: Path, found: Iterable[Mapping[str, Any]], *, rank: int = -1, **header: Any) -> Path:
    """Raw events as a Kineto JSON file."""
    path.write_text(_text(found, rank, header), encoding="utf-8")
    return path


def _text(found: Iterable[Mapping[str, Any]], rank: int, header: Mapping[str, Any]) -> str:
    if rank >= 0:
        header = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 8}, **header}
    text = json.dumps({"schemaVersion": 1, **header, "traceEvents": list(found)})
    return _QUOTED_TIME.sub(r"\1\2", text)


def records(table: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Rows of a table as tuples of plain values, None for unknown ones, to be compared with a literal."""
    picked = table[list(columns)] if columns else table
    plain = (
        picked[name].astype(object).where(picked[name].notna(), None).tolist() for name in picked.columns
    )
    return list(zip(*plain, strict=True))


def kernel_names(trace: Trace, column: str = "kernel_id") -> list[str]:
    """Names of the events that a column of the links table points at, '' for none."""
    names = trace.events["name"].astype(str).tolist()
    return [names[row] if row >= 0 else "" for row in trace.tables["links"].array(column).tolist()]


def _row(words: Sequence[str], timeline: str, ns_per_char: int, start_ns: int) -> list[Event]:
    kind, options, rest = words[0], {}, []
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if equals and (key in ARGUMENTS or key in ("tid", "device", "corr")):
            options[key] = _value(value)
        else:
            rest.append(word)
    event = _template(kind, rest, options)
    return [
        {
            **event,
            "ts": _us(start_ns + match.start() * ns_per_char),
            "dur": 0 if match[0] == "!" else _us(len(match[0]) * ns_per_char),
            "args": event["args"] | _correlation(match[0][0], options),
        }
        for match in _RUN.finditer(timeline)
    ]


def _us(ns: int) -> float | str:
    """Microseconds; as text where a double would lose nanoseconds (times since 1970), see `write`."""
    return ns / 1000 if ns < 1 << 52 else f"{ns // 1000}.{ns % 1000:03d}"


def _template(kind: str, words: Sequence[str], options: Mapping[str, Any]) -> Event:
    args = {ARGUMENTS[key]: value for key, value in options.items() if key in ARGUMENTS}
    name = " ".join(words)
    if kind in _CPU_ROWS:
        category, usual = _CPU_ROWS[kind]
        if kind == "step":
            name = f"ProfilerStep#{name}"
        place = {"pid": CPU_PID, "tid": options.get("tid", MAIN_TID)}
        return {"ph": "X", "cat": category, "name": name or usual, **place, "args": args}
    device = options.get("device", GPU_PID)
    if kind == "gpu":
        return {"ph": "X", "cat": "gpu_user_annotation", "name": name, "pid": device, "tid": 7, "args": args}
    if not _STREAM.match(kind):
        raise ValueError(f"no such row: {kind!r}")
    category, usual = "kernel", ""
    if words and words[0] in _GPU_ROWS:
        category, usual = _GPU_ROWS[words[0]]
        name = " ".join(words[1:])
    stream = int(kind[1:])
    args |= {"device": device, "stream": stream}
    return {"ph": "X", "cat": category, "name": name or usual, "pid": device, "tid": stream, "args": args}


def _correlation(mark: str, options: Mapping[str, Any]) -> dict[str, int]:
    mark = str(options.get("corr", mark))
    return {"correlation": ord(mark)} if mark.isalnum() else {}


def _flows(found: Sequence[Event]) -> Iterable[Event]:
    launches = [event for event in found if event["cat"] in _CALLS]
    starts = {event["args"]["correlation"]: event for event in launches if "correlation" in event["args"]}
    for id_, event in starts.items():
        yield _arrow("s", id_, event)
    for event in found:
        id_ = event["args"].get("correlation", -1)
        if event["cat"] not in _CALLS and id_ in starts:
            yield _arrow("f", id_, event) | {"bp": "e"}


def _arrow(phase: str, id_: int, at: Event) -> Event:
    place = {key: at[key] for key in ("pid", "tid", "ts")}
    return {"ph": phase, "id": id_, "cat": "ac2g", "name": "ac2g", **place}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
