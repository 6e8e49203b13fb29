"""Pipeline schedules and their bubble, from given times, a recorded run or the roofline of a model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tracelens.errors import TracelensError
from tracelens.read import TraceFiles
from tracelens.session.layouts import SETTINGS, assignments, texts
from tracelens.session.reading import Partial, Source, loaded
from tracelens.session.request import ApiRequest, Texts, function_of, option

if TYPE_CHECKING:
    from tracelens.planner.pipeline import Setting
    from tracelens.planner.pipeline import TimesSource as Times
    from tracelens.planner.pipeline.measured import PipelineMeasurement as Measured
    from tracelens.table import Result

SCHEDULE, TIMES, MODEL, MEASURED = "Schedule", "Times", "Times from --model", "Times from --from"

_MOST = 1e12
"""A step of 1,000 s in ns, activations of 1,000 GB in bytes: sums of so large numbers still fit 64 bits."""

# Fields of a configuration that have an option of their own here.
_OWN_OPTION = {
    "pp": "--pp",
    "vpp": "--vpp",
    "ranks": "--gpus",
    "micro_batches": "--micro-batches",
    "pp_layout": "--layout",
}


class BubbleRequest(ApiRequest["Result"], panel="Pipeline"):
    """The idle share of a pipeline, in closed form.

    Returns:
        tables `bubble`, `by_vpp` and, for the configuration of a published measurement, `published`.

    Raises:
        TracelensError: sizes that do not divide each other.
    """

    pp: int = option("Pipeline stages.", metavar="N", kw_only=False)
    global_tokens: int = option("Tokens per step on all GPUs.", metavar="N", kw_only=False)
    nodes: int = option("Number of nodes.", metavar="N", kw_only=False)
    seq: int = option("Tokens per sequence.", metavar="N", default=4096)
    mbs: int = option("Sequences per micro-batch.", metavar="N", default=1)
    vpp: int = option("Model chunks per stage.", metavar="N", default=1)
    gpus_per_node: int = option("GPUs per node.", metavar="N", default=8)
    cp: int = option("Ranks that share a sequence.", metavar="N", default=1)
    tp: int = option("Ranks that share each matrix.", metavar="N", default=1)

    def answer(self) -> Result:
        """The bubble."""
        from tracelens.planner import PipelineSizes, bubble

        names = ("pp", "global_tokens", "seq", "nodes", "mbs", "gpus_per_node", "cp", "tp")
        return bubble(PipelineSizes(**{name: getattr(self, name) for name in names}), self.vpp)


project_bubble = function_of("project_bubble", BubbleRequest)


class PipelineRequest(Partial, ApiRequest["Result"], panel=SCHEDULE):
    """Simulate pipeline schedules: step time, bubble, and activations in flight on each stage.

    The times are those of a recorded run (`run`), of the roofline of a model (`model`), or `forward_ms`.

    Returns:
        tables `summary` (one row per schedule), `stages`, `partition`, `spans` and `in_flight`.

    Raises:
        TracelensError: no source of times or several, or sizes that a schedule does not allow.
    """

    schedules: Texts = option(
        "gpipe, 1f1b, 1f1b-overlap, interleaved, interleaved-overlap, zb-h1, zb-h2, zb-v, all, or a CSV file "
        "of torch.distributed.pipelining. Repeatable.",
        name="schedule",
        metavar="NAME",
        default=(),
        shown="1f1b, and interleaved with --vpp",
        complete="schedules",
    )
    pp: int | None = option("Pipeline stages.", metavar="N", default=None, min=1)
    micro_batches: int | None = option(
        "Micro-batches per step on each rank (GA).", metavar="N", default=None, min=1
    )
    vpp: int | None = option(
        "Model chunks per stage, for interleaved schedules.", metavar="N", default=None, min=1
    )
    turn: int = option(
        "Micro-batches per turn through a chunk, for interleaved schedules.",
        doc="micro-batches per turn through a chunk, for interleaved schedules; `pp` by default.",
        metavar="N",
        default=0,
        min=0,
        shown="--pp",
    )
    partition: str = option(
        "Layers of each chunk in model order, as in 3,4,4,3.",
        name="layout",
        metavar="LAYERS",
        default="",
        shown="even",
    )
    best_partition: bool = option("Search for the partition with the shortest schedule.", default=False)
    forward_ms: float | None = option(
        "Forward time per micro-batch and stage, over all its chunks.", TIMES, metavar="MS", default=None
    )
    backward_ms: float | None = option(
        "Backward time, likewise.", TIMES, metavar="MS", default=None, shown="twice the forward"
    )
    exchange_share: float | None = option(
        "Exposed all-to-all as a share of forward and backward; an overlapping schedule can hide it.",
        TIMES,
        metavar="SHARE",
        default=None,
        min=0,
        max=1,
        shown="0.0",
    )
    run: Source | None = option(
        "A recorded run: a trace, a directory of ranks, or a pattern. Repeatable.",
        MEASURED,
        doc="source of times: a recorded run from `load`, or its path.",
        name="source",
        flags=("--from",),
        metavar="PATH",
        type=list[str] | None,
        convert=TraceFiles,
        default=None,
        kw_only=False,
    )
    step: str | int | None = option(
        "Only this step: 2 or ProfilerStep#2.", MEASURED, metavar="STEP", default=None, shown="all steps"
    )
    layers: int = option(
        "Layers of the model, if neither --model nor the trace says.",
        MEASURED,
        doc="of the model, if neither `model` nor annotations of the trace tell.",
        metavar="N",
        default=0,
        min=0,
        shown=None,
    )
    model: str | None = option(
        "Roofline of this model: a name (`tracelens list models`) or a file.",
        MODEL,
        doc="source of times: the roofline of this model, a name or a file.",
        metavar="MODEL",
        default=None,
        complete="models",
    )
    device: str | None = option(
        "Device for the roofline.", MODEL, metavar="NAME", default=None, complete="devices"
    )
    gpus: int | None = option(
        "GPUs of the run.", MODEL, metavar="N", default=None, min=0, shown="one per stage"
    )
    ep: int | None = option("Ranks that share the experts.", MODEL, metavar="N", default=None)
    tp: int | None = option("Ranks that share each matrix.", MODEL, metavar="N", default=None)
    cp: int | None = option("Ranks that share a sequence.", MODEL, metavar="N", default=None)
    seq: int | None = option("Tokens per sequence.", MODEL, metavar="N", default=None)
    mbs: int | None = option("Sequences per micro-batch.", MODEL, metavar="N", default=None)
    settings: Texts = option(
        SETTINGS,
        MODEL,
        help="Another field of the run, as in recompute_layer_ids=0,1. Repeatable.",
        default=(),
    )
    p2p_us: float | None = option(
        "Time of a message between stages.",
        TIMES,
        metavar="US",
        default=None,
        min=0,
        shown="as measured, from the device's links, or 0",
    )
    weight_share: float = option(
        "Weight gradients as a share of the backward, for zero-bubble schedules.",
        TIMES,
        metavar="SHARE",
        default=0.5,
        min=0,
        max=1,
    )
    activation_gb: float | None = option(
        "GB (decimal) of activations of a micro-batch on a stage, all its chunks.",
        metavar="GB",
        default=None,
        min=0,
        shown="with --model, as in `tracelens project memory`",
    )

    def answer(self) -> Result:
        """The simulation."""
        from tracelens.planner.pipeline import Uniform, pipeline

        self._check_sources()
        measured: Measured | None = None
        if self.run is not None:
            setting, times, measured = self._measured()
        elif self.model is not None:
            setting, times = self._roofline()
        else:
            forward_ms = self.forward_ms or 0.0
            backward_ms = 2 * forward_ms if self.backward_ms is None else self.backward_ms
            sizes = self._sizes()
            times = Uniform(
                _whole(forward_ms * 1e6), _whole(backward_ms * 1e6), self.exchange_share or 0.0, self.layers
            )
            setting = self._setting(*sizes)
        costs = setting.costs._replace(weight_share=self.weight_share)
        if self.p2p_us is not None:
            transit = _whole(self.p2p_us * 1e3)
            costs = costs._replace(forward_transit=transit, backward_transit=transit)
        activation_bytes = -1 if self.activation_gb is None else _whole(self.activation_gb * 1e9)
        return pipeline(replace(setting, costs=costs, activation_bytes=activation_bytes), times, measured)

    def _check_sources(self) -> None:
        """Raise TracelensError unless there is one source of times, with only the options that go with it."""
        names = ("ep", "tp", "cp", "seq", "mbs", "device")
        of_model = {name: getattr(self, name) for name in names} | {"gpus": self.gpus or None}
        sources = {
            "--from": (self.run, {"step": self.step, "partial": self.partial or None}),
            "--model": (self.model, of_model | {"set": self.settings or None}),
            "--forward-ms": (
                self.forward_ms,
                {"backward-ms": self.backward_ms, "exchange-share": self.exchange_share or None},
            ),
        }
        for name, (source, options) in sources.items():
            for option_name, value in options.items():
                if source is None and value is not None:
                    raise TracelensError(f"--{option_name} goes with {name}: give both or neither")
        if sum(source is not None for source, _ in sources.values()) != 1:
            raise TracelensError(
                "give one source of times: --forward-ms, --from with the traces of a run, or --model"
            )

    def _measured(self) -> tuple[Setting, Times, Measured]:
        """The times of a run; its own sizes are the default."""
        from tracelens.planner.pipeline import find_chunks
        from tracelens.planner.pipeline.measured import measure, measured_costs, measured_source

        assert self.run is not None
        run = loaded(self.run, self.step, partial=self.partial, progress=self.progress)
        self.progress("reading the passes of the pipeline")
        measured = measure(run)
        size = measured.size
        stages, chunks = self.pp or size.stages, self.vpp or size.chunks
        repartition = bool(self.partition or self.best_partition)
        counts = [find_chunks(name, chunks) for name in self._names(chunks)]
        times = measured_source(measured, stages, counts, self.layers, repartition)
        is_same = (stages, chunks) == (size.stages, size.chunks)
        setting = self._setting(
            stages,
            self.micro_batches or size.microbatches,
            chunks,
            group=size.group if is_same and not self.turn else self.turn,
            costs=measured_costs(measured, stages),
            rest_ns=measured.rest_ns,
            times_from=f"as measured: the mean of {'equal layers' if times.layers else 'each chunk'}",
        )
        return setting, times, measured

    def _roofline(self) -> tuple[Setting, Times]:
        """The times of a model by the peaks of a device."""
        assert self.model is not None
        if self.device is None:
            raise TracelensError("a roofline needs --device: see `tracelens list devices`")
        if self.layers:
            raise TracelensError("--model already has the number of layers: leave --layers out")
        from tracelens.devices import device
        from tracelens.planner.config import read_config
        from tracelens.planner.pipeline import activations, roofline

        settings = texts(self.settings)
        for name in (text.partition("=")[0].strip() for text in settings):
            if own := _OWN_OPTION.get(name):
                raise TracelensError(f"--set {name}: use {own} instead")
        stages, count, chunks = self._sizes()
        layout = {name: getattr(self, name) for name in ("ep", "tp", "cp", "seq", "mbs")}
        # The schedule determines the chunks; a valid run has at least as many micro-batches as stages.
        layout |= {"gpus": self.gpus or stages, "pp": stages, "vpp": 1, "micro_batches": max(count, stages)}
        config = read_config(self.model, [*assignments(layout), "pp_layout=", *settings])
        target = device(self.device)
        times, costs = roofline(config, target)
        setting = self._setting(
            stages,
            count,
            chunks,
            costs=costs,
            kept=activations(config),
            times_from=f"roofline of {self.model} on {target.name} (lower bound)",
        )
        return setting, times

    def _sizes(self) -> tuple[int, int, int]:
        """Stages, micro-batches and chunks, if no run tells them."""
        if self.pp is None or self.micro_batches is None:
            raise TracelensError("give the stages and the micro-batches: --pp and --micro-batches")
        return self.pp, self.micro_batches, self.vpp or 1

    def _names(self, chunks: int) -> list[str]:
        """The schedules; the usual ones by default."""
        from tracelens.planner.pipeline import SCHEDULES

        names = texts(self.schedules)
        if "all" in names:
            return [name for name in SCHEDULES if chunks > 1 or SCHEDULES[name].chunks != "any"]
        return names or (["1f1b", "interleaved"] if chunks > 1 else ["1f1b"])

    def _setting(self, stages: int, microbatches: int, chunks: int, **of_source: Any) -> Setting:
        """What is simulated; raises TracelensError for chunks or turns that none of the schedules has."""
        from tracelens.planner.pipeline import SCHEDULES, Setting, find_chunks

        names = self._names(chunks)
        if self.turn and not any(name in SCHEDULES and SCHEDULES[name].chunks == "any" for name in names):
            raise TracelensError("--turn is for interleaved schedules: add --vpp, or leave it out")
        if self.vpp and self.vpp not in (counts := [find_chunks(name, self.vpp) for name in names]):
            raise TracelensError(
                f"none of the schedules has {self.vpp} chunks per stage, at most {max(counts)}: change --vpp "
                "or --schedule"
            )
        return Setting(
            schedules=names,
            stages=stages,
            microbatches=microbatches,
            chunks=chunks,
            layout=self.partition,
            best=self.best_partition,
            **{"group": self.turn, **of_source},
        )


project_pipeline = function_of("project_pipeline", PipelineRequest)


def _whole(number: float) -> int:
    """A whole number of ns or bytes; raises TracelensError above _MOST."""
    if not number <= _MOST:  # nan, too
        raise TracelensError("a time must be at most 1,000 s, and activations at most 1,000 GB")
    return round(max(number, -1))
