"""Activations that are kept instead of recomputed."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.analysis.common import NODE, recomputed
from tracelens.arrays import Int, lookup
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.table import nearest
from tracelens.trace import Trace
from tracelens.units import duration
from tracelens.what_if.graph import Edit, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario, work_costs
from tracelens.what_if.scenarios.changes import drop_work, marked, unblock

_LAYERS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


class Recompute(NamedTuple):
    """The forward work that one rank repeats in its backward passes.

    Attributes:
        rows: positions in its work.
        layer: of each, numbered from 0 in the order of the forward pass.
        calls: event rows of launches and other calls in it.
        call_layer: of each.
        written: bytes that each piece of work writes, by its cost model; 0 where there is none.
        passes: number of backward passes that repeat something.
    """

    rows: Int
    layer: Int
    calls: Int
    call_layer: Int
    written: Int
    passes: int


def recompute_work(trace: Trace, device: Device | None) -> Recompute:
    """The forward work that a rank repeats.

    Each node of the backward pass that repeats anything is one layer. The backward pass runs through them
    from the last one to the first; another one begins behind forward work, or with a node of a later forward.
    """
    events, work = trace.arrays, trace.work
    mask, caller = trace.once(recomputed), work.host_call
    node = events.named(lambda name: name.startswith(NODE))
    around = nearest(events.parent, events.depth, node)
    rows = np.flatnonzero(lookup(mask, caller, False) & (lookup(around, caller, -1) >= 0))
    calls = np.flatnonzero(mask & events.where("launch") & (around >= 0))
    layers, index = np.unique(np.concatenate((around[caller[rows]], around[calls])), return_inverse=True)
    if not len(layers):
        return Recompute(rows, rows, calls, calls, rows, 0)
    order = np.argsort(events.start[layers], kind="stable")
    forward = np.flatnonzero((caller >= 0) & (lookup(around, caller, 0) < 0) & ~lookup(mask, caller, True))
    forward_ns = np.sort(events.start[caller[forward]])
    # Between layers of one backward pass nothing is launched outside of it.
    passed = np.searchsorted(forward_ns, events.start[layers[order]])
    sequence = _sequence(trace, around, layers)[order]
    begins = (np.diff(passed) > 0) | (np.diff(sequence) > 0)
    number_of_pass = np.cumsum(np.concatenate(([0], begins)))[: len(order)]
    count = np.bincount(number_of_pass)
    first = np.concatenate(([0], np.cumsum(count)[:-1])) if len(count) else count
    number = np.empty(len(layers), dtype=np.int64)
    number[order] = (count[number_of_pass] - 1) - (np.arange(len(order)) - first[number_of_pass])
    layer = number[index.ravel()]
    return Recompute(rows, layer[: len(rows)], calls, layer[len(rows) :], _written(trace, rows), len(count))


def _sequence(trace: Trace, around: Int, layers: Int) -> Int:
    """Autograd's number of the forward that each of these nodes belongs to, -1 where it is not recorded."""
    ops = trace.tables["ops"]
    row, number = ops.array("event_id"), ops.array("sequence")
    index = np.minimum(np.searchsorted(layers, around[row]), max(len(layers) - 1, 0))
    of_node = (number >= 0) & (ops.array("forward_thread") > 0) & (lookup(layers, index, -2) == around[row])
    sequence = np.full(len(layers), -1, dtype=np.int64)
    np.maximum.at(sequence, index[of_node], number[of_node])
    return sequence


def _written(trace: Trace, rows: Int) -> Int:
    """Bytes that each piece of work writes; of a call with several kernels the first counts."""
    costs = trace.once(work_costs)
    size = np.array([item.cost.write_bytes for item in costs.items], dtype=np.int64)
    written = lookup(size, costs.item[rows], 0)
    first = np.zeros(len(rows), dtype=bool)
    first[np.unique(costs.call[rows], return_index=True)[1]] = True
    return np.where(first, written, 0)


@scenario("no_recompute", argument="=LAYERS", reads=(recompute_work,))
def no_recompute(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The backward pass recomputes nothing, or not these layers (0,2-5: in order of the forward pass).

    Assumes:
        There is memory for what the repeated ops write; the assumptions say how much.
    """
    graph, by_rank = context.gpu_graph(), context.read(recompute_work)
    if not any(len(part.rows) for part in by_rank):
        raise NotApplicable("the backward pass recomputes nothing")
    most = max(int(part.layer.max(initial=-1)) for part in by_rank)
    layers = _layers(argument, most)
    work = marked(graph, [part.rows[np.isin(part.layer, layers)] for part in by_rank])
    calls = np.zeros(len(graph), dtype=bool)
    for rank, part in enumerate(by_rank):
        points = graph.nodes(rank, Node.POINT, Node.WAITED)
        calls[points] = np.isin(graph.event[points], part.calls[np.isin(part.call_layer, layers)])
    if not work.any():
        raise NotApplicable(f"none of layers {argument} is recomputed (layers: 0 to {most})")
    gpu_ns = int(edit.dur[work].sum())
    unblock(graph, edit, calls)
    launches = drop_work(graph, edit, work, calls)
    written = [
        int(part.written[np.isin(part.layer, layers)].sum()) // max(part.passes, 1) for part in by_rank
    ]
    memory = (
        f"keep up to {max(written) / 1e9:,.2f} GB more per micro-batch"
        if any(written)
        else "need more memory"
    )
    return (
        f"{int(work.sum()):,} kernels ({duration(gpu_ns)} over all ranks) and {launches:,} launches are not "
        f"repeated in {len(layers)} of {most + 1} layers, which {memory}: all that the repeated ops write"
    )


def _layers(argument: str, most: int) -> list[int]:
    """The layers of an argument such as 0,2-5; all without one."""
    if not argument:
        return list(range(most + 1))
    if not _LAYERS.fullmatch(argument):
        raise TracelensError(f"scenario no_recompute={argument}: write layers as in no_recompute=0,2-5")
    layers: list[int] = []
    for part in argument.split(","):
        low, _, high = part.partition("-")
        layers += range(int(low), min(int(high or low), most) + 1)
    return layers
