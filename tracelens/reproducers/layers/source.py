"""A list of calls as the lines of a generator function, in which loops stand for calls that repeat."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

from tracelens.reproducers.inputs import Argument, Tensor, dense
from tracelens.reproducers.layers.loops import (
    MOST_SIZES,
    Form,
    Loop,
    columns,
    flows,
    form,
    loops,
    with_numbers,
)
from tracelens.reproducers.scripts import DATA, SIZES, WIDTH, Source, code, literal, plain

assert len(SIZES) == MOST_SIZES


class Line(NamedTuple):
    """One call, or GPU work that is left out.

    Attributes:
        stage: of the MoE layer.
        op: name; of what is left out its name and the reason.
        us: GPU time.
        arguments: with what makes their values; None leaves it out.
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


def source(calls: Sequence[Line], indent: int) -> Source:
    """The calls as the body of a generator, each `yield op, traced us, [arguments]`.

    Times in a loop are means of its rounds.
    """
    calls = list(_merged(calls))
    forms = [form((line.stage, line.op), line.arguments) for line in calls]
    statements: list[Source] = []
    position = 0
    for loop in loops(forms):
        statements += _block(calls[position : loop.first], indent)
        statements += _rounds(calls, forms, loop, indent)
        position = loop.behind
    statements += _block(calls[position:], indent)
    text, outline = (
        "\n".join(getattr(statement, part) for statement in statements) for part in Source._fields
    )
    return Source(text, outline)


def _merged(calls: Sequence[Line]) -> Iterator[Line]:
    """The same, with what is left out several times in a row as one, which has the time of all."""
    for _, group in groupby(calls, lambda line: (line.stage, line.op, line.arguments is None)):
        lines = list(group)
        if lines[0].arguments is None and len(lines) > 1:
            yield lines[0]._replace(op=f"{len(lines)} times {lines[0].op}", us=sum(line.us for line in lines))
        else:
            yield from lines


def _block(calls: Sequence[Line], indent: int) -> list[Source]:
    """Calls one by one, with a comment where the stage changes."""
    statements, stage = [], ""
    for line in calls:
        if line.stage != stage:
            stage = line.stage
            comment = f"{' ' * indent}# {stage}"
            statements.append(Source(comment, comment))  # one of STAGES, or `render` refuses it
        statements.append(_statement(line, indent))
    return statements


def _statement(line: Line, indent: int) -> Source:
    margin = " " * indent
    if line.arguments is None:
        begin = f"{margin}left_out({round(line.us, 1)}, "
        label = literal(plain(line.op, WIDTH - len(begin) - len('"")')))
        return Source(f"{begin}{label})", f"{margin}left_out({DATA}, {DATA})")
    words = ", ".join(map(_code, line.arguments))
    parts = textwrap.wrap(
        f"yield {literal(line.op)},\0{round(line.us, 1)},\0[{words}]",
        WIDTH,
        initial_indent=margin,
        subsequent_indent=f"{margin}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return Source("\n".join(parts).replace("\0", " "), f"{margin}yield {DATA}, {DATA}, {DATA}")


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


def _rounds(calls: Sequence[Line], forms: Sequence[Form], loop: Loop, indent: int) -> list[Source]:
    names: dict[tuple[int, ...], str] = {}

    def size(values: tuple[int, ...]) -> int:
        if len(set(values)) == 1:
            return values[0]
        return _Size(values[0], names.setdefault(values, SIZES[min(len(names), MOST_SIZES - 1)]))

    body = []
    for index, column in enumerate(columns(forms, loop), start=loop.first):
        line, numbers = calls[index], map(size, column)
        arguments = line.arguments and [with_numbers(argument, numbers) for argument in line.arguments]
        mean = fmean(round_line.us for round_line in calls[index : loop.behind : loop.period])
        body.append(line._replace(us=mean, arguments=arguments))
    return [_head(names, loop.rounds, indent), *_block(body, indent + 4)]


def _head(names: dict[tuple[int, ...], str], rounds: int, indent: int) -> Source:
    margin = " " * indent
    if not names:
        return Source(f"{margin}for _ in range({rounds}):", f"{margin}for _ in range({DATA}):")
    values: list[Any] = list(zip(*names, strict=True)) if len(names) > 1 else list(next(iter(names)))
    head = f"for {', '.join(names.values())} in "
    wrapper = textwrap.TextWrapper(WIDTH, initial_indent=margin, subsequent_indent=f"{margin}        ")
    return Source("\n".join(wrapper.wrap(f"{head}{literal(values)}:")), f"{margin}{head}{DATA}:")
