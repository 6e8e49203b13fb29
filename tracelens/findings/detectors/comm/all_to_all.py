"""Exchange of tokens that no computation hides: all-to-all, or all-gather and reduce-scatter."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.comm import collective_kinds
from tracelens.analysis.moe import (
    BACKWARD,
    COMBINE,
    DISPATCH,
    deduplicated_share,
    regions,
    token_messages,
)
from tracelens.arrays import Bool
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import WORK_KINDS, collectives, difference, intersection
from tracelens.units import amount

_NOTHING = 0.001
"""A smaller share of the all-to-all is the edge between two kernels."""


_ALL_TO_ALL, _GATHERS, _MESSAGES = ("all_to_all",), ("all_gather", "reduce_scatter"), ("send_recv",)

_MEASURES = {
    "exposed per step": "part of it without computation",
    "overlap efficiency": "hidden / all of it",
    "overlap efficiency, bound": "the same if all other computation overlapped it",
    "sent in forward dispatches per step": "input of the forward dispatches, where recorded",
    "share after de-duplication": "bytes left if each rank got a token once, with experts chosen at random",
}


@detector(
    "exposed_all_to_all",
    scenario="all_to_all_hidden",
    title="Exposed all-to-all",
    symptom=True,  # of ranks that come late: much of it is waiting for them
    measures={"all-to-all per step": "time with an all-to-all running, waiting included", **_MEASURES},
    threshold=f"over {_NOTHING:.1%} of the time is exposed",
    limits="Includes waiting for late ranks, which no overlap removes; see the findings about stragglers.",
)
def exposed_all_to_all(context: RankContext) -> Outcome:
    """Exposed all-to-all: dispatch and combine of MoE layers, or others."""
    is_all_to_all = _all_to_all(context)
    if not is_all_to_all.any():
        return "no all-to-all, in MoE layers or elsewhere"
    return _exposed(context, is_all_to_all, "all-to-all")


@detector(
    "exposed_token_gather",
    title="Exposed all-gather and reduce-scatter of tokens",
    symptom=True,
    measures={
        "all-gather and reduce-scatter per step": "time with one of them running, waiting included",
        **_MEASURES,
    },
    threshold=f"over {_NOTHING:.1%} of the time is exposed",
    limits="Includes waiting for late ranks, which no overlap removes; see the findings about stragglers.",
)
def exposed_token_gather(context: RankContext) -> Outcome:
    """Exposed dispatch by all-gather and combine by reduce-scatter in MoE layers without an all-to-all."""
    if _all_to_all(context).any():
        return "tokens are dispatched by all-to-all"
    gathers = _exchanges(context) & _is(context, _GATHERS)
    if not gathers.any():
        return "no dispatch by all-gather, no combine by reduce-scatter"
    return _exposed(context, gathers, "all-gather and reduce-scatter")


def _exposed(context: RankContext, exchange: Bool, name: str) -> Outcome:
    """What of the exchange of tokens no computation hides."""
    exchanging, computing = context.during(exchange), context.work.union("computation")
    exposed = difference(exchanging, computing)
    if exposed.total <= _NOTHING * exchanging.total:
        return f"the {name} is hidden under computation"
    hidden = intersection(exchanging, computing).total
    # Computation that hides something already cannot hide more, and cannot hide more than its own time.
    free = computing.total - hidden
    most = min(exposed.total, free)
    bound = (hidden + most) / exchanging.total
    quantities = [
        Quantity(f"{name} per step", context.per_step(exchanging.total), "ns"),
        Quantity("exposed per step", context.per_step(exposed.total), "ns"),
        Quantity("overlap efficiency", hidden / exchanging.total, "fraction"),
        Quantity("overlap efficiency, bound", bound, "fraction"),
    ]
    details = ""
    if sent := _sent(context):
        quantities.append(Quantity("sent in forward dispatches per step", context.per_step(sent), "bytes"))
        details = f"; forward dispatches send {amount(context.per_step(sent), 'bytes')}/step"
    if (share := deduplicated_share(context.trace)) < 1:
        quantities.append(Quantity("share after de-duplication", share, "fraction"))
        details += f"; de-duplication would cut it to {share:.0%}"
    return Detection(
        tuple(quantities),
        context.per_step(most),
        exposed,
        f"{context.per_step(exposed.total) / 1e6:,.1f} of {context.per_step(exchanging.total) / 1e6:,.1f} "
        f"ms/step of {name} (including waiting) is exposed: {hidden / exchanging.total:.0%} hidden, "
        f"{bound:.0%} possible{details}",
        "low",
    )


def _exchanges(context: RankContext) -> Bool:
    """Which work is communication in the dispatch or combine of MoE layers."""
    layers, work = context.trace.once(regions), context.work
    inside: Bool = (work.kind == WORK_KINDS.index("comm")) & np.isin(
        layers.stage[context.rows], (DISPATCH, COMBINE)
    )
    return inside


def _is(context: RankContext, names: tuple[str, ...]) -> Bool:
    """Which work is one of these collectives."""
    codes = [collectives().index(name) for name in names]
    result: Bool = np.isin(context.trace.once(collective_kinds)[context.rows], codes)
    return result


def _all_to_all(context: RankContext) -> Bool:
    """Which work is all-to-all by its record or name.

    In dispatch and combine also sends and receives, and what neither record nor name tells.
    """
    untold = context.trace.once(collective_kinds)[context.rows] < 0
    result: Bool = _is(context, _ALL_TO_ALL) | (_exchanges(context) & (untold | _is(context, _MESSAGES)))
    return result


def _sent(context: RankContext) -> int:
    """Bytes that go into the dispatches of forward passes in the steps."""
    layers = context.trace.once(regions)
    rows, work = context.trace.once(token_messages)
    inside = np.isin(work, context.rows) & (layers.stage[work] == DISPATCH) & (layers.phase[work] != BACKWARD)
    size = context.trace.tables["collectives"].array("in_bytes")[rows[inside]]
    return int(size[size > 0].sum())
