"""Projections: memory, layouts, scaling, pipeline schedules and bubbles, scenarios, and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracelens.rendering.figures.colors import (
    BLUE,
    GREY,
    IDLE,
    MEMORY,
    ORANGE,
    PASSES,
    STEP_PARTS,
    TEAL,
    VIOLET,
    colors,
    rank_colors,
)
from tracelens.rendering.figures.figure import (
    MOST_ROWS,
    POINTS,
    Figure,
    axis,
    bars,
    chart,
    clock_chart,
    extent,
    figure,
    folded,
    horizontal_bars,
    ms,
    needs,
    plain,
    ranks,
    rounded,
    row_labels,
    rows_axis,
    safe,
    stacked_bars,
    table,
)
from tracelens.table import Result, Table
from tracelens.units import GB, GIB, gib, milliseconds, size_text

_BARS = 64
"""Bars that are drawn."""
_LABELLED = 16
"""So many bars have room for their sum above them."""
_LABEL_SHARE = 0.042
"""Parts of the whole height that have room for their number."""

_LAYOUTS = 30
"""Layouts that are drawn of a device."""
_DEVICES = 6

_PARTS = {"compute": BLUE, "all_to_all": ORANGE, "p2p": "#985c14", "other": VIOLET, "bubble": IDLE}
_DISPATCHES = {"alltoall": ORANGE, "dedup": TEAL, "deepep": BLUE}
_RUNS = 40

_CONVENTIONS = {
    "bubble_fraction": ("of the whole time", BLUE, "bottom center"),
    "bubble_ideal_ratio": ("of the ideal time", GREY, "top center"),
}
"""Column to its name, colour and where its numbers stand."""

_SCHEDULES = 4
"""Schedules with a chart of their own."""
_LINES = 8
"""Stages whose memory is drawn."""

_SCENARIOS = 40
"""Scenarios that are drawn."""
_PATH_PARTS = 11
"""Parts of the critical path that have a colour of their own; the others are one."""
_REST = "rest"
_MEASURED = "rgba(152,161,173,0.35)"

_US = 1e3
_RESOURCES = {"gemm_ns": ("GEMM", BLUE), "memory_ns": ("memory", TEAL), "link_ns": ("links", ORANGE)}
_ALGORITHMS = {
    "ring_ns": ("ring", GREY),
    "one_shot_ns": ("one-shot", TEAL),
    "two_shot_ns": ("two-shot", BLUE),
    "hierarchical_ns": ("hierarchical", ORANGE),
}
_OPERATIONS = 30


@figure("memory")
def memory(result: Result) -> list[Figure]:
    """Table `memory` as stacked bars, the devices of `fits` as lines across."""
    per_component = table(result, "memory", "layout", "pp_rank", "component", "bytes")
    if per_component is None:
        return []
    layouts, ranks = per_component.texts("layout"), per_component.array("pp_rank").tolist()
    names = list(dict.fromkeys(layouts))
    if len(names) > 1:
        first = {name: ranks[layouts.index(name)] for name in names}
        bars = [(name, first[name]) for name in names[:_BARS]]
        labels = [safe(name, 60).replace(" ", "<br>") for name in names[:_BARS]]
        title = "Memory of the fullest GPU, by layout"
    else:
        bars = [(names[0], rank) for rank in sorted(set(ranks))[:_BARS]]
        labels = [str(rank) for _, rank in bars]
        suffix = f": {safe(names[0], 60)}" if names[0] else ""
        title = f"Memory of each GPU by pipeline rank{suffix}"
    is_shown = np.array([key in bars for key in zip(layouts, ranks, strict=True)])
    shown = per_component.take(is_shown).pivot("component", ("layout", "pp_rank"), "bytes", bars)
    sizes = {name: size_bytes / GIB for name, size_bytes in shown.by_row().items()}
    order = {name: number for number, name in enumerate(MEMORY)}
    components = sorted(sizes, key=lambda name: order.get(name, len(order)))
    totals = np.sum([sizes[name] for name in components], axis=0)
    fits = table(result, "fits", "device", "memory_bytes", "reserve_bytes")
    lines: dict[str, float] = {}  # text at the line of each device, and its memory less the reserve in GiB
    if fits is not None:
        columns = (fits.array(column).tolist() for column in ("memory_bytes", "reserve_bytes"))
        for device, size, reserve in zip(fits.texts("device"), *columns, strict=True):
            lines[f"{device}: {size / GIB:,.1f} less {gib(reserve)}"] = (size - reserve) / GIB
    top = max([float(totals.max()), *lines.values()]) * 1.08
    # On narrow and on low bars numbers would lie over each other.
    is_labelled = len(labels) <= _LABELLED
    least = _LABEL_SHARE * top if is_labelled else float("inf")
    color = colors(components, MEMORY)
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": safe(name.replace("_", " ").replace(".", ": "), 40),
            "marker": {"color": color[name]},
            "width": 0.7,
            "x": list(range(len(labels))),
            "y": rounded(sizes[name], 4),
            "hovertemplate": "%{y:,.2f} GiB",
            "text": [f"{size:,.1f}" if size > least else "" for size in sizes[name]],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "constraintext": "none",
        }
        for name in components
    ]
    if is_labelled:
        # What the components come to; in decimal GB, too, as published charts count.
        in_gb = result.meta.get("framework") == "amd-guide"
        traces.append(
            {
                "type": "scatter",
                "mode": "text",
                "x": list(range(len(totals))),
                "y": rounded(totals, 4),
                "text": [
                    f"{value:,.1f}{f' ({value * GIB / GB:,.1f} GB)' if in_gb else ''}"
                    for value in totals.tolist()
                ],
                "textposition": "top center",
                "showlegend": False,
                "hoverinfo": "skip",
                "cliponaxis": False,
            }
        )
    # Lines across all bars with a text at their end.
    line_style = {"color": "#d0413e", "width": 1.5, "dash": "dash"}
    heights = [(safe(text, 60), round(value, 3)) for text, value in lines.items()]
    return [
        chart(
            traces,
            title,
            520,
            barmode="stack",
            showlegend=True,
            xaxis={
                "tickvals": list(range(len(labels))),
                "ticktext": list(labels),
                "range": [-0.6, len(labels) - 0.4],
                "automargin": True,
                "showgrid": False,
                "fixedrange": True,
                "tickangle": 0,
                "title": {"text": "" if len(names) > 1 else "pipeline rank"},
            },
            yaxis=axis("GiB", range=[0, top]),
            shapes=[
                {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line_style}
                for _, y in heights
            ],
            annotations=[
                {
                    "xref": "paper",
                    "x": 1,
                    "xanchor": "right",
                    "y": y,
                    "yanchor": "bottom",
                    "showarrow": False,
                    "text": text,
                    "font": {"size": 11},
                }
                for text, y in heights
            ],
        )
    ]


@figure("search")
@needs("parts", "device", "position", "layout", "part", "ns")
def search(per_part: Table) -> list[Figure]:
    """Table `parts` as a stacked bar a layout, the shortest step first; a figure a device.

    Layouts that do not fit say so.
    """
    devices = per_part.coded("device")
    drawn = []
    for device in list(dict.fromkeys(devices.texts()))[:_DEVICES]:
        times = per_part.take(devices.equals(device)).pivot("part", ("position", "layout"), "ns")
        keys = times.columns[:_LAYOUTS]
        parts = {part: ns[:_LAYOUTS] for part, ns in times.by_row().items()}
        total_ns = np.maximum(times.values[:, :_LAYOUTS].sum(axis=0), 1)
        fits = any(position > 0 for position, _ in keys)
        rows = [
            f"{position}: {layout}" if position > 0 else f"does not fit: {layout}"
            for position, layout in keys
        ]
        title = f"Lower bound of the step time on {plain(device, 40)}, by layout"
        drawn.append(
            stacked_bars(
                title if fits else f"{title}; none fits",
                rows,
                parts,
                {part: ns / total_ns for part, ns in parts.items()},
                colors(parts, STEP_PARTS),
            )
        )
    return drawn


@figure("scaling")
def scaling_breakdown(result: Result) -> list[Figure]:
    """Table `breakdown` as a stacked bar per run."""
    breakdown = table(result, "breakdown", "dispatch", "ep", "step_ns", *_PARTS)
    if breakdown is None:
        return []
    ranks, dispatches = breakdown.array("ep").tolist(), breakdown.texts("dispatch")
    rows = sorted(range(len(ranks)), key=ranks.__getitem__)[:_RUNS]
    step_ns = breakdown.array("step_ns")[rows]
    shares = {part: breakdown.array(part)[rows] for part in _PARTS}
    return [
        stacked_bars(
            "Time of a step by ranks that share the experts, and dispatch",
            [f"EP {ranks[row]} {plain(dispatches[row], 20)}" for row in rows],
            {part: share * step_ns for part, share in shares.items()},
            shares,
            _PARTS,
        )
    ]


@figure("published")
def published_ladders(result: Result) -> list[Figure]:
    """Table `throughput` as pairs of bars, a figure for each published one."""
    rates = table(
        result, "throughput", "figure", "run", "published_per_s", "projected_per_s", "error_fraction"
    )
    if rates is None:
        return []
    drawn = []
    for number in np.unique(rates.array("figure")):
        rows = np.flatnonzero(rates.array("figure") == number)[:_RUNS]
        errors = rates.array("error_fraction")[rows].tolist()
        traces = [
            {
                "type": "bar",
                "name": name,
                "marker": {"color": color},
                "x": [plain(run, 40) for run in rates.texts("run", rows)],
                "y": rounded(rates.array(f"{name}_per_s")[rows], 1),
                "text": [f"{error:+.0%}" for error in errors] if name == "projected" else "",
                "textposition": "outside",
                "cliponaxis": False,
            }
            for name, color in (("published", GREY), ("projected", BLUE))
        ]
        drawn.append(
            chart(
                traces,
                f"Figure {number}: tokens/s per GPU, published and projected",
                380,
                barmode="group",
                showlegend=True,
                yaxis=axis("tokens/s per GPU", rangemode="tozero"),
            )
        )
    return drawn


@figure("scaling")
def scaling_throughput(result: Result) -> list[Figure]:
    """Table `scaling` as bars of tokens/s with the speedup above."""
    rates = table(result, "scaling", "dispatch", "ep", "tokens_per_s", "speedup")
    if rates is None:
        return []
    dispatches, ranks = rates.texts("dispatch"), rates.array("ep")
    names = list(dict.fromkeys(dispatches))
    labels = sorted(set(ranks.tolist()))
    color = colors(names, _DISPATCHES)
    traces: list[dict[str, Any]] = []
    for name in names:
        rows = np.array([dispatch == name for dispatch in dispatches])
        speedup = rates.array("speedup")[rows].tolist()
        traces.append(
            {
                "type": "bar",
                "name": safe(name, 40),
                "marker": {"color": color.get(name, GREY)},
                "x": [labels.index(ep) for ep in ranks[rows].tolist()],
                "y": rounded(rates.array("tokens_per_s")[rows], 1),
                "text": [f"{ratio:.2f}x" for ratio in speedup],
                "textposition": "outside",
                "cliponaxis": False,
                "hovertemplate": "%{y:,.0f} tokens/s, %{text}",
            }
        )
    return [
        chart(
            traces,
            f"Tokens/s per GPU, and speedup over {plain(names[0], 40)}",
            380,
            barmode="group",
            showlegend=True,
            xaxis={
                "tickvals": list(range(len(labels))),
                "ticktext": [f"EP {ep}" for ep in labels],
                "showgrid": False,
            },
            yaxis=axis("tokens/s per GPU", rangemode="tozero"),
        )
    ]


@figure("bubble")
def bubble(result: Result) -> list[Figure]:
    """Table `by_vpp` as lines, `published` as points beside them."""
    series = table(result, "by_vpp", "vpp", *_CONVENTIONS)
    # One point is no line: without a pipeline there are no chunks to choose.
    if series is None or len(series) < 2:
        return []
    vpp = series.array("vpp").tolist()
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines+markers+text",
            "name": name,
            "line": {"color": color, "width": 2},
            "x": vpp,
            "y": rounded(series.array(column), 6),
            "text": [f"{share:.1%}" for share in series.array(column).tolist()],
            "textposition": position,
            "hovertemplate": "VPP %{x}: %{y:.2%} " + name,
        }
        for column, (name, color, position) in _CONVENTIONS.items()
    ]
    published = table(result, "published", "vpp", "measured_fraction", "source")
    if published is not None:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "published measurement",
                "marker": {"color": ORANGE, "size": 11, "symbol": "diamond"},
                "x": published.array("vpp").tolist(),
                "y": rounded(published.array("measured_fraction"), 6),
                "customdata": [safe(text, 90) for text in published.texts("source")],
                "hovertemplate": "VPP %{x}: %{y:.1%} of the whole time<br>%{customdata}",
            }
        )
    numbers = {key: result.meta.get(key) for key in ("pp", "micro_batches")}
    title = "Pipeline bubble by chunks per stage"
    if all(isinstance(value, int) for value in numbers.values()):
        title += f": {numbers['pp']} stages, {numbers['micro_batches']} micro-batches"
    top = max(float(np.max(series.array(column))) for column in _CONVENTIONS)
    return [
        chart(
            traces,
            title,
            380,
            showlegend=True,
            xaxis=axis("chunks per stage (VPP)", dtick=max(1, len(vpp) // 12)),
            yaxis=axis("idle", rangemode="tozero", tickformat=".0%", range=[0, top * 1.12]),
        )
    ]


@figure("pipeline_schedule")
def pipeline_schedule(result: Result) -> list[Figure]:
    """Table `summary` as bars; of the first schedules `spans` as a Gantt chart and `in_flight` as lines."""
    summary = table(result, "summary", "schedule", "makespan_ns", "bubble_fraction", "longest_ns")
    spans = table(
        result, "spans", "schedule", "rank", "chunk", "micro_batch", "phase", "ts_ns", "dur_ns", "paired"
    )
    if summary is None or spans is None:
        return []
    drawn = []
    if len(summary) > 1:
        makespan_ns, share = summary.array("makespan_ns"), summary.array("bubble_fraction")
        idle_ns = np.rint(makespan_ns * share)
        drawn.append(
            stacked_bars(
                "Makespan of each schedule: passes, and mean idle time of the stages",
                summary.texts("schedule"),
                {"passes": makespan_ns - idle_ns, "idle": idle_ns},
                {"passes": 1 - share, "idle": share},
            )
        )
    held = table(result, "in_flight", "schedule", "rank", "ts_ns", "chunks", "bytes")
    for number, name in enumerate(summary.texts("schedule")[:_SCHEDULES]):
        # All passes of the schedule on one clock.
        passes = spans.take(spans.coded("schedule").equals(name))
        all_ranks = ranks(passes)
        shown = all_ranks[:MOST_ROWS]
        begin, end = extent(passes)
        passes = passes.take(np.isin(passes.array("rank"), shown))
        bubble_share = float(summary.array("bubble_fraction")[number])
        title = f"{plain(name, 40)}: each micro-batch on each stage, bubble {bubble_share:.1%}"
        if len(shown) < len(all_ranks):
            title += f" ({len(shown)} of {len(all_ranks)} stages)"
        # There may be more passes than a figure can hold; the first ones of all stages show the pattern.
        if len(passes) > POINTS:
            passes = passes.take(np.sort(np.argsort(passes.array("ts_ns"), kind="stable")[:POINTS]))
            end = extent(passes)[1]
            title += f" (the first {POINTS:,} passes)"
        labels = [f"stage {rank}" for rank in shown]
        traces = bars(passes, "phase", PASSES, shown, begin)
        no_text = {"mode": "hide", "minsize": 7}
        drawn.append(clock_chart(title, traces, labels, end - begin, uniformtext=no_text))
        if held is None:
            continue
        # Chunks in flight over time, or their bytes where known, of some stages.
        of_name = held.take(held.coded("schedule").equals(name))
        all_ranks = ranks(of_name)
        picked = np.linspace(0, len(all_ranks) - 1, min(len(all_ranks), _LINES)).round().astype(int)
        lines = [all_ranks[index] for index in picked.tolist()]
        sized = bool((of_name.array("bytes") >= 0).all())
        color = rank_colors(lines)
        traces = []
        for rank in lines:
            in_flight = of_name.take(of_name.array("rank") == rank)
            # A line takes long runs of points; every nth of them shows the same shape.
            step = -(-len(in_flight) // (POINTS // len(lines)))
            values = in_flight.array("bytes") / GIB if sized else in_flight.array("chunks")
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": f"stage {rank}",
                    "line": {"shape": "hv", "width": 1.5, "color": color[rank]},
                    "x": ms(in_flight.array("ts_ns")[::step]),
                    "y": np.round(values[::step], 3).tolist(),
                    "hovertemplate": "%{y:,} from %{x:,.3f} ms",
                }
            )
        quantity = "activations (GiB)" if sized else "micro-batch chunks"
        drawn.append(
            chart(
                traces,
                f"{safe(name, 40)}: in flight on each stage",
                320,
                showlegend=True,
                xaxis=axis("time since the first forward (ms)"),
                yaxis=axis(quantity, rangemode="tozero"),
            )
        )
    return drawn


@figure("whatif")
def projected_steps(result: Result) -> list[Figure]:
    """Table `whatif`: bars of the projected steps, best first, before those of the measured one."""
    steps = table(result, "whatif", "scenario", "base_ns", "projected_ns", "low_ns", "high_ns", "gain")
    if steps is None:
        return []
    steps = steps.take(slice(_SCENARIOS))
    names, gain = steps.texts("scenario"), steps.array("gain")
    base, projected, low, high = (steps.array(f"{key}_ns") for key in ("base", "projected", "low", "high"))
    hover = [
        f"{safe(name, 60)}<br>{milliseconds(now, 3)} ({least / 1e6:,.3f} to {most / 1e6:,.3f}), "
        f"measured {milliseconds(was, 3)}<br>throughput {more:+.1%}"
        for name, now, least, most, was, more in zip(names, projected, low, high, base, gain, strict=True)
    ]
    rows = list(range(len(names)))
    measured = horizontal_bars(
        y=rows, name="measured", x=ms(base), width=0.8, marker={"color": _MEASURED}, hoverinfo="skip"
    )
    now = horizontal_bars(
        y=rows,
        name="projected",
        x=ms(projected),
        width=0.5,
        marker={"color": BLUE},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": ms(np.maximum(high - projected, 0)),
            "arrayminus": ms(np.maximum(projected - low, 0)),
            "thickness": 1.4,
        },
        customdata=[[text] for text in hover],
        hovertemplate="%{customdata[0]}<extra></extra>",
    )
    furthest = np.maximum(np.maximum(base, high), projected)
    texts = [f"  {milliseconds(ns, 3)}, {more:+.1%}" for ns, more in zip(projected, gain, strict=True)]
    labels = row_labels(furthest, texts)
    longest = float(furthest.max()) / 1e6
    return [
        chart(
            [measured, now, labels],
            "Projected step and throughput gain of each scenario; whiskers: shortest and longest recorded "
            "step, replayed",
            120 + 34 * len(names),
            barmode="overlay",
            showlegend=True,
            xaxis=axis("time (ms)", range=[0, longest * 1.25 or 1]),
            yaxis=rows_axis(names),
        )
    ]


@figure("whatif")
@needs("critical_path", "scenario", "category", "dur_ns")
def critical_paths(paths: Table) -> list[Figure]:
    """What each step waits for, stacked; parts with most time first, the small ones together."""
    times = paths.pivot("category", "scenario", "dur_ns")
    order = np.argsort(-times.values.sum(axis=1), kind="stable")
    scenarios = times.columns[: _SCENARIOS + 1]
    ns = folded(times.values[order][:, : len(scenarios)], _PATH_PARTS)
    names = [times.rows[index] for index in order.tolist()]
    parts = dict(zip(names if len(names) == len(ns) else [*names[:_PATH_PARTS], _REST], ns, strict=True))
    total_ns = np.maximum(ns.sum(axis=0), 1)
    shares = {name: part_ns / total_ns for name, part_ns in parts.items()}
    return [stacked_bars("Critical path of each step", scenarios, parts, shares)]


@figure("bounds")
@needs("all_to_all", "operation", "experts", "topk", "hidden", "tokens", "link_ns", "serial_ns")
def all_to_all_bounds(data: Table) -> list[Figure]:
    """Bars by resource."""
    return _by_resource(data, {"experts": "experts", "topk": "top-k", "hidden": "hidden", "tokens": "tokens"})


@figure("bounds")
@needs("gemms", "operation", "m", "n", "k", "gemm_ns", "link_ns", "serial_ns")
def gemm_bounds(data: Table) -> list[Figure]:
    """Bars by resource."""
    return _by_resource(data, {"m": "m", "n": "n", "k": "k"})


def _by_resource(data: Table, sizes: Mapping[str, str]) -> list[Figure]:
    """One figure an operation: its shapes, with the time of each resource and the bound without overlap."""
    figures = []
    operations = data.texts("operation")
    for name in dict.fromkeys(operations):
        rows = np.flatnonzero(np.array([operation == name for operation in operations]))[:_OPERATIONS]
        part = data.take(rows)
        columns = [[f"{size} {value}" for value in part.array(column)] for column, size in sizes.items()]
        labels = [", ".join(texts) for texts in zip(*columns, strict=True)]
        traces: list[dict[str, Any]] = [
            horizontal_bars(
                name=resource,
                marker={"color": color},
                y=list(range(len(labels))),
                x=rounded(part.array(column) / _US, 4),
                hovertemplate="%{x:,.2f} µs by " + resource,
            )
            for column, (resource, color) in _RESOURCES.items()
            if column in part.columns
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "without overlap",
                "marker": {"color": VIOLET, "size": 22, "symbol": "line-ns-open", "line": {"width": 3}},
                "x": rounded(part.array("serial_ns") / _US, 4),
                "y": list(range(len(labels))),
                "hovertemplate": "%{x:,.2f} µs without overlap",
            }
        )
        figures.append(
            chart(
                traces,
                f"{plain(name, 60)}: least time by resource",
                120 + 48 * len(labels),
                showlegend=True,
                barmode="group",
                bargap=0.25,
                xaxis=axis("time (µs), logarithmic", type="log", tickformat=",", dtick="D2"),
                yaxis=rows_axis(labels, 60),
            )
        )
    return figures


@figure("bounds")
@needs("all_reduce", "nodes", "gpus", "bytes", *_ALGORITHMS)
def all_reduce_bounds(data: Table) -> list[Figure]:
    """One figure per number of nodes: time by message size, a line an algorithm."""
    figures = []
    for nodes in sorted(set(data.array("nodes").tolist())):
        part = data.take(np.flatnonzero(data.array("nodes") == nodes))
        size = part.array("bytes")
        traces = [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "line": {"color": color, "width": 2},
                "x": [size_text(value) for value in size.tolist()],
                "y": rounded(part.array(column) / _US, 3),
                "hovertemplate": "%{x}: %{y:,.1f} µs " + name,
            }
            for column, (name, color) in _ALGORITHMS.items()
            if (part.array(column) >= 0).all()
        ]
        gpus = part.array("gpus").tolist()[0]
        figures.append(
            chart(
                traces,
                f"All-reduce of {gpus} GPUs on {nodes} node{'s' * (nodes > 1)}",
                380,
                showlegend=True,
                xaxis={"type": "category", "title": {"text": "message size"}, "automargin": True},
                yaxis=axis("time (µs), logarithmic", type="log", tickformat=",", dtick="D2"),
            )
        )
    return figures


@figure("trace_bounds")
@needs("collectives", "collective", "group", "from_bytes", "count", "achieved", "excess_ns")
def transfer_bounds(data: Table) -> list[Figure]:
    """The time of all collectives of a group and size: the bound of their links, and what is above it."""
    shown = data.take(slice(0, _OPERATIONS))
    excess = shown.array("excess_ns")
    achieved = shown.array("achieved")
    # achieved = bound / (bound + excess); above 1 nothing is in excess.
    bound = np.where(achieved < 1, achieved * excess / np.maximum(1 - achieved, 1e-12), 0)
    total = np.maximum(bound + np.maximum(excess, 0), 1e-9)
    keys = zip(
        shown.texts("collective"), shown.texts("group"), shown.array("from_bytes").tolist(),
        shown.array("count").tolist(), strict=True,
    )  # fmt: skip
    labels = [f"{name}, {group}, from {size_text(size)} ({count}x)" for name, group, size, count in keys]
    parts = {"bound of the links": bound, "above the bound": np.maximum(excess, 0)}
    return [
        stacked_bars(
            "Transfer time of collectives against their links, without waiting",
            labels,
            parts,
            {name: values / total for name, values in parts.items()},
            {"bound of the links": ORANGE, "above the bound": IDLE},
        )
    ]


@figure("trace_bounds")
@needs("pairs", "operation", "group", "shape", "gemm_dur_ns", "latency_ns", "overlapped_ns", "serial_ns")
def pair_bounds(data: Table) -> list[Figure]:
    """GEMM and collective as measured, with the bounds of the two with and without overlap."""
    shown = data.take(slice(0, _OPERATIONS))
    rows = list(range(len(shown)))
    traces: list[dict[str, Any]] = [
        horizontal_bars(
            name=name,
            marker={"color": color},
            width=0.6,
            y=rows,
            x=rounded(shown.array(column) / _US, 3),
            hovertemplate="%{x:,.1f} µs " + name,
        )
        for column, name, color in (("gemm_dur_ns", "GEMM", BLUE), ("latency_ns", "collective", ORANGE))
    ]
    traces += [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "marker": {"color": color, "size": 16, "symbol": "line-ns-open", "line": {"width": 3}},
            "y": rows,
            "x": rounded(shown.array(column) / _US, 3),
            "hovertemplate": "%{x:,.1f} µs " + name,
        }
        for column, name, color in (
            ("overlapped_ns", "bound with overlap", TEAL),
            ("serial_ns", "bound without overlap", VIOLET),
        )
    ]
    labels = zip(*(shown.texts(name) for name in ("operation", "group", "shape")), strict=True)
    return [
        chart(
            traces,
            "GEMMs next to collectives against their bounds",
            130 + 34 * len(rows),
            showlegend=True,
            barmode="stack",
            xaxis=axis("time (µs)", rangemode="tozero"),
            yaxis=rows_axis([f"{operation}, {group}, {shape}" for operation, group, shape in labels], 60),
        )
    ]
