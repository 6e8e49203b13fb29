"""Sets of toggles in which any two values stand together at least once, as far as they fit together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product

Values = dict[str, object]
"""A value for each of some toggles."""

Pair = frozenset[tuple[str, object]]


def pairs_of(values: Mapping[str, object]) -> set[Pair]:
    """Any two of the values."""
    return {frozenset(pair) for pair in combinations(values.items(), 2)}


def all_pairs(choices: Mapping[str, Sequence[object]]) -> set[Pair]:
    """Any two values of different toggles."""
    return {
        frozenset(((one, a), (other, b)))
        for one, other in combinations(choices, 2)
        for a, b in product(choices[one], choices[other])
    }


def pairwise(choices: Mapping[str, Sequence[object]], fits: Callable[[Values], bool]) -> list[Values]:
    """Few combinations that hold all pairs which fit; always the same for the same choices.

    Greedy: each begins with a pair that is still missing and takes, toggle by toggle, the value that adds
    most missing pairs among those with which it can still be completed.

    Args:
        choices: the values of each toggle, its default first.
        fits: whether a complete combination is allowed.
    """
    missing, found = all_pairs(choices), list[Values]()
    order = sorted(missing, key=lambda pair: sorted(map(repr, pair)))
    for pair in order:
        if pair not in missing:
            continue
        values = _complete(dict(sorted(pair)), choices, fits, missing)
        if values is None:
            missing.discard(pair)  # these two never fit together
            continue
        missing -= pairs_of(values)
        found.append(values)
    return found


def _complete(
    values: Values,
    choices: Mapping[str, Sequence[object]],
    fits: Callable[[Values], bool],
    missing: set[Pair],
) -> Values | None:
    """The combination that begins so, or None where there is none."""
    open_toggles = [name for name in choices if name not in values]
    if not open_toggles:
        return values if fits(values) else None
    name = open_toggles[0]

    def gain(value: object) -> int:
        return len(missing & {frozenset(((name, value), item)) for item in values.items()})

    for value in sorted(choices[name], key=gain, reverse=True):  # stable: the default wins a tie
        done = _complete({**values, name: value}, choices, fits, missing)
        if done is not None:
            return done
    return None
