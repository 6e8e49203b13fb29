"""Messages outside of layers: between pipeline stages, and once per step of gradients and parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tracelens.errors import TracelensError
from tracelens.planner.block import Collective
from tracelens.planner.config import Config, DtypeName, Layout, Model, Training
from tracelens.planner.expected.message import REPLICA_GROUPS, Message, Phase, group_ranks
from tracelens.planner.expected.parameters import each_parameter
from tracelens.planner.expected.share import Share

# Alignment of each parameter in the flat buffers of the optimizer.
ALIGNMENT_BYTES = 128
_LOSS_BYTES = 4


def buffer_bytes(share: Share) -> dict[str, int]:
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
    share = Share(Config(model, layout, training=training), stage * layout.stage_ranks)
    sizes = dict.fromkeys(REPLICA_GROUPS, 0)
    for weight, elements, count in each_parameter(share):
        sizes[weight.replicas] += count * _up(elements * share.element, ALIGNMENT_BYTES)
    return sizes


def pipeline_messages(share: Share, chunk: int, batch: int) -> Iterator[Message]:
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
                name = f"{scope}.{phase[0].upper()}"
                yield Message(name, phase, batch, what, collective, "pp", layout.pp, sent, received)


def step_messages(share: Share) -> list[Message]:
    """Messages of one rank that are sent once per step, in their order."""
    layout, messages = share.config.layout, []
    sizes = {
        replicas: size
        for replicas, size in buffer_bytes(share).items()
        if group_ranks(layout, REPLICA_GROUPS[replicas]) > 1
    }
    for replicas, size in sizes.items():
        messages += list(_reduction(share, replicas, size))
    for replicas, size in sizes.items():
        group = REPLICA_GROUPS[replicas]
        messages.append(_message("param_gather", "all_gather", group, group_ranks(layout, group), size))
    for group in (REPLICA_GROUPS["stage"], "pp"):
        ranks = group_ranks(layout, group)
        if ranks > 1:
            messages.append(_message("log", "all_reduce", group, ranks, _LOSS_BYTES, "loss"))
    return messages


def _reduction(share: Share, replicas: str, size: int) -> Iterator[Message]:
    kind, group = share.config.toggles.grad_reduce, REPLICA_GROUPS[replicas]
    ranks = group_ranks(share.config.layout, group)
    nodes = _nodes(share, replicas) if kind == "hierarchical" else []
    if kind == "reduce_scatter":
        yield _message("grad_reduce", "reduce_scatter", group, ranks, size)
    elif len(nodes) < 2 or len(nodes[0]) == 1:
        yield _message("grad_reduce", "all_reduce", group, ranks, size)
    else:
        inside = len(nodes[0])
        yield _message("grad_reduce", "reduce_scatter", "dp_node", inside, size)
        yield _message("grad_reduce", "all_reduce", "dp_across", len(nodes), size // inside)
        yield _message("grad_reduce", "all_gather", "dp_node", inside, size)


def _nodes(share: Share, replicas: str) -> list[list[int]]:
    """The ranks with the same parameters, by node."""
    layout = share.config.layout
    (group,) = (ranks for ranks in layout.groups(*REPLICA_GROUPS[replicas].split("_")) if share.rank in ranks)
    nodes: dict[int, list[int]] = {}
    for rank in group:
        nodes.setdefault(rank // (layout.node or layout.ranks), []).append(rank)
    if len({len(node_ranks) for node_ranks in nodes.values()}) > 1:
        raise TracelensError(
            f"grad_reduce=hierarchical: ranks with the same {replicas} parameters are spread unevenly over "
            f"nodes of {layout.node} ranks: change the layout or node"
        )
    return list(nodes.values())


def _message(
    scope: str, collective: Collective, group: str, ranks: int, size: int, what: str = ""
) -> Message:
    part = size // ranks
    sent = part if collective == "all_gather" else size
    received = part if collective == "reduce_scatter" else size
    what = what or ("parameters" if scope == "param_gather" else "gradients")
    return Message(scope, "step", -1, what, collective, group, ranks, sent, received)


def _up(count: int, step: int) -> int:
    return -(-count // step) * step
