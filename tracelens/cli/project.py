"""`tracelens project`: memory, scaling, pipeline, what-if and speed-of-light projections."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tracelens.cli.command import Given, command
from tracelens.cli.output import Delivery, Full, ReadLimits, answer, files_of, progress, say
from tracelens.errors import TracelensError
from tracelens.read import TraceFiles
from tracelens.session import (
    PATHS,
    RUN,
    SEARCH,
    STEP,
    BoundsRequest,
    BubbleRequest,
    Graphs,
    MemoryRequest,
    OptionGroup,
    PipelineRequest,
    PublishedRequest,
    Rooflines,
    ScalingRequest,
    SearchRequest,
    Unprofiled,
    loaded,
    option,
)


class ScenarioOptions(OptionGroup, panel=RUN):
    """What is changed in a recorded run."""

    paths: TraceFiles = option(PATHS)
    scenario: list[str] | None = option(
        "The change: NAME, NAME=VALUE, or A+B for both in this order (`tracelens list scenarios`). "
        "Repeatable.",
        metavar="SCENARIO",
        default=None,
        shown="all that need no value",
        complete="scenarios",
    )
    step: str | None = option(
        STEP,
        help="The step to replay: 2 or ProfilerStep#2, or all.",
        default=None,
        shown="the step of median duration; all for a serving engine",
        complete="steps_or_all",
    )


class ChangedRun(Graphs, Unprofiled, Rooflines, ScenarioOptions):
    """The same, and how the run is read."""


@command
def whatif(change: ChangedRun, _: ReadLimits, out: Delivery, sections: Full) -> None:
    """Step time of a recorded run after a change, and what it would wait for.

    Examples:
        tracelens project whatif traces/
        tracelens project whatif traces/ --scenario no_blocking --scenario all_to_all_bandwidth=300
        tracelens project whatif traces/ --scenario no_blocking+scale:gemm=0.5 -o whatif.html
    """
    out.check([change.device_file], change.paths)
    from tracelens.analysis.common import choose_device
    from tracelens.what_if import parse_request
    from tracelens.what_if import whatif as replayed

    choose_device(change.device, change.device_file)
    scenarios = change.scenario or ()
    for text in scenarios:
        parse_request(text)
    with progress() as line:
        run = loaded(change.paths, None, replace(change, progress=line))
        options = change.values("step", "device", "device_file", "unprofiled_step_ms")
        result = replayed(run, scenarios, **options, progress=line)
    out.deliver(result, inputs=[trace.meta.path for trace in run.traces], full=sections.full)


class Searched(OptionGroup, panel=SEARCH):
    """Whether layouts are searched for."""

    search: bool = option(
        "Try all layouts of --gpus that the other options allow, and rank those that fit by step time.",
        default=False,
    )


@command
def memory(request: MemoryRequest, how: Searched, search: SearchRequest, given: Given, out: Delivery) -> None:
    """Peak memory per GPU in a training step, by component and pipeline rank.

    Expert by expert and without fused permutation, router and loss, unless --optimised or --set select them.

    Examples:
        tracelens project memory --model deepseek_v2_lite --gpus 8 --ep 8 --mbs 2 --device mi300x
        tracelens project memory --model moe_1t --gpus 768 --pp 24 --ep 8 --cp 2 --vpp 4 --optimised
            --device mi300x --device mi355x
        tracelens project memory --model moe_1t --gpus 768 --framework amd-guide --device mi300x
            --layout 'pp=24 ep=8 vpp=4' --layout 'pp=48 ep=8 vpp=2' -o memory.html
        tracelens project memory --search --model moe_1t --gpus 768 --optimised --device mi300x
    """
    from tracelens.planner.config import OPTIMISED, read_file
    from tracelens.rendering.summary import result_title

    model, devices = search.model, request.devices
    assert isinstance(devices, list | tuple)
    out.check(files_of(model, search.network, *(item for item in devices if isinstance(item, Path))))
    of_search = [name for name in ("global_batch", "network", "top") if name in given]
    if of_search and not how.search:
        raise TracelensError(f"--{of_search[0].replace('_', '-')} is for --search")
    if how.search and request.micro_batches is not None:
        raise TracelensError("--micro-batches is not for --search, which takes --global-batch")
    if request.reserve_gib is not None and not devices:
        raise TracelensError("--reserve needs --device")
    if not all(text.split() for text in request.layouts):
        raise TracelensError("--layout is empty: write fields, as in 'pp=24 ep=8 vpp=4'")
    for note in read_file(model).notes:
        say(f"{model}: {note}")
    if how.search:
        if request.gpus is None:
            raise TracelensError("--search needs the number of GPUs: give --gpus")
        with progress() as line:
            line("trying layouts")
            result = search.answer()
        changed = {text.partition("=")[0] for text in result.meta["toggles"].split()}
        note = "" if OPTIMISED.keys() <= changed else "; without --optimised"
    else:
        result, note = request.answer(), ""
    out.deliver(result, result_title(result, model) + note, [model])


@command
def scaling(request: ScalingRequest, out: Delivery) -> None:
    """Tokens/s and step time of several expert-parallel sizes, for each way to dispatch tokens.

    An all-to-all sends a token once per expert; DeepEP once per node over the network, and from there once
    per GPU over the links of the node.

    Examples:
        tracelens project scaling --model moe_2t --gpus 1024 --ep 8,16,32,64 --device mi300x
            --network mi300x-8x400g
        tracelens project scaling --model deepseek_v3 --gpus 256 --ep 8,64 --pp 4 --device h200
            --overlap none -o scaling.html
    """
    out.check(files_of(request.model, request.network, request.device, request.routing))
    result = request.answer()
    title = f"project scaling of {request.model} on {request.gpus:,} x {result.meta['device']}"
    out.deliver(result, title, [request.model])


@command
def pipeline(request: PipelineRequest, _: ReadLimits, out: Delivery) -> None:
    """Simulate pipeline schedules: step time, bubble, activations in flight.

    The time of a micro-batch comes from --forward-ms, from a recorded run (--from), or from the roofline of
    a model (--model).

    Examples:
        tracelens project pipeline --pp 8 --micro-batches 32 --vpp 4 --forward-ms 10 --schedule all
        tracelens project pipeline --from traces/ --vpp 2 -o pipeline.html
        tracelens project pipeline --model deepseek_v3 --device mi355x --pp 16 --gpus 128 --ep 8
            --micro-batches 64 --best-partition
    """
    traces = request.run if isinstance(request.run, TraceFiles) else None
    out.check(files_of(request.model, *request.schedules), traces)
    result = answer(request)
    out.deliver(result, inputs=traces.paths if traces is not None else ())


@command
def bubble(request: BubbleRequest, out: Delivery) -> None:
    """Pipeline bubble in closed form, as a share of the step and of the ideal time.

    Examples:
        tracelens project bubble --pp 16 --global-tokens 2097152 --seq 4096 --nodes 64 --mbs 1 --vpp 6
    """
    out.check()
    out.deliver(request.answer())


@command
def published(request: PublishedRequest, out: Delivery) -> None:
    """AMD's published measurements beside their projection, with the errors.

    Two numbers of the framework are fitted on figure 5; the other figures test them.

    Examples:
        tracelens project published
        tracelens project published --figure 6,7 -o published.html
    """
    out.check()
    out.deliver(request.answer())


@command
def bounds(request: BoundsRequest, _: ReadLimits, out: Delivery) -> None:
    """Speed of light: the least time of collectives and the GEMMs next to them.

    Without traces, of all-to-all, GEMM + reduce-scatter and all-gather + GEMM on one node, and of all-reduce
    algorithms by message size. With traces, how close their collectives come, without waiting.

    Examples:
        tracelens project bounds
        tracelens project bounds --device mi355x --nodes 4 --gemm-rs 8192x8192x29568 -o bounds.html
        tracelens project bounds traces/
    """
    traces = request.run if isinstance(request.run, TraceFiles) else None
    out.check([request.device] if isinstance(request.device, Path) else (), traces)
    result = answer(request)
    out.deliver(result, inputs=traces.paths if traces is not None else ())
