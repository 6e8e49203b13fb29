"""Exchange of tokens between ranks that no computation hides."""

from __future__ import annotations

from math import comb

import numpy as np

from tracelens.analysis.moe import BACKWARD, COMBINE, DISPATCH, LayerPass, exchange_group, exchanges, regions
from tracelens.arrays import Bool
from tracelens.findings.detectors.detector import Detection, Found, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import WORK_KINDS, difference, intersection

_NOTHING = 0.001
"""A smaller share of the exchange than this is the edge between two kernels."""


@detector(
    "exposed_all_to_all",
    title="Exposed all-to-all",
    remedy="Hide the exchange of one micro-batch behind the computation of another (1F1B overlap with "
    "--overlap_moe_expert_parallel_comm, two-batch overlap in serving), and send each token once to each "
    "rank that needs it (DeepEP: use_turbo_deepep).",
)
def exposed_all_to_all(scene: RankContext) -> Found:
    """Dispatch and combine of MoE layers, or other all-to-alls, while nothing is computed."""
    chosen = _chosen(scene)
    if not chosen.any():
        return "no exchange of tokens: no dispatch, combine or all-to-all"
    exchange, computing = scene.during(chosen), scene.work.union("computation")
    exposed = difference(exchange, computing)
    if exposed.total <= _NOTHING * exchange.total:
        return "the exchange is hidden behind computation"
    hidden = intersection(exchange, computing).total
    # What hides something already cannot hide more; less computation than exchange cannot hide all of it.
    free = computing.total - hidden
    most = min(exposed.total, free)
    bound = (hidden + most) / exchange.total
    quantities = [
        Quantity("exchange, a step", scene.per_step(exchange.total), "ns"),
        Quantity("exposed, a step", scene.per_step(exposed.total), "ns"),
        Quantity("overlap efficiency", hidden / exchange.total, "fraction"),
        Quantity("overlap efficiency, bound", bound, "fraction"),
    ]
    said = ""
    if sent := _sent(scene):
        quantities.append(Quantity("sent in forward dispatches, a step", scene.per_step(sent), "bytes"))
        said = f"; forward dispatches send {scene.per_step(sent) / 1e9:,.2f} GB a step"
    if (share := _deduplicated(scene)) < 1:
        quantities.append(Quantity("of it once to each rank", share, "fraction"))
        said += f", of which {share:.0%} would do if each rank got a token once"
    return Detection(
        tuple(quantities),
        scene.per_step(most),
        exposed,
        f"{scene.per_step(exposed.total) / 1e6:,.1f} of {scene.per_step(exchange.total) / 1e6:,.1f} ms "
        "a step of exchange, with the waiting for other ranks in it, run beside no computation: "
        f"{hidden / exchange.total:.0%} are hidden, {bound:.0%} could be{said}",
        "low",
    )


def _chosen(scene: RankContext) -> Bool:
    """Which work exchanges tokens."""
    found, work = scene.trace.once(regions), scene.work
    comm = work.kind == WORK_KINDS.index("comm")
    table = scene.trace.tables["collectives"]
    kernel = table.array("kernel_id")
    named = np.array(
        ["all_to_all" in name or "alltoall" in name for name in table.texts("collective")], dtype=bool
    )
    result: Bool = comm & (
        np.isin(found.stage[scene.rows], (DISPATCH, COMBINE))
        | np.isin(work.event, kernel[named & (kernel >= 0)])
    )
    return result


def _sent(scene: RankContext) -> int:
    """Bytes that go into the dispatches of forward passes in the steps."""
    found = scene.trace.once(regions)
    rows, at = scene.trace.once(exchanges)
    inside = np.isin(at, scene.rows) & (found.stage[at] == DISPATCH) & (found.phase[at] != BACKWARD)
    size = scene.trace.tables["collectives"].array("in_bytes")[rows[inside]]
    return int(size[size > 0].sum())


def _deduplicated(scene: RankContext) -> float:
    """Copies of a token when each rank gets at most one, against one an expert; 1 where that is not known.

    With E experts spread evenly over P ranks and k of them chosen at random, a rank has none of the k with
    probability C(E - E/P, k) / C(E, k); P times the rest is the mean number of ranks a token goes to.
    """
    found = scene.trace.once(regions)
    ranks = len(exchange_group(scene.trace))
    visit: LayerPass | None = next((one for one in found.visits if one.experts > 0 and one.chosen > 0), None)
    if visit is None or ranks < 2 or visit.experts % ranks:
        return 1.0
    other = visit.experts - visit.experts // ranks
    copies = ranks * (1 - comb(other, visit.chosen) / comb(visit.experts, visit.chosen))
    return copies / visit.chosen
