"""Rows of the wide table of kernels, copies and memsets."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.analysis.common import recomputed
from tracelens.analysis.moe import PHASES, regions
from tracelens.analysis.pipeline import in_autograd
from tracelens.analysis.step_timeline import activity_texts
from tracelens.arrays import Bool, Int, lookup
from tracelens.devices import Device
from tracelens.session.wide.costs import kernel_costs
from tracelens.table import Coded, nearest, sums
from tracelens.trace import WORK_KINDS, Trace, Work, launched_in, shares, steps_of


def kernel_rows(trace: Trace, work: Work, device: Device | None) -> dict[str, Any]:
    """Columns of KERNELS of one rank.

    Args:
        trace: of the rank.
        work: any of its work.
        device: whose peaks set the roofline, None where they are not known.
    """
    names = trace.arrays.names
    return (
        activity_texts(trace, work)
        | program(trace, work)
        | kernel_costs(trace, work, device)
        | {
            "rank": np.full(len(work.event), trace.meta.rank),
            "kind": Coded.used(work.kind, WORK_KINDS),
            "forward_op": Coded.used(lookup(trace.arrays.name, work.forward, len(names)), [*names, ""]),
            "device": work.device,
            "stream": work.stream,
            "ts_ns": work.start,
            "dur_ns": work.dur,
            "exclusive_ns": _exclusive(trace, work),
            "launch_ts_ns": lookup(trace.arrays.start, work.launch, -1),
            "kernel_id": work.event,
            "op_id": work.op,
            "op_source": _op_source(trace, work),
        }
    )


def program(trace: Trace, work: Work) -> dict[str, Any]:
    """Step, MoE layer, micro-batch and phase of each piece of work."""
    steps, moe = steps_of(trace), trace.once(regions)
    number = moe.layer_pass[trace.arrays.places(trace.work.event)[work.event]]
    layer, microbatch = (
        np.array([getattr(layer_pass, name) for layer_pass in moe.passes], dtype=np.int64)
        for name in ("layer", "microbatch")
    )
    return {
        "step": Coded.used(launched_in(trace, steps, work.event), steps.labels),
        "layer": lookup(layer, number, -1),
        "microbatch": lookup(microbatch, number, -1),
        "phase": Coded.used(_phase(trace, work), [*PHASES, ""]),
    }


def _phase(trace: Trace, work: Work) -> Int:
    """Code into PHASES of each piece of work, -1 where nothing tells: the MoE layers tell first.

    Elsewhere autograd does: what its engine runs is backward, unless it is a forward pass again; what an op
    launches that it numbered for a later backward pass is forward.
    """
    forward, backward, recompute = range(len(PHASES))
    call = work.host_call
    phase = np.where(lookup(_numbered(trace), work.op, False), forward, -1)
    phase[lookup(in_autograd(trace), call, False)] = backward
    phase[lookup(trace.once(recomputed), call, False)] = recompute
    of_moe = trace.once(regions).phase[trace.arrays.places(trace.work.event)[work.event]]
    return np.where(of_moe >= 0, of_moe, phase)


def _numbered(trace: Trace) -> Bool:
    """Events inside of ops that autograd numbered for a later backward pass."""
    events, ops = trace.arrays, trace.tables["ops"]
    numbered = np.zeros(len(events.start), dtype=bool)
    is_forward = (ops.array("sequence") >= 0) & (ops.array("forward_thread") <= 0)
    numbered[ops.array("event_id")[is_forward]] = True
    inside: Bool = nearest(events.parent, events.depth, numbered) >= 0
    return inside


def _op_source(trace: Trace, work: Work) -> Coded:
    """Where each op is recorded, and whether its shapes are of another batch size."""
    source, ops = trace.tables["events"].coded("source"), trace.tables["ops"]
    count = len(source.values)
    is_inferred = np.zeros(len(trace.arrays.start), dtype=bool)
    is_inferred[ops.array("event_id")[ops.coded("inferred").mask(bool)]] = True
    code = source.codes + count * is_inferred
    texts = [*source.values, *(f"{text}, inferred" for text in source.values), ""]
    return Coded.used(lookup(code, work.op, 2 * count), texts)


def _exclusive(trace: Trace, work: Work) -> Int:
    """Wall time of each piece of work alone, by the rule of the breakdown."""
    row, _, ns = shares(work.start, work.end, work.kind.astype(np.int64), steps_of(trace).edges)
    return sums(row, ns, len(work.event))
