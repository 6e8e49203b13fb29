"""From a run to a directory of scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import numpy as np
import orjson
from msgspec.structs import replace

from tracelens.analysis.common import own_device
from tracelens.analysis.roofline import least_ns, reachable_time
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.reproducers.arguments import NotedCalls, Unreplayable
from tracelens.reproducers.caches import argument_ages
from tracelens.reproducers.calls import (
    OpCase,
    ReplaySelection,
    cases,
    fits,
    merged,
    selected_work,
    unreplayed,
)
from tracelens.reproducers.collectives import collectives
from tracelens.reproducers.folder import CANDIDATES, GENERATED, README, Entry, Script, write
from tracelens.reproducers.generated import generated_scripts
from tracelens.reproducers.layers import sequences
from tracelens.reproducers.scripts import UNFAITHFUL, script
from tracelens.table import Column, Result, Schema, Skip, result
from tracelens.trace import Run, describe
from tracelens.version import __version__

Order = Literal["time", "recoverable"]
TOP = 20
_NO_ROOFLINE = "no roofline for any of these calls: see uncovered ops in `tracelens analyze roofline`"

_HAND_OVER = """# Kernels worth writing

Calls with the most time above what {device} reaches for work of their kind and size. A script needs only
torch: it makes the traced inputs, checks the result against double precision, and times the call. Put your
kernel into its `call()` and run it again.

| script | calls | traced µs | target µs | roofline µs | gain ms |
|---|---:|---:|---:|---:|---:|
{table}

`candidates.json` has the same with kernels, FLOPs and bytes. "gain" is what all calls of the trace would save
at the target.

