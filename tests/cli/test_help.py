"""Help pages: as wide as the terminal, types as words, and examples that can be copied."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator

import pytest
import typer

from tracelens.cli import command_line, run

Page = Callable[..., str]


@pytest.fixture
def page(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Page:
    """The help of a command in a terminal of some width."""

    def text(*words: str, width: int = 100) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        assert run([*words, "--help"]) == 0
        return capfd.readouterr().out

    return text


def paths_of_commands(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command and group below one."""
    yield path
    context = typer.Context(command)  # type: ignore[arg-type]
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from paths_of_commands(command.get_command(context, name), (*path, *name.split()))


COMMANDS = list(paths_of_commands(command_line()))
OF_REPLAY = ("replay",), ("replay", "write"), ("replay", "verify")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_pages_keep_to_the_width_and_name_types_as_words(
    words: tuple[str, ...], width: int, page: Page
) -> None:
    shown = page(*words, width=width)
    assert max(map(len, shown.splitlines())) <= min(width, 120) or width == 60
    assert not re.search(r"\bTEXT\b|<\w|str\b\]|\bFLOAT\b|[{}]", shown)
    assert shown.count("Usage:") == 1


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("width", [50, 58, 78, 98, 118])
def test_pages_are_laid_out_as_typer_does(words: tuple[str, ...], width: int) -> None:
    command = command_line()
    # A command keeps the names of its help option from the first context that asks.
    context = typer.Context(command, info_name="tracelens", help_option_names=["-h", "--help"])
    while words:
        length = 2 if words[:2] == ("gate", "baseline") else 1
        name, words = " ".join(words[:length]), words[length:]
        command = command.get_command(context, name)
        context = typer.Context(command, parent=context, info_name=name)
    table = getattr(command, "table", None)
    page = (command.page(context) if table is None else table.page(context.command_path))._replace(
        examples=()
    )
    formatter = context.make_formatter()
    formatter.width = width
    formatter.write_usage(page.path, page.arguments)
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(page.text)
    for heading, rows in page.sections.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows, col_max=min(34, width // 3))
    assert page.laid_out(width) == formatter.getvalue().rstrip("\n")


def test_a_wide_terminal_is_used(page: Page) -> None:
    assert 100 < max(map(len, page("report", width=200).splitlines())) <= 120


@pytest.mark.parametrize(
    "words", [words for words in COMMANDS if words != ("gate", "baseline")], ids=" ".join
)
def test_examples_are_commands_that_parse(words: tuple[str, ...], page: Page) -> None:
    _, examples = page(*words, width=60).split("\nExamples:\n")
    commands = [shlex.split(line) for line in examples.replace("\\\n", " ").splitlines()]
    assert commands
    for name, *arguments in commands:
        assert name == "tracelens"
        command = command_line()
        command.make_context("tracelens", list(arguments), resilient_parsing=False).close()
        assert all(
            option in page(*arguments[: _depth(arguments)], width=200) for option in _options(arguments)
        )


def _depth(arguments: list[str]) -> int:
    """How many of the words name the command."""
    return max(len(words) for words in COMMANDS if tuple(arguments[: len(words)]) == words)


def _options(arguments: list[str]) -> list[str]:
    return [word for word in arguments if word.startswith("-") and word != "--"]


def test_the_first_page_lists_every_command_in_one_line(page: Page) -> None:
    shown = page(width=80)
    for words in COMMANDS:
        if len(words) == 1:
            (line,) = re.findall(rf"^  {words[0]} {{2,}}\S.*$", shown, re.MULTILINE)
            assert len(line.split()) > 3
    starts = [line for line in shown.splitlines() if line.startswith("                 ")]
    assert not [line for line in starts if "  " not in line.strip() and line.index(line.strip()) < 20]


def test_options_stand_in_groups_where_there_are_many(page: Page) -> None:
    headings = re.findall(r"^(\S.*):$", page("gate"), re.MULTILINE)
    assert headings == ["Arguments", "Runs", "Rules", "Run", "Reading", "Output", "Other options", "Examples"]
    assert re.findall(r"^(\S.*):$", page("fuse"), re.MULTILINE) == ["Arguments", "Options", "Examples"]


def test_defaults_and_choices_are_shown(page: Page) -> None:
    shown = " ".join(page("workload", "run", width=120).split())
    assert "--experts loop|multistream|grouped" in shown
    assert "[default: loop]" in shown
    assert "--seq N Tokens per sequence. [default: as in --preset]" in shown
