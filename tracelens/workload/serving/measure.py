"""What a serving run came to: speed, waiting, and how well the ranks kept step. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tracelens.workload.serving.plan import Plan, Running

WARM_UP = 8
"""Ticks at the start in which kernels are loaded, buffers made and the first requests come in."""


@dataclass
class Ticks:
    """The ticks of a run, as one rank saw them."""

    plans: list[Plan | None] = field(default_factory=list)  # what was run; None where nothing was
    begin_ms: list[float] = field(default_factory=list)  # when each began
    end_ms: list[float] = field(default_factory=list)  # when its tokens were there
    held: list[bool] = field(default_factory=list)  # whether prefills were held back

    def add(self, plan: Plan | None, held: bool, begin_ms: float, end_ms: float) -> None:
        self.plans.append(plan)
        self.held.append(held)
        self.begin_ms.append(begin_ms)
        self.end_ms.append(end_ms)

    def facts(self, which: range) -> list[dict[str, Any]]:
        """Some of the ticks, one table each, for run.json."""
        return [
            {"tick": tick, "held": self.held[tick], **(plan._asdict() if (plan := self.plans[tick]) else {})}
            for tick in which
        ]


def latencies(requests: Iterable[Running], ticks: Ticks, timed: range) -> dict[str, list[float]]:
    """Of requests that came and were answered in timed ticks, the waits for their tokens.

    Returns:
        ttft_ms and ttft_ticks: from the begin of the tick of its arrival to its first token; tpot_ms and
        tpot_ticks: mean time of the other tokens; tokens: made in timed ticks, one number.
    """
    waits: dict[str, list[float]] = {
        name: [] for name in ("ttft_ms", "ttft_ticks", "tpot_ms", "tpot_ticks", "tokens")
    }
    made = 0
    for running in requests:
        made += sum(tick in timed for tick in running.ticks)
        arrived, first, last = running.request.tick, running.ticks[0], running.ticks[-1]
        if arrived in timed and first in timed:
            waits["ttft_ms"].append(ticks.end_ms[first] - ticks.begin_ms[arrived])
            waits["ttft_ticks"].append(first - arrived + 1)
        if first in timed and last in timed and last > first:
            waits["tpot_ms"].append((ticks.end_ms[last] - ticks.end_ms[first]) / (len(running.ticks) - 1))
            waits["tpot_ticks"].append((last - first) / (len(running.ticks) - 1))
    waits["tokens"].append(made)
    return waits


def summary(ticks: Ticks, ranks: Sequence[dict[str, list[float]]], timed: range) -> dict[str, Any]:
    """A run in numbers.

    Returns:
        ticks; timed_ticks; tokens_per_s (of output, of all ranks); medians ttft_ms, ttft_ticks, tpot_ms and
        tpot_ticks over the requests of all ranks; None where nothing was timed. Of all ticks: prefill_ticks,
        decode_ticks, idle_ticks, held_ticks, split_ticks, graph_ticks; mismatched_ticks, in which some ranks
        prefill and others decode; padding_fraction, 1 - tokens / (ranks x tokens of the rank with most).
    """
    run = [plan for plan in ticks.plans if plan is not None]
    tokens, padded = sum(plan.request_tokens for plan in run), sum(plan.padded_tokens for plan in run)
    spent_ms = ticks.end_ms[timed[-1]] - ticks.begin_ms[timed[0]] if timed else 0.0
    made = sum(sum(rank["tokens"]) for rank in ranks)
    timings: dict[str, Any] = {
        "ticks": len(ticks.plans),
        "timed_ticks": len(timed),
        "tokens_per_s": made / spent_ms * 1e3 if spent_ms else None,
    }
    for name in ("ttft_ms", "ttft_ticks", "tpot_ms", "tpot_ticks"):
        values = [value for rank in ranks for value in rank[name]]
        timings[name] = median(values) if values else None
    return timings | {
        "prefill_ticks": sum(plan.prefills for plan in run),
        "decode_ticks": sum(not plan.prefills for plan in run),
        "idle_ticks": len(ticks.plans) - len(run),
        "held_ticks": sum(ticks.held),
        "split_ticks": sum(plan.split for plan in run),
        "graph_ticks": sum(plan.graph > 0 for plan in run),
        "mismatched_ticks": sum(plan.mismatched for plan in run),
        "padding_fraction": 1 - tokens / padded if padded else None,
    }


def in_words(summary: Mapping[str, Any], preset: str) -> Iterator[str]:
    """What the summary of a job says of serving a preset, in lines."""
    changed = " ".join(f"{name}={value}" for name, value in summary["serving"].items())
    yield f"{preset} on {summary['ranks']} x {summary['device']}: {changed or 'baseline'}"
    if summary["tokens_per_s"] is None:
        yield "no timed tick: all ticks were warm-up or recorded; increase --ticks"
    else:
        yield f"{summary['tokens_per_s']:,.0f} output tokens/s ({summary['timed_ticks']} timed ticks)"
    for name, label in (("ttft", "time to first token"), ("tpot", "time per output token")):
        if summary[f"{name}_ms"] is not None:
            yield f"{label}: {summary[f'{name}_ms']:.1f} ms, {summary[f'{name}_ticks']:.1f} ticks (median)"
    counted = {
        "prefill": "with a prefill",
        "mismatched": "alongside decodes",
        "split": "in two batches",
        "graph": "from a graph",
        "held": "with delayed prefills",
        "idle": "idle",
    }
    counts = ", ".join(f"{summary[f'{name}_ticks']} {text}" for name, text in counted.items())
    yield f"{summary['ticks']} ticks: {counts}"
    if summary["padding_fraction"] is not None:
        yield f"padding: {summary['padding_fraction']:.1%} of token slots"
    if summary["peak_bytes"]:
        yield f"{summary['peak_bytes'] / 1e9:.2f} GB peak"
