"""What the shell completes: analyzers, devices, detectors, models, scenarios, steps and output files.

The shell waits for these words at every press of Tab: registered names are read from the source, because
importing the analyses would take half a second, and of a trace no more than its first megabytes are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import typer

from tracelens.errors import TracelensError
from tracelens.filenames import SIDECAR
from tracelens.read import TraceFiles, open_source

_ROOT = Path(__file__).parents[1]

_HEAD_BYTES = 16 << 20
"""Of a trace, decompressed; inflating and searching so much takes a tenth of a second."""

_STEP = re.compile(rb'"ProfilerStep#(\d+)"')

Word = tuple[str, str]
"""A word and its help, which zsh, fish and PowerShell show."""


class Registered(NamedTuple):
    """What the source says of a registered function."""

    name: str
    doc: str
    argument: str = ""
    usual: tuple[str, ...] = ("",)


def registered(kind: str, folder: str) -> Iterator[Registered]:
    """Functions under a decorator `@kind("name", ...)`, and those of plugins if there are any.

    Args:
        kind: of registry, the name of its decorator.
        folder: below the package, where they are.
    """
    pattern = re.compile(
        rf'^@{kind}\(\s*"(?P<name>\w+)"(?P<options>.*?)\)\n(?:@.*?\n)*def .*?"""(?P<doc>.*?)(?:\n\n|""")',
        re.MULTILINE | re.DOTALL,
    )
    for file in sorted((_ROOT / folder).rglob("*.py")):
        text = file.read_text("utf-8")
        for match in pattern.finditer(text) if f"@{kind}(" in text else ():
            argument = re.search(r'argument="(.*?)"', match["options"])
            usual = re.search(r"usual=\((.*?)\)", match["options"])
            words = re.findall(r'"(.*?)"', usual[1]) if usual else [""]
            doc = " ".join(match["doc"].split())
            yield Registered(match["name"], doc, argument[1] if argument else "", tuple(words))


def _plugins() -> bool:
    from tracelens.plugins import any_plugins

    return any_plugins()


def _names(kind: str, *folders: str) -> list[Word]:
    words = [(item.name, item.doc) for folder in folders for item in registered(kind, folder)]
    return sorted(words)


def analyzers() -> list[Word]:
    """Analyzers."""
    if _plugins():
        from tracelens.analysis import in_order

        return [(plugin.name, plugin.doc) for plugin in in_order()]
    return _names("analyzer", "analysis", "findings")


def detectors() -> list[Word]:
    """Detectors of findings."""
    if _plugins():
        from tracelens.findings.detectors import DETECTORS

        return [(name, plugin.doc) for name, plugin in DETECTORS.items()]
    return _names("detector", "findings/detectors")


def devices() -> list[Word]:
    """Bundled devices."""
    from tracelens.devices import devices as known

    return [(device.name, device.title) for device in known()]


def models() -> list[Word]:
    """Bundled models."""
    return [(file.stem, "") for file in sorted((_ROOT / "planner/config/models").glob("*.toml"))]


def schedules() -> list[Word]:
    """Pipeline schedules."""
    from tracelens.planner.pipeline import SCHEDULES

    return [*((name, kind.doc) for name, kind in SCHEDULES.items()), ("all", "")]


def limits() -> list[Word]:
    """Read limits."""
    from dataclasses import fields

    from tracelens.limits import Limits

    return [(f"{limit.name}=", "") for limit in fields(Limits)]


def scenarios(incomplete: str) -> list[Word]:
    """Scenarios and the usual values of their arguments; behind a + the next one.

    Args:
        incomplete: as in `no_blocking+dispatch=de`.
    """
    before, plus, last = incomplete.rpartition("+")
    name, equals, _ = last.partition("=")
    known = list(_scenarios())
    if equals:
        values = [name for name, _ in devices()] if name == "device" else []
        values += [value for item in known if item.name == name for value in item.usual if value]
        return [(f"{before}{plus}{name}={value}", "") for value in values]
    words: list[Word] = []
    for item in known:
        words += [(item.name, item.doc)] if "" in item.usual else []
        words += [(item.name + item.argument[0], item.doc)] if item.argument else []
    return sorted((f"{before}{plus}{word}", doc) for word, doc in words)


def _scenarios() -> Iterator[Registered]:
    if not _plugins():
        yield from registered("scenario", "what_if/scenarios")
        return
    from tracelens.what_if import SCENARIOS

    for name, item in SCENARIOS.items():
        yield Registered(name, item.doc, item.argument, item.usual)


def outputs(incomplete: str) -> list[Word]:
    """A file of each format: `report.` gives `report.html`, `report.md`, ..."""
    folder, slash, name = incomplete.rpartition("/")
    stem = name.partition(".")[0] or "report"
    suffixes = re.findall(r'@renderer\([^)]*?suffix="(\.\w+)"', _source("rendering/formats"))
    return [(f"{folder}{slash}{stem}{suffix}", "") for suffix in sorted(suffixes)]


def _source(folder: str) -> str:
    return "\n".join(file.read_text("utf-8") for file in sorted((_ROOT / folder).rglob("*.py")))


def steps(context: typer.Context) -> list[Word]:
    """Recorded steps of the first trace on the line, as far as its sidecar or first megabytes tell."""
    # An option without its value leaves the arguments unparsed.
    paths = [*(context.params.get("paths") or ()), context.params.get("base"), *context.args]
    numbers: list[int] = []
    with suppress(TracelensError, OSError, ValueError, KeyError, TypeError):
        first = next((path for path in paths if path and Path(path).exists()), None)
        numbers = _recorded(Path(first)) if first else []
    return [(str(number), f"ProfilerStep#{number}") for number in numbers] or [("ProfilerStep#", "")]


def steps_or_all(context: typer.Context) -> list[Word]:
    """The same, and `all`."""
    return [*steps(context), ("all", "every recorded step")]


def _recorded(path: Path) -> list[int]:
    sidecar = (path if path.is_dir() else path.parent) / SIDECAR
    if sidecar.is_file():
        return [int(step) for step in json.loads(sidecar.read_bytes())["window"]["recorded"]]
    found: set[int] = set()
    for source in open_source(TraceFiles([str(path)]).all()[0])[:1]:
        read = 0
        for block in source.blocks():
            found.update(int(number) for number in _STEP.findall(block))
            read += len(block)
            if read > _HEAD_BYTES:
                break
    return sorted(found)
