"""MoE layers of simulated models: every kernel's pass, phase and stage, and what follows from them."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest

from tests.analysis.moe_traces import (
    FRAMES,
    KERNEL_NS,
    ROW_NS,
    Key,
    Model,
    recorded,
)
from tests.builders import records
from tracelens import analyze
from tracelens.analysis.moe import STAGES
from tracelens.table import Result
from tracelens.trace import make_run

EXCHANGES = ("none", "all_to_all", "deep_ep")
SHARED = ("", "before", "after")


def times(result: Result) -> Counter[Key]:
    """(rank, micro_batch, layer, phase, stage) to ns."""
    times: Counter[Key] = Counter()
    for row in result["passes"].to_dict("records"):
        for stage in STAGES:
            if ns := row[f"{stage.replace(' ', '_')}_ns"]:
                times[row["rank"], row["micro_batch"], row["layer"], str(row["phase"]), stage] += ns
    return times


def agrees(model: Model) -> Result:
    """The analysis of a model's run, whose times are those that the generator knows."""
    run, truth = recorded(model)
    assert truth
    result = analyze(run, "moe")
    assert times(result) == truth
    return result


# Each pair of the first three with other choices for the rest.
KINDS = [
    Model(
        loop=loop,
        exchange=exchange,
        naming=naming,
        ranks=1 if exchange == "none" else 2,
        shared=SHARED[number % 3],
        fused_router=number % 2 == 0,
        fused_permute=number // 2 % 2 == 0,
        fused_norm=number // 3 % 2 == 0,
        dense="d" * (number % 2),
    )
    for number, (exchange, loop, naming) in enumerate(product(EXCHANGES, (True, False), FRAMES))
]


