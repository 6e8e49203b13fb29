"""What is tried, what is refused and why, and which layout comes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from tracelens.devices import device
from tracelens.errors import TracelensError
from tracelens.planner.config import MODELS, Config, Layout, Toggles, Training
from tracelens.planner.memory import Assumptions, room, worst
from tracelens.planner.search import (
    BATCH,
    Question,
    Refusal,
    Space,
    at_least,
    candidates,
    divisors,
    footprint,
    search,
    variants,
)
from tracelens.planner.step_time import ROOFLINE, estimate
from tracelens.table import Result

MI300X, MI355X, H200 = device("mi300x"), device("mi355x"), device("h200")
# The layouts of two published charts of memory on 768 GPUs, and their way of counting.
SIX = [
    Space(pp=(24,), vpp=(4,), ep=(8, 16), cp=(1, 2), tp=(1,), recompute=("none",)),
    Space(pp=(48,), vpp=(2,), ep=(8,), cp=(1, 2), tp=(1,), recompute=("none",)),
]
BRIEF = Assumptions(framework="amd-guide")


def first(result: Result, name: str) -> dict[str, Any]:
    rows = result["layouts"]
    row = rows[(rows["device"] == name) & (rows["position"] == 1)].iloc[0]
    return {size: int(row[size]) for size in ("pp", "vpp", "ep", "cp")}


@pytest.mark.parametrize("batch", [1536, 9216, BATCH])
@pytest.mark.parametrize(
    ("model", "name", "best"),
    [
        ("moe_1t", "mi300x", {"pp": 24, "vpp": 4, "ep": 8, "cp": 2}),
        ("moe_1t", "mi355x", {"pp": 24, "vpp": 4, "ep": 8, "cp": 1}),
        ("moe_2t", "mi300x", {"pp": 24, "vpp": 4, "ep": 16, "cp": 2}),
        ("moe_2t", "mi355x", {"pp": 24, "vpp": 4, "ep": 8, "cp": 2}),
    ],
)
def test_the_published_choices_come_out(batch: int, model: str, name: str, best: dict[str, int]) -> None:
    """The recommendations of AMD's MoE training guide (figures 8 and 9), from bytes and least step times."""
    question = Question(MODELS[model], 768, global_batch=batch, memory=BRIEF)
    result = search(question, [device(name)], SIX)
    assert first(result, name) == best
    assert result.meta["possible"] == 6


def test_the_reasons_of_the_choice_are_those_that_were_given() -> None:
    result = search(Question(MODELS["moe_1t"], 768, memory=BRIEF), [MI355X], SIX)
    rows = result["layouts"].set_index(["pp", "ep", "cp"])
    near, far = rows.loc[(24, 8, 1)], rows.loc[(24, 16, 1)]
    deep, shared = rows.loc[(48, 8, 1)], rows.loc[(24, 8, 2)]
    # More ranks for the experts: all-to-all between nodes, and hardly less memory.
    exchanging = [row["comm_fraction"] * row["step_ns"] for row in (near, far)]
    assert exchanging[1] > 3 * exchanging[0]
    assert far["bytes"] > 0.9 * near["bytes"]
    # More stages: a larger bubble and more activations.
    assert deep["bubble"] > 1.5 * near["bubble"]
    assert deep["bytes"] > near["bytes"]
    # Shared sequences: half the activations, for messages that were not there.
    assert near["bytes"] - shared["bytes"] == pytest.approx(76.7e9, rel=1e-3)
    parts = result["parts"].set_index(["layout", "part"])["ns"]
    assert parts["pp=24 vpp=4 ep=8 cp=2", "context_exchange"] > 0
    assert parts["pp=24 vpp=4 ep=8", "context_exchange"] == 0


def test_small_batches_make_the_bubble_count() -> None:
    # With as many micro-batches as stages, sharing sequences doubles these and halves the bubble.
    result = search(
        Question(MODELS["moe_1t"], 768, global_batch=768, memory=BRIEF, machine=ROOFLINE), [MI355X], SIX
    )
    assert first(result, "mi355x")["cp"] == 2


