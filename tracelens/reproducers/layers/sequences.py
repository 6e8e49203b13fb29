"""A whole MoE layer - router, dispatch, experts, combine - as one script: its ops in order of launch."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.analysis.moe import PHASES, STAGES, LayerPass, regions
from tracelens.reproducers.folder import Script
from tracelens.reproducers.inputs import EVEN_GROUPS, Unreplayable
from tracelens.reproducers.layers.calls import Traced, traced
from tracelens.reproducers.layers.passes import Pass, median_pass, passes, same_ops
from tracelens.reproducers.layers.source import source
from tracelens.reproducers.scripts import about, plain, render
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
        return [], [Skip("MoE layer", "the trace has none: no router with experts behind it")]
    shown = {PHASES[code] for code in layers.phase.tolist() if code >= 0}
    found, skips = [], []
    for phase in phases or [phase for phase in PHASES if phase in shown]:
        some = passes(trace, phase, stages, layer, step)
        if not some:
            skips.append(Skip(_subject(phase, stages), _why_none(trace, phase, layer, step)))
            continue
        one = median_pass(some)
        calls = traced(trace, one, max_elements)
        try:
            found.append(_script(trace, one, some, calls, stages, max_elements is None))
        except Unreplayable as why:
            skips.append(Skip(_subject(phase, stages), str(why)))
    return found, skips


def _subject(phase: str, stages: Sequence[str]) -> str:
    part = "" if len(stages) == len(STAGES) else f", {' and '.join(stages)} only"
    return f"MoE layer, {phase}{part}"


def _why_none(trace: Trace, phase: str, layer: int, step: str) -> str:
    found = trace.once(regions)
    if not (found.phase == PHASES.index(phase)).any():
        return f"no MoE layer of the trace has any {phase} work"
    layers = max(visit.layer for visit in found.passes) + 1
    asked = [f"in layer {layer}"] * (layer >= 0) + [f"in step {step}"] * bool(step)
    return (
        f"no such work {' '.join(asked)}".rstrip()
        + f"; the trace has MoE layers 0 to {layers - 1} and the steps {', '.join(found.labels)}"
    )


def _script(
    trace: Trace, one: Pass, others: Sequence[Pass], calls: Traced, stages: Sequence[str], same: bool
) -> Script:
    """The script of a pass; `same`: with the sizes of the trace.

    Raises:
        Unreplayable: it has no calls, or would be more than its template and data.
    """
    if not calls.calls:
        raise Unreplayable("none of its calls can be replayed; record with record_shapes=True")
    parts = "layer" if len(stages) == len(STAGES) else "_".join(stages).replace(" ", "_")
    name = f"moe_{parts}_{one.phase}"
    alike, equal = same_ops(trace, one, others)
    libraries = sorted({op.partition("::")[0] for op in calls.ops} - {"aten"})
    text = render(
        "sequence.py.j2",
        {
            "library": bool(libraries),
            "leaves_out": calls.calls < len(calls.lines),
            "kinds": frozenset(tensor.maker for tensor in calls.tensors),
        },
        about=about(
            [*_where(trace, one, calls), *_others(one, others, alike, equal), *_remarks(calls, same)]
        ),
        name=name,
        traced_us=round(calls.calls_us, 3) if same else None,
        span_us=round(one.span_ns / 1e3, 3) if same else None,
        traced_on=plain(_devices(trace)),
        libraries=libraries,
        calls=source(calls.lines, _INDENT),
    )
    return Script(
        name=name,
        kind="sequence",
        subject=_subject(one.phase, stages),
        shapes=_sizes(one.visit),
        text=text,
        count=alike,
        traced_us=round(calls.calls_us, 3) if same else 0.0,
        total_us=calls.calls_us * alike,
    )


def _devices(trace: Trace) -> str:
    return ", ".join(sorted(set(trace.meta.devices.values())))


def _where(trace: Trace, one: Pass, calls: Traced) -> list[str]:
    visit, span_us = one.visit, one.span_ns / 1e3
    device = _devices(trace) or "an unknown device"
    return [
        f"{one.phase.capitalize()} pass of an MoE layer, {calls.calls:,} calls as launched ({_sizes(visit)})",
        f"Traced: rank {trace.meta.rank}, {one.step}, micro-batch {visit.microbatch}, layer {visit.layer}",
        f"{calls.calls_us:,.1f} us of GPU time, {span_us:,.1f} us from first start to last end, on {device}",
    ]


def _others(one: Pass, others: Sequence[Pass], alike: int, equal: int) -> list[str]:
    """Lines on the passes that it stands for."""
    times = sorted(other.compute_ns / 1e3 for other in others)
    return [
        f"The median of {len(others)} passes ({times[0]:,.1f} to {times[-1]:,.1f} us without communication);",
        f"{alike} of them call the same ops, {equal} with the same arguments.",
    ]


def _remarks(calls: Traced, same: bool) -> list[str]:
    """Lines on what is not as it was in the trace."""
    found = []
    left = sum(calls.left_us)
    words = [f"communication of {calls.comm_us:,.1f} us"] * (calls.comm_us > 0)
    if calls.left_us:
        share = left / max(calls.calls_us + left, 1e-9)
        words.append(f"{len(calls.left_us):,} calls of {left:,.1f} us ({share:.1%} of all calls' time)")
    if words:
        found.append(f"Left out, see below: {'; '.join(words)}")
    if any(tensor.maker == "ends" for tensor in calls.tensors):
        found.append(f"{EVEN_GROUPS[0].upper()}{EVEN_GROUPS[1:]}")
    if not same:
        found.append("Sizes are scaled down; the times above are those of the traced sizes")
    return found


def _sizes(visit: LayerPass) -> str:
    """Sizes of a layer as far as they are known."""
    words = [f"{visit.tokens:,} tokens"] * (visit.tokens > 0)
    words += [f"hidden {visit.hidden:,}"] * (visit.hidden > 0)
    words += [f"{visit.experts} experts"] * (visit.experts > 0) + [f"top {visit.top_k}"] * (visit.top_k > 0)
    return ", ".join(words) or "sizes not recorded"
