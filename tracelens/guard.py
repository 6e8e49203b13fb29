"""One failing part never takes the rest along: an unexpected exception becomes a reason for no answer.

Analyzers, detectors, cost models, figures, sections of a report and what-if scenarios run behind `guard`. It
lets errors that a user can mend (TracelensError) and Ctrl-C pass, and turns everything else, which is a bug,
into a `Failure`: also what ends a process (SystemExit), since no part may end the command. That is text, so
it stands wherever a reason may stand, and can still be told from one: `Report.failures` lists those of a
report. TRACELENS_DEBUG=1, which `tracelens --debug` sets and child processes inherit, lets every exception
through.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from tracelens.errors import SchemaError, TracelensError

P = ParamSpec("P")
T = TypeVar("T")

DEBUG = "TRACELENS_DEBUG"

_PACKAGE = Path(__file__).parent


class Failure(str):
    """What went wrong in a part of the program, as a sentence.

    Attributes:
        part: that failed, such as "analyzer pipeline".
        error: class of the exception.
    """

    part: str
    error: str

    @classmethod
    def of(cls, part: str, error: BaseException) -> Failure:
        """The failure of a part that raised `error`."""
        kind = type(error).__name__
        text = f": {error}" if isinstance(error, SchemaError | ModuleNotFoundError) else ""
        location, plugin = _location(error)
        bug = f"This is a bug of {plugin}" if plugin else "This is a bug"
        failure = cls(
            f"{part} failed with {kind} in {location}{text}. {bug}: please report it with "
            "the output of the same command with --debug"
        )
        failure.part, failure.error = part, kind
        return failure


def guard(part: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | Failure:
    """What `call` returns, or the failure of this part.

    Args:
        part: what is called, for the message: "analyzer pipeline".
        call: the function.
        args: of the function.
        kwargs: of the function.

    Raises:
        TracelensError: as the function does, except for SchemaError, which is nobody's fault but its own.
    """
    try:
        return call(*args, **kwargs)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # a plugin may raise SystemExit, or a class of its own
        if debugging() or (isinstance(error, TracelensError) and not isinstance(error, SchemaError)):
            raise
        return Failure.of(part, error)


def debugging() -> bool:
    """Whether exceptions are to pass instead of becoming failures."""
    return os.environ.get(DEBUG, "") not in ("", "0")


def banner(failures: Sequence[Failure]) -> str:
    """What stands on top of a report with these failures; "" where there are none."""
    if not failures:
        return ""
    parts = ", ".join(dict.fromkeys(f"{failure.part} ({failure.error})" for failure in failures))
    return f"Incomplete: {parts} failed because of a bug in tracelens. Everything else is complete."


OWNERS: dict[str, str] = {}
"""Which plugin a file is, or a folder whose files are all of that plugin."""


def plugin_of(file: str) -> str:
    """The plugin that a file of code belongs to, "" for none."""
    folders = (file, *map(str, Path(file).parents)) if OWNERS else ()
    return next((OWNERS[folder] for folder in folders if folder in OWNERS), "")


@contextmanager
def importing(name: str, remedy: str = "", verdict: str = "does not import") -> Iterator[None]:
    """Whatever somebody else's module raises while it is imported is an error that names it.

    That may be SystemExit or a class of its own; only Ctrl-C passes.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except TracelensError as error:
        raise TracelensError(f"{name}: {error}") from error
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise TracelensError(f"{name} {verdict}: {problem}{remedy}") from error


def _location(error: BaseException) -> tuple[str, str]:
    """File and line of the innermost frame that is ours or a plugin's, if any; the plugin, "" for none."""
    import traceback  # only a failure needs it

    frames = traceback.extract_tb(error.__traceback__)
    owned = [
        (frame, plugin)
        for frame in frames
        if (plugin := plugin_of(frame.filename)) or Path(frame.filename).is_relative_to(_PACKAGE)
    ]
    known = [(frame, plugin) for frame, plugin in owned if frame.filename != __file__]
    known = known or [(frame, "") for frame in frames]
    if not known:
        return "an unknown location", ""
    frame, plugin = known[-1]
    path = Path(frame.filename)
    if path.is_relative_to(_PACKAGE):
        path = path.relative_to(_PACKAGE.parent)
    return f"{path.as_posix()}:{frame.lineno}", plugin
