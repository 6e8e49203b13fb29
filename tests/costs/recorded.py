"""Recorded calls, written as their arguments: `recorded("aten::mm", "bf16 2 3", "bf16 3 4")`."""

from __future__ import annotations

from tracelens.costs import OpCall, OpCost, ServingBatch, Uncounted, find
from tracelens.dtypes import BITS


def recorded(name: str, *arguments: object, forward: OpCall | None = None, kernel: str = "") -> OpCall:
    """A call of an op.

    Args:
        name: of the op.
        arguments: a tensor as "bf16 2 3 4" (type and dimensions), any other value, None for one left out.
        forward: its forward op.
        kernel: its kernel.
    """
    shapes: list[list[int]] = []
    dtypes, values = [], []
    for argument in arguments:
        words = argument.split() if isinstance(argument, str) else []
        tensor = bool(words) and words[0] in BITS
        shapes.append([int(word) for word in words[1:]] if tensor else [])
        dtypes.append(words[0] if tensor else "")
        values.append("" if tensor or argument is None else str(argument))
    return OpCall(name, shapes, dtypes, values, kernel=kernel, forward=forward)


def costed(name: str, *arguments: object, forward: OpCall | None = None, kernel: str = "") -> OpCost:
    """The cost of that call."""
    model = find(name)
    assert model is not None, name
    return model.function(recorded(name, *arguments, forward=forward, kernel=kernel))


def at_step(call: OpCall, batch: ServingBatch | None = None) -> OpCost:
    """The cost of a call that needs the lengths of the serving step around it."""
    model = find(call.name)
    assert model is not None
    assert model.batch
    return model.function(call._replace(batch=batch))


def only_uncounted(call: OpCall) -> None:
    """A call is counted with nothing negative, or `Uncounted` with a reason; any other exception fails."""
    model = find(call.name)
    assert model is not None, call.name
    try:
        cost = model.function(call)
    except Uncounted as lacking:
        reason = str(lacking)
    else:
        reason = "counted"
        assert min(cost.flops, cost.read_bytes, cost.write_bytes, cost.link_bytes) >= 0, call
        assert all(number >= 0 for _, number in cost.dims), cost.dims
    assert reason, call
    assert not reason.endswith("."), call
