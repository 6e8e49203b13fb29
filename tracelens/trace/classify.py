"""GPU kernel names and CPU op names to classes; the rules are data, in kernels.toml beside this file.

A C++ kernel name is up to 8,000 characters of template arguments that mention half the library, so the
rules never see it whole. They are asked in two steps:

1. a kernel that is only a shell (PyTorch's `elementwise_kernel`, CUTLASS's `device_kernel`, CK's `kentry`)
   is classified by its first template arguments, which name the functor it runs;
2. otherwise, or when no functor is known, by the function's own name.

Of all classes that match, the one of the most telling level wins; the levels are named in kernels.toml.
Two classes of one level make the kernel `fused`. Nothing depends on the order of rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from tracelens.bundled import bundled_toml
from tracelens.errors import SchemaError, UnknownName
from tracelens.symbols import qualified_name

WORK_KINDS: tuple[str, ...] = ("computation", "comm", "memcpy", "memset")
OPAQUE: frozenset[str] = frozenset({"fused", "other"})
"""Classes that tell nothing about the work: `classify_op` of the launching op may know better."""

_RULES_FILE = Path(__file__).with_name("kernels.toml")

# Own names are short and functors stand early; what follows is types and repeats.
_HEAD_CHARS = 640
_ARGUMENT_CHARS = 180
_OWN_CHARS = 160

_RETURN_TYPE = re.compile(r"(?:void |(?:typename )?(?:std::)?enable_if(?:<.*?>::type|_t<.*?>) )+")
_PARAMETERS = ("(at::", "(c10::", ">(")
# 128x256_64x4 of a GEMM says nothing about its class; without it hundreds of names are one.
_TILE_SIZES = re.compile(r"\d+(?:x\d+)+")
_AUTOGRAD_PREFIX = re.compile(r"^(?:autograd::engine::evaluate_function: )?(?:torch::autograd::)?")
_BACKWARD_SUFFIX = re.compile(r"(?:backward(?:data)?)?\d*$")


class KernelClass(Struct, frozen=True):
    """One class of kernels; `kind` is one of WORK_KINDS."""

    name: str
    kind: str
    doc: str


HostRole = Literal["", "bookkeeping", "composite", "copying"]
"""Where the host's ops are the work: `bookkeeping` is none, `composite` has it done by the ops inside,
`copying` is what other ops do on the way to theirs; see kernels.toml."""
_HOST_ROLES: tuple[HostRole, ...] = ("bookkeeping", "composite", "copying")

_Table = Literal["names", "functors", "ops"]
_Rule = tuple[int, str, re.Pattern[str]]
"""(level, class name, expression): the class matches where the expression is found."""


def classes() -> list[KernelClass]:
    """All classes, as listed in kernels.toml."""
    return list(_classes().values())


def compile_rules() -> None:
    """Compile what tells kernels, which takes as long as reading a small trace."""
    for table in ("names", "functors"):
        _compiled(table)


def kind_of(class_name: str) -> str:
    """The kind (one of WORK_KINDS) of a class; raises UnknownName."""
    known = _classes()
    if class_name not in known:
        raise UnknownName("kernel class", class_name, known)
    return known[class_name].kind


def classify_kernels(names: Sequence[str]) -> list[str]:
    """The class of each kernel name, in order.

    Event categories come first: a caller gives gpu_memcpy events `copy` and gpu_memset events `fill`
    without asking here.
    """
    found = map(matching_classes, names)
    return [matches[0] if len(matches) == 1 else "fused" if matches else "other" for matches in found]


def classify_op(name: str) -> str | None:
    """The class of the kernels that an op (aten::mm, MmBackward0, ...) launches, or None where unknown."""
    matches = matching_op_classes(name)
    return matches[0] if len(matches) == 1 else None


def collectives() -> tuple[str, ...]:
    """The collectives that `collective_of` tells apart."""
    return tuple(_file()["collectives"])


@cache
def collective_of(name: str) -> str:
    """The collective that a kernel, an op or a message's record is by its name; "" where it does not say."""
    function, _ = _function_name(name)
    fitting = [kind for kind, grammar in _grammars("collectives").items() if grammar.search(function)]
    return fitting[0] if len(fitting) == 1 else ""


