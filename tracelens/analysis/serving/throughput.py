"""Tokens per second and time per output token of a serving rank, from the ends of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from tracelens.analysis.common import Label
from tracelens.analysis.serving.steps import RankSteps, Step
from tracelens.table import Skip

_SERVED = ("prefill", "decode", "mixed", "idle")
SPECULATIVE = "drafts are verified; how many of their tokens were accepted is not in the labels"
UNLABELLED = "a label lacks the number of decoding requests or of their tokens"
ONE_STEP = "the rank has fewer than two steps"
EXCERPT = "only one phase is selected; leave --step out"
NO_ARRIVALS = (
    "the trace does not record when requests arrive; a prompt takes at least its prefill (`prefill_ns`)"
)


def throughput(rank: RankSteps) -> tuple[dict[str, Any] | None, list[Skip]]:
    """The row of THROUGHPUT of one rank, None without two steps, and what its labels do not tell.

    A step yields its tokens when it ends. So the first step sets the clock, and its tokens do not count.
    """
    # Where streams overlap, or the trace is damaged, a step may end before an earlier one does.
    steps = sorted((step for step in rank.steps if step.label.kind in _SERVED), key=lambda step: step.end)
    if len(steps) < 2 or rank.is_excerpt:
        reason = EXCERPT if rank.is_excerpt else ONE_STEP
        return None, [Skip(f"tokens per second of rank {rank.rank}", reason)]
    dur_ns = steps[-1].end - steps[0].end
    prompts = _sum([_prompt_tokens(step.label) for step in steps[1:]])
    why_unknown = _why_unknown([step.label for step in rank.steps])
    outputs = -1 if why_unknown else sum(_output_tokens(step.label) for step in steps[1:])
    between = [] if why_unknown else list(_between_tokens(steps))
    tokens = sum(requests for requests, _ in between)
    prefills = [step.dur_ns for step in steps if _prompt_tokens(step.label) > 0]
    return {
        "rank": rank.rank,
        "steps": len(steps) - 1,
        "dur_ns": dur_ns,
        "prompt_tokens": prompts,
        "prompt_tokens_per_s": _rate(prompts, dur_ns),
        "output_tokens": outputs,
        "output_tokens_per_s": _rate(outputs, dur_ns),
        "tpot_ns": round(sum(requests * ns for requests, ns in between) / tokens) if tokens else -1,
        "tpot_max_ns": max((ns for _, ns in between), default=-1),
        "prefill_ns": round(median(prefills)) if prefills else -1,
    }, [Skip(f"output tokens of rank {rank.rank}", why_unknown)] if why_unknown else []


def _why_unknown(labels: Sequence[Label]) -> str:
    """Why the steps' output tokens are not known; "" where they are.

    A decoding request gets one token a step, unless the step verifies drafts of several.
    """
    counts = [(label.decode_requests, label.decode_tokens) for label in labels if _counts(label)]
    if any(label.kind == "draft" for label in labels) or any(0 <= each < tokens for each, tokens in counts):
        return SPECULATIVE
    return UNLABELLED if any(each < 0 or each != tokens for each, tokens in counts) else ""


def _counts(label: Label) -> bool:
    return label.kind in _SERVED and not label.dummy


def _between_tokens(steps: Sequence[Step]) -> Iterator[tuple[int, int]]:
    """(requests, ns) between consecutive decoding steps: the requests that get a token in both."""
    decoding = [step for step in steps if _output_tokens(step.label)]
    for before, step in pairwise(decoding):
        yield min(_output_tokens(before.label), _output_tokens(step.label)), step.end - before.end


def _prompt_tokens(label: Label) -> int:
    return 0 if label.dummy else label.prefill_tokens


def _output_tokens(label: Label) -> int:
    """Tokens that a step appends to answers, one per decoding request."""
    return 0 if label.dummy else label.decode_requests


def _sum(numbers: Sequence[int]) -> int:
    return -1 if min(numbers) < 0 else sum(numbers)


def _rate(tokens: int, dur_ns: int) -> float:
    return tokens / dur_ns * 1e9 if tokens >= 0 and dur_ns > 0 else -1.0
