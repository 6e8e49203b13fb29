"""How much of its all-to-alls a 1F1B schedule can hide under computation of another micro-batch.

As in `planner.pipeline.schedules.overlapped`: lone forwards first, then pairs of a forward and the backward
of an earlier micro-batch, then lone backwards.
"""

from __future__ import annotations

from tracelens.planner.config import Config


def paired_share(config: Config) -> float:
    """Passes of a step that run as overlapped pairs of a forward and a backward / all passes.

    The last stage sets the pace. Of m micro-batches in v chunks on p stages, (v - 1) p + 1 forwards go ahead
    of its first pair, so that few micro-batches leave few pairs; without a pipeline m - 1 pairs.
    """
    layout = config.layout
    passes = config.training.micro_batches * layout.vpp
    alone = (layout.vpp - 1) * layout.pp + 1
    return max(0, passes - alone) / passes


def hidden_ns(computation: tuple[float, float], exchange: tuple[float, float]) -> float:
    """Time by which a pair of a forward and a backward is shorter than the two after each other.

    Computation runs one at a time, and so do all-to-alls; within a pass they follow each other.

    Args:
        computation: of the forward and of the backward, ns.
        exchange: their all-to-alls, ns.
    """
    passes = [sum(pair) for pair in zip(computation, exchange, strict=True)]
    return sum(passes) - max(sum(computation), sum(exchange), *passes)