def level_of(class_name: str) -> int:
    """The level of a class, 0 the most telling; raises UnknownName."""
    kind_of(class_name)
    levels: list[str] = _file()["levels"]
    return levels.index(_file()["class"][class_name]["level"])


def host_role(name: str) -> HostRole:
    """What kind of work an op of this name is where the host's ops are the work; "" for the usual kind."""
    grammars = _grammars("host")
    return next((role for role in _HOST_ROLES if grammars[role].search(name)), "")


@cache
def matching_classes(name: str) -> tuple[str, ...]:
    """The classes of the winning level for a kernel name; more than one is a tie, none is `other`."""
    function, arguments = _function_name(name)
    if arguments and function.rpartition("::")[2] in _file()["wrappers"]:
        winners = _winners("functors", arguments)
        if winners:
            return winners
    return _winners("names", function)


def matching_op_classes(name: str) -> tuple[str, ...]:
    """The classes of the winning level for an op name; more than one is a tie, none is unknown."""
    return _winners("ops", _plain_op(name))


def _plain_op(name: str) -> str:
    """`aten::_foo_backward` as aten::foo, `FooBackward0` as foo."""
    text = _AUTOGRAD_PREFIX.sub("", name).lower().replace("_", "").replace(" ", "")
    return _BACKWARD_SUFFIX.sub("", text)


@cache
def _winners(table: _Table, text: str) -> tuple[str, ...]:
    """Names of the matching classes of the first level that has any, sorted."""
    winners: list[str] = []
    winning = -1
    for level, name, pattern in _compiled(table):
        if winners and level != winning:
            break
        if pattern.search(text):
            winners.append(name)
            winning = level
    return tuple(sorted(winners))


def _function_name(name: str) -> tuple[str, str]:
    """(qualified function name, first template arguments) of a kernel name, both in lower case."""
    if name.startswith("_Z"):
        function, arguments = qualified_name(name)
    else:
        text = name[:_HEAD_CHARS].replace("(anonymous namespace)::", "").replace("at::native::", "")
        prefix = _RETURN_TYPE.match(text)
        start = prefix.end() if prefix else 0
        template, parameters = text.find("<", start), text.find("(", start)
        end = min((position for position in (template, parameters) if position >= 0), default=len(text))
        function = text[start:end].removesuffix(".kd").removesuffix(" [clone .kd]")
        arguments = text[end:] if end == template else ""
    # The first template arguments name the functor; where parameters begin are types and repeats.
    ends = [position for mark in _PARAMETERS if (position := arguments.find(mark, 0, _ARGUMENT_CHARS)) >= 0]
    functor = arguments[: min(ends, default=_ARGUMENT_CHARS)]
    return _TILE_SIZES.sub("#", function[:_OWN_CHARS]).lower(), functor.lower()


@cache
def _file() -> dict[str, Any]:
    return bundled_toml(_RULES_FILE)


@cache
def _classes() -> dict[str, KernelClass]:
    """Name to class; raises SchemaError where kernels.toml gives a class an unknown kind or level."""
    classes: dict[str, KernelClass] = {}
    for name, entry in _file()["class"].items():
        if entry["kind"] not in WORK_KINDS or entry["level"] not in _file()["levels"]:
            raise SchemaError(f"kernels.toml: class {name!r} has an unknown kind or level")
        classes[name] = KernelClass(name, entry["kind"], entry["doc"])
    return classes


@cache
def _grammars(section: Literal["collectives", "host"]) -> dict[str, re.Pattern[str]]:
    return {kind: re.compile("|".join(names)) for kind, names in _file()[section].items()}


@cache
def _compiled(table: _Table) -> tuple[_Rule, ...]:
    """The rules of one table, one alternation for each class, sorted by level."""
    levels: list[str] = _file()["levels"]
    rules = [
        (levels.index(entry["level"]), name, re.compile("|".join(entry[table])))
        for name, entry in _file()["class"].items()
        if table in entry
    ]
    return tuple(sorted(rules, key=lambda rule: rule[0]))
