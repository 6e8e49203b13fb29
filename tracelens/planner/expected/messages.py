"""Every message of one step of one rank, with its bytes, from sizes and routing alone.

Bytes are those of the buffers that the collective is given, as profilers record them: what a rank keeps to
itself counts too. An all-gather sends the rank's part and receives the whole, a reduce-scatter the other way
round, an all-reduce or a broadcast has one buffer for both. Groups of one rank send nothing.

Not in the list: what tp_overlap=symmetric copies between GPUs without a collective. Of dispatch=deepep, whose
kernels are no collectives of torch either, it has the copies of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.planner.config import STATIC, Config
from tracelens.planner.expected.layer import LayerMessage, Step, layer_steps
from tracelens.planner.expected.message import Message, Phase, group_ranks
from tracelens.planner.expected.routed import Routed, Routing, known
from tracelens.planner.expected.share import Share
from tracelens.planner.expected.step import pipeline_messages, step_messages


def messages(config: Config, rank: int, routing: Routing | None = None) -> list[Message]:
    """Messages of one step on one rank: by micro-batch and layer, forward before backward.

    Args:
        config: of the run.
        rank: number of the rank.
        routing: of the step, as the run reported it; not needed with routing=balanced, dispatch=allgather,
            or sync_free=3 unless it is dispatch=deepep.

    Raises:
        TracelensError: there is no such rank, or the routing is needed and not known.
    """
    share = Share(config, rank)
    sent: list[Message] = []
    needed = is_routed(share)
    if needed:
        routing = known(config, rank, routing)
    for batch in range(config.training.micro_batches):
        for chunk, layers in share.chunks.items():
            sent += pipeline_messages(share, chunk, batch)
            for layer in layers:
                routed = routing.at(layer, batch) if routing and needed and share.is_moe(layer) else None
                sent += layer_messages(share, layer, batch, routed)
    return sent + step_messages(share)


def is_routed(share: Share) -> bool:
    """Whether sizes of messages depend on the routing."""
    toggles = share.config.toggles
    if group_ranks(share.config.layout, "ep") == 1 or not any(map(share.is_moe, share.layers)):
        return False
    # DeepEP's buffers may be for the worst case, but what travels is not.
    return toggles.dispatch == "deepep" or (toggles.sync_free < STATIC and toggles.dispatch != "allgather")


def layer_messages(share: Share, layer: int, batch: int, routed: Routed | None) -> Iterator[Message]:
    """A layer's messages in the forward of a micro-batch, those computed again, and those of its gradients.

    Args:
        share: of the rank.
        layer: number.
        batch: number of the micro-batch.
        routed: how tokens are routed, where `is_routed`.
    """
    steps = layer_steps(share, layer, routed)
    forward = [message for step in steps for message in step.forward]
    yield from _messages(share, forward, "forward", batch)
    if share.is_recomputed(layer):
        yield from _messages(share, _recompute_messages(share, steps), "recompute", batch)
    backward = [message for step in reversed(steps) for message in step.backward]
    backward = [message._replace(scope=f"{message.scope}.B") for message in backward]
    yield from _messages(share, backward, "backward", batch)


def _recompute_messages(share: Share, steps: list[Step]) -> list[LayerMessage]:
    """What a layer sends when it is computed again: that ends with the last tensor that the backward needs.

    The reduction at the end of a layer is left out, unless GEMM and reduction are one operation.
    """
    forward = [message for step in steps for message in step.forward]
    *rest, last = forward
    fused = last.group == "tp" and share.config.toggles.tp_overlap != "off"
    return rest if last.collective in ("reduce_scatter", "deepep") and not fused else forward


def _messages(
    share: Share, layer_messages_: list[LayerMessage], phase: Phase, batch: int
) -> Iterator[Message]:
    for scope, what, collective, group, sent, received in layer_messages_:
        ranks = group_ranks(share.config.layout, group)
        if ranks > 1:
            yield Message(scope, phase, batch, what, collective, group, ranks, sent, received)
