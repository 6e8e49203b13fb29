"""From a run to a directory of scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, NamedTuple

from tracelens.analysis.common import own_device
from tracelens.analysis.roofline import least_ns
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.reproducers.collectives import collectives
from tracelens.reproducers.folder import Script, write
from tracelens.reproducers.inputs import Unreplayable, unreplayed
from tracelens.reproducers.layers import sequences
from tracelens.reproducers.scripts import UNFAITHFUL, script
from tracelens.reproducers.select import Case, Selection, cases, chosen, fits, merged
from tracelens.table import Column, Result, Schema, Skip, result, stack
from tracelens.trace import Run, describe

Order = Literal["time", "recoverable"]
TOP = 20
_NO_ROOFLINE = "none of these calls has a roofline: see `tracelens analyze roofline`, uncovered"

SCRIPTS = Schema(
    "Scripts",
    (
        Column("file", "str"),
        Column("subject", "str", doc="op, collective, or what a sequence is of"),
        Column("shapes", "str", doc="tensor arguments, or message"),
        Column("count", "int64", "count", "calls in the trace that it stands for"),
        Column("traced_ns", "int64", "ns", "median time of one in the trace, 0 where sizes are scaled down"),
        Column("total_ns", "int64", "ns", "of all of them"),
        Column("fraction", "float64", "fraction", "of the GPU time of all ranks"),
        Column("processes", "int64", "count", "that run it together"),
    ),
    doc="Run one with `python FILE`, all with `tracelens replay verify DIR`.",
)


class _Candidate(NamedTuple):
    """What could become a script, and how much it is worth, us."""

    worth_us: float
    what: Case | Script


def _quiet(_: str) -> None:
    """No progress."""


def replay(
    run: Run,
    folder: Path,
    wanted: Selection | None = None,
    *,
    top: int | None = TOP,
    order: Order = "time",
    device: Device | None = None,
    max_elements: int | None = None,
    first_ranks: int | None = None,
    progress: Callable[[str], None] = _quiet,
) -> Result:
    """Write scripts for calls and collectives of a run.

    Args:
        run: the ranks.
        folder: where to.
        wanted: which calls, by default all.
        top: how many scripts at most, those with most time; None for all.
        order: time, or what could be won back of it up to the roofline, which collectives have none of.
        device: whose roofline counts, instead of that of the trace's own.
        max_elements: scale sizes down until no tensor has more elements.
        first_ranks: cut collectives down to so many ranks of their group.
        progress: called with a line of text before each part.

    Returns:
        table `scripts`; skips: what was asked for and could not be made. meta: `fraction`, the share of the
        GPU time of all ranks that the scripts stand for, and `not_written`, how many more there would be.

    Raises:
        TracelensError: nothing in the trace is what was asked for, or the folder cannot be written.
    """
    wanted = wanted or Selection()
    skips: list[Skip] = []
    progress("finding calls")
    works = [chosen(trace, wanted) for trace in run.traces]
    found = merged([cases(trace, work) for trace, work in zip(run.traces, works, strict=True)])
    found = [case for case in found if fits(case, wanted)]
    candidates = _by_time(found) if order == "time" else _recoverable(run, found, device)
    if order == "time" and not wanted.about_calls:
        progress("finding collectives")
        made, skips = collectives(run, ranks=first_ranks)
        some = (one for one in made if fnmatchcase(one.subject, wanted.op or "*"))
        candidates += [_Candidate(one.total_us, one) for one in some]
    if not candidates:
        raise TracelensError(_NO_ROOFLINE if found else _nothing(run, wanted))
    progress("writing scripts")
    candidates.sort(key=lambda one: -one.worth_us)
    scripts, refused, rest = _made(candidates, top, max_elements)
    if wanted.everything:
        skips += [skip for skip in refused if skip.reason.startswith(UNFAITHFUL)]
        skips += [skip for trace in run.traces for skip in unreplayed(trace, trace.work)]
    else:
        skips = refused + [
            skip for skip in skips if wanted.op and fnmatchcase(skip.subject, f"*{wanted.op}*")
        ]
    return _written(run, folder, scripts, skips, rest)


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


def _by_time(found: Iterable[Case]) -> list[_Candidate]:
    return [_Candidate(case.total_ns / 1e3, case) for case in found]


def _recoverable(run: Run, found: Sequence[Case], device: Device | None) -> list[_Candidate]:
    """Time above the roofline; calls without a roofline are left out."""
    peaks = device or own_device(run.traces[0])
    if peaks is None:
        raise TracelensError("the trace names no known device, so there is no roofline; name one: --device")
    candidates = []
    for case in found:
        if case.cost is not None:
            least = least_ns(case.cost, peaks)
            if least > 0:
                candidates.append(_Candidate((case.total_ns - least * len(case.times)) / 1e3, case))
    return candidates


def _made(
    candidates: Sequence[_Candidate], top: int | None, max_elements: int | None
) -> tuple[list[Script], list[Skip], int]:
    """Scripts of the first candidates, why others are none, and how many are left."""
    scripts: list[Script] = []
    refused: dict[tuple[str, str], list[Case]] = {}
    left = list(reversed(candidates))
    while left and len(scripts) != top:
        what = left.pop().what
        try:
            scripts.append(script(what, max_elements) if isinstance(what, Case) else what)
        except Unreplayable as error:
            assert isinstance(what, Case)
            refused.setdefault((what.call.op, str(error)), []).append(what)
    skips = [Skip(_named(op, some), reason) for (op, reason), some in refused.items()]
    return scripts, skips, len(left)


def _named(op: str, some: Sequence[Case]) -> str:
    """Calls of an op that cannot be made scripts."""
    shapes = describe(some[0].call.shapes, some[0].call.dtypes)
    more = f" and {len(some) - 1} more of other shapes" if len(some) > 1 else ""
    return f"{op} {shapes}".strip() + more


def _nothing(run: Run, wanted: Selection) -> str:
    """Why there is nothing to replay."""
    if wanted.everything:
        skips = [skip for trace in run.traces for skip in unreplayed(trace, trace.work)]
        why = f"{skips[0].subject}: {skips[0].reason}" if skips else "there is no GPU work"
        return f"nothing can be run again: {why}"
    if wanted.during is not None and not any(len(chosen(trace, wanted).event) for trace in run.traces):
        return "no op of the trace runs on the GPU while time is lost to this finding"
    largest = merged([cases(trace, trace.work) for trace in run.traces])
    names = list(dict.fromkeys(case.call.op for case in largest))[:5]
    return f"no call is what was asked for; the trace's largest are {', '.join(names) or 'none'}"


def _written(
    run: Run, folder: Path, scripts: Sequence[Script], skips: Sequence[Skip], not_written: int
) -> Result:
    entries = write(folder, scripts, skips)
    whole = max(sum(int(trace.work.dur.sum()) for trace in run.traces), 1)
    total = [round(one.total_us * 1e3) for one in scripts]
    columns = {
        "file": [entry.file for entry in entries],
        "subject": [one.subject for one in scripts],
        "shapes": [one.shapes for one in scripts],
        "count": [one.count for one in scripts],
        "traced_ns": [round(one.traced_us * 1e3) for one in scripts],
        "total_ns": total,
        "fraction": [ns / whole for ns in total],
        "processes": [one.processes for one in scripts],
    }
    meta = {"fraction": sum(total) / whole, "not_written": not_written}
    tables = {"scripts": stack(SCRIPTS, [columns] if scripts else [])}
    told = result(tables, skips, **meta)
    return replace(told, analyzer="replay", title="Replay", doc="Calls of a trace as scripts that run alone.")
