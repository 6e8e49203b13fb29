"""`tracelens replay`: standalone scripts of traced calls, and whether they match the trace."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tracelens.cli import completion
from tracelens.cli.common import (
    Captures,
    Device,
    DeviceFile,
    Json,
    Limit,
    Partial,
    Paths,
    Step,
    Twin,
    check_outputs,
    deliver_result,
    progress,
    say,
)
from tracelens.cli.help import OUTPUT, RUN, Command, Group
from tracelens.read import GraphSources, TraceFiles
from tracelens.session import Reading, replay


class _Group(Group):
    """`replay PATH...` writes scripts, `replay verify DIR` runs them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Treat arguments without a command as those of `write`."""
        if not args or args[0] not in self.commands:
            args = ["write", *(args or ["--help"])]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_Group, rich_markup_mode=None)


class Order(StrEnum):
    """Values of --by."""

    time = "time"
    recoverable = "recoverable"


class On(StrEnum):
    """Values of --device of verify."""

    cuda = "cuda"
    cpu = "cpu"


CALLS, SCRIPTS = "Calls to replay", "Scripts"


def _option(text: str, *names: str, panel: str = CALLS, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **{"show_default": False, **more})


Output = Annotated[
    str, _option("Write the scripts to this directory.", "-o", "--output", panel=SCRIPTS, metavar="DIR")
]
Op = Annotated[
    str,
    _option(
        "Only ops and collectives that match this pattern: aten::mm, 'aten::*conv*', allreduce.",
        metavar="PATTERN",
    ),
]
Shape = Annotated[
    list[str] | None,
    _option("Only calls with a tensor of this shape: 4096,2048. Repeatable.", metavar="SIZES"),
]
Module = Annotated[
    str,
    _option(
        "Only calls inside a matching annotation or Python frame, and their gradients: '*MoE*'.",
        metavar="PATTERN",
    ),
]
Rank = Annotated[int | None, _option("Only calls of this rank.", metavar="RANK")]
Top = Annotated[
    int,
    _option(
        "Write at most this many scripts, for the calls with the longest total time; 0 for all.",
        panel=SCRIPTS,
        metavar="N",
        min=0,
        show_default=True,
    ),
]
By = Annotated[Order, _option("Rank calls by GPU time, or by time above the roofline.", show_default=True)]
Finding = Annotated[
    str,
    _option(
        "Only work that runs while this finding (its detector's name) costs time.",
        metavar="NAME",
        autocompletion=completion.detectors,
    ),
]
At = Annotated[
    int | None,
    _option(
        "Only what starts or runs at this time, with its callees: at_ns of findings and changes.",
        metavar="NS",
    ),
]
Base = Annotated[str, _option("Only ops that changed since this run; see --row.", "--diff", metavar="BASE")]
Row = Annotated[
    int,
    _option(
        "With --diff, only this row of 'What changed' in `tracelens diff BASE PATH`.",
        metavar="N",
        min=1,
        show_default=True,
    ),
]
Layers = Annotated[
    bool, _option("Write whole MoE layers instead, one script per direction.", "--sequence", panel=SCRIPTS)
]
MaxElements = Annotated[
    int | None,
    _option("Scale sizes down until no tensor has more than N elements.", panel=SCRIPTS, metavar="N", min=1),
]
FirstRanks = Annotated[
    int | None,
    _option(
        "Cut collectives down to the first N ranks of their group, for machines with fewer GPUs.",
        "--first-ranks",
        panel=SCRIPTS,
        metavar="N",
    ),
]


class _Write(Command):
    """`write`, which nobody has to type."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """The usage without it."""
        formatter.write_usage(ctx.parent.command_path, " ".join(self.collect_usage_pieces(ctx)))


@app.command("write", cls=_Write)
def scripts(
    paths: Paths,
    output: Output,
    op: Op = "",
    shape: Shape = None,
    module: Module = "",
    rank: Rank = None,
    step: Step = None,
    top: Top = 20,
    by: By = Order.time,
    finding: Finding = "",
    at: At = None,
    diff: Base = "",
    row: Row = 1,
    sequence: Layers = False,
    max_elements: MaxElements = None,
    first_ranks: FirstRanks = None,
    device: Device = None,
    device_file: DeviceFile = None,
    partial: Partial = False,
    captures: Captures = "",
    twin: Twin = "",
    _limit: Limit = None,
    json: Json = False,
) -> None:
    """Write standalone scripts for the longest calls: each runs, checks and times one call as traced.

    A script is one Python file that needs only torch. `tracelens replay verify DIR` runs them all and
    reports which match the trace; see `tracelens replay verify --help`.

    Examples:
        tracelens replay trace.json.gz -o replay/
        tracelens replay trace.json.gz --op aten::mm --shape 4096,2048 -o replay/
        tracelens replay traces/ --op 'all_to_all*' -o replay/
        tracelens replay verify replay/
    """
    from tracelens.analysis.common import choose_device
    from tracelens.reproducers import check as check_folder_output

    traces = TraceFiles(paths)
    check_folder_output(output, [*paths, *filter(None, (diff, device_file))], traces)
    choose_device(device, device_file)
    with progress() as line:
        graphs = GraphSources(captures, twin)
        with Reading(traces.all(), partial=partial, progress=line, graphs=graphs) as reading:
            run = reading.run()
        result = replay(
            run, output, op=op, shapes=shape or (), module=module, rank=rank, step=step, top=top or None,
            by=by.value, finding=finding, at_ns=at, base=TraceFiles([diff]) if diff else None, row=row,
            sequence=sequence, max_elements=max_elements, first_ranks=first_ranks, device=device,
            device_file=device_file, partial=partial, progress=line,
        )  # fmt: skip
    title = f"replay: {len(result.data['scripts'])} scripts, {result.meta['fraction']:.1%} of GPU time"
    deliver_result(result, title, None, json, [trace.meta.path for trace in run.traces])
    omitted = result.meta["not_written"]
    say(f"wrote {output}" + (f"; {omitted} more calls with a larger --top" if omitted else ""))


Folder = Annotated[str, typer.Argument(metavar="DIR", help="The directory of scripts.", show_default=False)]
Where = Annotated[On | None, _option("Where to run.", panel=RUN, show_default="the GPU if there is one")]
Iters = Annotated[int | None, _option("Timed calls per script.", panel=RUN, metavar="N", show_default="50")]
MaxBytes = Annotated[
    int | None, _option("Scale collective messages down to N bytes.", panel=RUN, metavar="N")
]
Only = Annotated[
    str, _option("Only scripts with this text in name, op or shapes.", panel=RUN, metavar="STRING")
]
Tolerance = Annotated[
    float,
    _option(
        "Allowed relative deviation from the traced time.",
        panel="Verdict",
        metavar="SHARE",
        show_default=True,
    ),
]
Strict = Annotated[bool, _option("Also exit with 1 if a time does not match.", "--strict", panel="Verdict")]
Timeout = Annotated[
    float, _option("Time limit per script, in seconds.", panel=RUN, metavar="SECONDS", show_default=True)
]
MostRanks = Annotated[
    int | None,
    _option(
        "Skip collectives with more than N ranks.",
        "--ranks",
        panel=RUN,
        metavar="N",
        min=1,
        show_default="the number of GPUs, or 8 on the CPU",
    ),
]
Python = Annotated[
    str, _option("Python interpreter with torch.", panel=RUN, metavar="FILE", show_default="this one")
]
Written = Annotated[
    list[str] | None,
    _option(
        "Write a .html, .md, .json or .xlsx report.",
        "-o",
        "--output",
        panel=OUTPUT,
        metavar="FILE",
        show_default="print",
        autocompletion=completion.outputs,
    ),
]


@app.command("verify", cls=Command)
def verify(
    folder: Folder,
    device: Where = None,
    iters: Iters = None,
    max_bytes: MaxBytes = None,
    only: Only = "",
    tolerance: Tolerance = 0.1,
    strict: Strict = False,
    timeout: Timeout = 180.0,
    ranks: MostRanks = None,
    python: Python = "",
    output: Written = None,
    json: Json = False,
) -> None:
    """Run the scripts of a directory and compare their times with the trace.

    Exit code: 0 if all results are correct, 1 if a script is wrong or fails, 2 for bad input.

    Runs only unmodified scripts, isolated (python -I) from the current directory, PYTHONPATH and user
    site-packages: point --python to an environment with torch. Run edited scripts, and those that need
    --import, directly.

    Examples:
        tracelens replay verify replay/
        tracelens replay verify replay/ --device cpu --iters 1 --only mm
    """
    from tracelens.reproducers import LIST
    from tracelens.reproducers.verify import failed
    from tracelens.reproducers.verify import verify as run_all

    check_outputs(output, [str(Path(folder, LIST))])
    with progress() as line:
        result = run_all(
            Path(folder),
            device=device.value if device else None,
            iters=iters,
            max_bytes=max_bytes,
            tolerance=tolerance,
            python=python or None,
            timeout_s=timeout,
            ranks=ranks,
            only=re.compile(re.escape(only)) if only else None,
            progress=line,
        )
    counts = ", ".join(f"{count} {status}" for status, count in result.meta["statuses"].items())
    deliver_result(result, f"replay verify: {counts}", output, json, [folder])
    if failed(result, strict=strict):
        raise typer.Exit(1)
