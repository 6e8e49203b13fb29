"""Every message of one step of one rank, with its bytes, from sizes and routing alone.

Bytes are those of the buffers passed to the collective, as profilers record them: what a rank sends to itself
counts too. An all-gather sends the rank's part and receives the whole, a reduce-scatter the other way round;
an all-reduce or a broadcast has one buffer. Groups of one rank send nothing.

tp_overlap=symmetric copies between GPUs without a collective, which is not listed. dispatch=deepep uses no
torch collectives either, but its copies of tokens are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tracelens.planner.block import Exchange, layer_ops, recomputed
from tracelens.planner.config import STATIC, Config
from tracelens.planner.expected.message import Message, Phase, group_ranks
from tracelens.planner.expected.routed import Routed, Routing, known
from tracelens.planner.expected.share import Share
from tracelens.planner.expected.step import pipeline_messages, step_messages


def messages(config: Config, rank: int, routing: Routing | None = None) -> list[Message]:
    """Messages of one step on one rank: by micro-batch and layer, forward before backward.

    Args:
        config: of the run.
        rank: of the run.
        routing: of the step, as reported by the run; not needed with routing=balanced, dispatch=allgather,
            or sync_free=3 unless dispatch=deepep.

    Raises:
        TracelensError: no such rank, or the routing is needed but unknown.
    """
    share = Share(config, rank)
    routing = known(config, rank, routing) if is_routed(share) else None
    sent: list[Message] = []
    for batch in range(config.training.micro_batches):
        for chunk, layers in share.chunks.items():
            sent += pipeline_messages(share, chunk, batch)
            for layer in layers:
                routed = routing.at(layer, batch) if routing is not None and share.is_moe(layer) else None
                sent += layer_messages(share, layer, batch, routed)
    return sent + step_messages(share)


def is_routed(share: Share) -> bool:
    """Whether message sizes depend on the routing."""
    toggles = share.config.toggles
    if group_ranks(share.config.layout, "ep") == 1 or not any(map(share.is_moe, share.layers)):
        return False
    # DeepEP sends only actual tokens, even from buffers sized for the worst case.
    return toggles.dispatch == "deepep" or (toggles.sync_free < STATIC and toggles.dispatch != "allgather")


def layer_messages(share: Share, layer: int, batch: int, routed: Routed | None) -> Iterator[Message]:
    """Messages of a layer in one micro-batch: forward, recompute, backward; `routed` only if `is_routed`."""
    ops = layer_ops(share.routed(routed.counts if routed else None), share.is_moe(layer))
    forward = [(f"L{layer}.{op.scope}", message) for op in ops for message in op.messages.forward]
    yield from _messages(share, forward, "forward", batch)
    if share.is_recomputed(layer):
        again = sum(len(op.messages.forward) for op in ops[: recomputed(ops)])
        yield from _messages(share, forward[:again], "recompute", batch)
    backward = ((op.scope, message) for op in reversed(ops) for message in op.messages.backward)
    yield from _messages(
        share, ((f"L{layer}.{scope}.B", message) for scope, message in backward), "backward", batch
    )


def _messages(
    share: Share, exchanges: Iterable[tuple[str, Exchange]], phase: Phase, batch: int
) -> Iterator[Message]:
    for scope, (what, collective, group, sent, received) in exchanges:
        ranks = group_ranks(share.config.layout, group)
        if ranks > 1:
            yield Message(scope, phase, batch, what, collective, group, ranks, sent, received)
