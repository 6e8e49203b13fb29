"""A pipeline gives the loss and the gradients of one rank that does all the work."""

from __future__ import annotations

import faulthandler
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the workload needs torch")

import torch

from tests.workload.ranks import TIMEOUT_S, run_ranks
from tests.workload.schedules import (
    SMALL,
    baseline,
    batch,
    beside_one_rank,
    filled_schedule,
    run_schedule,
)
from tests.workload.whole import Result, assert_same, clear_seed
from tracelens.errors import TracelensError
from tracelens.planner.config import Config, override, preset
from tracelens.workload.parallel import Groups, make_groups
from tracelens.workload.pipeline import make_schedule

PIPELINES = {
    "1f1b": ("ep=2",),
    "interleaved": ("ep=2", "vpp=2", "layers=4"),
    "uneven": ("ep=2", "pp_layout=1,2"),
    "embedding alone": ("ep=2", "pp_layout=0,3"),
    "head alone": ("ep=2", "pp_layout=3,0"),
    "chunks without layers": ("ep=1", "vpp=2", "pp_layout=0,0,3,0"),
    "four stages": ("pp=4", "pp_layout=1,0,1,1", "micro_batches=5"),
    "recomputed": ("ep=2", "recompute_layer_ids=0,2", "dispatch=dedup"),
    "tensor parallel": ("tp=2", "ep=2"),
}


def config_of(*assignments: str) -> Config:
    return override(preset("tiny"), (*SMALL, "ranks=4", "pp=2", *assignments))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Result, Result, int]]:
    """By pipeline: what its ranks found, what one rank finds, and the seed."""
    configs = {name: config_of(*assignments) for name, assignments in PIPELINES.items()}
    return beside_one_rank(configs, tmp_path_factory.mktemp("pipeline"))


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_agrees_with_one_rank(name: str, results: dict[str, tuple[Result, Result, int]]) -> None:
    found, expected, seed = results[name]
    assert_same(found, expected, seed)


def test_micro_batches_in_turn_agree_with_plain_training() -> None:
    config = override(preset("tiny"), SMALL)
    seed = clear_seed(config)
    assert_same(run_schedule(config, Groups(config.layout), seed), baseline(config, seed), seed)


def scopes_of(rank: int, config: Config, seed: int) -> tuple[list[str], list[int]]:
    """Names of micro-batch scopes in order of time in one step, and the chunks of a rank."""
    faulthandler.dump_traceback_later(TIMEOUT_S)
    schedule = filled_schedule(config, make_groups(config.layout, rank), seed)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        schedule.step(*batch(config, make_groups(config.layout, rank), seed))
    events = sorted(profiler.events(), key=lambda event: event.time_range.start)
    faulthandler.cancel_dump_traceback_later()
    return [event.name for event in events if event.name.startswith("mb")], list(schedule.chunks)


def test_each_forward_and_backward_has_a_scope(tmp_path: Path) -> None:
    config = config_of("ranks=2", "vpp=2", "layers=4", "micro_batches=2")
    (first, chunks), (second, others) = run_ranks(2, scopes_of, config, 0, folder=tmp_path)
    assert (chunks, others) == ([0, 2], [1, 3])
    assert first == [
        "mb0.chunk0.F", "mb1.chunk0.F", "mb0.chunk2.F", "mb1.chunk2.F",
        "mb0.chunk2.B", "mb1.chunk2.B", "mb0.chunk0.B", "mb1.chunk0.B",
    ]  # fmt: skip
    assert second == [
        "mb0.chunk1.F", "mb1.chunk1.F", "mb0.chunk3.F", "mb0.chunk3.B",
        "mb1.chunk3.F", "mb1.chunk3.B", "mb0.chunk1.B", "mb1.chunk1.B",
    ]  # fmt: skip


def test_the_loss_and_its_backward_are_scopes_inside_those_of_the_micro_batch() -> None:
    config = override(preset("tiny"), (*SMALL, "micro_batches=1"))
    schedule = filled_schedule(config, Groups(config.layout), 0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        schedule.step(*batch(config, Groups(config.layout), 0))
    when = {event.name: event.time_range for event in profiler.events()}
    for outer, inner in (("mb0.chunk0.F", "loss"), ("mb0.chunk0.B", "loss.B")):
        assert when[outer].start <= when[inner].start < when[inner].end <= when[outer].end


def test_chunks_are_made_in_the_dtype_of_the_run() -> None:
    config = override(preset("tiny"), (*SMALL, "dtype=bfloat16"))
    schedule = make_schedule(config, Groups(config.layout), torch.device("cpu"))
    assert {parameter.dtype for parameter in schedule.chunks[0].parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() == torch.float32


def refused(rank: int, config: Config) -> str:
    """What the first stage says when its last backward, for which no other stage waits, cannot run."""
    groups = make_groups(config.layout, rank)
    schedule, calls = filled_schedule(config, groups, 0), []

    def refuse(_: torch.Tensor) -> None:
        calls.append(len(calls))
        if len(calls) == config.training.micro_batches:
            raise TracelensError("no such kernel")

    if 0 in schedule.chunks:
        schedule.chunks[0].embedding.register_hook(refuse)
    try:
        schedule.step(*batch(config, groups, 0))
    except TracelensError as error:
        return str(error)
    return "went well"


def test_what_a_model_refuses_is_said_in_its_own_words(tmp_path: Path) -> None:
    assert run_ranks(2, refused, config_of("ranks=2"), folder=tmp_path) == ["no such kernel", "went well"]


def test_an_interleaved_pipeline_refuses_micro_batches_that_make_no_whole_rounds() -> None:
    with pytest.raises(TracelensError, match="micro_batches"):
        config_of("vpp=2", "layers=4", "micro_batches=5")
