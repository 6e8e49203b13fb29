"""Reference pages made from the registries: analyzers, detectors, scenarios, results of commands, devices."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple

import interfaces
from markdown_pages import arguments, code, docstring, page, schemas, section, table

import tracelens
from tracelens import planner, reproducers, what_if
from tracelens.analysis import Analyzer, in_order, wide
from tracelens.compare import diff, gate, ladder
from tracelens.devices import Device, devices
from tracelens.devices.files import numbers
from tracelens.findings import DETECTORS, Detector, TracePlatform, remedies
from tracelens.findings.remedies import worded
from tracelens.planner import bounds as planner_bounds
from tracelens.planner import memory, pipeline, published, scaling, search
from tracelens.reproducers import verify
from tracelens.table import Schema
from tracelens.trace.trace import COLLECTIVES, EVENTS, LINKS, OPS
from tracelens.units import largest_scale
from tracelens.what_if import SCENARIOS


def pages() -> dict[str, str]:
    """Path below docs/ to Markdown."""
    made = {
        "reference/analyzers.md": analyzers(),
        "reference/detectors.md": detectors(),
        "reference/scenarios.md": scenarios(),
        "reference/results.md": results(),
        "reference/run.md": frames(),
        "reference/trace.md": trace(),
        "reference/devices.md": device_page(),
        "reference/python.md": interfaces.python(),
        "reference/commands.md": interfaces.commands(),
        "reference/json.md": interfaces.json_document(),
    }
    made |= {f"reference/analyzers/{item.name}.md": analyzer(item) for item in in_order()}
    made |= {f"reference/detectors/{name}.md": detector(item) for name, item in DETECTORS.items()}
    made |= {f"reference/results/{item.name}.md": result(item) for item in RESULTS}
    return made | {f"reference/scenarios/{name}.md": scenario(item) for name, item in SCENARIOS.items()}


def analyzers() -> str:
    """All analyzers, in a table."""
    rows = [(f"[{item.title}](analyzers/{item.name}.md)", f"`{item.name}`", item.doc) for item in in_order()]
    return page(
        "Analyzers",
        "An analyzer answers one question about a run. `tracelens report` runs all of them, "
        "`tracelens analyze NAME` one. This is their order in a report.",
        table(("section", "name", "question"), rows),
    )


def analyzer(item: Analyzer) -> str:
    """Question, command, how to read it, limits, options, and every table with its columns."""
    doc = docstring(item.function)
    needs = ", ".join(f"[`{name}`]({name}.md)" for name in item.needs)
    first = next(iter(item.tables), "")
    return page(
        item.title,
        doc[""],
        code("sh", f"tracelens analyze {item.name} traces/"),
        code("python", f'tracelens.analyze(tracelens.load("traces/"), "{item.name}")["{first}"]')
        if first
        else "",
        section("How to read it", doc.get("Reading", "")),
        section("Limits", doc.get("Limits", "")),
        section("Options", table(("option", "default", "meaning"), _options(item))),
        section("Needs", f"It reads the results of {needs}; they are computed with it." if needs else ""),
        schemas(item.tables),
    )


def _options(item: Analyzer) -> list[tuple[str, str, str]]:
    functions = [item.function, *([item.part] if item.part else [])]
    defaults = {
        name: parameter.default
        for function in functions
        for name, parameter in inspect.signature(function).parameters.items()
        if name in item.options
    }
    said = arguments(tracelens.analyze) | {
        name: text for function in functions for name, text in arguments(function).items()
    }
    return [
        (f"`--{name.replace('_', '-')}`", "" if defaults.get(name) is None else f"`{defaults[name]}`",
         said.get(name, "").removesuffix("."))
        for name in item.options
    ]  # fmt: skip


def detectors() -> str:
    """All detectors, in a table."""
    rows = [
        (f"[{item.title}](detectors/{name}.md)", f"`{name}`", item.doc) for name, item in DETECTORS.items()
    ]
    return page(
        "Detectors",
        "A detector looks for one signature of lost time. What it detects becomes a row of "
        "[`findings`](analyzers/findings.md) if it costs enough; `checks` says what each one saw.",
        table(("finding", "name", "signature"), rows),
    )


def detector(item: Detector) -> str:
    """Signature, threshold, measures, how the saving is sized, limits, and remedies by platform."""
    scenario_name = item.scenario.partition("=")[0].partition(":")[0]
    sized = (
        f"A replay of the run under [`{item.scenario}`](../scenarios/{scenario_name}.md) gives the saving."
        if scenario_name
        else "No scenario models the remedy, so the saving is an upper bound."
    )
    symptom = "This is a symptom: where another finding is its cause, the saving counts there."
    needs = ", ".join(f"[`{name}`](../analyzers/{name}.md)" for name in item.needs)
    measures = [*item.measures.items(), ("estimate", "of the saving per step, before the replay")]
    return page(
        item.title,
        item.doc,
        f"Detector `{item.name}`." + (f" It reads {needs}." if needs else " It looks at each rank's trace."),
        section("Threshold", f"{item.threshold[:1].upper()}{item.threshold[1:]}." if item.threshold else ""),
        section("Saving", sized, symptom if item.symptom else ""),
        section("Limits", item.limits),
        section(
            "Measures",
            "In the table [`measurements`](../analyzers/findings.md#measurements), by rank.",
            table(("measure", "meaning"), [(name, meaning) for name, meaning in measures]),
        ),
        section("Remedies", _remedies(item)),
    )


_LAUNCHED = {None: "", False: "by the host", True: "by graphs"}


def _remedies(item: Detector) -> str:
    rows = [
        (worded(entry.text, TracePlatform()), _LAUNCHED[entry.in_graphs], ", ".join(entry.vendor),
         ", ".join(entry.framework), ", ".join(f"{name} {bound}" for name, bound in entry.versions.items()))
        for entry in remedies(item)
    ]  # fmt: skip
    return table(("what to do", "launched", "vendor", "framework", "versions"), rows)


def scenarios() -> str:
    """All scenarios, in a table."""
    rows = [(f"[`{item.grammar}`](scenarios/{name}.md)", item.doc) for name, item in SCENARIOS.items()]
    return page(
        "Scenarios",
        "A scenario changes the graph of a recorded run; its replay gives the step time. `+` joins several. "
        "[Measured projections](../whatif-truth.md) compares projections with runs that made the change.",
        table(("scenario", "what changes"), rows),
    )


def scenario(item: what_if.Scenario) -> str:
    """What it changes, its argument, what it assumes, and which detectors use it."""
    doc = docstring(item.change)
    usual = [f"`{item.name}{f'={value}' if value else ''}`" for value in item.usual]
    example = item.name if "" in item.usual else f"{item.name}{item.argument.partition(' ')[0]}"
    by_default = (
        f"Without `--scenario`, `tracelens project whatif` tries {', '.join(usual)}."
        if usual
        else "It runs only if `--scenario` names it."
    )
    asking = [
        f"[`{name}`](../detectors/{name}.md)"
        for name, known in DETECTORS.items()
        if known.scenario.partition("=")[0] == item.name
    ]
    return page(
        f"`{item.grammar}`",
        doc[""],
        code("sh", f"tracelens project whatif traces/ --scenario {shlex.quote(example)}"),
        by_default,
        section(
            "Assumes",
            doc.get("Assumes", ""),
            "[What-if](../../concepts/what-if.md) lists what holds for all.",
        ),
        section("Findings", f"It sizes the saving of {', '.join(asking)}." if asking else ""),
    )


class ResultPage(NamedTuple):
    """What the page of a command's result is made of."""

    name: str
    title: str
    command: str
    function: Callable[..., object]
    tables: Mapping[str, Schema]


