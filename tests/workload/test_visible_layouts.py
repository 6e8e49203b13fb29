"""Pipelines and process groups, as analyzers see them in recorded runs of two and four ranks."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="the workload needs torch")

from tests.workload.recorded import Recorded, config_of
from tracelens.table import Result


def test_chunks_of_a_pipeline_shorten_its_bubble(recorded: Recorded) -> None:
    expected = []
    for name, chunks in (("pp", 1), ("vpp", 2)):
        layout, batches = config_of(name).layout, config_of(name).training.micro_batches
        found = recorded(name, "pipeline")
        bubble, spans = found["bubble"], found["spans"]
        assert bubble["stage"].tolist() == [0, 1]
        assert set(bubble["stages"]) == {layout.pp}
        assert set(bubble["micro_batches"]) == {batches}
        assert set(bubble["chunks"]) == {layout.vpp} == {chunks}
        # Each stage runs each micro-batch forward and backward through each of its chunks.
        assert len(spans) == len(spans[["stage", "chunk", "micro_batch", "phase"]].drop_duplicates())
        assert len(spans) == layout.pp * chunks * batches * 2
        (share,) = set(bubble["expected_fraction"])
        assert share == pytest.approx((layout.pp - 1) / (layout.pp - 1 + batches * chunks))
        expected.append(share)
    assert expected[1] < expected[0]


def test_groups_of_a_pipeline_with_expert_parallelism_are_told_apart(recorded: Recorded) -> None:
    """gloo's events name no group; the recorder's list of its threads does."""
    for rank, trace in enumerate(recorded.run("pp_ep").traces):
        table = trace.collectives
        exchange = table[table["collective"].astype(str).str.startswith("all_to_all")]
        stage = [0, 1] if rank < 2 else [2, 3]
        assert set(exchange["group_description"]) == {"ep"}
        assert {tuple(json.loads(text)) for text in exchange["group_ranks"]} == {tuple(stage)}
    balance = recorded("pp_ep", "moe")["balance"]
    assert sorted(set(balance["ranks"])) == ["0-1", "2-3"]
    assert balance["tokens_mean"].gt(0).all()
    assert set(recorded("pp_ep", "pipeline")["bubble"]["stages"]) == {2}


def reductions(found: Result) -> dict[str, dict[str, int]]:
    """Collectives by the description of their group, those of gradients and parameters."""
    table, told = found["summary"], dict[str, dict[str, int]]()
    for _, row in table.iterrows():
        if row["description"] not in ("ep", "edp"):
            counts = told.setdefault(str(row["description"]), {})
            counts[str(row["collective"])] = counts.get(str(row["collective"]), 0) + int(row["count"])
    return told


def test_ways_to_reduce_gradients(recorded: Recorded) -> None:
    """Two buffers are held by all four ranks; a loss a step is summed over all of them."""
    names = ("reduce_scatter", "all_reduce", "hierarchical")
    plain, whole, levels = (reductions(recorded(name, "collectives")) for name in names)
    assert plain["dp_cp_tp"] == {"_reduce_scatter_base": 1, "_allgather_base": 1, "allreduce": 1}
    assert plain["dp_cp"] == {"_reduce_scatter_base": 1, "_allgather_base": 1}
    assert whole["dp_cp_tp"] == {"allreduce": 2, "_allgather_base": 1}
    assert whole["dp_cp"] == {"allreduce": 1, "_allgather_base": 1}
    assert set(levels) == {"dp_cp_tp", "dp_cp", "dp_node", "dp_across"}
    assert levels["dp_node"] == {"_reduce_scatter_base": 4, "_allgather_base": 4}
    assert levels["dp_across"] == {"allreduce": 4}
