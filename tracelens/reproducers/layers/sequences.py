"""A whole MoE layer - router, dispatch, experts, combine - as one script: its ops in order of launch."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.analysis.moe import PHASES, STAGES, LayerPass, regions
from tracelens.reproducers.folder import Script
from tracelens.reproducers.inputs import EVEN_GROUPS, Unreplayable
from tracelens.reproducers.layers.calls import TracedCalls, traced
from tracelens.reproducers.layers.passes import PhaseWork, median_pass, passes, same_ops
from tracelens.reproducers.layers.source import source
from tracelens.reproducers.scripts import about, in_graph, plain, render
from tracelens.table import Skip
from tracelens.trace import Trace

_INDENT = 4


def sequences(
    trace: Trace,
    *,
    phases: Sequence[str] = (),
    stages: Sequence[str] = STAGES,
    layer: int = -1,
    step: str = "",
    max_elements: int | None = None,
) -> tuple[list[Script], list[Skip]]:
    """The median pass through an MoE layer as a script: one forward, one backward, one of the recompute.

    Args:
        trace: of one rank.
        phases: of PHASES; by default those that the trace has.
        stages: of STAGES, the parts of the layer.
        layer: number among the rank's MoE layers, -1 for any.
        step: "2" for ProfilerStep#2, or the whole name; "" for any.
        max_elements: scale sizes down until no tensor has more elements.

    Returns:
        scripts, and what could not be made. A Script's `count` is the number of passes with the same ops;
        `total_us` is the time of the script's calls in all of these, if each takes as long as the median.
    """
    layers = trace.once(regions)
    if not layers.passes:
        return [], [Skip("MoE layer", "no MoE layer in the trace: no router followed by experts")]
    shown = {PHASES[code] for code in layers.phase.tolist() if code >= 0}
    scripts, skips = [], []
    for phase in phases or [phase for phase in PHASES if phase in shown]:
        candidates = passes(trace, phase, stages, layer, step)
        if not candidates:
            skips.append(Skip(_subject(phase, stages), _why_none(trace, phase, layer, step)))
            continue
        median = median_pass(candidates)
        calls = traced(trace, median, max_elements)
        try:
            scripts.append(_script(trace, median, candidates, calls, stages, max_elements is None))
        except Unreplayable as error:
            skips.append(Skip(_subject(phase, stages), str(error)))
    return scripts, skips


def _subject(phase: str, stages: Sequence[str]) -> str:
    part = "" if len(stages) == len(STAGES) else f", {' and '.join(stages)} only"
    return f"MoE layer, {phase}{part}"


def _why_none(trace: Trace, phase: str, layer: int, step: str) -> str:
    layers = trace.once(regions)
    if not (layers.phase == PHASES.index(phase)).any():
        return f"no MoE layer has {phase} work"
    layer_count = max(layer_pass.layer for layer_pass in layers.passes) + 1
    filters = [f"in layer {layer}"] * (layer >= 0) + [f"in step {step}"] * bool(step)
    return (
        f"no MoE work {' '.join(filters)}".rstrip()
        + f"; the trace has MoE layers 0 to {layer_count - 1} and the steps {', '.join(layers.labels)}"
    )


def _script(
    trace: Trace,
    median: PhaseWork,
    candidates: Sequence[PhaseWork],
    calls: TracedCalls,
    stages: Sequence[str],
    unscaled: bool,
) -> Script:
    """The script of a pass; `unscaled`: with the sizes of the trace.

    Raises:
        Unreplayable: it has no calls, or would be more than its template and data.
    """
    if not calls.calls:
        raise Unreplayable("none of its calls can be replayed; record with record_shapes=True")
    parts = "layer" if len(stages) == len(STAGES) else "_".join(stages).replace(" ", "_")
    name = f"moe_{parts}_{median.phase}"
    alike, equal = same_ops(trace, median, candidates)
    libraries = sorted({op.partition("::")[0] for op in calls.ops} - {"aten"})
    text = render(
        "sequence.py.j2",
        {
            "library": bool(libraries),
            "leaves_out": calls.calls < len(calls.lines),
            "kinds": frozenset(tensor.maker for tensor in calls.tensors),
        },
        about=about(
            [
                *_origin(trace, median, calls),
                *_coverage(median, candidates, alike, equal),
                *_remarks(calls, unscaled),
            ]
        ),
        name=name,
        traced_us=round(calls.calls_us, 3) if unscaled else None,
        span_us=round(median.span_ns / 1e3, 3) if unscaled else None,
        traced_on=plain(_devices(trace)),
        libraries=libraries,
        calls=source(calls.lines, _INDENT),
    )
    return Script(
        name=name,
        kind="sequence",
        subject=_subject(median.phase, stages),
        shapes=_sizes(median.layer_pass),
        text=text,
        count=alike,
        traced_us=round(calls.calls_us, 3) if unscaled else 0.0,
        total_us=calls.calls_us * alike,
    )


def _devices(trace: Trace) -> str:
    return ", ".join(sorted(set(trace.meta.devices.values())))


def _origin(trace: Trace, median: PhaseWork, calls: TracedCalls) -> list[str]:
    layer_pass, span_us = median.layer_pass, median.span_ns / 1e3
    device = _devices(trace) or "an unknown device"
    return [
        f"{median.phase.capitalize()} pass of an MoE layer, {calls.calls:,} calls in launch order "
        f"({_sizes(layer_pass)})",
        f"Traced: rank {trace.meta.rank}, {median.step}, micro-batch {layer_pass.microbatch}, "
        f"layer {layer_pass.layer}",
        f"{calls.calls_us:,.1f} us of GPU time, {span_us:,.1f} us from first start to last end, on {device}",
        *in_graph(_sources(trace, median)),
    ]


def _sources(trace: Trace, median: PhaseWork) -> list[str]:
    """Where the ops of a pass are recorded."""
    op, source = trace.work.op[median.rows], trace.tables["events"].coded("source")
    return sorted({source.values[code] for code in source.codes[op[op >= 0]].tolist()})


def _coverage(median: PhaseWork, candidates: Sequence[PhaseWork], alike: int, equal: int) -> list[str]:
    times = sorted(candidate.compute_ns / 1e3 for candidate in candidates)
    return [
        f"Median of {len(candidates)} passes ({times[0]:,.1f} to {times[-1]:,.1f} us without communication);",
        f"{alike} of them call the same ops, {equal} with the same arguments.",
    ]


def _remarks(calls: TracedCalls, unscaled: bool) -> list[str]:
    """Lines on what is not as it was in the trace."""
    remarks = []
    left_out_us = sum(calls.left_out_us)
    words = [f"communication of {calls.comm_us:,.1f} us"] * (calls.comm_us > 0)
    if calls.left_out_us:
        share = left_out_us / max(calls.calls_us + left_out_us, 1e-9)
        words.append(
            f"{len(calls.left_out_us):,} calls of {left_out_us:,.1f} us ({share:.1%} of all calls' time)"
        )
    if words:
        remarks.append(f"Left out (below): {'; '.join(words)}")
    if any(tensor.maker == "ends" for tensor in calls.tensors):
        remarks.append(f"{EVEN_GROUPS[0].upper()}{EVEN_GROUPS[1:]}")
    if not unscaled:
        remarks.append("Sizes are scaled down; the times above are for the traced sizes")
    return remarks


def _sizes(layer_pass: LayerPass) -> str:
    """Sizes of a layer as far as they are known."""
    words = [f"{layer_pass.tokens:,} tokens"] * (layer_pass.tokens > 0)
    words += [f"hidden {layer_pass.hidden:,}"] * (layer_pass.hidden > 0)
    words += [f"{layer_pass.experts} experts"] * (layer_pass.experts > 0) + [f"top {layer_pass.top_k}"] * (
        layer_pass.top_k > 0
    )
    return ", ".join(words) or "sizes not recorded"
