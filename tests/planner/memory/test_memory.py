"""Memory of each GPU: by hand, over ranks, and what must hold of any layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tracelens.devices import device
from tracelens.errors import TracelensError
from tracelens.planner import expected
from tracelens.planner.block import total
from tracelens.planner.config import Config, override, preset
from tracelens.planner.expected import totals
from tracelens.planner.memory import COMPONENTS, Assumptions, memory, stages, worst

FUSED = "experts=grouped permute=fused router=fused loss=fused sync_free=2"


def config(model: str = "small", *fields: str) -> Config:
    return override(preset(model), " ".join(fields).split())


def test_one_dense_layer_by_hand() -> None:
    """Two heads of 8, D 16, an MLP of 32, V 64, 64 tokens, float32, no main copies, Adam."""
    dense = config(
        "tiny",
        "layers=1 dense_layers=1 hidden=16 dense_ffn=32 heads=2 attention=gqa kv_groups=2 head_dim=8",
        "vocab=64 seq=64 micro_batch=1 micro_batches=1",
    )
    stage = worst(dense, Assumptions(library_bytes=0))
    D, T, V, F = 16, 64, 64, 32
    # Embedding, three norms, four matrices of attention, three of the MLP, head; the largest multiples of
    # 128 bytes that hold a norm are 128, and all others are such multiples.
    parameters = 4 * (V * D + 4 * D * D + 3 * D * F + V * D) + 3 * 128
    assert stage.held["parameters"] == stage.held["gradients"] == parameters
    assert stage.held["optimizer"] == 2 * parameters
    assert "main_parameters" not in stage.held
    # Stream and normed input of each norm and one number a token; queries, keys, values and output, and one
    # number a query and head; gate, up, silu and product.
    norms = 3 * (2 * T * D + T) * 4
    attention = 4 * (4 * T * D + 2 * T)
    mlp = 4 * 4 * T * F
    assert stage.held["activations.norms"] == norms
    assert stage.held["activations.attention"] == attention
    assert stage.held["activations.mlp"] == mlp
    # Logs of the shares are kept; their gradient and that of the logits are there with them.
    assert stage.held["loss"] == 4 * T * V
    assert stage.held["temporary"] == 2 * 4 * T * V
    assert stage.held["buffers.tokens"] == 2 * 8 * T
    assert stage.moment == "backward"
    assert stage.moments["between"] == 4 * parameters + 16 * T


@pytest.mark.parametrize(
    "fields",
    [
        "ranks=8", "ranks=8 pp=2 micro_batches=4", "ranks=8 pp=4 micro_batches=4 layers=8 ep=1",
        "ranks=8 pp=2 vpp=2 micro_batches=4 layers=8", "ranks=8 tp=2 cp=2", "ranks=8 ep=2 tp=2",
    ],
)  # fmt: skip
def test_the_parameters_of_all_stages_are_the_model_s(fields: str) -> None:
    small = config("small", fields)
    share = 0
    for place in range(small.layout.pp):
        counted = expected.parameters(small, place * small.layout.stage_ranks)
        counts = sum(sum(parts.values()) for parts in counted.values())
        held = stages(small)[place].held["parameters"]
        # Each of a few buffers is filled up to shares of 128 bytes for each rank.
        assert 0 <= held - 2 * counts <= 200 * 128 + 3 * 128 * small.layout.ranks
        share += counts
    if small.layout.experts_over == small.layout.tp == 1:
        assert share == totals(small.model).total


def test_worst_first_and_rows_add_up() -> None:
    small = config("small", "ranks=4 pp=4 layers=8 micro_batches=8")
    result = memory(small, devices=[device("h200"), device("h100")])
    ranks, table = result["ranks"], result["memory"]
    assert ranks["peak_bytes"].is_monotonic_decreasing
    sums = table.groupby("pp_rank", sort=False)["bytes"].sum()
    assert sums.to_dict() == dict(zip(ranks["pp_rank"], ranks["peak_bytes"], strict=True))
    assert table["fraction_of_rank"].sum() == pytest.approx(4)
    assert (table["bytes"] > 0).all()
    assert set(table["component"]) <= set(COMPONENTS)
    assert ranks.sort_values("pp_rank")["layers"].tolist() == ["+0-1", "2-3", "4-5", "6-7+"]
    assert ranks.sort_values("pp_rank")["in_flight"].tolist() == [4, 3, 2, 1]
    assert (ranks["peak_bytes"] == result.meta["worst_bytes"]).any()
    fits = result["fits"].set_index("device")
    for name in ("h200", "h100"):
        row = fits.loc[name]
        assert row["free_bytes"] == row["memory_bytes"] - row["reserve_bytes"] - row["needed_bytes"]
        assert (row["fits"] == "yes") == (row["free_bytes"] >= 0)


def test_real_bytes_and_the_reserve() -> None:
    small = config("small")
    row = memory(small, devices=[device("mi300x")], reserve=10**9)["fits"].iloc[0]
    assert (row["memory_bytes"], row["nameplate_bytes"]) == (206_141_652_992, 192_000_000_000)
    assert row["reserve_bytes"] == 10**9
    result = memory(small, devices=[device("mi325x")])
    assert result["fits"]["memory_bytes"][0] == 256_000_000_000
    assert any("mi325x" in skip.subject for skip in result.skips)


def test_several_layouts_are_compared_by_name() -> None:
    result = memory(
        {text: config("small", text) for text in ("ranks=2", "ranks=4")}, devices=[device("h100")]
    )
    assert list(dict.fromkeys(result["memory"]["layout"])) == ["ranks=2", "ranks=4"]
    assert result["fits"]["layout"].tolist() == ["ranks=2", "ranks=4"]
    assert memory(config("small", "ranks=8 tp=2")).meta["layouts"] == ["8 GPUs ep=8 tp=2"]


def test_worst_case_buffers_are_told_from_rows_with_tokens() -> None:
    fields = "ranks=8 experts=grouped permute=fused router=fused loss=fused"
    loose, tight = (worst(config("small", fields, f"sync_free={level}")) for level in (3, 2))
    assert "buffers.worst_case" not in tight.held
    # Of 8 ranks' tokens with up to 6 experts each, one rank's worth of choices is real.
    rows = loose.held["activations.experts"] + loose.held["activations.dispatch"]
    assert loose.held["buffers.worst_case"] == pytest.approx(7 * rows, rel=1e-3)
    assert loose.total > tight.total


@pytest.mark.parametrize(("less", "more"), [("full", "attention"), ("attention", "none")])
def test_recomputation_keeps_less(less: str, more: str) -> None:
    lite = config("deepseek_v2_lite", "ranks=8 micro_batch=4")
    stages_ = [worst(lite, Assumptions(recompute=how)) for how in (less, more)]  # type: ignore[arg-type]
    assert stages_[0].total < stages_[1].total
    ids = config(
        "deepseek_v2_lite", "ranks=8 micro_batch=4 recompute_layer_ids=" + ",".join(map(str, range(27)))
    )
    assert worst(ids).total == worst(lite, Assumptions(recompute="full")).total


def test_precision_optimizer_and_sharding() -> None:
    small = config("small", "ranks=2")
    base = worst(small).moments["between"]
    elements = worst(small).held["parameters"] // 2

    def between(**assumed: object) -> int:
        return worst(small, Assumptions(**assumed)).moments["between"]  # type: ignore[arg-type]

    assert between(gradients="float32") - base == 2 * elements
    shared = worst(small).held["optimizer"] // 8
    assert base - between(optimizer="momentum") == 4 * shared
    assert base - between(optimizer="sgd") == 8 * shared
    assert between(sharding="none") - base == 12 * (elements - shared)
    # Without main copies Adam's numbers have the parameters' type.
    without = worst(override(small, ["main_params=false"])).moments["between"]
    assert base - without == 8 * shared


def test_gradients_in_float32_spare_the_optimizer_a_copy() -> None:
    small = config("small", "ranks=2")
    moments = worst(small, Assumptions(gradients="float32")).moments
    assert moments["optimizer"] == moments["between"]


def test_buffers_of_stages() -> None:
    pipelined = config("small", "ranks=2 pp=2 micro_batches=8 layers=4 micro_batch=8", FUSED)
    row = pipelined.tokens * pipelined.model.hidden * 2
    every, few = (stages(pipelined, Assumptions(stage_buffers=kind))[0] for kind in ("all", "in_flight"))  # type: ignore[arg-type]
    # Gradients of eight micro-batches, and what went out of two; else one gradient.
    assert every.held["buffers.pipeline"] == 10 * row
    assert few.held["buffers.pipeline"] == row


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"imbalance": 0.9}, "imbalance must be at least 1"),
        ({"imbalance": float("nan")}, "imbalance must be at least 1"),
        ({"imbalance": float("inf")}, "imbalance must be at least 1"),
        ({"optimizer": "lion"}, "unknown optimizer"),
        ({"library_bytes": -1}, "library_bytes must be 0 or more"),
    ],
)
def test_assumptions_that_cannot_be(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(TracelensError, match=message):
        Assumptions(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("has", "reserve", "message"),
    [
        (80e9, -1, "reserve must be 0 bytes or more, not -1"),
        (80e9, 80 * 10**9, "the reserve leaves nothing of the 75 GiB of mine"),
        (0, None, "the memory of mine is unknown: add hbm_bytes to its device file"),
    ],
)
def test_devices_that_cannot_be_compared_with(has: float, reserve: int | None, message: str) -> None:
    mine = structs.replace(device("h100"), name="mine", hbm_bytes=int(has))
    with pytest.raises(TracelensError, match=message):
        memory(config("small"), devices=[mine], reserve=reserve)


def test_a_device_of_ones_own_has_the_memory_that_its_file_says() -> None:
    mine = structs.replace(device("mi300x"), hbm_bytes=96_000_000_000)
    assert memory(config("small"), devices=[mine])["fits"]["memory_bytes"].tolist() == [96_000_000_000]


def test_two_words_on_recomputation_are_refused() -> None:
    small = config("small", "recompute_layer_ids=1")
    with pytest.raises(TracelensError, match="recompute=none and recompute_layer_ids exclude each other"):
        worst(small, Assumptions(recompute="none"))


def test_meta_says_how_the_model_computes() -> None:
    plain, fused = config("small", "ranks=4"), config("small", "ranks=4", FUSED)
    meta = memory(plain).meta
    assert meta["toggles"] == "experts=loop permute=plain router=plain loss=plain"
    assert meta["optimised_bytes"] == worst(replace(plain, toggles=plain.toggles.optimised())).total
    assert meta["optimised_bytes"] < meta["worst_bytes"]
    assert memory(fused).meta["toggles"] == "experts=grouped permute=fused router=fused loss=fused"
    assert "optimised_bytes" not in memory(fused).meta
    # Of several layouts, what any of them has at its baseline.
    partly = memory({"a": fused, "b": override(fused, ["loss=plain"])}).meta
    assert partly["toggles"] == "loss=plain"
    assert partly["optimised_bytes"] < partly["worst_bytes"]
    streams = memory(config("small", "experts=multistream permute=fused router=fused loss=fused")).meta
    assert streams["toggles"] == "experts=multistream permute=fused router=fused loss=fused"
    charts = memory(
        config("moe_1t", "ranks=768 pp=24 ep=8 micro_batches=48"), Assumptions(framework="amd-guide")
    )
    assert "toggles" not in charts.meta


layouts = st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]))


@given(layouts, st.sampled_from(["alltoall", "allgather", "dedup"]), st.sampled_from([FUSED, ""]))
def test_more_ranks_for_the_experts_never_take_more_of_them(
    sizes: tuple[int, int, int], dispatch: str, toggles: str
) -> None:
    pp, tp, batch = sizes
    fields = (
        f"ranks=16 pp={pp} tp={tp} micro_batch={batch} micro_batches=8 layers=8 dispatch={dispatch} {toggles}"
    )
    held = [worst(config("small", fields, f"ep={ep}")).held["parameters"] for ep in (1, 2, 4)]
    assert held[0] > held[1] > held[2]


@given(layouts, st.sampled_from(["", FUSED, "sync_free=3 experts=grouped"]), st.integers(1, 3))
def test_larger_batches_and_imbalance_never_take_less(
    sizes: tuple[int, int, int], toggles: str, times: int
) -> None:
    pp, tp, batch = sizes
    fields = f"ranks=16 pp={pp} tp={tp} ep=2 micro_batches=8 layers=8 {toggles}"
    small, large = (config("small", fields, f"micro_batch={size}") for size in (batch, batch * times))
    assert worst(small).total <= worst(large).total
    assert worst(small).total <= worst(small, Assumptions(imbalance=1.5)).total


@given(st.sampled_from([2, 4]), st.integers(1, 3), st.integers(4, 12))
def test_an_early_stage_has_no_fewer_in_flight(pp: int, vpp: int, batches: int) -> None:
    pipelined = config(
        "small", f"ranks={pp} pp={pp} vpp={vpp} layers={pp * vpp} micro_batches={pp * batches}"
    )
    in_flight = [stages(pipelined)[place].in_flight for place in range(pp)]
    assert in_flight == sorted(in_flight, reverse=True)
    more = stages(pipelined, Assumptions(overlap=True))
    # With one chunk a stage as many forwards ahead as in the interleaved schedule, else one more.
    wanted = [2 * (pp - place) if vpp == 1 else in_flight[place] + 1 for place in range(pp)]
    assert [more[place].in_flight for place in range(pp)] == wanted


def test_one_answer_takes_no_state() -> None:
    large = config("moe_1t", "ranks=768 pp=24 ep=8 vpp=4 micro_batches=48")
    first = worst(large)
    first.held.clear()
    assert total(worst(large).held) > 0
