"""Activations that the backward pass computes again."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from tracelens.analysis.common import NODE, REENTERING, recomputed
from tracelens.arrays import Bool, Int, lookup, unique
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.findings import Detection, Outcome, Quantity, RankContext, Remedy, detector
from tracelens.table import codes, nearest, sums
from tracelens.trace import Trace, difference
from tracelens.units import duration
from tracelens.what_if import USUAL_HOST_SHARE, NotApplicable, ScenarioContext, scenario, work_costs
from tracelens.what_if.graph import Edge, Edit, Node, RunGraph, drop_work, marked, marked_calls, unblock

CHECKPOINT_NS = 1_000_000
HOOKS_SHARE = 0.15
"""What a checkpoint with hooks costs the host beside the repeated ops, without the profiler: a fixed time,
for states of random numbers, contexts and the region's own graph, and a share of its layer's other time, in
which Python keeps and hands out each saved tensor. Measured alone (torch 2.11, one H200; regions of 4, 16,
32, 64 and 128 small ops): 0.97, 1.50, 1.64, 2.02 and 4.2 ms a region. Of 39 pairs recorded on GPUs these two
fit 38 within 10%; a share of all time fits 31 at best, since regions have from 110 to 680 ops."""
_LEAST_SHARE = 0.2
"""Of a layer's other host time, that is always left."""

NOTHING = "the backward pass recomputes nothing"
_LAYERS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
_SHOWN = 3  # classes of kernels that a sentence names


@detector(
    "recompute",
    evidence="ops",
    scenario="no_recompute",
    title="Activations are recomputed",
    fix="recomputing nothing",
    measures={
        "recompute": "time of recomputed kernels, per step",
        "share of the step": "the same / step time",
        "recomputing backward nodes per step": "nodes of the autograd graph that recompute",
        "recomputed kernels per step": "kernels that repeat forward work",
        "recomputed: CLASS": "time by kernel class, the largest, per step",
    },
    threshold="one recomputed kernel",
    limits="The trace does not show whether there is memory to keep the activations instead.",
    remedy="Recompute less: only what is cheap to redo and large to keep, or only as many layers as memory "
    "requires. Larger expert or pipeline parallelism, or less memory for the loss, make room for it.",
    remedies=(
        Remedy("Primus: recompute_layer_ids.", framework=("primus",)),
        Remedy(
            "Megatron-LM: --recompute-granularity selective with --recompute-modules (core_attn, moe_act, "
            "layernorm, mla_up_proj, mlp, moe).",
            framework=("megatron",),
        ),
        Remedy("torchtitan: activation_checkpoint.mode selective.", framework=("torchtitan",)),
        Remedy("transformers: gradient_checkpointing=False where memory allows.", framework=("huggingface",)),
        Remedy("The bundled workload: fewer --recompute-layer-ids.", framework=("workload",)),
        Remedy(
            "With torch alone: torch.utils.checkpoint on fewer modules, or with "
            "create_selective_checkpoint_contexts.",
            plain=True,
        ),
    ),
)
def recompute(context: RankContext) -> Outcome:
    """Forward ops are recomputed in the backward pass."""
    if not len(context.work.event):
        return "no GPU work"
    is_recompute: Bool = lookup(context.trace.once(recomputed), context.caller, False)
    if not is_recompute.any():
        return NOTHING
    during = context.during(is_recompute)
    where = difference(during, context.during(~is_recompute))
    # The classes of its kernels with the most time.
    group, (category,) = codes(context.work.category[is_recompute])
    total = sums(group, context.work.dur[is_recompute], len(category))
    most = np.argsort(-total, kind="stable")[:_SHOWN]
    families = [(context.work.categories[category[row]], context.per_step(int(total[row]))) for row in most]
    # The nodes of the backward pass that repeat something.
    nodes = unique(context.trace.once(backward_node)[context.caller[is_recompute]])
    regions = context.per_step(len(nodes))
    share = during.total / max(context.window[1] - context.window[0], 1)
    shown = ", ".join(f"{name} {duration(ns)}" for name, ns in families)
    return Detection(
        (
            Quantity("recompute", context.per_step(during.total), "ns"),
            Quantity("share of the step", min(share, 1.0), "fraction"),
            Quantity("recomputing backward nodes per step", regions, "count"),
            Quantity("recomputed kernels per step", context.per_step(int(is_recompute.sum())), "count"),
            *(Quantity(f"recomputed: {name}", ns, "ns") for name, ns in families),
        ),
        context.per_step(where.total),
        where,
        f"{duration(context.per_step(during.total))} per step ({share:.1%}) goes to recompute in "
        f"{regions:.0f} regions, mostly {shown}; {duration(context.per_step(where.total))} is not "
        "overlapped. The trace does not show whether there is memory to keep the activations instead",
        "low",
    )


