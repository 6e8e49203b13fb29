"""Small files of other tools, and poor ones, by name: what people pass to tracelens by mistake."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sqlite3
import tarfile
import zipfile
from pathlib import Path
from typing import Any


def named(what: str, pid: object, name: str, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": f"{what}_name", "args": {"name": name}}


def span(pid: object, tid: object, name: str, ts: int, dur: int, **keys: Any) -> dict[str, Any]:
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": dur, **keys}


def torch_trace(start: int = 0, **header: Any) -> dict[str, Any]:
    """One op, its launch call and its kernel."""
    events = [
        span(1, 1, "aten::mm", start + 10, 5, cat="cpu_op"),
        span(1, 1, "cudaLaunchKernel", start + 12, 2, cat="cuda_runtime", args={"correlation": 1}),
        span(0, 7, "gemm", start + 20, 50, cat="kernel", args={"correlation": 1, "device": 0, "stream": 7}),
    ]
    return {"schemaVersion": 1, **header, "traceEvents": events}


def chrome(*events: dict[str, Any], **header: Any) -> dict[str, Any]:
    return {**header, "traceEvents": [*events]}


_JAX = {"hlo_module": "jit_step", "hlo_op": "fusion.1"}
_DUMP = {"version": "2.9", "pg_config": {}, "entries": [{"record_id": 0, "pg_id": 0}]}
_OLD, _NEW = 1_700_000_000_000_000_000, 1_700_000_009_000_000_000

JSON: dict[str, Any] = {
    "trace.json": torch_trace(),
    "host.json": chrome(span(1, 1, "aten::mm", 1, 5, cat="cpu_op"), schemaVersion=1),
    "jax.json": chrome(
        named("process", 1, "/device:GPU:0"),
        named("process", 701, "/host:CPU"),
        span(1, 1, "fusion.1", 10, 8, args=_JAX),
        span(701, 9, "PjitFunction(step)", 1, 5),
        {},  # as XLA ends its list
        displayTimeUnit="ns",
    ),
    "mixed/trace.json": torch_trace(),
    "rocprof.json": chrome(
        named("process", "2", "CPU HIP API"),
        named("process", "6", "GPU0"),
        span("2", "31", "hipLaunchKernel", 1, 5, args={"BeginNs": "1", "EndNs": "2"}),
        span("6", "0", "Cijk_Ailk", 10, 50, args={"BeginNs": "100", "EndNs": "200"}),
    ),
    "browser.json": chrome(
        span(1, 1, "ParseHTML", 1, 5, cat="devtools.timeline"), span(1, 1, "RunTask", 1, 9, cat="toplevel")
    ),
    "viztracer.json": chrome(span(1, 1, "f (a.py:1)", 1, 5, cat="FEE")),
    "other.json": chrome(span(1, 1, "main", 1, 5, cat="host")),
    "python.json": chrome(span(1, 1, "a.py(1): f", 1, 5, cat="python_function"), schemaVersion=1),
    "no_events.json": chrome(),
    "no_event.json": chrome(named("process", 1, "python")),
    "numbers.json": [1, 2, 3],
    "config.json": {"model_type": "llama", "hidden_size": 8},
    "flight.json": _DUMP,
    "rocprofv3.json": {"rocprofiler-sdk-tool": []},
    "chakra.json": {"schema": "1.1.1-chakra.0.0.4", "nodes": []},
    "execution.json": {"schema": "1.0.1", "pid": 7, "nodes": []},
    "snapshot.json": {"segments": [], "device_traces": [[]]},
    "tensorflow.json": chrome(
        named("process", 3, "/job:localhost/replica:0/task:0/device:GPU:0 Compute"),
        span(3, 1, "MatMul", 1, 5, cat="Op"),
    ),
    "ascend.json": [named("process", 1, "Ascend Hardware"), span(1, 1, "aclnnMatmul", 1, 5)],
    "collectives.json": {"version": "2.4", "entries": [{"record_id": 0, "collective_seq_id": 1}]},
    "empty_object.json": {},
    "null_events.json": {"traceEvents": None},
    "text_events.json": {"traceEvents": ["a"]},
    "spans.json": {"resourceSpans": []},
    "nccl/nccl_trace_rank_0.json": _DUMP,
    "nccl/nccl_trace_rank_1.json": _DUMP,
    "report.json": {"schema_version": 1, "results": {}},
    "notebook.ipynb": {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5},
    "speedscope.json": {"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []},
    "deep/er/traces/rank0.json": torch_trace(),
    "sidecar/run.json": {"schema": "tracelens.run/1", "files": {}},
    f"tensorboard/host_7.{_OLD}.pt.trace.json": torch_trace(),
    f"tensorboard/host_7.{_NEW}.pt.trace.json": torch_trace(100),
    **{
        f"workers/host_{rank}.{stamp}.pt.trace.json": torch_trace(
            distributedInfo={"rank": rank, "world_size": 2}
        )
        for rank in (0, 1)
        for stamp in (_OLD, _NEW)
    },
}

JSON["mixed/jax.json"] = JSON["jax.json"]


def _tar(mode: str) -> bytes:
    data, held = json.dumps(torch_trace()).encode(), io.BytesIO()
    with tarfile.open(fileobj=held, mode=mode) as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo("trace.json")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return held.getvalue()


def _zip(members: dict[str, str]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return held.getvalue()


BYTES = {
    "host.xplane.pb": b"\x0a\x89\x01\x08\x01\x12\x0c/host:CPU\x00abc",
    "gpu.xplane.pb": b"\x0a\xa1\x02\x12\x0d/device:GPU:0\x1a\x10",
    "host.xplane.pb.gz": gzip.compress(b"\x0a\x89\x01\x08\x01\x12\x0c/host:CPU\x00abc"),
    "logdir/plugins/profile/2026_01_01/host.xplane.pb": b"\x0a\x89\x01\x08\x01\x12\x0c/host:CPU\x00abc",
    "nsys.jsonl": b'{"NvtxEvent":{"Type":75}}\n{"CudaEvent":{"startNs":"1"}}\n',
    "cut_header.json": b'{"schemaVersion": 1, "deviceProperties": [{"id": 0',
    "blank.json": b" \n\n",
    "pointer.json": b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n",
    "trace.pftrace": b"\x0a\x10\x08\x01\x12\x05" * 4,
    "report.nsys-rep": b"\x01\x02NV",
    "report.ncu-rep": b"NVR\x00\x01",
    "snapshot.pickle": pickle.dumps({"segments": [], "device_traces": []}),
    "flight.pickle": pickle.dumps(_DUMP),
    "list.pickle": pickle.dumps([1, 2]),
    "stats.csv": b"Name,Calls,Total\ngemm,1,2\n",
    "report.html": b"<!doctype html><title>tracelens report</title>",
    "page.html": b"<!doctype html><title>404</title>",
    "log.txt": b"step 1, loss 2.5\n",
    "empty.json": b"",
    "empty.json.gz": gzip.compress(b""),
    "cut.json.gz": gzip.compress(b'{"traceEvents": [{"ph": "X"')[:20],
    "logs/train.log": b"step 1\n",
    "dumps/nccl_trace_rank_0": pickle.dumps(_DUMP),
    "events.jsonl": b"\n".join(json.dumps(event).encode() for event in torch_trace()["traceEvents"]),
    "metrics.ndjson": b'{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.4}\n',
    "traces.tar": _tar("w"),
    "traces.tar.gz": _tar("w:gz"),
    "twice.json.gz": gzip.compress(gzip.compress(json.dumps(torch_trace()).encode())),
    "archive.zip": _zip({"notes.txt": "none", "stats.csv": "1,2"}),
    "book.xlsx": _zip({"[Content_Types].xml": "<x/>", "xl/workbook.xml": "<x/>"}),
    "table.parquet": b"PAR1\x15\x04\x15\x00PAR1",
    "train.py": b"import torch\nprint(torch.ones(1))\n",
    "events.out.tfevents.17.host": b"\x18\x00\x00\x00\x00\x00\x00\x00\xa3",
    "kernels.csv": "name,Count,Mean Time (µs)\ngemm,1,2\n".encode(),
}
TABLES = {
    "results.db": "rocpd_info_node",
    "report.sqlite": "CUPTI_ACTIVITY_KIND_KERNEL",
    "other.db": "people",
}


def write(folder: Path) -> None:
    """Write all of them."""
    for name, document in JSON.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(document))
    for name, data in BYTES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    for name, table in TABLES.items():
        with sqlite3.connect(folder / name) as connection:
            connection.execute(f"create table {table} (id int)")
    (folder / "nothing").mkdir()
    (folder / "links").mkdir()
    (folder / "links" / "trace.json").symlink_to("/nowhere/trace.json")
    (folder / "link.json").symlink_to("/nowhere/trace.json")
