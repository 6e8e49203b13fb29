"""Another tool's tables of two serving steps in graphs, row by row; exceptions are computed by hand.

Its times are in single precision and added in floating-point microseconds, hence within 0.1%. What no op
launched it lists by the launch call.
"""

from __future__ import annotations

import ast
import csv
import json
from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import tracelens
from tests.reference.traces import FOLDERS
from tracelens.analysis.roofline import costing
from tracelens.trace import Trace, gpu_work

FOLDER = FOLDERS["foreign"] / "mi300x-serving"
TRACES = {
    "sglang": FOLDER / "sglang_decode" / "sglang_Qwen3-8B_decode.json.gz",
    "vllm": FOLDER / "vllm_prefilldecode_piecewise" / "graph_execution.json.gz",
}
pytestmark = [
    pytest.mark.skipif(not FOLDER.exists(), reason="no foreign traces"),
    pytest.mark.parametrize("engine", TRACES),
]
CLOSE = 1e-3

COLUMNS = ["Input Dims", "Input type", "Input Strides", "Concrete Inputs"]
LENGTH = "attention_paged_attention_ragged"
"""An op whose name ends in a length in the trace, and does not in the tables."""


Key = tuple[Any, ...]
"""Name, shapes, types, strides and values of an op."""


@cache
def trace(engine: str) -> Trace:
    (only,) = tracelens.load(TRACES[engine]).traces
    return only


def table(engine: str, name: str) -> Iterator[dict[str, str]]:
    csv.field_size_limit(1 << 24)
    with (TRACES[engine].parent / "perf_csvs" / f"{name}.csv").open() as file:
        yield from csv.DictReader(file)


def plain(name: str) -> str:
    return name.rpartition("_")[0] if LENGTH in name and name[-1].isdigit() else name


def nested(value: Any) -> Any:
    """Lists and tuples as tuples."""
    return tuple(nested(entry) for entry in value) if isinstance(value, list | tuple) else value


def test_ops_by_name(engine: str) -> None:
    expected: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0])
    sums = ("Count", "total_direct_kernel_time_sum", "total_subtree_kernel_time_sum")
    for row in table(engine, "ops_summary"):
        if not row["name"].startswith("hip"):
            total = expected[row["name"]]
            total[:] = (one + float(row[column]) for one, column in zip(total, sums, strict=True))
    ops = tracelens.analyze(tracelens.load(TRACES[engine]), "ops")["ops"]
    ours = {
        plain(name): [count, dur / 1e3, subtree / 1e3]
        for name, count, dur, subtree in ops[["name", "count", "dur_ns", "subtree_dur_ns"]].values.tolist()
    }
    assert ours.keys() == expected.keys()
    for name, values in ours.items():
        assert values == pytest.approx(expected[name], rel=CLOSE), name


def key_of_row(row: dict[str, str]) -> Key:
    return (row["name"], *(nested(ast.literal_eval(row[column] or "()")) for column in COLUMNS))


def keys(recorded: Trace) -> dict[int, Key]:
    """Name and arguments of each op, by event row."""
    events, ops = recorded.arrays, recorded.tables["ops"]
    columns = [ops.coded(name) for name in ("shapes", "dtypes", "strides", "values")]
    parsed = [[nested(json.loads(text)) if text else () for text in column.values] for column in columns]
    rows = events.places(ops.array("event_id"))
    found = {}
    for event, row in enumerate(rows.tolist()):
        if row >= 0:
            arguments = (values[column.codes[row]] for values, column in zip(parsed, columns, strict=True))
            found[event] = (plain(events.names[events.name[event]]), *arguments)
    return found


def test_ops_by_arguments(engine: str) -> None:
    recorded, work = trace(engine), gpu_work(trace(engine))
    events, key_of = recorded.arrays, keys(recorded)
    calls: defaultdict[object, set[int]] = defaultdict(set)
    us: Counter[object] = Counter()
    for op, launch, dur in zip(work.op.tolist(), work.launch.tolist(), work.dur.tolist(), strict=True):
        key: object = key_of[op] if op >= 0 else events.names[events.name[launch]]
        calls[key].add(op if op >= 0 else launch)
        us[key] += dur / 1e3
    expected: defaultdict[object, list[float]] = defaultdict(lambda: [0, 0])
    for row in table(engine, "ops_unique_args"):
        key = row["name"] if row["name"].startswith("hip") else key_of_row(row)
        expected[key][0] += int(row["operation_count"])
        expected[key][1] += float(row["total_direct_kernel_time_sum"])
    assert {key: len(rows) for key, rows in calls.items()} == {
        key: count for key, (count, _) in expected.items()
    }
    for key, (_, time) in expected.items():
        assert us[key] == pytest.approx(time, rel=CLOSE), key


Counts = tuple[float, float]
"""FLOPs and bytes of one call."""

