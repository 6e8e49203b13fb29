"""Pipeline schedules and their bubble, from given times, a recorded run or the roofline of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tracelens.errors import TracelensError
from tracelens.session.memory import assignments, texts
from tracelens.session.reading import Progress, Source, at_step, loaded, quiet

if TYPE_CHECKING:
    from tracelens.planner.pipeline import Setting
    from tracelens.planner.pipeline import Source as Times
    from tracelens.planner.pipeline.measured import Measured
    from tracelens.table import Result
    from tracelens.trace import Run

_Inputs: TypeAlias = "tuple[Setting, Times, Measured | None]"
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
    """The idle share of a pipeline, in closed form.

    Args:
        pp: pipeline stages.
        global_tokens: tokens per step on all GPUs.
        nodes: number of nodes.
        seq: tokens per sequence.
        mbs: sequences per micro-batch.
        vpp: model chunks per stage.
        gpus_per_node: GPUs per node.
        cp: ranks that share a sequence.
        tp: ranks that share each matrix.

    Returns:
        tables `bubble`, `by_vpp` and, for the configuration of a published measurement, `published`.

    Raises:
        TracelensError: sizes that do not divide each other.
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
    """Simulate pipeline schedules: step time, bubble, and activations in flight on each stage.

    Args:
        run: source of times: a recorded run from `load`, or its path.
        schedules: names ("1f1b", "zb-v", ...), "all", or CSV files as of torch.distributed.pipelining.
        pp: pipeline stages.
        micro_batches: per step on each rank.
        vpp: model chunks per stage, for interleaved schedules.
        turn: micro-batches per turn through a chunk, for interleaved schedules; `pp` by default.
        partition: layers of each chunk in model order, as in "3,4,4,3".
        best_partition: search for the partition with the shortest phase.
        layers: of the model, if neither `model` nor annotations of the trace tell.
        step: of `run`; all by default.
        partial: whether ranks of `run` may be missing.
        forward_ms: source of times: forward of a micro-batch on a stage, all its chunks.
        backward_ms: its backward; twice the forward by default.
        exchange_share: exposed all-to-all as a share of both, which an overlapping schedule can hide.
        model: source of times: the roofline of this model, a name or a file.
        device: of `model`.
        gpus: of `model`; one per stage by default.
        ep: ranks that share the experts of `model`.
        tp: ranks that share each matrix.
        cp: ranks that share a sequence.
        seq: tokens per sequence.
        mbs: sequences per micro-batch.
        settings: other fields of the run of `model`, each like "recompute_layer_ids=0,1".
        p2p_us: a message between stages; by default as measured, from the device's links, or 0.
        weight_share: weight gradients as a share of the backward, for zero-bubble schedules.
        activation_gb: activations of a micro-batch on a stage; by default from `model`.
        progress: called with a line of text before each part.

    Returns:
        tables `summary` (one row per schedule), `stages`, `partition`, `spans` and `in_flight`.

    Raises:
        TracelensError: no source of times or several, or sizes that a schedule does not allow.
    """
    request = _Request(texts(schedules), pp, micro_batches, vpp, turn, partition, best_partition, layers)
    sizes = {"ep": ep, "tp": tp, "cp": cp, "seq": seq, "mbs": mbs}
    of_model = {**sizes, "device": device, "gpus": gpus or None, "set": settings or None}
    of_ms = {"backward-ms": backward_ms, "exchange-share": exchange_share or None}
    _check_sources((run, {"step": step, "partial": partial or None}), (model, of_model), (forward_ms, of_ms))
    if run is not None:
        recorded = loaded(run, partial=partial, progress=progress)
        setting, times, measured = _measured(request, at_step(recorded, step), progress)
    elif model is not None:
        setting, times, measured = _roofline(request, model, device, sizes | {"gpus": gpus}, texts(settings))
    else:
        setting, times, measured = _uniform(request, forward_ms or 0.0, backward_ms, exchange_share or 0.0)
    return _simulated(_with_costs(setting, p2p_us, weight_share, activation_gb), times, measured)


def _simulated(setting: Setting, times: Times, measured: Measured | None) -> Result:
    from tracelens.planner.pipeline import pipeline

    return pipeline(setting, times, measured)


class _Request(NamedTuple):
    """The schedules to simulate, whatever the source of times."""

    schedules: list[str]
    stages: int | None
    microbatches: int | None
    chunks: int | None
    turn: int
    partition: str
    best_partition: bool
    layers: int

    def setting(self, stages: int, microbatches: int, chunks: int, **of_source: Any) -> Setting:
        from tracelens.planner.pipeline import Setting

        names, turn = _names(self.schedules, chunks), of_source.pop("turn", self.turn)
        _check_used(self, names)
        sizes = stages, microbatches, chunks, turn
        return Setting(names, *sizes, self.partition, self.best_partition, **of_source)

    def sizes(self) -> tuple[int, int, int]:
        """Stages, micro-batches and chunks, if no run tells them."""
        if self.stages is None or self.microbatches is None:
            raise TracelensError("give the stages and the micro-batches: --pp and --micro-batches")
        return self.stages, self.microbatches, self.chunks or 1