def small(**changes: Any) -> Question:
    return replace(Question(MODELS["deepseek_v2_lite"], 16, global_batch=64), **changes)


def test_the_first_is_the_fastest_of_all_that_fit() -> None:
    """Every layout of a small space, worked out one by one."""
    space = Space(pp=(1, 2), vpp=(1,), cp=(1, 2), tp=(1, 2), ep=(8, 16), recompute=("none",))
    result = search(small(), [H200], [space], top=1000)
    by_hand = {}
    for pp in (1, 2):
        for cp in (1, 2):
            for tp in (1, 2):
                for ep in (8, 16):
                    if ep > 16 // pp:
                        continue
                    layout = Layout(ranks=16, pp=pp, cp=cp, tp=tp, ep=ep)
                    training = Training(micro_batches=64 // layout.dp)
                    config = Config(MODELS["deepseek_v2_lite"], layout, training=training)
                    if worst(config).total <= room(H200, "exact", None).usable:
                        by_hand[pp, cp, tp, ep] = estimate(config, H200).step_ns
    rows = result["layouts"]
    assert rows["position"].tolist() == list(range(1, len(by_hand) + 1))
    keys = list(zip(rows["pp"], rows["cp"], rows["tp"], rows["ep"], strict=True))
    assert dict(zip(keys, rows["step_ns"], strict=True)) == by_hand
    assert rows["step_ns"].is_monotonic_increasing
    assert (rows["free_bytes"] >= 0).all()
    assert result.meta["fits"] == {"h200": len(by_hand)}


def test_of_one_layout_the_least_recomputation_that_fits() -> None:
    space = Space(pp=(1,), cp=(1,), tp=(1,), ep=(8,), micro_batch=(2,), recompute=("full", "9", "none"))
    texts = [candidate.recompute for candidate in variants(Config(MODELS["deepseek_v2_lite"]), space)]
    assert texts == ["none", "9", "full"]
    config = Config(
        MODELS["deepseek_v2_lite"], Layout(ranks=16, ep=8), training=Training(micro_batch=2, micro_batches=2)
    )
    sizes = {
        candidate.recompute: footprint(candidate.config, Assumptions())
        for candidate in variants(config, space)
    }
    assert sizes["none"] > sizes["9"] > sizes["full"]
    whole = 141_000_000_000
    for text, has in (("none", sizes["none"]), ("9", sizes["none"] - 1), ("full", sizes["9"] - 1)):
        lent = structs.replace(H200, name="lent", hbm_bytes=max(has, whole))
        question = small(reserve=max(has, whole) - has)
        result = search(question, [lent], [space])
        assert result["layouts"]["recompute"].tolist() == [text]
        assert result["layouts"]["position"].tolist() == [1]
        assert result["layouts"]["free_bytes"].tolist() == [has - sizes[text]]


def test_each_device_takes_as_little_recomputation_as_it_can() -> None:
    space = Space(pp=(1,), cp=(1,), tp=(1,), ep=(8,), micro_batch=(4,))
    small_one = structs.replace(H200, name="small", hbm_bytes=110_000_000_000)
    rows = search(small(), [small_one, MI355X], [space])["layouts"]
    assert rows["recompute"].tolist() == ["16", "none"]


def test_amounts_of_recomputation_that_are_tried() -> None:
    def texts(pp: int, *recompute: str) -> list[str]:
        config = Config(MODELS["moe_1t"], Layout(ranks=pp, pp=pp), training=Training(micro_batches=pp))
        return [candidate.recompute for candidate in variants(config, Space(recompute=recompute))]

    assert texts(8) == ["none", "1", "2", "3", "4", "8", "full"]
    assert texts(24) == ["none", "1", "2", "3", "full"]
    assert texts(96) == ["none", "full"]
    # As many layers as there are, or more, are all of them.
    assert texts(8, "1000", "3", "12", "full") == ["3", "full"]


def test_the_charts_know_no_recomputation() -> None:
    small_one = structs.replace(MI300X, name="small", hbm_bytes=50_000_000_000)
    result = search(
        Question(MODELS["moe_1t"], 768, memory=BRIEF),
        [small_one],
        [Space(pp=(24,), tp=(1, 2), ep=(8,), vpp=(4,), cp=(1,))],
    )
    assert result["layouts"]["recompute"].tolist() == ["none"]
    assert set(result["refused"]["reason"]) == {
        "does not fit",
        "framework=amd-guide does not support tensor parallelism: leave it out, or use framework=megatron",
    }


def test_layers_of_each_chunk_are_computed_again() -> None:
    config = Config(MODELS["deepseek_v2_lite"], Layout(ranks=3, pp=3), training=Training(micro_batches=3))
    result = {
        candidate.recompute: candidate.config.toggles.recompute_layer_ids
        for candidate in variants(config, Space(recompute=("2", "none", "full")))
    }
    assert result == {"none": (), "2": (0, 1, 9, 10, 18, 19), "full": tuple(range(27))}


def test_where_none_fits_those_that_need_least_are_shown() -> None:
    result = search(Question(MODELS["moe_2t"], 8, global_batch=8), [MI300X, H200], [Space(tp=(1,))])
    rows = result["layouts"]
    assert rows["position"].isna().all()
    assert (rows["free_bytes"] < 0).all()
    assert [skip.subject for skip in result.skips] == ["layouts on mi300x", "layouts on h200"]
    assert result.meta["best"] == {}
    lowest = rows[rows["device"] == "h200"]["bytes"]
    assert lowest.is_monotonic_increasing
    assert "at least" in result["refused"]["example"].iloc[0]


def test_what_cannot_be_is_counted_by_its_reason() -> None:
    space = Space(pp=(1, 3, 32), vpp=(1, 2), cp=(1,), tp=(1, 16), ep=(8, 5), micro_batch=(1, 3))
    result = search(small(), [H200], [space])
    refused = result["refused"]
    reasons = dict(zip(refused["reason"], refused["count"], strict=True))
    assert reasons["N GPUs are not a multiple of pp x cp x tp"] == 4
    assert reasons["ep (N) must divide the N ranks of a stage"] == 8
    assert reasons["vpp above N needs a pipeline: pp above N"] == 4
    assert reasons["a global batch of N sequences is not a multiple of dp x micro_batch = N x N"] == 2
    texts_ = [text for text in refused["example"] if "global batch" in text]
    assert texts_ == [
        "pp=1 vpp=1 cp=1 tp=1 ep=8 micro_batch=3: a global batch of 64 sequences is not a multiple of dp x "
        "micro_batch = 16 x 3"
    ]
    assert result.meta["tried"] == result.meta["possible"] + refused[refused["device"] == ""]["count"].sum()


def test_everything_that_makes_sense_is_tried() -> None:
    model = MODELS["deepseek_v2_lite"]
    every = list(candidates(model, 16, 64, Training(), Toggles(), Space()))
    possible = [candidate for candidate in every if isinstance(candidate, Config)]
    seen = {(c.layout.pp, c.layout.vpp, c.layout.cp, c.layout.tp, c.layout.ep) for c in possible}
    assert len(seen) == len(possible)
    assert {candidate[0] for candidate in seen} == {1, 2, 4, 8, 16}
    assert {candidate[1] for candidate in seen} == {1}  # 27 layers: no even chunks on 2 stages or more
    assert {candidate[4] for candidate in seen} == {1, 2, 4, 8, 16}
    assert all(isinstance(candidate, Config | Refusal) for candidate in every)
    assert all(c.global_tokens == 64 * 4096 for c in possible)
    assert divisors(12) == (1, 2, 3, 4, 6, 12)
    assert divisors(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)
    assert divisors(1) == (1,)
    with_chunks = candidates(
        MODELS["moe_1t"], 768, 1536, Training(), Toggles(), Space(pp=(24,), tp=(1,), cp=(1,))
    )
    assert {c.layout.vpp for c in with_chunks if isinstance(c, Config)} == {1, 2, 4}


def test_a_layout_of_two_spaces_is_tried_once() -> None:
    space = Space(pp=(1,), cp=(1,), tp=(1,), ep=(8, 16))
    assert search(small(), [H200], [space, space]).meta["possible"] == 2


def test_amounts_of_recomputation_of_two_spaces_are_both_tried() -> None:
    spaces = [Space(pp=(1,), cp=(1,), tp=(1,), ep=(8,), recompute=(text,)) for text in ("full", "none")]
    assert search(small(), [H200], spaces)["layouts"]["recompute"].tolist() == ["none", "full"]


def test_a_bound_is_one() -> None:
    for layout in (Layout(ranks=16), Layout(ranks=16, pp=2, cp=2, tp=2), Layout(ranks=64, pp=4, ep=4, cp=4)):
        config = Config(
            MODELS["deepseek_v2"], layout, training=Training(micro_batch=2, micro_batches=2 * layout.pp)
        )
        assert 0 < at_least(config, Assumptions()) < footprint(config, Assumptions())
        assert footprint(config, Assumptions()) == worst(config).total
    assert at_least(config, BRIEF) == 0


def test_the_last_stage_may_hold_most() -> None:
    # Both have as many layers, all computed again; logits are kept.
    config = Config(
        MODELS["moe_1t"],
        Layout(ranks=16, pp=2, ep=8),
        Toggles(recompute_layer_ids=tuple(range(96))),
        Training(micro_batch=4, micro_batches=4),
    )
    assert worst(config).rank // 8 == 1
    assert footprint(config, Assumptions()) == worst(config).total


def test_recomputed_stages_are_kinds_of_their_own() -> None:
    config = Config(
        MODELS["moe_1t"], Layout(ranks=64, pp=8), Toggles(recompute_layer_ids=tuple(range(12))),
        Training(micro_batches=8),
    )  # fmt: skip
    # The first stage keeps most micro-batches, but little of each; the worst one is the next.
    assert worst(config).rank // 8 == 1
    assert footprint(config, Assumptions()) == worst(config).total


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": 0}, "gpus must be at least 1"),
        ({"global_batch": 0}, "global_batch must be at least 1"),
    ],
)
def test_questions_that_cannot_be(changes: dict[str, int], message: str) -> None:
    with pytest.raises(TracelensError, match=message):
        small(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pp": (0,)}, "pp must be at least 1, not 0"),
        ({"recompute": ("most",)}, "recompute must be none, full or layers per chunk, not 'most'"),
    ],
)
def test_spaces_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TracelensError, match=message):
        Space(**changes)


