"""Reference pages of the interfaces: commands, Python, the JSON document."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markdown_pages import arguments, code, docstring, page, section, table
from typer.main import get_command

import tracelens
from tracelens.cli.app import app
from tracelens.rendering.formats.json import SCHEMA_VERSION, files, one_result

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "one_gpu" / "loop"
RETURNED = (
    "tracelens.table.Skip",
    "tracelens.trace.Trace",
)
"""Classes of what the public ones hold."""


def python() -> str:
    """The public names of the package, and what its functions return."""
    names = [name for name in tracelens.__all__ if not name.startswith("__")]
    names.sort(key=lambda name: inspect.isclass(getattr(tracelens, name, None)))
    returned = [path for path in RETURNED if path.rpartition(".")[2] not in names]
    rows = [(f"[`{name}`](#tracelens.{name})", _purpose(getattr(tracelens, name, None))) for name in names]
    rows += [(f"[`{path.rpartition('.')[2]}`](#{path})", _purpose(_resolved(path))) for path in returned]
    return page(
        "Python",
        "`import tracelens` is cheap: each name is imported when it is first used.",
        table(("name", "purpose"), rows),
        *map(_entry, names),
        *(f"::: {path}" for path in returned),
    )


def _entry(name: str) -> str:
    """The docstring of a public name; the anchor is there even if a module has the same name."""
    value = getattr(tracelens, name, None)
    anchor = f'<a id="tracelens.{name}"></a>'
    if hasattr(value, "request"):  # made from a request: its text is not in a source file
        doc = docstring(value)
        rows = [(f"`{argument}`", meaning) for argument, meaning in arguments(value).items()]
        return section(
            f"`{name}`",
            anchor,
            code("python", f"{name}{inspect.signature(value)}"),
            doc[""],
            table(("argument", "meaning"), rows),
            *(f"**{title}:** {doc[title]}" for title in ("Returns", "Raises") if title in doc),
        )
    path = (
        f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else f"tracelens.{name}"
    )
    return f"{anchor}\n\n::: {path}"


def _purpose(value: object) -> str:
    return (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")


def _resolved(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(__import__(module, fromlist=[name]), name)


def commands() -> str:
    """Every command with its options."""
    listed = list(_commands("tracelens", get_command(app)))
    rows = [(f"[`{path}`](#{_anchor(path)})", _first_line(command)) for path, command in listed]
    return page(
        "Command line",
        "Exit codes: 0 success, 1 regression (`gate`) or wrong result (`replay verify`), 2 wrong input, "
        "3 inconclusive (`gate`).",
        table(("command", "purpose"), rows),
        *(_command(path, command) for path, command in listed),
    )


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    context = command.make_context(path, [], resilient_parsing=True)
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if not child.hidden:
                yield from _commands(f"{path} {name}", child)
        if path.count(" ") == 0 or not command.params:
            return
    yield path, command


def _anchor(path: str) -> str:
    return path.replace(" ", "-")


def _first_line(command: Any) -> str:
    return inspect.cleandoc(command.help or "").partition("\n")[0]


def _command(path: str, command: Any) -> str:
    text, _, examples = inspect.cleandoc(command.help or "").partition("Examples:\n")
    rows = [
        (", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts)),
         getattr(parameter, "help", "") or "")
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
        and "--help" not in parameter.opts
        and parameter.param_type_name == "option"
    ]  # fmt: skip
    arguments = [
        (f"`{parameter.metavar or parameter.human_readable_name}`", getattr(parameter, "help", "") or "")
        for parameter in command.params
        if parameter.param_type_name == "argument" and not getattr(parameter, "hidden", False)
    ]
    return section(
        path,
        re.sub(r"^\s*\\b\s*$", "", text, flags=re.MULTILINE).strip(),
        code("sh", inspect.cleandoc(f"\n{examples}").strip()) if examples.strip() else "",
        table(("argument", "meaning"), arguments),
        table(("option", "meaning"), rows),
        anchor=_anchor(path),
    )


REPORT_KEYS = {
    "schema_version": "goes up when a table or column is renamed or removed; the changelog says which",
    "summary": "the first screen: `verdict`, one sentence, and `tiles`, its figures",
    "results": "by analyzer: `tables` (name to rows), `skips` (`subject` and `reason` of what is missing) "
    "and `meta` (options and totals)",
    "findings": "the rows of the table [`findings`](analyzers/findings.md#findings)",
    "meta": "version, inputs, ranks, devices, options; `trust` sums up doubts about the recording, "
    "`failures` names parts that failed because of a bug",
}
RESULT_KEYS = {
    "schema_version": "as above",
    "analyzer": "its name",
    "version": "of tracelens",
    "inputs": "paths that were read",
    "tables": "name to rows",
    "skips": "`subject` and `reason` of what could not be computed",
    "meta": "options and totals",
}


def documents() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """A report and a result of a sample trace, as their JSON is read."""
    report = tracelens.report_files(SAMPLE)
    (content,) = files(report).values()
    return json.loads(content), json.loads(one_result(report["input"], report.meta))


def json_document() -> str:
    """The JSON of a report and of one result."""
    _, result = documents()
    result["inputs"][:] = [f"traces/{Path(path).name}" for path in result["inputs"]]
    for row in result["tables"]["input"]:
        row["path"] = f"traces/{Path(row['path']).name}"
    return page(
        "JSON",
        "Every table in full. Rows are objects of column to value; column names carry their units; an "
        f'unknown number is null, an absent text `""`. `schema_version` is {SCHEMA_VERSION}.',
        section(
            "A report",
            code("sh", "tracelens report traces/ -o report.json"),
            table(("key", "content"), [(f"`{key}`", text) for key, text in REPORT_KEYS.items()]),
        ),
        section(
            "One result",
            code("sh", "tracelens analyze input traces/ --json"),
            table(("key", "content"), [(f"`{key}`", text) for key, text in RESULT_KEYS.items()]),
            "For one of the sample traces:",
            code("json", json.dumps(result, indent=2)),
        ),
    )
