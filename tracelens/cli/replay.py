"""`tracelens replay`: standalone scripts of traced calls, and whether they match the trace."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tracelens.cli.common import (
    Device,
    DeviceFile,
    Json,
    Limit,
    Partial,
    Paths,
    Step,
    check_outputs,
    deliver_result,
    progress,
    say,
)
from tracelens.read import TraceFiles
from tracelens.session import Reading, replay


class _Group(TyperGroup):
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


Output = Annotated[
    str, typer.Option("-o", "--output", metavar="DIR", help="Where to write the scripts.", show_default=False)
]
Op = Annotated[
    str,
    typer.Option(
        help="Only ops and collectives that match this pattern: aten::mm, 'aten::*conv*', allreduce.",
        metavar="PATTERN",
        show_default=False,
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        help="Only calls with a tensor of this shape: 4096,2048. Repeatable.",
        metavar="SIZES",
        show_default=False,
    ),
]
Module = Annotated[
    str,
    typer.Option(
        help="Only calls inside a matching annotation or Python frame, and their gradients: '*MoE*'.",
        metavar="PATTERN",
        show_default=False,
    ),
]
Rank = Annotated[int | None, typer.Option(help="Only calls of this rank.", show_default=False)]
Top = Annotated[int, typer.Option(help="Number of scripts, longest total time first; 0 for all.", min=0)]
By = Annotated[Order, typer.Option(help="Rank by GPU time, or by time above the roofline.")]
Finding = Annotated[
    str,
    typer.Option(
        help="Only work that runs while this finding costs time; NAME is a detector in the findings table.",
        metavar="NAME",
        show_default=False,
    ),
]
At = Annotated[
    int | None,
    typer.Option(
        help="Only what starts or runs at this time, with its callees: at_ns of findings and changes.",
        metavar="NS",
        show_default=False,
    ),
]
Base = Annotated[
    str,
    typer.Option(
        "--diff",
        help="Only ops that changed since this run; see --row.",
        metavar="BASE",
        show_default=False,
    ),
]
Row = Annotated[
    int, typer.Option(help="With --diff: row of 'What changed' in `tracelens diff BASE PATH`.", min=1)
]
Layers = Annotated[
    bool, typer.Option("--sequence", help="Write whole MoE layers instead, one script per direction.")
]
MaxElements = Annotated[
    int | None,
    typer.Option(
        help="Scale sizes down until no tensor has more than N elements.",
        metavar="N",
        min=1,
        show_default=False,
    ),
]
FirstRanks = Annotated[
    int | None,
    typer.Option(
        "--first-ranks",
        help="Cut collectives down to the first N ranks of their group, for machines with fewer GPUs.",
        metavar="N",
        show_default=False,
    ),
]


@app.command("write")
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
    _limit: Limit = None,
    json: Json = False,
) -> None:
    """Write standalone scripts for the longest calls: each runs, checks and times one call as traced.

    Each is one Python file that needs only torch. `tracelens replay verify DIR` runs them all and reports
    which match the trace; see `tracelens replay verify --help`.

    For example:

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
        with Reading(traces.all(), partial=partial, progress=line) as reading:
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


Folder = Annotated[str, typer.Argument(metavar="DIR", help="Where the scripts are.", show_default=False)]
Where = Annotated[
    On | None, typer.Option(help="Where to run; default: the GPU if there is one.", show_default=False)
]
Iters = Annotated[int | None, typer.Option(help="Timed calls per script; default 50.", show_default=False)]
MaxBytes = Annotated[
    int | None,
    typer.Option(help="Scale collective messages down to N bytes.", metavar="N", show_default=False),
]
Only = Annotated[
    str,
    typer.Option(help="Only scripts with TEXT in name, op or shapes.", metavar="TEXT", show_default=False),
]
Tolerance = Annotated[float, typer.Option(help="Allowed relative deviation from the traced time.")]
Strict = Annotated[bool, typer.Option("--strict", help="Also exit with 1 if a time does not match.")]
Timeout = Annotated[float, typer.Option(help="Time limit per script, in seconds.")]
MostRanks = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        help="Skip collectives with more than N ranks; default: the number of GPUs, or 8 on the CPU.",
        metavar="N",
        min=1,
        show_default=False,
    ),
]
Python = Annotated[
    str,
    typer.Option(help="Interpreter with torch; default: this one.", metavar="FILE", show_default=False),
]
Written = Annotated[
    list[str] | None,
    typer.Option("-o", "--output", help="Write a report: .html, .md, .json, .xlsx.", show_default=False),
]


@app.command("verify")
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

    Exit code 0 if all results are correct, 1 if a script is wrong or fails, 2 for bad input.

    Runs only unmodified scripts, isolated (python -I) from the current directory, PYTHONPATH and user
    site-packages: point --python to an environment with torch. Run edited scripts, and those that need
    --import, directly.

    For example:

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
