"""`Run` as users have it: the traces of a job, and its kernels, ops and collectives as DataFrames."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tracelens.read import TraceFiles
from tracelens.session.reading import Graphs, loaded
from tracelens.session.request import Progress, StrPath, quiet
from tracelens.trace import Run as TraceRun
from tracelens.trace import Scope

if TYPE_CHECKING:
    import pandas as pd


def load(
    *paths: StrPath,
    partial: bool = False,
    captures: StrPath = "",
    twin: StrPath = "",
    progress: Progress = quiet,
) -> LoadedRun:
    """Read traces: files (JSON, plain or .gz, .zst, .zip), directories of ranks, "-" for stdin.

    Args:
        paths: one or more; several traces are the ranks of one job. Patterns ("traces/rank*.json.gz") and,
            with the extra `remote`, addresses (s3://, https://, ...) are files and directories too.
        partial: whether ranks may be missing.
        captures: trace of the captures of its graphs, or a folder of them; by default `capture_traces` beside
            each trace, where there is one. What a graph launch replays is attributed from them.
        twin: trace of the same program without graphs, or a folder of its ranks, from which graph launches
            are attributed as well.
        progress: called with a line of text before each file.

    Returns:
        the run, its traces in order of rank.

    Raises:
        ParseError: a file holds no intact trace, or two claim one rank; the message names them.
    """
    reads = Graphs(partial=partial, captures=os.fspath(captures), twin=os.fspath(twin), progress=progress)
    return LoadedRun(loaded(TraceFiles(paths), None, reads).traces)


class LoadedRun(TraceRun, frozen=True):
    """The traces of one job, from `tracelens.load`.

    Its methods return wide DataFrames: one row per kernel, op call or collective, with everything that the
    analyzers know of it. Times are integers in nanoseconds, sizes are in bytes; names end with the unit
    (`dur_ns`, `read_bytes`, `flops_per_s`); efficiencies are 0 to 1. Repeated texts are categoricals. Unknown
    numbers are missing values, which comparisons, sums and means leave out; unknown texts are "". A rank
    without GPU work has no rows.

    Attributes:
        traces: one per rank, in order of rank.
    """

    def kernels(
        self,
        *,
        step: str | int | None = None,
        rank: int | Iterable[int] | None = None,
        scope: Scope = "all",
        device: str | None = None,
        device_file: StrPath | None = None,
    ) -> pd.DataFrame:
        """Every kernel, copy and memset.

        `dur_ns` counts overlapping work twice; `exclusive_ns` adds up to the time in which the GPU is busy.

        Args:
            step: only this step, "2" or 2 for ProfilerStep#2; work that crosses its borders is cut there. Or
                "decode", "prefill" or "mixed" for all steps of this phase of serving.
                Without it, the column `step` names the step that launched the work.
            rank: only this rank, or these.
            scope: "all", or "linked" for work whose launch call is in the trace.
            device: measure against this device instead of the one in the trace, as in
                `tracelens list devices`.
            device_file: measure against the device that this TOML file describes.

        Returns:
            one row per kernel, copy and memset, by rank and start: step, MoE stage, layer and phase, module,
            op, shapes, category, stream, times in ns, FLOPs, bytes, roofline time in ns, efficiency.

        Raises:
            TracelensError: no such step, rank, scope or device.
        """
        from tracelens.analysis.wide import kernel_frame, select

        return kernel_frame(select(self, step, rank, scope, device, device_file))

    def ops(
        self,
        *,
        step: str | int | None = None,
        rank: int | Iterable[int] | None = None,
        scope: Scope = "all",
        device: str | None = None,
        device_file: StrPath | None = None,
    ) -> pd.DataFrame:
        """Every op call that launched GPU work itself.

        GPU work belongs to the innermost op around its launch call, so sums count nothing twice. Work
        without an op around its launch call is in `kernels` only.

        Args:
            step: only this step, as for `kernels`.
            rank: only this rank, or these.
            scope: "all", or "linked" for work whose launch call is in the trace.
            device: measure against this device, as for `kernels`.
            device_file: measure against the device that this TOML file describes.

        Returns:
            one row per op call, by rank and order of the trace: step, MoE stage, layer and phase, module,
            shapes, time on the host and on the GPU in ns, FLOPs, bytes, roofline time in ns, efficiency.

        Raises:
            TracelensError: no such step, rank, scope or device.
        """
        from tracelens.analysis.wide import op_frame, select

        return op_frame(select(self, step, rank, scope, device, device_file))

    def collectives(
        self,
        *,
        step: str | int | None = None,
        rank: int | Iterable[int] | None = None,
        scope: Scope = "all",
        device: str | None = None,
        device_file: StrPath | None = None,
    ) -> pd.DataFrame:
        """Every collective, on each rank that took part.

        Waiting, latency and bandwidth need the traces of at least two ranks of the process group.

        Args:
            step: only this step, as for `kernels`.
            rank: only the rows of this rank, or these; all ranks are matched.
            scope: "all", or "linked" for work whose launch call is in the trace.
            device: measure against this device, as for `kernels`.
            device_file: measure against the device that this TOML file describes.

        Returns:
            one row per collective and rank, by rank and start: step, MoE stage, layer and phase, process
            group and its role, sizes in bytes, time of the kernel divided into waiting and moving data in ns,
            latency in ns, bandwidths in bytes per s, the rank that arrived last.

        Raises:
            TracelensError: no such step, rank, scope or device.
        """
        from tracelens.analysis.wide import collective_frame, select

        return collective_frame(select(self, step, rank, scope, device, device_file))


Run = LoadedRun
"""Its public name."""
