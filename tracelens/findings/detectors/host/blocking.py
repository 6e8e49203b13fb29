"""Calls in which the host waits for the GPU, in MoE layers and elsewhere."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tracelens.analysis.moe import DISPATCH, EXPERTS, PERMUTATION, ROUTER, STAGES, Blocking, blocking, regions
from tracelens.arrays import Bool
from tracelens.findings.detectors.detector import Detection, Found, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import Union, enclosing_op, intersection, union

_OPS = 3


@detector(
    "moe_blocking_calls",
    title="Blocking calls in MoE layers",
    remedy="Keep sizes on the GPU: sync-free MoE layers (Primus' turbo_sync_free_moe_stage 1 to 3: "
    "moe_permutation_fusion, use_turbo_deepep with use_cuda_num_token_per_expert and num_worst_tokens, "
    "use_turbo_groupmlp; stage 3 needs more memory).",
    launching=True,
)
def moe_blocking_calls(scene: RankContext) -> Found:
    """Calls in MoE layers in which the host waits for the GPU: item, nonzero, tolist, copies to the host."""
    found = scene.trace.once(regions)
    if not found.visits:
        return "no MoE layer"
    calls = scene.trace.once(blocking)
    inside = _in_steps(scene, calls) & (calls.visit >= 0)
    if not inside.any():
        return "no blocking call in MoE layers"
    edges = np.array(scene.window)
    starts = np.full(len(found.visits), -1, dtype=np.int64)
    rows = np.flatnonzero(found.visit[scene.rows] >= 0)
    starts[found.visit[scene.rows][rows]] = scene.work.start[rows]
    passes = sum(
        not visit.again and bool(edges[0] <= start <= edges[1])
        for visit, start in zip(found.visits, starts.tolist(), strict=True)
    )
    each = int(inside.sum()) / max(passes, 1)
    stages = np.bincount(calls.stage[inside], minlength=len(STAGES)) / max(passes, 1)
    where = _idle(scene, calls, inside)
    blocked = scene.per_step(float(calls.blocked_ns[inside].sum()))
    said = ", ".join(f"{count:.3g} in {STAGES[at]}" for at, count in enumerate(stages.tolist()) if count)
    return Detection(
        (
            Quantity("calls a layer and micro-batch", each, "count"),
            *(
                Quantity(f"calls a layer and micro-batch, {name}", float(stages[at]), "count")
                for at, name in enumerate(STAGES)
                if at in (ROUTER, DISPATCH, PERMUTATION, EXPERTS)
            ),
            Quantity("host blocked, a step", blocked, "ns"),
            Quantity("GPU idle until the next kernel, a step", scene.per_step(where.total), "ns"),
        ),
        scene.per_step(where.total),
        where,
        f"the host waits for the GPU {each:.3g} times a layer and micro-batch ({said}; most in "
        f"{_ops(scene, calls, inside)}), {blocked / 1e6:,.2f} ms of a step; the GPU is idle for "
        f"{scene.per_step(where.total) / 1e6:,.2f} ms until the next work after that",
        "high",
    )


@detector(
    "other_blocking_calls",
    title="Blocking calls outside of MoE layers",
    remedy="Take .item(), .cpu(), print and synchronize out of the step: log every N steps, keep losses and "
    "norms on the GPU, copy with non_blocking=True from pinned memory.",
    launching=True,
)
def other_blocking_calls(scene: RankContext) -> Found:
    """Calls in a step, outside of MoE layers, in which the host waits for the GPU while it runs dry."""
    calls = scene.trace.once(blocking)
    inside = _in_steps(scene, calls) & (calls.visit < 0)
    if not inside.any():
        return "no blocking call in the steps outside of MoE layers"
    where = _idle(scene, calls, inside)
    count = scene.per_step(int(inside.sum()))
    blocked = scene.per_step(float(calls.blocked_ns[inside].sum()))
    return Detection(
        (
            Quantity("calls a step", count, "count"),
            Quantity("host blocked, a step", blocked, "ns"),
            Quantity("GPU idle until the next kernel, a step", scene.per_step(where.total), "ns"),
        ),
        scene.per_step(where.total),
        where,
        f"the host waits for the GPU {count:,.3g} times a step (most in {_ops(scene, calls, inside)}), "
        f"{blocked / 1e6:,.2f} ms in all; the GPU is idle for {scene.per_step(where.total) / 1e6:,.2f} ms "
        "until the next work after that",
        "high",
    )


def _in_steps(scene: RankContext, calls: Blocking) -> Bool:
    """Which calls begin in a step."""
    result: Bool = (calls.start >= scene.window[0]) & (calls.start <= scene.window[1])
    return result


def _idle(scene: RankContext, calls: Blocking, chosen: Bool) -> Union:
    """When the GPU has nothing to do from such a call until the next work."""
    gaps = scene.busy.gaps()
    return intersection(gaps, union(calls.start[chosen], calls.until[chosen]))


def _ops(scene: RankContext, calls: Blocking, chosen: Bool) -> str:
    """The ops, or calls where there is none around them, with the most blocking calls."""
    events = scene.trace.arrays
    around = scene.trace.once(enclosing_op)[calls.event[chosen]]
    rows = np.where(around >= 0, around, calls.event[chosen])
    names = Counter(events.names[code] for code in events.name[rows].tolist())
    return ", ".join(name for name, _ in names.most_common(_OPS))
