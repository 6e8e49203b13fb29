"""Gradients of data parallelism that are reduced in every micro-batch, though only their sum counts."""

from __future__ import annotations

import re

import numpy as np

from tracelens.analysis.comm import Repetition
from tracelens.analysis.common import NODE
from tracelens.arrays import lookup, unique
from tracelens.devices import Device
from tracelens.findings import Detection, Outcome, Quantity, RankContext, Remedy, detector
from tracelens.opportunities.collectives import communicated_again, drop_repetition
from tracelens.opportunities.recompute import backward_node
from tracelens.table import nearest
from tracelens.trace import WORK_KINDS, Trace, matching, steps_of
from tracelens.units import amount, duration
from tracelens.what_if import ScenarioContext, scenario
from tracelens.what_if.graph import Edit

NOT_REPEATED = "no step in which DDP or FSDP2 reduces the gradients of several micro-batches"

_FSDP = re.compile(r"^FSDP::post_backward_reduce(?: \(.+\))?$")
"""Marks of FSDP2 around a module's reduce-scatter, with the copies into and out of its buffers."""
_ACCUMULATION = NODE + "torch::autograd::AccumulateGrad"
"""The node whose hooks DDP uses: they scale a gradient into its bucket, and reduce a full bucket."""
_DDP = re.compile(r"^(?:c10d::|aten::(?:mul|div)_?$)")
_FORWARD = ("gemm", "grouped_gemm", "attention")


def reductions_of(trace: Trace) -> Repetition:
    """The reductions of a rank before the last backward pass of their step."""
    events, work, none = trace.arrays, trace.work, np.zeros(0, dtype=np.int64)
    reduces = events.fitting(_FSDP, "annotation")
    accumulates = events.named(_ACCUMULATION.__eq__)
    hooked = np.zeros(len(reduces), dtype=bool)
    if accumulates.any():
        hooked = lookup(accumulates, trace.once(backward_node), False)
        hooked &= matching(events.names, _DDP)[events.name]
        reduces |= hooked
    steps = steps_of(trace)
    if not steps.marked or not reduces.any():
        return Repetition(none, none)
    # DDP copies gradients back behind the pass, on autograd's thread, where nothing else is outside of nodes.
    forward = np.isin(
        work.category, [work.categories.index(name) for name in _FORWARD if name in work.categories]
    )
    forward_calls = work.host_call[forward & (work.host_call >= 0)]
    forward_calls = forward_calls[trace.once(backward_node)[forward_calls] < 0]
    own_thread = np.isin(events.tid, unique(events.tid[hooked])) & ~np.isin(
        events.tid, unique(events.tid[forward_calls])
    )
    copied_back = own_thread & (events.parent < 0) & events.named("aten::copy_".__eq__)
    marks = np.flatnonzero(reduces | copied_back)
    # Between two backward passes a forward pass multiplies matrices.
    number = np.searchsorted(np.sort(events.start[forward_calls]), events.start[marks])
    step = steps.begun_at(events.start[marks])
    last = np.zeros(len(steps.labels), dtype=np.int64)
    np.maximum.at(last, step, number)
    repeated = np.zeros(len(events.start), dtype=bool)
    repeated[marks[number < last[step]]] = True
    inside = nearest(events.parent, events.depth, repeated) >= 0
    rows = np.flatnonzero(lookup(inside, work.launch, False))
    if not (work.kind[rows] == WORK_KINDS.index("comm")).any():
        return Repetition(none, none)
    return Repetition(rows, np.flatnonzero(inside))


@detector(
    "gradients_repeated",
    evidence="overlap",
    scenario="reduce_once",
    title="Gradients are reduced in every micro-batch",
    fix="reducing gradients once a step",
    measures={
        "repeated reductions per step": "reductions of micro-batches before the last, waiting included",
        "exposed per step": "part of it without computation",
    },
    threshold="one reduction before the last backward pass of a step",
    limits="Reads the marks of FSDP2 and the hooks of DDP.",
    remedy="Reduce gradients with the last micro-batch only. DDP: model.no_sync() around forward and "
    "backward of the others. FSDP2: model.set_requires_gradient_sync(False) for them; whole gradients then "
    "stay in memory.",
    remedies=(
        Remedy(
            "transformers and Accelerate: gradient_accumulation_steps, with accelerator.accumulate(model).",
            framework=("huggingface",),
        ),
    ),
)
def gradients_repeated(context: RankContext) -> Outcome:
    """DDP or FSDP2 reduces gradients in each micro-batch of a step."""
    reducing, exposed = communicated_again(context, context.trace.once(reductions_of))
    if not reducing.total:
        return NOT_REPEATED
    return Detection(
        (
            Quantity("repeated reductions per step", context.per_step(reducing.total), "ns"),
            Quantity("exposed per step", context.per_step(exposed.total), "ns"),
        ),
        context.per_step(exposed.total),
        reducing,
        f"{context.per_step(reducing.total) / 1e6:,.1f} ms/step of reductions come before the last "
        f"micro-batch; {context.per_step(exposed.total) / 1e6:,.1f} ms/step of them are exposed",
        "medium",
    )


def reductions(trace: Trace, device: Device | None) -> Repetition:
    """What a rank reduces more often than once in a step."""
    return trace.once(reductions_of)


@scenario("reduce_once", reads=(reductions,))
def reduce_once(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Gradients are reduced with the last micro-batch only (DDP: no_sync, FSDP2: set_requires_gradient_sync).

    Assumes:
        What reduces them in other micro-batches goes, with its copies, calls and host time; gradients are
        added up on each GPU instead. Under FSDP2, these are gradients of whole parameters.
    """
    dropped, transfer_ns = drop_repetition(context, edit, context.read(reductions), NOT_REPEATED)
    steps = len(context.recorded.windows)
    sharded = sum(each.participants[0].record.bytes for each in dropped if "scatter" in each.collective)
    memory = f"; each GPU holds up to {amount(sharded / steps, 'bytes')} of gradients more" if sharded else ""
    return (
        f"{len(dropped) / steps:,.0f} reductions a step go, {duration(transfer_ns)} of transfers, with "
        f"their copies and calls{memory}"
    )
