"""A list of calls as the lines of a generator function, in which loops stand for calls that repeat.

Calls of experts in a loop repeat each other but for some sizes, which get names in the loop's head.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from tracelens.reproducers.arguments import Argument, TensorArgument, dense
from tracelens.reproducers.scripts import DATA, SIZES, WIDTH, SourceText, code, literal, plain

LONGEST = 96  # calls of a round at most
LEAST = 3  # rounds of a loop at least
SAVED = 4  # calls that a loop must save at least
MOST_SIZES = 3  # sizes that may differ from round to round

assert len(SIZES) == MOST_SIZES


class PassLine(NamedTuple):
    """One call, or GPU work that is left out."""

    stage: str  # of the MoE layer
    op: str  # name; of what is left out its name and the reason
    us: float  # GPU time
    arguments: list[Argument] | None  # with what makes their values; None leaves it out


class CallForm(NamedTuple):
    """What of a call has to be the same in all rounds of a loop, and what may differ."""

    alike: Any  # what the same call in other rounds has, too; equal or not
    numbers: list[int]  # sizes and other whole numbers, which may differ
    called: bool  # whether it is a call at all


class CallLoop(NamedTuple):
    """Calls first to first + period * rounds - 1, those of each round like those of the one before."""

    first: int
    period: int
    rounds: int

    @property
    def behind(self) -> int:
        return self.first + self.period * self.rounds


class _Size(int):
    """A number that stands in a source as a name."""

    name: str

    def __new__(cls, value: int, name: str) -> _Size:
        made = super().__new__(cls, value)
        made.name = name
        return made

    def __repr__(self) -> str:
        return self.name


def source(calls: Sequence[PassLine], indent: int) -> SourceText:
    """The calls as the body of a generator, each `yield op, traced us, [arguments]`.

    Times in a loop are means of its rounds.
    """
    merged: list[PassLine] = []
    for _, group in groupby(calls, lambda line: (line.stage, line.op, line.arguments is None)):
        lines = list(group)
        if lines[0].arguments is None and len(lines) > 1:  # left out several times in a row: one line
            total_us = sum(line.us for line in lines)
            lines = [lines[0]._replace(op=f"{len(lines)} times {lines[0].op}", us=total_us)]
        merged += lines
    forms = [form((line.stage, line.op), line.arguments) for line in merged]
    statements: list[SourceText] = []
    position, margin = 0, " " * indent
    for loop in loops(forms):
        statements += _block(merged[position : loop.first], indent)
        # Its head, with names for the sizes that differ, and the calls of a round.
        names: dict[tuple[int, ...], str] = {}
        body = []
        for index, column in enumerate(columns(forms, loop), start=loop.first):
            numbers: list[int] = []
            for values in column:
                if len(set(values)) > 1:
                    name = names.setdefault(values, SIZES[min(len(names), MOST_SIZES - 1)])
                    numbers.append(_Size(values[0], name))
                else:
                    numbers.append(values[0])
            line, in_order = merged[index], iter(numbers)
            arguments = line.arguments and [with_numbers(argument, in_order) for argument in line.arguments]
            mean_us = fmean(round_line.us for round_line in merged[index : loop.behind : loop.period])
            body.append(line._replace(us=mean_us, arguments=arguments))
        head, outline = f"{margin}for _ in range({loop.rounds}):", f"{margin}for _ in range({DATA}):"
        if names:
            begin = f"for {', '.join(names.values())} in "
            rounds: list[Any] = list(zip(*names, strict=True)) if len(names) > 1 else list(next(iter(names)))
            wrapper = textwrap.TextWrapper(
                WIDTH, initial_indent=margin, subsequent_indent=f"{margin}        "
            )
            head = "\n".join(wrapper.wrap(f"{begin}{literal(rounds)}:"))
            outline = f"{margin}{begin}{DATA}:"
        statements += [SourceText(head, outline), *_block(body, indent + 4)]
        position = loop.behind
    statements += _block(merged[position:], indent)
    text, outline = (
        "\n".join(getattr(statement, part) for statement in statements) for part in SourceText._fields
    )
    return SourceText(text, outline)


def _block(calls: Sequence[PassLine], indent: int) -> list[SourceText]:
    """Calls one by one, with a comment where the stage changes."""
    statements, stage, margin = [], "", " " * indent
    for line in calls:
        if line.stage != stage:
            stage = line.stage
            comment = f"{margin}# {stage}"
            statements.append(SourceText(comment, comment))  # one of STAGES, or `render` refuses it
        if line.arguments is None:
            begin = f"{margin}left_out({round(line.us, 1)}, "
            label = literal(plain(line.op, WIDTH - len(begin) - len('"")')))
            statements.append(SourceText(f"{begin}{label})", f"{margin}left_out({DATA}, {DATA})"))
            continue
        words = ", ".join(map(_code, line.arguments))
        parts = textwrap.wrap(
            f"yield {literal(line.op)},\0{round(line.us, 1)},\0[{words}]",
            WIDTH,
            initial_indent=margin,
            subsequent_indent=f"{margin}    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        text = "\n".join(parts).replace("\0", " ")
        statements.append(SourceText(text, f"{margin}yield {DATA}, {DATA}, {DATA}"))
    return statements


def _code(argument: Argument) -> str:
    """Source of an argument, with blanks only where a line may be broken."""
    if isinstance(argument, list) and any(map(flows, argument)):
        return f"[{', '.join(map(_code, argument))}]"
    if isinstance(argument, TensorArgument) and flows(argument):
        sizes = (argument.dtype, argument.shape, argument.stride)
        text = f"Like({literal(sizes[: 2 if argument.is_dense else 3])[1:-1]})"
    else:
        text = code(argument)
    return text if len(text) > WIDTH // 2 else text.replace(" ", "\0")


def flows(argument: Argument) -> bool:
    """Whether an argument may be the result of another call: floating point, and any value does."""
    return (
        isinstance(argument, TensorArgument)
        and argument.maker == "strided"
        and argument.dtype.startswith(("float", "bfloat"))
    )


def form(name: tuple[str, ...], arguments: Sequence[Argument] | None) -> CallForm:
    """The form of a call, which in all rounds has the same name."""
    numbers: list[int] = []
    alike = None if arguments is None else tuple(_alike(argument, numbers) for argument in arguments)
    return CallForm((name, alike), numbers, arguments is not None)


def columns(forms: Sequence[CallForm], loop: CallLoop) -> list[list[tuple[int, ...]]]:
    """Of each call of the first round its numbers, each with what it is in the other rounds."""
    sizes = [call_form.numbers for call_form in forms[loop.first : loop.behind]]
    return [list(zip(*sizes[call :: loop.period], strict=True)) for call in range(loop.period)]


def loops(forms: Sequence[CallForm]) -> Iterator[CallLoop]:
    """The loops in a list of calls, in order; of two that overlap the first."""
    numbers = {
        alike: number for number, alike in enumerate(dict.fromkeys(call_form.alike for call_form in forms))
    }
    code = np.array([numbers[call_form.alike] for call_form in forms], dtype=np.int64)
    positions = np.arange(len(code))
    reach = {}  # by period: for how many calls from each one on the call a period later is alike
    for period in range(1, min(LONGEST, len(code) // LEAST) + 1):
        differs = np.append(np.flatnonzero(code[:-period] != code[period:]), len(code) - period)
        last = differs[np.minimum(np.searchsorted(differs, positions), len(differs) - 1)]
        reach[period] = np.maximum(last - positions, 0)
    position = 0
    while position < len(code):
        saved = {period: int(lengths[position]) // period * period for period, lengths in reach.items()}
        loop = None
        for period in sorted(saved, key=lambda period: (-saved[period], period)):
            if saved[period] < max(SAVED, period * (LEAST - 1)):
                continue
            loop = _turned(forms, position, period, int(reach[period][position]) + period)
            if loop is not None:
                break
        if loop is None:
            position += 1
            continue
        yield loop
        position = loop.behind


def _turned(forms: Sequence[CallForm], first: int, period: int, length: int) -> CallLoop | None:
    """The loop that begins where the fewest sizes differ; None if they are too many.

    Rounds of experts do not begin with any call: begun in the middle of an expert's, each round would have
    the sizes of two.

    Args:
        forms: of all calls.
        first: call from which on they repeat.
        period: calls of a round.
        length: calls from there on that repeat.
    """
    if not any(call_form.called for call_form in forms[first : first + period]):
        return None
    candidates = []
    for turn in range(period):
        rounds = (length - turn) // period
        if rounds >= LEAST:
            loop = CallLoop(first + turn, period, rounds)
            sizes = {values for column in columns(forms, loop) for values in column}
            candidates.append((sum(len(set(values)) > 1 for values in sizes), -rounds, loop))
    fewest = min(candidates)
    return fewest[2] if fewest[0] <= MOST_SIZES else None


def _alike(argument: Any, numbers: list[int]) -> Any:
    if isinstance(argument, TensorArgument):
        stride = () if argument.is_dense else argument.stride
        parts = tuple(_alike(part, numbers) for part in (*argument.shape, *stride, *argument.maker_args))
        return argument.dtype, argument.maker, len(argument.shape), argument.is_dense, parts
    if isinstance(argument, list | tuple):
        return "list", *(_alike(part, numbers) for part in argument)
    if isinstance(argument, int) and not isinstance(argument, bool):
        numbers.append(argument)
        return "number"
    return repr(argument)


def with_numbers(argument: Any, numbers: Iterator[int]) -> Any:
    """The argument with other numbers, in the order of CallForm.numbers."""
    if isinstance(argument, TensorArgument):
        shape = with_numbers(argument.shape, numbers)
        stride = dense(shape) if argument.is_dense else with_numbers(argument.stride, numbers)
        maker_args = with_numbers(argument.maker_args, numbers)
        return replace(argument, shape=shape, stride=stride, maker_args=maker_args)
    if isinstance(argument, list | tuple):
        return type(argument)(with_numbers(part, numbers) for part in argument)
    if isinstance(argument, int) and not isinstance(argument, bool):
        return next(numbers)
    return argument
