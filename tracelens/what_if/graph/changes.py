"""Changes that several scenarios make to a graph: work and calls that go, host time that shrinks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens.analysis.fusable import Chains
from tracelens.arrays import Bool, Float, Int, isin, unique
from tracelens.what_if.graph.graph import Edge, Edit, Node, RunGraph
from tracelens.what_if.thresholds import PAUSE_NS, USUAL_HOST_SHARE

ALL_TO_ALLS = ("all_to_all", "alltoall")
"""How the names of all-to-alls begin."""


def work_nodes(graph: RunGraph, rank: int) -> Int:
    """The node of each activity of a rank, given by the index of its trace; -1 for a matched collective's."""
    nodes = graph.nodes(rank, Node.WORK)
    node_of = np.full(len(graph.ranks[rank].is_comm), -1, dtype=np.int64)
    node_of[graph.work[nodes]] = nodes
    return node_of


def marked(graph: RunGraph, rows: Sequence[Int]) -> Bool:
    """Which nodes are one of these activities, given by rank; both ends of a matched collective's kernel."""
    result = np.zeros(len(graph), dtype=bool)
    for rank, of_rank in enumerate(rows):
        nodes = graph.nodes(rank, Node.WORK, Node.ARRIVE, Node.LEAVE)
        result[nodes] = np.isin(graph.work[nodes], of_rank)
    return result


def marked_calls(graph: RunGraph, events: Sequence[Int], *kinds: Node) -> Bool:
    """Which nodes of these kinds are one of these calls, event rows given by rank."""
    result = np.zeros(len(graph), dtype=bool)
    for rank, of_rank in enumerate(events):
        nodes = graph.nodes(rank, *kinds)
        result[nodes] = isin(graph.event[nodes], of_rank)
    return result


def meetings_of(graph: RunGraph, work: Bool) -> Bool:
    """Which nodes are meetings of which all ranks' kernels are marked."""
    arrival = graph.edges(Edge.ARRIVAL)
    is_marked = work[graph.src[arrival]]
    met, missing = (np.zeros(len(graph), dtype=bool) for _ in range(2))
    met[graph.dst[arrival[is_marked]]] = True
    missing[graph.dst[arrival[~is_marked]]] = True
    return met & ~missing


def cut(lag: Int, edges: Int) -> None:
    """Lags of edges become 0; those that let activities overlap stay."""
    lag[edges] = np.minimum(lag[edges], 0)


def drop_host_time(graph: RunGraph, edit: Edit, edges: Int) -> None:
    """Host time is gone, but for its pauses: what the program does in them is no launching."""
    is_pause = graph.lag[edges] > PAUSE_NS
    pauses = edges[is_pause]
    cut(edit.lag, edges[~is_pause])
    edit.set_lag(pauses, edit.lag[pauses] * (1 - PAUSE_NS / graph.lag[pauses]))


def add_calls(graph: RunGraph, edit: Edit, nodes: Int, count: int, like: Bool) -> float:
    """Let the host make so many more calls before each node; returns how long one takes, ns, 0 if unknown.

    Each takes as long as those under the mask `like`, in the mean.
    """
    host = _between_calls(graph)
    before, alike = host[isin(graph.dst[host], nodes)], host[like[graph.dst[host]]]
    if not len(before) or not len(alike):
        return 0.0
    call_ns = float(edit.lag[alike].mean())
    edit.set_lag(before, edit.lag[before] + count * call_ns)
    return call_ns


def _between_calls(graph: RunGraph) -> Int:
    """The edges with recorded host time that is no pause."""
    host = graph.edges(Edge.HOST)
    lag = graph.lag[host]
    return host[(lag > 0) & (lag <= PAUSE_NS)]


def usual_host_share(graph: RunGraph, edit: Edit, calls: Bool) -> str:
    """Give host time the profiler's usual share as far as a change takes away what told another one.

    Where calls under a mask, which go, have most of the host time, the factor on it is theirs (see
    `projector`): what stays is as likely to have the usual one. It only ever shrinks. Returns the factor that
    host time has then, as a share of the recorded; 1 where it is not known.
    """
    host = _between_calls(graph)
    recorded, gone = graph.lag[host].sum(), calls[graph.dst[host]]
    factor = float(edit.lag[host].sum() / max(recorded, 1))
    if not USUAL_HOST_SHARE < factor < 1:
        return ""
    share = float(graph.lag[host[gone]].sum() / recorded)
    result = factor + (USUAL_HOST_SHARE - factor) * share
    left = host[~gone]
    edit.set_lag(left, edit.lag[left] * (result / factor))
    return (
        f"; host time that stays is {result:.2f} of the recorded instead of {factor:.2f}, nearer to the "
        f"usual {USUAL_HOST_SHARE:.2f}"
    )


