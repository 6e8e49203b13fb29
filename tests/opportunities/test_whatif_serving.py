"""Serving: prompts that wait for others, and prefills as two batches."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelens
from tests.what_if.replays import interval, run_of
from tracelens.analysis.common import Label
from tracelens.analysis.serving import GlobalStep
from tracelens.analysis.serving.steps import RankStep, Step
from tracelens.errors import TracelensError
from tracelens.opportunities.serving import StepOutcome, delayed
from tracelens.table import Result
from tracelens.trace import Run
from tracelens.what_if import whatif

SERVING = Path(__file__).resolve().parents[2] / "sample_traces" / "serving"
PREFILL, DECODE = "prefill[bs=1 tok=1024 ctx=1024]", "decode[bs=16 tok=16 d=16]"


def steps(*columns: str) -> list[GlobalStep]:
    """GlobalStep steps from what each rank runs in them: "p100 d" for 100 tokens of prompts and a decode."""
    global_steps = []
    for number, text in enumerate(columns):
        members = []
        for rank, word in enumerate(text.split()):
            kind = {"p": "prefill", "m": "mixed", "d": "decode", "x": "decode"}[word[0]]
            label = Label(("ATOM",), kind, "", word == "x", False, 1, -1, int(word[1:] or 1))
            members.append(
                RankStep(rank, Step(label, False, False, 100 * number, 100 * number + 50, (), -1, -1))
            )
        global_steps.append(GlobalStep(tuple(members)))
    return global_steps


STAYS, DECODES = StepOutcome(False), StepOutcome(True)


@pytest.mark.parametrize(
    ("columns", "outcomes"),
    [
        # Rank 0 waits for rank 1: both prefill in the second step, which has 1.5 times the tokens.
        (("p150 d", "d p100"), [DECODES, StepOutcome(False, 1.5)]),
        (("p80 d", "d p100"), [DECODES, STAYS]),
        # Prompts of one rank pile up until another one prefills.
        (("p60 d", "p60 d", "d p100"), [DECODES, DECODES, StepOutcome(False, 1.2)]),
        # They fit beside the longer prompts of another rank, or make its step longer.
        (("p50 d", "p40 p100"), [DECODES, STAYS]),
        (("p50 d", "p100 p40"), [DECODES, StepOutcome(False, 1.5)]),
        # Nobody else ever prefills, or has no request.
        (("p50 d", "p50 d", "d d"), [STAYS, STAYS, STAYS]),
        (("p50 x", "x p50"), [STAYS, STAYS]),
        # Chunks of prompts beside decoding in one rank are prompts.
        (("m70 d", "d m70"), [DECODES, STAYS]),
        (("d d", "p10 p10"), [STAYS, STAYS]),
    ],
)
def test_what_becomes_of_steps(columns: tuple[str, ...], outcomes: list[StepOutcome]) -> None:
    assert delayed(steps(*columns)) == outcomes


RECORD = (
    "op record_param_comms collective=_allgather_base group=1 ranks=[0,1] size=2 in=4000 out=8000 dtype=Half"
)


def rank(*parts: tuple[str, str, str]) -> str:
    """A rank with steps of 20 columns: (label, columns of computation, columns of communication).

    The marks stand one behind the other on the host, which runs ahead; the GPU begins at column 2.
    """
    rows, letters = ["step 0 | ------------------"], iter("abcdefghijklmnop")
    for number, (label, computation, communication) in enumerate(parts):
        ahead, gpu = " " * (6 * number + 1), " " * (20 * number + 2)
        first, second = next(letters), next(letters)
        rows += [
            f"scope {label} | {ahead}------",
            f"launch | {ahead}{first}",
            f"{RECORD} | {ahead}  --",
            f"launch | {ahead}  {second}",
            f"s7 gemm | {gpu}{computation.replace('#', first)}",
            f"s7 ncclDevKernel_AllGather | {gpu}{communication.replace('#', second)}",
        ]
    return "\n".join(rows)


def of(run: Run, *scenarios: str) -> Result:
    return whatif(run, scenarios, step="all")


def test_prompts_that_wait_for_others() -> None:
    """Two steps with a prefill each, 20 columns long, and one of decoding, 6 long: 46 columns become 32.

    Rank 0 prefills in the first one, rank 1 in the second one, as many tokens.
    """
    long, short = ("########    ", "            ########"), ("####", "    ##")
    run = run_of(
        rank((PREFILL, *long), (DECODE, *long), (DECODE, *short)),
        rank((DECODE, *long), (PREFILL, *long), (DECODE, *short)),
    )
    result = of(run, "prefill_delayer")
    (assumption,) = result["assumptions"]["assumption"]
    assert assumption.startswith("1 of 2 steps with both prefill and decoding")
    assert "(0.01 ms)" in assumption
    low, step, high = interval(result, "prefill_delayer")
    assert result.meta["base_ns"] == 48_000
    assert low <= step <= high
    # 20 us are scaled to 6; what lies between two steps stays.
    assert step == pytest.approx(48 - 14, abs=1)


def test_two_batches() -> None:
    """20 us of computation, then 4 of transfer: all of it fits beside the other half, or half of it does.

    The gemm runs twice, which takes 4 us more: the time of the shortest kernel.
    """
    run = run_of(*[rank((PREFILL, "####################", "                    ####"))] * 2)
    result = of(run, "identity", "two_batch_overlap", "two_batch_overlap=0.5")
    # Low: with half the host time before the first launch.
    assert interval(result, "identity") == (25.5, 26, 26)
    assert interval(result, "two_batch_overlap") == (25.5, 26, 26)
    assert interval(result, "two_batch_overlap=0.5") == (27.5, 28, 28)
    with pytest.raises(TracelensError, match="an efficiency is at most 1"):
        of(run, "two_batch_overlap=1.5")


def test_two_batches_are_launched_twice() -> None:
    """A host that takes 2 us between its calls, and a transfer that starts 1 us behind the second one."""
    run = run_of(*[rank((PREFILL, "#", "  ##############################"))] * 2)
    base, split = (interval(of(run, name), name)[1] for name in ("identity", "two_batch_overlap"))
    # The second call comes 2 us later. Of the transfer fits so much beside computation as that takes, 2 us.
    assert (base, split) == (34, 34)
    half = interval(of(run, "two_batch_overlap=0.5"), "two_batch_overlap=0.5")[1]
    assert half == 35


def test_where_there_is_nothing_to_align_or_split() -> None:
    plain = run_of("launch | a\n s7 gemm |  aaa")
    same = run_of(*[rank((DECODE, "########", "        ########"))] * 2)
    alone = run_of(rank((PREFILL, "########", "        ########")))
    assert all("no step labels" in reason for reason in reasons(plain))
    delayer, two_batch = reasons(same)
    assert "same phase in every step" in delayer
    assert "all ranks prefill" in two_batch
    assert all("traces of all ranks" in reason for reason in reasons(alone))


def reasons(run: Run) -> list[str]:
    names = ("prefill_delayer", "two_batch_overlap")
    by_subject = {skip.subject: skip.reason for skip in of(run, *names).skips}
    return [by_subject[f"scenario {name}"] for name in names]


def per_token(name: str, scenario: str) -> float:
    """Projected ns a token of requests, of a recorded run."""
    run = tracelens.load(SERVING / name)
    tokens = int(tracelens.analyze(run, "serving")["summary"]["tokens"][0])
    return interval(of(run, scenario), scenario)[1] * 1e3 / tokens


def test_a_run_without_delayer_predicts_the_one_with_it() -> None:
    """Other requests come together in the recorded run, so that tokens are compared; a tenth is missing.

    The recording ends in the middle of a wait: its last prefill beside decoding stays.
    """
    base, measured = per_token("delayer_off", "identity"), per_token("delayer_on", "identity")
    step = per_token("delayer_off", "prefill_delayer")
    assert base / measured > 1.3
    assert step / measured == pytest.approx(1.11, abs=0.03)


@pytest.mark.parametrize("name", ["tbo_request", "tbo_token"])
def test_a_run_predicts_that_two_batches_do_not_pay(name: str) -> None:
    """Hosts that launch everything twice take longer than the transfers that are hidden."""
    base, measured = per_token("delayer_on", "identity"), per_token(name, "identity")
    step = per_token("delayer_on", "two_batch_overlap")
    assert measured > base
    assert step > base
    assert step / measured == pytest.approx(1, abs=0.1)


def test_the_steps_of_a_serving_engine_are_looked_at_together() -> None:
    """Each of them runs a different batch: none is typical, and none says how much another one may differ."""
    run = tracelens.load(SERVING / "delayer_on")
    result, one = whatif(run, ["identity"]), whatif(run, ["identity"], step="31")
    assert result.meta["step"] == "all steps"
    assert result.meta["base_ns"] > 10 * one.meta["base_ns"]
    for found, why in (
        (result, "all steps together were recorded only once"),
        (one, "runs a different batch"),
    ):
        low, projected, high = interval(found, "identity")
        assert low < projected == high  # low: with half the host time
        assert any(why in skip.reason for skip in found.skips)
