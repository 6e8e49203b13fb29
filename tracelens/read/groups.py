"""Rows in the groups of grouped GEMMs, which the GPU alone knows: from the values recorded beside a trace.

Buffers of a fixed size, for which the host waits for no number of tokens, have more rows than the groups do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from tracelens.read.source import values_beside

_Number = Annotated[int, Meta(ge=0, le=1 << 40)]


class _Argument(Struct):
    shape: tuple[_Number, ...] = ()
    sizes: tuple[_Number, ...] = ()  # of the groups whose ends it holds


class _Call(Struct):
    count: Annotated[int, Meta(ge=1, le=1 << 40)]
    arguments: tuple[_Argument | None, ...]


class _Values(Struct):
    """What is read of a file that `tracelens.recording.values` describes."""

    schema: Literal["tracelens.values/1"]
    calls: list[_Call]


def group_rows(path: str, names: Iterable[str]) -> tuple[dict[int, int], tuple[str, ...]]:
    """Rows of a buffer to how many of them lie in a group, the mean of its calls; what the file lacks.

    Args:
        path: of the trace.
        names: of its events.
    """
    if not any("grouped" in name for name in names) or (beside := values_beside(path)) is None:
        return {}, ()
    file, content = beside
    try:
        values = msgspec.json.decode(content, type=_Values)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return {}, (f"{file}: rows of grouped GEMMs not read ({error})",)
    calls: dict[int, int] = {}
    rows: dict[int, int] = {}
    for call in values.calls:
        filled = next((sum(argument.sizes) for argument in call.arguments if argument and argument.sizes), -1)
        buffer = _buffer(call)
        if 0 <= filled < buffer:
            calls[buffer] = calls.get(buffer, 0) + call.count
            rows[buffer] = rows.get(buffer, 0) + call.count * filled
    return {buffer: round(rows[buffer] / count) for buffer, count in calls.items()}, ()


def _buffer(call: _Call) -> int:
    """The dimension that the groups cut: of all matrices and of no stack of weights; -1 if it is unclear."""
    operands = [argument.shape for argument in call.arguments[:2] if argument]
    matrices = [{*shape} for shape in operands if len(shape) == 2]
    stacked = {size for shape in operands if len(shape) == 3 for size in shape}
    cut = set.intersection(*matrices) - stacked if matrices else set()
    return cut.pop() if len(cut) == 1 else -1
