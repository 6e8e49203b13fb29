"""Commands: made from requests, in groups that import a command when it is chosen, with help pages.

A page has options in groups, types as words, and examples that can be copied line by line.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING
from importlib import import_module
from typing import Annotated, Any, ClassVar, NamedTuple, NewType, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from tracelens.cli import completion
from tracelens.session import (
    DEVICE,
    OUTPUT,
    READING,
    RUN,
    CommandOption,
    Declared,
    declared,
    from_command_line,
)

WIDTH = 120
"""Columns of a page at most; on a narrower terminal, as many as that has."""

_FEW = 9
"""Up to so many options make one list."""

_NAME_COLUMNS = 34
_EXAMPLES = re.compile(r"^Examples:\n", re.MULTILINE)

Given = NewType("Given", frozenset[str])
"""Names of the options that have a value on the command line, as a parameter of a command."""


def command(
    function: Callable[..., None], settings: Mapping[str, CommandOption] | None = None
) -> Callable[..., None]:
    """The function that typer calls: it has the options of all parameters of `function`.

    These are annotated with subclasses of `OptionGroup`, or with `Given`; options of one name in several of
    them are one option of the command line. `settings` are passed on as texts by name.
    """
    hints = {
        name: kind for name, kind in get_type_hints(function).items() if name not in ("return", "settings")
    }
    known: dict[str, Declared] = {}
    for kind in hints.values():
        for item in declared(kind) if kind is not Given else ():
            known.setdefault(item.name, item)
    texts = {name: Declared(name, str | None, None, item) for name, item in (settings or {}).items()}

    def called(**values: Any) -> None:
        given = Given(frozenset(name for name in known if values[name]))
        made = {
            name: given if kind is Given else from_command_line(kind, values) for name, kind in hints.items()
        }
        if settings is not None:
            made["settings"] = {name: values[name] for name in settings if values[name] is not None}
        function(**made)

    called.__name__, called.__doc__ = function.__name__, function.__doc__
    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_parameter(item) for item in (known | texts).values()]
    )
    called.__annotations__ = {}
    return called


def _parameter(item: Declared) -> inspect.Parameter:
    """What typer reads of an option."""
    known = item.option
    words = completion.of(known.complete) if known.complete else None
    default = inspect.Parameter.empty if item.default is MISSING else item.default
    metavar = known.metavar or ("N" if item.kind in (int, int | None) else None)
    shared: dict[str, Any] = {"help": known.help, "metavar": metavar, "autocompletion": words}
    if known.argument:
        info = typer.Argument(show_default=False, **shared)
    else:
        flags = known.flags or ("-o" if item.name == "output" else "", f"--{item.name.replace('_', '-')}")
        info = typer.Option(
            *filter(None, flags),
            show_default=False if known.shown is None or (default in ("", None) and not known.shown)
            else known.shown or True,
            rich_help_panel=known.panel or None,
            min=known.min,
            max=known.max,
            hidden=known.hidden,
            **shared,
        )  # fmt: skip
    return inspect.Parameter(
        item.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[item.kind, info]
    )


class _Page:
    """What commands and groups share: the layout of their help."""

    help: str | None

    def collect_usage_pieces(self: Any, ctx: Any) -> list[str]:
        """`[OPTIONS] PATH...`, with brackets around what may be left out."""
        arguments = [param for param in self.params if isinstance(param, TyperArgument)]
        words = [_word(param, ctx) if param.required else f"[{_word(param, ctx)}]" for param in arguments]
        return ["[OPTIONS]", *words, *([self.subcommand_metavar] if isinstance(self, TyperGroup) else [])]

    def format_help_text(self: Any, ctx: Any, formatter: Any) -> None:
        """The docstring up to its examples."""
        if text := _description(self.help):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(text)

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        """Arguments, commands and options, each group of options under its heading."""

        def section(heading: str, rows: list[tuple[str, str]]) -> None:
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows, col_max=min(_NAME_COLUMNS, formatter.width // 3))

        params = [param for param in self.get_params(ctx) if not param.hidden]
        arguments = [param for param in params if isinstance(param, TyperArgument)]
        section("Arguments", [(_word(param, ctx), _text(param, ctx)) for param in arguments])
        if isinstance(self, TyperGroup):
            commands: dict[str, list[tuple[str, str]]] = {}
            for name in (names := self.list_commands(ctx)):
                child: Any = self.get_command(ctx, name)
                if not child.hidden:
                    summary = _description(child.help).partition("\n\n")[0].replace("\n", " ").rstrip(".")
                    rows = commands.setdefault(child.rich_help_panel or "Commands", [])
                    rows.append((name.ljust(max(map(len, names))), summary))
            for heading, rows in commands.items():
                section(heading, rows)
        options = [param for param in params if isinstance(param, TyperOption)]
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in options:
            heading = (len(options) > _FEW and param.rich_help_panel) or "Options"
            flags = ", ".join([*sorted(param.opts, key=len), *param.secondary_opts])
            names_and_value = flags if param.is_flag else f"{flags} {_word(param, ctx)}"
            groups.setdefault(heading, []).append((names_and_value, _text(param, ctx)))
        rest = groups.pop("Options", [])
        for heading in (RUN, DEVICE, READING, OUTPUT):
            groups |= {heading: groups.pop(heading)} if heading in groups else {}
        for heading, rows in groups.items():
            section(heading, rows)
        section("Other options" if groups else "Options", rest)

    def format_epilog(self: Any, ctx: Any, formatter: Any) -> None:
        """The examples of the docstring, as they are typed; an indented line continues the one before."""
        _, *block = _EXAMPLES.split(inspect.cleandoc(self.help or ""))
        commands: list[str] = []
        for line in inspect.cleandoc(block[0] if block else "").splitlines():
            if line.startswith(" ") and commands:
                commands[-1] += f" {line.strip()}"
            elif line:
                commands.append(line)
        if commands:
            with formatter.section("Examples"):
                for example in commands:
                    for line in _broken(example, formatter.width - 2):
                        formatter.write(f"  {line}\n")


class Command(_Page, TyperCommand):
    """A command with a help page of this kind."""


class CommandGroup(_Page, TyperGroup):
    """A group of commands with a help page of this kind."""


class Home(NamedTuple):
    """Where a command is."""

    module: str  # below tracelens.cli
    function: str  # that typer calls, or the typer app of a group
    heading: str | None = None  # in the help page of the group


class LazyGroup(CommandGroup):
    """A group that imports a command when it is chosen or listed."""

    homes: ClassVar[Mapping[str, Home]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.homes)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        # One that is misspelt may be meant to be any of them.
        for name in [cmd_name] if cmd_name in self.homes else self.homes:
            if name not in self.commands:
                home = self.homes[name]
                value = getattr(import_module(f"tracelens.cli.{home.module}"), home.function)
                if not isinstance(value, typer.Typer):
                    alone = group(None)
                    alone.command(name, cls=Command)(value)
                    value = alone
                made: Any = typer.main.get_command(value)
                made.name, made.rich_help_panel = name, home.heading
                self.commands[name] = made
        return super().get_command(ctx, cmd_name)


def group(cls: type[CommandGroup] | None, **known: Any) -> typer.Typer:
    """A typer app of this project's kind."""
    if cls is not None:
        known["cls"] = cls
    return typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False, **known)


def _description(text: str | None) -> str:
    return _EXAMPLES.split(inspect.cleandoc(text or ""))[0].strip()


def _broken(command_line: str, width: int) -> Iterator[str]:
    """A command in lines of a shell, broken before options."""
    line = ""
    for part in re.split(r" (?=-)", command_line):
        if line and len(line) + len(part) + 3 > width:
            yield f"{line} \\"
            line = f"    {part}"
        else:
            line = f"{line} {part}" if line else part
    yield line


def _word(param: Any, ctx: Any) -> str:
    """What stands for the value: its metavar, its choices, or a word for its type."""
    if param.metavar:
        return str(param.metavar)
    kind = param.type_descriptor
    if kind.is_choice:
        return str(param.display_type(ctx)).strip("<>").removeprefix("list[").removesuffix("]")
    word = "NUMBER" if kind.annotation is float else "PATH" if kind.is_path else "TEXT"
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