```sh
# check and time one; then all of them, with cold and warm caches
python {file}
tracelens replay verify . -o before.json

# NVIDIA
ncu --set full --launch-skip 2 --launch-count 5 python {file}

# AMD
rocprofv3 --kernel-trace --stats -- python {file}
rocprof-compute profile -n candidate -- python {file}
rocprof-compute analyze -p workloads/candidate/*
```
"""

SCRIPTS = Schema(
    "Scripts",
    (
        Column("file", "str", doc="the script, in the output directory"),
        Column("subject", "str", doc="op, collective, or the sequence"),
        Column("shapes", "str", doc="tensor arguments, or message"),
        Column("count", "int64", "count", "traced calls that the script represents"),
        Column("traced_ns", "int64", "ns", "median traced time per call, 0 where sizes are scaled down"),
        Column("total_ns", "int64", "ns", "all these calls together"),
        Column("fraction_of_gpu_time", "float64", "fraction", "share of the GPU time of all ranks"),
        Column("processes", "int64", "count", "ranks that run it"),
    ),
    doc="Run one with `python FILE`, all with `tracelens replay verify DIR`.",
)

TABLES = {"scripts": SCRIPTS}


def quiet(_: str) -> None:
    """No progress."""


def replay(
    run: Run,
    folder: Path,
    selection: ReplaySelection | None = None,
    *,
    top: int | None = TOP,
    order: Order = "time",
    device: Device | None = None,
    max_elements: int | None = None,
    first_ranks: int | None = None,
    hand_over: bool = False,
    values: Mapping[str, bytes] | None = None,
    trust_generated: bool = False,
    progress: Callable[[str], None] = quiet,
) -> Result:
    """Write scripts for calls and collectives of a run.

    Args:
        run: the ranks.
        folder: where to.
        selection: which calls; default all.
        top: how many scripts at most, those with most time; None for all.
        order: time, or what could be won back of it up to the roofline, which collectives have none of.
        device: whose roofline counts, instead of that of the trace's own.
        max_elements: scale sizes down until no tensor has more elements.
        first_ranks: cut collectives down to so many ranks of their group.
        hand_over: add what whoever writes kernels needs: candidates.json with roofline and target times, and
            a README with the commands of profilers. Needs `order="recoverable"`.
        values: contents of the files that the recorder wrote beside the traces, by name.
        trust_generated: write scripts that run what torch.compile generated, as it lies in `values`.
        progress: called with a line of text before each part.

    Returns:
        table `scripts`; skips: what was asked for and could not be made. meta: `fraction`, the share of the
        GPU time of all ranks that the scripts stand for, and `not_written`, how many more there would be.

    Raises:
        TracelensError: nothing in the trace is what was asked for, or the folder cannot be written.
    """
    selection = selection or ReplaySelection()
    noted, skips, noted_skips = NotedCalls(), list[Skip](), list[Skip]()
    for name, content in (values or {}).items():
        try:
            noted.read(content)
        except TracelensError as error:
            noted_skips.append(Skip(name, str(error)))
    noted_skips += [Skip("values beside the trace", f"left out when recorded: {cut}") for cut in noted.cuts]
    progress("finding calls")
    works = [selected_work(trace, selection) for trace in run.traces]
    calls = merged([cases(trace, work) for trace, work in zip(run.traces, works, strict=True)])
    recent: dict[tuple[str, ...], tuple[int | None, ...]] = {}
    if not all(_was_noted(case, noted) for case in calls):
        for trace in run.traces[::-1]:
            recent |= argument_ages(trace)
    calls = [_known(case, noted, recent) for case in calls]
    calls = [case for case in calls if fits(case, selection)]
    candidates: list[tuple[float, OpCase | Script]] = []  # us that each is worth
    peaks = device or own_device(run.traces[0])
    if order == "time":
        candidates = [(case.total_ns / 1e3, case) for case in calls]
        if not selection.ops_only:
            progress("finding collectives")
            of_collectives, skips = collectives(run, ranks=first_ranks, during=selection.during)
            candidates += [
                (reproducer.total_us, reproducer)
                for reproducer in of_collectives
                if fnmatchcase(reproducer.subject, selection.op or "*")
            ]
            if trust_generated:
                candidates += [
                    (reproducer.total_us, reproducer)
                    for reproducer in generated_scripts(run, works, noted)
                    if fnmatchcase(reproducer.subject, selection.op or "*")
                ]
    else:  # time above the roofline; calls without one are left out
        if peaks is None:
            raise TracelensError("no roofline: the trace names no known device; pass --device")
        for case in calls:
            least = least_ns(case.cost, peaks) if case.cost is not None else 0
            if hand_over and case.cost is not None:
                least = max(least, reachable_time(case.call.op, case.cost, peaks).ns)
            if least > 0:
                candidates.append(((case.total_ns - least * len(case.times)) / 1e3, case))
    if not candidates:
        raise TracelensError(_NO_ROOFLINE if calls else _why_nothing(run, selection, noted, trust_generated))

    progress("writing scripts")
    candidates.sort(key=lambda candidate: -candidate[0])
    candidates.reverse()  # the last is taken first
    scripts: list[Script] = []
    taken: list[OpCase] = []
    refused: dict[tuple[str, str], list[OpCase]] = {}
    while candidates and len(scripts) != top:
        _, origin = candidates.pop()
        try:
            scripts.append(script(origin, max_elements) if isinstance(origin, OpCase) else origin)
            taken += [origin] if isinstance(origin, OpCase) else []
        except Unreplayable as error:
            assert isinstance(origin, OpCase)
            refused.setdefault((origin.call.op, str(error)), []).append(origin)
    refusals = []
    for (op, reason), refused_cases in refused.items():
        shapes = describe(refused_cases[0].call.shapes, refused_cases[0].call.dtypes)
        more = f" and {len(refused_cases) - 1} more of other shapes" if len(refused_cases) > 1 else ""
        refusals.append(Skip(f"{op} {shapes}".strip() + more, reason))
    if selection.selects_all:
        skips += [skip for skip in refusals if skip.reason.startswith(UNFAITHFUL)]
        skips += [
            skip for trace in run.traces for skip in unreplayed(trace, trace.work, noted, trust_generated)
        ]
    else:
        skips = refusals + [
            skip for skip in skips if selection.op and fnmatchcase(skip.subject, f"*{selection.op}*")
        ]
    skips += noted_skips

    def beside(entries: list[Entry]) -> dict[str, bytes]:
        if hand_over and peaks is not None:  # calls with a roofline, which generated kernels have not
            gpu_ns = sum(int(trace.work.dur.sum()) for trace in run.traces)
            return handed_over(taken, entries, peaks, gpu_ns)
        used = {entry.source for entry in entries} - {""}
        return {GENERATED.format(source): noted.sources[source].encode() for source in used}

    return _written(run, folder, scripts, skips, len(candidates), beside)


def _was_noted(case: OpCase, noted: NotedCalls) -> bool:
    """Whether the recorder noted such calls, which it does of none that graphs replay."""
    return noted.has_calls and "trace" in case.sources


def _known(
    case: OpCase, noted: NotedCalls, recent: Mapping[tuple[str, ...], tuple[int | None, ...]]
) -> OpCase:
    """The case with what the recorder noted of such calls, else with the ages that the trace tells."""
    call = noted.of(case.call.op, case.call.shapes, case.call.dtypes)
    if _was_noted(case, noted):
        return case._replace(noted=call, ages=call.ages if call else ())
    return case._replace(noted=call, ages=recent.get((case.call.op, *case.call.recorded), ()))


def handed_over(
    calls: Sequence[OpCase], entries: Sequence[Entry], device: Device, gpu_ns: int
) -> dict[str, bytes]:
    """The files beside the scripts of these calls, by name.

    The target of a call is what the device reaches for work of its kind and size, as measured on it or on one
    of which it is a known multiple; where that is not known, the roofline.
    """
    rows: list[dict[str, object]] = []
    for case, entry in zip(calls, entries, strict=True):
        assert case.cost is not None
        roofline_ns = least_ns(case.cost, device)
        reachable_ns = reachable_time(case.call.op, case.cost, device).ns or roofline_ns
        traced_ns, total_ns = float(np.median(case.times)), case.total_ns
        target_ns = min(max(reachable_ns, roofline_ns), traced_ns)
        rows.append(
            {
                "file": entry.file,
                "op": entry.subject,
                "shapes": entry.shapes,
                "kernels": list(case.kernels),
                "calls": entry.count,
                "traced_ns": traced_ns,
                "roofline_ns": roofline_ns,
                "target_ns": target_ns,
                "total_ns": total_ns,
                "gain_ns": max(total_ns - target_ns * entry.count, 0.0),
                "fraction_of_gpu_time": total_ns / max(gpu_ns, 1),
                "flops": case.cost.flops,
                "read_bytes": case.cost.read_bytes,
                "write_bytes": case.cost.write_bytes,
            }
        )
    listed = {"device": device.name, "tracelens": __version__, "candidates": rows}
    table = "\n".join(
        f"| `{entry.file}` | {entry.count:,} | "
        + " | ".join(
            f"{float(str(row[key])) / 1e3:,.1f}" for key in ("traced_ns", "target_ns", "roofline_ns")
        )
        + f" | {float(str(row['gain_ns'])) / 1e6:,.2f} |"
        for entry, row in zip(entries, rows, strict=True)
    )
    readme = _HAND_OVER.format(device=device.name, table=table, file=entries[0].file if entries else "FILE")
    return {CANDIDATES: orjson.dumps(listed, option=orjson.OPT_INDENT_2), README: readme.encode()}


def replay_layers(run: Run, folder: Path, *, max_elements: int | None = None) -> Result:
    """Write a script for each direction of an MoE layer: its whole sequence of ops, of the first rank.

    Args and returns as for `replay`; `count` is the number of layers with the same ops.

    Raises:
        TracelensError: the folder cannot be written, or the trace shows no MoE layer.
    """
    scripts, skips = sequences(run.traces[0], max_elements=max_elements)
    if not scripts:
        raise TracelensError("; ".join(dict.fromkeys(f"{skip.subject}: {skip.reason}" for skip in skips)))
    return _written(run, folder, scripts, skips, 0)


def _why_nothing(run: Run, selection: ReplaySelection, noted: NotedCalls, trust_generated: bool) -> str:
    if selection.selects_all:
        skips = [
            skip for trace in run.traces for skip in unreplayed(trace, trace.work, noted, trust_generated)
        ]
        if skips:
            return f"nothing can be replayed: {skips[0].subject}: {skips[0].reason}"
        meta = run.traces[0].meta
        why = f": {meta.path}: {meta.no_work}" if meta.no_work else ""
        return f"nothing can be replayed: there is no GPU work{why}"
    if selection.during is not None and not any(
        len(selected_work(trace, selection).event) for trace in run.traces
    ):
        return "no op or collective runs on the GPU while this finding costs time"
    largest = merged([cases(trace, trace.work) for trace in run.traces])
    names = list(dict.fromkeys(case.call.op for case in largest))[:5]
    return f"no call matches; the largest are {', '.join(names) or 'none'}"


def _written(
    run: Run,
    folder: Path,
    scripts: Sequence[Script],
    skips: Sequence[Skip],
    not_written: int,
    beside: Callable[[list[Entry]], dict[str, bytes]] | None = None,
) -> Result:
    entries = write(folder, scripts, skips, beside)
    gpu_ns = max(sum(int(trace.work.dur.sum()) for trace in run.traces), 1)
    total = [round(reproducer.total_us * 1e3) for reproducer in scripts]
    columns = {
        "file": [entry.file for entry in entries],
        "subject": [reproducer.subject for reproducer in scripts],
        "shapes": [reproducer.shapes for reproducer in scripts],
        "count": [reproducer.count for reproducer in scripts],
        "traced_ns": [round(reproducer.traced_us * 1e3) for reproducer in scripts],
        "total_ns": total,
        "fraction_of_gpu_time": [ns / gpu_ns for ns in total],
        "processes": [reproducer.processes for reproducer in scripts],
    }
    meta = {"fraction_of_gpu_time": sum(total) / gpu_ns, "not_written": not_written}
    tables = {"scripts": SCRIPTS.concat([columns] if scripts else [])}
    replay_result = result(tables, skips, **meta)
    return replace(
        replay_result,
        analyzer="replay",
        title="Replay",
        doc="Traced calls as standalone scripts.",
        command="tracelens replay PATH -o DIR --json",
    )
