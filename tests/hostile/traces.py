"""Traces of two ranks in which every text is a payload: names, threads, groups, devices, metadata, files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.hostile.payloads import PAYLOADS

Event = dict[str, Any]
STEP_US, PART_US = 40_000, 100.0
HOST, GPU = 100, 0


def write_run(folder: Path, payloads: Sequence[str] = PAYLOADS, *, slower: float = 1.0) -> Path:
    """A folder with a trace a rank, and a sidecar, of which everything is hostile too.

    Args:
        folder: where; made.
        payloads: each is the name of an op, a scope, a kernel, ...
        slower: factor on the time of kernels, for a run to be compared with.
    """
    folder.mkdir(parents=True)
    for rank in range(2):
        header = {
            "schemaVersion": 1,
            "distributedInfo": {
                "backend": payloads[0],
                "rank": rank,
                "world_size": 2,
                "pg_config": payloads[1],
            },
            "deviceProperties": [{"id": GPU, "name": payloads[2], "totalGlobalMem": 1 << 34}],
            "traceName": payloads[3],
            "host_name": payloads[4],
            "tracelens": {"config": dict.fromkeys(payloads[:20], payloads[5]), "host": payloads[6]},
            "record_shapes": 1,
            payloads[7]: payloads[8],
        }
        content = {**header, "traceEvents": list(events(rank, payloads, slower))}
        (folder / f"rank{rank}.json").write_text(json.dumps(content), encoding="utf-8")
    sidecar = {
        "schema": "tracelens.run/1",
        "host": payloads[9],
        "notes": list(payloads),
        "config": {"a": payloads[3]},
    }
    (folder / "run.json").write_text(json.dumps(sidecar), encoding="utf-8")
    return folder


def events(rank: int, payloads: Sequence[str], slower: float) -> Iterator[Event]:
    """Two steps; in each a scope, an op, a kernel, a copy and a collective named after every payload."""
    for number, text in enumerate(payloads):
        yield meta("process_name", HOST + number, 0, name=text)
        yield meta("process_labels", HOST + number, 0, labels=text)
        yield meta("thread_name", HOST, number, name=text)
        yield meta("thread_name", GPU, number % 7, name=text)
    correlation = 1
    length = PART_US * len(payloads)
    for step in range(2):
        begin = 1000.0 + step * (length + 5000)
        yield slice_("user_annotation", f"ProfilerStep#{step}", begin, length + 100)
        for number, text in enumerate(payloads):
            at = begin + 10 + number * PART_US
            yield from part(rank, number, text, at, correlation, slower)
            correlation += 3


def part(rank: int, number: int, text: str, at: float, correlation: int, slower: float) -> Iterator[Event]:
    yield slice_("user_annotation", text, at, 90)
    yield slice_("python_function", f"{text}.py({number}): {text}", at + 0.5, 89)
    shapes = {"Input Dims": [[64, 32], [32, 16], []], "Input type": ["float", text, "Scalar"]}
    values = {"Concrete Inputs": ["", "", text], "Sequence number": number, "External id": correlation}
    yield slice_("cpu_op", text, at + 1, 40, **shapes, **values)
    yield slice_("cuda_runtime", "cudaLaunchKernel", at + 2, 3, correlation=correlation)
    yield slice_("cpu_op", "aten::mm", at + 10, 10, **shapes, **values)
    yield slice_("cuda_runtime", text, at + 11, 3, correlation=correlation + 1)
    yield slice_("cpu_op", "record_param_comms", at + 45, 10, **collective(rank, text))
    yield slice_("cuda_runtime", "cudaLaunchKernel", at + 46, 3, correlation=correlation + 2)
    for offset, name, stream, args in (
        (0, text, 7, {}),
        (1, f"void gemm<{text}>", number % 5, {}),
        (2, "ncclDevKernel_AllReduce_Sum_f32", 20, collective(rank, text)),
    ):
        start = at + 20 + 20 * offset
        where = {"pid": GPU, "tid": stream, "device": GPU, "stream": stream}
        yield kernel(name, start, 15 * slower, correlation + offset, **where, **args)
    yield slice_(text, text, at + 60, 5, **{text: text})  # of a category that nobody knows
    yield {"ph": "i", "cat": text, "name": text, "pid": HOST, "tid": 1, "ts": at, "s": "t"}


def collective(rank: int, text: str) -> dict[str, Any]:
    return {
        "Collective name": "allreduce",
        "Process Group Name": text,
        "Process Group Description": text,
        "Process Group Ranks": "[0, 1]",
        "Group size": 2,
        "dtype": text if rank else "Float",
        "In msg nelems": 1024,
        "Out msg nelems": 1024,
    }


def slice_(category: str, name: str, at: float, length: float, **args: Any) -> Event:
    place = {"pid": HOST, "tid": 1, "ts": at, "dur": length}
    return {"ph": "X", "cat": category, "name": name, **place, "args": args}


def kernel(
    name: str, at: float, length: float, correlation: int, *, pid: int, tid: int, **args: Any
) -> Event:
    place = {"pid": pid, "tid": tid, "ts": at, "dur": length}
    return {"ph": "X", "cat": "kernel", "name": name, **place, "args": {"correlation": correlation, **args}}


def meta(kind: str, pid: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args}
