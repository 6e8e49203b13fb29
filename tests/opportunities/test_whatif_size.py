"""Kernels of another size: element types, more tokens, and what ranks send of them. A column is 1 us."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import pytest

from tests.analysis.moe_traces import Model, recorded
from tests.what_if.replays import assert_identity, run_of
from tracelens.devices import device, gemm_rate
from tracelens.errors import TracelensError
from tracelens.trace import Run
from tracelens.what_if import Edit, Node, ScenarioContext, parse_request, whatif
from tracelens.what_if.graph import build

EP2 = Model(ranks=2, exchange="all_to_all")
EXCHANGE_NS = 2_000


def gemm(m: int, n: int, k: int) -> Run:
    """A kernel of 1 column and a GEMM of 10."""
    return run_of(f"""
        step 0 | ---
        op aten::mm shapes=[[{m},{k}],[{k},{n}]] types=["c10::BFloat16","c10::BFloat16"] |  -
        launch | ba
        s7 norm |  b
        s7 nvjet_gemm |   aaaaaaaaaa
    """)


def saved(run: Run, scenario: str) -> float:
    """How much shorter a step is, us."""
    result = whatif(run, [scenario], device="h100")
    return (result.meta["base_ns"] - int(result["whatif"]["projected_ns"][0])) / 1e3


def reason(run: Run, scenario: str) -> str:
    """Why a scenario is not applicable."""
    skips = whatif(run, [scenario], device="h100").skips
    return next(skip.reason for skip in skips if skip.subject == f"scenario {scenario}")


def test_a_gemm_bound_by_compute_takes_half_as_long_in_fp8() -> None:
    run = gemm(4096, 4096, 4096)
    assert_identity(run)
    assert saved(run, "dtype=fp8") == pytest.approx(5, abs=0.01)
    assert "no GEMM of another type than bf16" in reason(run, "dtype=bf16")
    with pytest.raises(TracelensError, match="unknown type"):
        whatif(run, ["dtype=wide"])


def test_a_gemm_bound_by_memory_reads_half_in_fp8() -> None:
    """16 rows: operands shrink to half, the result stays."""
    read, written = 2 * (16 * 4096 + 4096 * 4096), 2 * 16 * 4096
    share = (read / 2 + written) / (read + written)
    assert saved(gemm(16, 4096, 4096), "dtype=fp8") == pytest.approx(10 * (1 - share), abs=0.01)


@pytest.mark.parametrize("rows", [16, 512, 4096])
@pytest.mark.parametrize("factor", [0.5, 2])
def test_more_tokens_of_a_gemm_take_as_long_as_the_rates_of_its_sizes_say(rows: int, factor: float) -> None:
    """9 of the 10 columns change; 1, the time of the shortest kernel, does not."""
    rates = [gemm_rate(device("h100"), m, 4096, 4096, "bf16") for m in (rows, rows * factor)]
    assert rates[0] is not None
    assert rates[1] is not None
    ratio = factor * rates[0].per_s / rates[1].per_s
    assert saved(gemm(rows, 4096, 4096), f"batch={factor}") == pytest.approx(-9 * (ratio - 1), abs=0.05)


def test_elementwise_kernels_grow_with_the_tokens_whatever_their_lambdas_are_called() -> None:
    """Once "lambda" looked like the LAMB optimizer, whose kernels stay as they are."""
    kernels = {"add_kernel(lambda_1)": 2.0, "multi_tensor_apply_kernel": 1.0, "lamb_stage_1": 1.0}
    for name, ratio in kernels.items():
        run = run_of(f"""
            step 0 | ---
            launch | ba
            s7 norm |  b
            s7 {name} |   aaaaaaaaaa
        """)
        assert saved(run, "batch=2") == pytest.approx(-9 * (ratio - 1), abs=0.01), name


def changed(run: Run, scenario: str, kind: Node = Node.WORK) -> list[int]:
    """Durations of the nodes of a kind under a scenario, ns."""
    recording = build(run, "h100")
    edit = Edit.of(recording.graph)
    ((item, argument),) = parse_request(scenario).parts
    item.change(ScenarioContext(recording, run.traces), edit, argument)
    times: list[int] = edit.dur[recording.graph.kind == kind].tolist()
    return times


def test_a_model_of_another_type_moves_as_many_bytes_fewer() -> None:
    """A GEMM, a pass over fp32 numbers, one over integers and an optimizer."""
    run = run_of("""
        step 0 | -------
        op aten::mm shapes=[[4096,4096],[4096,4096]] types=["float","float"] | -
        launch | a
        op aten::neg shapes=[[4096,4096]] types=["float"] |  -
        launch |  b
        op aten::neg shapes=[[4096,4096]] types=["long int"] |   -
        launch |   c
        launch |    d
        s7 sgemm |     aaaaaaaaaa
        s7 neg |               bbbbbbbb
        s7 neg |                       cccccccc
        s7 multi_tensor_apply_kernel |                               dddd
    """)
    peaks = {name: device("h100").peak("matrix", name) or 0.0 for name in ("bf16", "fp32", "fp8")}
    for name, others in {"bf16": [4000, 8000, 2000], "fp8": [8000, 8000, 4000]}.items():
        gemm_ns = round(10_000 * peaks["fp32"] / peaks[name])
        assert changed(run, f"dtype={name}") == [gemm_ns, *others]


@pytest.mark.parametrize(("name", "ns"), [("Float", 5_000), ("Long", 10_000)])
def test_messages_of_the_type_shrink_with_it(name: str, ns: int) -> None:
    rank = f"""
        step 0 | ------
        op aten::mm shapes=[[4096,4096],[4096,4096]] types=["float","float"] | -
        launch | b
        op record_param_comms collective=allreduce group=0 ranks=[0,1] size=2 in=9 out=9 dtype={name} |  -
        launch |  a
        s7 sgemm |    b
        s7 ncclDevKernel_AllReduce |     aaaaaaaaaa
    """
    assert changed(run_of(rank, rank), "dtype=bf16", Node.MEET) == [ns]
    assert changed(run_of(rank, rank), "dtype=fp8", Node.MEET) == [10_000]


def test_without_a_device_the_size_says_nothing() -> None:
    run = gemm(16, 16, 16)
    for scenario in ("dtype=fp8", "batch=2"):
        skip = next(item for item in whatif(run, [scenario]).skips if scenario in item.subject)
        assert "unknown device" in skip.reason


def exchanges(model: Model, scenario: str) -> list[int]:
    """Transfers of all dispatches and combines under a scenario, ns."""
    run = recorded(model)[0]
    graph = build(run).graph
    assert set(graph.dur[graph.kind == Node.MEET].tolist()) == {EXCHANGE_NS}
    return changed(run, scenario, Node.MEET)


def test_each_token_once_to_a_rank() -> None:
    """2 of 8 experts on 2 ranks: of its 2 copies, 2 (1 - C(4,2) / C(8,2)) are left; 8 exchanges of 2 us."""
    share = 2 * (1 - comb(4, 2) / comb(8, 2)) / 2
    assert exchanges(EP2, "dispatch=dedup") == [round(share * EXCHANGE_NS)] * 8
    assert exchanges(EP2, "dispatch=deepep") == [round(share * EXCHANGE_NS)] * 8
    with pytest.raises(TracelensError, match="dispatch=dedup or"):
        exchanges(EP2, "dispatch=all")


def test_messages_tell_how_many_experts_a_token_has() -> None:
    """A fused router does not; each rank sends three copies of its 9 tokens, 14 and 13 to both ranks."""
    share = 2 * (1 - comb(4, 3) / comb(8, 3)) / 3
    uneven = replace(EP2, fused_router=True, tokens=9, chosen=3)
    assert exchanges(uneven, "dispatch=dedup") == [round(share * EXCHANGE_NS)] * 8
    # As much for each rank may be a buffer for the worst case.
    assert "unknown" in reason(recorded(replace(EP2, fused_router=True))[0], "dispatch=dedup")


def test_half_of_the_exchange_of_two_micro_batches_hides() -> None:
    two = Model(ranks=2, exchange="all_to_all", order="F0 F1 B0 B1")
    assert exchanges(two, "overlap_1f1b") == [EXCHANGE_NS // 2] * 16
    assert "one micro-batch" in reason(recorded(EP2)[0], "overlap_1f1b")


def test_a_single_rank_exchanges_nothing() -> None:
    run, _ = recorded(Model(loop=False))
    for scenario in ("dispatch=dedup", "overlap_1f1b"):
        assert "no dispatch or combine" in reason(run, scenario)
