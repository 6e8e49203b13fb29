"""Tokens per second and time per output token: by hand, and from the raw events of recorded serving runs."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.analysis.serving.test_serving import rank
from tests.builders import aligned, draw_run, records
from tests.reference.raw import text_of
from tracelens.analysis.common import grammar
from tracelens.table import Result

SAMPLES = Path(__file__).parents[3] / "sample_traces" / "serving"


def of(*steps: tuple[str, int]) -> Result:
    return tracelens.analyze(draw_run(rank(*steps)), "serving")


def row(result: Result, *columns: str) -> tuple[Any, ...]:
    (only,) = records(result["throughput"], *columns)
    return only


def reason(result: Result, subject: str) -> str:
    (only,) = (skip.reason for skip in result.skips if skip.subject.startswith(subject))
    return only


PREFILL, DECODE, MORE = "prefill[bs=1 tok=600 ctx=600]", "decode[bs=4 tok=4 d=4]", "decode[bs=6 tok=6 d=6]"


def test_rates_between_the_ends_of_the_first_and_the_last_step() -> None:
    """Steps end at 4, 14, 20 and 25 us: 600 prompt and 6 + 6 output tokens in the 21 us after the first."""
    result = of((DECODE, 4), (PREFILL, 10), (MORE, 6), (MORE, 5))
    assert row(result, "steps", "dur_ns", "prompt_tokens", "output_tokens") == (3, 21_000, 600, 12)
    assert row(result, "prompt_tokens_per_s", "output_tokens_per_s") == pytest.approx(
        (600 / 21e-6, 12 / 21e-6)
    )
    # 4 requests wait 16 us for their next token, the prefill in between, then 6 wait 5 us.
    assert row(result, "tpot_ns", "tpot_max_ns") == ((4 * 16_000 + 6 * 5_000) // 10, 16_000)
    assert row(result, "prefill_ns") == (10_000,)
    assert "when requests arrive" in reason(result, "time to first token")


def test_a_step_that_ends_before_an_earlier_one() -> None:
    """On streams of their own: the second step ends at 12 us, the first one at 16 us."""
    text = aligned("""
        scope decode[bs=4_tok=4_d=4] | ----
        launch                       |  a
        s7 gemm                      |     aaaaaaaaaaaa
        scope decode[bs=6_tok=6_d=6] |     ----
        launch                       |      b
        s9 gemm                      |         bbbb
    """).replace("_", " ")
    result = tracelens.analyze(draw_run(text), "serving")
    assert row(result, "steps", "dur_ns", "output_tokens", "tpot_ns") == (1, 4_000, 4, 4_000)


def test_mixed_steps_count_both_phases() -> None:
    step = "execute_context_1(100)_generation_3(3)"
    result = of((step, 4), (step, 5), ("execute_context_0(0)_generation_4(4)", 2))
    columns = ("prompt_tokens", "output_tokens", "tpot_ns", "prefill_ns")
    assert row(result, *columns) == (100, 3 + 4, (3 * 5_000 + 3 * 2_000) // 6, 4_500)


@pytest.mark.parametrize(
    ("label", "why"),
    [
        ("decode[bs=4 tok=16 d=4 spec=3]", "accepted"),
        ("step[TARGET_VERIFY bs=8]", "lacks the number"),
        ("step[TARGET_VERIFY bs=8 g_sq=32 g_sqsq=128 g_sqsk=4096 g_sk=1024]", "accepted"),
        ("[Executor] _forward_step 3: 0 ctx reqs, 4 gen reqs", "lacks the number"),
        ("step[MIXED bs=66]", "lacks the number"),
    ],
)
def test_accepted_drafts_are_not_in_the_label(label: str, why: str) -> None:
    result = of((label, 4), (label, 5))
    assert row(result, "output_tokens", "output_tokens_per_s", "tpot_ns", "tpot_max_ns") == (
        None,
        None,
        None,
        None,
    )
    assert why in reason(result, "output tokens of rank 0")


def test_drafts_beside_the_steps_make_them_speculative() -> None:
    """SGLang's drafts come as DECODE, too: one token a request is not known then."""
    result = of(("step[DECODE bs=4]", 2), ("step[DRAFT_EXTEND bs=4]", 1), ("step[DECODE bs=4]", 2))
    assert row(result, "steps", "output_tokens") == (1, None)
    assert "accepted" in reason(result, "output tokens of rank 0")


