"""Requests: what a command or a function of the API can be asked, each option declared once.

A request is a frozen dataclass. The field of an option has its name, its type and its default in Python; what
else is known of it stands in its `CommandOption`. From these are made the options of the command line
(`tracelens.cli.command`), the function of the API (`function_of`) and its page in the reference. A request
also does the work: `answer`.

    class BubbleRequest(ApiRequest[Result], panel="Pipeline"):
        '''The idle share of a pipeline, in closed form.'''

        pp: int = option("Pipeline stages.", kw_only=False)
        seq: int = option("Tokens per sequence.", default=4096)

        def answer(self) -> Result: ...

    project_bubble = function_of("project_bubble", BubbleRequest)

An option whose annotation names what is imported for type checkers only says its type on the command line.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, dataclass_transform, get_args, get_type_hints

from msgspec import Struct

from tracelens.errors import TracelensError

P = ParamSpec("P")
R = TypeVar("R")
Texts = str | Sequence[str]
StrPath = str | os.PathLike[str]
Progress = Callable[[str], None]
"""Called with a line of text before each part of the work."""

RUN, DEVICE, READING, OUTPUT = "Run", "Device", "Reading", "Output"
"""Groups of options that several commands have; they follow a command's own groups, in this order."""


class CommandOption(NamedTuple):
    """What is known of an option beside the name, type and default of its field."""

    help: str
    panel: str = ""  # heading of its group in a help page
    doc: str = ""  # what Python's documentation says instead of the help
    name: str = ""  # on the command line, where it is not that of the field
    flags: tuple[str, ...] = ()  # where they are not --name, or -o and --output
    type: Any = None  # on the command line, where Python allows more
    convert: Callable[[Any], Any] | None = None  # from a value of the command line to one of Python
    shown: str | None = ""  # instead of the default in a help page; None for nothing
    metavar: str | None = None  # N for whole numbers
    min: float | None = None
    max: float | None = None
    # words, a function, or the name of one in `tracelens.cli.completion`
    complete: str | tuple[str, ...] | Callable[..., list[str]] = ()
    argument: bool = False  # whether it is named by its place
    hidden: bool = False
    file: CommandOption | None = None  # names a TOML file instead, as `--name-file`


def option(
    text: str | CommandOption, panel: str = "", *, default: Any = MISSING, kw_only: bool = True, **known: Any
) -> Any:
    """A field that is an option: its help or another option, and what else differs of its `CommandOption`."""
    if panel:
        known["panel"] = panel
    made = text._replace(**known) if isinstance(text, CommandOption) else CommandOption(help=text, **known)
    return field(default=default, kw_only=kw_only, metadata={"option": made})


def keyword(doc: str, *, default: Any = MISSING, kw_only: bool = True) -> Any:
    """A field that the command line does not have."""
    return field(default=default, kw_only=kw_only, metadata={"option": doc})


def quiet(_: str) -> None:
    """Report no progress."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option, keyword, field))
class OptionGroup:
    """Some options, which requests share by inheriting them; every subclass is a frozen dataclass."""

    def __init_subclass__(cls, panel: str = "", **more: Any) -> None:
        """Args: panel: heading of the options that name none."""
        super().__init_subclass__(**more)
        for item in vars(cls).values():
            declared = getattr(item, "metadata", {}).get("option")
            if isinstance(declared, CommandOption) and not declared.panel:
                item.metadata = {"option": declared._replace(panel=panel)}
        # Nobody compares or prints requests, and a command has a dozen of these classes to make.
        dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)

    def values(self, *names: str) -> dict[str, Any]:
        """Some of the options by name."""
        return {name: getattr(self, name) for name in names}


class ApiRequest(OptionGroup, Generic[R]):
    """Options, and what answers them."""

    def answer(self) -> R:
        """The answer."""
        raise NotImplementedError


class Declared(Struct, frozen=True):
    """A parameter of a command."""

    name: str
    kind: Any
    default: Any  # MISSING where it must be named
    option: CommandOption


# How the command line writes what Python takes in several forms.
_WRITTEN = {
    Texts: list[str] | None,
    StrPath: str,
    StrPath | None: str | None,
    str | int | None: str | None,
    StrPath | Sequence[StrPath]: list[str] | None,
}


def declared(options: type[OptionGroup]) -> Iterator[Declared]:
    """The parameters of a command that has these options."""
    for item in fields(options):  # type: ignore[arg-type]  # every subclass is a dataclass
        known = item.metadata["option"]
        if isinstance(known, CommandOption):
            if (kind := known.type) is None:
                home = next(
                    cls for cls in options.__mro__ if item.name in vars(cls).get("__annotations__", ())
                )
                alone = SimpleNamespace(__annotations__={item.name: item.type})
                annotation = get_type_hints(alone, vars(sys.modules[home.__module__]))[item.name]
                kind = _WRITTEN.get(annotation, annotation)
            default = None if NoneType in get_args(kind) else item.default
            yield Declared(known.name or item.name, kind, default, known)
            if known.file is not None:
                yield Declared(f"{known.name or item.name}_file", kind, default, known.file)


O = TypeVar("O", bound=OptionGroup)  # noqa: E741


def from_command_line(options: type[O], values: Mapping[str, Any]) -> O:
    """The options with these values by parameter; those that are None have Python's defaults.

    Raises:
        TracelensError: an option and its file are both named, but only one of them can be.
    """
    made = {}
    for item in fields(options):  # type: ignore[arg-type]  # every subclass is a dataclass
        known = item.metadata["option"]
        if not isinstance(known, CommandOption):
            continue
        name = known.name or item.name
        value = values[name]
        if known.file is not None and (files := values[f"{name}_file"]):
            if not isinstance(files, str):
                value = [*(value or ()), *map(Path, files)]
            elif value:
                raise TracelensError(f"--{name} and --{name}-file both name a {name}; pass only one")
            else:
                value = Path(files)
        if value is not None:
            made[item.name] = known.convert(value) if known.convert else value
        elif item.default is MISSING:
            made[item.name] = () if known.type == list[str] | None else None
    return options(**made)


def function_of(name: str, request: Callable[P, ApiRequest[R]]) -> Callable[P, R]:
    """The function of the API that answers a request: its arguments are the options, also in its text."""

    def function(*args: P.args, **kwargs: P.kwargs) -> R:
        return request(*args, **kwargs).answer()

    known = {item.name: item.metadata["option"] for item in fields(request)}  # type: ignore[arg-type]
    signature = inspect.signature(request)
    head, results, rest = (inspect.getdoc(request) or "").partition("\nReturns:\n")
    if not results:
        head, results, rest = head.partition("\nRaises:\n")
    arguments = [_argument(name, known[name]) for name in signature.parameters]
    function.__name__ = function.__qualname__ = name
    function.__module__ = request.__module__
    function.__doc__ = "\n".join([head.rstrip(), "", "Args:", *arguments, results + rest]).rstrip()
    returned = request.answer.__annotations__["return"]  # type: ignore[attr-defined]
    function.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
    function.request = request  # type: ignore[attr-defined]
    return function


def _argument(name: str, known: CommandOption | str) -> str:
    """Its line in a docstring; a help text begins with a small letter there, unless it is a name."""
    text = known if isinstance(known, str) else known.doc
    if isinstance(known, CommandOption) and not text:
        text = known.help.removesuffix(" Repeatable.")
        text = text if re.match(r"\w[A-Z0-9]|\w+[A-Z]", text) else text[:1].lower() + text[1:]
    return textwrap.fill(f"{name}: {text}", 106, initial_indent="    ", subsequent_indent="        ")
