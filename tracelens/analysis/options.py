"""Options of analyzers: their names, and the values that the annotations of their functions allow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from tracelens.analysis.analyzer import Analyzer, Shared, in_order, with_required
from tracelens.errors import WrongOption, suggestion


class Option(NamedTuple):
    """What is known of one option.

    Attributes:
        values: the only ones that it takes, () where that is not said.
        kinds: types of its values, () where that is not said.
        default: its value where nothing is given.
    """

    values: tuple[Any, ...]
    kinds: tuple[type, ...]
    default: Any

    def wrong(self, value: Any) -> str:
        """What it must be instead of `value`, "" where that is fine."""
        if self.values:
            if any(value == allowed and type(value) is type(allowed) for allowed in self.values):
                return ""
            known = [text for text in self.values if isinstance(text, str)]
            hint = suggestion(value, known) if isinstance(value, str) else ""
            must = f"must be {_either(list(map(repr, self.values)))}, not {value!r}"
            return f"{must}; {hint}" if hint else must
        if not self.kinds or isinstance(value, self.kinds):
            return ""
        return f"must be {_either([kind.__name__ for kind in self.kinds])}, not {value!r}"


def check_options(chosen: Sequence[Analyzer], options: Mapping[str, Any]) -> None:
    """Refuse options that no analyzer has, and values that one of them does not take.

    An option with its default value asks for nothing, so that one may be given to analyzers that lack it.

    Args:
        chosen: analyzers; options of those that they need count as theirs.
        options: of all of them.

    Raises:
        WrongOption: one line that names the analyzer, its options or the values, and the nearest right word.
    """
    known = _options(with_required(chosen))
    for name, value in options.items():
        if name not in known:
            others = _options(in_order())
            if name in others and (
                value is None or any(value == option.default for _, option in others[name])
            ):
                continue
            raise WrongOption(_no_option(chosen, name, sorted({*known, "step"})))
        if value is None:
            continue
        for analyzer, option in known[name]:
            if why := option.wrong(value):
                raise WrongOption(f"analyzer {analyzer!r}: {name} {why}")


def option_names(chosen: Sequence[Analyzer]) -> set[str]:
    """The options of these analyzers and of those that they need."""
    return {name for item in with_required(chosen) for name in item.options}


def _no_option(chosen: Sequence[Analyzer], name: str, known: Sequence[str]) -> str:
    hint = suggestion(name, known)
    hint = f"; {hint}" if hint else ""
    if len(chosen) == 1:
        return f"analyzer {chosen[0].name!r} has no option {name!r}{hint} (it has: {', '.join(known)})"
    return f"no analyzer of this report has an option {name!r}{hint} (available: {', '.join(known)})"


def _options(chosen: Sequence[Analyzer | Shared]) -> dict[str, list[tuple[str, Option]]]:
    """By name the options of these analyzers, each with the analyzer that has it."""
    options: dict[str, list[tuple[str, Option]]] = {}
    for item in chosen:
        functions = [item.function, *([item.part] if item.part else [])]
        for name in item.options:
            for owner in functions:
                if name in inspect.signature(owner).parameters:
                    options.setdefault(name, []).append((item.name, _option(owner, name)))
                    break
            else:  # a wrapper that takes any
                options.setdefault(name, []).append((item.name, Option((), (), None)))
    return options


def _option(function: Callable[..., Any], name: str) -> Option:
    default = inspect.signature(function).parameters[name].default
    hint = getattr(function, "__annotations__", {}).get(name)
    holder = SimpleNamespace(__annotations__={name: hint} if hint is not None else {})
    try:
        hint = get_type_hints(holder, globalns=getattr(function, "__globals__", {})).get(name)
    except (NameError, TypeError):  # a name that is imported for type checkers alone
        return Option((), (), default)
    return Option(*_allowed(hint), default)


def _allowed(hint: Any) -> tuple[tuple[Any, ...], tuple[type, ...]]:
    """The values and the types that a type hint allows."""
    if get_origin(hint) is Literal:
        return get_args(hint), ()
    if hint is float:
        return (), (float, int)
    if hint in (str, int, bool):
        return (), (hint,)
    parts = [part for part in get_args(hint) if part is not type(None)]
    if len(parts) < len(get_args(hint)) and len(parts) == 1:  # "... | None"
        return _allowed(parts[0])
    return (), ()


def _either(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
