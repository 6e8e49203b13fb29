"""What serving ranks do side by side: kinds of steps, phases, padding, two-batch overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.serving.global_steps import GlobalStep, by_one_clock, delay, lockstep
from tracelens.analysis.serving.labels import KINDS, grammar
from tracelens.analysis.serving.steps import RankSteps, Step, rank_steps
from tracelens.analysis.serving.tables import ALIGNMENT, OVERLAP, RANKS, STEPS, SUMMARY
from tracelens.table import Result, Skip, result, stack
from tracelens.trace import Scope


@analyzer("serving", title="Serving", order=90, part=rank_steps)
def serving(ranks: Sequence[RankSteps], *, scope: Scope = "all") -> Result:
    """Which kinds of steps does each serving rank run, and what do mismatched phases and padding cost?

    Steps are found by the labels that serving engines leave in the trace (ATOM, vLLM, SGLang).

    Args:
        ranks: from `rank_steps`.
        scope: "all", or "linked" for work whose launch call is in the trace.

    Returns:
        tables `summary` (one row), `ranks` (by rank and kind), `alignment` (steps across ranks), `overlap`
        (steps run as two batches) and `steps`; all of them empty where no trace has step labels.
    """
    labelled = [one for one in by_one_clock(ranks) if one.steps]
    found = lockstep(labelled)
    tables = {
        "summary": stack(SUMMARY, [_summary(labelled, found)] if labelled else []),
        "ranks": stack(RANKS, [row for one in labelled for row in _kinds(one)]),
        "alignment": stack(ALIGNMENT, [_common(number, one) for number, one in enumerate(found)]),
        "overlap": stack(OVERLAP, [row for one in labelled for row in _overlaps(one)]),
        "steps": stack(STEPS, [_steps(one) for one in labelled]),
    }
    return result(tables, [*_unlabelled(ranks), *_not_told(labelled, found)], scope=scope)


def _share(part: float, whole: float) -> float:
    """A share of a whole, -1 where there is none."""
    return part / whole if whole > 0 else -1.0


def _time(steps: Iterable[Step]) -> int:
    return sum(step.dur_ns for step in steps)


def _eager(steps: Sequence[Step]) -> float:
    """Share of the time in eager steps, among those of which it is known."""
    return _share(
        _time(step for step in steps if step.eager),
        _time(step for step in steps if step.eager or step.graph),
    )


def _total(numbers: Sequence[int]) -> int:
    """A sum, -1 where a part of it is not told."""
    return -1 if min(numbers, default=0) < 0 else sum(numbers)


def _imbalance(steps: Iterable[Step]) -> float:
    """|a - b| / (a + b) over the halves of all steps that tell their tokens."""
    halves = [step.halves for step in steps if len(step.halves) > 1 and min(step.halves) >= 0]
    return _share(
        sum(max(some) - min(some) for some in halves), sum(max(some) + min(some) for some in halves)
    )


def _summary(ranks: Sequence[RankSteps], found: Sequence[GlobalStep]) -> dict[str, list[Any]]:
    steps = [step for one in ranks for step in one.steps]
    decode = [step for step in steps if step.label.kind == "decode" and not step.label.dummy]
    graphs = [
        step.label for step in steps if step.graph and not step.label.dummy and step.label.requests >= 0
    ]
    made_for = [max(label.graph_requests, label.requests) for label in graphs]
    told = any(label.graph_requests >= 0 for label in graphs)
    mismatched = [one for one in found if one.mismatch]
    padded = [one for one in found if one.slots > 0]
    tokens, slots = sum(one.tokens for one in padded), sum(one.slots for one in padded)
    overlapped = [step for step in steps if step.two_batches]
    late = delay(found)
    row = {
        "engine": ", ".join(dict.fromkeys(step.label.engine for step in steps)),
        "steps": len(found),
        "step_ns": sum(one.dur_ns for one in found),
        "mismatch_steps": len(mismatched),
        "mismatch_ns": sum(one.dur_ns for one in mismatched),
        "phase_mismatch_fraction": _share(
            sum(one.dur_ns for one in mismatched), sum(one.dur_ns for one in found)
        ),
        "delay_ns": late.total,
        "alignable_ns": late.alignable,
        "tokens": tokens,
        "slots": slots,
        "padding_fraction": 1 - tokens / slots if slots else -1.0,
        "graph_padding_fraction": 1 - sum(label.requests for label in graphs) / max(sum(made_for), 1)
        if told
        else -1.0,
        "eager_fraction": _eager(decode),
        "dummy_fraction": max(_share(_time(step for step in steps if step.label.dummy), _time(steps)), 0.0),
        "tbo_steps": len(overlapped),
        "tbo_imbalance": _imbalance(overlapped),
        "tbo_efficiency": _share(
            sum(step.hidden_ns for step in overlapped), sum(step.comm_ns for step in overlapped)
        ),
    }
    return {name: [value] for name, value in row.items()}


def _kinds(one: RankSteps) -> list[dict[str, Any]]:
    """Rows of RANKS of one rank, in the order of KINDS."""
    ordered = sorted(one.steps, key=lambda step: KINDS.index(step.label.kind))
    rows = []
    for kind, group in groupby(ordered, key=lambda step: step.label.kind):
        steps = list(group)
        labels = [step.label for step in steps if not step.label.dummy]
        dur = _time(steps)
        rows.append(
            {
                "rank": [one.rank],
                "kind": [kind],
                "count": [len(steps)],
                "dur_ns": [dur],
                "fraction": [dur / max(_time(one.steps), 1)],
                "requests": [_total([label.requests for label in labels])],
                "tokens": [_total([label.tokens for label in labels])],
                "eager_fraction": [_eager(steps)],
                "dummy_fraction": [_time(step for step in steps if step.label.dummy) / max(dur, 1)],
            }
        )
    return rows


def _common(number: int, one: GlobalStep) -> dict[str, list[Any]]:
    return {
        "step": [number],
        "kinds": [one.kinds],
        "mismatch": [one.mismatch],
        "dur_ns": [one.dur_ns],
        "ranks": [len(one.members)],
        "idle_ranks": [one.idle],
        "tokens_max": [one.tokens_max],
        "tokens_sum": [one.tokens],
        "padding_fraction": [1 - one.tokens / one.slots if one.slots > 0 else -1.0],
        "ts_ns": [one.start],
    }


def _overlaps(one: RankSteps) -> list[dict[str, Any]]:
    """Rows of OVERLAP of one rank."""
    return [
        {
            "rank": [one.rank],
            "index": [index],
            "kind": [step.label.kind],
            "tokens": [step.label.tokens],
            "token_imbalance": [_imbalance([step])],
            "comm_ns": [step.comm_ns],
            "hidden_ns": [step.hidden_ns],
            "overlap_efficiency": [_share(step.hidden_ns, step.comm_ns)],
        }
        for index, step in enumerate(one.steps)
        if step.two_batches
    ]


def _steps(one: RankSteps) -> dict[str, Any]:
    """The rows of STEPS of one rank."""
    labels = [step.label for step in one.steps]
    return {
        "rank": [one.rank] * len(labels),
        "index": list(range(len(labels))),
        "kind": [label.kind for label in labels],
        "eager": [step.eager for step in one.steps],
        "graph": [step.graph for step in one.steps],
        "dummy": [label.dummy for label in labels],
        "tbo": [step.two_batches for step in one.steps],
        "requests": [label.requests for label in labels],
        "graph_requests": [label.graph_requests for label in labels],
        "tokens": [label.tokens for label in labels],
        "ts_ns": [step.start for step in one.steps],
        "dur_ns": [step.dur_ns for step in one.steps],
    }


def _unlabelled(ranks: Sequence[RankSteps]) -> list[Skip]:
    *most, last = grammar().engines
    names = f"{', '.join(most)} or {last}" if most else last
    reason = f"no step label of {names} in the trace"
    return [Skip(f"rank {one.rank}", reason) for one in ranks if not one.steps]


def _not_told(ranks: Sequence[RankSteps], found: Sequence[GlobalStep]) -> list[Skip]:
    """What cannot be said although there are labels."""
    skips: list[Skip] = []
    if not ranks:
        return skips
    if not found:
        why = (
            "there is one rank with step labels"
            if len(ranks) == 1
            else "no steps of two ranks overlap in time"
        )
        skips.append(Skip("phase mismatch and padding", f"{why}; pass the traces of all ranks together"))
    alone = sum(len(one.members) < len(ranks) for one in found)
    if alone:
        why = "not all ranks have a label there; they count without the missing ones"
        skips.append(Skip(f"all ranks of {alone} step(s)", why))
    single = sum(len(one.steps) for one in ranks) - sum(len(one.members) for one in found)
    if found and single:
        skips.append(Skip(f"alignment of {single} step(s)", "no other rank ran a step at the same time"))
    silent = sum(one.tokens < 0 and bool(one.phases) for one in found)
    if silent:
        skips.append(
            Skip(f"padding of {silent} step(s)", "a rank's label does not tell its number of tokens")
        )
    overlapped = [step for one in ranks for step in one.steps if step.two_batches]
    if not overlapped:
        skips.append(Skip("two-batch overlap", "no step label says that it was used (tbo=1)"))
    elif _imbalance(overlapped) < 0:
        why = "no labels of the two halves with their tokens (ub0[tok=512], ub1[tok=512]) in these steps"
        skips.append(Skip("token balance of two-batch overlap", why))
    return skips