def test_dummies_serve_nobody() -> None:
    dummy = "dummy_decode[bs=1/8 tok=1 d=1]"
    result = of((DECODE, 2), (dummy, 3), (DECODE, 4), (dummy, 5))
    assert row(result, "output_tokens", "dur_ns", "tpot_ns") == (4, 12_000, 7_000)


def test_one_step_and_one_phase_have_no_rate() -> None:
    assert "fewer than two steps" in reason(of((DECODE, 4)), "tokens per second")
    run = draw_run(rank((DECODE, 4), (PREFILL, 4), (DECODE, 4)))
    narrowed = tracelens.analyze(run, "serving", step="decode")
    assert len(narrowed["throughput"]) == 0
    assert "leave --step out" in reason(narrowed, "tokens per second")


@pytest.mark.parametrize("name", ["delayer_off", "delayer_on", "tbo_request"])
def test_rates_of_a_recorded_run(name: str) -> None:
    """By counting in the plain JSON: the last kernel that each labeled range launched ends its step."""
    result = tracelens.analyze(tracelens.load(SAMPLES / name), "serving")
    for number in (0, 1):
        steps = raw_steps(SAMPLES / name / f"rank{number}.json.zst")
        (first, _, _), *later = steps
        span = later[-1][0] - first
        prompts, outputs = (sum(step[index] for step in later) for index in (1, 2))
        found = next(line for line in result["throughput"].to_dict("records") if line["rank"] == number)
        assert (found["prompt_tokens"], found["output_tokens"]) == (prompts, outputs)
        assert found["dur_ns"] == pytest.approx(span * 1e3, abs=2)
        assert found["prompt_tokens_per_s"] == pytest.approx(prompts / span * 1e6)
        decoding = [(end, requests) for end, _, requests in steps if requests]
        weighted = [(min(a, b), later_end - end) for (end, a), (later_end, b) in pairwise(decoding)]
        if not weighted:
            assert found["tpot_ns"] is None
            continue
        tpot = sum(n * us for n, us in weighted) / sum(n for n, _ in weighted)
        assert found["tpot_ns"] == pytest.approx(tpot * 1e3, abs=2)


def raw_steps(path: Path) -> list[tuple[float, int, int]]:
    """(end in us, prompt tokens, decoding requests) of each step."""
    found = json.loads(text_of(path))["traceEvents"]
    called = {
        event["args"]["correlation"]: event["ts"]
        for event in found
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    ends = [
        (called[event["args"]["correlation"]], event["ts"] + event["dur"])
        for event in found
        if event.get("cat") == "kernel" and event["args"]["correlation"] in called
    ]
    steps = []
    for event in found:
        numbers = re.match(
            r"(prefill|decode|eager_decode)\[bs=(\d+)(?:/\d+)? tok=(\d+)", event.get("name", "")
        )
        if event.get("cat") != "user_annotation" or numbers is None or "dur" not in event:
            continue
        low, high = event["ts"], event["ts"] + event["dur"]
        last = max(end for launched, end in ends if low <= launched <= high)
        is_prefill = numbers[1] == "prefill"
        steps.append((last, int(numbers[3]) if is_prefill else 0, 0 if is_prefill else int(numbers[2])))
    return sorted(steps)


def test_counts_by_phase() -> None:
    label = grammar().step(
        "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)"
    )
    assert label is not None
    assert (label.prefill_tokens, label.decode_requests, label.decode_tokens) == (8155, 37, 37)