@pytest.mark.parametrize("model", KINDS, ids=lambda model: f"{model.exchange}-{model.loop}-{model.naming}")
def test_each_kernel_is_in_its_stage(model: Model) -> None:
    result = agrees(model)
    assert result.meta["layers"] == 2
    assert result.meta["experts"] == 8
    assert result.meta["top_k"] == (None if model.fused_router else 2)
    named = "scopes or modules" if model.naming != "none" else "order of ops"
    assert result.meta["found_by"] == named
    assert set(result["layers"]["gemms"]) == {2.0 * (8 // model.ranks if model.loop else 1)}


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("recompute", ["", "hooks"])
def test_a_router_of_several_layers_is_no_shared_expert(shared: Any, recompute: Any) -> None:
    agrees(Model(router="layers", shared=shared, recompute=recompute))


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("fused_router", [True, False])
@pytest.mark.parametrize("fused_permute", [True, False])
def test_fused_and_unfused_parts(shared: Any, fused_router: bool, fused_permute: bool) -> None:
    for fused_norm in (True, False):
        agrees(
            Model(
                shared=shared, fused_router=fused_router, fused_permute=fused_permute, fused_norm=fused_norm
            )
        )


ONE_F_ONE_B = "F0 F1 B0 F2 B1 B2"


@pytest.mark.parametrize("order", ["F0 B0 F1 B1", ONE_F_ONE_B, "F0 F1 F2"])
@pytest.mark.parametrize(
    ("messages", "recompute"),
    [(False, ""), (True, "reentrant"), (False, "hooks")]
    + [
        pytest.param(*more, marks=pytest.mark.slow)
        for more in ((True, ""), (False, "reentrant"), (True, "hooks"))
    ],
)
def test_micro_batches_in_any_order(order: str, messages: bool, recompute: Any) -> None:
    model = Model(
        order=order,
        messages=messages,
        recompute=recompute,
        ranks=2,
        exchange="all_to_all",
        sync=True,
        layers=3,
        shared="before",
    )
    result = agrees(model)
    phases = {"forward", "backward"} if "B" in order else {"forward"}
    if recompute and "B" in order:
        phases.add("recompute")
    passes = result["passes"]
    for rank, micro_batch, layer, phase in product((0, 1), range(order.count("F")), range(3), phases):
        of_pass = passes["rank"].eq(rank) & passes["micro_batch"].eq(micro_batch) & passes["layer"].eq(layer)
        assert len(passes[of_pass & passes["phase"].eq(phase)]) == 1
    assert set(passes["phase"]) == phases


@pytest.mark.parametrize("router", ["maxima", "early"])
@pytest.mark.parametrize("loop", [True, False])
@pytest.mark.parametrize("exchange", ["none", "all_to_all"])
@pytest.mark.parametrize("recompute", ["", "reentrant", "numbers"])
def test_experts_tell_a_layer_whose_router_has_no_top_k_before_them(
    router: Any, loop: bool, exchange: Any, recompute: Any
) -> None:
    result = agrees(
        Model(
            router=router,
            loop=loop,
            exchange=exchange,
            ranks=1 if exchange == "none" else 2,
            recompute=recompute,
            dense="d",
        )
    )
    assert (result.meta["layers"], result.meta["experts"]) == (2, 8)
    assert result.meta["top_k"] == (2 if router == "early" else None)


@pytest.mark.parametrize("rows", [2, 8])
def test_a_loop_over_experts_with_equal_rows_tells_itself_where_they_are_not_all(rows: int) -> None:
    """The projections of attention have weights of one size, too, and all rows."""
    run, _ = recorded(Model(router="maxima", rows=lambda *_: [rows] * 8))
    assert analyze(run, "moe").meta.get("layers") == (2 if rows < 8 else None)


def test_the_backward_of_a_grouped_call_that_reads_sizes_first_is_the_experts() -> None:
    run, truth = recorded(Model(loop=False, fallback=True))
    found = times(analyze(run, "moe"))
    backward = {key: ns for key, ns in truth.items() if key[3] == "backward"}
    assert {key: ns for key, ns in found.items() if key[3] == "backward"} == backward


@pytest.mark.parametrize("layers", [(0,), (1,), (0, 2), (-1, 0, 1, 2)], ids=str)
@pytest.mark.parametrize("recompute", ["reentrant", "hooks", "numbers"])
def test_layers_of_which_only_some_are_computed_again(layers: tuple[int, ...], recompute: Any) -> None:
    agrees(Model(layers=3, order=ONE_F_ONE_B, recompute=recompute, recomputed=layers, dense="d"))


@pytest.mark.parametrize("naming", FRAMES)
def test_frames_need_not_be_recorded_in_autograds_threads(naming: str) -> None:
    for recompute in ("reentrant", "hooks"):
        agrees(Model(naming=naming, recompute=recompute, bare_threads=True))


@pytest.mark.parametrize("naming", ["none", "megatron"])
def test_without_recorded_arguments(naming: str) -> None:
    result = agrees(Model(naming=naming, shapes=False, shared="after"))
    assert result.meta["experts"] is None
    assert result["layers"]["tokens"].isna().all()
    assert not len(result["experts"])


def test_decoding_has_no_backward() -> None:
    result = agrees(Model(order="F0 F1 F2", tokens=1, chosen=2, rows=lambda *_: [1, 0, 0, 1, 0, 0, 0, 0]))
    assert result["layers"]["backward_ns"].tolist() == [0, 0]
    assert result["layers"]["passes"].tolist() == [3, 3]
    assert result["layers"]["tokens"].tolist() == [2.0, 2.0]


# Tokens, balance and blocking calls

ROWS = {(0, 0): [3, 1, 2, 2], (1, 0): [9, 1, 1, 1], (0, 1): [4, 4, 4, 4], (1, 1): [4, 4, 4, 0]}
"""(rank, layer) to rows of the experts."""


@pytest.fixture(scope="module")
def uneven() -> Result:
    model = Model(ranks=2, exchange="all_to_all", rows=lambda rank, _, layer: ROWS[rank, layer], split=True)
    return analyze(recorded(model)[0], "moe")


def test_tokens_of_each_expert(uneven: Result) -> None:
    expected = [
        (rank, layer, expert, float(rows))
        for rank in (0, 1)
        for layer in (0, 1)
        for expert, rows in enumerate(ROWS[rank, layer])
    ]
    assert records(uneven["experts"]) == sorted(expected, key=lambda row: -row[-1])


def test_tokens_of_each_rank(uneven: Result) -> None:
    assert records(uneven["tokens"]) == [
        (0, 0, 8.0, 0.8),
        (0, 1, 16.0, pytest.approx(16 / 14)),
        (1, 0, 12.0, 1.2),
        (1, 1, 12.0, pytest.approx(12 / 14)),
    ]


def test_what_uneven_tokens_cost(uneven: Result) -> None:
    """An expert's two products take a microsecond a row each forward, and twice that backward.

    Of layer 0 rank 1 has 12 rows and rank 0 has 8: it takes 8 us longer forward and 16 backward. The mean of
    the two loses half of that. Rank 0 also adds up gradients and activates as often.
    """
    table = uneven["balance"]
    columns = ("layer", "ranks", "tokens_mean", "tokens_max", "max_mean_ratio", "worst_rank")
    assert records(table, *columns) == [
        (0, "0-1", 10.0, 12.0, 1.2, 1),
        (1, "0-1", 14.0, 16.0, pytest.approx(16 / 14), 0),
    ]
    more = 4 * ROW_NS * (2 + 4)
    # In layer 1 rank 0 has one expert more, with an activation forward and backward and two added gradients.
    more_1 = 4 * ROW_NS * (2 + 4) + 4 * KERNEL_NS
    assert table["cost_ns"].tolist() == [more // 2, more_1 // 2]
    waits = uneven["waits"]
    assert waits.groupby(["rank", "layer"])["dur_ns"].sum().to_dict() == {(0, 0): more, (1, 1): more_1}
    spent = 10 * ROW_NS * 6 + 4 * 4 * KERNEL_NS
    assert table["experts_ns"].tolist()[0] == spent


def test_grouped_products_hide_the_experts_but_not_the_ranks() -> None:
    model = Model(
        ranks=2,
        exchange="all_to_all",
        rows=lambda rank, _, layer: ROWS[rank, layer],
        loop=False,
        shapes=False,
    )
    result = analyze(recorded(model)[0], "moe")
    assert result["balance"]["tokens_max"].tolist() == [12.0, 16.0]
    assert "tokens by expert" in [skip.subject for skip in result.skips]


def test_kernels_that_do_not_say_who_exchanges() -> None:
    result = agrees(Model(ranks=2, exchange="deep_ep"))
    assert [(skip.subject, skip.reason) for skip in result.skips] == [
        ("balance of a rank's experts", "number of experts on the rank not recorded"),
        ("balance between ranks", "the ranks of the all-to-all are not recorded"),
    ]


def test_ranks_that_are_missing() -> None:
    run, _ = recorded(Model(ranks=2, exchange="all_to_all", split=True))
    result = analyze(make_run(run.traces[:1]), "moe")
    assert [skip.reason for skip in result.skips] == ["ranks of the expert-parallel group are missing"]


@pytest.mark.parametrize(
    ("changes", "stage", "calls"),
    [
        ({"ranks": 2, "exchange": "all_to_all"}, 0, {"dispatch": 1.0, "permute": 1.0}),
        ({"ranks": 2, "exchange": "all_to_all", "fused_permute": True}, 1, {"dispatch": 1.0}),
        (
            {"ranks": 2, "exchange": "all_to_all", "fused_permute": True, "loop": False},
            2,
            {"dispatch": 1.0},
        ),
        ({}, 0, {"permute": 1.0}),
        ({"ranks": 2, "exchange": "deep_ep", "fused_permute": True}, 3, {}),
    ],
    ids=["copied sizes", "fused", "grouped", "nonzero", "none"],
)
def test_blocking_calls(changes: dict[str, Any], stage: int, calls: dict[str, float]) -> None:
    result = agrees(Model(**changes))
    assert result.meta["sync_free_stage"] == stage
    table = result["stages"]
    of_rank = table[table["blocking_count"].gt(0) & table["rank"].eq(0)]
    assert dict(records(of_rank, "stage", "blocking_count")) == calls
    assert set(result["layers"]["blocking_count"]) == {sum(calls.values())}
    blocked = result["layers"]["blocked_ns"]
    assert (blocked.gt(0) if calls else blocked.eq(0)).all()
