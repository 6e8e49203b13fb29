"""Every message of one step of one rank, with its bytes, from sizes and routing alone.

Bytes are those of the buffers passed to the collective, as profilers record them: what a rank sends to itself
counts too. An all-gather sends the rank's part and receives the whole, a reduce-scatter the other way round;
an all-reduce or a broadcast has one buffer. Groups of one rank send nothing.

tp_overlap=symmetric copies between GPUs without a collective, which is not listed. dispatch=deepep uses no
torch collectives either, but its copies of tokens are listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from tracelens.errors import TracelensError
from tracelens.planner.block import Collective, Exchange, layer_ops, recomputed
from tracelens.planner.config import STATIC, Config, DtypeName, Layout, Model, Training
from tracelens.planner.expected.flops import (
    RankRouting,
    RankShare,
    Routing,
    attention_kernel,
    each_parameter,
    flops,
    known,
    parameters,
)

Phase = Literal["forward", "backward", "recompute", "step"]


class StepMessage(NamedTuple):
    """An exchange of one rank in a step: a collective, a send or a receive, and where it stands."""

    scope: str  # innermost annotation around it in the trace; ends in `.B` for a gradient
    phase: Phase  # "step" for once per step
    micro_batch: int  # -1 for once per step
    ranks: int  # of its process group
    exchange: Exchange


REPLICA_GROUPS = {"stage": "dp_cp_tp", "dense": "dp_cp", "edp": "edp"}
"""Parameters (unsharded, sharded by tensor parallelism, experts) to the process group of their replicas."""

ALIGNMENT_BYTES = 128
"""Alignment of each parameter in the flat buffers of the optimizer."""

_LOSS_BYTES = 4


def messages(config: Config, rank: int, routing: Routing | None = None) -> list[StepMessage]:
    """Messages of one step on one rank: by micro-batch and layer, forward before backward.

    The routing of the step, as reported by the run, is not needed with routing=balanced, dispatch=allgather,
    or sync_free=3 unless dispatch=deepep.

    Raises:
        TracelensError: no such rank, or the routing is needed but unknown.
    """
    share = RankShare(config, rank)
    routing = known(config, rank, routing) if is_routed(share) else None
    sent: list[StepMessage] = []
    for batch in range(config.training.micro_batches):
        for chunk, layers in share.chunks.items():
            sent += pipeline_messages(share, chunk, batch)
            for layer in layers:
                routed = routing.at(layer, batch) if routing is not None and share.is_moe(layer) else None
                sent += layer_messages(share, layer, batch, routed)
    return sent + step_messages(share)


def is_routed(share: RankShare) -> bool:
    """Whether message sizes depend on the routing."""
    toggles = share.config.toggles
    if group_ranks(share.config.layout, "ep") == 1 or not any(map(share.is_moe, share.layers)):
        return False
    # DeepEP sends only actual tokens, even from buffers sized for the worst case.
    return toggles.dispatch == "deepep" or (toggles.sync_free < STATIC and toggles.dispatch != "allgather")


def layer_messages(
    share: RankShare, layer: int, batch: int, routed: RankRouting | None
) -> Iterator[StepMessage]:
    """Messages of a layer in one micro-batch: forward, recompute, backward; `routed` only if `is_routed`."""
    ops = layer_ops(share.routed(routed.counts if routed else None), share.is_moe(layer))
    forward = [(f"L{layer}.{op.scope}", exchange) for op in ops for exchange in op.messages.forward]
    backward = [
        (f"L{layer}.{op.scope}.B", exchange) for op in reversed(ops) for exchange in op.messages.backward
    ]
    again = 0
    if share.is_recomputed(layer):
        again = sum(len(op.messages.forward) for op in ops[: recomputed(ops)])
    phases: dict[Phase, list[tuple[str, Exchange]]] = {
        "forward": forward, "recompute": forward[:again], "backward": backward,
    }  # fmt: skip
    for phase, exchanges in phases.items():
        for scope, exchange in exchanges:
            ranks = group_ranks(share.config.layout, exchange.group)
            if ranks > 1:
                yield StepMessage(scope, phase, batch, ranks, exchange)


def group_ranks(layout: Layout, group: str) -> int:
    """Size of the process groups of this name, which lists their dimensions."""
    sizes = {
        "pp": layout.pp,
        "tp": layout.tp,
        "cp": layout.cp,
        "ep": layout.experts_over,
        "edp": layout.stage_ranks // layout.experts_over,
        "cp_tp": layout.cp * layout.tp,
        "dp_cp": layout.dp * layout.cp,
        "dp_cp_tp": layout.stage_ranks,
    }
    return sizes[group]


def buffer_bytes(share: RankShare) -> dict[str, int]:
    """Bytes of the flat buffers of a rank's parameters (those of gradients are alike), by REPLICA_GROUPS.

    Each parameter is aligned, and the buffer is padded to equal aligned shards for all ranks of the group.
    """
    config = share.config
    # Context-parallel ranks hold the same parameters, so the cache does not depend on their number.
    layout = replace(config.layout, cp=1, node=0)
    sizes = _sizes(config.model, layout, config.training.dtype, share.coordinates["pp"])
    return {
        replicas: _up(size, ALIGNMENT_BYTES * group_ranks(config.layout, REPLICA_GROUPS[replicas]))
        for replicas, size in sizes.items()
        if size
    }


@lru_cache(maxsize=1024)
def _sizes(model: Model, layout: Layout, dtype: DtypeName, stage: int) -> dict[str, int]:
    """Bytes of the aligned parameters of a pipeline stage, by REPLICA_GROUPS."""
    training = Training(seq=layout.tp, micro_batches=layout.pp, dtype=dtype)
    share = RankShare(Config(model, layout, training=training), stage * layout.stage_ranks)
    sizes = dict.fromkeys(REPLICA_GROUPS, 0)
    for weight, elements, count in each_parameter(share):
        sizes[weight.replicas] += count * _up(elements * share.element, ALIGNMENT_BYTES)
    return sizes


def pipeline_messages(share: RankShare, chunk: int, batch: int) -> Iterator[StepMessage]:
    """Messages between a chunk and its neighbors in one micro-batch; none without a pipeline.

    Their scope is the chunk's own forward or backward, beside which they run in the trace.
    """
    layout, size, scope = share.config.layout, share.tokens * share.row, f"mb{batch}.chunk{chunk}"
    if layout.pp == 1:
        return
    forward: list[tuple[Collective, int]] = [("recv", chunk - 1), ("send", chunk + 1)]
    backward: list[tuple[Collective, int]] = [("recv", chunk + 1), ("send", chunk - 1)]
    steps: dict[Phase, list[tuple[Collective, int]]] = {"forward": forward, "backward": backward}
    for phase, moves in steps.items():
        what = "stream" if phase == "forward" else "gradients"
        for collective, peer in moves:
            if 0 <= peer < layout.pp * layout.vpp:
                sent, received = (size, 0) if collective == "send" else (0, size)
                exchange = Exchange(what, collective, "pp", sent, received)
                yield StepMessage(f"{scope}.{phase[0].upper()}", phase, batch, layout.pp, exchange)


def step_messages(share: RankShare) -> list[StepMessage]:
    """Messages of one rank that are sent once per step, in their order."""
    layout, reduction = share.config.layout, share.config.toggles.grad_reduce
    messages: list[StepMessage] = []

    def add(scope: str, what: str, collective: Collective, group: str, ranks: int, size: int) -> None:
        part = size // ranks
        sent = part if collective == "all_gather" else size
        received = part if collective == "reduce_scatter" else size
        messages.append(
            StepMessage(scope, "step", -1, ranks, Exchange(what, collective, group, sent, received))
        )

    groups = {replicas: (name, group_ranks(layout, name)) for replicas, name in REPLICA_GROUPS.items()}
    sizes = {replicas: size for replicas, size in buffer_bytes(share).items() if groups[replicas][1] > 1}
    for replicas, size in sizes.items():
        nodes: dict[int, list[int]] = {}  # the ranks with the same parameters, by node
        if reduction == "hierarchical":
            same = layout.groups(*REPLICA_GROUPS[replicas].split("_"))
            (group,) = (ranks for ranks in same if share.rank in ranks)
            for rank in group:
                nodes.setdefault(rank // (layout.node or layout.ranks), []).append(rank)
            if len({len(node_ranks) for node_ranks in nodes.values()}) > 1:
                raise TracelensError(
                    f"grad_reduce=hierarchical: ranks with the same {replicas} parameters are spread "
                    f"unevenly over nodes of {layout.node} ranks: change the layout or node"
                )
        inside = len(next(iter(nodes.values()), ()))
        if reduction == "reduce_scatter":
            add("grad_reduce", "gradients", "reduce_scatter", *groups[replicas], size)
        elif len(nodes) < 2 or inside == 1:
            add("grad_reduce", "gradients", "all_reduce", *groups[replicas], size)
        else:
            add("grad_reduce", "gradients", "reduce_scatter", "dp_node", inside, size)
            add("grad_reduce", "gradients", "all_reduce", "dp_across", len(nodes), size // inside)
            add("grad_reduce", "gradients", "all_gather", "dp_node", inside, size)
    for replicas, size in sizes.items():
        add("param_gather", "parameters", "all_gather", *groups[replicas], size)
    for name, ranks in (groups["stage"], ("pp", layout.pp)):
        if ranks > 1:
            add("log", "loss", "all_reduce", name, ranks, _LOSS_BYTES)
    return messages


def _up(count: int, step: int) -> int:
    return -(-count // step) * step


def summary(config: Config, rank: int, device: str, routing: Routing | None = None) -> dict[str, Any]:
    """Parameters, FLOPs and messages of one step of one rank.

    `device`, "cpu" or "cuda", determines the attention kernel; `flops` and `messages` say when the routing is
    not needed.

    Returns:
        `parameters` by REPLICA_GROUPS and component; `attention`, the kernel; `flops` by scope, forward,
        backward and recomputed; `fp8_flops`, those of them in FP8, if any; `messages`, each with its `times`
        per step.

    Raises:
        TracelensError: no such rank, or the routing is needed but unknown.
    """
    kernel = attention_kernel(config, rank, device)
    counted = Counter(message._replace(micro_batch=-1) for message in messages(config, rank, routing))
    in_fp8 = {scope: work._asdict() for scope, work in flops(config, rank, routing, dtype="fp8").items()}
    return {
        "parameters": parameters(config, rank),
        "attention": kernel,
        "flops": {scope: work._asdict() for scope, work in flops(config, rank, routing, kernel).items()},
        **({"fp8_flops": in_fp8} if in_fp8 else {}),
        "messages": [
            {
                "scope": scope,
                "phase": phase,
                "what": exchange.what,
                "collective": exchange.collective,
                "group": exchange.group,
                "ranks": ranks,
                "sent": exchange.sent,
                "received": exchange.received,
                "times": times,
            }
            for (scope, phase, _, ranks, exchange), times in counted.items()
        ],
    }
