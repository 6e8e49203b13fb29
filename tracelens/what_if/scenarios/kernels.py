"""Kernels that take another time, are fused (losses, routers, permutations), or are not repeated."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tracelens.analysis.common import NODE, REENTERING, recomputed
from tracelens.analysis.fusable import Chains, loss_chains, permutation_chains, router_chains
from tracelens.analysis.roofline import slow_calls
from tracelens.arrays import Int, lookup
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.table import nearest
from tracelens.trace import Trace, matching, wildcards
from tracelens.units import duration
from tracelens.what_if.graph import Edge, Edit, Node
from tracelens.what_if.replay import labels
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, number, scenario, work_costs
from tracelens.what_if.scenarios.changes import drop_work, fuse, marked, marked_calls, unblock
from tracelens.what_if.thresholds import UNHOOKED_SHARE

_LAYERS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


class Recompute(NamedTuple):
    """The forward work that one rank repeats in its backward passes."""

    rows: Int  # positions in its work
    layer: Int  # of each, numbered from 0 in the order of the forward pass
    calls: Int  # event rows of launches and other calls in it
    call_layer: Int  # of each
    written: Int  # bytes that each piece of work writes, by its cost model; 0 where there is none
    hooked: Int  # event rows of these layers' other calls, for which Python keeps or hands out saved tensors
    hooked_layer: Int  # of each
    passes: int  # number of backward passes that repeat something


@scenario("scale", argument=":PATTERN=FACTOR", usual=())
def scale(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """GPU work whose kernel, op, collective or class matches PATTERN takes FACTOR times as long.

    Assumes:
        Everything else stays the same.
    """
    text, equals, factor_text = argument.rpartition("=")
    if not equals or not text:
        raise TracelensError(f"scenario scale:{argument}: write scale:PATTERN=FACTOR, as in scale:gemm=0.5")
    factor = 0.0 if factor_text.strip() == "0" else number(factor_text, f"scale:{argument}")
    pattern, graph = wildcards(text), context.graph
    matches = np.zeros(len(graph), dtype=bool)
    for column in labels(context.recorded):
        matches |= matching(column.values, pattern)[column.codes]
    nodes = np.flatnonzero(matches & (graph.dur > 0))
    if not len(nodes):
        raise NotApplicable(f"no kernel, op, collective or kernel class matches {text!r}")
    edit.set_dur(nodes, edit.dur[nodes] * factor)
    return f"{len(nodes):,} activities take {factor:g}x as long; everything else stays the same"


@scenario("good_kernels", argument="=OP", reads=(slow_calls,))
def good_kernels(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Slow kernels, or those of OP, run at the rate that the device reaches for work of their size.

    Assumes:
        Rates are those measured by size on the device, or on one of which it is a known multiple; GEMMs are
        no faster than the run's best. Kernels that are not slow keep their time, as do sorts, transfers and
        what has no cost model.
    """
    graph, by_rank = context.gpu_graph(), context.read(slow_calls)
    pattern = wildcards(argument) if argument else None
    changed, before_ns, after_ns = 0, 0.0, 0.0
    kinds: set[str] = set()
    for index, slow in enumerate(by_rank):
        names = [item.name for item in slow.items]
        wanted = matching(names, pattern) if pattern else np.ones(len(names), dtype=bool)
        kinds |= {name for name, is_wanted in zip(names, wanted.tolist(), strict=True) if is_wanted}
        rows, kind = slow.rows[wanted[slow.kind]], slow.kind[wanted[slow.kind]]
        nodes = graph.nodes(index, Node.WORK)
        nodes = nodes[np.isin(graph.work[nodes], rows)]
        factor = slow.factor[kind[np.searchsorted(rows, graph.work[nodes])]]
        changed += len(nodes)
        before_ns += float(edit.dur[nodes].sum())
        edit.set_dur(nodes, edit.dur[nodes] * factor)
        after_ns += float(edit.dur[nodes].sum())
    if not changed:
        raise NotApplicable(
            f"no call of an op like {argument!r} is slow" if argument else "no call is slow for its size"
        )
    return (
        f"{changed:,} activities of {len(kinds)} ops take {duration(after_ns)} instead of "
        f"{duration(before_ns)} over all ranks, at the rates that the device reaches for their sizes"
    )