RESULTS = (
    ResultPage("diff", "Diff", "tracelens diff before/ after/", tracelens.diff, diff.TABLES),
    ResultPage("gate", "Gate", "tracelens gate before/ after/", tracelens.gate, gate.TABLES),
    ResultPage("whatif", "What if", "tracelens project whatif traces/", tracelens.whatif, what_if.TABLES),
    ResultPage(
        "replay", "Replay", "tracelens replay traces/ -o scripts/", tracelens.replay, reproducers.TABLES
    ),
    ResultPage(
        "replay_verify", "Verified replay", "tracelens replay verify scripts/", verify.verify, verify.TABLES
    ),
    ResultPage(
        "replay_compare",
        "Compared replays",
        "tracelens replay compare before.json after.json",
        verify.compare,
        verify.COMPARED,
    ),
    ResultPage(
        "memory",
        "Memory per GPU",
        "tracelens project memory --model moe_1t --gpus 768",
        tracelens.project_memory,
        memory.TABLES,
    ),
    ResultPage(
        "search",
        "Layouts that fit",
        "tracelens project memory --model moe_1t --gpus 768 --device mi355x --search",
        tracelens.search_layouts,
        search.TABLES,
    ),
    ResultPage(
        "scaling",
        "Scaling of expert parallelism",
        "tracelens project scaling --model moe_2t --gpus 1024 --ep 8,16,32,64 --device mi300x",
        tracelens.project_scaling,
        scaling.TABLES,
    ),
    ResultPage(
        "pipeline_schedule",
        "Pipeline schedules",
        "tracelens project pipeline traces/",
        tracelens.project_pipeline,
        pipeline.TABLES,
    ),
    ResultPage(
        "bubble",
        "Pipeline bubble",
        "tracelens project bubble --pp 16 --global-tokens 33554432 --nodes 64",
        tracelens.project_bubble,
        planner.BUBBLE_TABLES,
    ),
    ResultPage(
        "published",
        "Published measurements",
        "tracelens project published",
        tracelens.project_published,
        published.TABLES,
    ),
    ResultPage(
        "bounds",
        "Speed of light",
        "tracelens project bounds",
        tracelens.project_bounds,
        planner_bounds.TABLES,
    ),
    ResultPage(
        "trace_bounds",
        "Collectives against the speed of light",
        "tracelens project bounds traces/",
        planner_bounds.trace_bounds,
        planner_bounds.TRACE_TABLES,
    ),
    ResultPage("ladder", "Ladder", "tracelens workload ladder --from ladder/", ladder.ladder, ladder.TABLES),
)
"""Results beside those of the analyzers."""


