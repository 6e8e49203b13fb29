"""Every toggle, alone and with every other, computes what the baseline on one rank computes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from itertools import combinations as subsets
from itertools import product
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

import torch.distributed as dist  # noqa: E402

from tests.workload.agree import BFLOAT16, FLOAT32  # noqa: E402
from tests.workload.combinations import Values, all_pairs, pairs_of, pairwise  # noqa: E402
from tests.workload.ranks import run_ranks  # noqa: E402
from tests.workload.whole import (  # noqa: E402
    Result,
    assert_same,
    clear_seed,
    make_model,
    one_rank,
    whole_gradients,
)
from tracelens.errors import TracelensError  # noqa: E402
from tracelens.planner.config import CHOICES, Config, Toggles, override, preset  # noqa: E402  # noqa: E402
from tracelens.workload.parallel import Groups, make_groups  # noqa: E402
from tracelens.workload.train import Trainer  # noqa: E402

# Experts, dense matrices and gradients all have both replicas and other parts here; two nodes of two ranks.
BASE = override(preset("tiny"), ["ranks=4", "tp=2", "ep=2", "node=2"])
# Act on the process before it trains, and are tested with what starts it.
BEFORE_TRAINING = {"numa", "kernarg_pool"}
# Computes other numbers, and is tested for how near they are.
OTHER_NUMBERS = {"fp8"}
NOT_ON_A_CPU: dict[str, set[object]] = {
    "dispatch": {"deepep"},
    "tp_overlap": {"symmetric"},
    "graph": {"step"},
}
SWITCHES: dict[str, tuple[object, ...]] = {
    "overlap_shared": (False, True),
    "recompute_layer_ids": ((), (0, 2), (0, 1, 2)),
}
VALUES: dict[str, tuple[object, ...]] = {
    name: tuple(value for value in values if value not in NOT_ON_A_CPU.get(name, ()))
    for name, values in (CHOICES | SWITCHES).items()
    if name not in BEFORE_TRAINING | OTHER_NUMBERS
}


def config_of(values: Values) -> Config:
    """The configuration with these toggles; raises TracelensError where they do not fit together."""
    return replace(BASE, toggles=Toggles(**values))  # type: ignore[arg-type]


def fits(values: Values) -> bool:
    """Whether the workload allows this combination."""
    try:
        config_of(values)
    except TracelensError:
        return False
    return True


def with_needs(name: str, value: object) -> Values:
    """A value, and as few others away from their defaults as it takes for it to be allowed."""
    others = [(other, choice) for other, values in VALUES.items() if other != name for choice in values[1:]]
    for count in range(len(VALUES)):
        for chosen in subsets(others, count):
            values = dict(chosen) | {name: value}
            if len(values) > count and fits(values):
                return values
    raise AssertionError(f"nothing makes {name}={value} fit")


@cache
def combinations(pairs: bool) -> list[Values]:
    """Each value alone (with what it needs), or the combinations that cover all pairs."""
    if pairs:
        return [{}, *pairwise(VALUES, fits)]
    return [{}, *(with_needs(name, value) for name, values in VALUES.items() for value in values[1:])]


def test_every_toggle_is_in_the_set_or_said_to_be_elsewhere() -> None:
    assert set(VALUES) | BEFORE_TRAINING | OTHER_NUMBERS == {field.name for field in fields(Toggles)}
    for name, values in VALUES.items():
        assert getattr(Toggles(), name) == values[0], "the default comes first"
        assert set(values) | NOT_ON_A_CPU.get(name, set()) == set((CHOICES | SWITCHES)[name])


def test_a_value_alone_comes_with_what_it_needs_and_no_more() -> None:
    assert with_needs("permute", "fused") == {"permute": "fused"}
    assert with_needs("sync_free", 2) == {"experts": "grouped", "sync_free": 2}
    assert with_needs("graph", "step") == {"experts": "grouped", "sync_free": 3, "graph": "step"}


def test_the_set_holds_every_pair_that_fits() -> None:
    covered = set().union(*(pairs_of(values) for values in pairwise(VALUES, fits)))
    left = {tuple(sorted(pair, key=str)) for pair in all_pairs(VALUES) - covered}
    # What remains is what the workload refuses: each of these pairs, however it is completed.
    refused = {
        (("experts", experts), ("sync_free", sync_free))
        for experts, sync_free in product(("loop", "multistream"), (2, 3))
    }
    assert left == refused


def test_a_covering_set_is_small_and_always_the_same() -> None:
    chosen = pairwise(VALUES, fits)
    assert chosen == pairwise(VALUES, fits)
    assert all(values.keys() == VALUES.keys() for values in chosen)
    largest = sorted((len(values) for values in VALUES.values()), reverse=True)[:2]
    assert len(chosen) < 2 * largest[0] * largest[1]


def test_a_covering_set_respects_what_does_not_fit() -> None:
    """Of two toggles with two values and one forbidden pair: three combinations remain."""
    chosen = pairwise({"a": (0, 1), "b": (0, 1)}, lambda values: values != {"a": 1, "b": 1})
    assert sorted(tuple(values.items()) for values in chosen) == [
        (("a", 0), ("b", 0)), (("a", 0), ("b", 1)), (("a", 1), ("b", 0)),
    ]  # fmt: skip


def train(config: Config, groups: Groups, seed: int, device: str) -> Result:
    """Loss and gradients of a step as the trainer makes it, the sum over replicas included."""
    trainer = Trainer(config, groups, torch.device(device))
    (chunk,) = trainer.schedule.chunks.values()
    chunk.load_state_dict(make_model(config, groups, seed).state_dict())
    loss = trainer.schedule.step(*(part.to(device) for part in trainer.batches.next_step()))
    trainer.optimizer.step()
    for buffer in trainer.optimizer.buffers:
        # A rank has the sums of its share alone; whole_gradients adds up what the replicas have.
        share_n = buffer.grad_n.clone()
        buffer.grad_N.zero_()
        buffer.grad_n.copy_(share_n)
    if groups.stage is not None:
        dist.all_reduce(loss, group=groups.stage)
    gradients = {name: gradient.cpu() for name, gradient in whole_gradients(chunk, groups).items()}
    return Result(loss.detach().cpu(), gradients)


def of_this_seed(config: Config, seed: int) -> Config:
    return replace(config, training=replace(config.training, seed=seed))


def on_rank(rank: int, base: Config, pairs: bool, seed: int, device: str) -> list[Result | None]:
    """What came out of each combination; the first rank alone tells, it has whole gradients."""
    groups, results = make_groups(base.layout, rank), []
    for values in combinations(pairs):
        config = replace(base, toggles=Toggles(**values))  # type: ignore[arg-type]
        result = train(of_this_seed(config, seed), groups, seed, device)
        results.append(result if rank == 0 else None)
    return results


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def compare(results: list[Result], expected: Result, pairs: bool, seed: int, tolerance: float) -> None:
    """Every combination against the baseline."""
    wrong = {}
    for values, result in zip(combinations(pairs), results, strict=True):
        try:
            assert_same(result, expected, seed, tolerance)
        except AssertionError as error:
            wrong[str(Toggles(**values).changed())] = str(error)
    assert not wrong, "\n".join(f"{name}: {error}" for name, error in wrong.items())


EACH = pytest.mark.parametrize("pairs", [False, pytest.param(True, marks=pytest.mark.rare)])


@EACH
def test_all_combinations_compute_what_the_baseline_on_one_rank_does(tmp_path: Path, pairs: bool) -> None:
    seed = clear_seed(BASE)
    alone = of_this_seed(one_rank(BASE), seed)
    expected = train(alone, Groups(alone.layout), seed, "cpu")
    results = run_ranks(4, on_rank, BASE, pairs, seed, "cpu", folder=tmp_path)[0]
    compare(results, expected, pairs, seed, FLOAT32)


@pytest.mark.skipif(torch.cuda.device_count() < 4, reason="needs 4 GPUs")
@EACH
def test_all_combinations_do_so_in_bfloat16_on_gpus(tmp_path: Path, pairs: bool) -> None:
    # The experts are given: rounding may choose others, and no comparison of gradients would be left. Which
    # ones depends on the layout, so the baseline is that of the same ranks, the first combination.
    base = override(BASE, ["dtype=bfloat16", "routing=balanced", "hidden=256"])
    seed = int(torch.seed() % 2**31)
    results = run_ranks(4, on_rank, base, pairs, seed, "cuda", folder=tmp_path, device="cuda")[0]
    compare(results, results[0], pairs, seed, BFLOAT16)