@scenario("fused_loss", reads=(loss_chains,))
def fused_loss(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The cross-entropy loss over the vocabulary runs as one kernel forward and one backward.

    Assumes:
        The fused kernels run at memory bandwidth: logits read twice, their gradient written once.
    """
    return _fused(
        context,
        edit,
        loss_chains,
        "no cross-entropy loss over a vocabulary that runs kernel by kernel",
        "memory bandwidth (logits read twice, their gradient written once)",
    )


@scenario("fused_router", reads=(router_chains,))
def fused_router(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Routers of MoE layers run as one kernel in addition to their GEMM.

    Assumes:
        The fused kernel takes the time of the longest kernel that it replaces.
    """
    return _fused(
        context,
        edit,
        router_chains,
        "no MoE layer whose router runs kernel by kernel",
        "the time of the longest kernel that it replaces",
    )


@scenario("fused_permute", reads=(permutation_chains,))
def fused_permute(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Permutations of tokens run as one kernel each.

    Assumes:
        The fused kernels run at memory bandwidth: tokens read once and written once per expert, and back.
    """
    return _fused(
        context,
        edit,
        permutation_chains,
        "no MoE layer whose permutation runs kernel by kernel",
        "memory bandwidth (tokens read once and written once per expert, and back)",
    )


def _fused(
    context: ScenarioContext,
    edit: Edit,
    find: Callable[[Trace, Device | None], Chains],
    reason: str,
    limit: str,
) -> str:
    graph = context.gpu_graph()
    by_rank = context.read(find)
    if not any(len(chains.rows) for chains in by_rank):
        raise NotApplicable(reason)
    count, launches, before_ns, after_ns = fuse(graph, edit, by_rank)
    return (
        f"{count:,} chains of kernels become one kernel each, at {limit}: {duration(after_ns)} instead of "
        f"{duration(before_ns)} over the recording; {launches:,} launches and the host time before them "
        "disappear; blocking calls in between stay"
    )


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
        none = np.zeros(0, dtype=np.int64)
        return Recompute(none, none, none, none, none, hooked=none, hooked_layer=none, passes=0)
    order = np.argsort(events.start[layers], kind="stable")
    forward = np.flatnonzero((caller >= 0) & (lookup(around, caller, 0) < 0) & ~lookup(mask, caller, True))
    forward_ns = np.sort(events.start[caller[forward]])
    # Between layers of one backward pass nothing is launched outside of it.
    passed = np.searchsorted(forward_ns, events.start[layers[order]])
    # Autograd's number of the forward that each of these nodes belongs to, -1 where it is not recorded.
    ops = trace.tables["ops"]
    row, forward_number = ops.array("event_id"), ops.array("sequence")
    at = np.minimum(np.searchsorted(layers, around[row]), len(layers) - 1)
    of_node = (forward_number >= 0) & (ops.array("forward_thread") > 0) & (layers[at] == around[row])
    sequence = np.full(len(layers), -1, dtype=np.int64)
    np.maximum.at(sequence, at[of_node], forward_number[of_node])
    sequence = sequence[order]
    begins = (np.diff(passed) > 0) | (np.diff(sequence) > 0)
    number_of_pass = np.cumsum(np.concatenate(([0], begins)))[: len(order)]
    count = np.bincount(number_of_pass)
    first = np.concatenate(([0], np.cumsum(count)[:-1])) if len(count) else count
    number = np.empty(len(layers), dtype=np.int64)
    number[order] = (count[number_of_pass] - 1) - (np.arange(len(order)) - first[number_of_pass])
    layer = number[index.ravel()]
    # Other calls of a backward pass belong to the layer that it has begun last.
    others = np.flatnonzero(~mask & events.where("launch") & (around >= 0))
    begun = np.searchsorted(events.start[layers[order]], events.start[others], "right") - 1
    same = (begun >= 0) & (np.searchsorted(forward_ns, events.start[others]) == lookup(passed, begun, -1))
    same &= events.tid[others] == events.tid[lookup(layers[order], begun, 0)]
    same &= not _reenters(trace)
    backward, begun = others[same], begun[same]
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    repeated = np.bincount(position[index.ravel()[len(rows) :]], minlength=len(order))
    forward, of_layer = _forward_calls(trace, around, backward, begun, repeated)
    # Of a call with several kernels the first counts as what writes its bytes.
    costs = trace.once(work_costs)
    written = lookup(
        np.array([item.cost.write_bytes for item in costs.items], dtype=np.int64), costs.item[rows], 0
    )
    is_first = np.zeros(len(rows), dtype=bool)
    is_first[np.unique(costs.call[rows], return_index=True)[1]] = True
    return Recompute(
        rows=rows,
        layer=layer[: len(rows)],
        calls=calls,
        call_layer=layer[len(rows) :],
        written=np.where(is_first, written, 0),
        hooked=np.concatenate((backward, forward)),
        hooked_layer=number[order[np.concatenate((begun, of_layer))]],
        passes=len(count),
    )


def _forward_calls(trace: Trace, around: Int, backward: Int, layer: Int, repeated: Int) -> tuple[Int, Int]:
    """Calls of layers' forward passes, and the layer of each, by autograd's numbers of ops and nodes.

    `around` has the node of the backward pass that each event is in, -1 if none; `backward` the calls of the
    backward passes of layers, `layer` that of each, `repeated` how many calls each layer repeats. What
    precedes the first layer has nodes behind it, so that only so many calls are a layer's.
    """
    events, ops = trace.arrays, trace.tables["ops"]
    number = np.full(len(events.start), -1, dtype=np.int64)
    number[ops.array("event_id")] = ops.array("sequence")
    # Ops inside nodes have numbers of their own thread.
    forward = np.flatnonzero((number >= 0) & (around < 0))
    forward = forward[np.argsort(number[forward], kind="stable")]
    launches = np.flatnonzero(events.where("launch") & (around < 0))
    launches = launches[np.argsort(events.start[launches], kind="stable")]
    parts = []
    for each, most in enumerate(repeated.tolist()):
        numbers = number[around[backward[layer == each]]]
        numbers = numbers[numbers >= 0]
        ends = (numbers.min(), numbers.max() + 1) if len(numbers) else (0, 0)
        own = forward[slice(*np.searchsorted(number[forward], ends))]
        inside = own[:0]
        if len(own):
            ends = (events.start[own].min(), events.end[own].max())
            inside = launches[slice(*np.searchsorted(events.start[launches], ends))]
            inside = inside[events.tid[inside] == events.tid[own[0]]]
        parts.append(inside[max(len(inside) - most, 0) :])
    return np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def _reenters(trace: Trace) -> bool:
    """Whether checkpoints begin a backward pass of their own, instead of hooks on what autograd saves."""
    return bool(trace.arrays.named(REENTERING.__eq__).any())


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
    layers = list(range(most + 1))
    if argument:
        if not _LAYERS.fullmatch(argument):
            raise TracelensError(f"scenario no_recompute={argument}: write layers as in no_recompute=0,2-5")
        layers = []
        for part in argument.split(","):
            low, _, high = part.partition("-")
            layers += range(int(low), min(int(high or low), most) + 1)
    work = marked(graph, [own.rows[np.isin(own.layer, layers)] for own in by_rank])
    if not work.any():
        raise NotApplicable(f"none of layers {argument} is recomputed (layers: 0 to {most})")
    own_calls = [own.calls[np.isin(own.call_layer, layers)] for own in by_rank]
    calls = marked_calls(graph, own_calls, Node.POINT, Node.WAITED)
    own_hooked = [own.hooked[np.isin(own.hooked_layer, layers)] for own in by_rank]
    hooked = marked_calls(graph, own_hooked, Node.POINT)
    own_time = np.flatnonzero((graph.edge == Edge.HOST) & hooked[graph.dst] & (edit.lag > 0))
    edit.set_lag(own_time, edit.lag[own_time] * UNHOOKED_SHARE)
    gpu_ns = int(edit.dur[work].sum())
    unblock(graph, edit, calls)
    launches = drop_work(graph, edit, work, calls)
    written = [int(own.written[np.isin(own.layer, layers)].sum()) // max(own.passes, 1) for own in by_rank]
    memory = (
        f"keep up to {max(written) / 1e9:,.2f} GB more per micro-batch"
        if any(written)
        else "need more memory"
    )
    unhooked = (
        f"; the host's other work in these layers takes {UNHOOKED_SHARE:g} of its time, as Python no longer "
        "keeps and hands out each saved tensor"
    )
    return (
        f"{int(work.sum()):,} kernels ({duration(gpu_ns)} over all ranks) and {launches:,} launches are not "
        f"repeated in {len(layers)} of {most + 1} layers, which {memory}: all that the repeated ops write"
        f"{unhooked if hooked.any() else ''}"
    )
