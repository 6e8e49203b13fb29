"""Plain command lines are read without typer, to the values that typer reads."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Literal, get_args, get_origin

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.exceptions import TyperException

from tests.effort import effort
from tracelens.cli import (
    ROOT,
    Command,
    CommandGroup,
    Home,
    chosen,
    command_line,
    described,
    flags_of,
    without_none,
)
from tracelens.session import Declared


def homes(group: CommandGroup = ROOT, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Home]]:
    """All commands by the words that name them."""
    for name, member in group.members.items():
        if isinstance(member, Home):
            yield (*words, name), member
        else:
            yield from homes(member, (*words, name))


HOMES = dict(homes())


HELP = ["-h", "--help"]


@cache
def of_typer(path: tuple[str, ...]) -> Any:
    """The command that typer makes."""
    made = command_line()
    for name in path:
        made = made.get_command(typer.Context(made), name)
    return made


def read_by_typer(path: tuple[str, ...], command: Command, words: Sequence[str]) -> dict[str, Any] | None:
    """The values that typer reads; None for a line that it refuses."""
    try:
        # A command keeps the names of its help option from the first context that asks.
        with of_typer(path).make_context(path[-1], list(words), help_option_names=HELP) as context:
            values = dict(context.params)
    except (TyperException, typer.Exit):
        return None
    for item in command.parameters:
        if isinstance(values[item.name], list | tuple):  # as the function gets it
            values[item.name] = list(values[item.name]) or item.default
    return values


def texts(item: Declared) -> st.SearchStrategy[str]:
    """Values of an option: right ones, and some that only typer can judge."""
    kind = without_none(item.kind)
    right: st.SearchStrategy[str] = st.sampled_from(["a", "b.json", "x=1", "dir/", "-", "2", "ü"])
    if get_origin(kind) is Literal:
        right = st.sampled_from(get_args(kind))
    elif kind in (int, float):
        whole = st.integers(-1, 40).map(str)
        right = whole | whole | st.floats(-1, 40).map(lambda number: f"{number:.3f}")
    return (
        right
        | right
        | right
        | st.sampled_from(["", "--", "-1", "1_0", "007", "1e3", ".5", "5.", "nan", "٣", "--json"])
    )


@st.composite
def lines(draw: st.DrawFn, command: Command) -> list[str]:
    """Command lines of a command, most of them right."""
    words: list[str] = []
    for item in command.parameters:
        needed = item.default is not None and not isinstance(item.default, str | int | float)
        for _ in range(draw(st.integers(0, 2)) if draw(st.integers(0, 9)) == 0 else int(needed)):
            text = draw(texts(item))
            if item.option.argument:
                words.append(text)
                continue
            flag = draw(st.sampled_from(flags_of(item)))
            if without_none(item.kind) is bool:
                words.append(flag)
            else:
                words += [f"{flag}={text}"] if draw(st.booleans()) else [flag, text]
    return words


OFTEN = {("report",), ("analyze",), ("diff",), ("gate",), ("project", "whatif"), ("project", "memory")}
"""Commands that between them have every kind of option; lines of the others are drawn slowly."""


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path in OFTEN else pytest.mark.slow) for path in HOMES],
    ids=" ".join,
)
def test_a_plain_line_has_the_values_that_typer_reads(path: tuple[str, ...]) -> None:
    command = HOMES[path].command()
    plain = 0

    @settings(max_examples=effort(60, 100), deadline=None, derandomize=True)
    @given(lines(command))
    def check(words: list[str]) -> None:
        nonlocal plain
        if (values := command.values(words)) is not None:
            plain += 1
            assert values == read_by_typer(path, command, words)

    check()
    assert plain > 3


@pytest.mark.parametrize("path", HOMES, ids=" ".join)
def test_examples_are_plain(path: tuple[str, ...]) -> None:
    command = HOMES[path].command()
    _, examples = described(command.doc)
    assert examples
    for example in examples:
        _, member, words = chosen(shlex.split(example)[1:])
        if "--" in words:
            continue  # its place counts
        assert isinstance(member, Home)
        assert member.command().values(words) is not None, example


@pytest.mark.parametrize("path", HOMES, ids=" ".join)
def test_the_page_of_a_group_says_of_a_command_what_its_own_says(path: tuple[str, ...]) -> None:
    text, _ = described(HOMES[path].command().doc)
    assert HOMES[path].summary == text.partition("\n\n")[0].replace("\n", " ").rstrip(".")


def test_the_first_page_has_the_options_that_typer_has() -> None:
    made = command_line.__wrapped__()  # it keeps the help option of the context that asks first
    params = made.get_params(typer.Context(made, help_option_names=HELP))
    assert [(", ".join(sorted(param.opts, key=len)), param.help) for param in params] == list(ROOT.options)
