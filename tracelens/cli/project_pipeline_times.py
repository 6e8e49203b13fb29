"""What `tracelens project pipeline` simulates: its numbers and times, from options, a run or a roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from tracelens.cli.common import progress
from tracelens.errors import TracelensError

if TYPE_CHECKING:
    from tracelens.projection.pipeline import Setting
    from tracelens.projection.pipeline.measured import Measured
    from tracelens.projection.pipeline.sources import Source
    from tracelens.projection.pipeline.times import Costs

_EVERY = "all"


class Asked(NamedTuple):
    """What the command line says of the schedules, whatever the times are from."""

    schedules: list[str] | None
    stages: int | None
    microbatches: int | None
    chunks: int | None
    turn: int
    layout: str
    best: bool
    layers: int


class Run(NamedTuple):
    """What the command line says of a model; fields are those of a run, None where it does not say."""

    model: str
    device: str | None
    gpus: int
    fields: Mapping[str, int | None]
    assignments: Sequence[str]


class Found(NamedTuple):
    """What is simulated, with the times for it."""

    asked: Asked
    schedules: list[str]
    stages: int
    microbatches: int
    chunks: int
    source: Source
    costs: Costs
    told: str = ""
    measured: Measured | None = None

    def setting(self, p2p_us: float | None, weight_share: float, activation_bytes: int) -> Setting:
        """All of it, with what the command line says of costs."""
        from tracelens.projection.pipeline import Setting

        costs = self.costs._replace(weight_share=weight_share)
        if p2p_us is not None:
            transit = whole(p2p_us * 1e3)
            costs = costs._replace(forward_transit=transit, backward_transit=transit)
        return Setting(
            self.schedules,
            self.stages,
            self.microbatches,
            self.chunks,
            self.asked.turn,
            self.asked.layout,
            self.asked.best,
            costs,
            rest_ns=self.measured.rest_ns if self.measured is not None else -1,
            activation_bytes=activation_bytes,
            told=self.told,
        )


def find(
    asked: Asked,
    paths: list[str] | None,
    run: Run | None,
    forward_ms: float | None,
    backward_ms: float | None,
    exchange_share: float,
) -> Found:
    """The times from the one source that is given.

    Raises:
        TracelensError: none is, or several are.
    """
    if sum(given is not None for given in (paths, forward_ms, run)) != 1:
        raise TracelensError(
            "say where the times are from: --forward-ms, --from with the traces of a run, or --model"
        )
    if paths is not None:
        return _measured(asked, paths)
    if run is not None:
        return _roofline(asked, run)
    assert forward_ms is not None
    return _given(asked, forward_ms, backward_ms, exchange_share)


def _measured(asked: Asked, paths: list[str]) -> Found:
    """The times of a run, and its own numbers where the command line has none."""
    import tracelens

    with progress() as line:
        run = tracelens.load(*paths, progress=line)
        from tracelens.projection.pipeline.measured import measure
        from tracelens.projection.pipeline.measured_source import measured_costs, measured_source
        from tracelens.projection.pipeline.schedule_file import find_chunks

        line("reading the passes of the pipeline")
        found = measure(run)
    stages, chunks = asked.stages or found.size.stages, asked.chunks or found.size.chunks
    names = _names(asked.schedules, chunks)
    counts = [find_chunks(name, chunks) for name in names]
    source = measured_source(found, stages, counts, asked.layers, bool(asked.layout or asked.best))
    count = asked.microbatches or found.size.microbatches
    if not asked.turn and (stages, chunks) == (found.size.stages, found.size.chunks):
        asked = asked._replace(turn=found.size.group)
    own = source.layers == 0
    told = "as measured: the mean of each chunk" if own else "as measured: the mean of equal layers"
    return Found(asked, names, stages, count, chunks, source, measured_costs(found, stages), told, found)


def _roofline(asked: Asked, run: Run) -> Found:
    """The times of a roofline."""
    if run.device is None:
        raise TracelensError("a roofline needs --device: see `tracelens list devices`")
    from tracelens.config.files import read_config
    from tracelens.devices import device as named
    from tracelens.projection.pipeline.roofline import roofline

    stages, count, chunks = _numbers(asked)
    # Chunks are the schedule's matter; a run needs as many micro-batches as stages.
    fields = {**run.fields, "ranks": run.gpus or stages, "pp": stages, "vpp": 1}
    fields["micro_batches"] = max(count, stages)
    given = [f"{name}={value}" for name, value in fields.items() if value is not None]
    config = read_config(run.model, [*given, "pp_layout=", *run.assignments])
    device = named(run.device)
    source, costs = roofline(config, device)
    told = f"roofline of {run.model} on {device.name}: no run is faster"
    return Found(asked, _names(asked.schedules, chunks), stages, count, chunks, source, costs, told)


def _given(asked: Asked, forward_ms: float, backward_ms: float | None, exchange_share: float) -> Found:
    """The times of the command line."""
    from tracelens.projection.pipeline.sources import Uniform
    from tracelens.projection.pipeline.times import Costs

    stages, count, chunks = _numbers(asked)
    back = 2 * forward_ms if backward_ms is None else backward_ms
    source = Uniform(whole(forward_ms * 1e6), whole(back * 1e6), exchange_share, asked.layers)
    return Found(asked, _names(asked.schedules, chunks), stages, count, chunks, source, Costs())


def _numbers(asked: Asked) -> tuple[int, int, int]:
    """Stages, micro-batches and chunks, where no run tells them."""
    if asked.stages is None or asked.microbatches is None:
        raise TracelensError("give the stages and the micro-batches: --pp and --micro-batches")
    return asked.stages, asked.microbatches, asked.chunks or 1


def _names(given: list[str] | None, chunks: int) -> list[str]:
    """The schedules that are asked for; without any, the usual ones."""
    from tracelens.projection.pipeline.schedules import KINDS

    if given and _EVERY in given:
        return [name for name in KINDS if chunks > 1 or KINDS[name].chunks != "any"]
    return given or (["1f1b", "interleaved"] if chunks > 1 else ["1f1b"])


def whole(number: float) -> int:
    """The nearest whole number of ns or bytes; raises TracelensError for what is none."""
    if not isfinite(number):
        raise TracelensError("times and sizes must be numbers, neither nan nor infinite")
    return round(number)
