"""Kernels that take far longer than the device needs for work of their size. A column is 100 us."""

from __future__ import annotations

import numpy as np
import pytest

import tracelens
from tests.builders import aligned, draw, draw_run
from tests.reference.traces import FOLDERS
from tracelens.analysis.common import own_device
from tracelens.analysis.roofline import SLOW_RATIO, reachable_time, slow_calls
from tracelens.costs import OpCost
from tracelens.devices import DATA_SHEET, MEASURED, device, gemm_rate, memory_rate
from tracelens.findings import DETECTORS, Detection, RankContext
from tracelens.what_if import whatif

slow_kernels = DETECTORS.get("slow_kernels")

H200 = device("h200")
COLUMN = 100_000
BF16 = '["c10::BFloat16","c10::BFloat16"]'
# 2 x 4096^3 FLOPs: about 0.2 ms at the 700 TFLOP/s that an H200 reaches; here 1.2 ms and 0.2 ms.
GEMMS = f"""
    step 1                                                      | ---
    op aten::mm shapes=[[4096,4096],[4096,4096]] types={BF16}   | -
    op aten::mm shapes=[[4096,8192],[8192,4096]] types={BF16}   |  -
    launch                                                      | mn
    s7 gemm                                                     |   mmmmmmmmmmmmnnnn
"""


def test_the_time_beyond_the_devices_rate_is_lost() -> None:
    detection = slow_kernels.of_rank(RankContext(draw(aligned(GEMMS), ns_per_char=COLUMN), H200))
    assert isinstance(detection, Detection)
    # The larger GEMM runs at 687 TFLOP/s, the best of the run, above which nothing is expected.
    best = 2 * 4096 * 8192 * 4096 / 400e-6
    rate = gemm_rate(H200, 4096, 4096, 4096, "bf16")
    assert rate is not None
    needed_ns = 2 * 4096**3 / min(best, rate.per_s) * 1e9
    assert detection.saving_ns == pytest.approx(1_200_000 - needed_ns, rel=1e-6)
    assert detection.confidence == "medium"
    assert detection.where.total == 1_200_000


def test_kinds_of_calls_outside_the_steps_are_not_told() -> None:
    """One GEMM is slow in a step and one before it; the third shows that the device does better."""
    text = f"""
        step 1                                                      |              ---
        op aten::mm shapes=[[4096,4096],[4096,2048]] types={BF16}   | -
        op aten::mm shapes=[[4096,4096],[4096,4096]] types={BF16}   |              -
        op aten::mm shapes=[[4096,8192],[8192,4096]] types={BF16}   |               -
        launch                                                      | n            mo
        s7 gemm                                                     |  nnnnnnnnnn    mmmmmmmmmmmmoooo
    """
    detection = slow_kernels.of_rank(RankContext(draw(aligned(text), ns_per_char=COLUMN), H200))
    assert isinstance(detection, Detection)
    figures = {quantity.measure: quantity.value for quantity in detection.quantities}
    assert figures["kinds of calls"] == 1
    assert detection.evidence.count("aten::mm") == 1
    assert detection.title == "Slow kernels: aten::mm"


def test_experts_in_one_op_take_as_long_as_a_grouped_gemm() -> None:
    """32,768 rows for 32 experts of 2048 x 4096, by (N, K) or by the width of a row alone."""
    rows, experts, k, n = 32_768, 32, 2048, 4096
    flops = 2 * rows * k * n
    rate = gemm_rate(H200, rows / experts, k, n, "bf16", experts)
    assert rate is not None
    for dims in (("N", n), ("K", k)), (("H", k),):
        sizes = (("E", experts), ("rows", rows), *dims)
        needed = reachable_time("moe", OpCost(flops, 1, 1, "bf16", "matrix", dims=sizes), H200)
        assert needed == (pytest.approx(flops / rate.per_s * 1e9), MEASURED)
    unknown = reachable_time("moe", OpCost(flops, 1, 1, "bf16", "matrix"), H200)
    assert unknown == (pytest.approx(flops / 989.4e12 * 1e9), DATA_SHEET)


def test_the_scenario_takes_the_same_time_away() -> None:
    text = aligned(GEMMS)
    detection = slow_kernels.of_rank(RankContext(draw(text, ns_per_char=COLUMN), H200))
    assert isinstance(detection, Detection)
    result = whatif(
        draw_run(text, ns_per_char=COLUMN), ["good_kernels", "good_kernels=aten::m*"], device="h200"
    )
    base = result.meta["base_ns"]
    saved = base - result["whatif"]["projected_ns"].to_numpy()
    assert saved == pytest.approx([detection.saving_ns] * 2, abs=1_000)
    (skip,) = whatif(draw_run(text, ns_per_char=COLUMN), ["good_kernels=aten::bmm"], device="h200").skips
    assert "aten::bmm" in skip.reason


@pytest.mark.parametrize(
    ("text", "chip", "reason"),
    [
        (GEMMS, None, "device is unknown"),
        (GEMMS.replace("m" * 12, "mmm" + " " * 9), H200, "no kernel takes"),
        (GEMMS.replace("shapes", "ignored"), H200, "no kernel takes"),
        ("step 1 | --", H200, "no GPU work"),
    ],
)
def test_what_is_not_slow_or_not_known(text: str, chip: object, reason: str) -> None:
    outcome = slow_kernels.of_rank(RankContext(draw(aligned(text), ns_per_char=COLUMN), chip))  # type: ignore[arg-type]
    assert isinstance(outcome, str)
    assert reason in outcome


def test_the_slow_rows_of_the_roofline() -> None:
    """Elementwise kinds of a recorded run, by the roofline's own table and the device's curve of bytes."""
    run = tracelens.load(str(FOLDERS["sample_traces"] / "one_gpu" / "grouped"))
    (trace,) = run.traces
    chip = own_device(trace)
    assert chip is not None
    slow = slow_calls(trace, chip)
    found = {(item.name, item.shapes): lost for item, lost in zip(slow.items, slow.lost_ns, strict=True)}
    table = tracelens.analyze(run, "roofline")["roofline"]
    moving = table[(table["flops"] == 0) & (table["link_bytes"] == 0)]
    checked = 0
    for row in moving.itertuples():
        moved = row.read_bytes + row.write_bytes
        needed_ns = moved / memory_rate(chip, max(moved, 1)).per_s * 1e9
        lost = found.get((row.name, row.shapes))
        if lost is None:
            continue
        checked += 1
        assert row.dur_ns > SLOW_RATIO * needed_ns * row.count
        assert lost == pytest.approx(row.dur_ns - needed_ns * row.count, rel=1e-6)
    assert checked >= 3


def test_transfers_and_sorts_are_not_looked_at() -> None:
    for path in ("one_gpu/grouped", "ladder/ep4/02_fusion"):
        for trace in tracelens.load(str(FOLDERS["sample_traces"] / path)).traces:
            slow = slow_calls(trace, own_device(trace))
            assert not [item.name for item in slow.items if item.cost.link or "sort" in item.name]
            assert (np.diff(slow.lost_ns) <= 0).all()
