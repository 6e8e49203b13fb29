"""`tracelens workload`: train or serve the bundled Mixture-of-Experts model, and record traces of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tracelens.cli.command import command
from tracelens.cli.output import Delivery, Full, check_outputs, progress, say, write_stdout
from tracelens.errors import MissingExtra, TracelensError
from tracelens.planner.config import HELP, MODELS, PARTS, override, preset
from tracelens.session import CommandOption, OptionGroup, option

RECORDING, MODEL, LADDER, SERVING = "Recording", "Model", "Ladder", "Requests and scheduling"
_HEADINGS = {"layout": "Layout", "training": "Training", "toggles": "Optimizations"}
_SUMMARY = CommandOption(help="Print the summary as one JSON object.", flags=("--json",))
_ASSIGNMENTS = CommandOption(
    help="Override a field of the model: --set top_k=4. Repeatable.", name="set", metavar="FIELD=VALUE"
)
Settings = Mapping[str, str]
"""Fields of the configuration that have a value on the command line."""


class Workload(OptionGroup, panel=MODEL):
    """The model, and where it runs."""

    preset: str = option(
        "The model (`tracelens list models`).", metavar="MODEL", default="tiny", complete="models"
    )
    layers: int | None = option(
        "Number of layers, to make a large model fit.", default=None, shown="those of the model"
    )
    assignments: list[str] | None = option(_ASSIGNMENTS, default=None)
    device: str | None = option(
        "Run on cuda (NVIDIA and AMD GPUs) or cpu.",
        "Options",
        metavar="cuda|cpu",
        default=None,
        shown="cuda if there is a GPU",
        complete=("cuda", "cpu"),
    )
    scrub: bool = option("Remove paths of this machine from the traces.", RECORDING, default=False)

    def assigned(self, settings: Settings) -> list[str]:
        """What is set of the configuration, as texts `field=value`."""
        layers = [] if self.layers is None else [f"layers={self.layers}"]
        return [*(f"{name}={value}" for name, value in settings.items()), *layers, *(self.assignments or ())]


class TraceTarget(OptionGroup, panel=RECORDING):
    """Where traces go, and whether they have frames."""

    output: Path | None = option(
        "Write the traces to this directory.", metavar="DIR", default=None, shown="record nothing"
    )
    stack: bool = option("Record Python frames; slows the host down.", default=False)


class TrainingSteps(OptionGroup, panel=RECORDING):
    """How long it is trained, and what is recorded of it."""

    steps: int = option(
        "Train at least this many steps, and to the end of the recording.", "Options", default=10
    )
    start: int = option(
        "First recorded step, counted from 0.", name="profile_start", metavar="STEP", default=8
    )
    end: int = option("The step after the last recorded one.", name="profile_end", metavar="STEP", default=10)
    memory: bool = option("Record allocations.", default=False)
    inject: list[str] | None = option(
        "Inject a fault into a rank: rank=3,kind=host_delay,ms=4. Kinds: host_delay, blocking_call and gc "
        "with ms, token_skew with factor, slow_kernels with processes. Repeatable.",
        MODEL,
        metavar="FAULT",
        default=None,
    )
    as_json: bool = option(_SUMMARY, "Options", default=False)


def _settings(
    kind: Any, help_of: Mapping[str, str], panel: str, presets: Iterable[Any]
) -> Iterator[tuple[str, CommandOption]]:
    """Options of the fields of a part of the configuration, whose defaults depend on the preset."""
    types, presets = get_type_hints(kind), list(presets)
    for name in types:
        is_choice = get_origin(types[name]) is Literal
        choices = [str(value) for value in get_args(types[name]) if is_choice]
        choices = ["true", "false"] if types[name] is bool else choices
        defaults = {getattr(part, name) for part in presets}
        default = defaults.pop() if len(defaults) == 1 else "as in --preset"
        shown = str(default).lower() if isinstance(default, bool) else str(default)
        text = help_of[name]
        known = CommandOption(
            help=f"{text if text.partition(':')[0] in choices else text[:1].upper() + text[1:]}.",
            metavar="|".join(choices) or {int: "N", float: "NUMBER"}.get(types[name], "LAYERS"),
            shown=None if default in ("", ()) else shown,
            complete=tuple(choices),
            panel=panel,
        )
        yield name, known


def _training_settings() -> dict[str, CommandOption]:
    """Options of the fields of layout, training and toggles."""
    presets = [preset(name) for name in MODELS]
    return {
        name: known
        for part, heading in _HEADINGS.items()
        for name, known in _settings(PARTS[part], HELP, heading, map(attrgetter(part), presets))
    }


def _serving_settings() -> dict[str, CommandOption]:
    """Options of the settings of serving."""
    from tracelens.workload.serving import HELP, Serving, serving_preset

    return dict(_settings(Serving, HELP, SERVING, map(serving_preset, ("tiny", "small"))))


def _torch_part(module: str) -> Any:
    """A module of the workload that needs torch; raises MissingExtra if that is not installed."""
    try:
        return import_module(f"tracelens.workload.{module}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra("tracelens workload", "workload") from None


@partial(command, settings=_training_settings())
def run(model: Workload, out: TraceTarget, how: TrainingSteps, settings: Settings) -> None:
    """Train the reference model and record one trace per rank.

    Every optimization has its own option and is off by default. --inject makes a fault for `tracelens
    analyze stragglers` to find.

    Examples:
        tracelens workload run --preset tiny --ranks 2 -o traces/
        tracelens workload run --preset small --ranks 8 --experts grouped --sync-free 2 -o traces/
        tracelens workload run --ranks 2 --inject rank=1,kind=gc,ms=20 -o traces/
    """
    from tracelens.workload.faults import Fault

    config = override(preset(model.preset), model.assigned(settings))
    faults = tuple(Fault.parse(text) for text in how.inject or [])
    launch = _torch_part("launch")
    job = launch.Job(
        config=config,
        out=out.output,
        inject=faults,
        stack=out.stack,
        **how.values("steps", "start", "end", "memory"),
        **model.values("device", "scrub"),
    )
    summary = launch.summary(job, launch.run_job(job))
    _tell(summary | {"config": config.as_dict()}, launch.in_words(summary, model.preset), how.as_json, out)


def _tell(summary: dict[str, Any], lines: Iterable[str], as_json: bool, out: TraceTarget) -> None:
    """What a run came to: as JSON on stdout, or in words on stderr."""
    if as_json:
        write_stdout(f"{json.dumps(summary, indent=1)}\n".encode())
        return
    for line in lines:
        say(line)
    if out.output is not None:
        say(f"traces in {out.output}: tracelens report {out.output}")


def _rung_names() -> list[str]:
    from tracelens.workload import bundled

    return [rung.name for rung in bundled()]


class LadderOptions(OptionGroup, panel=LADDER):
    """The rungs, and how each is measured."""

    traces: Path | None = option(
        "New directory for the traces, one folder per rung.", metavar="DIR", default=None, argument=True
    )
    source: Path | None = option(
        "Report on an existing ladder without running anything.",
        flags=("--from",),
        metavar="DIR",
        default=None,
    )
    rung: list[str] | None = option(
        "A custom rung, as in 'grouped: experts=grouped', on top of a baseline without optimizations. "
        "Repeatable, in order.",
        metavar="RUNG",
        default=None,
    )
    file: Path | None = option(
        "Read the rungs from a TOML file.", flags=("--rungs",), metavar="FILE", default=None
    )
    without: list[str] | None = option(
        "Leave this rung out. Repeatable.", metavar="NAME", default=None, complete=_rung_names
    )
    timed: int = option("Timed steps per rung, without the profiler.", default=10)
    recorded: int = option("Recorded steps per rung.", default=3)


@partial(command, settings=_training_settings())
def ladder(
    options: LadderOptions, out: Delivery, sections: Full, model: Workload, settings: Settings
) -> None:
    """Add optimizations one by one, and report what each gains and changes.

    The default rungs are the workload's optimizations for expert-parallel training; the report says which
    ones the machine or model does not support. The options below Ladder apply to every rung.

    Examples:
        tracelens workload ladder ladder/ --preset small --ranks 8 --micro-batches 2 -o ladder.html
        tracelens workload ladder ladder/ --ranks 2 --rung 'grouped: experts=grouped' --rung 'host: gc=manual'
        tracelens workload ladder --from ladder/ -o ladder.html -o ladder.md
    """
    from tracelens.compare.ladder import ladder as compared
    from tracelens.compare.ladder import read
    from tracelens.session import load
    from tracelens.workload import chosen_rungs, plan_ladder

    folder = options.traces or options.source
    if folder is None or (options.traces is not None and options.source is not None):
        raise TracelensError(
            "pass a new folder for the traces, or --from with the folder of an existing ladder"
        )
    index = str(folder / "ladder.json")
    if options.traces is None:
        out.check([index, *(str(path) for path in folder.glob("*/"))])
    else:
        check_outputs(out.output or (), (), [index])
        rungs, custom = chosen_rungs(options.rung or (), options.file, options.without or ())
        config = override(preset(model.preset), model.assigned(settings))
        # Errors in the rungs themselves are reported without torch.
        plan_ladder(config, rungs, lambda _: "", strict=custom)
        runner = _torch_part("ladder_runner")
        recorded = runner.Ladder(
            folder, scrub=model.scrub, device=model.device, **options.values("timed", "recorded")
        )
        missing = runner.lacking(str(recorded.job(config, "").device))
        planned, skipped = plan_ladder(config, rungs, missing, strict=custom)
        for rung in skipped:
            say(f"left out: {rung.rung.name}: {rung.reason}")
        runner.run_ladder(recorded, planned, skipped, preset=model.preset, progress=say)
    measured = read(folder)
    with progress() as line:
        result = compared(measured, (load(rung.folder, progress=line) for rung in measured.rungs))
    folders = [str(rung.folder) for rung in measured.rungs]
    out.deliver(result, "workload ladder", folders, full=sections.full)


class ServedModel(Workload):
    """The model that is served."""

    assignments: list[str] | None = option(
        _ASSIGNMENTS,
        MODEL,
        help="Override a field of the model, or dtype, routing, permute or router. Repeatable.",
        default=None,
    )
    ranks: int = option("Ranks, each with its own requests.", MODEL, default=1)


class ServingTime(OptionGroup, panel=RECORDING):
    """How long it is served, and what is recorded of it."""

    ticks: int = option(
        "Run at least this many forward passes, and to the end of the recording.", "Options", default=64
    )
    start: int = option(
        "First recorded tick, counted from 0.", name="profile_start", metavar="TICK", default=48
    )
    end: int = option("The tick after the last recorded one.", name="profile_end", metavar="TICK", default=56)
    as_json: bool = option(_SUMMARY, "Options", default=False)


@partial(command, settings=_serving_settings())
def serve(model: ServedModel, out: TraceTarget, how: ServingTime, settings: Settings) -> None:
    """Serve synthetic requests and record one trace per rank.

    Attention is data parallel, with one cache per rank; experts are sharded over all ranks, so all ranks
    run every layer together. In a tick each rank runs a prefill, a decode, or a dummy.

    Examples:
        tracelens workload serve --preset tiny --ranks 2 -o traces/
        tracelens workload serve --preset small --ranks 4 --prefill-delayer on --tbo token --graph on
            -o traces/
    """
    from tracelens.workload.serving import in_words, model_config, override_serving, serving_preset

    serving = override_serving(serving_preset(model.preset), dict(settings))
    config = model_config(model.preset, model.assigned({}), serving)
    part = _torch_part("serving.serve")
    job = part.ServeJob(
        config=config,
        serving=serving,
        out=out.output,
        stack=out.stack,
        **how.values("ticks", "start", "end"),
        **model.values("ranks", "device", "scrub"),
    )
    if (summary := part.run_serving(job)) is not None:
        _tell(summary | {"config": job.settings()}, in_words(summary, model.preset), how.as_json, out)
