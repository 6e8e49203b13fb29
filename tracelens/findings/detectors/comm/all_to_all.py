"""All-to-all that no computation hides."""

from __future__ import annotations

from math import comb

import numpy as np

from tracelens.analysis.moe import (
    BACKWARD,
    COMBINE,
    DISPATCH,
    LayerPass,
    expert_parallel_group,
    regions,
    token_messages,
)
from tracelens.arrays import Bool
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import WORK_KINDS, difference, intersection

_NOTHING = 0.001
"""A smaller share of the all-to-all is the edge between two kernels."""


@detector(
    "exposed_all_to_all",
    title="Exposed all-to-all",
    remedy="Overlap the all-to-all of one micro-batch with the computation of another (1F1B overlap: "
    "--overlap_moe_expert_parallel_comm; two-batch overlap in serving), and send each token only once per "
    "rank (DeepEP: use_turbo_deepep).",
)
def exposed_all_to_all(context: RankContext) -> Outcome:
    """Exposed dispatch and combine of MoE layers, or other all-to-alls."""
    is_all_to_all = _all_to_all(context)
    if not is_all_to_all.any():
        return "no dispatch, combine or other all-to-all"
    all_to_all, computing = context.during(is_all_to_all), context.work.union("computation")
    exposed = difference(all_to_all, computing)
    if exposed.total <= _NOTHING * all_to_all.total:
        return "the all-to-all is hidden under computation"
    hidden = intersection(all_to_all, computing).total
    # Computation that hides something already cannot hide more, and cannot hide more than its own time.
    free = computing.total - hidden
    most = min(exposed.total, free)
    bound = (hidden + most) / all_to_all.total
    quantities = [
        Quantity("all-to-all per step", context.per_step(all_to_all.total), "ns"),
        Quantity("exposed per step", context.per_step(exposed.total), "ns"),
        Quantity("overlap efficiency", hidden / all_to_all.total, "fraction"),
        Quantity("overlap efficiency, bound", bound, "fraction"),
    ]
    details = ""
    if sent := _sent(context):
        quantities.append(Quantity("sent in forward dispatches per step", context.per_step(sent), "bytes"))
        details = f"; forward dispatches send {context.per_step(sent) / 1e9:,.2f} GB/step"
    if (share := _deduplicated(context)) < 1:
        quantities.append(Quantity("of it once to each rank", share, "fraction"))
        details += f"; de-duplication would cut it to {share:.0%}"
    return Detection(
        tuple(quantities),
        context.per_step(most),
        exposed,
        f"{context.per_step(exposed.total) / 1e6:,.1f} of {context.per_step(all_to_all.total) / 1e6:,.1f} "
        "ms/step of all-to-all (including waiting) are exposed: "
        f"{hidden / all_to_all.total:.0%} hidden, {bound:.0%} possible{details}",
        "low",
    )


def _all_to_all(context: RankContext) -> Bool:
    """Which work is all-to-all of tokens."""
    layers, work = context.trace.once(regions), context.work
    comm = work.kind == WORK_KINDS.index("comm")
    table = context.trace.tables["collectives"]
    kernel = table.array("kernel_id")
    named = table.coded("collective").mask(lambda name: "all_to_all" in name or "alltoall" in name)
    result: Bool = comm & (
        np.isin(layers.stage[context.rows], (DISPATCH, COMBINE))
        | np.isin(work.event, kernel[named & (kernel >= 0)])
    )
    return result


def _sent(context: RankContext) -> int:
    """Bytes that go into the dispatches of forward passes in the steps."""
    layers = context.trace.once(regions)
    rows, work = context.trace.once(token_messages)
    inside = np.isin(work, context.rows) & (layers.stage[work] == DISPATCH) & (layers.phase[work] != BACKWARD)
    size = context.trace.tables["collectives"].array("in_bytes")[rows[inside]]
    return int(size[size > 0].sum())


def _deduplicated(context: RankContext) -> float:
    """Copies of a token when each rank gets at most one, against one an expert; 1 where that is not known.

    With E experts spread evenly over P ranks and k of them chosen at random, a rank has none of the k with
    probability C(E - E/P, k) / C(E, k); P times the rest is the mean number of ranks a token goes to.
    """
    layers = context.trace.once(regions)
    ranks = len(expert_parallel_group(context.trace))
    layer_pass: LayerPass | None = next(
        (layer_pass for layer_pass in layers.passes if layer_pass.experts > 0 and layer_pass.top_k > 0), None
    )
    if layer_pass is None or ranks < 2 or layer_pass.experts % ranks:
        return 1.0
    elsewhere = layer_pass.experts - layer_pass.experts // ranks
    copies = ranks * (1 - comb(elsewhere, layer_pass.top_k) / comb(layer_pass.experts, layer_pass.top_k))
    return copies / layer_pass.top_k
