"""Which work differs in the number of its rows alone, as experts' GEMMs do with the tokens they get."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from tracelens.analysis.stragglers.segments import Key
from tracelens.arrays import Int

_SHAPE = re.compile(r"\[([\d,]+)\]")


def families(keys: Sequence[Key]) -> Int:
    """The family of each key: keys of one op whose arguments are the same but for one size.

    `bf16[96,64] bf16[64,64]` and `bf16[32,64] bf16[64,64]` are of a family, and so are `bf16[64,96]
    bf16[96,64]` and `bf16[64,32] bf16[32,64]`: one size may be in several places. Kernels without arguments
    are told by their name, whatever the number of their blocks.
    """
    shared: Counter[tuple[str, str]] = Counter()
    forms = [sorted(set(_forms(key))) for key in keys]
    for of_key in forms:
        shared.update(of_key)
    code: dict[tuple[str, str], int] = {}
    return np.array(
        [code.setdefault(max(of_key, key=lambda form: shared[form]), len(code)) for of_key in forms],
        dtype=np.int64,
    )


def _forms(key: Key) -> Iterator[tuple[str, str]]:
    """What a key may share with others of its family: its arguments with one of their sizes left open."""
    yield key.op, key.arguments or key.kernel.partition(" x ")[0]
    shapes = [shape.split(",") for shape in _SHAPE.findall(key.arguments)]
    for size in {size for shape in shapes for size in shape}:
        fixed = {part for shape in shapes for part in shape} - {size, "1"}
        # Something must be left that tells one weight from another.
        if fixed:
            yield key.op, re.sub(rf"(?<=[\[,]){size}(?=[\],])", "*", key.arguments)