def test_searches_that_cannot_be() -> None:
    with pytest.raises(TracelensError, match="needs a device"):
        search(small(), [])
    with pytest.raises(TracelensError, match="none of 16 layouts is valid; 16 as in pp=5"):
        search(small(), [H200], [Space(pp=(5,))])
    with pytest.raises(TracelensError, match="the memory of mine is unknown"):
        search(small(), [structs.replace(H200, name="mine", hbm_bytes=0)])
    with pytest.raises(TracelensError, match=r"the reserve leaves nothing of the 140 GiB of h200"):
        search(small(reserve=10**12), [H200])
    with pytest.raises(TracelensError, match="reserve must be 0 bytes or more, not -1"):
        search(small(reserve=-1), [H200])
    # What the charts cannot tell is refused, and not guessed.
    with pytest.raises(TracelensError, match="framework=amd-guide does not support tensor"):
        search(small(memory=BRIEF), [H200], [Space(tp=(2,))])


def test_assumptions_are_told_with_their_source() -> None:
    machine = replace(ROOFLINE, matrix_efficiency=0.5)
    result = search(small(machine=machine), [H200], [Space(pp=(1,), cp=(1,), tp=(1,), ep=(16,))])[
        "assumptions"
    ]
    texts_ = result.set_index("name")
    assert texts_.loc["matrix_efficiency", "value"] == "0.5"
    assert texts_.loc["matrix_efficiency", "note"].endswith("; given")
    assert texts_.loc["nic_bytes_per_s", "note"].startswith("network bandwidth per GPU")
    assert (texts_.loc["matrix_flops_per_s", "value"], texts_.loc["matrix_flops_per_s", "device"]) == (
        "4.947e+14", "h200",
    )  # fmt: skip
