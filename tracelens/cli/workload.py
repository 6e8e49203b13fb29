"""`tracelens workload`: train or serve the bundled Mixture-of-Experts model, and record traces of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from tracelens.cli.command import command
from tracelens.cli.output import Delivery, Full, check_outputs, progress, say
from tracelens.errors import MissingExtra, TracelensError
from tracelens.planner.config import HELP, MODELS, PARTS, override, preset
from tracelens.session import CommandOption, OptionGroup, as_report, option

if TYPE_CHECKING:
    from tracelens.table import Report
    from tracelens.workload import LadderRung

RECORDING, MODEL, LADDER, SERVING = "Recording", "Model", "Ladder", "Requests and scheduling"
_HEADINGS = {"layout": "Layout", "training": "TrainingSteps", "toggles": "Optimizations"}
_SUMMARY = CommandOption(help="Print the summary as one JSON object.", flags=("--json",))
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
    assignments: list[str] | None = option(
        "Override a field of the model: --set top_k=4. Repeatable.",
        name="set",
        metavar="FIELD=VALUE",
        default=None,
    )
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
        "Write the traces to this directory.",
        flags=("-o", "--output"),
        metavar="DIR",
        default=None,
        shown="record nothing",
    )
    stack: bool = option("Record Python frames; slows the host down.", default=False)


class TrainingSteps(OptionGroup, panel=RECORDING):
    """How long it is trained, and what is recorded of it."""

    steps: int = option(
        "Train at least this many steps, and to the end of the recording.", "Options", default=10
    )
    profile_start: int = option("First recorded step, counted from 0.", metavar="STEP", default=8)
    profile_end: int = option("The step after the last recorded one.", metavar="STEP", default=10)
    memory: bool = option("Record allocations.", default=False)
    inject: list[str] | None = option(
        "Inject a fault into a rank: rank=3,kind=host_delay,ms=4. Kinds: host_delay, blocking_call and gc "
        "with ms, token_skew with factor, slow_kernels with processes. Repeatable.",
        MODEL,
        metavar="FAULT",
        default=None,
    )
    as_json: bool = option(_SUMMARY, "Options", default=False)


def _setting(kind: Any, text: str, panel: str, defaults: set[Any]) -> CommandOption:
    """The option of a field of the configuration, whose text in a list and defaults by preset are known."""
    choices = [str(value) for value in get_args(kind)] if get_origin(kind) is Literal else []
    if kind is bool:
        choices = ["true", "false"]
    default = defaults.pop() if len(defaults) == 1 else "as in --preset"
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    return CommandOption(
        help=f"{text if text.partition(':')[0] in choices else text[:1].upper() + text[1:]}.",
        metavar="|".join(choices) or {int: "N", float: "NUMBER"}.get(kind, "LAYERS"),
        shown=None if default in ("", ()) else shown,
        complete=tuple(choices),
        panel=panel,
    )


def _training_settings() -> dict[str, CommandOption]:
    """Options of the fields of layout, training and toggles."""
    presets = [preset(name) for name in MODELS]
    options = {}
    for part, heading in _HEADINGS.items():
        kinds = get_type_hints(PARTS[part])
        for name in (field.name for field in fields(PARTS[part])):
            defaults = {getattr(getattr(config, part), name) for config in presets}
            options[name] = _setting(kinds[name], HELP[name], heading, defaults)
    return options


def _serving_settings() -> dict[str, CommandOption]:
    """Options of the settings of serving."""
    from tracelens.workload.serving import HELP, Serving, serving_preset

    presets, kinds = [serving_preset(name) for name in ("tiny", "small")], get_type_hints(Serving)
    return {
        field.name: _setting(
            kinds[field.name], HELP[field.name], SERVING, {getattr(preset, field.name) for preset in presets}
        )
        for field in fields(Serving)
    }


def _torch_part(module: str) -> Any:
    """A module of the workload that needs torch; raises MissingExtra if that is not installed."""
    try:
        return import_module(f"tracelens.workload.{module}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra("tracelens workload", "workload") from None


def _train(model: Workload, out: TraceTarget, how: TrainingSteps, settings: Settings) -> None:
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
        device=model.device,
        steps=how.steps,
        start=how.profile_start,
        end=how.profile_end,
        stack=out.stack,
        memory=how.memory,
        scrub=model.scrub,
        inject=faults,
    )
    summary = launch.summary(job, launch.run_job(job))
    if how.as_json:
        print(json.dumps(summary | {"config": config.as_dict()}, indent=1))
        return
    changed = " ".join(f"{name}={value}" for name, value in summary["toggles"].items())
    say(f"{model.preset} on {summary['ranks']} x {summary['device']}: {changed or 'baseline'}")
    if summary["step_ms"] is None:
        say("no timed step: all steps were warm-up or recorded; increase --steps")
    else:
        memory = f", {summary['peak_bytes'] / 1e9:.2f} GB peak" if summary["peak_bytes"] else ""
        say(
            f"{summary['step_ms']:.1f} ms per step (median of {summary['timed_steps']}), "
            f"{summary['tokens_per_s']:,.0f} tokens/s{memory}, loss {summary['loss'][-1]:.3f}"
        )
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
    recorded: int = option("TraceTarget steps per rung.", default=3)

    def rungs(self) -> tuple[tuple[LadderRung, ...], bool]:
        """The rungs, and whether they are custom."""
        from tracelens.errors import UnknownName
        from tracelens.workload import bundled, from_file, from_texts, with_baseline

        if self.rung and self.file is not None:
            raise TracelensError("use --rung or --rungs, not both")
        rungs = from_texts(self.rung) if self.rung else from_file(self.file) if self.file else bundled()
        names = [rung.name for rung in rungs]
        without = self.without or ()
        for name in without:
            if name not in names:
                raise UnknownName("rung", name, names)
        custom = bool(self.rung or self.file)
        return with_baseline([rung for rung in rungs if rung.name not in without]), custom


def _ladder(
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
        _run_ladder(folder, options, model, model.assigned(settings))
    out.deliver(_ladder_report(folder), full=sections.full)


def _run_ladder(folder: Path, options: LadderOptions, model: Workload, assignments: Sequence[str]) -> None:
    """Train every rung that this machine and the model support."""
    from tracelens.workload import plan_ladder

    rungs, custom = options.rungs()
    config = override(preset(model.preset), assignments)
    # Errors in the rungs themselves are reported without torch.
    plan_ladder(config, rungs, lambda _: "", strict=custom)
    runner = _torch_part("ladder_runner")
    ladder = runner.Ladder(
        folder, device=model.device, timed=options.timed, recorded=options.recorded, scrub=model.scrub
    )
    missing = runner.lacking(str(ladder.job(config, "").device))
    planned, skipped = plan_ladder(config, rungs, missing, strict=custom)
    for rung in skipped:
        say(f"left out: {rung.rung.name}: {rung.reason}")
    runner.run_ladder(ladder, planned, skipped, preset=model.preset, progress=say)


def _ladder_report(folder: Path) -> Report:
    """The report on a recorded ladder, without torch."""
    from tracelens.compare.ladder import ladder, read
    from tracelens.session import load

    run = read(folder)
    with progress() as line:
        result = ladder(run, (load(rung.folder, progress=line) for rung in run.rungs))
    meta, count = result.meta, len(run.rungs) - 1
    change = f"{meta['base_ns'] / 1e6:,.3f} ms to {meta['last_ns'] / 1e6:,.3f} ms per traced step"
    faster = f", {meta['speedup']:.2f} x the throughput" if meta["speedup"] > 0 else ""
    title = f"workload ladder: {count} rung{'s' if count > 1 else ''}, {change}{faster}"
    return as_report(result, title, [str(rung.folder) for rung in run.rungs])


class ServedModel(Workload):
    """The model that is served."""

    assignments: list[str] | None = option(
        "Override a field of the model, or dtype, routing, permute or router. Repeatable.",
        MODEL,
        name="set",
        metavar="FIELD=VALUE",
        default=None,
    )
    ranks: int = option("Ranks, each with its own requests.", MODEL, default=1)


class ServingTime(OptionGroup, panel=RECORDING):
    """How long it is served, and what is recorded of it."""

    ticks: int = option(
        "Run at least this many forward passes, and to the end of the recording.", "Options", default=64
    )
    profile_start: int = option("First recorded tick, counted from 0.", metavar="TICK", default=48)
    profile_end: int = option("The tick after the last recorded one.", metavar="TICK", default=56)
    as_json: bool = option(_SUMMARY, "Options", default=False)


def _serve(model: ServedModel, out: TraceTarget, how: ServingTime, settings: Settings) -> None:
    """Serve synthetic requests and record one trace per rank.

    Attention is data parallel, with one cache per rank; experts are sharded over all ranks, so all ranks
    run every layer together. In a tick each rank runs a prefill, a decode, or a dummy.

    Examples:
        tracelens workload serve --preset tiny --ranks 2 -o traces/
        tracelens workload serve --preset small --ranks 4 --prefill-delayer on --tbo token --graph on
            -o traces/
    """
    from tracelens.workload.serving import model_config, override_serving, serving_preset

    serving = override_serving(serving_preset(model.preset), dict(settings))
    config = model_config(model.preset, model.assigned({}), serving)
    part = _torch_part("serving.serve")
    job = part.ServeJob(
        config=config,
        serving=serving,
        ranks=model.ranks,
        out=out.output,
        device=model.device,
        ticks=how.ticks,
        start=how.profile_start,
        end=how.profile_end,
        stack=out.stack,
        scrub=model.scrub,
    )
    summary = part.run_serving(job)
    if summary is None:
        return
    if how.as_json:
        print(json.dumps(summary | {"config": job.settings()}, indent=1))
        return
    changed = " ".join(f"{name}={value}" for name, value in summary["serving"].items())
    say(f"{model.preset} on {summary['ranks']} x {summary['device']}: {changed or 'baseline'}")
    if summary["tokens_per_s"] is None:
        say("no timed tick: all ticks were warm-up or recorded; increase --ticks")
    else:
        say(f"{summary['tokens_per_s']:,.0f} output tokens/s ({summary['timed_ticks']} timed ticks)")
    for name, label in (("ttft", "time to first token"), ("tpot", "time per output token")):
        if summary[f"{name}_ms"] is not None:
            say(f"{label}: {summary[f'{name}_ms']:.1f} ms, {summary[f'{name}_ticks']:.1f} ticks (median)")
    counted = {
        "prefill": "with a prefill",
        "mismatched": "alongside decodes",
        "split": "in two batches",
        "graph": "from a graph",
        "held": "with delayed prefills",
        "idle": "idle",
    }
    counts = ", ".join(f"{summary[f'{name}_ticks']} {text}" for name, text in counted.items())
    say(f"{summary['ticks']} ticks: {counts}")
    if summary["padding_fraction"] is not None:
        say(f"padding: {summary['padding_fraction']:.1%} of token slots")
    if summary["peak_bytes"]:
        say(f"{summary['peak_bytes'] / 1e9:.2f} GB peak")
    if out.output is not None:
        say(f"traces in {out.output}: tracelens report {out.output}")


run, ladder = command(_train, _training_settings()), command(_ladder, _training_settings())
serve = command(_serve, _serving_settings())
