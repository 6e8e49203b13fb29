"""MoE layers of real runs: their layers, passes and stages against counts made from the raw events.

Two of the runs are one model whose experts run one after the other and grouped: what the detector of the
first says that grouping would save is compared with what it saves.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from statistics import median_low
from typing import Any

import orjson
import pytest

import tracelens
from tests.conformance.corpus import Case
from tracelens.analysis.moe import STAGES
from tracelens.table import Result
from tracelens.trace import steps_of

SAMPLES = Path(__file__).parents[2] / "sample_traces"
MEGATRON, HUGGING_FACE = "nvidia-h200-megatron", "nvidia-h100-hf"
EP8, PP2EP4 = f"{MEGATRON}/ep8", f"{MEGATRON}/pp2ep4"
EAGER, GROUPED = f"{HUGGING_FACE}/dsv2_eager.json.gz", f"{HUGGING_FACE}/dsv2_grouped.json.gz"
TOKENS = 2048
CHOSEN = 6


def only(*names: str, slow: bool = True) -> pytest.MarkDecorator:
    """Runs of the corpus, in place of all of them."""
    marks = [pytest.mark.slow] if slow else []
    return pytest.mark.parametrize("case", [pytest.param(name, marks=marks) for name in names], indirect=True)


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("faults/control", 1),
        pytest.param("ladder_large/ep4/03_dedup", 0, marks=pytest.mark.slow),
        pytest.param("ladder_large/ep4/04_sync_free_2", 2, marks=pytest.mark.slow),
        pytest.param("ladder_large/ep4/05_sync_free_3", 3, marks=pytest.mark.slow),
        pytest.param("ladder_large/ep4/08_fp8", 3, marks=pytest.mark.slow),
    ],
)
def test_allocations_do_not_change_the_sync_free_stage(name: str, stage: int) -> None:
    """Those without other blocking calls call cudaMalloc in some passes, which blocks."""
    result = tracelens.analyze(tracelens.load(SAMPLES / name), "moe")
    assert result.meta["sync_free_stage"] == stage
    assert result["stages"]["blocking_count"].gt(0).any()


def raw(path: Path) -> list[dict[str, Any]]:
    """The events of a file, read by nothing of ours."""
    events: list[dict[str, Any]] = orjson.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event for event in events if event.get("ph") == "X" and "args" in event]


def stage_columns() -> dict[str, str]:
    return {stage: f"{stage.replace(' ', '_')}_ns" for stage in STAGES}


@only(EP8, PP2EP4, EAGER, GROUPED)
def test_layers_and_passes(case: Case) -> None:
    """Every layer and micro-batch forward and backward, with every stage that it should have."""
    result = case.result("moe")
    layers, stages, micro_batches, steps, experts = {
        EP8: (4, 1, 2, 2, 64),
        PP2EP4: (4, 2, 8, 1, 32),
        EAGER: (4, 1, 1, 2, 64),
        GROUPED: (4, 1, 1, 2, 64),
    }[case.name]
    meta = [result.meta[name] for name in ("layers", "experts", "top_k")]
    assert meta == [layers, experts, CHOSEN]
    passes = result["passes"]
    keys = ["rank", "step", "phase", "micro_batch", "layer"]
    number = len(case.run.ranks) * steps * 2 * micro_batches * layers // stages
    assert len(passes) == number == len(passes[keys].drop_duplicates())
    assert set(passes["phase"]) == {"forward", "backward"}
    assert set(passes["layer"]) == set(range(layers))
    assert set(passes["micro_batch"]) == set(range(micro_batches))
    exchanged = MEGATRON in case.name
    for stage, column in stage_columns().items():
        if stage in ("dispatch", "combine") and not exchanged:
            assert not passes[column].any()
        else:
            assert (passes[column] > 0).all(), stage


@only(EP8, PP2EP4, EAGER, GROUPED)
def test_stages_are_within_the_step(case: Case) -> None:
    table = case.table("moe", "stages")
    assert (table.groupby("rank")["fraction_of_step"].sum() < 1).all()
    passes = case.table("moe", "passes")
    for column in stage_columns().values():
        assert (passes[column] <= passes["dur_ns"]).all()


@only(EP8, PP2EP4)
def test_no_token_is_lost_on_the_way(case: Case) -> None:
    """All ranks of a group together compute each token once for each expert that it chose."""
    passes = case.table("moe", "passes")
    passes = passes[passes["phase"] == "forward"].assign(group=lambda table: table["rank"] // 4)
    size = 8 if case.name == EP8 else 4
    keys = ["step", "micro_batch", "layer"] + (["group"] if size == 4 else [])
    total = passes.groupby(keys, observed=True)["tokens"].sum()
    assert set(total) == {TOKENS * CHOSEN * size}
    balance = case.table("moe", "balance")
    assert set(balance["tokens_mean"]) == {TOKENS * CHOSEN}
    assert set(balance["ranks"]) == ({"0-7"} if size == 8 else {"0-3", "4-7"})


@only(EAGER, GROUPED)
def test_one_rank_computes_all_its_tokens(case: Case) -> None:
    assert set(case.table("moe", "passes")["tokens"]) == {4096 * CHOSEN}


@only(PP2EP4)
def test_layers_are_numbered_through_the_stages(case: Case) -> None:
    layers = case.table("moe", "layers").groupby("layer")["rank"].agg(list).to_dict()
    assert layers == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3], 2: [4, 5, 6, 7], 3: [4, 5, 6, 7]}


@only(EP8, PP2EP4)
def test_rows_of_an_expert_are_those_of_its_products(case: Case) -> None:
    """Megatron-LM splits the rows in front of its loop, so each expert is known, and adds up to the rank."""
    experts = case.table("moe", "experts").groupby(["rank", "layer"])["tokens"].agg(["size", "sum"])
    assert set(experts["size"]) == {8}
    layers = case.table("moe", "layers").set_index(["rank", "layer"])["tokens"]
    assert experts["sum"].to_dict() == pytest.approx(layers.to_dict())
    balance = case.table("moe", "expert_balance").set_index(["rank", "layer"])
    assert (balance["tokens_mean"] * 8).to_dict() == pytest.approx(layers.to_dict())


@only(EAGER, GROUPED)
def test_nothing_tells_the_experts_of_hugging_faces_loop(case: Case) -> None:
    assert not len(case.table("moe", "experts"))
    balance = case.table("moe", "expert_balance")
    assert len(balance) == (4 if case.name == EAGER else 0)
    assert set(balance["tokens_mean"]) <= {4096 * CHOSEN / 64}


@only(EP8)
def test_splits_of_the_raw_records_are_the_tokens(case: Case) -> None:
    """Summed from the record of each dispatch: what the other ranks send here."""
    passes = case.table("moe", "passes")
    for trace in case.run.traces[:2]:
        rank = trace.meta.rank
        mine = passes[passes["rank"].eq(rank) & passes["phase"].eq("forward")]
        received = Counter(
            sum(json.loads(event["args"]["Out split size"]))
            for event in raw(case.path / f"rank{rank}.json.gz")
            if event["args"].get("Collective name") == "all_to_allv"
            and event["args"]["Out split size"] not in ("", "[]")
        )
        # Rows go there and back in forward, and there and back in backward; probabilities go beside them.
        assert set(mine["tokens"]) <= set(received)
        assert all(received[tokens] % 2 == 0 for tokens in mine["tokens"])


@only(EP8)
def test_products_and_blocking_calls_of_each_layer(case: Case) -> None:
    """8 experts a rank with two products each; sizes are waited for three times."""
    layers = case.table("moe", "layers")
    assert set(layers["gemms"]) == {16.0}
    forward = case.table("moe", "passes").query("phase == 'forward'")
    most = forward["blocking_count"].mode().tolist()
    assert most == [3]
    assert (forward["blocking_count"] == 3).mean() > 0.98
    assert case.result("moe").meta["sync_free_stage"] == 0


@only(EAGER)
def test_the_products_of_an_expert_loop_by_hand(case: Case) -> None:
    """Products with the experts' weights among the raw ops: two an expert and layer, forward."""
    ops = [event for event in raw(case.path) if event.get("cat") == "cpu_op"]
    main = {event["tid"] for event in ops if event["name"] == "aten::topk"}
    products = [event for event in ops if event["name"] == "aten::mm" and event["tid"] in main]
    weights = Counter(tuple(event["args"]["Input Dims"][1]) for event in products)
    layers, steps, experts = 4, 2, 64
    # The shared expert's weights are as large as an expert's two that are multiplied at once.
    frequent = [number for number in weights.values() if number >= layers * steps * experts]
    assert len(frequent) == 2
    assert sum(frequent) // (layers * steps) // experts == 2
    assert set(case.table("moe", "layers")["gemms"]) == {2.0 * experts}


