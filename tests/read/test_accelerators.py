"""Devices other than CUDA's and ROCm's: their categories are GPU work, or the trace is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders import records
from tracelens.cli import run as run_cli
from tracelens.errors import ParseError
from tracelens.read import parse
from tracelens.trace import Trace

Event = dict[str, Any]


def event(cat: str | None, name: str, ts: float, pid: Any = 1, tid: Any = 1, **args: Any) -> Event:
    category = {} if cat is None else {"cat": cat}
    return {"ph": "X", **category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": 4.0, "args": args}


def launched(launch: str, kernel: str, **device: Any) -> list[Event]:
    """An op that launches a kernel, as the profiler writes it for a device."""
    return [
        event("cpu_op", "aten::mm", 0.0, **{"External id": 5}),
        event(launch, "launch", 1.0, correlation=3, **{"External id": 5}),
        event(kernel, "gemm", 10.0, 0, 7, correlation=3, **device),
    ]


CUDA = launched("cuda_runtime", "kernel", device=0, stream=7)


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(*events: Event) -> str:
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
        return str(path)

    return write


def read(path: str) -> Trace:
    (trace,) = parse(path)
    return trace


@pytest.mark.parametrize(
    ("launch", "kernel", "device"),
    [
        ("xpu_runtime", "kernel", {"device": 0, "stream": 7}),
        ("xpu_driver", "kernel", {"device": 0, "stream": 7}),
        ("mtia_runtime", "mtia_ccp_events", {}),
        ("hpu_runtime", "hpu_op", {}),
        ("mlu_runtime", "kernel", {"device": 0, "stream": 7}),
        ("gcu_runtime", "kernel", {"device": 0, "stream": 7}),
        ("musa_runtime", "kernel", {"device": 0, "stream": 7}),
        ("npu_runtime", "npu_kernel", {}),
        ("privateuse1_runtime", "kernel", {"device": 0, "stream": 7}),
        ("privateuse1_driver", "kernel", {}),
    ],
)
def test_kernels_of_accelerators_are_gpu_work(
    file: Any, launch: str, kernel: str, device: dict[str, int]
) -> None:
    trace = read(file(*launched(launch, kernel, **device)))
    assert not trace.meta.cpu_only
    assert trace.meta.problems == ()
    assert records(trace.events, "kind", "device", "stream", "linked") == [
        ("op", None, None, False),
        ("launch", None, None, False),
        ("kernel", 0, 7, True),
    ]
    assert records(trace.links, "kernel_id", "launch_id", "op_id") == [(2, 1, 0)]


@pytest.mark.parametrize("vendor", ["mlu", "GCU", "musa"])
def test_copies_of_forks(file: Any, vendor: str) -> None:
    trace = read(file(*CUDA, *(event(f"{vendor}_{kind}", kind, 20.0, 0, 8) for kind in ("memcpy", "memset"))))
    assert records(trace.events, "kind")[3:] == [("memcpy",), ("memset",)]
    assert trace.meta.problems == ()


@pytest.mark.parametrize(
    ("category", "args"),
    [
        ("mtia_insight", {}),
        ("xpu_kernel_v2", {}),
        ("hpu_node", {}),
        ("privateuse1_activity", {}),
        ("npu_task", {"device": 0, "stream": 7}),
        ("tpu work", {"device": 0, "stream": 7}),  # a device's work by its arguments, whatever it is called
    ],
)
def test_unknown_device_events_are_refused(
    file: Any, category: str, args: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    path = file(
        event("cpu_op", "aten::mm", 0.0), *(event(category, "k", 9.0, 0, 7, **args) for _ in range(3))
    )
    with pytest.raises(ParseError, match=f"trace.json: not read: 3 device events of category '{category}'"):
        read(path)
    assert run_cli(["analyze", "timeline", path]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "export it with Kineto's categories" in shown.err


def test_arrows_to_a_device_whose_work_has_no_category_are_refused(file: Any) -> None:
    """Ascend: events of the device have no category, and arrows that lead to them."""
    arrows = [{"ph": ph, "cat": "async_npu", "id": 1, "pid": 1, "tid": 1, "ts": 2.0} for ph in "sf"]
    with pytest.raises(ParseError, match="async_npu"):
        read(file(event("cpu_op", "aten::mm", 0.0), *arrows, event(None, "MatMulV2", 9.0, 3, 2)))


def test_few_unknown_device_events_beside_kernels_are_told(file: Any) -> None:
    trace = read(
        file(*CUDA, event("xpu_new", "k", 20.0, 0, 9), event("other", "k", 30.0, 0, 9, device=0, stream=9))
    )
    assert not trace.meta.cpu_only
    assert [row for (row,) in records(trace.events, "kind")] == ["op", "launch", "kernel", "slice", "slice"]
    assert trace.meta.problems == (
        "not read: 1 device event of category 'xpu_new'",
        "not read: 1 device event of category 'other'",
    )


@pytest.mark.parametrize("category", ["user work", "", "xpuzzle", "cuda_event", "overhead", "xpu_sync"])
def test_other_events_do_not_make_a_cpu_trace_a_device_trace(file: Any, category: str) -> None:
    trace = read(file(event("cpu_op", "aten::mm", 0.0), event(category, "k", 9.0)))
    assert trace.meta.cpu_only
    assert trace.meta.problems == ()


def test_events_on_streams_of_programs_without_ops_are_slices(file: Any) -> None:
    trace = read(file(event("dispatch", "k", 9.0, 0, 7, device=0, stream=7)))
    assert records(trace.events, "kind") == [("slice",)]