TOKENS, HIDDEN, ELEMENTS = 8192, 2880, 8192 * 2880
TABLE = 131072 * 64
BY_HAND: dict[str, dict[str, Counts]] = {
    "sglang": {
        # RMS norm: square, add, times the row's factor, times the weight; one more where a residual is added.
        # The factor itself, 2 operations a row, is not counted.
        "aiter::rmsnorm 256x128 256x128": (4 * 256 * 128, 2 * (2 * 256 * 128 + 128)),
        "aiter::rmsnorm 1024x128 1024x128": (4 * 1024 * 128, 2 * (2 * 1024 * 128 + 128)),
        "aiter::rmsnorm 32x4096 32x4096": (4 * 32 * 4096, 2 * (2 * 32 * 4096 + 4096)),
        "aiter::add_rmsnorm 32x4096 32x4096": (5 * 32 * 4096, 2 * (4 * 32 * 4096 + 4096)),
        # x / (1 + exp(-x)) as x * (1 / (1 + exp(-x))), 5 operations, times the gate.
        "sgl_kernel::silu_and_mul 32x12288 32x24576": (6 * 32 * 12288, 2 * 3 * 32 * 12288),
        # The tool leaves out the positions (64 bits) and the rows of the table, and the slots of the cache.
        "sgl_kernel::rotary_embedding 32 32x4096": (3 * 32 * 5120, 2 * 2 * 32 * 5120 + 32 * (2 * 128 + 8)),
        "sglang::store_cache 32x1024 32x1024": (0, 2 * 2 * 2 * 32 * 1024 + 8 * 32),
        # 32-bit integers are widened to 64 bits first: read 4, write 8, then read 4, write 8 again.
        "aten::cumsum 32": (32, 2 * 32 * (4 + 8)),
    },
    "vllm": {
        # The bias is added where the product is written, and only in bytes. The tool counts 8192 * N for it.
        "vllm::rocm_unquantized_gemm 8192x2880 5120x2880": (
            2 * TOKENS * HIDDEN * 5120,
            2 * (TOKENS * HIDDEN + HIDDEN * 5120 + 5120 + TOKENS * 5120),
        ),
        "vllm::rocm_unquantized_gemm 8192x4096 2880x4096": (
            2 * TOKENS * 4096 * HIDDEN,
            2 * (TOKENS * 4096 + 4096 * HIDDEN + HIDDEN + TOKENS * HIDDEN),
        ),
        "vllm::rocm_unquantized_gemm 8192x2880 32x2880": (
            2 * TOKENS * HIDDEN * 32,
            2 * (TOKENS * HIDDEN + HIDDEN * 32 + 32 + TOKENS * 32),
        ),
        # RMS norm as above.
        "aiter::rms_norm 8192x2880 2880": (4 * ELEMENTS, 2 * (2 * ELEMENTS + HIDDEN)),
        "aiter::rmsnorm2d_fwd_with_add_ck 8192x2880 8192x2880": (5 * ELEMENTS, 2 * (4 * ELEMENTS + HIDDEN)),
        # Two tensors: one read, one written. 1 operation an element is what is known of a fused kernel.
        "triton_poi_fused_constant_pad_nd_moe_forward_0 8192x2880 8192x3072": (
            TOKENS * 3072,
            2 * (ELEMENTS + TOKENS * 3072),
        ),
        # FP32 to BF16: the tool counts one tensor of two bytes.
        "triton_poi_fused__to_copy_1 131072x64 131072x64": (TABLE, (4 + 2) * TABLE),
        # By the launch grid the inner size is 23 tiles of 128 = 2944, not 3072. Both GEMMs, 4 experts a
        # token; 32 experts in MXFP4, half a byte an element and a byte of scale for 32.
        "vllm::moe_forward 8192x3072 8192x32": (
            2 * 4 * TOKENS * 3072 * 3 * 2944,
            2 * TOKENS * (2 * 3072 + 32) + 32 * 3072 * 3 * 2944 * (1 / 2 + 1 / 32),
        ),
    },
}
"""Where the tool counts otherwise, by op and the shapes of its first two tensors."""


def test_flops_and_bytes(engine: str) -> None:
    """Of each call that the tool models, too. Copies compute nothing here, an operation an element there."""
    expected, by_hand = performance(engine), dict(BY_HAND[engine])
    for key, counts in counted(engine, expected).items():
        theirs, is_modelled = expected.get(key, ((0.0, 0.0), False))
        if label(key) in BY_HAND[engine]:
            by_hand.pop(label(key), None)
            assert counts == BY_HAND[engine][label(key)], key
            assert counts != pytest.approx(theirs, rel=1e-6), key
        elif key[0] == "aten::copy_":
            assert counts[0] == 0
            assert theirs[0] == pytest.approx(np.prod(key[1][0]))
        elif is_modelled:
            assert counts == pytest.approx(theirs, rel=1e-6), key
    assert not by_hand


def label(key: Key) -> str:
    name, shapes, *_ = key
    return " ".join([name, *("x".join(map(str, shape)) for shape in shapes[:2] if shape)])


def performance(engine: str) -> dict[Key, tuple[Counts, bool]]:
    """FLOPs and bytes of a call and whether the tool has a model, of the ops that it lists."""
    found = {}
    for row in table(engine, "unified_perf_summary"):
        numbers = (float(row["GFLOPS"] or 0) * 1e9, float(row["Data Moved (MB)"] or 0) * 2**20)
        found[key_of_row(row)] = (numbers, row["has_perf_model"] == "True" and bool(row["Data Moved (MB)"]))
    return found


def counted(engine: str, listed: Container[Key]) -> dict[Key, Counts]:
    """The same by our cost models, of the outermost listed op around each call, else of its own."""
    recorded = trace(engine)
    work, parent = gpu_work(recorded), recorded.arrays.parent
    costs, key_of = costing(recorded, work), keys(recorded)
    calls: defaultdict[Key, set[int]] = defaultdict(set)
    sums: defaultdict[Key, list[float]] = defaultdict(lambda: [0, 0])
    _, first = np.unique(costs.call, return_index=True)
    for row in first[work.op[first] >= 0].tolist():
        around, outermost = int(work.op[row]), int(work.op[row])
        while around >= 0:
            outermost = around if key_of.get(around) in listed else outermost
            around = int(parent[around])
        key = key_of[outermost]
        calls[key].add(outermost)
        assert costs.item[row] >= 0, key
        cost = costs.items[costs.item[row]].cost
        sums[key][0] += cost.flops
        sums[key][1] += cost.read_bytes + cost.write_bytes
    return {key: (flops / len(calls[key]), moved / len(calls[key])) for key, (flops, moved) in sums.items()}
