"""Training steps: every layout trains like one rank, and every rank sees its part of the same data."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the workload needs torch")

import torch

from tests.workload.ranks import run_ranks
from tracelens.planner.config import Config, Layout, override, preset
from tracelens.workload.parallel import Groups, make_groups
from tracelens.workload.train import Batches, StepMeasurements, Trainer

STEPS = 3
# Large enough for the updates to show in the losses of the next steps.
BASE = ["learning_rate=0.003", "layers=4"]
LAYOUTS = {
    "ep4": ["ranks=4"],
    "ep2 x edp2": ["ranks=4", "ep=2"],
    "ep1": ["ranks=4", "ep=1"],
    "tp2": ["ranks=4", "tp=2"],
    "cp2": ["ranks=4", "cp=2"],
    "tp2 x cp2": ["ranks=4", "tp=2", "cp=2"],
    "pp2": ["ranks=4", "pp=2"],
    "pp2 x vpp2": ["ranks=4", "pp=2", "vpp=2"],
    "pp2 uneven": ["ranks=4", "pp=2", "pp_layout=3,1"],
    "pp2 x tp2": ["ranks=4", "pp=2", "tp=2", "ep=1"],
    "hierarchical": ["ranks=4", "ep=2", "node=2", "grad_reduce=hierarchical"],
    "all-reduce": ["ranks=4", "ep=2", "grad_reduce=all_reduce"],
}


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def losses_of(config: Config, groups: Groups) -> list[float]:
    trainer = Trainer(config, groups, torch.device("cpu"))
    repeat(trainer)
    return [trainer.step() for _ in range(STEPS)]


def repeat(trainer: Trainer) -> None:
    """Train on the first batch alone."""
    batch = trainer.batches.next_step()
    trainer.batches.next_step = lambda: batch  # type: ignore[method-assign]


def all_layouts(rank: int) -> dict[str, list[float]]:
    configs = {name: override(preset("tiny"), [*BASE, *sets]) for name, sets in LAYOUTS.items()}
    return {name: losses_of(config, make_groups(config.layout, rank)) for name, config in configs.items()}


def test_every_layout_trains_like_one_rank(tmp_path: Path) -> None:
    found = run_ranks(4, all_layouts, folder=tmp_path)
    for name, sets in LAYOUTS.items():
        layout = override(preset("tiny"), [*BASE, *sets]).layout
        sequences = preset("tiny").training.micro_batch * layout.dp
        alone = override(preset("tiny"), [*BASE, f"micro_batch={sequences}"])
        expected = losses_of(alone, Groups(Layout()))
        assert expected[-1] != pytest.approx(expected[0], rel=1e-2)
        for rank, one in enumerate(found):
            assert one[name] == pytest.approx(expected, rel=1e-5), (name, rank)


def test_training_on_one_batch_learns_it() -> None:
    config = override(preset("tiny"), ["learning_rate=0.01"])
    trainer = Trainer(config, Groups(config.layout), torch.device("cpu"))
    repeat(trainer)
    losses = [trainer.step() for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]


def test_ranks_share_the_global_batch_between_them() -> None:
    config = override(preset("tiny"), ["ranks=8", "cp=2", "tp=2"])
    parts = {
        rank: Batches(config, Groups(config.layout, rank), pin=False).next_step()
        for rank in range(config.layout.ranks)
    }
    alone = override(preset("tiny"), ["micro_batch=4"])
    tokens, targets = Batches(alone, Groups(alone.layout), pin=False).next_step()
    for rank, (token_MSB, target_MSB) in parts.items():
        place = config.layout.coordinates(rank)
        first = (place["cp"] * 2 + place["tp"]) * 8
        of_rank = (slice(None), slice(first, first + 8), slice(place["dp"] * 2, place["dp"] * 2 + 2))
        assert torch.equal(token_MSB, tokens[of_rank])
        assert torch.equal(target_MSB, targets[of_rank])
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_steps_have_fresh_data_and_the_same_seed_the_same() -> None:
    config = preset("tiny")
    one, two = (Batches(config, Groups(config.layout), pin=False) for _ in range(2))
    first = one.next_step()[0]
    assert torch.equal(first, two.next_step()[0])
    assert not torch.equal(first, one.next_step()[0])


def test_manual_collection_happens_between_steps_only() -> None:
    config = override(preset("tiny"), ["gc=manual"])
    trainer = Trainer(config, Groups(config.layout), torch.device("cpu"))
    assert not gc.isenabled()
    trainer.step()
    automatic = preset("tiny")
    Trainer(automatic, Groups(automatic.layout), torch.device("cpu"))
    assert gc.isenabled()


def test_measured_keeps_a_time_and_a_loss_a_step() -> None:
    config = preset("tiny")
    trainer, measured = Trainer(config, Groups(config.layout), torch.device("cpu")), StepMeasurements()
    measured.step(trainer)
    measured.step(trainer)
    assert len(measured.loss) == len(measured.step_ms) == 2
    assert min(measured.step_ms) > 0
    assert measured.peak_bytes == 0
