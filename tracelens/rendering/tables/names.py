"""Names of kernels, ops and shapes as a column shows them: demangled, shortened, and still different."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tracelens.rendering.tables.values import shorten
from tracelens.symbols import demangled

_HIDDEN = re.compile(r"\(anonymous namespace\)::|\bat::native::|^void ")
_NAMESPACES = re.compile(r"\b(?:\w+::)+(?=\w)")
_CONTEXT = 6
"""Characters of the word that is different, which stand before the difference."""


def shortened_names(texts: Sequence[str], width: int) -> list[str]:
    """The texts of a column in at most `width` characters each; different texts stay different.

    Mangled symbols are demangled. A text that is too long loses, one after the other and only until it fits,
    its parameters, the namespaces of its template arguments and all other namespaces, then its middle. Where
    two of the column would look the same, the middle that is kept is where they differ.
    """
    names = {text: _readable(text) for text in dict.fromkeys(texts)}
    if len({*names.values()}) < len(names):
        names = {text: text for text in names}
    folded = _folded(names, width)
    short = {text: shorten(name, width) for text, name in folded.items()}
    for alike in _alike(short):
        short |= _told_apart([(text, folded[text]) for text in alike], width)
    number = 1
    while repeated := [text for alike in _alike(short) for text in alike[1:]]:
        for text in repeated:
            number += 1
            short[text] = _numbered(folded[text], number, width)
    return [short[text] for text in texts]


def _readable(text: str) -> str:
    indent = len(text) - len(text.lstrip(" "))
    return text[:indent] + demangled(text[indent:])


def _folded(names: dict[str, str], width: int) -> dict[str, str]:
    """Names with less of what does not tell them apart; a step that makes two names one is not taken."""
    folded = dict(names)
    for fold in (_without_parameters, _without_inner_namespaces, _without_namespaces):
        long = {text: fold(name) for text, name in folded.items() if len(name) > width}
        merged = {text for alike in _alike(folded | long) for text in alike}
        folded |= {text: name for text, name in long.items() if text not in merged}
    return folded


def _alike(names: dict[str, str]) -> Iterable[list[str]]:
    """The keys whose names are the same, where there are several."""
    by_name: dict[str, list[str]] = {}
    for text, name in names.items():
        by_name.setdefault(name, []).append(text)
    return [texts for texts in by_name.values() if len(texts) > 1]


def _told_apart(names: list[tuple[str, str]], width: int) -> dict[str, str]:
    """Short texts of names that begin alike: the beginning, and a window where they differ."""
    short: dict[str, str] = {}
    groups = [names]
    while groups:
        group = dict(groups.pop())
        start = _common_length(list(group.values()))
        made = {text: _window(name, start, width) for text, name in group.items()}
        for alike in _alike(made):
            if len(alike) < len(group):  # these differ further behind
                groups.append([(text, group[text]) for text in alike])
        short |= made
    return short


def _common_length(names: Sequence[str]) -> int:
    """How many characters all begin with."""
    first, last = min(names), max(names)
    pairs = enumerate(zip(first, last, strict=False))
    return next((index for index, (a, b) in pairs if a != b), len(first))


def _window(name: str, start: int, width: int) -> str:
    """The beginning of a name and what follows from `start`, in `width` characters."""
    if len(name) <= width:
        return name
    head = max(width // 3, 1)
    word = re.search(r"\w*$", name[max(start - _CONTEXT, 0) : start])
    begin = start - len(word[0] if word else "")
    if begin <= head:
        return shorten(name, width)
    return f"{name[:head]}…{shorten(name[begin:], width - head - 1)}"


def _numbered(text: str, number: int, width: int) -> str:
    mark = f" #{number}"
    return f"{shorten(text, max(width - len(mark), 1))}{mark}"


def _without_parameters(name: str) -> str:
    """A C++ function with its template arguments and without its parameters and return type."""
    text = _HIDDEN.sub("", name)
    if not text.endswith(")"):
        return text
    depth = 0
    for index, char in enumerate(text):
        depth += (char == "<") - (char == ">")
        before = text[:index]
        if char == "(" and depth == 0 and before and not before.endswith((" ", "operator")):
            return before
    return text


def _without_inner_namespaces(name: str) -> str:
    function, bracket, arguments = name.partition("<")
    return f"{function}{bracket}{_NAMESPACES.sub('', arguments)}"


def _without_namespaces(name: str) -> str:
    return _NAMESPACES.sub("", name)
