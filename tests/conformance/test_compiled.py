"""A model compiled as one region: MoE stages of its backward graph against a classification by hand.

The sizes below are those of this one model; tracelens learns them from the forward pass.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import pytest
import zstandard

import tracelens
from tests.builders import records
from tests.reference.traces import FOLDERS
from tracelens.analysis.moe import UNATTRIBUTED_NAME
from tracelens.compare.diff import diff

FOLDER = FOLDERS["foreign"] / "nvidia-h200-hf"
COMPILED, EAGER = (FOLDER / f"dsv2_grouped_{name}.json.zst" for name in ("compile", "stack_mem"))
NODE, STEP = "CompiledFunctionBackward", "ProfilerStep#1"
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
ROUTER, PERMUTE, EXPERTS, SHARED, OUTSIDE = "router", "permute", "experts", "shared expert", "outside"
# 4096 tokens, 64 experts, 6 chosen, hidden 2048; inner 1408, twice that in the first GEMM and if shared.
ROUTER_SIZES = ([4096, 64], [64, 4096], [64, 2048])
EXPERT_SIZES = ([24576, 2816], [24576, 1408], [2816, 24576])
SHARED_SIZES = ([4096, 2816], [2816, 4096], [2, 2048, 2816])
# Norms and sums of gradients, of which nothing but names would tell that they lie outside.
UNCLEAR = ([4096, 2048], [2, 2048, 2048], [256, 2048], [2048], [1, 1, 512, 32])

pytestmark = pytest.mark.skipif(not COMPILED.exists(), reason="no foreign traces")


class Kernel(NamedTuple):
    op: str
    call_us: float
    shapes: list[Any]
    ns: int


@cache
def backward_kernels() -> list[Kernel]:
    """The GPU work that the compiled backward node of the step launched, with the op around each launch."""
    data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(COMPILED.read_bytes())).read()
    events = [event for event in json.loads(data)["traceEvents"] if event.get("ph") == "X"]
    (step,) = (e for e in events if e["name"] == STEP and e["cat"] == "user_annotation")
    (node,) = (e for e in events if e["name"] == NODE and step["ts"] <= e["ts"] < step["ts"] + step["dur"])

    def inside(event: Any, outer: Any) -> bool:
        begun = outer["ts"] <= event["ts"] < outer["ts"] + outer["dur"]
        return begun and event["tid"] == outer["tid"] and event["pid"] == outer["pid"]

    calls = {
        event["args"]["correlation"]: event
        for event in events
        if event["cat"] in ("cuda_runtime", "cuda_driver") and inside(event, node)
    }
    ops = [event for event in events if event["cat"] == "cpu_op" and inside(event, node)]
    kernels = []
    for event in events:
        if event["cat"] in WORK and (call := calls.get(event["args"]["correlation"])):
            op = max((op for op in ops if inside(call, op)), key=lambda op: op["ts"])
            shapes = [shape for shape in op["args"].get("Input Dims", []) if shape]
            kernels.append(Kernel(op["name"], op["ts"], shapes, round(event["dur"] * 1000)))
    return kernels


def stage_by_hand(kernel: Kernel) -> str:
    shapes = kernel.shapes
    if [2, 2048, 64] in shapes:  # the rotary part of the keys is as wide as there are experts
        return UNATTRIBUTED_NAME
    if kernel.op == "aten::_grouped_mm" or any(shape in EXPERT_SIZES for shape in shapes):
        return EXPERTS
    if any(shape in ROUTER_SIZES for shape in shapes):
        return ROUTER
    if any(24576 in shape for shape in shapes):
        return PERMUTE
    if any(shape in SHARED_SIZES for shape in shapes):
        return SHARED
    # The copies of rotary angles are not of that kind.
    whole = all(shape in UNCLEAR or 1 in shape or shape == [524288] for shape in shapes)
    is_unclear = whole and kernel.op not in ("aten::mm", "aten::mul") and [1, 1, 2048, 32] not in shapes
    return UNATTRIBUTED_NAME if is_unclear else OUTSIDE


@cache
def by_hand() -> Counter[str]:
    total: Counter[str] = Counter()
    for kernel in backward_kernels():
        total[stage_by_hand(kernel)] += kernel.ns
    return total


def test_the_node_by_hand() -> None:
    """What is said of this trace elsewhere: 22.26 ms, of which 16 calls of 32 kernels take 6.8 ms."""
    kernels = backward_kernels()
    grouped = [kernel for kernel in kernels if kernel.op == "aten::_grouped_mm"]
    assert sum(kernel.ns for kernel in kernels) == pytest.approx(22.26e6, abs=5e3)
    assert (len({kernel.call_us for kernel in grouped}), len(grouped)) == (16, 32)
    assert sum(kernel.ns for kernel in grouped) == pytest.approx(6.795e6, abs=1e3)


def test_backward_stages_and_the_unknown_rest() -> None:
    run = tracelens.load(str(COMPILED))
    passes = tracelens.analyze(run, "moe")["passes"]
    backward = passes[(passes["phase"] == "backward") & (passes["step"] == STEP)]
    assert sorted(backward["layer"]) == [0, 1, 2, 3]
    expected = by_hand()
    for stage in (ROUTER, PERMUTE, EXPERTS, SHARED):
        column = backward[f"{stage.replace(' ', '_')}_ns"]
        assert sum(column) == expected[stage], stage
        assert max(column) < 1.05 * min(column), stage  # every layer does the same
    metrics = tracelens.analyze(run, "steps")["metrics"].query(f"step == '{STEP}'")
    unknown_ns = dict(records(metrics, "metric", "value"))["moe.compiled_unknown.time"]
    assert unknown_ns == expected[UNATTRIBUTED_NAME] < 0.03 * expected.total()


def test_diff_with_the_eager_model() -> None:
    """What the experts take in the backward pass is theirs, and not said to be outside of MoE layers."""
    waterfall = diff(tracelens.load(str(EAGER)), tracelens.load(str(COMPILED)))["waterfall"]
    rows = waterfall[waterfall["level"] == "stage"].set_index("name")
    assert rows.loc["experts", "cand_ns"] > 3.8e6 + 0.99 * by_hand()[EXPERTS]
    assert rows.loc["outside MoE layers", "delta_ns"] < 0
    assert rows.loc[UNATTRIBUTED_NAME, "base_ns"] == 0
    for stage in (ROUTER, PERMUTE, EXPERTS, SHARED):
        assert rows.loc[stage, "cand_ns"] < rows.loc[stage, "base_ns"], stage
