"""Kernels that are fused or not repeated. A column is 1 us unless a test says more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import tracelens
from tests.analysis.moe_traces import Model, recorded
from tests.builders import draw_run
from tests.opportunities.test_loss import COLUMN, TORCH, drawing
from tests.what_if.replays import assert_identity, projected, run_of
from tracelens.analysis.fusable import Chains, permutation_chains, router_chains
from tracelens.analysis.moe import PERMUTATION, ROUTER, regions
from tracelens.devices import device
from tracelens.errors import TracelensError
from tracelens.opportunities.recompute import HOOKS_SHARE, recompute_work
from tracelens.trace import Run, Trace, enclosing_op
from tracelens.what_if import Edge, Projector, ScenarioContext, parse_request, whatif
from tracelens.what_if.graph import build

H100 = device("h100")
TRUTH = Path(__file__).parents[1] / "conformance" / "truth"


def reason(run: Run, scenario: str) -> str:
    """Why a scenario is not applicable."""
    return next(
        skip.reason for skip in whatif(run, [scenario]).skips if skip.subject == f"scenario {scenario}"
    )


def test_a_fused_loss_takes_what_memory_allows() -> None:
    """Logits of 1000 x 8192 in BF16, read twice and their gradient written once, at 3.35 TB/s.

    7 kernels in 240 us become one chain, since nothing else is launched between forward and backward.
    """
    run = draw_run(drawing(TORCH.replace("-" * 32, "-" * 11)), ns_per_char=COLUMN)
    assert_identity(run)
    result = whatif(run, ["fused_loss"], device="h100")
    fused_us = 3 * 1000 * 8192 * 2 / H100.hbm_bytes_per_s * 1e6
    base, after = result.meta["base_ns"] / 1e3, float(result["whatif"]["projected_ns"][0]) / 1e3
    (text,) = result["assumptions"]["assumption"]
    assert text.startswith("1 chains of kernels become one kernel each")
    assert "6 launches" in text
    # The GPU sets the pace here: what is launched before the loss and behind it stays, 20 and 20 us.
    assert base - after == pytest.approx(240 - fused_us, abs=1)


def test_without_a_vocabulary_there_is_no_loss_to_fuse() -> None:
    run = run_of("step 0 | ----\nlaunch |  a\ns7 one |   aa")
    assert "no cross-entropy loss" in reason(run, "fused_loss")
    assert "router" in reason(run, "fused_router")
    assert "permutation" in reason(run, "fused_permute")


@pytest.mark.parametrize(
    ("scenario", "find", "stage"),
    [("fused_router", router_chains, ROUTER), ("fused_permute", permutation_chains, PERMUTATION)],
)
def test_stages_of_layers_become_one_kernel_a_chain(
    scenario: str, find: Callable[[Trace, None], Chains], stage: int
) -> None:
    """What goes is the work of the stage alone, and each chain is as long as one of its kernels."""
    run, _ = recorded(Model(loop=False, sizes_to_host=False))
    (trace,) = run.traces
    chains = find(trace, None)
    layers = trace.once(regions)
    assert set(layers.stage[chains.rows].tolist()) == {stage}
    longest = np.zeros(len(chains.fused_ns), dtype=np.int64)
    np.maximum.at(longest, chains.chain, trace.work.dur[chains.rows])
    assert chains.fused_ns.tolist() == longest.tolist()
    assert projected(run, scenario) < projected(run, "identity")


# The backward thread repeats mm (b) and softmax (c) before the gradient (d): 7 and 4 columns.
RECOMPUTE = """
    step 1                                                             | -------------------
    op aten::mm seq=1                                                  |  --
    op autograd::engine::evaluate_function: CheckpointFunctionBackward tid=2 |      --------------
    op CheckpointFunctionBackward seq=1 fwd=1 tid=2                    |      --------------
    op aten::mm tid=2                                                  |       ---
    op aten::softmax tid=2                                             |          --
    op autograd::engine::evaluate_function: MmBackward0 tid=2          |             -----
    op aten::mm tid=2                                                  |              ---
    launch                                                             |  a
    launch tid=2                                                       |        b  c   d
    s7 gemm                                                            |   aaa    bbbbbbb       ddddddd
    s7 softmax                                                         |                    cccc
