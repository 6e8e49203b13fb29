"""Two sides are compared like with like, or not at all."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from tracelens.analysis.common import Setup
from tracelens.errors import TracelensError
from tracelens.table import Skip

MUST_AGREE = ("device", "ranks", "model")
"""What makes two runs incomparable where it differs, unless allowed; other differences are notes."""


def check_alike(
    base: Sequence[tuple[str, Setup]], candidate: Sequence[tuple[str, Setup]], allow: Collection[str] = ()
) -> Iterator[Skip]:
    """How the runs of two sides (name, setup) differ in what they are; what only one of them tells is left.

    Args:
        base: its runs.
        candidate: its runs.
        allow: of MUST_AGREE, what may differ.

    Raises:
        TracelensError: `allow` names something else, or what must agree differs.
    """
    if unknown := [name for name in allow if name not in MUST_AGREE]:
        raise TracelensError(f"--allow {unknown[0]}: not one of {', '.join(MUST_AGREE)}")
    first_name, first = base[0]
    reported = set()
    for name, setup in [*base[1:], *candidate]:
        for aspect, before, after in _differences(first, setup):
            if aspect in MUST_AGREE and aspect not in allow:
                raise TracelensError(
                    f"{first_name} and {name} cannot be compared: {aspect} {before} against {after}; "
                    f"compare runs of the same {aspect}, or pass --allow {aspect} (allow=['{aspect}'])"
                )
            if (aspect, before, after) not in reported:
                reported.add((aspect, before, after))
                yield Skip(f"same {aspect} on both sides", f"{before} against {after}")


def _differences(base: Setup, candidate: Setup) -> Iterator[tuple[str, str, str]]:
    """(aspect, value of the base, value of the candidate) of what both tell and differ in."""
    for aspect in ("device", "ranks", "model", "layout", "dtype", "tokens", "software"):
        before, after = getattr(base, aspect), getattr(candidate, aspect)
        if not before or not after or before == after:
            continue
        if isinstance(before, Mapping):
            keys = [key for key in before if key in after and before[key] != after[key]]
            if not keys:
                continue
            before, after = (", ".join(f"{key} {side[key]}" for key in keys) for side in (before, after))
        yield aspect, str(before), str(after)
