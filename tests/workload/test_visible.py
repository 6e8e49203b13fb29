"""Each toggle's effect on one layer or one step, as analyzers see it in a recorded run with it off and on.

Not here: what only several streams, fused kernels or a GPU's launches show (test_visible_on_gpus); numa and
kernarg_pool, which change where a process runs and what AMD's runtime allocates, of which no trace tells;
dispatch=deepep and tp_overlap=symmetric, which need several GPUs (and DeepEP's signature has tests of its
own, tests/opportunities/test_deepep.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import pandas as pd
import pytest

pytest.importorskip("torch", reason="the workload needs torch")

from tests.workload.recorded import RUNS, Recorded, config_of
from tests.workload.toggle_variants import VARIANTS
from tests.workload.toggle_variants import fields as variant_fields
from tracelens.analysis.moe import STAGES
from tracelens.planner.config import CHOICES, Toggles, override, preset
from tracelens.planner.expected import balanced
from tracelens.planner.expected.messages import messages
from tracelens.table import Result

# Of the preset tiny on two ranks: 2 MoE layers, 4 experts a rank, 2 a token; 2 micro-batches of 64 tokens.
LAYERS, EXPERTS, CHOSEN, BATCHES, TOKENS, HIDDEN = 2, 4, 2, 2, 64, 64


# See above; of deepep and symmetric likewise.
NOT_SHOWN = {("numa", "bind"), ("kernarg_pool", True), ("dispatch", "deepep"), ("tp_overlap", "symmetric")}


def test_every_toggle_is_shown_off_and_on() -> None:
    on_gpus = [override(preset("small"), variant_fields(name)) for name in VARIANTS]
    configs = [*map(config_of, RUNS), *on_gpus]
    shown = {(name, value) for config in configs for name, value in config.toggles.changed().items()}
    named = {field.name for field in fields(Toggles)}
    assert {name for name, _ in shown | NOT_SHOWN} == named
    left = {(name, value) for name, values in CHOICES.items() for value in values} - shown
    assert {pair for pair in left if pair[1] != getattr(Toggles(), pair[0])} == NOT_SHOWN - {
        ("kernarg_pool", True)
    }


def each_layer(found: Result, column: str) -> set[float]:
    return set(found["layers"][column])


def by_stage(found: Result, rank: int = 0) -> dict[str, float]:
    """Blocking calls of a pass."""
    table = found["stages"]
    mine = table[table["rank"].eq(rank) & table["blocking_count"].gt(0)]
    return dict(zip(mine["stage"].astype(str), mine["blocking_count"], strict=True))


def collectives(found: Result, group: str) -> dict[str, int]:
    """How often rank 0 takes part in each collective of a group."""
    table = found["overlap"]
    mine = table[table["rank"].eq(0) & table["group"].eq(group)]
    return dict(zip(mine["collective"].astype(str), mine["count"], strict=True))


def test_experts_one_after_the_other_and_grouped(recorded: Recorded) -> None:
    loop, grouped = recorded("base", "moe"), recorded("grouped", "moe")
    assert each_layer(loop, "gemms") == {2.0 * EXPERTS}
    assert each_layer(grouped, "gemms") == {2.0}
    # Of each expert of a loop the host reads the size; grouped, all of them at once.
    assert by_stage(loop)["experts"] == EXPERTS
    assert by_stage(grouped)["experts"] == 1
    measured = recorded.signals("base", "expert_loop")
    assert [one["GEMMs per layer, forward"] for one in measured] == [2 * EXPERTS] * 2
    assert [one["passes per step"] for one in measured] == [LAYERS * BATCHES] * 2
    assert recorded.signals("grouped", "expert_loop") == []
    assert recorded.verdict("grouped", "expert_loop") == "the expert GEMMs are grouped"


def sent(recorded: Recorded, name: str) -> list[float]:
    """Bytes that each rank sends in forward dispatches of a step."""
    found = recorded.signals(name, "exposed_all_to_all")
    return [one["sent in forward dispatches per step"] for one in found]


def test_dedup_sends_a_token_once_to_each_rank(recorded: Recorded) -> None:
    """The detector states how little that is, as a mean over random choices, while copies are sent."""
    passes = LAYERS * BATCHES
    for rank in range(2):
        rows = (sent(recorded, "base")[rank] / passes - 2 * EXPERTS * 8) / (HIDDEN * 4)
        assert rows == TOKENS * CHOSEN
        # A copy has its weights and experts with it, and both ranks are told of two counts each.
        copies = (sent(recorded, "dedup")[rank] / passes - 2 * 2 * 8) / ((HIDDEN + 2 * CHOSEN) * 4)
        stated = recorded.signals("base", "exposed_all_to_all")[rank]["share after de-duplication"]
        assert copies / rows == pytest.approx(stated, abs=0.1)


def test_sizes_of_exchanges_are_those_of_the_routing(recorded: Recorded) -> None:
    row = HIDDEN * 4
    for rank in range(2):
        asked = {}
        for name in ("balanced", "balanced_dedup"):
            exchanges = [
                message.exchange for message in messages(config_of(name), rank)
                if message.scope.endswith(".dispatch") and message.phase == "forward"
            ]  # fmt: skip
            assert sent(recorded, name)[rank] == sum(exchange.sent for exchange in exchanges)
            asked[name] = sum(exchange.sent for exchange in exchanges if exchange.what == "tokens")
        passes = [one for layer in balanced(config_of("balanced"), rank).layers.values() for one in layer]
        assert asked["balanced"] == BATCHES * LAYERS * TOKENS * CHOSEN * row
        assert asked["balanced_dedup"] == sum(sum(one.copies_to) for one in passes) * row
        assert asked["balanced_dedup"] < asked["balanced"]


def test_allgather_exchanges_by_other_collectives(recorded: Recorded) -> None:
    plain = collectives(recorded("base", "overlap"), "EP")
    # Each pass there and back, forward and backward, and the counts.
    passes = LAYERS * BATCHES
    assert plain == {"all_to_allv": 4 * passes, "all_to_all": passes}
    gathered = collectives(recorded("allgather", "overlap"), "EP")
    assert set(gathered) == {"_allgather_base", "_reduce_scatter_base"}
    # Tokens, weights and experts there, results back; gradients of all but the experts' numbers.
    assert gathered == {"_allgather_base": 4 * passes, "_reduce_scatter_base": 3 * passes}


SYNC_FREE = ["grouped", "sync_free_1", "sync_free_2", "sync_free_3"]
READS = [
    {"dispatch": 2.0, "permute": 2.0, "experts": 1.0},
    {"dispatch": 1.0, "experts": 1.0},
    {"dispatch": 1.0},
    {},
]
"""Of the table in toggles.py, alltoall and grouped, by where the host reads."""


@pytest.mark.parametrize("stage", range(4))
def test_sync_free_stage_is_told_from_what_the_host_still_reads(recorded: Recorded, stage: int) -> None:
    found = recorded(SYNC_FREE[stage], "moe")
    assert found.meta["sync_free_stage"] == stage
    for rank in range(2):
        assert by_stage(found, rank) == READS[stage]
    assert each_layer(found, "blocking_count") == {sum(READS[stage].values())}
    passes = found["passes"]
    assert passes[passes["phase"].ne("forward")]["blocking_count"].eq(0).all()


def test_sync_free_falls_step_by_step_to_nothing(recorded: Recorded) -> None:
    calls = [recorded(name, "moe")["stages"]["blocking_count"].sum() for name in SYNC_FREE]
    assert calls == sorted(set(calls), reverse=True)
    assert calls[-1] == 0
    assert set(recorded("sync_free_3", "moe")["stages"]["stage"]) == set(STAGES)


def found_again(scopes: Result) -> Iterator[str]:
    """Layers that have scopes in a backward pass: gradients are counted in those of the forward pass."""
    table = scopes["scopes"]
    for rank in set(table["rank"]):
        mine = table[table["rank"].eq(rank)].set_index("node")
        for _, row in mine.iterrows():
            name = str(row["name"])
            above = "" if pd.isna(row["parent"]) else str(mine.loc[row["parent"], "name"])
            if above.endswith(".B") and name[-2:] != ".B":
                assert row["forward_ns"] > 0 == row["backward_ns"]
                yield name.partition(".")[0]


@pytest.mark.parametrize(
    ("name", "again", "dense"), [("base", set(), 0), ("recompute_1", {0}, 0), ("recompute_0_2", {1}, 1)]
)
def test_layers_that_are_recomputed(recorded: Recorded, name: str, again: set[int], dense: int) -> None:
    """MoE layers 0 and 1 are layers 1 and 2 of the model, of which layer 0 is dense."""
    found = recorded(name, "moe")
    passes = found["passes"]
    passes = passes[passes["phase"].eq("recompute")]
    assert passes.groupby(["rank", "layer"]).size().to_dict() == {
        (rank, layer): BATCHES for rank in range(2) for layer in again
    }
    assert passes["dur_ns"].gt(0).all()
    experts = found["stages"][found["stages"]["stage"].eq("experts")]
    assert experts["recompute_ns"].gt(0).all() == bool(again)
    again_in = set(found_again(recorded(name, "scopes")))
    assert again_in == {f"L{layer + 1}" for layer in again} | ({"L0"} if dense else set())
    nodes = [one["recomputing backward nodes per step"] for one in recorded.signals(name, "recompute")]
    assert nodes == ([BATCHES * (len(again) + dense)] * 2 if again else [])


def test_garbage_is_collected_within_steps_or_not(recorded: Recorded) -> None:
    collected = recorded.signals("gc_auto", "garbage_collection")
    assert len(collected) == 2
    assert all(one["collections per step"] >= 1 for one in collected)
    assert recorded.signals("gc_manual", "garbage_collection") == []
    assert recorded.verdict("gc_manual", "garbage_collection").startswith("no garbage collection")