def findings(case: Case) -> Result:
    return case.result("findings")


@only(EAGER)
def test_the_expert_loop_is_the_first_thing_to_fix(case: Case) -> None:
    """What grouping saves by the replay of a step is within a tenth of what it saves by the clock."""
    table = findings(case)["findings"]
    assert table["detector"].tolist()[0] == "expert_loop"
    twin = tracelens.load(case.path.with_name(Path(GROUPED).name))
    measured = step_ns(case.run.traces[0]) - step_ns(twin.traces[0])
    assert table["saving_ns"].tolist()[0] == pytest.approx(measured, rel=0.1)


def step_ns(trace: Any) -> float:
    """Median duration of a step by its marks, as the step that is replayed has; of two the lower."""
    edges = steps_of(trace).edges
    labels = steps_of(trace).labels
    whole = [end - start for label, start, end in zip(labels, edges[:-1], edges[1:], strict=True)
             if label.startswith("ProfilerStep")]  # fmt: skip
    return float(median_low(whole))


@only(GROUPED)
def test_grouped_experts_are_no_loop(case: Case) -> None:
    checked = findings(case)["checks"].set_index("detector")
    assert checked.loc["expert_loop", "verdict"] == "the expert GEMMs are grouped"
    assert case.result("moe").meta["sync_free_stage"] == 3


def test_no_other_trace_has_moe_layers(case: Case) -> None:
    """None of the other models has any: vision, text, encoders and decoders."""
    result = case.result("moe")
    known = case.name.startswith((MEGATRON, HUGGING_FACE))
    assert (result.meta.get("layers", 0) > 0) == known
    if not known:
        assert all(skip.reason.startswith("no MoE layer") for skip in result.skips)
