"""`tracelens workload ladder`: cumulative optimizations, and what each of them changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelens.cli.common import Full, Json, Output, check_outputs, deliver, progress, say
from tracelens.cli.workload.common import Assignments, Device, Layers, Preset, Scrub, assigned, torch_part
from tracelens.errors import TracelensError

if TYPE_CHECKING:
    from tracelens.table import Report
    from tracelens.workload import Rung

LADDER = "Ladder"


def _rung_names() -> list[str]:
    from tracelens.workload import bundled

    return [rung.name for rung in bundled()]


Traces = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIR", help="New directory for the traces, one folder per rung.", show_default=False
    ),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="Report on an existing ladder without running anything.",
        metavar="DIR",
        show_default=False,
        rich_help_panel=LADDER,
    ),
]
Rungs = Annotated[
    list[str] | None,
    typer.Option(
        "--rung",
        help="A custom rung, as in 'grouped: experts=grouped', on top of a baseline without optimizations. "
        "Repeatable, in order.",
        metavar="RUNG",
        show_default=False,
        rich_help_panel=LADDER,
    ),
]
File = Annotated[
    Path | None,
    typer.Option(
        "--rungs",
        help="Read the rungs from a TOML file.",
        metavar="FILE",
        show_default=False,
        rich_help_panel=LADDER,
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        help="Leave this rung out. Repeatable.",
        metavar="NAME",
        show_default=False,
        autocompletion=_rung_names,
        rich_help_panel=LADDER,
    ),
]


def ladder(
    traces: Traces = None,
    *,
    source: From = None,
    output: Output = None,
    full: Full = False,
    json_output: Json = False,
    preset: Preset = "tiny",
    rung: Rungs = None,
    file: File = None,
    without: Without = None,
    layers: Layers = None,
    assignments: Assignments = None,
    device: Device = None,
    timed: Annotated[
        int,
        typer.Option(help="Timed steps per rung, without the profiler.", metavar="N", rich_help_panel=LADDER),
    ] = 10,
    recorded: Annotated[
        int, typer.Option(help="Recorded steps per rung.", metavar="N", rich_help_panel=LADDER)
    ] = 3,
    scrub: Scrub = False,
    **settings: str | None,
) -> None:
    """Add optimizations one by one, and report what each gains and changes.

    The default rungs are the workload's optimizations for expert-parallel training; the report says which
    ones the machine or model does not support. The options below Ladder apply to every rung.

    Examples:
        tracelens workload ladder ladder/ --preset small --ranks 8 --micro-batches 2 -o ladder.html
        tracelens workload ladder ladder/ --ranks 2 --rung 'grouped: experts=grouped' --rung 'host: gc=manual'
        tracelens workload ladder --from ladder/ -o ladder.html -o ladder.md
    """
    if (traces is None) == (source is None):
        raise TracelensError(
            "pass a new folder for the traces, or --from with the folder of an existing ladder"
        )
    folder = traces or source
    assert folder is not None
    index = str(folder / "ladder.json")
    if traces is None:
        check_outputs(output, [index, *(str(path) for path in folder.glob("*/"))])
    else:
        check_outputs(output, (), [index])
        overrides = assigned(settings, layers, assignments)
        options = {"device": device, "timed": timed, "recorded": recorded, "scrub": scrub}
        _run(traces, preset, overrides, _rungs(rung, file, without or []), options)
    deliver(_report(folder), output, json_output, full=full)


def _rungs(texts: list[str] | None, file: Path | None, without: list[str]) -> tuple[tuple[Rung, ...], bool]:
    """The rungs, and whether they are custom."""
    from tracelens.errors import UnknownName
    from tracelens.workload import bundled, from_file, from_texts, with_baseline

    if texts and file is not None:
        raise TracelensError("use --rung or --rungs, not both")
    rungs = from_texts(texts) if texts else from_file(file) if file is not None else bundled()
    names = [rung.name for rung in rungs]
    for name in without:
        if name not in names:
            raise UnknownName("rung", name, names)
    return with_baseline([rung for rung in rungs if rung.name not in without]), bool(texts or file)


def _run(
    folder: Path,
    preset: str,
    assignments: list[str],
    rungs: tuple[tuple[Rung, ...], bool],
    options: dict[str, Any],
) -> None:
    from tracelens.planner.config import override
    from tracelens.planner.config import preset as named
    from tracelens.workload import plan_ladder

    config = override(named(preset), assignments)
    # Errors in the rungs themselves are reported without torch.
    plan_ladder(config, rungs[0], lambda _: "", strict=rungs[1])
    runner = torch_part("ladder_runner")
    ladder = runner.Ladder(folder, **options)
    missing: Callable[[Any], str] = runner.lacking(str(ladder.job(config, "").device))
    planned, skipped = plan_ladder(config, rungs[0], missing, strict=rungs[1])
    for rung in skipped:
        say(f"left out: {rung.rung.name}: {rung.reason}")
    runner.run_ladder(ladder, planned, skipped, preset=preset, progress=say)


def _report(folder: Path) -> Report:
    """The report on a recorded ladder, without torch."""
    from tracelens.compare.ladder import ladder as compare
    from tracelens.compare.ladder import read
    from tracelens.session import load
    from tracelens.summary import result_summary
    from tracelens.table import Report
    from tracelens.version import __version__

    ladder_run = read(folder)
    with progress() as line:
        result = compare(ladder_run, (load(rung.folder, progress=line) for rung in ladder_run.rungs))
    meta = result.meta
    change = f"{meta['base_ns'] / 1e6:,.3f} ms to {meta['last_ns'] / 1e6:,.3f} ms per traced step"
    faster = f", {meta['speedup']:.2f} x the throughput" if meta["speedup"] > 0 else ""
    count = len(ladder_run.rungs) - 1
    return Report(
        (result,),
        title=f"tracelens workload ladder: {count} rung{'s' if count > 1 else ''}, {change}{faster}",
        meta={"version": __version__, "inputs": [str(rung.folder) for rung in ladder_run.rungs]},
        summary=result_summary(result),
    )
