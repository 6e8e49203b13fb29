"""Scripts that run single ops of a trace again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tracelens.errors import TracelensError
from tracelens.session.comparison import diff
from tracelens.session.reading import Progress, Source, StrPath, at_step, loaded, quiet

if TYPE_CHECKING:
    from tracelens.devices import Device
    from tracelens.reproducers.select import Selection
    from tracelens.table import Result
    from tracelens.trace import Run


def replay(
    run: Source, folder: StrPath, *, op: str = "", shapes: str | Sequence[str | Sequence[int]] = (),
    module: str = "", rank: int | None = None, step: str | int | None = None, top: int | None = 20,
    by: Literal["time", "recoverable"] = "time", finding: str = "", at_ns: int | None = None,
    base: Source | None = None, row: int = 1, sequence: bool = False, max_elements: int | None = None,
    first_ranks: int | None = None, device: str | None = None, device_file: StrPath | None = None,
    partial: bool = False, progress: Progress = quiet,
) -> Result:  # fmt: skip
    """Write a script for each call with most time; `tracelens replay verify FOLDER` runs them all.

    Args:
        run: from `load`, or a path.
        folder: where to.
        op: only ops and collectives that fit this pattern: "aten::mm", "allreduce".
        shapes: only calls with tensors of all these sizes, each "4096,2048" or (4096, 2048).
        module: only calls in a scope or Python frame that fits this pattern, and their gradients.
        rank: only calls of this rank.
        step: only this step, "2" or 2 for ProfilerStep#2.
        top: at most so many scripts, those with most time; None for all.
        by: what most means: GPU time, or that above the roofline.
        finding: only what runs while time is lost to this detector of the findings table.
        at_ns: only what starts or runs at this time, and all that it calls.
        base: only ops of what changed since this run, in `row` of `tracelens.diff(base, run)`, changes.
        row: of the changes, see `base`.
        sequence: whole MoE layers instead, one script a direction.
        max_elements: scale sizes down until no tensor has more elements.
        first_ranks: cut collectives down to so many ranks of their group.
        device: whose roofline counts, instead of that of the trace's own.
        device_file: TOML file that describes it.
        partial: whether ranks may be missing between others.
        progress: called with a line of text before each part.

    Returns:
        table `scripts`; skips: what was asked for and could not be made.

    Raises:
        TracelensError: nothing in the trace is what was asked for, or the folder cannot be written.
    """
    from tracelens.reproducers import replay as write
    from tracelens.reproducers import replay_layers

    peaks = _peaks(device, device_file)
    narrowed = at_step(loaded(run, partial=partial, progress=progress), step)
    if sequence:
        return replay_layers(narrowed, Path(folder), max_elements=max_elements)
    wanted = _Request(op, shapes, module, rank, at_ns, finding, base, row, partial).selection(narrowed, peaks)
    sizes: dict[str, Any] = {"max_elements": max_elements, "first_ranks": first_ranks, "device": peaks}
    return write(narrowed, Path(folder), wanted, top=top, order=by, **sizes, progress=progress)


class _Request(NamedTuple):
    """Which calls are asked for, as in `replay`."""

    op: str
    shapes: str | Sequence[str | Sequence[int]]
    module: str
    rank: int | None
    at_ns: int | None
    finding: str
    base: Source | None
    row: int
    partial: bool

    def selection(self, run: Run, peaks: Device | None) -> Selection:
        """What is asked for of this run.

        Raises:
            TracelensError: it has no such rank, finding or change, or a shape is none.
        """
        from tracelens.reproducers.select import Selection, sizes, time_of

        if self.rank is not None and self.rank not in run.ranks:
            has = ", ".join(map(str, run.ranks))
            raise TracelensError(f"no rank {self.rank} in the trace; it has {has}")
        shapes = [self.shapes] if isinstance(self.shapes, str) and self.shapes else self.shapes
        return Selection(
            op=self.op,
            ops=self._changed(run),
            shapes=tuple(sizes(shape) if isinstance(shape, str) else tuple(shape) for shape in shapes),
            module=self.module,
            rank=-1 if self.rank is None else self.rank,
            at_ns=self.at_ns,
            during=time_of(run, self.finding, peaks) if self.finding else None,
        )

    def _changed(self, run: Run) -> list[str]:
        """The ops that a row of what changed between two runs names; none without a base."""
        if self.base is None:
            return []
        base = loaded(self.base, partial=self.partial)
        changes = diff(base, run)["diff"].data["changes"]
        if not 1 <= self.row <= len(changes):
            raise TracelensError(f"no row {self.row}: {len(changes)} rows changed")
        names = changes.texts("cand")[self.row - 1].split(", ")
        if names == [""]:
            gone = changes.texts("base")[self.row - 1].split(", ")[0]
            base_path = ", ".join(trace.meta.path for trace in base.traces[:1])
            raise TracelensError(f"row {self.row} exists only in {base_path}: replay that, --op {gone}")
        return names


def _peaks(name: str | None, file: StrPath | None) -> Device | None:
    from tracelens.analysis.common import choose_device

    return choose_device(name, None if file is None else os.fspath(file))
