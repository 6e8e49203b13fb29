"""All closed forms of one rank as plain values, for the file beside its trace."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tracelens.planner.config import Config
from tracelens.planner.expected.flops import attention_kernel, flops
from tracelens.planner.expected.messages import messages
from tracelens.planner.expected.parameters import parameters
from tracelens.planner.expected.routed import Routing


def summary(config: Config, rank: int, device: str, routing: Routing | None = None) -> dict[str, Any]:
    """Parameters, FLOPs and messages of one step of one rank.

    Args:
        config: of the run.
        rank: number of the rank.
        device: "cpu" or "cuda", on which depends how attention is computed.
        routing: of the step, as the run reported it; see `flops` and `messages` for when it is not needed.

    Returns:
        `parameters` by replicas and component; `attention`, how it is computed; `flops` by scope, forward,
        backward and recomputed; `messages`, the fields of Message, `times` a step instead of `micro_batch`.

    Raises:
        TracelensError: there is no such rank, or the routing is needed and not known.
    """
    kernel = attention_kernel(config, rank, device)
    work = flops(config, rank, routing, kernel)
    counted = Counter(message._replace(micro_batch=-1) for message in messages(config, rank, routing))
    rows = [{**message._asdict(), "times": times} for message, times in counted.items()]
    return {
        "parameters": parameters(config, rank),
        "attention": kernel,
        "flops": {scope: done._asdict() for scope, done in work.items()},
        "messages": [
            {name: value for name, value in message.items() if name != "micro_batch"} for message in rows
        ],
    }
