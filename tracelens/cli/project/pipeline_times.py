"""What `tracelens project pipeline` simulates: its numbers and times, from options, a run or a roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tracelens.cli.common import progress
from tracelens.errors import TracelensError

if TYPE_CHECKING:
    from tracelens.planner.memory import Kept
    from tracelens.planner.pipeline import Costs, Setting, Source
    from tracelens.planner.pipeline.measured import Measured

_EVERY = "all"
_MOST = 1e12
_OWN_OPTION = {
    "pp": "--pp",
    "vpp": "--vpp",
    "ranks": "--gpus",
    "micro_batches": "--micro-batches",
    "pp_layout": "--layout",
}


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


class Recorded(NamedTuple):
    """What the command line says of a recorded run."""

    paths: list[str]
    step: str | None
    partial: bool


class Modelled(NamedTuple):
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
    kept: Kept | None = None

    def setting(self, p2p_us: float | None, weight_share: float, activation_bytes: int) -> Setting:
        """All of it, with what the command line says of costs."""
        from tracelens.planner.pipeline import Setting

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
            kept=self.kept,
            told=self.told,
        )


def find(
    asked: Asked,
    recorded: Recorded | None,
    modelled: Modelled | None,
    forward_ms: float | None,
    backward_ms: float | None,
    exchange_share: float,
) -> Found:
    """The times from the one source that is given.

    Raises:
        TracelensError: none is, or several are.
    """
    if sum(given is not None for given in (recorded, forward_ms, modelled)) != 1:
        raise TracelensError(
            "say where the times are from: --forward-ms, --from with the traces of a run, or --model"
        )
    if recorded is not None:
        found = _measured(asked, recorded)
    elif modelled is not None:
        found = _roofline(asked, modelled)
    else:
        assert forward_ms is not None
        found = _given(asked, forward_ms, backward_ms, exchange_share)
    _check_used(asked, found.schedules)
    return found


def _measured(asked: Asked, recorded: Recorded) -> Found:
    """The times of a run, and its own numbers where the command line has none."""
    import tracelens

    with progress() as line:
        run = tracelens.load(*recorded.paths, partial=recorded.partial, progress=line)
        from tracelens.planner.pipeline import find_chunks
        from tracelens.planner.pipeline.measured import measure, measured_costs, measured_source

        if recorded.step is not None:
            from tracelens.trace import select_step

            run = select_step(run, recorded.step)
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


def _roofline(asked: Asked, run: Modelled) -> Found:
    if run.device is None:
        raise TracelensError("a roofline needs --device: see `tracelens list devices`")
    if asked.layers:
        raise TracelensError("--layers is for a model that nothing else tells of; --model does: leave it out")
    from tracelens.devices import device as named
    from tracelens.planner.config import read_config
    from tracelens.planner.pipeline import activations, roofline

    for name in (text.partition("=")[0].strip() for text in run.assignments):
        if option := _OWN_OPTION.get(name):
            raise TracelensError(f"--set {name}: give {option} instead")
    stages, count, chunks = _numbers(asked)
    # Chunks are the schedule's matter; a run needs as many micro-batches as stages.
    fields = {"micro_batch" if name == "mbs" else name: value for name, value in run.fields.items()}
    fields |= {"ranks": run.gpus or stages, "pp": stages, "vpp": 1, "micro_batches": max(count, stages)}
    given = [f"{name}={value}" for name, value in fields.items() if value is not None]
    config = read_config(run.model, [*given, "pp_layout=", *run.assignments])
    device = named(run.device)
    source, costs = roofline(config, device)
    told = f"roofline of {run.model} on {device.name}: no run is faster"
    names, kept = _names(asked.schedules, chunks), activations(config)
    return Found(asked, names, stages, count, chunks, source, costs, told, kept=kept)


def _given(asked: Asked, forward_ms: float, backward_ms: float | None, exchange_share: float) -> Found:
    """The times of the command line."""
    from tracelens.planner.pipeline import Costs, Uniform

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
    from tracelens.planner.pipeline import SCHEDULES

    if given and _EVERY in given:
        return [name for name in SCHEDULES if chunks > 1 or SCHEDULES[name].chunks != "any"]
    return given or (["1f1b", "interleaved"] if chunks > 1 else ["1f1b"])


def _check_used(asked: Asked, names: Sequence[str]) -> None:
    """Raise TracelensError for chunks or turns that none of the schedules has."""
    from tracelens.planner.pipeline import SCHEDULES, find_chunks

    if asked.turn and not any(name in SCHEDULES and SCHEDULES[name].chunks == "any" for name in names):
        raise TracelensError("--turn is for interleaved schedules: add --vpp, or leave it out")
    if (chunks := asked.chunks) and chunks not in (found := [find_chunks(name, chunks) for name in names]):
        raise TracelensError(
            f"none of the schedules has {chunks} chunks a stage, but {max(found)}: change --vpp or --schedule"
        )


def whole(number: float) -> int:
    """The nearest whole number of ns or bytes; raises TracelensError for what no pass takes or keeps."""
    # A nan is not below anything either; sums over all passes of a step stay below 64 bits.
    if not number <= _MOST:
        raise TracelensError("a time must be at most 1,000 s, and activations at most 1,000 GB")
    return round(max(number, -1))


def check_owners(owner: str, value: object, options: Mapping[str, object]) -> None:
    """Raise TracelensError for an option of a source of times that is not asked for.

    Args:
        owner: option that asks for the source.
        value: its value, None where it is not given.
        options: values of those that go with it, likewise.
    """
    for name, given in options.items():
        if value is None and given is not None:
            raise TracelensError(f"--{name} goes with {owner}: give both or neither")
