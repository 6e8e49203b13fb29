"""What the shell completes: analyzers, devices, detectors, models, scenarios, steps and output files.

The shell waits for these words at every press of Tab: registered names are read from the source, because
importing the analyses would take half a second, and of a trace no more than its first megabytes are read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import typer

from tracelens.cli.commands import COMPLETION
from tracelens.errors import TracelensError
from tracelens.filenames import SIDECAR
from tracelens.plugins import any_plugins
from tracelens.read import TraceFiles, open_source
from tracelens.registry import Registered, registered

_BREAKS = ("=", ":")
"""Where bash divides words that are one to everybody else."""

_ROOT = Path(__file__).parents[1]

_HEAD_BYTES = 16 << 20
"""Of a trace, decompressed; inflating and searching so much takes a tenth of a second."""

_STEP = re.compile(rb'"ProfilerStep#(\d+)"')

Word = tuple[str, str]
"""A word and its help, which zsh, fish and PowerShell show."""


def of(
    words: str | tuple[str, ...] | Callable[..., list[str]],
) -> Callable[..., list[Word]] | Callable[..., list[str]]:
    """What completes an option: a function of this module, or these words."""
    if isinstance(words, str):
        return globals()[words]  # type: ignore[no-any-return]
    return words if callable(words) else lambda: list(words)


def analyzers() -> list[Word]:
    """Analyzers."""
    if any_plugins():
        from tracelens.analysis import in_order

        return [(plugin.name, plugin.doc) for plugin in in_order()]
    folders = ("analysis", "findings")
    return sorted((item.name, item.doc) for folder in folders for item in registered("analyzer", folder))


def detectors() -> list[Word]:
    """Detectors of findings."""
    if any_plugins():
        from tracelens.findings import DETECTORS

        return [(name, plugin.doc) for name, plugin in DETECTORS.items()]
    return sorted((item.name, item.doc) for item in registered("detector", "opportunities"))


def devices() -> list[Word]:
    """Bundled devices."""
    from tracelens.devices import devices as known

    return [(device.name, device.title) for device in known()]


def networks() -> list[Word]:
    """Bundled networks."""
    return [(file.stem, "") for file in sorted((_ROOT / "planner/step_time/networks").glob("*.toml"))]


def models() -> list[Word]:
    """Bundled models."""
    return [(file.stem, "") for file in sorted((_ROOT / "planner/config/models").glob("*.toml"))]


def schedules() -> list[Word]:
    """Pipeline schedules."""
    from tracelens.planner.pipeline import SCHEDULES

    return [*((name, kind.doc) for name, kind in SCHEDULES.items()), ("all", "")]


def limits() -> list[Word]:
    """Read limits."""
    from tracelens.limits import Limits

    return [(f"{name}=", "") for name in Limits._fields]


def scenarios(incomplete: str) -> list[Word]:
    """Scenarios and the usual values of their arguments; behind a + the next: `no_blocking+dispatch=de`."""
    before, plus, last = incomplete.rpartition("+")
    name, equals, _ = last.partition("=")
    if any_plugins():
        from tracelens.what_if import SCENARIOS

        plugins = SCENARIOS.items()
        known = [Registered(name, item.doc, item.argument, item.usual) for name, item in plugins]
    else:
        known = list(registered("scenario", "opportunities"))
    if equals:
        values = [name for name, _ in devices()] if name == "device" else []
        values += [value for item in known if item.name == name for value in item.usual if value]
        return [(f"{before}{plus}{name}={value}", "") for value in values]
    words: list[Word] = []
    for item in known:
        words += [(item.name, item.doc)] if "" in item.usual else []
        words += [(item.name + item.argument[0], item.doc)] if item.argument else []
    return sorted((f"{before}{plus}{word}", doc) for word, doc in words)


def outputs(incomplete: str) -> list[Word]:
    """A file of each format: `report.` gives `report.html`, `report.md`, ..."""
    folder, slash, name = incomplete.rpartition("/")
    stem = name.partition(".")[0] or "report"
    source = "\n".join(file.read_text("utf-8") for file in (_ROOT / "rendering/formats").rglob("*.py"))
    suffixes = re.findall(r'@renderer\([^)]*?suffix="(\.\w+)"', source)
    return [(f"{folder}{slash}{stem}{suffix}", "") for suffix in sorted(suffixes)]


@contextmanager
def bash_words() -> Iterator[None]:
    """Completion in bash, if it is asked for, with words that hold = or :.

    Bash passes `--scenario`, `dispatch`, `=` and `de` as words of their own, and replaces the last one.
    """
    pieces = os.environ.get("COMP_WORDS", "").split("\n")
    if os.environ.get(COMPLETION) != "complete_bash" or len(pieces) < 2:
        yield
        return
    current = int(os.environ["COMP_CWORD"])
    pieces = pieces[: current + 1]
    words: list[str] = []
    before = ""  # what of the last word stands before its last piece
    for piece, previous in zip(pieces, ["", *pieces], strict=False):
        goes_on = bool(words) and (piece in _BREAKS or previous in _BREAKS)
        before = words[-1] if goes_on else ""
        words[-1:] = [before + piece] if goes_on else [*words[-1:], piece]
    before += pieces[-1] if pieces[-1] in _BREAKS else ""
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    try:
        with redirect_stdout(StringIO()) as completed:
            yield
    finally:
        print(*(word.removeprefix(before) for word in completed.getvalue().splitlines()), sep="\n")


def steps(context: typer.Context) -> list[Word]:
    """Recorded steps of the first trace on the line, as far as its sidecar or first megabytes tell."""
    # An option without its value leaves the arguments unparsed.
    paths = [*(context.params.get("paths") or ()), context.params.get("base"), *context.args]
    numbers: set[int] = set()
    with suppress(TracelensError, OSError, ValueError, KeyError, TypeError, StopIteration):
        path = next(Path(path) for path in paths if path and Path(path).exists())
        sidecar = (path if path.is_dir() else path.parent) / SIDECAR
        if sidecar.is_file():
            numbers = {int(step) for step in json.loads(sidecar.read_bytes())["window"]["recorded"]}
        else:
            (source,), marks, read_bytes = open_source(TraceFiles([path]).all()[0])[:1], [], 0
            for block in source.blocks():
                marks += _STEP.findall(block)
                read_bytes += len(block)
                if read_bytes > _HEAD_BYTES:
                    break
            numbers = set(map(int, marks))
    words = [(str(number), f"ProfilerStep#{number}") for number in sorted(numbers)]
    return words or [("ProfilerStep#", "")]


def steps_or_all(context: typer.Context) -> list[Word]:
    """The same, and `all`."""
    return [*steps(context), ("all", "every recorded step")]
