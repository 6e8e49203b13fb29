"""What the detectors of MoE layers measure, on simulated models with the signature and without."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

from tests.analysis.moe_traces import HIDDEN, INNER, Key, Model, Recorder, as_trace, masked, record, recorded
from tests.builders import draw
from tracelens import analyze
from tracelens.devices import device
from tracelens.findings import DETECTORS, Detection, Detector, Outcome, RankContext
from tracelens.trace import Run, make_run

exposed_all_to_all = DETECTORS.get("exposed_all_to_all")
exposed_token_gather = DETECTORS.get("exposed_token_gather")
moe_blocking_calls = DETECTORS.get("moe_blocking_calls")
other_blocking_calls = DETECTORS.get("other_blocking_calls")
expert_loop = DETECTORS.get("expert_loop")
permute_unfused = DETECTORS.get("permute_unfused")
router_unfused = DETECTORS.get("router_unfused")
token_imbalance = DETECTORS.get("token_imbalance")


H200 = device("h200")
EP2 = {"ranks": 2, "exchange": "all_to_all"}
SLOW_NS = 20_000


def outcome(detector: Detector, recorder: Recorder, known: bool = True) -> Outcome:
    return detector.of_rank(RankContext(as_trace(recorder), H200 if known else None))


def detect(detector: Detector, recorder: Recorder, known: bool = True) -> Detection:
    result = outcome(detector, recorder, known)
    assert isinstance(result, Detection), result
    return result


def quantities(detection: Detection) -> dict[str, float]:
    return {name: value for name, value, _ in detection.quantities}


def spans(recorder: Recorder, stage: str) -> dict[Key, tuple[int, int]]:
    """From the first to the last kernel of a stage in each pass, ns."""
    times: dict[Key, list[int]] = defaultdict(list)
    for key, start, end in recorder.kernels:
        if key is not None and key[-1] == stage:
            times[key] += [start, end]
    return {key: (min(times_of_pass), max(times_of_pass)) for key, times_of_pass in times.items()}


# Expert loop

ROWS = [4, 2, 1, 1, 2, 2, 2, 2]


def looped(**changes: Any) -> Recorder:
    return record(Model(rows=lambda *_: ROWS, layers=3, **changes))


def test_a_loop_over_experts() -> None:
    recorder = looped(kernel_ns=SLOW_NS)
    result = detect(expert_loop, recorder)
    # Two products an expert: HIDDEN to 2 INNER and back. None is large, so the device's figure is the rate.
    flops = sum(2 * rows * (HIDDEN * 2 * INNER + INNER * HIDDEN) for rows in ROWS)
    moved = sum(2 * rows * (HIDDEN + 2 * INNER + INNER + HIDDEN) for rows in ROWS)
    rate = H200.max_achievable("bf16") or H200.peak("matrix", "bf16")
    assert rate
    grouped_ns = (flops / rate + moved / H200.hbm_bytes_per_s) * 1e9
    times = {key: end - start for key, (start, end) in spans(recorder, "experts").items()}
    forward = sum(ns for key, ns in times.items() if key[3] == "forward")
    gaps = sum(times.values()) - sum(ns for key, ns in recorder.truth.items() if key[-1] == "experts")
    assert quantities(result) == {
        "GEMMs per layer, forward": 16.0,
        "passes per step": 3.0,
        "time of the loops per step": sum(times.values()),
        "gaps between their kernels per step": gaps,
        "rate on the summed rows, forward": pytest.approx(3 * flops / forward * 1e9),
        "largest expert / mean": 2.0,
    }
    assert result.saving_ns == pytest.approx(sum(times.values()) - 3 * (1 + 2) * grouped_ns)
    assert result.where.total == sum(times.values())
    assert result.confidence == "medium"
    assert result.evidence.startswith("16 sequential expert GEMMs per MoE layer in 3 layers")


def test_a_loop_that_is_computed_again_counts_a_third_time() -> None:
    recorder = looped(recompute="reentrant")
    result = detect(expert_loop, recorder)
    assert quantities(result)["passes per step"] == 3.0
    total = sum(end - start for start, end in spans(recorder, "experts").values())
    assert quantities(result)["time of the loops per step"] == total
    assert {key[3] for key in spans(recorder, "experts")} == {"forward", "recompute", "backward"}


def test_a_loop_over_equal_experts_is_one_as_well() -> None:
    result = detect(expert_loop, record(Model(rows=lambda *_: [2] * 8)))
    assert quantities(result)["largest expert / mean"] == 1.0


def test_on_an_unknown_device_only_the_gaps_are_saved() -> None:
    recorder = looped()
    result = detect(expert_loop, recorder, known=False)
    assert result.saving_ns == quantities(result)["gaps between their kernels per step"]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Model(loop=False), "the expert GEMMs are grouped"),
        (Model(layers=0, dense="dd"), "no MoE layer"),
        (Model(ranks=4, exchange="all_to_all"), "no loop over experts"),
        (Model(shapes=False), "shapes of the expert GEMMs not recorded; use record_shapes=True"),
    ],
    ids=["grouped", "dense", "two experts", "no shapes"],
)
def test_without_a_loop(model: Model, reason: str) -> None:
    assert outcome(expert_loop, record(model)) == reason


# Exchange


def test_an_exchange_that_nothing_hides() -> None:
    result = detect(exposed_all_to_all, record(Model(**EP2)))
    # Dispatch and combine of 2 layers, forward and backward, 2 us each.
    assert result.saving_ns == result.where.total == 2 * 2 * 2 * 2000
    # 8 tokens to 2 experts each, 2 bytes an element. Of 2 from 8 experts on 2 ranks one rank has none with
    # C(4, 2) / C(8, 2) = 6 / 28.
    sent = 2 * 8 * 2 * HIDDEN * 2
    assert quantities(result) == {
        "all-to-all per step": 16_000,
        "exposed per step": 16_000,
        "overlap efficiency": 0.0,
        "overlap efficiency, bound": 1.0,
        "sent in forward dispatches per step": sent,
        "share after de-duplication": pytest.approx(2 * (1 - 6 / 28) / 2),
    }
    assert result.confidence == "low"


def test_kernels_of_deep_ep_are_an_exchange() -> None:
    recorder = record(Model(ranks=2, exchange="deep_ep"))
    result = detect(exposed_all_to_all, recorder)
    moved = sum(ns for key, ns in recorder.truth.items() if key[-1] in ("dispatch", "combine"))
    assert result.saving_ns == moved


def test_all_reduces_of_symmetric_memory_are_no_all_to_all() -> None:
    recorder = record(Model(ranks=2, exchange="multimem"))
    moved = sum(ns for key, ns in recorder.truth.items() if key[-1] in ("dispatch", "combine"))
    assert moved > 0
    assert isinstance(outcome(exposed_all_to_all, recorder), str)
    assert isinstance(outcome(exposed_token_gather, recorder), str)


def test_tokens_that_are_gathered_are_no_all_to_all() -> None:
    recorder = record(Model(ranks=2, exchange="gather"))
    assert isinstance(outcome(exposed_all_to_all, recorder), str)
    result = detect(exposed_token_gather, recorder)
    # Gather and scatter of 2 layers, forward and backward, 2 us each.
    assert result.saving_ns == result.where.total == 2 * 2 * 2 * 2000


@pytest.mark.parametrize("exchange", ["all_to_all", "deep_ep"])
def test_beside_an_all_to_all_a_gather_brings_no_tokens(exchange: Any) -> None:
    recorder = record(Model(ranks=2, exchange=exchange))
    assert outcome(exposed_token_gather, recorder) == "tokens are dispatched by all-to-all"


def test_without_an_exchange() -> None:
    assert outcome(exposed_all_to_all, record(Model())) == ("no all-to-all, in MoE layers or elsewhere")


HIDDEN_EXCHANGE = """
    op record_param_comms collective=all_to_allv | ---
    launch                                       |  a b
    s7 gemm                                      |   bbbbbb
    s9 ncclDevKernel_SendRecv                    |    aaaa
