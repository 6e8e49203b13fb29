"""What the recorder noted beside a trace, as `tracelens.recording.values` describes it.

Of grouped GEMMs also how many rows lie in a group, which the GPU alone knows: buffers of a fixed size, for
which the host waits for no number of tokens, have more rows than the groups do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from math import prod
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from tracelens.errors import ParseError, TracelensError
from tracelens.filenames import VALUES
from tracelens.read.source import open_source

_VALUES_BYTES = 96 << 20

_Number = Annotated[int, Meta(ge=0, le=1 << 40)]
_Text = Annotated[str, Meta(pattern=r"\A\w{0,32}\Z")]
_Source = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{16})?\Z")]
_Value = bool | int | float | _Text | None


class NotedArgument(Struct, frozen=True):
    """What the recorder noted of an argument: a tensor if it has a dtype, a list of them, or a value."""

    shape: Annotated[tuple[_Number, ...], Meta(max_length=32)] = ()
    dtype: _Text = ""
    stride: Annotated[tuple[_Number, ...], Meta(max_length=32)] | None = None
    sizes: tuple[_Number, ...] = ()  # of the groups whose ends it holds
    # how often an index occurs, and how many of them do
    hits: Annotated[tuple[tuple[_Number, _Number], ...], Meta(max_length=256)] = ()
    sorted: bool = False  # whether the indices never fall
    # number of the argument before it that is the same tensor or list
    same: Annotated[int, Meta(ge=0, le=63)] | None = None
    # bits of the number of bytes that calls touched since it was touched; None for more than caches hold
    age: Annotated[int, Meta(ge=0, le=63)] | None = None
    count: Annotated[int, Meta(ge=1, le=1 << 16)] = 1  # of such tensors in a row of a list
    tensors: Annotated[tuple[NotedArgument, ...], Meta(max_length=1 << 16)] = ()
    value: _Value | tuple[_Value, ...] = None
    below: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None  # what whole numbers of a tensor are below

    @property
    def work(self) -> int:
        """What calls of the same shapes are ordered by: elements of a list, the largest group, most hits."""
        elements = sum(prod(tensor.shape) * tensor.count for tensor in self.tensors)
        return elements + max(self.sizes, default=0) + max((times for times, _ in self.hits), default=0)


class NotedCall(Struct, frozen=True):
    """Calls of equal arguments in the step that the recorder noted."""

    op: Annotated[str, Meta(max_length=200)]
    count: Annotated[int, Meta(ge=1, le=1 << 40)]
    arguments: Annotated[tuple[NotedArgument | None, ...], Meta(max_length=64)]
    source: _Source = ""  # of a generated Triton kernel, whose name `op` is

    @property
    def ages(self) -> tuple[int | None, ...]:
        return tuple(argument.age if argument else None for argument in self.arguments)


class NotedFile(Struct):
    """A file that `tracelens.recording.values` describes."""

    schema: Literal["tracelens.values/1"]
    calls: list[NotedCall]
    cut: str = ""
    sources: dict[_Source, Annotated[str, Meta(max_length=1 << 20)]] = {}  # files of generated kernels

    @staticmethod
    def read(content: bytes) -> NotedFile:
        """The content of a file; raises TracelensError for what the recorder did not write."""
        try:
            return msgspec.json.decode(content, type=NotedFile)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise TracelensError("not a file of values that tracelens wrote") from None


def values_beside(path: str) -> tuple[str, bytes] | None:
    """The file with values beside a trace, and what it holds: b"" where that is more than anybody records."""
    base = path.removesuffix(".gz").removesuffix(".zst")
    file = f"{base.removesuffix('.json')}{VALUES}"
    if not base.endswith(".json") or not os.path.isfile(file):
        return None
    data = b""
    with suppress(ParseError):
        (source, *_) = open_source(file)
        for block in source.blocks():
            data += block
            if len(data) > _VALUES_BYTES:
                source.close()
                return file, b""
    return file, data


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
        noted = NotedFile.read(content)
    except TracelensError as error:
        return {}, (f"{file}: rows of grouped GEMMs not read ({error})",)
    calls: dict[int, int] = {}
    rows: dict[int, int] = {}
    for call in noted.calls:
        filled = next((sum(argument.sizes) for argument in call.arguments if argument and argument.sizes), -1)
        buffer = _buffer(call)
        if 0 <= filled < buffer:
            calls[buffer] = calls.get(buffer, 0) + call.count
            rows[buffer] = rows.get(buffer, 0) + call.count * filled
    return {buffer: round(rows[buffer] / count) for buffer, count in calls.items()}, ()


def _buffer(call: NotedCall) -> int:
    """The dimension that the groups cut: of all matrices and of no stack of weights; -1 if it is unclear."""
    operands = [argument.shape for argument in call.arguments[:2] if argument]
    matrices = [{*shape} for shape in operands if len(shape) == 2]
    stacked = {size for shape in operands if len(shape) == 3 for size in shape}
    cut = set.intersection(*matrices) - stacked if matrices else set()
    return cut.pop() if len(cut) == 1 else -1
