"""The calls of a pass through an MoE layer with their arguments, and what has to be left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tracelens.reproducers.inputs import (
    TORCH,
    Argument,
    Tensor,
    Unreplayable,
    complete,
    fill,
    read,
    scaled,
    tensors,
)
from tracelens.reproducers.layers.loops import flows
from tracelens.reproducers.layers.passes import Item, Pass, items
from tracelens.reproducers.layers.source import Line
from tracelens.reproducers.select import Call, cases
from tracelens.trace import Trace

COMM = "communication"
LINK = "copies between GPU and host, and here there is one device"
NO_OP = "no op with recorded arguments"


class Traced(NamedTuple):
    """The calls of a pass; times in us.

    Attributes:
        lines: calls and what is left out, in order of launch.
        calls_us: GPU time of the calls.
        left_us: of each call left out.
        comm_us: of communication, which is left out as well.
    """

    lines: list[Line]
    calls_us: float
    left_us: list[float]
    comm_us: float

    @property
    def calls(self) -> int:
        """How many calls are not left out."""
        return sum(line.arguments is not None for line in self.lines)

    @property
    def tensors(self) -> list[Tensor]:
        return tensors([one for line in self.lines for one in line.arguments or []])

    @property
    def ops(self) -> set[str]:
        return {line.op for line in self.lines if line.arguments is not None}


def traced(trace: Trace, one: Pass, max_elements: int | None) -> Traced:
    """The calls of a pass.

    Args:
        trace: of the rank.
        one: the pass.
        max_elements: scale sizes down until no tensor has more elements.
    """
    known = items(trace, one)
    given = _typed(known, [_arguments(item) for item in known], _list_types(trace, one))
    given = [_completed(item, recorded) for item, recorded in zip(known, given, strict=True)]
    if max_elements is not None:
        given = _scaled(given, max_elements)
    lines, calls_us, left_us, comm_us = [], 0.0, [], 0.0
    for item, recorded in zip(known, given, strict=True):
        arguments = _filled(item, recorded)
        name, us = item.name, item.ns / 1e3
        if not isinstance(arguments, str):
            calls_us += us
            lines.append(Line(item.stage, name, us, arguments))
            continue
        lines.append(Line(item.stage, f"{name}: {arguments}", us, None))
        if item.comm:
            comm_us += us
        else:
            left_us.append(us)
    return Traced(lines, calls_us, left_us, comm_us)


def _arguments(item: Item) -> list[Argument] | str:
    """The recorded arguments of a call, or why it is left out."""
    if item.comm:
        return COMM
    if item.call is None:
        return NO_OP
    if item.link:
        return LINK
    try:
        return read(*item.call.recorded, of_lists="float32")
    except Unreplayable as why:
        return str(why)


def _completed(item: Item, recorded: list[Argument] | str) -> list[Argument] | str:
    """The same with index tensors."""
    if isinstance(recorded, str) or item.call is None:
        return recorded
    return complete(item.name, recorded, item.call.kernel, item.call.blocks)


def _filled(item: Item, recorded: list[Argument] | str) -> list[Argument] | str:
    """The same with what makes their values."""
    if isinstance(recorded, str):
        return recorded
    try:
        return fill(item.name, recorded)
    except Unreplayable as why:
        return str(why)


def _list_types(trace: Trace, one: Pass) -> dict[Call, str]:
    """Element type of tensors in lists by call, where the kernel tells the cost model."""
    found = cases(trace, trace.work.take(one.rows))
    return {case.call: TORCH[case.cost.dtype] for case in found if case.cost and case.cost.dtype in TORCH}


def _typed(
    known: Sequence[Item], given: Sequence[list[Argument] | str], types: dict[Call, str]
) -> list[list[Argument] | str]:
    """The arguments with element types for lists of tensors, which are not recorded.

    A kernel that merely moves data does not tell: then it is the type of the last tensor of that shape, or
    the last one at all.
    """
    last, of_shape = "float32", dict[tuple[int, ...], str]()

    def typed(argument: Argument, told: str) -> Argument:
        if not isinstance(argument, list):
            return argument
        return [
            replace(one, dtype=told or of_shape.get(one.shape, last)) if isinstance(one, Tensor) else one
            for one in argument
        ]

    found: list[list[Argument] | str] = []
    for item, arguments in zip(known, given, strict=True):
        if isinstance(arguments, str):
            found.append(arguments)
            continue
        told = types.get(item.call, "") if item.call else ""
        found.append([typed(argument, told) for argument in arguments])
        for argument in arguments:
            if isinstance(argument, Tensor) and flows(argument):
                last = of_shape[argument.shape] = argument.dtype
    return found


def _scaled(given: Sequence[list[Argument] | str], most: int) -> list[list[Argument] | str]:
    """All arguments divided by one number, so that results still fit the calls behind them."""
    every = iter(scaled("", [one for some in given if not isinstance(some, str) for one in some], most))
    return [some if isinstance(some, str) else [next(every) for _ in some] for some in given]