def results() -> str:
    """All results of commands, in a table."""
    rows = [
        (
            f"[{item.title}](results/{item.name}.md)",
            f"`{item.command}`",
            docstring(item.function)[""].partition("\n\n")[0],
        )
        for item in RESULTS
    ]
    return page(
        "Results of commands",
        "Tables of the commands that compare, project and replay. Those of the analyzers have "
        "[pages of their own](analyzers.md).",
        table(("result", "command", "content"), rows),
    )


def result(item: ResultPage) -> str:
    """What a command computes, and its tables."""
    named = getattr(tracelens, item.function.__name__, None) is item.function
    python = (
        f"In Python: [`tracelens.{item.function.__name__}`](../python.md#tracelens.{item.function.__name__})."
    )
    return page(
        item.title,
        docstring(item.function)[""],
        code("sh", item.command),
        python if named else "",
        schemas(item.tables),
    )


def frames() -> str:
    """The wide DataFrames of a run."""
    tables = {"kernels": wide.KERNELS, "ops": wide.OPS, "collectives": wide.COLLECTIVES}
    calls = ", ".join(f"[`run.{name}()`](#{name})" for name in tables)
    return page(
        "DataFrames of a run",
        f"{calls} return one row per item, with all that the analyzers know of it, as a pandas DataFrame. "
        "Numbers that are unknown are missing values here, not -1. The [cookbook](../how-to/cookbook.md) "
        "puts them to use.",
        code("python", 'run = tracelens.load("traces/")\nrun.kernels(step=2)'),
        schemas(tables, in_reports=False),
    )


def trace() -> str:
    """The tables of a trace."""
    tables = {schema.title: schema for schema in (EVENTS, OPS, COLLECTIVES, LINKS)}
    return page(
        "Tables of a trace",
        "What a parser makes of one file, and what analyzers read: `tracelens.load(path).traces[0].tables`. "
        "Times are in ns by the trace's own clock; a column `*_id` holds row numbers of `events`.",
        schemas(tables, in_reports=False),
    )


def device_page() -> str:
    """All devices with their peaks, and where each figure is from."""

    def rate(device: Device, dtype: str) -> str:
        return f"{device.matrix[dtype] / 1e12:,.0f}" if dtype in device.matrix else ""

    rows = [
        (f"[{item.title}](#{item.name})", f"`{item.name}`", f"{item.hbm_bytes / 1e9:.0f}",
         f"{item.hbm_bytes_per_s / 1e12:.2f}", *(rate(item, dtype) for dtype in ("bf16", "fp8", "fp4")))
        for item in devices()
    ]  # fmt: skip
    head = ("device", "name", "memory, GB", "TB/s", "BF16 TFLOP/s", "FP8 TFLOP/s", "FP4 TFLOP/s")
    return page(
        "Devices",
        "Data-sheet peaks, dense; `sparse` are those with 2:4 sparsity, from which nothing is computed. What "
        "is not published is left out; nothing is scaled from another figure. MI308X is missing: its maker "
        "publishes no peak, and others contradict one another (172 to 295 TFLOP/s in BF16). A device of your "
        "own is [a TOML file](../how-to/device.md).",
        table(head, rows),
        *(section(item.title, _figures(item), anchor=item.name) for item in devices()),
    )


def _figures(device: Device) -> str:
    rows = [
        (f"`{key}`", _figure(key, value), _linked(device.sources.get(key, "")))
        for key, value in numbers(device).items()
    ]
    return table(("figure", "value", "source"), rows)


def _linked(source: str) -> str:
    """A source whose title leads to its address."""
    return re.sub(r"^(.+), (https?://\S+)", r"[\1](\2)", source)


def _figure(key: str, value: float) -> str:
    if key == "units":
        return f"{value:,.0f}"
    if key == "hbm_bytes":  # as on the nameplate, in decimal units
        return f"{value / 1e9:,.0f} GB"
    unit = "bytes" if key == "cache_bytes" else "bytes/s" if key.endswith("bytes_per_s") else "flops/s"
    scale = largest_scale(unit, value)
    return f"{value / scale.size:,.5g} {scale.name}"
