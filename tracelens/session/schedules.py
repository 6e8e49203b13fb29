"""Pipeline schedules and their bubble, from numbers, a run or the roofline of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tracelens.errors import TracelensError
from tracelens.session.memory import assignments, texts
from tracelens.session.reading import Progress, Source, at_step, loaded, quiet

if TYPE_CHECKING:
    from tracelens.planner.memory import Kept
    from tracelens.planner.pipeline import Costs, Setting
    from tracelens.planner.pipeline import Source as Times
    from tracelens.planner.pipeline.measured import Measured
    from tracelens.table import Result

_EVERY = "all"
_MOST = 1e12
_OWN_OPTION = {
    "pp": "--pp",
    "vpp": "--vpp",
    "ranks": "--gpus",
    "micro_batches": "--micro-batches",
    "pp_layout": "--layout",
}


def project_bubble(
    pp: int,
    global_tokens: int,
    nodes: int,
    *,
    seq: int = 4096,
    mbs: int = 1,
    vpp: int = 1,
    gpus_per_node: int = 8,
    cp: int = 1,
    tp: int = 1,
) -> Result:
    """How much of its time a pipeline stands idle, by the closed forms.

    Args:
        pp: pipeline stages.
        global_tokens: tokens of a step on all GPUs.
        nodes: machines.
        seq: tokens of a sequence.
        mbs: sequences of a micro-batch.
        vpp: chunks of the model on each stage.
        gpus_per_node: GPUs of a machine.
        cp: ranks that share a sequence.
        tp: ranks that share each matrix.

    Returns:
        tables `bubble`, `by_vpp` and, for the numbers of a published measurement, `published`.

    Raises:
        TracelensError: numbers that do not go together.
    """
    from tracelens.planner import Batch, bubble

    return bubble(Batch(pp, global_tokens, seq, nodes, mbs, gpus_per_node, cp, tp), vpp)


def project_pipeline(
    run: Source | None = None, *, schedules: str | Sequence[str] = (), pp: int | None = None,
    micro_batches: int | None = None, vpp: int | None = None, turn: int = 0, partition: str = "",
    best_partition: bool = False, layers: int = 0, step: str | int | None = None, partial: bool = False,
    forward_ms: float | None = None, backward_ms: float | None = None, exchange_share: float | None = None,
    model: str | None = None, device: str | None = None, gpus: int | None = None, ep: int | None = None,
    tp: int | None = None, cp: int | None = None, seq: int | None = None, mbs: int | None = None,
    settings: str | Sequence[str] = (), p2p_us: float | None = None, weight_share: float = 0.5,
    activation_gb: float | None = None, progress: Progress = quiet,
) -> Result:  # fmt: skip
    """Play pipeline schedules: step time, bubble, and what is in flight on each stage.

    Args:
        run: take the times of this run: from `load`, or a path.
        schedules: names ("1f1b", "zb-v", ...), "all", or CSV files as of torch.distributed.pipelining.
        pp: pipeline stages.
        micro_batches: of a step on each rank.
        vpp: chunks of the model on each stage, when interleaved.
        turn: micro-batches of a turn through a chunk, when interleaved; `pp` by default.
        partition: layers of each chunk in the order of the model, as in "3,4,4,3".
        best_partition: look for the partition with the shortest phase.
        layers: of the model, where neither `model` nor scopes of a trace tell.
        step: with `run`, only this step; all by default.
        partial: with a path, whether ranks may be missing between others.
        forward_ms: take this time: forward of a micro-batch on a stage, all its chunks.
        backward_ms: its backward; twice the forward by default.
        exchange_share: of both, what ranks exchange and an overlapping schedule can hide.
        model: take the times of a roofline of this model: a name or a file.
        device: with `model`, on this device.
        gpus: with `model`, of the run; one a stage by default.
        ep: with `model`, ranks that share the experts.
        tp: with `model`, ranks that share each matrix.
        cp: with `model`, ranks that share a sequence.
        seq: with `model`, tokens of a sequence.
        mbs: with `model`, sequences of a micro-batch.
        settings: with `model`, other fields of the run, each like "recompute_layer_ids=0,1".
        p2p_us: a message between stages; by default as measured, by the device's links, or 0.
        weight_share: of a backward, the gradients of weights, for zero-bubble schedules.
        activation_gb: activations of a micro-batch on a stage, where `model` does not tell.
        progress: called with a line of text before each part.

    Raises:
        TracelensError: no source of times or several, or numbers that no schedule has.
    """
    from tracelens.planner.pipeline import pipeline

    asked = _Asked(texts(schedules), pp, micro_batches, vpp, turn, partition, best_partition, layers)
    words = {"ep": ep, "tp": tp, "cp": cp, "seq": seq, "mbs": mbs}
    modelled = _Modelled(model, device, gpus, words, texts(settings))
    given = _Given(forward_ms, backward_ms, exchange_share)
    inputs = _find(asked, _Recorded(run, step, partial, progress), modelled, given)
    return pipeline(inputs.setting(p2p_us, weight_share, activation_gb), inputs.source, inputs.measured)


class _Asked(NamedTuple):
    """What is said of the schedules, whatever the times are from."""

    schedules: list[str]
    stages: int | None
    microbatches: int | None
    chunks: int | None
    turn: int
    layout: str
    best: bool
    layers: int


class _Recorded(NamedTuple):
    """What is said of a recorded run."""

    source: Source | None
    step: str | int | None
    partial: bool
    progress: Progress


class _Given(NamedTuple):
    """Times that are given."""

    forward_ms: float | None
    backward_ms: float | None
    exchange_share: float | None


class _Modelled(NamedTuple):
    """What is said of a model; words are those of a run, None where nothing is said."""

    model: str | None
    device: str | None
    gpus: int | None
    words: Mapping[str, int | None]
    settings: Sequence[str]


class _Found(NamedTuple):
    """What is simulated, with the times for it."""

    asked: _Asked
    schedules: list[str]
    stages: int
    microbatches: int
    chunks: int
    source: Times
    costs: Costs
    told: str = ""
    measured: Measured | None = None
    kept: Kept | None = None

    def setting(self, p2p_us: float | None, weight_share: float, activation_gb: float | None) -> Setting:
        """All of it, with what is said of costs."""
        from tracelens.planner.pipeline import Setting

        costs = self.costs._replace(weight_share=weight_share)
        if p2p_us is not None:
            transit = _whole(p2p_us * 1e3)
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
            activation_bytes=-1 if activation_gb is None else _whole(activation_gb * 1e9),
            kept=self.kept,
            times_from=self.told,
        )


def _find(asked: _Asked, recorded: _Recorded, modelled: _Modelled, given: _Given) -> _Found:
    """The times from the one source that is given.

    Raises:
        TracelensError: none is, several are, or something is said of one that is not.
    """
    of_run = {"step": recorded.step, "partial": recorded.partial or None}
    _check_owners("--from", recorded.source, of_run)
    more = {"device": modelled.device, "gpus": modelled.gpus or None, "set": modelled.settings or None}
    _check_owners("--model", modelled.model, {**modelled.words, **more})
    of_times = {"backward-ms": given.backward_ms, "exchange-share": given.exchange_share or None}
    _check_owners("--forward-ms", given.forward_ms, of_times)
    if sum(one is not None for one in (recorded.source, given.forward_ms, modelled.model)) != 1:
        raise TracelensError(
            "give one source of times: --forward-ms, --from with the traces of a run, or --model"
        )
    if recorded.source is not None:
        inputs = _measured(asked, recorded, recorded.source)
    elif modelled.model is not None:
        inputs = _roofline(asked, modelled, modelled.model)
    else:
        inputs = _uniform(asked, given)
    _check_used(asked, inputs.schedules)
    return inputs


def _measured(asked: _Asked, recorded: _Recorded, source: Source) -> _Found:
    """The times of a run, and its own numbers where none are given."""
    run = at_step(loaded(source, partial=recorded.partial, progress=recorded.progress), recorded.step)
    from tracelens.planner.pipeline import find_chunks
    from tracelens.planner.pipeline.measured import measure, measured_costs, measured_source

    recorded.progress("reading the passes of the pipeline")
    pipeline = measure(run)
    stages, chunks = asked.stages or pipeline.size.stages, asked.chunks or pipeline.size.chunks
    names = _names(asked.schedules, chunks)
    counts = [find_chunks(name, chunks) for name in names]
    times = measured_source(pipeline, stages, counts, asked.layers, bool(asked.layout or asked.best))
    count = asked.microbatches or pipeline.size.microbatches
    if not asked.turn and (stages, chunks) == (pipeline.size.stages, pipeline.size.chunks):
        asked = asked._replace(turn=pipeline.size.group)
    own = times.layers == 0
    times_from = "as measured: the mean of each chunk" if own else "as measured: the mean of equal layers"
    return _Found(
        asked, names, stages, count, chunks, times, measured_costs(pipeline, stages), times_from, pipeline
    )


def _roofline(asked: _Asked, run: _Modelled, model: str) -> _Found:
    if run.device is None:
        raise TracelensError("a roofline needs --device: see `tracelens list devices`")
    if asked.layers:
        raise TracelensError("--layers is for a model that nothing else tells of; --model does: leave it out")
    from tracelens.devices import device as named
    from tracelens.planner.config import read_config
    from tracelens.planner.pipeline import activations, roofline

    for name in (text.partition("=")[0].strip() for text in run.settings):
        if option := _OWN_OPTION.get(name):
            raise TracelensError(f"--set {name}: give {option} instead")
    stages, count, chunks = _numbers(asked)
    # Chunks are the schedule's matter; a run needs as many micro-batches as stages.
    words = {**run.words, "gpus": run.gpus or stages, "pp": stages, "vpp": 1}
    words["micro_batches"] = max(count, stages)
    config = read_config(model, [*assignments(words), "pp_layout=", *run.settings])
    device = named(run.device)
    source, costs = roofline(config, device)
    times_from = f"roofline of {model} on {device.name}: no run is faster"
    names, kept = _names(asked.schedules, chunks), activations(config)
    return _Found(asked, names, stages, count, chunks, source, costs, times_from, kept=kept)


def _uniform(asked: _Asked, given: _Given) -> _Found:
    """The times that are given."""
    from tracelens.planner.pipeline import Costs, Uniform

    assert given.forward_ms is not None
    stages, count, chunks = _numbers(asked)
    back = 2 * given.forward_ms if given.backward_ms is None else given.backward_ms
    times = _whole(given.forward_ms * 1e6), _whole(back * 1e6)
    source = Uniform(*times, given.exchange_share or 0.0, asked.layers)
    return _Found(asked, _names(asked.schedules, chunks), stages, count, chunks, source, Costs())


def _numbers(asked: _Asked) -> tuple[int, int, int]:
    """Stages, micro-batches and chunks, where no run tells them."""
    if asked.stages is None or asked.microbatches is None:
        raise TracelensError("give the stages and the micro-batches: --pp and --micro-batches")
    return asked.stages, asked.microbatches, asked.chunks or 1


def _names(given: list[str], chunks: int) -> list[str]:
    """The schedules that are asked for; without any, the usual ones."""
    from tracelens.planner.pipeline import SCHEDULES

    if _EVERY in given:
        return [name for name in SCHEDULES if chunks > 1 or SCHEDULES[name].chunks != "any"]
    return given or (["1f1b", "interleaved"] if chunks > 1 else ["1f1b"])


def _check_used(asked: _Asked, names: Sequence[str]) -> None:
    """Raise TracelensError for chunks or turns that none of the schedules has."""
    from tracelens.planner.pipeline import SCHEDULES, find_chunks

    if asked.turn and not any(name in SCHEDULES and SCHEDULES[name].chunks == "any" for name in names):
        raise TracelensError("--turn is for interleaved schedules: add --vpp, or leave it out")
    if (chunks := asked.chunks) and chunks not in (counts := [find_chunks(name, chunks) for name in names]):
        raise TracelensError(
            f"none of the schedules has {chunks} chunks per stage, at most {max(counts)}: change --vpp or "
            "--schedule"
        )


def _whole(number: float) -> int:
    """The nearest whole number of ns or bytes; raises TracelensError for what no pass takes or keeps."""
    # A nan is not below anything either; sums over all passes of a step stay below 64 bits.
    if not number <= _MOST:
        raise TracelensError("a time must be at most 1,000 s, and activations at most 1,000 GB")
    return round(max(number, -1))


def _check_owners(owner: str, value: object, options: Mapping[str, object]) -> None:
    """Raise TracelensError for an option of a source of times that is not asked for.

    Args:
        owner: option that asks for the source.
        value: its value, None where it is not given.
        options: values of those that go with it, likewise.
    """
    for name, option_value in options.items():
        if value is None and option_value is not None:
            raise TracelensError(f"--{name} goes with {owner}: give both or neither")
