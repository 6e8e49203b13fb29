"""The same orders as torch's own schedules, where torch is there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tracelens.planner.pipeline import make_schedule

torch = pytest.importorskip("torch", reason="the schedules of torch.distributed.pipelining need torch")
schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

_NAMES = {
    "FORWARD": "forward",
    "FULL_BACKWARD": "backward",
    "BACKWARD_INPUT": "input",
    "BACKWARD_WEIGHT": "weight",
}
Order = list[tuple[str, int, int]]


def theirs(name: str, **numbers: int) -> Order:
    """Phase, chunk of the model and micro-batch of each pass of a rank."""
    make = getattr(getattr(schedules, name, None), "_calculate_single_rank_operations", None)
    if make is None:
        pytest.skip(f"this torch makes the order of {name} in another way")
    actions = make(SimpleNamespace(**numbers), numbers["rank"])
    return [
        (_NAMES[action.computation_type.name], action.stage_index, action.microbatch_index)
        for action in actions
        if action is not None
    ]


def ours(name: str, rank: int, *numbers: int) -> Order:
    schedule = make_schedule(name, *numbers)
    slots = schedule.orders[rank]
    return [(one.phase, schedule.positions[rank][one.chunk], one.micro_batch) for (one,) in slots]


@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("rounds", [1, 3])
def test_interleaved_1f1b(stages: int, chunks: int, rounds: int) -> None:
    for rank in range(stages):
        numbers = {"pp_group_size": stages, "n_local_stages": chunks, "microbatches_per_round": stages}
        order = theirs("ScheduleInterleaved1F1B", rank=rank, _n_microbatches=rounds * stages, **numbers)
        assert order == ours("interleaved", rank, stages, rounds * stages, chunks)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("micro_batches", [1, 3, 8, 17])
def test_zb_v(stages: int, micro_batches: int) -> None:
    for rank in range(stages):
        numbers = {"pp_group_size": stages, "_num_stages": 2 * stages, "num_stages": 2 * stages}
        order = theirs("ScheduleZBVZeroBubble", rank=rank, _n_microbatches=micro_batches, **numbers)
        assert order == ours("zb-v", rank, stages, micro_batches, 2)