def _measured(request: _Request, run: Run, progress: Progress) -> _Inputs:
    """The times of a run; its own sizes are the default."""
    from tracelens.planner.pipeline import find_chunks
    from tracelens.planner.pipeline.measured import measure, measured_costs, measured_source

    progress("reading the passes of the pipeline")
    measured = measure(run)
    size = measured.size
    stages, chunks = request.stages or size.stages, request.chunks or size.chunks
    repartition = bool(request.partition or request.best_partition)
    counts = [find_chunks(name, chunks) for name in _names(request.schedules, chunks)]
    times = measured_source(measured, stages, counts, request.layers, repartition)
    is_same = (stages, chunks) == (size.stages, size.chunks)
    setting = request.setting(
        stages,
        request.microbatches or size.microbatches,
        chunks,
        turn=size.group if is_same and not request.turn else request.turn,
        costs=measured_costs(measured, stages),
        rest_ns=measured.rest_ns,
        times_from=f"as measured: the mean of {'equal layers' if times.layers else 'each chunk'}",
    )
    return setting, times, measured


def _roofline(
    request: _Request,
    model: str,
    device: str | None,
    sizes: Mapping[str, int | None],
    settings: Sequence[str],
) -> _Inputs:
    if device is None:
        raise TracelensError("a roofline needs --device: see `tracelens list devices`")
    if request.layers:
        raise TracelensError("--model already has the number of layers: leave --layers out")
    from tracelens.devices import device as device_of
    from tracelens.planner.config import read_config
    from tracelens.planner.pipeline import activations, roofline

    for name in (text.partition("=")[0].strip() for text in settings):
        if option := _OWN_OPTION.get(name):
            raise TracelensError(f"--set {name}: use {option} instead")
    stages, count, chunks = request.sizes()
    # The schedule determines the chunks; a valid run has at least as many micro-batches as stages.
    layout = {**sizes, "gpus": sizes["gpus"] or stages, "pp": stages, "vpp": 1}
    layout["micro_batches"] = max(count, stages)
    config = read_config(model, [*assignments(layout), "pp_layout=", *settings])
    target = device_of(device)
    times, costs = roofline(config, target)
    times_from = f"roofline of {model} on {target.name} (lower bound)"
    kept = activations(config)
    return request.setting(stages, count, chunks, costs=costs, kept=kept, times_from=times_from), times, None


def _uniform(
    request: _Request, forward_ms: float, backward_ms: float | None, exchange_share: float
) -> _Inputs:
    from tracelens.planner.pipeline import Uniform

    backward_ms = 2 * forward_ms if backward_ms is None else backward_ms
    sizes = request.sizes()
    times = Uniform(_whole(forward_ms * 1e6), _whole(backward_ms * 1e6), exchange_share, request.layers)
    return request.setting(*sizes), times, None


def _with_costs(
    setting: Setting, p2p_us: float | None, weight_share: float, activation_gb: float | None
) -> Setting:
    costs = setting.costs._replace(weight_share=weight_share)
    if p2p_us is not None:
        transit = _whole(p2p_us * 1e3)
        costs = costs._replace(forward_transit=transit, backward_transit=transit)
    activation_bytes = -1 if activation_gb is None else _whole(activation_gb * 1e9)
    return replace(setting, costs=costs, activation_bytes=activation_bytes)


def _names(names: list[str], chunks: int) -> list[str]:
    """The schedules of these names; without any, the usual ones."""
    from tracelens.planner.pipeline import SCHEDULES

    if "all" in names:
        return [name for name in SCHEDULES if chunks > 1 or SCHEDULES[name].chunks != "any"]
    return names or (["1f1b", "interleaved"] if chunks > 1 else ["1f1b"])


def _check_used(request: _Request, names: Sequence[str]) -> None:
    """Raise TracelensError for chunks or turns that none of the schedules has."""
    from tracelens.planner.pipeline import SCHEDULES, find_chunks

    if request.turn and not any(name in SCHEDULES and SCHEDULES[name].chunks == "any" for name in names):
        raise TracelensError("--turn is for interleaved schedules: add --vpp, or leave it out")
    if (chunks := request.chunks) and chunks not in (counts := [find_chunks(name, chunks) for name in names]):
        raise TracelensError(
            f"none of the schedules has {chunks} chunks per stage, at most {max(counts)}: change --vpp or "
            "--schedule"
        )


def _whole(number: float) -> int:
    """A whole number of ns or bytes; raises TracelensError above _MOST, so that sums fit 64 bits."""
    if not number <= _MOST:  # nan, too
        raise TracelensError("a time must be at most 1,000 s, and activations at most 1,000 GB")
    return round(max(number, -1))


def _check_sources(*sources: tuple[object, Mapping[str, object]]) -> None:
    """Raise TracelensError unless one source is given (not None), and only options that go with it.

    Args:
        sources: values of --from, --model and --forward-ms, each with the options that go with it.
    """
    for name, (source, options) in zip(("--from", "--model", "--forward-ms"), sources, strict=True):
        for option, value in options.items():
            if source is None and value is not None:
                raise TracelensError(f"--{option} goes with {name}: give both or neither")
    if sum(source is not None for source, _ in sources) != 1:
        raise TracelensError(
            "give one source of times: --forward-ms, --from with the traces of a run, or --model"
        )
