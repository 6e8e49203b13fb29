"""What serving ranks do side by side: kinds of steps, phases, padding, two-batch overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm import AlignedRun
from tracelens.analysis.common import KINDS, grammar
from tracelens.analysis.serving.global_steps import (
    GlobalStep,
    Reference,
    by_one_clock,
    delay,
    global_steps,
    reference,
)
from tracelens.analysis.serving.steps import RankSteps, Step, rank_steps
from tracelens.analysis.serving.tables import ALIGNMENT, OVERLAP, RANKS, STEPS, SUMMARY, THROUGHPUT
from tracelens.analysis.serving.throughput import NO_ARRIVALS, throughput
from tracelens.table import Result, Skip, result
from tracelens.trace import Scope

TABLES = {
    "summary": SUMMARY,
    "ranks": RANKS,
    "throughput": THROUGHPUT,
    "alignment": ALIGNMENT,
    "overlap": OVERLAP,
    "steps": STEPS,
}


@analyzer("serving", title="Serving", order=90, part=rank_steps, shared=("aligned run",), tables=TABLES)
def serving(ranks: Sequence[RankSteps], aligned: AlignedRun, *, scope: Scope = "all") -> Result:
    """Which steps does each serving rank run, and what do phase mismatch and padding cost?

    Steps are found by the labels that serving engines leave in the trace (ATOM, vLLM, SGLang, TensorRT-LLM).
    `--step decode` and `--step prefill` narrow every other analyzer to the steps of one phase.

    Reading:
        The one row of `summary` first: time lost to ranks in different phases, to padding and to eager
        decoding. `alignment` shows the steps behind it, `throughput` tokens per second and the time per
        output token.

    Limits:
        Knows what the labels say; a label without requests or tokens leaves -1. The profiler slows the
        host, so compare rates with a run without it. Tensor-parallel ranks serve the same requests:
        their tokens do not add up.

    Args:
        ranks: from `rank_steps`.
        aligned: the run.
        scope: "all", or "linked" for work whose launch call is in the trace.

    Returns:
        tables `summary` (one row), `ranks` (by rank and kind), `throughput` (by rank), `alignment` (steps
        across ranks), `overlap` (steps run as two batches) and `steps`; all of them empty where no trace
        has step labels.
    """
    labelled = [rank for rank in by_one_clock(ranks, aligned.shift) if rank.steps]
    steps = global_steps(labelled)
    rates = [throughput(rank) for rank in labelled]
    tables = {
        "summary": SUMMARY.from_rows(
            [_summary(labelled, steps, reference(steps, aligned.collectives))] if labelled else []
        ),
        "ranks": RANKS.from_rows(row for rank in labelled for row in _kinds(rank)),
        "throughput": THROUGHPUT.from_rows(row for row, _ in rates if row),
        "alignment": ALIGNMENT.from_rows(_common(number, step) for number, step in enumerate(steps)),
        "overlap": OVERLAP.from_rows(row for rank in labelled for row in _overlaps(rank)),
        "steps": STEPS.concat([_steps(rank) for rank in labelled]),
    }
    skips = [*_unlabelled(ranks), *_unknown(labelled, steps), *(skip for _, found in rates for skip in found)]
    if labelled:
        skips.append(Skip("time to first token", NO_ARRIVALS))
    return result(tables, skips, scope=scope)


def _share(amount: float, total: float) -> float:
    """A share of a whole, -1 where there is none."""
    return amount / total if total > 0 else -1.0


def _time(steps: Iterable[Step]) -> int:
    return sum(step.dur_ns for step in steps)


def _eager(steps: Sequence[Step]) -> float:
    """Share of the time in eager steps, among those of which it is known."""
    return _share(
        _time(step for step in steps if step.eager),
        _time(step for step in steps if step.eager or step.graph),
    )


def _total(numbers: Sequence[int]) -> int:
    """A sum, -1 where a part of it is unknown."""
    return -1 if min(numbers, default=0) < 0 else sum(numbers)


def _imbalance(steps: Iterable[Step]) -> float:
    """|a - b| / (a + b) over the halves of all steps that tell their tokens."""
    halves = [step.halves for step in steps if len(step.halves) > 1 and min(step.halves) >= 0]
    return _share(
        sum(max(tokens) - min(tokens) for tokens in halves),
        sum(max(tokens) + min(tokens) for tokens in halves),
    )


def _summary(
    ranks: Sequence[RankSteps], steps_together: Sequence[GlobalStep], decode: Reference
) -> dict[str, Any]:
    steps = [step for rank in ranks for step in rank.steps]
    decoding = [step for step in steps if step.label.kind == "decode" and not step.label.dummy]
    graphs = [
        step.label for step in steps if step.graph and not step.label.dummy and step.label.requests >= 0
    ]
    made_for = [max(label.graph_requests, label.requests) for label in graphs]
    graph_sizes_known = any(label.graph_requests >= 0 for label in graphs)
    mismatched = [global_step for global_step in steps_together if global_step.mismatch]
    padded = [global_step for global_step in steps_together if global_step.slots > 0]
    tokens, slots = (
        sum(global_step.tokens for global_step in padded),
        sum(global_step.slots for global_step in padded),
    )
    overlapped = [step for step in steps if step.two_batches]
    late = delay(steps_together, decode.dur_ns)
    together: dict[str, int] = {
        "steps": len(steps_together),
        "step_ns": sum(global_step.dur_ns for global_step in steps_together),
        "mismatch_steps": len(mismatched),
        "mismatch_ns": sum(global_step.dur_ns for global_step in mismatched),
        "delay_ns": late.total,
        "alignable_ns": late.alignable,
        "tokens": tokens,
        "slots": slots,
    }
    return {
        "engine": ", ".join(dict.fromkeys(rank.engine for rank in ranks)),
        **(together if steps_together else dict.fromkeys(together, -1)),
        "phase_mismatch_fraction": _share(
            sum(global_step.dur_ns for global_step in mismatched),
            sum(global_step.dur_ns for global_step in steps_together),
        ),
        "padding_fraction": 1 - tokens / slots if slots else -1.0,
        "graph_padding_fraction": 1 - sum(label.requests for label in graphs) / max(sum(made_for), 1)
        if graph_sizes_known
        else -1.0,
        "eager_fraction": _eager(decoding),
        "dummy_fraction": max(_share(_time(step for step in steps if step.label.dummy), _time(steps)), 0.0),
        "tbo_steps": len(overlapped),
        "tbo_imbalance": _imbalance(overlapped),
        "tbo_efficiency": _share(
            sum(step.hidden_ns for step in overlapped), sum(step.comm_ns for step in overlapped)
        ),
        "decode_ns": decode.dur_ns,
        "decode_source": decode.source,
    }


def _kinds(rank: RankSteps) -> list[dict[str, Any]]:
    """Rows of RANKS of one rank, in the order of KINDS."""
    ordered = sorted(rank.steps, key=lambda step: KINDS.index(step.label.kind))
    rows = []
    for kind, group in groupby(ordered, key=lambda step: step.label.kind):
        steps = list(group)
        labels = [step.label for step in steps if not step.label.dummy]
        dur = _time(steps)
        rows.append(
            {
                "rank": rank.rank,
                "kind": kind,
                "count": len(steps),
                "dur_ns": dur,
                "fraction": dur / max(_time(rank.steps), 1),
                "requests": _total([label.requests for label in labels]),
                "tokens": _total([label.tokens for label in labels]),
                "eager_fraction": _eager(steps),
                "dummy_fraction": _time(step for step in steps if step.label.dummy) / max(dur, 1),
            }
        )
    return rows


def _common(number: int, step: GlobalStep) -> dict[str, Any]:
    return {
        "step": number,
        "kinds": step.kinds,
        "mismatch": step.mismatch,
        "dur_ns": step.dur_ns,
        "ranks": len(step.rank_steps),
        "idle_ranks": step.idle,
        "tokens_max": step.tokens_max,
        "tokens_sum": step.tokens,
        "padding_fraction": 1 - step.tokens / step.slots if step.slots > 0 else -1.0,
        "ts_ns": step.start,
    }


def _overlaps(rank: RankSteps) -> list[dict[str, Any]]:
    """Rows of OVERLAP of one rank."""
    return [
        {
            "rank": rank.rank,
            "index": index,
            "kind": step.label.kind,
            "tokens": step.label.tokens,
            "token_imbalance": _imbalance([step]),
            "comm_ns": step.comm_ns,
            "hidden_ns": step.hidden_ns,
            "overlap_efficiency": _share(step.hidden_ns, step.comm_ns),
        }
        for index, step in enumerate(rank.steps)
        if step.two_batches
    ]


def _steps(rank: RankSteps) -> dict[str, Any]:
    """The rows of STEPS of one rank."""
    labels = [step.label for step in rank.steps]
    return {
        "rank": [rank.rank] * len(labels),
        "index": list(range(len(labels))),
        "kind": [label.kind for label in labels],
        "eager": [step.eager for step in rank.steps],
        "graph": [step.graph for step in rank.steps],
        "dummy": [label.dummy for label in labels],
        "tbo": [step.two_batches for step in rank.steps],
        "requests": [label.requests for label in labels],
        "graph_requests": [label.graph_requests for label in labels],
        "tokens": [label.tokens for label in labels],
        "ts_ns": [step.start for step in rank.steps],
        "dur_ns": [step.dur_ns for step in rank.steps],
    }


def _unlabelled(ranks: Sequence[RankSteps]) -> list[Skip]:
    *engines, last = (engine.name for engine in grammar().engines)
    names = f"{', '.join(engines)} or {last}" if engines else last
    reason = f"no step label of {names} in the trace"
    return [Skip(f"rank {rank.rank}", reason) for rank in ranks if not rank.steps]


def _unknown(ranks: Sequence[RankSteps], steps: Sequence[GlobalStep]) -> list[Skip]:
    """What the labels do not show."""
    skips: list[Skip] = []
    if not ranks:
        return skips
    if not steps:
        why = "only one rank has step labels" if len(ranks) == 1 else "no two ranks' steps overlap in time"
        skips.append(Skip("phase mismatch and padding", f"{why}; pass the traces of all ranks together"))
    alone = sum(len(step.rank_steps) < len(ranks) for step in steps)
    if alone:
        why = "ranks without a label there are left out"
        skips.append(Skip(f"all ranks of {alone} step(s)", why))
    single = sum(len(rank.steps) for rank in ranks) - sum(len(step.rank_steps) for step in steps)
    if steps and single:
        skips.append(Skip(f"alignment of {single} step(s)", "no other rank ran a step at the same time"))
    silent = sum(step.tokens < 0 and bool(step.phases) for step in steps)
    if silent:
        skips.append(Skip(f"padding of {silent} step(s)", "a rank's label lacks its token count"))
    overlapped = [step for rank in ranks for step in rank.steps if step.two_batches]
    if not overlapped:
        skips.append(Skip("two-batch overlap", "no step label has tbo=1"))
    elif _imbalance(overlapped) < 0:
        why = "the halves' token counts are not labeled (ub0[tok=512], ub1[tok=512])"
        skips.append(Skip("token balance of two-batch overlap", why))
    return skips
