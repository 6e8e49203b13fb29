"""What real traces get wrong, group by group, each as a text of its own with the reading it must have."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.builders import records
from tracelens.errors import ParseError
from tracelens.read import parse
from tracelens.trace import Trace, steps_of

Read = Callable[..., Trace]

OP = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 9, "args": {"External id": 5, "Input Dims": [[2, 3]]}}'  # noqa: E501
LAUNCH = '{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {"correlation": 3}}'  # noqa: E501
KERNEL = '{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10, "dur": 5, "args": {"device": 0, "stream": 7, "correlation": 3}}'  # noqa: E501

NEGATIVE = "negative duration set to 0"
OVERRUN = "GPU work overrunning the next on its stream by over 1 ms, cut there"
ALONE = "begin or end without its partner"
NOT_ANALYZED = "kind of event that is not analyzed (counter, object, ...)"
NO_DURATION = "complete event without duration"


@pytest.fixture
def text(tmp_path: Path) -> Read:
    """Reads one text, or bytes, as one trace."""

    def read_text(content: str | bytes) -> Trace:
        path = tmp_path / "trace.json"
        path.write_bytes(encoded(content))
        (trace,) = parse(str(path))
        assert trace.meta.read == trace.meta.kept + sum(trace.meta.dropped.values())
        return trace

    return read_text


@pytest.fixture
def read(text: Read) -> Read:
    """Reads the texts of events as one trace."""

    def read_events(*events: str | bytes) -> Trace:
        return text(b'{"traceEvents": [\n' + b",\n".join(map(encoded, events)) + b"\n]}")

    return read_events


def encoded(text: str | bytes) -> bytes:
    """UTF-8."""
    return text.encode() if isinstance(text, str) else text


def x(name: str, ts: Any, dur: Any, cat: str = "cpu_op", pid: Any = 1, tid: Any = 1, **args: Any) -> str:
    """A complete event; times are written as they are given."""
    place = f'"pid": {json.dumps(pid)}, "tid": {json.dumps(tid)}'
    times = f'"ts": {ts}, "dur": {dur}'
    return f'{{"ph": "X", "cat": "{cat}", "name": "{name}", {place}, {times}, "args": {json.dumps(args)}}}'


def p(phase: str, ts: float, name: str = "", **rest: Any) -> str:
    """An event of any other phase."""
    return json.dumps({"ph": phase, "name": name, "pid": 1, "tid": 1, "ts": ts, **rest})


def links(trace: Trace) -> list[tuple[str, str, str]]:
    """(GPU work, launch call, op) by name, "" for none."""
    names = [*trace.events["name"].astype(str), ""]
    return [
        (names[kernel], names[launch], names[op])
        for kernel, launch, op in zip(
            *map(trace.tables["links"].array, ("kernel_id", "launch_id", "op_id")), strict=True
        )
    ]


# 1: text that is no JSON


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (b'"name": "f("a")"', 'f("a")'),
        (b'"name": "C:\\dir"', "C:\\dir"),
        (b'"name": "a\tb\x01"', "a\tb\x01"),
        (b'"name": "\xff\xfe!"', "\ufffd\ufffd!"),
        (b'"name": "mm", "Process Group Description": ,"x": 1', "mm"),
        (b'"name": "mm", "x": N/A, "y": NaN, "z": -Infinity', "mm"),
        (b'"name": "mm", "l": [1, 2,],', "mm"),
    ],
)
def test_1_broken_text_is_mended(read: Read, broken: bytes, name: str) -> None:
    bad = b'{"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 20, "dur": 3, ' + broken + b"}"
    trace = read(OP, bad, KERNEL)
    assert records(trace.events, "name", "ts_ns", "dur_ns") == [
        ("aten::mm", 0, 9000),
        (name, 20_000, 3000),
        ("gemm", 10_000, 5000),
    ]
    assert trace.meta.repaired == {"text repaired": 1}
    assert trace.meta.dropped == {}


def test_1_what_cannot_be_mended_is_dropped_with_its_place(read: Read) -> None:
    trace = read(OP, '{"ph": "X", "name" 7 "ts"}', KERNEL)
    assert trace.events["name"].tolist() == ["aten::mm", "gemm"]
    assert trace.meta.dropped == {"not valid JSON": 1}
    assert trace.meta.first_drop == {"not valid JSON": len('{"traceEvents": [\n') + len(OP) + 2}


# 2: forms of the file


@pytest.mark.parametrize(
    "content",
    [
        f"[{OP},{KERNEL}]",
        f"[{OP},{KERNEL}",
        f"[\n{OP},\n{KERNEL},\n",
        f'{{"traceEvents":[{OP},{KERNEL}]}}',
        f'{{"traceEvents": [{OP},\r\n{KERNEL}\r\n]\r\n}}\r\n',
        f'\ufeff{{"metadata": {{"a": [{"1, " * 9999}1]}}, "traceEvents": [{OP}, {KERNEL}]}}',
        json.dumps({"traceEvents": [json.loads(OP), json.loads(KERNEL)]}, indent="\t"),
    ],
    ids=["array", "no bracket", "comma", "minified", "CRLF", "metadata", "tabs"],
)
def test_2_forms_that_lose_nothing(text: Read, content: str) -> None:
    trace = text(content)
    assert trace.events["name"].tolist() == ["aten::mm", "gemm"]
    assert (trace.meta.read, trace.meta.kept, trace.meta.problems) == (2, 2, ())


def test_2_keys_behind_the_events_count(text: Read) -> None:
    trace = text(f'{{"traceEvents": [{KERNEL}], "distributedInfo": {{"rank": 3, "world_size": 8}}}}')
    assert (trace.meta.rank, trace.meta.world_size, trace.meta.problems) == (3, 8, ())


def test_2_truncated_files_keep_what_is_whole(text: Read) -> None:
    trace = text(f'{{"traceEvents": [{OP}, {KERNEL[:60]}')
    assert trace.events["name"].tolist() == ["aten::mm"]
    (problem,) = trace.meta.problems
    assert "cut off" in problem


@pytest.mark.parametrize("rest", ["", "]", "],", '], "x": 1', '], "x": 1}'])
def test_2_a_cut_behind_a_nested_list_is_a_cut(text: Read, rest: str) -> None:
    """Neither does the list inside the event end the events, nor does what follows it stand behind them."""
    cut = OP[: OP.index("[2, 3]]")] + "[2, 3]" + rest
    trace = text(f'{{"traceEvents": [{OP}, {cut}')
    assert trace.events["name"].tolist() == ["aten::mm"]
    (problem,) = trace.meta.problems
    assert "cut off" in problem


def test_2_a_truncated_gzip_keeps_what_is_whole(text: Read) -> None:
    events = [x(f"k{number * 7919 % 1000}", number, 1) for number in range(1000)]
    packed = gzip.compress(f"[{','.join(events)}]".encode())
    trace = text(packed[: len(packed) // 2])
    kept = len(trace.events)
    assert 300 < kept < 700
    assert trace.events["name"].tolist() == [f"k{number * 7919 % 1000}" for number in range(kept)]
    (problem,) = trace.meta.problems
    assert "is truncated" in problem


# 3: times


def test_3_times_beyond_doubles_are_exact(read: Read) -> None:
    trace = read(
        x("a", "1712195495519689.047", "0.001"),
        x("b", "1712195495519689.048", "1000000000.999"),
        x("c", '"1712195495519689.049"', '"2.5"'),
        x("d", "1.712195495519689050e15", "0"),
        x("e", "1712195495519690", "1"),
        x("f", "-0.001", "1"),
    )
    assert records(trace.events, "name", "ts_ns", "dur_ns") == [
        ("a", 1712195495519689047, 1),
        ("b", 1712195495519689048, 1_000_000_000_999),
        ("c", 1712195495519689049, 2500),
        ("d", 1712195495519689050, 0),
        ("e", 1712195495519690000, 1000),
        ("f", -1, 1000),
    ]


def test_3_display_unit_and_base_do_not_change_the_unit(text: Read) -> None:
    head = '"displayTimeUnit": "ms", "baseTimeNanoseconds": 1712195495000000000'
    trace = text(f'{{{head}, "traceEvents": [{x("a", 1.5, 2)}]}}')
    assert records(trace.events, "ts_ns", "dur_ns") == [(1500, 2000)]
    assert trace.meta.epoch_ns == 1712195495000000000


# 4: texts for numbers


def test_4_streams_sizes_and_ids_as_text(read: Read) -> None:
    gpu = {"cat": "kernel", "pid": 0}
    trace = read(
        x("a", 1, 1, **gpu, tid=0, stream="0x0", device="1", correlation="9"),
        x("b", 3, 1, **gpu, tid=4, stream="0x1f", device=0, correlation=9.0),
        x("c", 5, 1, "gpu_memcpy", 0, 0, stream=0, device=0, bytes="2560"),
        x("d", 7, 1, "gpu_memcpy", 2, "stream 3", bytes=None),
    )
    assert records(trace.events, "name", "device", "stream", "bytes", "correlation_id") == [
        ("a", 1, 0, None, 9),
        ("b", 0, 31, None, 9),
        ("c", 0, 0, 2560, None),
        ("d", 2, -2, None, None),
    ]


def test_4_process_and_thread_ids_of_any_type(read: Read) -> None:
    """7 and "7" are one thread; texts are threads of their own, an empty one too."""
    trace = read(
        x("outer", 0, 10, pid=7, tid="7"),
        x("inner", 1, 2, pid="7", tid=7),
        x("other", 3, 2, pid="", tid="main"),
        x("below", 3, 1, pid="", tid="main"),
        x("apart", 3, 1, pid="", tid="side"),
        '{"ph": "X", "cat": "cpu_op", "name": "bare", "ts": 1, "dur": 1}',
    )
    assert trace.tables["events"].array("parent_id").tolist() == [-1, 0, -1, 2, -1, -1]
    assert trace.tables["events"].array("pid").tolist()[:2] == trace.events["tid"].tolist()[:2] == [7, 7]
    assert set(trace.tables["events"].array("pid")[2:5]) == {-2}
    assert trace.events["tid"].nunique() == 4


def test_4_dims_as_text(read: Read) -> None:
    trace = read(x("mm", 0, 1, **{"Input Dims": ["[2, 3]", "4"], "Sequence number": "12"}))
    assert records(trace.ops, "shapes", "sequence") == [('["[2, 3]", "4"]', 12)]


# 5, 6: ROCm


def test_5_hip_calls_and_copies(read: Read) -> None:
    """No arrow to the fill; a kernel that copies stays a kernel; correlation 0 is none."""
    gpu = {"pid": 2, "tid": 0, "device": 2, "stream": 0}
    trace = read(
        x("aten::zero_", 0, 30),
        x("hipMemsetAsync", 1, 1, "cuda_runtime", correlation=4),
        x("hipLaunchKernel", 3, 1, "cuda_runtime", correlation=5),
        x("hipLaunchKernel", 5, 1, "cuda_runtime", correlation=0),
        x("Memset (Device)", 40, 1, "gpu_memset", **gpu, correlation=4),
        x("__amd_rocclr_copyBuffer.kd", 42, 1, "kernel", **gpu, correlation=5),
        x("ncclDevKernel_Generic", 44, 1, "kernel", **gpu, correlation=0),
    )
    assert links(trace) == [
        ("Memset (Device)", "hipMemsetAsync", "aten::zero_"),
        ("__amd_rocclr_copyBuffer.kd", "hipLaunchKernel", "aten::zero_"),
        ("ncclDevKernel_Generic", "", ""),
    ]
    assert trace.events["kind"].tolist()[4:] == ["memset", "kernel", "kernel"]
    assert set(trace.tables["events"].array("stream")[4:]) == {0}


def test_5_old_traces_without_any_argument(read: Read) -> None:
    trace = read(
        '{"ph": "X", "cat": "kernel", "name": "k", "pid": 3, "tid": 2, "ts": 1, "dur": 1}',
        '{"ph": "X", "cat": "Memcpy", "name": "Memcpy DtoD", "pid": 3, "tid": 2, "ts": 5, "dur": 1}',
    )
    assert records(trace.events, "kind", "device", "stream", "bytes", "correlation_id") == [
        ("kernel", 3, 2, None, None),
        ("memcpy", 3, 2, None, None),
    ]


def test_5_external_id_where_the_launch_is_unknown(read: Read) -> None:
    trace = read(OP, x("k", 1, 1, "kernel", 0, 7, **{"correlation": 0, "External id": 5}))
    assert links(trace) == [("k", "", "aten::mm")]
    assert trace.events["linked"].tolist() == [False, False]


def test_5_arrows_where_there_is_no_correlation(read: Read) -> None:
    arrow = {"id": 3, "cat": "async_cpu_to_gpu", "name": "x"}
    trace = read(
        x("aten::mm", 0, 9, "Operator"),
        x("cudaLaunchKernel", 1, 2, "Runtime"),
        x("gemm", 10, 5, "Kernel", 0, "stream 7"),
        x("late", 20, 5, "Kernel", 0, "stream 7"),
        p("s", 1, **arrow),
        json.dumps({"ph": "f", "pid": 0, "tid": "stream 7", "ts": 10, "bp": "e", **arrow}),
    )
    assert links(trace) == [("gemm", "cudaLaunchKernel", "aten::mm"), ("late", "", "")]
    assert trace.events["linked"].tolist() == [False, False, True, False]


def test_5_an_arrow_to_work_in_a_trace_without_launches(read: Read) -> None:
    arrow = json.dumps({"ph": "f", "cat": "ac2g", "id": 1, "pid": 0, "tid": 7, "ts": 10, "bp": "e"})
    trace = read(x("gemm", 10, 5, "kernel", 0, 7), arrow)
    assert links(trace) == [("gemm", "", "")]


def test_6_corrupt_durations_are_cut_and_counted(read: Read) -> None:
    """Over 1 ms into the next on the stream is corrupt; less, another stream or another device is not."""
    gpu = {"cat": "kernel", "pid": 0}
    trace = read(
        x("corrupt", 10, 1_600_000, **gpu, stream=1, device=0),
        x("next", 30, 500, **gpu, stream=1, device=0),
        x("overlap", 200, 400, **gpu, stream=1, device=0),
        x("elsewhere", 20, 1_600_000, **gpu, stream=2, device=0),
        x("other device", 25, 1_600_000, **gpu, stream=1, device=1),
    )
    assert records(trace.events, "name", "dur_ns") == [
        ("corrupt", 20_000),
        ("next", 500_000),
        ("overlap", 400_000),
        ("elsewhere", 1_600_000_000),
        ("other device", 1_600_000_000),
    ]
    assert trace.meta.repaired == {OVERRUN: 1}


def test_6_an_overrun_of_exactly_one_ms_stays(read: Read) -> None:
    trace = read(x("a", 0, 1010, "kernel", stream=1), x("b", 10, 1, "kernel", stream=1))
    assert trace.events["dur_ns"].tolist() == [1_010_000, 1000]
    assert trace.meta.repaired == {}


def test_6_negative_and_zero_durations(read: Read) -> None:
    trace = read(x("a", 5, -3), x("b", 5, 0), x("c", 5, -0.001, "kernel"))
    assert records(trace.events, "ts_ns", "dur_ns") == [(5000, 0), (5000, 0), (5000, 0)]
    assert trace.meta.repaired == {NEGATIVE: 2}


def test_6_a_kernel_that_starts_before_its_call(read: Read) -> None:
    trace = read(OP, LAUNCH, KERNEL.replace('"ts": 10', '"ts": 0.5'))
    assert links(trace) == [("gemm", "cudaLaunchKernel", "aten::mm")]


# 7: correlations used more than once


def test_7_of_runtime_and_driver_call_the_outer_is_the_launch(read: Read) -> None:
    trace = read(
        OP,
        x("cuLaunchKernel", 1.5, 1, "cuda_driver", correlation=3),
        LAUNCH,
        KERNEL,
    )
    assert links(trace) == [("gemm", "cudaLaunchKernel", "aten::mm")]


def test_7_of_calls_with_one_correlation_the_last_before_the_work_counts(read: Read) -> None:
    trace = read(
        x("first", 0, 2, "cuda_runtime", correlation=3),
        x("second", 5, 2, "cuda_runtime", correlation=3),
        x("third", 50, 2, "cuda_runtime", correlation=3),
        KERNEL,
    )
    assert links(trace) == [("gemm", "second", "")]


@pytest.mark.parametrize("call", ["hipGraphLaunch", "cudaGraphLaunch"])
def test_7_a_graph_launches_thousands_of_kernels(read: Read, call: str) -> None:
    kernels = [x("k", 10 + number, 0.5, "kernel", 0, 7, correlation=3) for number in range(3000)]
    other = p("s", 1, id=99, cat="ac2g")  # the trace has arrows, though not for the graph
    trace = read(OP, x(call, 1, 2, "cuda_runtime", correlation=3), other, *kernels)
    assert records(trace.links, "launch_id", "op_id") == [(1, 0)] * 3000
    assert trace.events["linked"].tolist() == [False, False] + [True] * 3000


# 8: nesting


def test_8_children_may_overrun_and_tie(read: Read) -> None:
    trace = read(
        x("outer", 0, 10),
        x("overruns", 5, 5.9),
        x("same start", 0, 4),
        x("same end", 2, 2),
        x("too long", 8, 9),
        x("at the end", 10, 0),
    )
    names = trace.events["name"].tolist()
    parents = [names[row] if row >= 0 else "" for row in trace.tables["events"].array("parent_id")]
    assert dict(zip(names, parents, strict=True)) == {
        "outer": "",
        "overruns": "outer",
        "same start": "outer",
        "same end": "same start",
        "too long": "",
        "at the end": "too long",
    }


def test_8_of_equal_extents_the_kind_then_the_order_tells(read: Read) -> None:
    trace = read(
        x("cudaLaunchKernel", 0, 5, "cuda_runtime"),
        x("aten::a", 0, 5),
        x("aten::b", 0, 5),
        x("train.py(1): f", 0, 5, "python_function"),
    )
    assert trace.tables["events"].array("parent_id").tolist() == [2, 3, 1, -1]
    assert trace.events["depth"].tolist() == [3, 1, 2, 0]


# 9, 10: what is GPU work


def test_9_work_launched_before_the_window_is_kept_without_an_op(read: Read) -> None:
    trace = read(OP, LAUNCH, KERNEL, x("early", 2, 1, "kernel", 0, 7, correlation=1))
    assert links(trace) == [("gemm", "cudaLaunchKernel", "aten::mm"), ("early", "", "")]
    assert sorted(trace.work.dur.tolist()) == [1000, 5000]
    assert trace.work.dur[trace.work.unlinked].tolist() == [1000]


def test_10_annotations_and_syncs_on_streams_are_no_work(read: Read) -> None:
    on_stream = {"pid": 0, "tid": 7, "device": 0, "stream": 7}
    trace = read(
        x("moe", 0, 99, "gpu_user_annotation", **on_stream),
        x("Stream Sync", 5, 9, "cuda_sync", **on_stream),
        KERNEL,
    )
    assert records(trace.events, "kind", "device", "stream", "parent_id") == [
        ("gpu_annotation", None, None, None),
        ("sync", None, None, None),
        ("kernel", 0, 7, None),
    ]
    assert trace.links["kernel_id"].tolist() == [2]


# 11, 12: names of categories and ranks


def test_11_legacy_categories(read: Read) -> None:
    categories = ["Operator", "Runtime", "Kernel", "Memcpy", "Memset", "CPU_OP", "whatever", ""]
    trace = read(*(x("n", 10 * at, 1, category, at) for at, category in enumerate(categories)))
    kinds = ["op", "launch", "kernel", "memcpy", "memset", "op", "slice", "slice"]
    assert records(trace.events, "kind", "category") == list(zip(kinds, categories, strict=True))


def test_12_ranks_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(f'{{"distributedInfo": {{"rank": "2"}}, "traceEvents": [{OP}]}}')
    (tmp_path / "rank_1.json").write_text(f"[{OP}]")
    assert tracelens.load(tmp_path).ranks == [1, 2]
    (tmp_path / "rank02.json").write_text(f"[{OP}]")
    with pytest.raises(
        ParseError, match=r"rank02\.json: is rank 2 by its name, and so is .*a\.json; pass one"
    ):
        tracelens.load(tmp_path)


def test_12_a_rank_that_nothing_tells_is_asked_for(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(f"[{OP}]")
    with pytest.raises(ParseError, match=r"a\.json: neither the trace .* rank<N>\.json"):
        tracelens.load(tmp_path)


def test_12_cut_rank_lists_and_a_huge_group_config(text: Read) -> None:
    config = [
        {"pg_name": str(group), "ranks": list(range(512)), "pg_desc": f'"[{group}], {{'}
        for group in range(600)
    ]
    info = {"rank": 5, "world_size": 512, "pg_config": config}
    record = {
        "Collective name": "allreduce", "Process Group Name": "3", "Process Group Ranks": "[0, 1, ...]",
        "Group size": 512, "dtype": "BFloat16", "In msg nelems": 10, "Out msg nelems": 10,
    }  # fmt: skip
    event = x("record_param_comms", 1, 2, **record)
    trace = text(json.dumps({"distributedInfo": info})[:-1] + f', "traceEvents": [{event}]}}')
    assert (trace.meta.rank, trace.meta.world_size, trace.meta.problems) == (5, 512, ())
    columns = ("collective", "group", "group_ranks", "group_size", "in_bytes")
    ((collective, group, ranks, size, in_bytes),) = records(trace.collectives, *columns)
    assert (collective, size, in_bytes) == ("allreduce", 512, 20)
    assert "3" in group
    assert "..." in ranks


@pytest.mark.parametrize(
    ("kind", "fields", "peer"),
    [
        ("send", {"Dst Rank": 6, "Rank": 1}, 6),
        ("recv", {"Src Rank": "6"}, 6),
        ("recv", {"Rank": 2}, 6),  # older torch: the position in the group
        ("send", {"Src Rank": 6, "Rank": 3}, -1),
        ("send", {"Dst Rank": 5}, -1),  # not in the group
        ("send", {}, -1),
        ("allreduce", {"Rank": 1}, -1),  # the root, or the rank itself
    ],
)
def test_12_peers_of_sends_and_receives(text: Read, kind: str, fields: dict[str, object], peer: int) -> None:
    record = {
        "Collective name": kind,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 4, 6]",
        **fields,
    }
    trace = text(json.dumps([json.loads(x("record_param_comms", 1, 2, **record))]))
    assert records(trace.collectives, "collective", "peer") == [(kind, None if peer < 0 else peer)]


# 13: generic traces


def test_13_begin_end_pairs_nest(text: Read) -> None:
    events = [
        p("B", 1, "outer"),
        p("B", 2, "inner"),
        p("B", 2, "innermost"),
        p("E", 2.5),
        p("E", 4),
        p("B", 4, "next", tid="1"),  # the same thread
        p("E", 5),
        p("E", 9),
        p("E", 10),  # closes nothing
        p("B", 11, "open"),  # never closed
        p("B", 3, "elsewhere", tid=2),
        p("E", 6, tid=2),
    ]
    trace = text(f"[{','.join(events)}]")
    assert records(trace.events, "name", "ts_ns", "dur_ns", "parent_id") == [
        ("outer", 1000, 8000, None),
        ("inner", 2000, 2000, 0),
        ("innermost", 2000, 500, 1),
        ("next", 4000, 1000, 0),
        ("elsewhere", 3000, 3000, None),
    ]
    assert (trace.meta.read, trace.meta.kept, trace.meta.dropped) == (12, 10, {ALONE: 2})
    assert trace.meta.format == "chrome"


def test_13_async_pairs_go_by_id(read: Read) -> None:
    trace = read(
        p("b", 1, "io", cat="net", id="0x1"),
        p("b", 2, "io", cat="net", id="0x2"),
        p("n", 3, "io", cat="net", id="0x2"),
        p("e", 4, "io", cat="net", id="0x1", tid=8),
        p("e", 7, "io", cat="net", id="0x2"),
        p("b", 8, "io", cat="disk", id="0x2"),
    )
    assert records(trace.events, "ts_ns", "dur_ns") == [(1000, 3000), (2000, 5000)]
    assert trace.meta.dropped == {ALONE: 1, NOT_ANALYZED: 1}


def test_13_counters_objects_and_incomplete_events_are_counted(read: Read) -> None:
    trace = read(
        OP,
        p("C", 1, "memory", args={"bytes": 5}),
        p("O", 1, "snapshot", id=1),
        p("i", 2, "mark", s="g"),
        p("I", 3, "old mark"),
        p("X", 4, "no duration"),
        '{"ph": "X", "name": "no time", "dur": 3}',
        '{"name": "no phase", "ts": 3}',
        p("s", 1, "flow", id=1, cat="x"),
        p("t", 2, "flow", id=1, cat="x"),
        p("f", 3, "flow", id=1, cat="x"),
    )
    assert records(trace.events, "name", "ts_ns", "dur_ns") == [
        ("aten::mm", 0, 9000),
        ("mark", 2000, 0),
        ("old mark", 3000, 0),
    ]
    assert trace.meta.dropped == {
        NOT_ANALYZED: 2,
        NO_DURATION: 1,
        "no start time": 1,
        "no phase: not a trace event": 1,
    }
    assert trace.meta.kept == 6


def test_13_metadata_names_threads(read: Read) -> None:
    trace = read(
        p("M", 0, "thread_name", args={"name": 'main \u00e9 "x"'}),
        p("M", 0, "thread_name", tid="9", args={"name": "thread 9 (python)"}),
        p("M", 0, "process_name", args={"name": "train.py"}),
        p("M", 0, "thread_name", tid=4, args={}),
        p("M", 0, "thread_sort_index", args={"sort_index": 3}),
        OP,
    )
    assert trace.meta.threads[1, 1] == 'main \u00e9 "x"'
    assert trace.meta.threads[1, 9] == "thread 9 (python)"
    assert (trace.meta.read, trace.meta.kept) == (6, 6)


@pytest.mark.parametrize("args", ["null", "[1, [2]]", '"text"', "7", '{"a": {"ph": ["},{"]}}', "{}", "true"])
def test_13_arguments_of_any_type(read: Read, args: str) -> None:
    trace = read(f'{{"ph": "X", "name": "a", "ts": 1, "dur": 2, "args": {args}}}', OP)
    assert records(trace.events, "name", "ts_ns", "dur_ns") == [("a", 1000, 2000), ("aten::mm", 0, 9000)]
    assert (trace.meta.dropped, trace.meta.repaired) == ({}, {})


# 15, 16: steps and names


@pytest.mark.parametrize("numbers", [(), (3,), (3, 4, 5)])
def test_15_any_number_of_steps(read: Read, numbers: tuple[int, ...]) -> None:
    marks = [x(f"ProfilerStep#{number}", 100 * number, 90, "user_annotation") for number in numbers]
    trace = read(*marks, x("k", 350, 5, "kernel", 0, 7))
    steps = steps_of(trace)
    assert steps.marked == bool(numbers)
    assert steps.labels == ([f"ProfilerStep#{number}" for number in numbers] or ["(whole trace)"])


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        "=cmd()|'/c calc'!A1",
        'a "b"\n\r\t\\',
        "</script>\u2028",
        "void f<" + "T," * 4000,
    ],
)
def test_16_names_are_kept_as_they_are(read: Read, name: str) -> None:
    trace = read(json.dumps({**json.loads(KERNEL), "name": name}))
    assert trace.events["name"].tolist() == [name]


def test_16_no_name_is_counted(read: Read) -> None:
    trace = read(x("", 1, 2), OP)
    assert trace.events["name"].tolist() == ["(no name)", "aten::mm"]
    assert trace.meta.repaired == {"no name": 1}
