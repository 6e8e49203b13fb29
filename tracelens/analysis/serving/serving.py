"""What serving ranks do side by side: kinds of steps, phases, padding, two-batch overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm import AlignedRun
from tracelens.analysis.common import KINDS, Label, grammar
from tracelens.analysis.serving.steps import (
    GlobalStep,
    RankSteps,
    Reference,
    Step,
    by_one_clock,
    delay,
    global_steps,
    rank_steps,
    reference,
)
from tracelens.arrays import median
from tracelens.table import RANK, Column, Result, Schema, Skip, result
from tracelens.trace import Scope

SUMMARY = Schema(
    "Serving steps of all ranks",
    (
        Column("engine", "category", doc="engine, from its frames, labels and ops"),
        Column(
            "steps",
            "int64",
            "count",
            "steps that several ranks ran together; missing, here and below: one rank only",
            absent=-1,
        ),
        Column("step_ns", "int64", "ns", "time of these steps, slowest rank each", absent=-1),
        Column(
            "phase_mismatch_fraction",
            "float64",
            "fraction",
            "share of step time with ranks in different phases; missing if nothing to compare",
            absent=-1,
        ),
        Column(
            "delay_ns",
            "int64",
            "ns",
            "time beyond `decode_ns` in mismatched steps with a decoding rank; missing if that is unknown",
            absent=-1,
        ),
        Column(
            "alignable_ns",
            "int64",
            "ns",
            "part of the delay saved if all ranks prefilled in the same steps: all but the delay by the "
            "rank that prefills longest",
            absent=-1,
        ),
        Column("padding_fraction", "float64", "fraction", "1 - tokens / slots", absent=-1),
        Column(
            "graph_padding_fraction",
            "float64",
            "fraction",
            "1 - requests / captured batch size of their graphs; missing if unknown",
            absent=-1,
        ),
        Column(
            "eager_fraction",
            "float64",
            "fraction",
            "share of the ranks' decode time outside graph replays; missing if unknown",
            absent=-1,
        ),
        Column(
            "dummy_fraction",
            "float64",
            "fraction",
            "share of the ranks' step time in steps without a request",
        ),
        Column("tbo_steps", "int64", "count", "steps of a rank run as two overlapped batches"),
        Column(
            "tbo_imbalance",
            "float64",
            "ratio",
            "|a - b| / (a + b) of their tokens, all steps; missing if unknown",
            absent=-1,
        ),
        Column(
            "tbo_efficiency",
            "float64",
            "ratio",
            "their hidden / total communication; missing if there is none",
            absent=-1,
        ),
        Column("mismatch_steps", "int64", "count", "with ranks in different phases", absent=-1),
        Column("mismatch_ns", "int64", "ns", "time of these steps", absent=-1),
        Column("tokens", "int64", "count", "tokens of requests, in steps that all ranks label", absent=-1),
        Column(
            "slots", "int64", "count", "ranks x most tokens of a rank, summed over those steps", absent=-1
        ),
        Column("decode_ns", "int64", "ns", "a step in which all ranks decode; missing if unknown", absent=-1),
        Column(
            "decode_source",
            "category",
            doc="of decode_ns: `all-decode steps`, their median; without any `least GPU work`, the least "
            "work and transfers of a decoding rank without waiting",
        ),
    ),
    doc="Expert-parallel ranks meet in every layer: all wait for a rank that prefills and are padded to "
    "the rank with the most tokens. Ranks without requests are in no phase.",
)
RANKS = Schema(
    "Kinds of steps",
    (
        RANK,
        Column("kind", "category", doc=", ".join(KINDS)),
        Column("count", "int64", "count", "steps"),
        Column("dur_ns", "int64", "ns", "time of these steps"),
        Column("fraction_of_step_time", "float64", "fraction", "share of the time of all steps of the rank"),
        Column("requests", "int64", "count", "summed over the steps; missing if a label lacks it", absent=-1),
        Column("tokens", "int64", "count", "summed over the steps; missing if a label lacks it", absent=-1),
        Column(
            "eager_fraction",
            "float64",
            "fraction",
            "share of the time outside graph replays; missing if unknown",
            absent=-1,
        ),
        Column("dummy_fraction", "float64", "fraction", "share of the time in steps without a request"),
    ),
    doc="A step runs from its first to its last kernel, including waiting for other ranks; without linked "
    "kernels, as long as its mark. Requests and tokens exclude dummies.",
)
THROUGHPUT = Schema(
    "Throughput",
    (
        RANK,
        Column("steps", "int64", "count", "steps after the first"),
        Column("dur_ns", "int64", "ns", "from the end of the first step to the end of the last"),
        Column(
            "prompt_tokens",
            "int64",
            "count",
            "prefilled in these steps; missing if a label lacks them",
            absent=-1,
        ),
        Column("prompt_tokens_per_s", "float64", doc="missing if unknown", absent=-1),
        Column(
            "output_tokens",
            "int64",
            "count",
            "one per decoding request and step; missing if unknown",
            absent=-1,
        ),
        Column("output_tokens_per_s", "float64", doc="missing if unknown", absent=-1),
        Column(
            "tpot_ns",
            "int64",
            "ns",
            "time per output token: mean time between the ends of consecutive decoding steps, weighted by "
            "the requests that decode in both; missing if unknown",
            absent=-1,
        ),
        Column("tpot_max_ns", "int64", "ns", "the longest of these times", absent=-1),
        Column(
            "prefill_ns",
            "int64",
            "ns",
            "median step with prefill: a first token comes no sooner than its prefill step ends",
            absent=-1,
        ),
    ),
    doc="A step yields its tokens when it ends. Output tokens exclude the first of each request, which its "
    "prefill yields. Requests are taken to decode in consecutive decoding steps.",
)
ALIGNMENT = Schema(
    "Steps across ranks",
    (
        Column("step", "int64", "count", "position among the steps that several ranks ran together"),
        Column("kinds", "category", doc="ranks by kind of step"),
        Column("mismatch", "bool", doc="ranks with requests are in different phases"),
        Column("dur_ns", "int64", "ns", "slowest rank"),
        Column("ranks", "int64", "count", "ranks that labeled the step"),
        Column("idle_ranks", "int64", "count", "ranks without a request: dummy or idle"),
        Column(
            "tokens_max", "int64", "count", "of the rank with the most tokens; missing if unknown", absent=-1
        ),
        Column("tokens_sum", "int64", "count", "of all requests; missing if unknown", absent=-1),
        Column(
            "padding_fraction",
            "float64",
            "fraction",
            "1 - sum / (ranks x max); missing if unknown",
            absent=-1,
        ),
        Column("ts_ns", "int64", "ns", "first start, by the clock of the first rank"),
    ),
    doc="Steps are matched by order and overlap in time, on clocks aligned by collectives.",
)
OVERLAP = Schema(
    "Two-batch overlap",
    (
        RANK,
        Column("index", "int64", "count", "position among the steps of the rank"),
        Column("kind", "category", doc="as in `ranks`"),
        Column("tokens", "int64", "count", "missing if unknown", absent=-1),
        Column(
            "token_imbalance",
            "float64",
            "ratio",
            "|a - b| / (a + b) of the halves' tokens; missing if unknown",
            absent=-1,
        ),
        Column("comm_ns", "int64", "ns", "communication in the step", absent=-1),
        Column("hidden_ns", "int64", "ns", "overlapped by computation", absent=-1),
        Column(
            "overlap_efficiency",
            "float64",
            "ratio",
            "hidden / comm; missing without communication",
            absent=-1,
        ),
    ),
    doc="Steps split into two batches: one computes while the other communicates.",
    detail=True,
    key=(),
)
STEPS = Schema(
    "Steps",
    (
        RANK,
        Column("index", "int64", "count", "position among the steps of the rank"),
        Column("kind", "category", doc="as in `ranks`"),
        Column("eager", "bool", doc="kernels launched one by one"),
        Column("graph", "bool", doc="a graph was replayed; both false if unknown"),
        Column("dummy", "bool", doc="without a request"),
        Column("tbo", "bool", doc="run as two overlapped batches"),
        Column("requests", "int64", "count", "requests in the step, missing if unknown", absent=-1),
        Column(
            "graph_requests",
            "int64",
            "count",
            "captured batch size of the graph, missing if unknown",
            absent=-1,
        ),
        Column("tokens", "int64", "count", "tokens that the step computes, missing if unknown", absent=-1),
        Column("ts_ns", "int64", "ns", "by the clock of the first rank"),
        Column("dur_ns", "int64", "ns", "first to last kernel of the step"),
    ),
    detail=True,
    key=(),
)

TABLES = {
    "summary": SUMMARY,
    "ranks": RANKS,
    "throughput": THROUGHPUT,
    "alignment": ALIGNMENT,
    "overlap": OVERLAP,
    "steps": STEPS,
}

_SERVED = ("prefill", "decode", "mixed", "idle")
SPECULATIVE = "drafts are verified; how many of their tokens were accepted is not in the labels"
UNLABELLED = "a label lacks the number of decoding requests or of their tokens"
ONE_STEP = "the rank has fewer than two steps"
EXCERPT = "only one phase is selected; leave --step out"
NO_ARRIVALS = (
    "the trace does not record when requests arrive; a prompt takes at least its prefill (`prefill_ns`)"
)


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
    kinds = []
    for rank in labelled:
        ordered = sorted(rank.steps, key=lambda step: KINDS.index(step.label.kind))
        for kind, group in groupby(ordered, key=lambda step: step.label.kind):
            of_kind = list(group)
            served = [step.label for step in of_kind if not step.label.dummy]
            dur = _time(of_kind)
            kinds.append(
                {
                    "rank": rank.rank,
                    "kind": kind,
                    "count": len(of_kind),
                    "dur_ns": dur,
                    "fraction_of_step_time": dur / max(_time(rank.steps), 1),
                    "requests": _total([label.requests for label in served]),
                    "tokens": _total([label.tokens for label in served]),
                    "eager_fraction": _eager(of_kind),
                    "dummy_fraction": _time(step for step in of_kind if step.label.dummy) / max(dur, 1),
                }
            )
    alignment = [
        {
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
        for number, step in enumerate(steps)
    ]
    overlap = [
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
        for rank in labelled
        for index, step in enumerate(rank.steps)
        if step.two_batches
    ]
    rank_rows = [
        {
            "rank": rank.rank,
            "index": index,
            "kind": step.label.kind,
            "eager": step.eager,
            "graph": step.graph,
            "dummy": step.label.dummy,
            "tbo": step.two_batches,
            "requests": step.label.requests,
            "graph_requests": step.label.graph_requests,
            "tokens": step.label.tokens,
            "ts_ns": step.start,
            "dur_ns": step.dur_ns,
        }
        for rank in labelled
        for index, step in enumerate(rank.steps)
    ]
    tables = {
        "summary": SUMMARY.from_rows(
            [_summary(labelled, steps, reference(steps, aligned.collectives))] if labelled else []
        ),
        "ranks": RANKS.from_rows(kinds),
        "throughput": THROUGHPUT.from_rows(row for row, _ in rates if row),
        "alignment": ALIGNMENT.from_rows(alignment),
        "overlap": OVERLAP.from_rows(overlap),
        "steps": STEPS.from_rows(rank_rows),
    }
    *engines, last = (engine.name for engine in grammar().engines)
    names = f"{', '.join(engines)} or {last}" if engines else last
    unlabelled = f"no step label of {names} in the trace"
    skips = [
        *(Skip(f"rank {rank.rank}", unlabelled) for rank in ranks if not rank.steps),
        *_unknown(labelled, steps),
        *(skip for _, rate_skips in rates for skip in rate_skips),
    ]
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
    prompts = _total([_prompt_tokens(step.label) for step in steps[1:]])
    # A decoding request gets one token a step, unless the step verifies drafts of several.
    labels = [step.label for step in rank.steps]
    counts = [
        (label.decode_requests, label.decode_tokens)
        for label in labels
        if label.kind in _SERVED and not label.dummy
    ]
    why_unknown = ""
    if any(label.kind == "draft" for label in labels) or any(0 <= each < tokens for each, tokens in counts):
        why_unknown = SPECULATIVE
    elif any(each < 0 or each != tokens for each, tokens in counts):
        why_unknown = UNLABELLED
    outputs = -1 if why_unknown else sum(_output_tokens(step.label) for step in steps[1:])
    # (requests, ns) between consecutive decoding steps: the requests that get a token in both.
    decoding = [] if why_unknown else [step for step in steps if _output_tokens(step.label)]
    between = [
        (min(_output_tokens(before.label), _output_tokens(step.label)), step.end - before.end)
        for before, step in pairwise(decoding)
    ]
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


def _prompt_tokens(label: Label) -> int:
    return 0 if label.dummy else label.prefill_tokens


def _output_tokens(label: Label) -> int:
    """Tokens that a step appends to answers, one per decoding request."""
    return 0 if label.dummy else label.decode_requests


def _rate(tokens: int, dur_ns: int) -> float:
    return tokens / dur_ns * 1e9 if tokens >= 0 and dur_ns > 0 else -1.0