def backward_node(trace: Trace) -> Int:
    """The node of the backward pass around each event, -1 for none; ask with `trace.once(backward_node)`."""
    events = trace.arrays
    return nearest(events.parent, events.depth, events.named(lambda name: name.startswith(NODE)))


class Recompute(Struct, frozen=True):
    """The forward work that one rank repeats in its backward passes."""

    rows: Int  # positions in its work
    layer: Int  # of each, numbered from 0 in the order of the forward pass
    calls: Int  # event rows of launches and other calls in it
    call_layer: Int  # of each
    written: Int  # bytes that each piece of work writes, by its cost model; 0 where there is none
    hooked: Int  # event rows of these layers' other calls, for which Python keeps or hands out saved tensors
    hooked_layer: Int  # of each
    regions: Int  # how many nodes of backward passes each layer is
    passes: int  # number of backward passes that repeat something


def recompute_work(trace: Trace, device: Device | None) -> Recompute:
    """The forward work that a rank repeats.

    Each node of the backward pass that repeats anything is one layer. The backward pass runs through them
    from the last one to the first; another one begins behind forward work, or with a node of a later forward.
    """
    events, work = trace.arrays, trace.work
    mask, caller = trace.once(recomputed), work.host_call
    around = trace.once(backward_node)
    rows = np.flatnonzero(lookup(mask, caller, False) & (lookup(around, caller, -1) >= 0))
    calls = np.flatnonzero(mask & events.where("launch") & (around >= 0))
    layers, index = np.unique(np.concatenate((around[caller[rows]], around[calls])), return_inverse=True)
    if not len(layers):
        none = np.zeros(0, dtype=np.int64)
        return Recompute(none, none, none, none, none, hooked=none, hooked_layer=none, regions=none, passes=0)
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
    written = lookup(costs.costs.write_bytes, costs.item[rows], 0)
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
        regions=np.bincount(number),
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
        raise NotApplicable(NOTHING)
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
    unhooked_ns = _unhook(graph, edit, by_rank, layers)
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
        f"; the host does {duration(unhooked_ns)} less over all ranks in these layers: "
        f"{duration(CHECKPOINT_NS)} a checkpoint and {HOOKS_SHARE:.0%} of its other work, as Python no "
        "longer keeps and hands out each saved tensor"
    )
    return (
        f"{int(work.sum()):,} kernels ({duration(gpu_ns)} over all ranks) and {launches:,} launches are not "
        f"repeated in {len(layers)} of {most + 1} layers, which {memory}: all that the repeated ops write"
        f"{unhooked if unhooked_ns else ''}"
    )


def _unhook(graph: RunGraph, edit: Edit, by_rank: Sequence[Recompute], layers: Sequence[int]) -> float:
    """Take from the host's other time in these layers what checkpoints cost; returns how much, ns."""
    hooked = marked_calls(
        graph, [own.hooked[np.isin(own.hooked_layer, layers)] for own in by_rank], Node.POINT
    )
    own_time = np.flatnonzero((graph.edge == Edge.HOST) & hooked[graph.dst] & (edit.lag > 0))
    if not len(own_time):
        return 0.0
    # The replay has the profiler's part of the host's time, too, unless that is taken off before.
    pace = edit.lag[own_time].sum() / max(graph.lag[own_time].sum(), 1) / USUAL_HOST_SHARE
    removed_ns, rank_of = 0.0, graph.rank[graph.dst[own_time]]
    for rank, own in enumerate(by_rank):
        edges = own_time[rank_of == rank]
        order = np.argsort(own.hooked, kind="stable")
        layer = own.hooked_layer[order][np.searchsorted(own.hooked[order], graph.event[graph.dst[edges]])]
        lag = edit.lag[edges].astype(float)
        own_ns = np.bincount(layer, lag, len(own.regions))
        cost_ns = own.regions * CHECKPOINT_NS * pace + HOOKS_SHARE * own_ns
        left = np.maximum(1 - cost_ns / np.maximum(own_ns, 1), _LEAST_SHARE)
        edit.set_lag(edges, lag * left[layer])
        removed_ns += float((lag * (1 - left[layer])).sum())
    return removed_ns
