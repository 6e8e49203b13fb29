"""The typer app of all commands: reads any command line, completes words, and has the help page of a command.

A command is imported when it is chosen, or listed because a word is misspelt. Pages have options in groups,
types as words, and examples that can be copied line by line.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import MISSING
from functools import cache
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from tracelens.cli import completion
from tracelens.cli.command import Command, flags_of
from tracelens.cli.commands import (
    CANDIDATES,
    MAX_WIDTH,
    ROOT,
    CommandGroup,
    Home,
    Page,
    described,
    joined,
    version,
)
from tracelens.guard import DEBUG
from tracelens.session import DEVICE, OUTPUT, READING, RUN, Declared

_DEBUG = "--debug"

_FEW = 9
"""Up to so many options make one list."""


class PageCommand(TyperCommand):
    """A command with a help page of this kind."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(self.page(ctx).laid_out(formatter.width))

    def page(self, ctx: Any) -> Page:
        """Arguments and options, each group of options under its heading."""
        text, examples = described(self.help)
        params: list[Any] = [param for param in self.get_params(ctx) if not getattr(param, "hidden", False)]
        arguments = [param for param in params if isinstance(param, TyperArgument)]
        words = [_word(param, ctx) if param.required else f"[{_word(param, ctx)}]" for param in arguments]
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
        sections = {
            "Arguments": [(_word(param, ctx), _text(param, ctx)) for param in arguments],
            **groups,
            "Other options" if groups else "Options": rest,
        }
        table = getattr(ctx.parent.command, "table", None)
        named = ctx if table is None or table.default != self.name else ctx.parent
        return Page(named.command_path, " ".join(["[OPTIONS]", *words]), text, sections, examples)


class GateCommand(PageCommand):
    """BASE CAND, or BASE... -- CAND...; options may stand on either side of the --."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the place of the -- if there are bases before it."""
        if "--" in args:
            separator = args.index("--")
            before, after = args[:separator], args[separator + 1 :]
            if self.make_parser(ctx).parse_args(args=list(before))[0].get("paths"):
                args = [*before, CANDIDATES, *after]
        return super().parse_args(ctx, args)


class LazyGroup(TyperGroup):
    """A group that imports a command when it is chosen."""

    table: ClassVar[CommandGroup]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table.members)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        members = self.table.members
        # One that is misspelt may be meant to be any of them.
        for name in [cmd_name] if cmd_name in members else members:
            if name not in self.commands:
                self.commands[name] = _made(name, members[name])
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Treat arguments without a command as those of the default command."""
        if self.table.default and (not args or args[0] not in self.table.members):
            args = [self.table.default, *(args or ["--help"])]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(self.table.page(ctx.command_path).laid_out(formatter.width))


class RootCommands(LazyGroup):
    """The commands of `tracelens`."""

    table = ROOT

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept --debug in any position, and `gate baseline`, though `gate` itself takes paths."""
        own_options = args[: args.index("--")] if "--" in args else args
        if _DEBUG in own_options:
            _debug(True)  # parsing may fail, too
            args = [_DEBUG, *(text for text in own_options if text != _DEBUG), *args[len(own_options) :]]
        return super().parse_args(ctx, joined(args))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """RootCommands of one word."""
        return [item for item in super().shell_complete(ctx, incomplete) if " " not in item.value]


app = typer.Typer(
    cls=RootCommands,
    name="tracelens",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_WIDTH},
)


def _debug(enabled: bool) -> None:
    if enabled:
        os.environ[DEBUG] = "1"


def _version(enabled: bool) -> None:
    if enabled:
        typer.echo(version())
        raise typer.Exit


@app.callback(help=ROOT.doc)
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version, and which core runs."
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(_DEBUG, callback=_debug, help="Stop at the first internal error, with its traceback."),
    ] = False,
) -> None:
    """Options of all commands."""


@cache
def command_line() -> Any:
    """The app as a click command, made once for all that one process runs."""
    return typer.main.get_command(app)


def _made(name: str, member: Home | CommandGroup) -> Any:
    """A command or group as typer makes it."""
    own = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
    if isinstance(member, CommandGroup):
        group: Any = type(f"{name.title().replace(' ', '')}Commands", (LazyGroup,), {"table": member})
        own.callback(cls=group, help=member.doc, invoke_without_command=True)(_show_page)
    else:
        command = _function(member.command())
        own.command(name, cls=GateCommand if name == "gate" else PageCommand)(command)
    made = typer.main.get_command(own)
    made.name = name
    return made


def _show_page(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _function(command: Command) -> Callable[..., int | None]:
    """What typer reads of a command."""

    def called(**values: Any) -> int | None:
        return command.call(**values)

    called.__name__, called.__doc__ = command.name, command.doc
    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_parameter(item) for item in command.parameters]
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
        info = typer.Option(
            *flags_of(item),
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
