"""Which of a trace's names fit a pattern; ranks of a job have the same names, so answers are kept."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from functools import cache

import numpy as np

from tracelens.arrays import Bool

STEP_MARK = re.compile(r"^ProfilerStep#\d+$")


def wildcards(text: str) -> re.Pattern[str]:
    """A pattern for whole names: * stands for anything, ? for one letter, [ab] for one of these."""
    return re.compile(r"\A" + translate(text))


@cache
def _answers(_: re.Pattern[str]) -> dict[str, bool]:
    """What has been asked of a pattern."""
    return {}


def matching(names: Iterable[str], pattern: re.Pattern[str]) -> Bool:
    """Of each name, whether the pattern is found in it."""
    known = _answers(pattern)
    matches = []
    for name in names:
        answer = known.get(name)
        if answer is None:
            answer = known[name] = pattern.search(name) is not None
        matches.append(answer)
    return np.array(matches, dtype=bool)
