"""Messages outside of layers.

Activations travel between the chunks of a pipeline; once a step gradients are summed, and the parameters that
each rank updated a share of are gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tracelens.errors import TracelensError
from tracelens.planner.config import Config, DtypeName, Layout, Model, Training
from tracelens.planner.expected.message import Collective, Message, Phase, group_ranks
from tracelens.planner.expected.parameters import REPLICAS, each_parameter
from tracelens.planner.expected.share import Share

# Each parameter begins at a multiple of it in the optimizer's flat buffers.
ALIGNMENT_BYTES = 128
_DIMENSIONS = {"stage": ("dp", "cp", "tp"), "dense": ("dp", "cp"), "edp": ("edp",)}
_LOSS_BYTES = 4


def buffer_bytes(share: Share) -> dict[str, int]:
    """Bytes of the flat buffers of a rank's parameters, and of those of their gradients, by replicas.

    Parameters lie one behind the other, each aligned, and the whole is filled up to equal aligned shares for
    all ranks that hold the same.
    """
    config = share.config
    # The ranks of one sequence hold the same: however many they are, sizes are worked out once.
    layout = replace(config.layout, cp=1, node=0)
    sizes = _sizes(config.model, layout, config.training.dtype, share.coordinates["pp"])
    groups = {replicas: group_ranks(config.layout, _group(replicas)) for replicas in REPLICAS}
    return {
        replicas: _up(size, ALIGNMENT_BYTES * groups[replicas]) for replicas, size in sizes.items() if size
    }


@lru_cache(maxsize=1024)
def _sizes(model: Model, layout: Layout, dtype: DtypeName, stage: int) -> dict[str, int]:
    """Bytes of a pipeline stage's parameters, each aligned, by replicas."""
    training = Training(seq=layout.tp, micro_batches=layout.pp, dtype=dtype)
    share = Share(Config(model, layout, training=training), stage * layout.stage_ranks)
    sizes = dict.fromkeys(REPLICAS, 0)
    for replicas, _, elements in each_parameter(share):
        sizes[replicas] += _up(elements * share.element, ALIGNMENT_BYTES)
    return sizes


def pipeline_messages(share: Share, chunk: int, batch: int) -> Iterator[Message]:
    """What a chunk of the model gets and gives in one micro-batch, if there is a pipeline.

    Each message has the name of the chunk's own forward or backward, beside which it stands in the trace.
    """
    layout, size, scope = share.config.layout, share.tokens * share.row, f"mb{batch}.chunk{chunk}"
    if layout.pp == 1:
        return
    forward: list[tuple[Collective, int]] = [("recv", chunk - 1), ("send", chunk + 1)]
    backward: list[tuple[Collective, int]] = [("recv", chunk + 1), ("send", chunk - 1)]
    steps: dict[Phase, list[tuple[Collective, int]]] = {"forward": forward, "backward": backward}
    for phase, moves in steps.items():
        what = "stream" if phase == "forward" else "gradients"
        for way, peer in moves:
            if 0 <= peer < layout.pp * layout.vpp:
                sent, received = (size, 0) if way == "send" else (0, size)
                name = f"{scope}.{phase[0].upper()}"
                yield Message(name, phase, batch, what, way, "pp", layout.pp, sent, received)


def step_messages(share: Share) -> list[Message]:
    """Messages of one rank that are sent once a step, in their order."""
    layout, messages = share.config.layout, []
    sizes = {
        name: size for name, size in buffer_bytes(share).items() if group_ranks(layout, _group(name)) > 1
    }
    for replicas, size in sizes.items():
        messages += list(_reduction(share, replicas, size))
    for group, size in ((_group(replicas), size) for replicas, size in sizes.items()):
        messages.append(_message("param_gather", "all_gather", group, group_ranks(layout, group), size))
    for group in (_group("stage"), "pp"):
        if group_ranks(layout, group) > 1:
            messages.append(
                _message("log", "all_reduce", group, group_ranks(layout, group), _LOSS_BYTES, "loss")
            )
    return messages


def _reduction(share: Share, replicas: str, size: int) -> Iterator[Message]:
    kind, group = share.config.toggles.grad_reduce, _group(replicas)
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


def _group(replicas: str) -> str:
    """Name of the process group of ranks that hold the same."""
    return "_".join(_DIMENSIONS[replicas])


def _nodes(share: Share, replicas: str) -> list[list[int]]:
    """The ranks with the same parameters, by the machine that they are on."""
    layout = share.config.layout
    (group,) = (ranks for ranks in layout.groups(*_DIMENSIONS[replicas]) if share.rank in ranks)
    nodes: dict[int, list[int]] = {}
    for rank in group:
        nodes.setdefault(rank // (layout.node or layout.ranks), []).append(rank)
    if len({len(node_ranks) for node_ranks in nodes.values()}) > 1:
        raise TracelensError(
            f"grad_reduce=hierarchical: the ranks that share {replicas} lie unevenly on nodes of "
            f"{layout.node}: choose a layout or a node that shares them out evenly"
        )
    return list(nodes.values())


def _message(
    scope: str, collective: Collective, group: str, ranks: int, size: int, what: str = ""
) -> Message:
    """A collective on a buffer of so many bytes."""
    part = size // ranks
    sent = part if collective == "all_gather" else size
    received = part if collective == "reduce_scatter" else size
    what = what or ("parameters" if scope == "param_gather" else "gradients")
    return Message(scope, "step", -1, what, collective, group, ranks, sent, received)


def _up(count: int, step: int) -> int:
    return -(-count // step) * step
