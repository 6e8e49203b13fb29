"""The simulated caching allocator: its rules, and its sums against those of the closed form."""

from __future__ import annotations

import pytest

from tracelens.errors import TracelensError
from tracelens.planner.config import Config, override, preset
from tracelens.planner.memory import (
    MIB,
    Allocator,
    Assumptions,
    OutOfMemory,
    Stages,
    memory,
    schedule,
    stages,
)

MEGATRON = Assumptions(framework="megatron")


def test_segments_and_rounding() -> None:
    allocator = Allocator()
    allocator.malloc(1)
    assert (allocator.allocated, allocator.reserved) == (512, 2 * MIB)
    allocator.malloc(MIB)
    assert allocator.reserved == 2 * MIB
    allocator.malloc(MIB + 1)
    assert allocator.reserved == 22 * MIB
    allocator.malloc(10 * MIB)
    assert allocator.reserved == 22 * MIB
    allocator.malloc(33 * MIB)
    assert allocator.reserved == (22 + 34) * MIB


def test_a_freed_block_is_used_again_and_split() -> None:
    allocator = Allocator()
    block = allocator.malloc(64 * MIB)
    allocator.free(block)
    first, second = allocator.malloc(40 * MIB), allocator.malloc(24 * MIB)
    assert allocator.reserved == 64 * MIB
    # Neighbors merge in either order.
    allocator.free(first)
    allocator.free(second)
    allocator.malloc(64 * MIB)
    assert allocator.reserved == 64 * MIB


def test_the_smallest_block_that_is_large_enough() -> None:
    allocator = Allocator()
    blocks = [allocator.malloc(size * MIB) for size in (100, 30, 50)]
    for block in blocks:
        allocator.free(block)
    allocator.malloc(40 * MIB)
    allocator.malloc(100 * MIB)
    assert allocator.reserved == 180 * MIB


def test_a_remainder_of_a_mebibyte_stays_with_its_block() -> None:
    allocator = Allocator()
    allocator.free(allocator.malloc(40 * MIB))
    allocator.malloc(39 * MIB)
    assert allocator.allocated == 40 * MIB


def test_without_room_free_segments_return() -> None:
    allocator = Allocator(100 * MIB)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(80 * MIB)
    assert (allocator.reserved, allocator.flushes) == (80 * MIB, 1)
    assert allocator.most_reserved == 80 * MIB
    with pytest.raises(OutOfMemory):
        allocator.malloc(40 * MIB)


def test_a_pipeline_takes_turns() -> None:
    F, B = True, False
    # The first of 2 stages, 3 micro-batches.
    assert list(schedule(3, 2, 1, 2)) == [(F, 0), (F, 0), (B, 0), (F, 0), (B, 0), (B, 0)]
    # 2 chunks: 2 micro-batches through the first, then through the second; backwards from the second on.
    order = list(schedule(4, 3, 2, 2))
    assert [chunk for is_forward, chunk in order if is_forward] == [0, 0, 1, 1]
    assert [chunk for is_forward, chunk in order if not is_forward] == [1, 1, 0, 0]


RUNS = {
    "ep": "ranks=8 ep=8 micro_batch=2 micro_batches=3",
    "pp": "ranks=8 pp=4 ep=2 micro_batches=8",
    "vpp": "ranks=4 pp=2 vpp=2 ep=2 layers=8 micro_batches=4",
    "fused": "ranks=8 ep=8 experts=grouped permute=fused router=fused loss=fused micro_batches=2",
    "deepep": "ranks=8 ep=8 dispatch=deepep experts=grouped sync_free=1 micro_batches=2",
    "recompute": "ranks=8 ep=8 recompute_layer_ids=1,2 micro_batches=2",
}


def run(fields: str, more: str = "") -> Config:
    return override(preset("deepseek_v2_lite"), f"{fields} {more}".split())


@pytest.mark.parametrize("fields", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("recompute", ["layers", "moe", "moe_act", "mla_up_proj"])
def test_its_tensors_are_those_of_the_closed_form(fields: str, recompute: str) -> None:
    """Two sums: event by event over two steps, and blocks times micro-batches in flight."""
    if recompute != "layers" and "recompute" in fields:
        pytest.skip("both set the recomputation")
    config = run(fields, "routing=balanced")
    ranks = Stages(config, Assumptions(framework="megatron", recompute=recompute))  # type: ignore[arg-type]
    for pp_rank in {0, config.layout.pp - 1}:
        stage = ranks.stage(pp_rank)
        assert ranks.simulated(stage).most_allocated == pytest.approx(stage.total, rel=0.01)


def test_random_routing_fragments_more_than_balanced_routing() -> None:
    fields = RUNS["deepep"].replace("micro_batches=2", "micro_batches=8 micro_batch=12 loss=fused")
    runs = [run(fields, f"routing={name}") for name in ("learned", "balanced")]
    random, balanced = (stages(config, MEGATRON)[0] for config in runs)
    assert random.held["allocator"] > 1.5 * balanced.held["allocator"]


@pytest.mark.parametrize("fields", ["dense_layers=3 experts_count=1 top_k=1", "experts_count=4 top_k=4"])
def test_without_a_choice_of_experts_no_rank_gets_more_tokens(fields: str) -> None:
    """A dense model, and one whose tokens all go to every expert."""
    runs = [
        override(preset("tiny"), [*fields.split(), "ranks=2", f"routing={name}"])
        for name in ("learned", "balanced")
    ]
    learned, balanced = (stages(config, MEGATRON) for config in runs)
    assert learned == balanced


def test_the_idle_memory_is_a_component_and_counts() -> None:
    stage = stages(run(RUNS["ep"]), MEGATRON)[0]
    assert stage.total == sum(stage.held.values())
    assert stage.held["allocator"] == stage.total - max(stage.moments.values())


@pytest.mark.parametrize(
    "toggles", ["dispatch=dedup", "dispatch=allgather", "experts=multistream", "fp8=experts experts=grouped"]
)
def test_what_megatron_does_not_have(toggles: str) -> None:
    first, *_ = toggles.split()
    with pytest.raises(TracelensError, match=f"framework=megatron does not support {first}"):
        memory(run(RUNS["ep"], toggles), MEGATRON)


def test_overlapped_all_to_alls_are_not_simulated() -> None:
    config = run("ranks=4 ep=4 overlap_exchange=1f1b micro_batches=4")
    result = memory(config, MEGATRON)
    assert "memory that the allocator reserves" in [skip.subject for skip in result.skips]
    assert "allocator" not in stages(config, MEGATRON)[0].held
