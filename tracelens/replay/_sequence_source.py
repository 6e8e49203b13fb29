"""A list of calls as the lines of a generator function, in which loops stand for calls that repeat."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

from tracelens.replay._sequence_loops import MOST_SIZES, Form, Loop, columns, flows, form, loops, with_numbers
from tracelens.replay.arguments import Argument, Tensor, dense
from tracelens.replay.source import WIDTH, code, literal, plain

NAMES = ("n", "m", "k")
"""Of the sizes that differ between the rounds of a loop."""

assert len(NAMES) == MOST_SIZES


class Line(NamedTuple):
    """One call, or what stands in a comment instead of one.

    Attributes:
        stage: of the MoE layer.
        op: name; of a comment the text.
        us: GPU time.
        arguments: with what makes their values; None makes it a comment.
    """

    stage: str
    op: str
    us: float
    arguments: list[Argument] | None


class _Size(int):
    """A number that stands in a source as a name."""

    name: str

    def __new__(cls, value: int, name: str) -> _Size:
        made = super().__new__(cls, value)
        made.name = name
        return made

    def __repr__(self) -> str:
        return self.name


def source(calls: Sequence[Line], indent: int) -> list[str]:
    """The calls as lines of a generator, each `yield op, traced us, [arguments]`.

    Times in a loop are means of its rounds.
    """
    calls = list(_merged(calls))
    forms = [form((line.stage, line.op), line.arguments) for line in calls]
    found: list[str] = []
    at = 0
    for loop in loops(forms):
        found += _block(calls[at : loop.first], indent)
        found += _rounds(calls, forms, loop, indent)
        at = loop.behind
    return found + _block(calls[at:], indent)


def _merged(calls: Sequence[Line]) -> Iterator[Line]:
    """The same, with comments that repeat each other as one, which has the time of all."""
    for _, group in groupby(calls, lambda line: (line.stage, line.op, line.arguments is None)):
        some = list(group)
        if some[0].arguments is None and len(some) > 1:
            yield some[0]._replace(op=f"{len(some)} times {some[0].op}", us=sum(line.us for line in some))
        else:
            yield from some


def _block(calls: Sequence[Line], indent: int) -> list[str]:
    """Lines of calls one by one, with a comment where the stage changes."""
    found, stage = [], ""
    for line in calls:
        if line.stage != stage:
            stage = line.stage
            found.append(f"{' ' * indent}# {plain(stage)}")
        found += _statement(line, indent)
    return found


def _statement(line: Line, indent: int) -> list[str]:
    margin = " " * indent
    if line.arguments is None:
        text = plain(f"{line.us:,.1f} us left out: {line.op}")
        return [f"{margin}# {text[: WIDTH - indent - 2]}"]
    words = ", ".join(map(_code, line.arguments))
    parts = textwrap.wrap(
        f"yield {literal(line.op)},\0{round(line.us, 1)},\0[{words}]",
        WIDTH,
        initial_indent=margin,
        subsequent_indent=f"{margin}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace("\0", " ") for part in parts]


def _code(argument: Argument) -> str:
    """Source of an argument, with blanks only where a line may be broken."""
    if isinstance(argument, list) and any(map(flows, argument)):
        return f"[{', '.join(map(_code, argument))}]"
    if isinstance(argument, Tensor) and flows(argument):
        sizes = (argument.dtype, argument.shape, argument.stride)
        text = f"Like({literal(sizes[: 2 if argument.stride == dense(argument.shape) else 3])[1:-1]})"
    else:
        text = code(argument)
    return text if len(text) > WIDTH // 2 else text.replace(" ", "\0")


def _rounds(calls: Sequence[Line], forms: Sequence[Form], loop: Loop, indent: int) -> list[str]:
    """The lines of a loop."""
    names: dict[tuple[int, ...], str] = {}

    def size(values: tuple[int, ...]) -> int:
        if len(set(values)) == 1:
            return values[0]
        return _Size(values[0], names.setdefault(values, NAMES[min(len(names), MOST_SIZES - 1)]))

    body = []
    for place, column in enumerate(columns(forms, loop), start=loop.first):
        line, numbers = calls[place], map(size, column)
        arguments = line.arguments and [with_numbers(one, numbers) for one in line.arguments]
        mean = fmean(other.us for other in calls[place : loop.behind : loop.period])
        body.append(line._replace(us=mean, arguments=arguments))
    return [*_head(names, loop.rounds, indent), *_block(body, indent + 4)]


def _head(names: dict[tuple[int, ...], str], rounds: int, indent: int) -> list[str]:
    if not names:
        return [f"{' ' * indent}for _ in range({rounds}):"]
    values: list[Any] = list(zip(*names, strict=True)) if len(names) > 1 else list(next(iter(names)))
    text = f"for {', '.join(names.values())} in {literal(values)}:"
    margin = " " * indent
    return textwrap.wrap(text, WIDTH, initial_indent=margin, subsequent_indent=f"{margin}        ")
