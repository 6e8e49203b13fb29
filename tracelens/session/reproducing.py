"""Writes scripts that replay single calls of a trace."""

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
    """Write a script for each of the longest calls; `tracelens replay verify FOLDER` runs them all.

    Args:
        run: from `load`, or a path.
        folder: where to.
        op: only ops and collectives that match this pattern: "aten::mm", "allreduce".
        shapes: only calls with tensors of all these sizes, each "4096,2048" or (4096, 2048).
        module: only calls inside a matching annotation or Python frame, and their gradients.
        rank: only calls of this rank.
        step: only this step, "2" or 2 for ProfilerStep#2.
        top: number of scripts, longest total time first; None for all.
        by: rank by GPU time, or by time above the roofline.
        finding: only work that runs while this detector of the findings table costs time.
        at_ns: only what starts or runs at this time, with its callees.
        base: only ops that changed since this run, see `row`.
        row: of the table changes of `tracelens.diff(base, run)`.
        sequence: write whole MoE layers instead, one script per direction.
        max_elements: scale sizes down until no tensor has more elements.
        first_ranks: cut collectives down to the first ranks of their group.
        device: for rooflines instead of the traced one.
        device_file: the same from a TOML file.
        partial: whether ranks may be missing.
        progress: called with a line of text before each part.

    Returns:
        table `scripts`; skips: calls without a script.

    Raises:
        TracelensError: nothing in the trace matches, or the folder cannot be written.
    """
    from tracelens.reproducers import replay as write
    from tracelens.reproducers import replay_layers

    peaks = _peaks(device, device_file)
    narrowed = at_step(loaded(run, partial=partial, progress=progress), step)
    if sequence:
        return replay_layers(narrowed, Path(folder), max_elements=max_elements)
    request = _Request(op, shapes, module, rank, at_ns, finding, base, row, partial)
    sizes: dict[str, Any] = {"max_elements": max_elements, "first_ranks": first_ranks, "device": peaks}
    selection = request.selection(narrowed, peaks)
    return write(narrowed, Path(folder), selection, top=top, order=by, **sizes, progress=progress)


class _Request(NamedTuple):
    """The calls to replay, as in `replay`."""

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
        """The calls; raises TracelensError for an unknown rank, finding or row, or a malformed shape."""
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
        """The ops in a row of what changed since the base; empty without one."""
        if self.base is None:
            return []
        base = loaded(self.base, partial=self.partial)
        changes = diff(base, run)["diff"].data["changes"]
        if not 1 <= self.row <= len(changes):
            raise TracelensError(f"no row {self.row}: {len(changes)} rows changed")
        names = changes.texts("cand")[self.row - 1].split(", ")
        if names == [""]:
            removed = changes.texts("base")[self.row - 1].split(", ")[0]
            base_path = ", ".join(trace.meta.path for trace in base.traces[:1])
            raise TracelensError(f"row {self.row} exists only in {base_path}: replay that, --op {removed}")
        return names


def _peaks(name: str | None, file: StrPath | None) -> Device | None:
    from tracelens.analysis.common import choose_device

    return choose_device(name, None if file is None else os.fspath(file))
