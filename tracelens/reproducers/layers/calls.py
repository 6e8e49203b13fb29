"""The calls of a pass through an MoE layer with their arguments, and what has to be left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tracelens.dtypes import torch_dtype
from tracelens.reproducers.inputs import (
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
from tracelens.reproducers.layers.passes import PassCall, PhaseWork, pass_calls
from tracelens.reproducers.layers.source import Line
from tracelens.reproducers.select import Call, cases
from tracelens.trace import Trace

COMM = "communication"
LINK = "host-device copy; the script runs on one device"
NO_OP = "no op with recorded arguments"


class TracedCalls(NamedTuple):
    """The calls of a pass; times in us.

    Attributes:
        lines: calls and what is left out, in order of launch.
        calls_us: GPU time of the calls.
        left_out_us: of each call left out.
        comm_us: of communication, which is left out as well.
    """

    lines: list[Line]
    calls_us: float
    left_out_us: list[float]
    comm_us: float

    @property
    def calls(self) -> int:
        return sum(line.arguments is not None for line in self.lines)

    @property
    def tensors(self) -> list[Tensor]:
        return tensors([argument for line in self.lines for argument in line.arguments or []])

    @property
    def ops(self) -> set[str]:
        return {line.op for line in self.lines if line.arguments is not None}


def traced(trace: Trace, phase_work: PhaseWork, max_elements: int | None) -> TracedCalls:
    """The calls of a pass."""
    launched = pass_calls(trace, phase_work)
    arguments = _typed(
        launched, [_arguments(pass_call) for pass_call in launched], _list_types(trace, phase_work)
    )
    arguments = [
        _completed(pass_call, recorded) for pass_call, recorded in zip(launched, arguments, strict=True)
    ]
    if max_elements is not None:
        arguments = _scaled(arguments, max_elements)
    lines, calls_us, left_out_us, comm_us = [], 0.0, [], 0.0
    for pass_call, recorded in zip(launched, arguments, strict=True):
        filled = _filled(pass_call, recorded)
        name, us = pass_call.name, pass_call.ns / 1e3
        if not isinstance(filled, str):
            calls_us += us
            lines.append(Line(pass_call.stage, name, us, filled))
            continue
        lines.append(Line(pass_call.stage, f"{name}: {filled}", us, None))
        if pass_call.comm:
            comm_us += us
        else:
            left_out_us.append(us)
    return TracedCalls(lines, calls_us, left_out_us, comm_us)


def _arguments(pass_call: PassCall) -> list[Argument] | str:
    """The recorded arguments of a call, or why it is left out."""
    if pass_call.comm:
        return COMM
    if pass_call.call is None:
        return NO_OP
    if pass_call.link:
        return LINK
    try:
        return read(*pass_call.call.recorded, of_lists="float32")
    except Unreplayable as error:
        return str(error)


def _completed(pass_call: PassCall, recorded: list[Argument] | str) -> list[Argument] | str:
    """The same with index tensors."""
    if isinstance(recorded, str) or pass_call.call is None:
        return recorded
    return complete(pass_call.name, recorded, pass_call.call.kernel, pass_call.call.blocks)


def _filled(pass_call: PassCall, recorded: list[Argument] | str) -> list[Argument] | str:
    """The same with what makes their values."""
    if isinstance(recorded, str):
        return recorded
    try:
        return fill(pass_call.name, recorded)
    except Unreplayable as error:
        return str(error)


def _list_types(trace: Trace, phase_work: PhaseWork) -> dict[Call, str]:
    """Element type of tensors in lists by call, where the kernel tells the cost model."""
    found_cases = cases(trace, trace.work.take(phase_work.rows))
    return {case.call: dtype for case in found_cases if case.cost and (dtype := torch_dtype(case.cost.dtype))}


def _typed(
    launched: Sequence[PassCall], recorded: Sequence[list[Argument] | str], types: dict[Call, str]
) -> list[list[Argument] | str]:
    """The arguments with element types for lists of tensors, which are not recorded.

    A kernel that merely moves data does not tell: then it is the type of the last tensor of that shape, or
    the last one at all.
    """
    last, of_shape = "float32", dict[tuple[int, ...], str]()

    def typed(argument: Argument, dtype: str) -> Argument:
        if not isinstance(argument, list):
            return argument
        return [
            replace(tensor, dtype=dtype or of_shape.get(tensor.shape, last))
            if isinstance(tensor, Tensor)
            else tensor
            for tensor in argument
        ]

    typed_arguments: list[list[Argument] | str] = []
    for pass_call, arguments in zip(launched, recorded, strict=True):
        if isinstance(arguments, str):
            typed_arguments.append(arguments)
            continue
        dtype = types.get(pass_call.call, "") if pass_call.call else ""
        typed_arguments.append([typed(argument, dtype) for argument in arguments])
        for argument in arguments:
            if isinstance(argument, Tensor) and flows(argument):
                last = of_shape[argument.shape] = argument.dtype
    return typed_arguments


def _scaled(recorded: Sequence[list[Argument] | str], most: int) -> list[list[Argument] | str]:
    """All arguments divided by one number, so that results still fit the calls behind them."""
    scaled_arguments = iter(
        scaled(
            "",
            [argument for arguments in recorded if not isinstance(arguments, str) for argument in arguments],
            most,
        )
    )
    return [
        arguments if isinstance(arguments, str) else [next(scaled_arguments) for _ in arguments]
        for arguments in recorded
    ]
