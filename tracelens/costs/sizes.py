"""One run of a cost model for many calls that differ in sizes alone.

A loop over experts calls each op with as many different numbers of rows as there are experts and layers.
`Sizes` stands where such calls have different numbers, and calculates with all of them: exactly, since they
stay Python's integers. A comparison has an answer where it is the same for all calls; where it is not, the
calls part, and those of each answer are counted for themselves.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, NoReturn

Binary = Callable[[Any, Any], Any]


class Differ(Exception):
    """A model asks what the calls answer differently."""

    def __init__(self, answers: list[bool]) -> None:
        super().__init__("calls differ in what a cost model does with them")
        self.answers = answers  # of each call


class Sizes:
    """A number of each of several calls.

    Arithmetic, comparisons and truth are those of integers. Whatever else a model may do with a size, such as
    writing it into a sentence, has no answer for all and raises TypeError.
    """

    __slots__ = ("each",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, each: Sequence[int]) -> None:
        self.each = each

    def _with(self, other: Any, function: Binary) -> Any:
        if isinstance(other, Sizes):
            return Sizes([*map(function, self.each, other.each)])
        return Sizes([*map(function, self.each, repeat(other))]) if type(other) is int else NotImplemented

    def _after(self, other: Any, function: Binary) -> Any:
        return Sizes([*map(function, repeat(other), self.each)]) if type(other) is int else NotImplemented

    def _all(self, other: Any, function: Binary) -> Any:
        if not isinstance(other, Sizes | int):
            return NotImplemented
        return _agreed([*map(function, self.each, other.each if isinstance(other, Sizes) else repeat(other))])

    def __add__(self, other: Any) -> Any:
        return self._with(other, operator.add)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, operator.sub)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, operator.mul)

    def __floordiv__(self, other: Any) -> Any:
        return self._with(other, operator.floordiv)

    def __mod__(self, other: Any) -> Any:
        return self._with(other, operator.mod)

    def __radd__(self, other: Any) -> Any:
        return self._after(other, operator.add)

    def __rsub__(self, other: Any) -> Any:
        return self._after(other, operator.sub)

    def __rmul__(self, other: Any) -> Any:
        return self._after(other, operator.mul)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._after(other, operator.floordiv)

    def __rmod__(self, other: Any) -> Any:
        return self._after(other, operator.mod)

    def __neg__(self) -> Sizes:
        return Sizes([-size for size in self.each])

    def __eq__(self, other: object) -> Any:
        return self._all(other, operator.eq)

    def __ne__(self, other: object) -> Any:
        return self._all(other, operator.ne)

    def __lt__(self, other: Any) -> Any:
        return self._all(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._all(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._all(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._all(other, operator.ge)

    def __bool__(self) -> bool:
        return _agreed([size != 0 for size in self.each])

    def __repr__(self) -> NoReturn:
        raise TypeError("the sizes of several calls have no text")


def _agreed(answers: list[bool]) -> bool:
    """The answer of all calls; raises Differ."""
    if all(answers):
        return True
    if any(answers):
        raise Differ(answers)
    return False


def merged(entries: Sequence[Any]) -> Any:
    """Nested lists of one structure as one of them, with `Sizes` where their integers differ.

    Raises:
        TypeError: they differ in more than integers.
    """
    first = entries[0]
    if entries.count(first) == len(entries):
        return first
    if all(type(entry) is int for entry in entries):
        return Sizes(entries)
    lengths = {len(entry) if type(entry) is list else -1 for entry in entries}
    if len(lengths) > 1 or -1 in lengths:
        raise TypeError("calls differ in more than sizes")
    return [merged(column) for column in zip(*entries, strict=True)]


def each(value: Any, count: int) -> Iterator[Any]:
    """What stands in a result for each of so many calls: tuples with `Sizes`, or anything that all share."""
    if isinstance(value, Sizes):
        return iter(value.each)
    if isinstance(value, tuple) and any(isinstance(item, Sizes | tuple) for item in value):
        return zip(*(each(item, count) for item in value), strict=True)
    return repeat(value, count)
