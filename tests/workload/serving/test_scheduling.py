"""Requests, slots, the agreement on prefills, halves and labels: all without torch."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workload.serving.simulate import VOCAB, simulate
from tracelens.analysis.common import grammar
from tracelens.errors import TracelensError
from tracelens.workload.serving import Serving, model_config, override_serving, serving_preset
from tracelens.workload.serving.measure import Ticks, latencies, summary
from tracelens.workload.serving.plan import (
    Batch,
    BatchPiece,
    Plan,
    PrefillDelayer,
    Proposal,
    RequestTraffic,
    Running,
    Scheduler,
    ServedRequest,
    half_label,
    halves,
    label,
    make_plan,
    size,
)

TINY = serving_preset("tiny")


@st.composite
def settings(draw: st.DrawFn) -> Serving:
    low, more = draw(st.integers(1, 20)), draw(st.integers(0, 30))
    return Serving(
        rate=draw(st.floats(0.05, 3)),
        requests=draw(st.integers(1, 25)),
        lengths=draw(st.sampled_from(["lognormal", "uniform"])),
        prompt_min=low,
        prompt_max=low + more,
        output_min=1,
        output_max=draw(st.integers(1, 9)),
        slots=draw(st.integers(1, 5)),
        prefill_tokens=low + more + draw(st.integers(0, 40)),
        prefill_delayer=draw(st.sampled_from(["off", "on"])),
        delay_ticks=draw(st.integers(0, 6)),
        delay_quorum=draw(st.floats(0, 1)),
        delay_watermark=draw(st.floats(0, 1)),
        tbo=draw(st.sampled_from(["off", "request", "token"])),
        seed=draw(st.integers(0, 99)),
    )


@given(settings(), st.integers(1, 4))
def test_every_request_is_served_in_full_with_the_slots_there_are(some: Serving, ranks: int) -> None:
    found = simulate(some, ranks, most=5000)
    assert found.over
    assert found.most_used <= some.slots
    assert found.longest_wait <= some.delay_ticks
    done = [one for scheduler in found.schedulers for one in scheduler.finished]
    assert sorted(one.request.number for one in done) == list(range(some.requests))
    assert all(len(one.made) == one.request.output == len(one.ticks) for one in done)
    assert all(one.ticks[0] >= one.request.tick and one.ticks == sorted(set(one.ticks)) for one in done)


@given(settings(), st.integers(1, 4))
def test_plans_fit_the_settings(some: Serving, ranks: int) -> None:
    for plan in simulate(some, ranks, most=200).ticks.plans:
        if plan is None:
            continue
        for kind, two in zip(plan.kinds, plan.tokens, strict=True):
            assert 1 <= sum(two) <= (some.prefill_tokens if kind == "prefill" else some.slots)
        whole = [sum(column) if len(plan.padded) == 1 else column for column in plan.tokens]
        if plan.split:
            assert plan.padded == tuple(max(column) for column in zip(*plan.tokens, strict=True))
        else:
            assert plan.padded == (max(whole),)  # type: ignore[type-var]
        assert plan.split <= (plan.prefills and some.tbo != "off")


def test_arrivals_and_lengths_are_those_asked_for() -> None:
    some = Serving(rate=0.5, prompt_min=100, prompt_max=900, output_min=3, output_max=30)
    traffic = [RequestTraffic(some, VOCAB, rank, 2) for rank in range(2)]
    arrived = [one for tick in range(2000) for part in traffic for one in part.arrive(tick)]
    assert len(arrived) == pytest.approx(2 * 0.5 * 2000, rel=0.1)
    lengths = [len(one.prompt) for one in arrived]
    assert min(lengths) >= 100
    assert max(lengths) <= 900
    assert statistics.median(lengths) == pytest.approx(300, rel=0.05)  # sqrt(100 * 900)
    uniform = RequestTraffic(replace(some, lengths="uniform"), VOCAB)
    assert statistics.mean(uniform.request(number, 0).output for number in range(999)) == pytest.approx(
        16.5, 0.1
    )


@pytest.mark.parametrize("requests", [0, 3])
def test_nothing_arrives_at_a_rate_of_zero(requests: int) -> None:
    assert RequestTraffic(Serving(rate=0.0, requests=requests), VOCAB).arrive(10**6) == []


def test_a_request_is_the_same_on_any_number_of_ranks() -> None:
    def arrived(ranks: int) -> dict[int, ServedRequest]:
        parts = [RequestTraffic(replace(TINY, requests=9), VOCAB, rank, ranks) for rank in range(ranks)]
        return {one.number: replace(one, tick=0) for part in parts for one in part.arrive(10**6)}

    assert arrived(1) == arrived(3)
    assert len(arrived(3)) == 9


def test_a_prefill_takes_what_slots_and_tokens_allow() -> None:
    scheduler = Scheduler(replace(TINY, slots=3, prompt_max=20, prefill_tokens=25))
    scheduler.arrive(
        [ServedRequest(number, 0, (1,) * length, 2) for number, length in enumerate((10, 12, 4, 3))]
    )
    assert [piece.slot for piece in scheduler.prefill_batch()] == [0, 1]
    scheduler.prefilled([7, 8], tick=0)
    assert scheduler.decode_batch() == (BatchPiece(0, 10, (7,)), BatchPiece(1, 12, (8,)))
    assert [one.number for one in scheduler.next_prefill()] == [2]
    scheduler.decoded([9, 9], tick=1)
    assert [one.made for one in scheduler.finished] == [[7, 9], [8, 9]]
    assert [piece.slot for piece in scheduler.prefill_batch()] == [0, 1]


NOTHING, DECODING = Proposal(0, 0, 0, 0, 0), Proposal(0, 0, 0, 3, 4)
READY = Proposal(0, 20, 0, 3, 3)


def answers(delayer: PrefillDelayer, *wishes: Proposal, times: int) -> list[bool]:
    return [delayer.allow(wishes) for _ in range(times)]


def test_a_prefill_waits_for_most_ranks() -> None:
    delayer = PrefillDelayer(replace(TINY, delay_quorum=0.75, delay_ticks=9))
    assert answers(delayer, READY, DECODING, DECODING, READY, times=2) == [False, False]
    assert answers(delayer, READY, READY, DECODING, READY, times=1) == [True]
    assert delayer.waited == 0


def test_a_prefill_waits_for_no_rank_that_has_nothing() -> None:
    delayer = PrefillDelayer(replace(TINY, delay_quorum=1.0))
    assert answers(delayer, READY, NOTHING, NOTHING, NOTHING, times=1) == [True]


def test_a_prefill_waits_for_so_many_ticks_at_most() -> None:
    delayer = PrefillDelayer(replace(TINY, delay_ticks=3))
    assert answers(delayer, READY, DECODING, times=8) == [False, False, False, True] * 2


def test_a_prefill_does_not_wait_with_an_empty_cache() -> None:
    delayer = PrefillDelayer(replace(TINY, slots=4, delay_watermark=0.5))
    assert answers(delayer, READY._replace(used=1), DECODING, times=1) == [True]
    assert answers(delayer, READY._replace(used=2), DECODING, times=1) == [False]


def test_the_delayer_lets_ranks_prefill_together() -> None:
    """Not more prefills at once alone: tokens for the same requests in the same ticks, in fewer prefills."""
    some = replace(TINY, rate=0.3, delay_quorum=1.0)
    off, on = (simulate(replace(some, prefill_delayer=state), 4, 300) for state in ("off", "on"))
    before, after = (summary(one.ticks, [], range(0)) for one in (off, on))
    assert before["mismatched_ticks"] > 150
    assert after["mismatched_ticks"] < 0.2 * before["mismatched_ticks"]
    assert after["padding_fraction"] < before["padding_fraction"] - 0.1
    assert after["prefill_ticks"] < before["prefill_ticks"]
    assert after["held_ticks"] > 50 > before["held_ticks"] == 0


pieces = st.lists(st.integers(1, 40), max_size=6).map(
    lambda lengths: tuple(
        BatchPiece(slot, 3 * slot, tuple(range(length))) for slot, length in enumerate(lengths)
    )
)


@given(pieces)
def test_halves_by_token_differ_by_one_token_and_cut_one_request(batch: Batch) -> None:
    first, second = halves(batch, "token")
    assert size(first) == size(batch) // 2
    assert size(first) + size(second) == size(batch)
    for piece in batch:
        parts = [part for half in (first, second) for part in half if part.slot == piece.slot]
        assert sum((part.tokens for part in parts), ()) == piece.tokens
        assert [part.answers for part in parts] == [False] * (len(parts) - 1) + [True]
        assert parts[-1].first + len(parts[-1].tokens) == piece.first + len(piece.tokens)
    assert len(first) + len(second) - len(batch) in (0, 1)


@given(pieces)
def test_halves_by_request_leave_requests_whole(batch: Batch) -> None:
    first, second = halves(batch, "request")
    assert sorted(first + second) == sorted(batch)
    longest = max((len(piece.tokens) for piece in batch), default=0)
    assert abs(size(first) - size(second)) <= longest


def test_a_decode_beside_a_prefill_is_eager_and_all_are_padded() -> None:
    some = replace(TINY, graph="on", slots=6, tbo="off")
    assert some.graph_sizes == (1, 2, 4, 6)
    wishes = [Proposal(0, 30, 0, 2, 2), Proposal(0, 0, 0, 3, 3), NOTHING]
    plan = make_plan(wishes, prefill=True, settings=some)
    assert plan == Plan(("prefill", "decode", "dummy_prefill"), ((0, 30), (0, 3), (0, 1)), (30,), 0)
    plan = make_plan(wishes, prefill=False, settings=some)
    assert plan == Plan(("decode", "decode", "dummy_decode"), ((0, 2), (0, 3), (0, 1)), (4,), 4)
    assert make_plan([NOTHING, READY], prefill=False, settings=some) is not None
    assert make_plan([NOTHING, READY._replace(decode_second=0)], prefill=False, settings=some) is None


def test_a_tick_is_cut_in_two_where_every_prefill_can_be() -> None:
    some = replace(TINY, tbo="request")
    whole, cut = Proposal(0, 30, 1, 1, 2), Proposal(10, 20, 1, 2, 3)
    assert make_plan([whole, cut], prefill=True, settings=some).padded == (30,)  # type: ignore[union-attr]
    assert make_plan([cut, cut], prefill=True, settings=some).padded == (10, 20)  # type: ignore[union-attr]
    assert make_plan([cut, cut], prefill=False, settings=some).padded == (3,)  # type: ignore[union-attr]
    beside = [cut, Proposal(0, 0, 12, 13, 9), NOTHING]
    assert make_plan(beside, prefill=True, settings=some).padded == (12, 20)  # type: ignore[union-attr]


BATCH = tuple(BatchPiece(slot, 10 * slot, (5,)) for slot in range(5))
EAGER, SPLIT = Plan(("decode",), ((0, 5),), (5,)), Plan(("decode",), ((2, 3),), (2, 3))


@pytest.mark.parametrize(
    ("kind", "batch", "plan", "text"),
    [
        (
            "prefill",
            (BatchPiece(0, 0, (1,) * 7), BatchPiece(1, 0, (1,) * 9)),
            EAGER,
            "prefill[bs=2 tok=16 ctx=[7, 9]]",
        ),
        ("prefill", (BatchPiece(0, 0, (1,) * 78),), SPLIT, "prefill[bs=1 tok=78 ctx=78] tbo=1"),
        ("decode", BATCH, EAGER, "eager_decode[bs=5 tok=5 ctx=[1, 11, 21]...+2]"),
        ("decode", BATCH, EAGER._replace(graph=8), "decode[bs=5/8 tok=5 d=5]"),
        ("dummy_prefill", BATCH[:1], EAGER, "dummy_prefill[bs=1 tok=1 ctx=1]"),
        ("dummy_decode", BATCH[:1], EAGER, "dummy_eager_decode[bs=1 tok=1 ctx=1]"),
        ("dummy_decode", BATCH[:1], EAGER._replace(graph=8), "dummy_decode[bs=1/8 tok=1 d=1]"),
    ],
)  # fmt: skip
def test_labels_are_read_as_what_they_say(kind: Any, batch: Batch, plan: Plan, text: str) -> None:
    assert label(kind, batch, plan) == text
    read = grammar().step(text)
    assert read is not None
    assert (read.engines, read.kind) == (("ATOM",), kind.removeprefix("dummy_"))
    assert (read.requests, read.tokens) == (len(batch), size(batch))
    assert read.dummy == kind.startswith("dummy")
    assert read.tbo == plan.split
    assert read.run == ("graph" if plan.graph else "eager")
    assert read.graph_requests == (plan.graph or -1)


def test_labels_of_halves_are_read() -> None:
    assert grammar().half(half_label(1, BATCH)) == (1, 5)


def test_latencies_are_of_requests_in_timed_ticks() -> None:
    ticks = Ticks()
    for tick in range(6):
        ticks.add(None, False, tick * 10.0, tick * 10.0 + 8)
    late = Running(ServedRequest(0, 1, (1, 2), 3), 0, [1, 1, 1], [2, 3, 5])
    early = Running(ServedRequest(1, 0, (1, 2), 2), 1, [1, 1], [0, 4])
    found = latencies([late, early], ticks, range(1, 6))
    assert found["ttft_ms"] == [28 - 10]
    assert found["ttft_ticks"] == [2]
    assert found["tpot_ms"] == [(58 - 28) / 2]
    assert found["tpot_ticks"] == [1.5]
    assert found["tokens"] == [4]
    told = summary(ticks, [found], range(1, 6))
    assert told["tokens_per_s"] == pytest.approx(4 / (58 - 10) * 1e3)
    assert (told["idle_ticks"], told["padding_fraction"]) == (6, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tbo": "half"}, "unknown tbo 'half'"),
        ({"slots": "0"}, "slots must be at least 1, not 0"),
        ({"slots": "some"}, "slots must be a whole number, not 'some'"),
        ({"rate": "often"}, "rate must be a number, not 'often'"),
        ({"rate": "-1"}, "rate must be 0 or more"),
        ({"rate": "nan"}, "rate must be 0 or more, not nan"),
        ({"prompt_min": "50"}, r"prompt_max \(48\) is below prompt_min \(50\)"),
        ({"prefill_tokens": "40"}, r"prefill_tokens \(40\) must be at least prompt_max \(48\)"),
        ({"delay_quorum": "2"}, "delay_quorum must be a fraction from 0 to 1, not 2.0"),
    ],
)
def test_bad_settings_are_one_line(fields: dict[str, str], message: str) -> None:
    with pytest.raises(TracelensError, match=message) as caught:
        override_serving(TINY, fields)
    assert "\n" not in str(caught.value)


def test_fields_of_training_are_refused() -> None:
    with pytest.raises(TracelensError, match="node is a field of training runs: serving takes"):
        model_config("tiny", ["node=1"], TINY)
    with pytest.raises(TracelensError, match="dispatch is a field of training runs"):
        model_config("tiny", ["dispatch=dedup"], TINY)
    with pytest.raises(TracelensError, match="seq is a field of training runs"):
        model_config("tiny", ["seq=64"], TINY)
    with pytest.raises(TracelensError, match="tp is a field of training runs"):
        model_config("tiny", ["tp=2"], TINY)
    config = model_config("tiny", ["permute=fused", "dtype=bfloat16", "layers=2"], TINY)
    assert (config.training.seq, config.toggles.permute) == (TINY.context, "fused")