"""


def test_an_exchange_behind_computation() -> None:
    trace = draw(HIDDEN_EXCHANGE)
    assert (
        exposed_all_to_all.of_rank(RankContext(trace, H200)) == "the all-to-all is hidden under computation"
    )
    # Two columns later half of it has nothing beside it, and 4 of the 6 columns of the product are free.
    half = exposed_all_to_all.of_rank(
        RankContext(draw(HIDDEN_EXCHANGE.replace("   aaaa", "       aaaa")), H200)
    )
    assert isinstance(half, Detection)
    assert (half.saving_ns, half.where.total) == (3000, 3000)
    assert quantities(half)["overlap efficiency"] == 1 / 4
    assert quantities(half)["overlap efficiency, bound"] == 1.0


# Blocking calls


def idle_after_waits(recorder: Recorder) -> int:
    """From the end of the work that is waited for to the start of the next."""
    return sum(recorder.kernels[wait][1] - recorder.kernels[wait - 1][2] for wait in recorder.waits)


def test_blocking_calls_in_moe_layers() -> None:
    recorder = record(Model(**EP2, layers=3))
    result = detect(moe_blocking_calls, recorder)
    assert len(recorder.waits) == 6
    # In each layer nonzero, and the sizes that the exchange needs.
    expected = {"": 2.0, ", router": 0.0, ", dispatch": 1.0, ", permute": 1.0, ", experts": 0.0}
    outcome = quantities(result)
    assert {name: outcome[f"calls per layer and micro-batch{name}"] for name in expected} == expected
    assert result.saving_ns == result.where.total == idle_after_waits(recorder) > 0
    parts = ("GPU idle during these calls per step", "GPU idle until the host catches up per step")
    assert sum(outcome[name] for name in parts) == result.saving_ns
    assert result.confidence == "medium"
    assert "(1 in dispatch, 1 in permute; most in aten::" in result.evidence


def test_recompute_adds_blocking_calls_but_no_passes() -> None:
    result = detect(moe_blocking_calls, record(Model(**EP2, recompute="reentrant")))
    assert quantities(result)["calls per layer and micro-batch"] == 4.0


def test_without_blocking_calls() -> None:
    fused = record(Model(fused_permute=True))
    assert outcome(moe_blocking_calls, fused) == "no blocking call in MoE layers"
    assert outcome(moe_blocking_calls, record(Model(layers=0, dense="d"))) == "no MoE layer"
    reason = "no blocking call in the steps outside MoE layers"
    assert outcome(other_blocking_calls, record(Model(**EP2))) == reason


def test_blocking_calls_elsewhere() -> None:
    class Logged(Recorder):
        def norm(self) -> None:
            super().norm()
            if self.layer < 0:
                self.op("aten::item", waits=True)

    recorder = Logged(Model(fused_permute=True), 0)
    with recorder.around("user_annotation", "ProfilerStep#1"):
        recorder.backward(0, recorder.forward(0))
    assert outcome(moe_blocking_calls, recorder) == "no blocking call in MoE layers"
    result = detect(other_blocking_calls, recorder)
    assert quantities(result)["calls per step"] == len(recorder.waits) == 1
    assert result.saving_ns == idle_after_waits(recorder) > 0
    assert "most in aten::item" in result.evidence


# Permutation and router


def slow(**changes: Any) -> Recorder:
    return record(Model(kernel_ns=SLOW_NS, naming="scopes", **changes))


def test_a_permutation_of_many_kernels() -> None:
    result = detect(permute_unfused, slow())
    # Forward sort (2), nonzero with a copy to the host, index and index_add; backward index and index_add.
    spent = 2 * (6 + 2) * SLOW_NS
    # 8 tokens are read once and written twice, and the same back, in 4 passes; each needs two launches.
    least = 4 * 2 * (1 + 2) * 8 * HIDDEN * 2
    fused_ns = least / H200.hbm_bytes_per_s * 1e9 + 4 * 2 * 5000
    assert quantities(result) == {
        "kernels per layer, forward": 5.0,
        "time per step": spent,
        "useful bandwidth": pytest.approx(least / spent * 1e9),
    }
    assert result.saving_ns == pytest.approx(spent - fused_ns)
    assert result.where.total == spent
    assert result.confidence == "medium"


@pytest.mark.parametrize(("order", "backward"), [("F0 B0", True), ("F0", False)])
def test_the_time_of_a_stage_says_whether_the_backward_pass_is_in_it(order: str, backward: bool) -> None:
    recorder = record(Model(naming="scopes", kernel_ns=SLOW_NS, order=order))
    for detector in (permute_unfused, router_unfused):
        assert ("with those in backward" in detect(detector, recorder).evidence) == backward


def test_without_shapes_the_saving_is_a_bound() -> None:
    result = detect(permute_unfused, slow(shapes=False))
    assert result.confidence == "low"
    assert result.saving_ns == 2 * (6 + 2) * SLOW_NS - 4 * 2 * 5000


def test_a_fused_permutation() -> None:
    assert outcome(permute_unfused, slow(fused_permute=True)) == "3 kernels per layer in the permutation"
    assert outcome(permute_unfused, slow(layers=0, dense="d")) == "no MoE layer"


def test_a_router_of_many_kernels() -> None:
    result = detect(router_unfused, slow())
    # softmax, topk, scatter, sum, div, each forward and backward, where the gradient of the router's weight
    # is added up as well; one kernel of 5 us is left of each.
    spent = 2 * (5 + 6) * SLOW_NS
    assert quantities(result) == {
        "kernels per layer, forward": 5.0,
        "time per step": spent,
        "share of kernels under 10 µs": 0.0,
    }
    assert result.saving_ns == spent - 4 * 5000
    assert result.where.total == spent


def test_short_gaps_in_a_router_of_small_kernels_count() -> None:
    """Of decoding: the host launches an op in 2.2 us, and a kernel takes 0.5 of them."""
    recorder = record(Model(naming="scopes", kernel_ns=500, order="F0"))
    result = detect(router_unfused, recorder)
    routers: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for key, start, end in recorder.kernels:
        if key is not None and key[-1] == "router":
            routers[key].append((start, end))
    # All but the first, which is the product.
    spent = sum(kernels[-1][1] - kernels[1][0] for kernels in routers.values())
    assert spent > 2 * 5 * 500
    assert result.where.total == spent
    assert quantities(result)["share of kernels under 10 µs"] == 1.0


def test_a_fused_router() -> None:
    reason = "1 kernel per layer in the router in addition to its GEMM"
    assert outcome(router_unfused, slow(fused_router=True)) == reason
    assert outcome(router_unfused, slow(layers=0, dense="d")) == "no MoE layer"


# Imbalance


def imbalance(run: Run) -> Mapping[int, Detection] | str:
    return token_imbalance.of_run({name: analyze(run, name) for name in token_imbalance.needs})


def test_uneven_ranks() -> None:
    """Rank 1 has 4 rows more in each pass of both layers, at 2 us a row forward and 4 backward."""
    rows = {0: [2, 2, 2, 2], 1: [3, 3, 3, 3]}
    run, _ = recorded(Model(**EP2, rows=lambda rank, *_: rows[rank]))
    result = imbalance(run)
    assert isinstance(result, dict)
    assert list(result) == [0]
    lost = 2 * 4 * (2 + 4) * 1000
    assert result[0].saving_ns == result[0].where.total == lost
    assert quantities(result[0]) == {
        "busiest rank / mean, worst layer": 1.2,
        "waiting for slower experts per step": lost,
    }
    assert "computes 12 rows against a mean of 10 (120%)" in result[0].evidence
    assert "mostly rank 1" in result[0].evidence


def test_even_ranks() -> None:
    assert imbalance(recorded(Model(**EP2))[0]) == "balanced: the busiest rank has 100% of the mean"
    assert imbalance(recorded(Model())[0]) == "no expert-parallel ranks"


def test_uneven_ranks_whose_rows_are_not_known() -> None:
    class Quiet(Recorder):
        def collective(self, name: str, group: str, args: dict[str, Any]) -> None:
            super().collective(name, group, {key: args[key] for key in args if "split" not in key})

    traces = []
    for rank in (0, 1):
        model = Model(**EP2, shapes=False, rows=lambda rank, *_: [2 + rank] * 4)
        recorder = Quiet(model, rank)
        recorder.backward(0, recorder.forward(0))
        traces.append(as_trace(recorder))
    result = imbalance(make_run(traces))
    assert isinstance(result, dict)
    assert result[0].saving_ns == 2 * 4 * (2 + 4) * 1000
    assert "row counts are not recorded" in result[0].evidence
    assert result[0].confidence == "low"


def test_uneven_ranks_that_leave_out_rows() -> None:
    """By the time of the experts alone, which is not the same to the last percent."""
    result = imbalance(make_run([masked(0, 10_000), masked(1, 30_000)]))
    assert isinstance(result, dict)
    assert list(result) == [0]
    assert result[0].saving_ns == 2 * 4 * 20_000
    assert "150% of the mean; row counts are not recorded" in result[0].evidence
    even = imbalance(make_run([masked(0, 10_000), masked(1, 10_400)]))
    assert even == "balanced: the slowest rank's experts take 102% of the mean"
