"""`tracelens replay`: standalone scripts of traced calls, and whether they match the trace."""

from __future__ import annotations

import re
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import Literal

from msgspec import structs

from tracelens.cli.command import command
from tracelens.cli.output import (
    WRITTEN,
    Delivery,
    Json,
    ReadLimits,
    check_complete,
    print_report,
    progress,
    say,
)
from tracelens.read import TraceFiles
from tracelens.session import RUN, Graphs, OptionGroup, ReplayRequest, as_report, loaded, option

VERDICT = "Verdict"


@command
def write(request: ReplayRequest, reading: Graphs, out: Json, _: ReadLimits) -> None:
    """Write standalone scripts for the longest calls: each runs, checks and times one call as traced.

    A script is one Python file that needs only torch. `tracelens replay verify DIR` runs them all and
    reports which match the trace; see `tracelens replay verify --help`.

    Examples:
        tracelens replay trace.json.gz -o replay/
        tracelens replay trace.json.gz --op aten::mm --shape 4096,2048 -o replay/
        tracelens replay traces/ --op 'all_to_all*' -o replay/
        tracelens replay trace.json.gz --candidates 10 -o for_kernel_writers/
        tracelens replay verify replay/
    """
    from tracelens.analysis.common import choose_device
    from tracelens.rendering.summary import result_title
    from tracelens.reproducers import check

    traces, base = request.run, request.base
    assert isinstance(traces, TraceFiles)
    inputs = [*traces.paths, *(base.paths if isinstance(base, TraceFiles) else ()), request.device_file]
    check(str(request.folder), map(str, filter(None, inputs)), traces)
    choose_device(request.device, request.device_file)
    with progress() as line:
        run = loaded(traces, None, replace(reading, progress=line))
        result = replace(request, run=run, progress=line).answer()
    report = as_report(result, result_title(result), [trace.meta.path for trace in run.traces])
    print_report(report, json=out.json)
    check_complete(report)
    omitted = result.meta["not_written"]
    say(f"wrote {request.folder}" + (f"; {omitted} more calls with a larger --top" if omitted else ""))


class Verification(OptionGroup, panel=RUN):
    """The scripts to run, where and how, and what counts as a match."""

    folder: str = option("The directory of scripts.", metavar="DIR", argument=True)
    device: Literal["cuda", "cpu"] | None = option(
        "Where to run.", default=None, shown="the GPU if there is one"
    )
    iters: int | None = option("Timed calls per script.", default=None, shown="50")
    max_bytes: int | None = option("Scale collective messages down to N bytes.", default=None)
    only: str = option("Only scripts with this text in name, op or shapes.", metavar="STRING", default="")
    tolerance: float = option(
        "Allowed relative deviation from the traced time.", VERDICT, metavar="SHARE", default=0.1
    )
    strict: bool = option("Also exit with 1 if a time does not match.", VERDICT, default=False)
    timeout_s: float = option(
        "Time limit per script, in seconds.", name="timeout", metavar="SECONDS", default=180.0
    )
    ranks: int | None = option(
        "Skip collectives with more than N ranks.",
        default=None,
        min=1,
        shown="the number of GPUs, or 8 on the CPU",
    )
    python: str = option("Python interpreter with torch.", metavar="FILE", default="", shown="this one")
    counters: bool = option(
        "Run each op once more under Nsight Compute or rocprofv3, and name the cause that counters suggest.",
        default=False,
    )


class VerifyDelivery(Delivery):
    """Where the result of `verify` goes."""

    output: list[str] | None = option(
        WRITTEN, help="Write a .html, .md, .json or .xlsx report.", metavar="FILE", default=None
    )


@command
def verify(scripts: Verification, out: VerifyDelivery) -> int:
    """Run the scripts of a directory and compare their times with the trace.

    Exit code: 0 if all results are correct, 1 if a script is wrong or fails, 2 for bad input.

    Runs only unmodified scripts, isolated (python -I) from the current directory, PYTHONPATH and user
    site-packages: point --python to an environment with torch. Run edited scripts, and those of ops that a
    module registers (`python FILE MODULE`), directly.

    Examples:
        tracelens replay verify replay/
        tracelens replay verify replay/ --device cpu --iters 1 --only mm
        tracelens replay verify replay/ --counters --only mm
    """
    from tracelens.reproducers import LIST
    from tracelens.reproducers.verify import failed
    from tracelens.reproducers.verify import verify as run_all

    folder = Path(scripts.folder)
    out.check([str(folder / LIST)])
    with progress() as line:
        result = run_all(
            folder,
            **scripts.values("device", "iters", "max_bytes", "tolerance", "timeout_s", "ranks", "counters"),
            python=scripts.python or None,
            only=re.compile(re.escape(scripts.only)) if scripts.only else None,
            progress=line,
        )
    out.deliver(result, inputs=[scripts.folder])
    return int(failed(result, strict=scripts.strict))


class Verifications(OptionGroup, panel=RUN):
    """Two results, and the run whose step they change."""

    before: str = option("JSON of `tracelens replay verify`.", metavar="BEFORE", argument=True)
    after: str = option("The same of the same scripts, with other kernels.", metavar="AFTER", argument=True)
    trace: str | None = option(
        "The traces that the scripts are from; says what their step gains.", metavar="PATH", default=None
    )


@command
def compare(results: Verifications, reading: Graphs, out: Delivery, _: ReadLimits) -> int:
    """What each op gains from one verification to another, and with --trace what the step gains.

    Exit code: 0, 1 if a script is wrong or fails in AFTER only, 2 for bad input.

    The step is that of `tracelens project whatif`, with each kernel as much faster as its calls became.

    Examples:
        tracelens replay verify replay/ -o before.json
        tracelens replay compare before.json after.json
        tracelens replay compare before.json after.json --trace traces/ -o gain.html
    """
    from tracelens.reproducers import kernel_factors
    from tracelens.reproducers.verify import compare as compared
    from tracelens.what_if import whatif

    traces = TraceFiles([results.trace] if results.trace else [])
    out.check([results.before, results.after], traces)
    result = compared(Path(results.before), Path(results.after))
    ops = result.data["ops"]
    keys = zip(ops.texts("subject"), ops.texts("shapes"), strict=True)
    ratios = dict(zip(keys, ops.array("ratio").tolist(), strict=True))
    if results.trace:
        with progress() as line:
            run = loaded(traces, None, replace(reading, progress=line))
            factors = kernel_factors(run, ratios)
            # A "+" would end the name.
            scale = "+".join(
                f"scale:{escape(name).replace('+', '?')}={max(factor, 1e-9):.9f}"
                for name, factor in factors.items()
            )
            projected = whatif(run, [scale or "identity"], progress=line)
        step = projected.data["whatif"]
        renamed = step.schema.table(
            {name: step.values(name) for name in step.schema.names} | {"scenario": ["AFTER"] * len(step)}
        )
        tables, skips = {"step": renamed, **result.data}, (*result.skips, *projected.skips)
        result = structs.replace(result, data=tables, skips=skips)
    out.deliver(result, inputs=[results.before, results.after, *traces.paths])
    return int(bool(result.meta["broken"]))