def drop_launches(
    graph: RunGraph, edit: Edit, work: Bool, also: Bool | None = None, *, pauses: bool = True
) -> int:
    """Work under a mask is launched together with other work: its calls, and those in `also`, take no time.

    Pauses of the host before them stay, if so wanted. Returns the number of launches that go.
    """
    # Calls all of whose work goes.
    launches = np.zeros(len(graph), dtype=bool)
    launches[graph.src[graph.edges_to(Edge.LAUNCH, work)]] = True
    launches[graph.src[graph.edges_to(Edge.LAUNCH, ~work)]] = False
    calls = launches if also is None else launches | also
    gone = work | calls
    edit.delay[gone] = 0
    before = graph.edges_to(Edge.HOST, calls)
    if pauses:
        drop_host_time(graph, edit, before)
    else:
        cut(edit.lag, before)
    cut(edit.lag, graph.edges_to(Edge.STREAM, work))
    return int(launches.sum())


def drop_work(graph: RunGraph, edit: Edit, work: Bool, calls: Bool | None = None) -> int:
    """Work under a mask is not done; returns the number of launches that go with it.

    A collective goes if all its ranks leave it out. `calls` are others that go with it.
    """
    meetings = meetings_of(graph, work)
    edit.dur[work | meetings] = 0
    for kind in (Edge.OWN, Edge.TRANSFER):
        cut(edit.lag, graph.edges_to(kind, work))
    return drop_launches(graph, edit, work, calls)


def unblock(graph: RunGraph, edit: Edit, calls: Bool) -> int:
    """Calls under a mask no longer wait for the GPU; returns the number of those that did."""
    waiting = graph.edges_to(Edge.SYNC, (graph.kind == Node.WAITED) & calls)
    waiting = waiting[edit.kept[waiting]]
    edit.kept[waiting] = False
    return len(unique(graph.dst[waiting]))


def fuse(
    graph: RunGraph, edit: Edit, by_rank: Sequence[Chains], *, pauses: bool = True
) -> tuple[int, int, float, float]:
    """One kernel replaces each chain: it takes its time and one launch.

    Pauses of the host within a chain stay, unless all that the host does there is launching.

    Returns (chains, launches removed, ns of all chains, ns of the kernels that replace them).
    """
    later = np.zeros(len(graph), dtype=bool)
    count, before_ns, after_ns = 0, 0.0, 0.0
    for rank, chains in enumerate(by_rank):
        node = work_nodes(graph, rank)[chains.rows]
        kept = node >= 0
        node, chain = node[kept], chains.chain[kept]
        total: Float = np.bincount(chain, graph.dur[node], len(chains.fused_ns)).astype(float)
        factor: Float = np.minimum(chains.fused_ns / np.maximum(total, 1), 1)
        edit.set_dur(node, edit.dur[node] * factor[chain])
        first = np.unique(chain, return_index=True)[1]
        repeated = np.ones(len(node), dtype=bool)
        repeated[first] = False
        later[node[repeated]] = True
        count += len(first)
        before_ns += float(total.sum())
        after_ns += float(np.minimum(chains.fused_ns, total).sum())
    return count, drop_launches(graph, edit, later, pauses=pauses), before_ns, after_ns


def of_calls(graph: RunGraph, rank: int, factor: Float) -> None:
    """Give each call of a rank the factor of the work that it launches, other calls that of the next one."""
    points = graph.nodes(rank, Node.POINT, Node.WAITED)
    launched = graph.launched[points]
    known = np.flatnonzero(launched >= 0)
    following = np.searchsorted(known, np.arange(len(points)))
    has_next = following < len(known)
    factor[points[has_next]] = factor[launched[known[following[has_next]]]]


def scale_pace(graph: RunGraph, edit: Edit, factor: Float) -> None:
    """Work, transfers, the host's time before a call, and delays take `factor` (of each node) as long."""
    changed = np.flatnonzero((factor != 1) & (graph.dur > 0))
    edit.set_dur(changed, edit.dur[changed] * factor[changed])
    delayed = factor != 1
    edit.delay[delayed] = np.rint(edit.delay[delayed] * factor[delayed]).astype(np.int64)
    own_time = graph.is_edge(Edge.HOST, Edge.HANDOVER, Edge.ORDER) & (edit.lag > 0)
    own_time &= delayed[graph.dst]
    edit.set_lag(own_time, edit.lag[own_time] * factor[graph.dst[own_time]])
