"""A search: what is tried, and what comes of it."""

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
from tracelens.planner.search.tables import ASSUMED, LAYOUTS, PARTS, REFUSED
from tracelens.planner.step_time import PARTS as STEP_PARTS
from tracelens.registry import purpose
from tracelens.table import Result, Skip, Table

_COMPUTING = ("forward", "backward", "recompute")
_EXCHANGES = ("experts_exchange", "context_exchange", "tensor_exchange", "stage_exchange", "gradients")


def search(
    question: Question, devices: Sequence[Device], spaces: Sequence[Space] = (Space(),), top: int = 10
) -> Result:
    """Which layouts fit, and which of them has the shortest step.

    Args:
        question: model, GPUs and batch.
        devices: to put it on, each for itself.
        spaces: layouts to try, those of each of them; all that make sense by default.
        top: layouts of each device to show.

    Returns:
        tables `layouts`, of each device the best first, or where none fits those that need least; `parts`,
        of each of them where the time goes; `refused`, how many could not be and why; `assumptions`. meta:
        tried, possible (layouts that the model allows), fits (device to how many of them), best (device to
        the first one as text).

    Raises:
        TracelensError: there is no device, one has no memory or rate in its file, or nothing can be tried.
    """
    if not devices:
        raise TracelensError("a search needs a device: give --device")
    sized, refusals = sized_layouts(question, spaces, [room(question, device) for device in devices])
    if not sized:
        raise TracelensError(_nothing(refusals))
    found = [ranked(question, device, sized) for device in devices]
    best = {one.device.name: describe(one.fitting[0].sized.candidate) for one in found if one.fitting}
    return Result(
        "search",
        "Layouts that fit, the fastest first",
        _tables(question, found, refusals, top),
        doc=purpose(search),
        skips=tuple(
            Skip(
                f"layouts on {one.device.name}",
                f"none fits in {one.room / GIB:,.1f} GiB; those that need least are shown",
            )
            for one in found
            if not one.fitting
        ),
        meta={
            "gpus": question.gpus,
            "global_batch": question.global_batch,
            "seq": question.training.seq,
            "convention": question.memory.convention,
            "toggles": " ".join(f"{name}={value}" for name, value in question.toggles.changed().items())
            or "baseline",
            "tried": len(sized) + len(refusals),
            "possible": len(sized),
            "fits": {one.device.name: len(one.fitting) for one in found},
            "best": best,
        },
        command="tracelens project memory --search",
    )


def _tables(
    question: Question, found: Sequence[Ranked], refusals: Sequence[Refusal], top: int
) -> dict[str, Table]:
    shown = [(one, place, timed) for one in found for place, timed in one.shown[:top]]
    rows = [_row(one, place, timed) for one, place, timed in shown]
    refused = [("", one) for one in refusals]
    refused += [(one.device.name, refusal) for one in found for refusal in one.refused]
    assumed = _assumed(question, [one.device for one in found])
    return {
        "layouts": LAYOUTS.table(_columns(LAYOUTS.names, rows)),
        "parts": PARTS.table(_columns(PARTS.names, list(_parts(shown)))),
        "refused": REFUSED.table(_columns(REFUSED.names, _counted(refused))),
        "assumptions": ASSUMED.table(_columns(ASSUMED.names, assumed)),
    }


def _row(ranked: Ranked, place: int, timed: Timed) -> dict[str, Any]:
    (candidate, size, _), time = timed
    layout, training = candidate.config.layout, candidate.config.training
    return {
        "device": ranked.device.name,
        "place": place,
        **{name: getattr(layout, name) for name in SIZES},
        "dp": layout.dp,
        "micro_batch": training.micro_batch,
        "micro_batches": training.micro_batches,
        "recompute": candidate.recompute,
        "step_ns": time.step_ns,
        "tokens_per_s": time.tokens_per_s,
        "mfu": time.mfu,
        "bytes": size,
        "left_bytes": ranked.room - size,
        "computing": sum(time.parts[name] for name in _COMPUTING) / time.step_ns,
        "exchanging": sum(time.parts[name] for name in _EXCHANGES) / time.step_ns,
        "bubble": time.parts["bubble"] / time.step_ns,
    }


def _parts(shown: Sequence[tuple[Ranked, int, Timed]]) -> Iterator[dict[str, Any]]:
    """Rows of PARTS: of each layout all parts that any of them has."""
    used = [part for part in STEP_PARTS if any(timed.time.parts[part] for *_, timed in shown)]
    for one, place, timed in shown:
        layout = describe(timed.sized.candidate)
        for part in used:
            ns = round(timed.time.parts[part])
            yield {"device": one.device.name, "place": place, "layout": layout, "part": part, "ns": ns}


def _counted(refused: Iterable[tuple[str, Refusal]]) -> list[dict[str, Any]]:
    """Rows of REFUSED, the most frequent first."""
    found: dict[tuple[str, str], tuple[int, str]] = {}
    for device, (reason, example) in refused:
        count, first = found.get((device, reason), (0, example))
        found[device, reason] = (count + 1, first)
    rows = [
        {"device": device, "reason": reason, "count": count, "example": example}
        for (device, reason), (count, example) in found.items()
    ]
    return sorted(rows, key=lambda row: -row["count"])


def _assumed(question: Question, devices: Sequence[Device]) -> list[dict[str, Any]]:
    """Rows of ASSUMED: what holds for all, and the figures of each device."""
    lines = [("", line) for line in question.machine.assumptions()]
    for device in devices:
        lines += [(device.name, line) for line in question.machine.figures(device, question.training.dtype)]
    return [
        {"name": name, "value": value, "device": device, "about": f"{meaning}; {source}"}
        for device, (name, value, meaning, source) in lines
    ]


def _columns(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in names}


def _nothing(refusals: Sequence[Refusal]) -> str:
    if not refusals:
        return "there is no layout to try: widen what is tried"
    most, *_ = _counted(("", one) for one in refusals)
    return f"none of {len(refusals)} layouts can be; {most['count']} as in {most['example']}"
