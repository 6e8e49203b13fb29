"""Parameters of every bundled model on every kind of rank, against what torch counts on the meta device."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.effort import effort
from tracelens.planner.config import MODELS, Config, Layout, preset
from tracelens.planner.expected import parameters, totals

torch = pytest.importorskip("torch", reason="the workload needs torch")

from tracelens.workload.model import Transformer  # noqa: E402
from tracelens.workload.parallel import Groups  # noqa: E402

SMALL = [
    Layout(),
    Layout(ranks=2, pp=2),
    Layout(ranks=4, ep=2),
    Layout(ranks=8, tp=2, cp=2, ep=8),
    Layout(ranks=8, pp=2, cp=2, tp=2, ep=4),
]
LARGE = [
    *SMALL,
    Layout(ranks=8, pp=2, vpp=2, tp=4, ep=4),
    Layout(ranks=64, pp=4, vpp=3, ep=16),
    Layout(ranks=128, pp=8, tp=2, cp=2, ep=8),
    Layout(ranks=64, pp=2, tp=8, ep=32),
]
# The layouts of AMD's memory projection for 1T and 2T.
BRIEF = [
    Layout(ranks=768, pp=pp, ep=ep, vpp=vpp, cp=cp)
    for pp, ep, vpp in ((24, 8, 4), (24, 16, 4), (48, 8, 2))
    for cp in (1, 2)
]
FEW = ("tiny", "small")
CASES = [
    (name, layout)
    for name in MODELS
    for layout in (SMALL if name in FEW else LARGE + (BRIEF if name.startswith("moe_") else []))
]
# Half of the pairs have each layout with some model, and several layouts of each model.
TRIED = CASES[:: effort(2, 1)]


def told(case: object) -> str:
    """A layout as the id of a test."""
    if not isinstance(case, Layout):
        return str(case)
    sizes = {name: getattr(case, name) for name in ("ranks", "pp", "vpp", "cp", "tp", "ep")}
    return "-".join(f"{name}{size}" for name, size in sizes.items() if size > 1) or "alone"


def config_of(name: str, layout: Layout) -> Config:
    return Config(MODELS[name], layout, training=replace(preset(name).training, micro_batches=layout.pp))


def counted(config: Config, rank: int) -> Counter[str]:
    """What torch counts of a rank's chunks, by the group of ranks that hold the same."""
    layout, counts = config.layout, Counter[str]()
    chunks = layout.chunks(config.model.layers)
    for number in range(layout.coordinates(rank)["pp"], len(chunks), layout.pp):
        with torch.device("meta"):
            ends = (number == 0, number == len(chunks) - 1)
            chunk = Transformer(config, Groups(layout, rank), chunks[number], ends)
        for parameter in chunk.parameters():
            counts[parameter.replicas] += parameter.numel()
    return counts


@pytest.mark.parametrize(("name", "layout"), TRIED, ids=told)
def test_each_kind_of_rank_holds_what_torch_counts(name: str, layout: Layout) -> None:
    config = config_of(name, layout)
    stage = layout.stage_ranks
    for pp in {0, 1, layout.pp // 2, layout.pp - 1} & set(range(layout.pp)):
        # The first and the last rank of a stage have other places in every one of its groups.
        for rank in {pp * stage, (pp + 1) * stage - 1}:
            by_group = {name: sum(counts.values()) for name, counts in parameters(config, rank).items()}
            assert by_group == counted(config, rank), rank


PIPELINES = [
    (name, layout)
    for name in ("deepseek_v3", "moe_2t")
    for layout in LARGE + BRIEF
    if 1 < layout.pp * layout.vpp <= MODELS[name].layers
]


@pytest.mark.parametrize(("name", "layout"), PIPELINES, ids=told)
def test_stages_hold_the_model_together(name: str, layout: Layout) -> None:
    """All stages as torch builds them, each shard as often as the rank's place says, are the whole model."""
    config = config_of(name, layout)
    shards = {"stage": 1, "dense": layout.tp, "edp": layout.experts_over}
    whole = Counter[str]()
    for pp in range(layout.pp):
        whole += counted(config, pp * layout.stage_ranks)
    assert sum(count * shards[name] for name, count in whole.items()) == totals(config.model).total