"""


def test_a_layer_that_is_not_recomputed() -> None:
    """d is launched 4 columns after c. The backward thread begins at 7, when c is now: d is launched at 11.

    The median latency of its thread's launches is 1.5, and d takes 7 columns.
    """
    run = run_of(RECOMPUTE)
    assert_identity(run)
    assert projected(run, "identity") == 30
    assert projected(run, "no_recompute") == 11 + 1.5 + 7
    assert projected(run, "no_recompute=0") == projected(run, "no_recompute")
    text = whatif(run, ["no_recompute"])["assumptions"]["assumption"][0]
    assert text.startswith(
        "2 kernels (11.0 µs over all ranks) and 2 launches are not repeated in 1 of 1 layers"
    )
    assert "none of layers 3" in reason(run, "no_recompute=3")


def test_layers_are_numbers() -> None:
    with pytest.raises(TracelensError, match="write layers as"):
        whatif(run_of(RECOMPUTE), ["no_recompute=first"])
    assert "recomputes nothing" in reason(run_of("step 0 | ----\nlaunch |  a\ns7 k |   aa"), "no_recompute")


@pytest.mark.parametrize("recompute", ["reentrant", "hooks"])
@pytest.mark.parametrize("order", ["F0 B0 F1 B1", "F0 F1 B0 B1"])
def test_layers_are_counted_in_each_backward_pass(
    recompute: Literal["reentrant", "hooks"], order: str
) -> None:
    """Two backward passes through three layers, also where one directly follows the other."""
    run, _ = recorded(Model(layers=3, recompute=recompute, order=order, loop=False, sizes_to_host=False))
    part = recompute_work(run.traces[0], None)
    assert part.passes == 2
    assert np.bincount(part.layer).tolist() == [len(part.rows) // 3] * 3
    assert (
        projected(run, "no_recompute=0-2")
        == projected(run, "no_recompute")
        < projected(run, "no_recompute=1")
    )


def test_without_recompute_no_hooks_hand_out_what_was_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three layers, one after the other: their other calls save what a checkpoint costs, at most 0.8.

    A checkpoint that re-enters autograd has no hooks.
    """
    for recompute, hooked, checkpoint_ns in (
        ("reentrant", False, 10_000),
        ("hooks", True, 10_000),
        ("hooks", True, 1e6),
    ):
        monkeypatch.setattr("tracelens.opportunities.recompute.CHECKPOINT_NS", checkpoint_ns)
        run, _ = recorded(
            Model(layers=3, recompute=recompute, order="F0 B0", loop=False, sizes_to_host=False)
        )
        part = recompute_work(run.traces[0], None)
        assert bool(len(part.hooked)) is hooked
        assert not set(part.hooked.tolist()) & set(part.calls.tolist())
        built = build(run)
        projector = Projector(built, ScenarioContext(built, run.traces))
        edit = projector.project(parse_request("no_recompute=1")).edit
        graph = built.graph
        mine = np.isin(graph.event[graph.dst], part.hooked[part.hooked_layer == 1])
        mine &= (graph.edge == Edge.HOST) & (graph.lag > 0)
        other = (graph.edge == Edge.HOST) & ~mine & ~np.isin(graph.event[graph.dst], part.calls)
        assert mine.any() is np.bool_(hooked)
        own_ns = int(graph.lag[mine].sum())
        cost_ns = checkpoint_ns / 0.57 + HOOKS_SHARE * own_ns  # with the profiler it takes that much longer
        share = max(1 - cost_ns / max(own_ns, 1), 0.2)
        assert (share > 0.2) is (hooked and checkpoint_ns < 1e6)
        assert edit.lag[mine] == pytest.approx(graph.lag[mine] * share, abs=1)
        assert (edit.lag[other] == graph.lag[other]).all()


@pytest.mark.parametrize(
    "name", ["fifth/starcoder.recompute", "fifth/mellum.recompute", "sixth/cohere.recompute"]
)
def test_forward_calls_of_checkpointed_layers_are_those_that_they_repeat(name: str) -> None:
    """By the names of ops around them, layer by layer; recorded on an H100."""
    trace = tracelens.load(TRUTH / name).traces[0]
    part, events = recompute_work(trace, None), trace.arrays
    op = trace.once(enclosing_op)
    main = events.tid[events.named(lambda text: text.startswith("ProfilerStep"))][0]
    for layer in range(int(part.layer.max()) + 1):
        hooked = part.hooked[(part.hooked_layer == layer) & (events.tid[part.hooked] == main)]
        repeated = part.calls[part.call_layer == layer]
        names = [Counter(events.name[op[rows]].tolist()) for rows in (hooked, repeated)]
        assert (names[0] & names[1]).total() > 0.95 * names[1].total()
        assert len(hooked) == len(repeated)
