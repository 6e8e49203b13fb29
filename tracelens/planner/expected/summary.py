"""The closed forms of one rank as plain values, for the side file of its trace."""

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
        rank: of the run.
        device: "cpu" or "cuda", which determines the attention kernel.
        routing: of the step, as reported by the run; see `flops` and `messages` for when it is not needed.

    Returns:
        `parameters` by REPLICA_GROUPS and component; `attention`, the kernel; `flops` by scope, forward,
        backward and recomputed; `fp8_flops`, those of them in FP8, if any; `messages`, the fields of Message,
        with `times` per step instead of `micro_batch`.

    Raises:
        TracelensError: no such rank, or the routing is needed but unknown.
    """
    kernel = attention_kernel(config, rank, device)
    counted = Counter(message._replace(micro_batch=-1) for message in messages(config, rank, routing))
    rows = [message._asdict() | {"times": times} for message, times in counted.items()]
    in_fp8 = {scope: work._asdict() for scope, work in flops(config, rank, routing, dtype="fp8").items()}
    return {
        "parameters": parameters(config, rank),
        "attention": kernel,
        "flops": {scope: work._asdict() for scope, work in flops(config, rank, routing, kernel).items()},
        **({"fp8_flops": in_fp8} if in_fp8 else {}),
        "messages": [{name: value for name, value in row.items() if name != "micro_batch"} for row in rows],
    }
