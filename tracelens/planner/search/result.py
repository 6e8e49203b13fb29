"""A layout search and its result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.planner.search.ranking import (
    GIB,
    SIZES,
    Question,
    Ranked,
    Timed,
    describe,
    ranked,
    room,
    sized_layouts,
)
from tracelens.planner.search.space import Refusal, Space
from tracelens.planner.search.tables import LAYOUTS, PARTS, REFUSED
from tracelens.planner.step_time import PARTS as STEP_PARTS
from tracelens.planner.step_time import assumed
from tracelens.registry import purpose
from tracelens.table import Result, Skip, Table

_COMPUTING = ("forward", "backward", "recompute")
_COMMUNICATION = ("experts_exchange", "context_exchange", "tensor_exchange", "stage_exchange", "gradients")


def search(
    question: Question, devices: Sequence[Device], spaces: Sequence[Space] = (Space(),), top: int = 10
) -> Result:
    """Which layouts fit, and which of them has the shortest step?

    Args:
        question: model, GPUs and batch.
        devices: to rank the layouts on, each separately.
        spaces: layouts to try; by default all sensible ones.
        top: layouts to show per device.

    Returns:
        tables `layouts` (best first per device; if none fits, those that need least memory), `parts` (where
        their time goes), `refused` (layouts that are invalid or do not fit, by reason) and `assumptions`.
        meta: tried, possible (valid layouts), fits (device to number of layouts), best (device to the best
        layout as text).

    Raises:
        TracelensError: no device, a device file without memory or rate, or nothing to try.
    """
    if not devices:
        raise TracelensError("a search needs a device: give --device")
    sized, refusals = sized_layouts(question, spaces, [room(question, device) for device in devices])
    if not sized:
        raise TracelensError(_nothing(refusals))
    rankings = [ranked(question, device, sized) for device in devices]
    best = {
        ranking.device.name: describe(ranking.fitting[0].sized.candidate)
        for ranking in rankings
        if ranking.fitting
    }
    return Result(
        "search",
        "Layouts that fit, fastest first",
        _tables(question, rankings, refusals, top),
        doc=purpose(search),
        skips=tuple(
            Skip(
                f"layouts on {ranking.device.name}",
                f"none fits in {ranking.room / GIB:,.1f} GiB; shown: those that need the least memory",
            )
            for ranking in rankings
            if not ranking.fitting
        ),
        meta={
            "gpus": question.gpus,
            "global_batch": question.global_batch,
            "seq": question.training.seq,
            "framework": question.memory.framework,
            "toggles": " ".join(f"{name}={value}" for name, value in question.toggles.changed().items())
            or "baseline",
            "tried": len(sized) + len(refusals),
            "possible": len(sized),
            "fits": {ranking.device.name: len(ranking.fitting) for ranking in rankings},
            "best": best,
            "step_times": question.machine.step_times,
        },
        command="tracelens project memory --search",
    )


def _tables(
    question: Question, rankings: Sequence[Ranked], refusals: Sequence[Refusal], top: int
) -> dict[str, Table]:
    shown = [(ranking, rank, timed) for ranking in rankings for rank, timed in ranking.shown[:top]]
    rows = [_row(ranking, rank, timed) for ranking, rank, timed in shown]
    refused = [("", refusal) for refusal in refusals]
    refused += [(ranking.device.name, refusal) for ranking in rankings for refusal in ranking.refused]
    return {
        "layouts": LAYOUTS.from_rows(rows),
        "parts": PARTS.from_rows(list(_parts(shown))),
        "refused": REFUSED.from_rows(_counted(refused)),
        "assumptions": assumed(
            question.machine, [ranking.device for ranking in rankings], question.training.dtype
        ),
    }


def _row(ranked: Ranked, rank: int, timed: Timed) -> dict[str, Any]:
    (candidate, size, _), time = timed
    layout, training = candidate.config.layout, candidate.config.training
    return {
        "device": ranked.device.name,
        "position": rank,
        **{name: getattr(layout, name) for name in SIZES},
        "dp": layout.dp,
        "micro_batch": training.micro_batch,
        "micro_batches": training.micro_batches,
        "recompute": candidate.recompute,
        "step_ns": time.step_ns,
        "tokens_per_s": time.tokens_per_s,
        "mfu": time.mfu,
        "bytes": size,
        "free_bytes": ranked.room - size,
        "compute_fraction": sum(time.parts[name] for name in _COMPUTING) / time.step_ns,
        "comm_fraction": sum(time.parts[name] for name in _COMMUNICATION) / time.step_ns,
        "bubble": time.parts["bubble"] / time.step_ns,
    }


def _parts(shown: Sequence[tuple[Ranked, int, Timed]]) -> Iterator[dict[str, Any]]:
    """Rows of PARTS: for each layout all parts that any layout has."""
    used = [part for part in STEP_PARTS if any(timed.time.parts[part] for *_, timed in shown)]
    for ranking, rank, timed in shown:
        layout = describe(timed.sized.candidate)
        for part in used:
            ns = round(timed.time.parts[part])
            yield {"device": ranking.device.name, "position": rank, "layout": layout, "part": part, "ns": ns}


def _counted(refused: Iterable[tuple[str, Refusal]]) -> list[dict[str, Any]]:
    """Rows of REFUSED, the most frequent first."""
    counts: dict[tuple[str, str], tuple[int, str]] = {}
    for device, (reason, example) in refused:
        count, first = counts.get((device, reason), (0, example))
        counts[device, reason] = (count + 1, first)
    rows = [
        {"device": device, "reason": reason, "count": count, "example": example}
        for (device, reason), (count, example) in counts.items()
    ]
    return sorted(rows, key=lambda row: -row["count"])


def _nothing(refusals: Sequence[Refusal]) -> str:
    if not refusals:
        return "no layout to try: widen the search"
    most, *_ = _counted(("", refusal) for refusal in refusals)
    return f"none of {len(refusals)} layouts is valid; {most['count']} as in {most['example']}"
