"""Collectives as standalone scripts of several ranks, with the traced message sizes, types and split sizes.

A rank that comes early waits for the others inside its kernel. What a trace and a replay have in common is
the rank that waits least, so they are compared by the shortest duration over the ranks of each call: in the
trace `Instance.latency_ns`, in the replay the least of the ranks' device times, where all ranks are held up
before each call until the last one is there. The median over calls is the script's time (`median_us`); that
of the slowest rank (`max_us`) and of each rank (`rank_us`) stand beside it. nccl-tests averages over ranks
instead, and over calls in a row. Bandwidths are nccl-tests', of the largest message of a rank. Where only
some ranks of a group were recorded, the shortest of their durations may contain waiting.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from tracelens.analysis.comm import SEND_RECV, AlignedRun, align_run, bus_factor
from tracelens.dtypes import epsilon
from tracelens.reproducers.collectives.batches import Batch, batches, middle
from tracelens.reproducers.collectives.messages import Matrix, Message, message
from tracelens.reproducers.folder import Script
from tracelens.reproducers.inputs import Unreplayable
from tracelens.reproducers.scripts import (
    COLLECTIVE_KINDS,
    WIDTH,
    Source,
    about,
    literal,
    plain,
    render,
    timed,
)
from tracelens.table import Skip
from tracelens.trace import Run, Scope, Trace, Union

_WAITING = "Recorded only on rank {} of {}: the traced time may include waiting for the others."
_CUT = "The group has {} ranks; messages are cut to the first {}: no traced time to compare with."
_NO_KERNEL = "no GPU kernels; for CPU collectives (gloo) the profiler records no sizes"


def collectives(
    run: Run,
    *,
    ranks: int | None = None,
    scope: Scope = "all",
    during: Mapping[int, Union] | None = None,
) -> tuple[list[Script], list[Skip]]:
    """A script for each different collective: same name, size of the group, element type and sizes.

    Args:
        run: the ranks of a job; also some of them, though all_to_allv needs all of its group.
        ranks: cut groups down to their first ranks, so that fewer GPUs will do; such a script has no traced
            time to be compared with.
        scope: "all", or "linked" for work whose launch call is in the trace.
        during: by rank, ns by the clock of its trace: only collectives that run then on any rank.

    Returns:
        the scripts, those with most time first, and what could not be made, with the reason.
    """
    aligned = align_run(run, scope)
    all_batches, skips = batches(aligned)
    if during is not None:
        all_batches = [batch for batch in all_batches if _runs(batch, during, aligned)]
    devices = sorted({name for trace in run.traces for name in trace.meta.devices.values()})
    by_message: dict[Message, list[Batch]] = {}
    refused: Counter[tuple[str, str]] = Counter()
    for batch in all_batches:
        try:
            by_message.setdefault(message(batch), []).append(batch)
        except Unreplayable as error:
            subject = f"{batch.collectives[0].collective} of group {batch.record.group}"
            refused[subject, str(error)] += 1
    scripts = []
    for full, same_message in by_message.items():
        cut = full if ranks is None else full.cut(ranks)
        if cut.bytes and cut.ranks > 1:
            try:
                scripts.append(_script(full, cut, same_message, devices))
            except Unreplayable as error:
                refused[full.name, str(error)] += len(same_message)
        else:
            refused[full.name, f"no messages among the first {ranks} ranks of its group"] += len(same_message)
    skips += [Skip(f"{count} {subject}", reason) for (subject, reason), count in refused.items()]
    if not all_batches and not skips and any(_on_cpu(trace) for trace in run.traces):
        skips.append(Skip("all collectives", _NO_KERNEL))
    return sorted(scripts, key=lambda script: -script.total_us), skips


def _runs(batch: Batch, during: Mapping[int, Union], aligned: AlignedRun) -> bool:
    """Whether a collective runs on any of its ranks then."""
    for member in batch.participants:
        when = during.get(member.rank)
        own = np.array([[member.start], [member.end]]) - aligned.shift[member.rank]
        if when is not None and len(when.start) and int(when.covered(*own)[0]) > 0:
            return True
    return False


def _on_cpu(trace: Trace) -> bool:
    return any(name.startswith("c10d::") for name in trace.arrays.names)


def _script(traced: Message, cut: Message, same_message: Sequence[Batch], devices: Sequence[str]) -> Script:
    """The script for batches of one message, of which it runs what `cut` leaves."""
    times = [batch.latency_ns / 1e3 for batch in same_message]
    uncut, typical = cut == traced, middle(same_message)
    kept = typical.participants[: cut.ranks] if len(typical.participants) == traced.ranks else ()
    note = (
        "traced_us may include waiting" if uncut and not all(batch.complete for batch in same_message) else ""
    )
    on_cpu = _on_cpu_instead(cut)
    text = render(
        "collective.py.j2",
        {
            "kind": COLLECTIVE_KINDS[cut.kind],
            "matrix": not isinstance(cut.elements, int),
            "by_rank": uncut and bool(kept),
            "starts_known": bool(kept),
            "other_on_cpu": bool(on_cpu),
            "paired": cut.kind == SEND_RECV,
            "bytewise": cut.dtype.startswith("float8"),
            "inexact": COLLECTIVE_KINDS[cut.kind].reduces and cut.ranks > _largest_exact(cut.dtype),
        },
        about=about(_about(traced, cut, same_message, devices)),
        note=note,
        note_on_cpu="; ".join(filter(None, (note, on_cpu))),
        name=cut.name,
        ranks=cut.ranks,
        dtype=cut.dtype,
        elements=_elements(cut.elements),
        bytes=cut.bytes,
        factor=bus_factor(cut.kind, cut.ranks),
        traced_us=round(median(times), 3) if uncut else None,
        traced_on=plain(", ".join(devices)),
        traced_rank_us=_row(
            [(participant.end - participant.start) / 1e3 for participant in kept] if uncut else []
        ),
        start_us=_row([late / 1e3 for late in typical.late_ns[: len(kept)]]),
        most=max(2, min(128, _largest_exact(cut.dtype) // cut.ranks)),
    )
    return Script(
        name=cut.name.strip("_").replace("/", "_"),
        kind="collective",
        subject=cut.name,
        shapes=f"{cut.bytes:,} bytes {cut.dtype}, {cut.ranks} ranks",
        text=text,
        count=len(same_message),
        traced_us=round(median(times), 3) if uncut else 0.0,
        total_us=sum(times),
        processes=cut.ranks,
    )


def _about(traced: Message, cut: Message, same_message: Sequence[Batch], devices: Sequence[str]) -> list[str]:
    times = [batch.latency_ns / 1e3 for batch in same_message]
    names = dict.fromkeys(name.partition("(")[0] for batch in same_message for name in batch.kernels)
    groups = dict.fromkeys(batch.record.description or batch.record.group for batch in same_message)
    lines = [
        f"{traced.name}: {traced.ranks} ranks, up to {traced.bytes:,} bytes {traced.dtype} each, in "
        f"{', '.join(groups)}",
        f"{timed(times, devices)}: {', '.join(names)}",
    ]
    partial = next((batch for batch in same_message if not batch.complete), None)
    if partial:
        present = ", ".join(str(participant.rank) for participant in partial.participants)
        lines.append(_WAITING.format(present, traced.ranks))
    if cut != traced:
        lines.append(_CUT.format(traced.ranks, cut.ranks))
    assumed = [
        "a sum" if COLLECTIVE_KINDS[cut.kind].reduces else "",
        "the first rank as the root" if cut.kind in ("broadcast", "reduce", "gather", "scatter") else "",
        "one tensor of all the bytes" if "coalesced" in cut.name else "",
    ]
    if any(assumed):
        lines.append(f"Assumed, not recorded: {', '.join(filter(None, assumed))}.")
    return lines


def _on_cpu_instead(message: Message) -> str:
    """What gloo runs in the place of the traced collective; "" if it runs the same."""
    if message.dtype.startswith("float8"):
        return f"gloo lacks {message.dtype}: sent as bytes"
    return COLLECTIVE_KINDS[message.kind].instead[1]


def _row(values: Sequence[float]) -> Source:
    """Source of a list of times in us."""
    text = literal([round(value, 1) for value in values])
    return Source("\n".join(textwrap.wrap(text, WIDTH - len("TRACED_RANK_US = "), subsequent_indent="    ")))


def _elements(elements: int | Matrix) -> Source:
    """Source of COUNT: each row of a matrix begins a line."""
    if isinstance(elements, int):
        return Source(literal(elements))
    indent = " " * len("COUNT = [")
    wrap = textwrap.TextWrapper(WIDTH, initial_indent=indent, subsequent_indent=f"{indent} ")
    rows = [line for row in elements for line in wrap.wrap(f"{literal(list(row))},")]
    return Source("\n".join(rows).strip().removesuffix(",").join("[]"))


def _largest_exact(dtype: str) -> int:
    """The whole number up to which all have a value of their own; 127 for narrow integers."""
    spacing = epsilon(dtype)
    return int(2 / spacing) if spacing else {"int64": 1 << 62, "int32": 1 << 30}.get(dtype, 127)
