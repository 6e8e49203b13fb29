"""Where calls repeat each other but for some sizes, as those of experts in a loop do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.reproducers.inputs import Argument, Tensor, dense

LONGEST, LEAST, SAVED = 96, 3, 4
"""A round has so many calls at most; a loop so many rounds at least, and so many calls fewer than without."""

MOST_SIZES = 3
"""So many sizes may differ from round to round."""


class Form(NamedTuple):
    """A call.

    Attributes:
        alike: what the same call in other rounds has, too; equal or not.
        numbers: sizes and other whole numbers, which may differ.
        called: whether it is a call at all.
    """

    alike: Any
    numbers: list[int]
    called: bool


class Loop(NamedTuple):
    """Calls first to first + period * rounds - 1, those of each round like those of the one before."""

    first: int
    period: int
    rounds: int

    @property
    def behind(self) -> int:
        return self.first + self.period * self.rounds


def flows(argument: Argument) -> bool:
    """Whether an argument may be the result of another call: floating point, and any value does."""
    return (
        isinstance(argument, Tensor)
        and argument.maker == "strided"
        and argument.dtype.startswith(("float", "bfloat"))
    )


def form(name: tuple[str, ...], arguments: Sequence[Argument] | None) -> Form:
    """The form of a call, which in all rounds has the same name."""
    numbers: list[int] = []
    alike = None if arguments is None else tuple(_alike(argument, numbers) for argument in arguments)
    return Form((name, alike), numbers, arguments is not None)


def columns(forms: Sequence[Form], loop: Loop) -> list[list[tuple[int, ...]]]:
    """Of each call of the first round its numbers, each with what it is in the other rounds."""
    sizes = [call_form.numbers for call_form in forms[loop.first : loop.behind]]
    return [list(zip(*sizes[call :: loop.period], strict=True)) for call in range(loop.period)]


def loops(forms: Sequence[Form]) -> Iterator[Loop]:
    """The loops in a list of calls, in order; of two that overlap the first."""
    numbers = {
        alike: number for number, alike in enumerate(dict.fromkeys(call_form.alike for call_form in forms))
    }
    code = np.array([numbers[call_form.alike] for call_form in forms], dtype=np.int64)
    reach = {period: _reach(code, period) for period in range(1, min(LONGEST, len(code) // LEAST) + 1)}
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


def _reach(code: Int, period: int) -> Int:
    """For how many calls from each one on the call a period later is alike."""
    differs = np.append(np.flatnonzero(code[:-period] != code[period:]), len(code) - period)
    positions = np.arange(len(code))
    last = differs[np.minimum(np.searchsorted(differs, positions), len(differs) - 1)]
    reach: Int = np.maximum(last - positions, 0)
    return reach


def _turned(forms: Sequence[Form], first: int, period: int, length: int) -> Loop | None:
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
            loop = Loop(first + turn, period, rounds)
            sizes = {values for column in columns(forms, loop) for values in column}
            candidates.append((sum(len(set(values)) > 1 for values in sizes), -rounds, loop))
    fewest = min(candidates)
    return fewest[2] if fewest[0] <= MOST_SIZES else None


def _plain(tensor: Tensor) -> bool:
    """Whether its strides follow from its shape and are not said."""
    return flows(tensor) and tensor.stride == dense(tensor.shape)


def _alike(argument: Any, numbers: list[int]) -> Any:
    if isinstance(argument, Tensor):
        plain = _plain(argument)
        stride = () if plain else argument.stride
        parts = tuple(_alike(part, numbers) for part in (*argument.shape, *stride, *argument.maker_args))
        return argument.dtype, argument.maker, len(argument.shape), plain, parts
    if isinstance(argument, list | tuple):
        return "list", *(_alike(part, numbers) for part in argument)
    if isinstance(argument, int) and not isinstance(argument, bool):
        numbers.append(argument)
        return "number"
    return repr(argument)


def with_numbers(argument: Any, numbers: Iterator[int]) -> Any:
    """The argument with other numbers, in the order of Form.numbers."""
    if isinstance(argument, Tensor):
        shape = with_numbers(argument.shape, numbers)
        stride = dense(shape) if _plain(argument) else with_numbers(argument.stride, numbers)
        maker_args = with_numbers(argument.maker_args, numbers)
        return replace(argument, shape=shape, stride=stride, maker_args=maker_args)
    if isinstance(argument, list | tuple):
        return type(argument)(with_numbers(part, numbers) for part in argument)
    if isinstance(argument, int) and not isinstance(argument, bool):
        return next(numbers)
    return argument
