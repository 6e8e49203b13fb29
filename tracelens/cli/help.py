"""Help pages: options in groups, types as words, and examples that can be copied line by line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

WIDTH = 120
"""Columns of a page at most; on a narrower terminal, as many as that has."""

RUN, DEVICE, READING, OUTPUT = "Run", "Device", "Reading", "Output"
"""Groups of options that several commands have; they follow a command's own groups, in this order."""

_FEW = 9
"""Up to so many options make one list."""

_NAME_COLUMNS = 34
_EXAMPLES = re.compile(r"^Examples:\n", re.MULTILINE)
_WORDS = {int: "NUMBER", float: "NUMBER"}


class _Page:
    """What commands and groups share: the layout of their help."""

    help: str | None

    def collect_usage_pieces(self: Any, ctx: Any) -> list[str]:
        """`[OPTIONS] PATH...`, with brackets around what may be left out."""
        words = [_word(param, ctx) for param in self.params if isinstance(param, TyperArgument)]
        required = [param.required for param in self.params if isinstance(param, TyperArgument)]
        pieces = [word if needed else f"[{word}]" for word, needed in zip(words, required, strict=True)]
        commands = [self.subcommand_metavar] if isinstance(self, TyperGroup) else []
        return ["[OPTIONS]", *pieces, *commands]

    def format_help_text(self: Any, ctx: Any, formatter: Any) -> None:
        """The docstring up to its examples."""
        if text := _description(self.help):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(text)

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        """Arguments, commands and options, each group of options under its heading."""
        params = [param for param in self.get_params(ctx) if not param.hidden]
        arguments = [param for param in params if isinstance(param, TyperArgument)]
        _section("Arguments", [(_word(param, ctx), _text(param, ctx)) for param in arguments], formatter)
        if isinstance(self, TyperGroup):
            commands = _commands(self, ctx)
            width = max((len(name) for rows in commands.values() for name, _ in rows), default=0)
            for heading, rows in commands.items():
                _section(heading, [(name.ljust(width), text) for name, text in rows], formatter)
        options = [param for param in params if isinstance(param, TyperOption)]
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in options:
            heading = (len(options) > _FEW and param.rich_help_panel) or "Options"
            groups.setdefault(heading, []).append((_names(param, ctx), _text(param, ctx)))
        rest = groups.pop("Options", [])
        for heading in (RUN, DEVICE, READING, OUTPUT):
            groups |= {heading: groups.pop(heading)} if heading in groups else {}
        for heading, rows in groups.items():
            _section(heading, rows, formatter)
        _section("Other options" if groups else "Options", rest, formatter)

    def format_epilog(self: Any, ctx: Any, formatter: Any) -> None:
        """The examples of the docstring, each as it is typed."""
        if commands := _examples(self.help):
            with formatter.section("Examples"):
                for command in commands:
                    for line in _broken(command, formatter.width - 2):
                        formatter.write(f"  {line}\n")


class Command(_Page, TyperCommand):
    """A command with a help page of this kind."""


class Group(_Page, TyperGroup):
    """A group of commands with a help page of this kind."""


def _description(text: str | None) -> str:
    return _EXAMPLES.split(inspect.cleandoc(text or ""))[0].strip()


def _examples(text: str | None) -> list[str]:
    """The commands under "Examples:"; a line that is indented further continues the one before."""
    _, *block = _EXAMPLES.split(inspect.cleandoc(text or ""))
    commands: list[str] = []
    for line in inspect.cleandoc(block[0] if block else "").splitlines():
        if line.startswith(" ") and commands:
            commands[-1] += f" {line.strip()}"
        elif line:
            commands.append(line)
    return commands


def _broken(command: str, width: int) -> Iterator[str]:
    """A command in lines of a shell, broken before options."""
    line = ""
    for part in re.split(r" (?=-)", command):
        if line and len(line) + len(part) + 3 > width:
            yield f"{line} \\"
            line = f"    {part}"
        else:
            line = f"{line} {part}" if line else part
    yield line


def _section(heading: str, rows: list[tuple[str, str]], formatter: Any) -> None:
    if rows:
        with formatter.section(heading):
            formatter.write_dl(rows, col_max=min(_NAME_COLUMNS, formatter.width // 3))


def _commands(group: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Heading to rows of the commands there."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if not command.hidden:
            summary = _description(command.help).partition("\n\n")[0].replace("\n", " ")
            rows.setdefault(command.rich_help_panel or "Commands", []).append((name, summary.rstrip(".")))
    return rows


def _names(param: Any, ctx: Any) -> str:
    """`-o, --output PATH`."""
    names = ", ".join([*sorted(param.opts, key=len), *param.secondary_opts])
    return names if param.is_flag else f"{names} {_word(param, ctx)}"


def _word(param: Any, ctx: Any) -> str:
    """What stands for the value: its metavar, its choices, or a word for its type."""
    if param.metavar:
        return str(param.metavar)
    kind = param.type_descriptor
    if kind.is_choice:
        return str(param.display_type(ctx)).strip("<>").removeprefix("list[").removesuffix("]")
    word = _WORDS.get(kind.annotation, "PATH" if kind.is_path else "TEXT")
    return param.name.upper() if isinstance(param, TyperArgument) else word


def _text(param: Any, ctx: Any) -> str:
    """The help of a parameter, with its default and whether it is needed."""
    notes = []
    if isinstance(param.show_default, str):
        notes.append(f"default: {param.show_default}")
    elif param.show_default and (default := param._extract_default_help_str(ctx=ctx)) is not None:
        text = param._get_default_string(ctx=ctx, show_default_is_str=False, default_value=default)
        notes += [f"default: {text}"] if text else []
    notes += ["required"] if param.required and isinstance(param, TyperOption) else []
    return " ".join([param.help or "", f"[{', '.join(notes)}]"] if notes else [param.help or ""])
