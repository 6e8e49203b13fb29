"""Reference pages made from the registries: analyzers, detectors, scenarios, devices, commands, Python."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

import tracelens
from tracelens.analysis import Analyzer, in_order
from tracelens.devices import Device, devices
from tracelens.findings.detectors import DETECTORS, Detector
from tracelens.findings.remedies.remedies import remedies
from tracelens.table import Schema
from tracelens.what_if import SCENARIOS


def pages() -> dict[str, str]:
    """Path below docs/ to Markdown."""
    made = {
        "reference/analyzers.md": analyzers(),
        "reference/detectors.md": detectors(),
        "reference/scenarios.md": scenarios(),
        "reference/devices.md": device_table(),
        "reference/python.md": python(),
        "reference/commands.md": commands(),
    }
    made |= {f"reference/analyzers/{item.name}.md": analyzer(item) for item in in_order()}
    made |= {f"reference/detectors/{name}.md": detector(item) for name, item in DETECTORS.items()}
    return made | {f"reference/scenarios/{name}.md": scenario(item) for name, item in SCENARIOS.items()}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", *filter(None, parts))) + "\n"


def _code(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def analyzers() -> str:
    """All analyzers, in a table."""
    rows = [(f"[`{item.name}`](analyzers/{item.name}.md)", item.doc) for item in in_order()]
    return _page("Analyzers", "In the order of a report.", table(("analyzer", "question"), rows))


def analyzer(item: Analyzer) -> str:
    """Question, command, what it needs, and every table with its columns."""
    needs = ", ".join(f"[`{name}`]({name}.md)" for name in item.needs)
    options = ", ".join(f"`--{name.replace('_', '-')}`" for name in item.options)
    return _page(
        item.title,
        item.doc,
        _code("sh", f"tracelens analyze {item.name} traces/"),
        f"It reads the results of {needs}." if needs else "",
        f"Options: {options}." if options else "",
        *(_schema(name, schema) for name, schema in getattr(item, "tables", {}).items()),
    )


def _schema(name: str, schema: Schema) -> str:
    rows = [(f"`{column.name}`", column.dtype, column.unit, column.doc) for column in schema.columns]
    where = "; only JSON, CSV and XLSX hold it" if schema.detail else ""
    return "\n\n".join(
        (
            f"## {schema.title} {{ #{name} }}",
            f"Table `{name}`{where}. {schema.doc}",
            table(("column", "type", "unit", "meaning"), rows),
        )
    )


def detectors() -> str:
    """All detectors, in a table."""
    rows = [(f"[`{name}`](detectors/{name}.md)", item.title, item.doc) for name, item in DETECTORS.items()]
    return _page("Detectors", table(("detector", "finding", "signature"), rows))


def detector(item: Detector) -> str:
    """Signature, the scenario that sizes it, and the remedies by vendor and framework."""
    scenario_name = item.scenario.partition("=")[0].partition(":")[0]
    sized = (
        f"The saving is the replay of the run under [`{item.scenario}`](../scenarios/{scenario_name}.md)."
        if scenario_name
        else "No scenario models the remedy: the saving is an upper bound."
    )
    kind = "A symptom: another finding may be its cause." if item.symptom else ""
    rows = [
        (entry.text, ", ".join(entry.vendor), ", ".join(entry.framework),
         ", ".join(f"{name} {bound}" for name, bound in entry.versions.items()))
        for entry in remedies().get(item.name, ())
    ]  # fmt: skip
    remedy = table(("remedy", "vendor", "framework", "versions"), rows) if rows else item.remedy
    return _page(item.title, f"Detector `{item.name}`. {item.doc}", kind, sized, "## Remedies", remedy)


def scenarios() -> str:
    """All scenarios, in a table."""
    rows = [(f"[`{item.grammar}`](scenarios/{name}.md)", item.doc) for name, item in SCENARIOS.items()]
    return _page("Scenarios", table(("scenario", "what changes"), rows))


def scenario(item: Any) -> str:
    """What it changes, how to ask for it, and which detectors do."""
    request = item.name + (item.argument.partition(" ")[0] if item.argument and not item.usual else "")
    asking = [f"[`{name}`](../detectors/{name}.md)" for name, known in DETECTORS.items()
              if known.scenario.partition("=")[0] == item.name]  # fmt: skip
    return _page(
        f"`{item.grammar}`",
        inspect.getdoc(item.change) or item.doc,
        _code("sh", f"tracelens project whatif traces/ --scenario {request}"),
        f"Detectors that size their finding with it: {', '.join(asking)}." if asking else "",
    )


def device_table() -> str:
    """All devices with their peaks."""

    def rate(device: Device, dtype: str) -> str:
        return f"{device.matrix[dtype] / 1e12:,.0f}" if dtype in device.matrix else ""

    rows = [
        (f"`{item.name}`", item.title, f"{item.hbm_bytes / 1e9:.0f}", f"{item.hbm_bytes_per_s / 1e12:.2f}",
         *(rate(item, dtype) for dtype in ("bf16", "fp8", "fp4")))
        for item in devices()
    ]  # fmt: skip
    head = ("device", "title", "memory, GB", "TB/s", "BF16 TFLOP/s", "FP8 TFLOP/s", "FP4 TFLOP/s")
    return _page(
        "Devices",
        "Data-sheet peaks, dense; each figure names its source in the device file. "
        "What is not published is left out.",
        table(head, rows),
    )


def python() -> str:
    """The public names of the package."""
    names = [name for name in tracelens.__all__ if not name.startswith("__")]
    return _page("Python", "`import tracelens` is cheap: each name is imported when it is first used.",
                 *(f"::: tracelens.{name}" for name in names))  # fmt: skip


def commands() -> str:
    """Every command with its options."""
    from typer.main import get_command

    from tracelens.cli.app import app

    root = get_command(app)
    assert isinstance(root, click.Group) or hasattr(root, "list_commands")
    return _page("Command line", *_commands("tracelens", root))


def _commands(path: str, command: Any) -> Iterator[str]:
    context = command.make_context(path, [], resilient_parsing=True)
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if not child.hidden:
                yield from _commands(f"{path} {name}", child)
        if path.count(" ") == 0 or not command.params:
            return
    yield f"## {path}"
    yield inspect.cleandoc(command.help or "")
    rows = [
        (", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts)),
         getattr(parameter, "help", "") or "")
        for parameter in command.params
        if not getattr(parameter, "hidden", False) and "--help" not in parameter.opts
    ]  # fmt: skip
    if rows:
        yield table(("option", "meaning"), rows)
