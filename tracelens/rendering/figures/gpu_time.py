"""Where the GPU time goes, and what of it could be saved: figures of single ranks and of all of them.

Streams over time, kernels and ops, the breakdown, why GPUs idle, launches, the roofline, and findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tracelens.arrays import Float, Int, unique
from tracelens.rendering.figures.colors import BLUE, CAUSES, GREY, KINDS, SEQUENTIAL, colors, rank_colors
from tracelens.rendering.figures.figure import (
    Figure,
    axis,
    chart,
    figure,
    horizontal_bars,
    icicle,
    ms,
    needs,
    over_ranks,
    plain,
    rank_bars,
    ranks,
    rounded,
    rows_axis,
    safe,
    stacked_bars,
    table,
    top_bars,
    wrapped,
)
from tracelens.rendering.tables import select
from tracelens.table import Result, Table

_STREAM = ("rank", "device", "stream")
_PIECES = 5000  # of the strip of streams
_STREAM_ROWS = 48
_VISIBLE = 0.05  # share of a lane that even the shortest work fills
_LANE = 0.8  # height of a row's lane; rows are one apart
_PARTS = ("computation", "exposed_comm", "exposed_memcpy", "exposed_memset", "idle")

_NODES = 750  # of the breakdown; each may bring one "more" node with it

_QUEUE_POINTS = 4000
_QUEUE_LINES = 8  # ranks with a line each; more of them are a heat map over time
_QUEUE_ROWS = 64
_QUEUE = "Launch queue depth: at zero the GPU waits for the host"

_BUBBLES = 600
_BUBBLE_NAMES = 9
_BARS = 20
_REST = "other ops"
# The largest bubble's diameter in pixels; smaller ones by area, but large enough to be pointed at.
_LARGEST, _SMALLEST = 52, 5
_DASH = {"matrix": "solid", "vector": "dash", "maf": "dot"}
_INK = "#7d8796"

_FINDINGS = 20
_LIGHTER = "rgba(74,116,216,0.3)"


class _LaneWork(Struct, frozen=True):
    """Stretches of one kind of work in the rows of the figure, as arrays of one length."""

    row: Int
    kind: Int  # index into KINDS
    ts_ns: Int
    dur_ns: Int
    busy: Float

    def __getitem__(self, rows: NDArray[Any]) -> _LaneWork:
        return _LaneWork(
            self.row[rows], self.kind[rows], self.ts_ns[rows], self.dur_ns[rows], self.busy[rows]
        )


@figure("timeline")
@needs("strip", *_STREAM, "kind", "ts_ns", "dur_ns", "busy_fraction")
def streams_over_time(strip: Table) -> list[Figure]:
    """Kinds of work per stream over time, a lane a stream."""
    keys = np.stack([strip.array(name) for name in _STREAM], axis=1)
    unique, row = np.unique(keys, axis=0, return_inverse=True)
    streams = [tuple(stream) for stream in unique.tolist()]  # (rank, device, stream) in order
    kind, order = strip.coded("kind"), list(KINDS)
    kind_index = np.array([order.index(text) if text in order else len(order) for text in kind.values])
    numbers = (strip.array(name) for name in ("ts_ns", "dur_ns", "busy_fraction"))
    work = _LaneWork(row.ravel(), kind_index[kind.codes], *numbers)

    # Of every rank the same number of streams, those with most work.
    busy = np.bincount(work.row, weights=work.dur_ns * work.busy)
    all_ranks = sorted({stream[0] for stream in streams})
    most = max(1, _STREAM_ROWS // len(all_ranks))
    busiest: list[int] = []
    for rank in all_ranks[:_STREAM_ROWS]:
        of_rank = [index for index, stream in enumerate(streams) if stream[0] == rank]
        busiest += sorted(sorted(of_rank, key=lambda index: -busy[index])[:most])
    shown = [streams[index] for index in busiest]
    new_row = np.full(len(streams), -1)
    new_row[busiest] = np.arange(len(busiest))
    work = replace(work, row=new_row[work.row])[new_row[work.row] >= 0]
    work = _coarse(work)

    # Of each stretch: what kinds before it fill of the lane at the same time, and what all of them fill. A
    # stream does one thing at a time, but rounding may take the sum a little over one; it is one then.
    stacking = np.lexsort((work.kind, work.ts_ns, work.row))
    stacked = work[stacking]
    new = (stacked.row[1:] != stacked.row[:-1]) | (stacked.ts_ns[1:] != stacked.ts_ns[:-1])
    first = np.flatnonzero(np.append(True, new))
    group = np.cumsum(np.append(True, new)) - 1
    before = np.cumsum(stacked.busy) - stacked.busy
    below, filled = np.empty(len(stacking)), np.empty(len(stacking))
    below[stacking] = before - before[first][group]
    filled[stacking] = np.maximum(np.add.reduceat(stacked.busy, first), 1)[group]
    height = np.maximum(work.busy / filled, _VISIBLE) * _LANE
    # The axis points down: the ground of a lane is at +half, and a bar begins at its upper edge.
    upper = _LANE / 2 - below / filled * _LANE - height
    traces = [
        horizontal_bars(
            name=kind_name,
            marker={"color": color, "line": {"width": 0}},
            y=work.row[of_kind].tolist(),
            width=rounded(height[of_kind], 3),
            offset=rounded(upper[of_kind], 3),
            base=ms(work.ts_ns[of_kind]),
            x=ms(work.dur_ns[of_kind]),
            customdata=rounded(work.busy[of_kind], 3),
            hovertemplate="from %{base:,.3f} ms: %{customdata:.0%} busy",
        )
        for index, (kind_name, color) in enumerate(KINDS.items())
        if (of_kind := work.kind == index).any()
    ]
    # The faint ground of a row shows an idle stream as such.
    ground = {"layer": "below", "line": {"width": 0}, "fillcolor": "rgba(128,128,128,0.1)"}
    half = _LANE / 2
    lanes = [
        {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": lane - half, "y1": lane + half, **ground}
        for lane in range(len(shown))
    ]
    one_device = len({stream[:2] for stream in streams}) == len(all_ranks)
    labels = [
        f"rank {rank}{'' if one_device else f' gpu {device}'} stream {stream}"
        for rank, device, stream in shown
    ]
    title = "GPU streams over time; lane fill shows the busy share"
    if len(streams) > len(shown):
        title += f" (the busiest {len(shown)} of {len(streams)} streams)"
    return [
        chart(
            traces,
            title,
            110 + max(22, min(44, 360 // len(shown))) * len(shown),
            barmode="overlay",
            showlegend=True,
            shapes=lanes,
            xaxis=axis(
                "time since the first GPU work (ms)",
                showgrid=False,
                range=ms([work.ts_ns.min(), (work.ts_ns + work.dur_ns).max()]),
            ),
            yaxis=rows_axis(labels),
        )
    ]


def _coarse(work: _LaneWork) -> _LaneWork:
    """The same strip cut at equal intervals when it has more pieces than a figure should hold."""
    if len(work.row) <= _PIECES:
        return work
    lanes = unique(work.row * len(KINDS) + work.kind)
    end = (work.ts_ns + work.dur_ns).max()
    edges = np.linspace(work.ts_ns.min(), end, max(1, _PIECES // len(lanes)) + 1).astype(np.int64)
    parts = []
    for row, kind in zip(*np.divmod(lanes, len(KINDS)), strict=True):
        lane = work[(work.row == row) & (work.kind == kind)]
        lane = lane[np.argsort(lane.ts_ns, kind="stable")]
        # Busy time so far grows from the start to the end of each piece and rests in between.
        time = np.stack([lane.ts_ns, lane.ts_ns + lane.dur_ns], axis=1).ravel()
        done = np.cumsum(lane.dur_ns * lane.busy)
        so_far = np.stack([np.append(0, done[:-1]), done], axis=1).ravel()
        busy = np.diff(np.interp(edges, np.maximum.accumulate(time), so_far))
        kept = np.flatnonzero(busy > 0)
        width = np.diff(edges)[kept]
        ones = np.ones(len(kept), np.int64)
        parts.append((ones * row, ones * kind, edges[kept], width, np.minimum(busy[kept] / width, 1)))
    return _LaneWork(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@figure("timeline")
@needs("timeline", "rank", "metric", "dur_ns", "fraction_of_total")
def time_of_ranks(metrics: Table) -> list[Figure]:
    """One stacked bar a rank."""
    shown = ranks(metrics)
    times = metrics.pivot("metric", "rank", "dur_ns", shown).by_row()
    parts = [part for part in _PARTS if part in times and times[part].any()]
    title = "Time of each rank: computation, exposed communication and copies, idle"
    return [rank_bars(title, metrics, "metric", shown, parts)] if parts else []


@figure("breakdown")
@needs("breakdown", "rank", "node", "parent", "level", "name", "exclusive_ns")
def breakdown(nodes: Table) -> list[Figure]:
    """Table `breakdown`: an icicle of `exclusive_ns`; only the lowest rank when there are several.

    Small nodes are folded into one "N more" child of their parent, so that children still add up to it.
    """
    rank, *more_ranks = ranks(nodes)
    rank_note = f", rank {rank}" if more_ranks else ""
    nodes = nodes.take((nodes.array("rank") == rank) & (nodes.array("exclusive_ns") > 0))
    tree = select(nodes, _NODES)
    if not tree.rows:
        return []
    names, levels = nodes.texts("name", tree.rows), nodes.texts("level", tree.rows)
    trace = icicle(tree, names, levels, nodes.array("exclusive_ns")[tree.rows].tolist())
    return [
        chart(
            [trace],
            f"GPU time from the step down to the kernel{rank_note}; click a box to zoom",
            560,
            margin={"l": 4, "r": 4, "t": 30, "b": 8},
            uniformtext={"minsize": 10, "mode": "hide"},
        )
    ]


@figure("kernels")
@needs("kernels", "rank", "name", "category", "count", "sum_ns")
def kernels(per_kernel: Table) -> list[Figure]:
    """Table `kernels`: the top kernels by `sum_ns` as bars, coloured by category."""
    return top_bars(per_kernel, "sum_ns", "Kernels")


@figure("ops")
@needs("ops", "rank", "name", "category", "count", "dur_ns")
def ops(per_op: Table) -> list[Figure]:
    """Table `ops`: the top operators by `dur_ns` as bars, coloured by category."""
    return top_bars(per_op, "dur_ns", "Operators")


@figure("idle")
@needs("causes", "rank", "cause", "dur_ns", "fraction_of_idle")
def idle(idle_causes: Table) -> list[Figure]:
    """Table `causes`: the idle time of each rank by cause, the largest cause first."""
    times = idle_causes.pivot("cause", "rank", "dur_ns")
    largest = np.argsort(-times.values.sum(axis=1), kind="stable").tolist()
    parts = [times.rows[index] for index in largest]
    title = "Idle GPU time by cause"
    total_ns = float(times.values.sum())
    if total_ns > 0:
        title += f": {plain(parts[0], 30)} takes {times.values[largest[0]].sum() / total_ns:.0%}"
    return [rank_bars(title, idle_causes, "cause", ranks(idle_causes), parts, colors(parts, CAUSES))]


@figure("launches")
@needs("queue", "rank", "ts_ns", "depth_max", "depth_mean")
def launch_queue(queue: Table) -> list[Figure]:
    """Length of the launch queue over time, a line a rank."""
    shown = ranks(queue)
    if len(shown) > _QUEUE_LINES:
        return [_queue_map(queue, shown)]
    color = rank_colors(shown)
    traces = []
    for rank in shown:
        of_rank = queue.take(queue.array("rank") == rank)
        of_rank = of_rank.take(np.argsort(of_rank.array("ts_ns"), kind="stable"))
        # Where there are more points than a line needs, neighbours are merged so that no peak is lost.
        points = min(_QUEUE_POINTS // len(shown), len(of_rank))
        first = unique(np.arange(points) * len(of_rank) // points)
        count = np.diff(first, append=len(of_rank))
        mean = np.add.reduceat(of_rank.array("depth_mean"), first) / count
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"rank {rank}",
                "line": {"width": 1.2, "shape": "hv", "color": color[rank]},
                "hovertemplate": "%{x:,.3f} ms: at most %{y:,}, on average %{customdata:,}",
                "x": ms(of_rank.array("ts_ns")[first]),
                "y": np.maximum.reduceat(of_rank.array("depth_max"), first).tolist(),
                "customdata": rounded(mean, 2),
            }
        )
    return [
        chart(
            traces,
            _QUEUE,
            280,
            showlegend=len(shown) > 1,
            xaxis=axis("time since the first GPU work (ms)", showgrid=False),
            yaxis=axis("in the queue", rangemode="tozero"),
        )
    ]


def _queue_map(queue: Table, all_ranks: list[int]) -> Figure:
    """Mean length of the queue by rank and time; white is where the GPU waits for the host."""
    shown = all_ranks[:_QUEUE_ROWS]
    start = queue.array("ts_ns")
    edges = np.linspace(start.min(), start.max() + 1, _QUEUE_POINTS // len(shown) + 1)
    depth = np.full((len(shown), len(edges) - 1), np.nan)
    for row, rank in enumerate(shown):
        of_rank = queue.take(queue.array("rank") == rank)
        column = np.searchsorted(edges, of_rank.array("ts_ns"), side="right") - 1
        count = np.bincount(column, minlength=len(edges) - 1)
        total = np.bincount(column, weights=of_rank.array("depth_mean"), minlength=len(edges) - 1)
        depth[row, count > 0] = total[count > 0] / count[count > 0]
    truncation = f" (first {_QUEUE_ROWS} of {len(all_ranks)} ranks)" if len(all_ranks) > _QUEUE_ROWS else ""
    drawn = {
        "type": "heatmap",
        "x": ms(edges[:-1]),
        "y": [str(rank) for rank in shown],
        "z": [[None if np.isnan(value) else value for value in rounded(row, 2)] for row in depth],
        "zmin": 0,
        "colorscale": SEQUENTIAL,
        "colorbar": {"title": {"text": "queued"}, "thickness": 12},
        "hoverongaps": False,
        "hovertemplate": "rank %{y}, %{x:,.3f} ms: %{z:,.1f} on average<extra></extra>",
    }
    return chart(
        [drawn],
        f"{_QUEUE}{truncation}",
        140 + max(8, min(22, 640 // len(shown))) * len(shown),
        showlegend=False,
        xaxis=axis("time since the first GPU work (ms)", showgrid=False),
        yaxis=axis("rank", type="category", autorange="reversed", showgrid=False),
    )


@figure("launches")
@needs("latency_histogram", "rank", "bucket", "count")
def launch_latency(histogram: Table) -> list[Figure]:
    """How long launches wait."""
    bucket = histogram.coded("bucket")
    total = np.bincount(bucket.codes, weights=histogram.array("count"), minlength=len(bucket.values))
    trace = {
        "type": "bar",
        "marker": {"color": BLUE},
        "x": list(range(len(total))),
        "y": total.astype(int).tolist(),
        "hovertemplate": "%{y:,} launches",
        "name": "",
    }
    return [
        chart(
            [trace],
            f"From launch on the host to start on the GPU{over_ranks(histogram)}",
            280,
            bargap=0.12,
            showlegend=False,
            xaxis={
                "title": {"text": "latency"},
                "tickvals": trace["x"],
                "ticktext": [safe(text, 24) for text in bucket.values],
                "automargin": True,
            },
            yaxis=axis("launches", rangemode="tozero"),
        )
    ]


@figure("roofline")
def roofline(result: Result) -> list[Figure]:
    """Table `roofline` under the roofs of table `roofs`, and the rows with the most to save."""
    ops = table(
        result, "roofline", "rank", "name", "shapes", "dtype", "count", "dur_ns", "flops", "flops_per_s",
        "bytes_per_s", "intensity", "bound", "efficiency", "recoverable_ns", "note",
    )  # fmt: skip
    if ops is None:
        return []
    charts = []
    dur = ops.array("dur_ns")
    # What goes over a link has no place under the memory's roof, nor what computes nothing on a log scale.
    drawable = (ops.array("flops") > 0) & (ops.array("bytes_per_s") > 0) & (dur > 0)
    drawable &= ~ops.coded("bound").mask(lambda text: "link" in text)
    if drawable.any():
        rows = np.flatnonzero(drawable)
        rows = rows[np.argsort(-dur[rows], kind="stable")[:_BUBBLES]]
        shown = ops.take(np.sort(rows))
        x = shown.array("intensity")
        ends = (10 ** np.floor(np.log10(x.min())), 10 ** np.ceil(np.log10(max(x.max(), 2000.0))))
        share = float(dur[rows].sum()) / float(max(dur.sum(), 1))
        counted = result.meta.get("coverage")
        whole = "of the GPU time" if isinstance(counted, float) else "of the counted time"
        share *= counted if isinstance(counted, float) else 1
        shown_share = f"{share:.{0 if share >= 0.1 else 1}%} {whole}"
        title = f"Ops and shapes under the roofline: {shown_share}; area shows time"
        charts.append(
            chart(
                [*_roofs(result, shown, ends), *_bubbles(shown)],
                title,
                560,
                showlegend=True,
                legend={
                    "orientation": "v",
                    "x": 1.01,
                    "y": 1,
                    "groupclick": "toggleitem",
                    "itemsizing": "constant",
                },
                xaxis=axis("FLOPs per byte", type="log", range=np.log10(ends).tolist(), tickformat="~s"),
                yaxis=axis("FLOP/s", type="log", tickformat="~s", exponentformat="SI"),
            )
        )

    # The rows with the most recoverable time; ranks with the same op and shape are summed.
    saved_ns = ops.array("recoverable_ns")
    if not (saved_ns > 0).any():
        return charts
    group, (names, shapes) = ops.group("name", "shapes")
    known = saved_ns >= 0
    lost = np.bincount(group, weights=np.where(known, saved_ns, 0))
    done = np.bincount(group, weights=np.where(known, dur - saved_ns, 0))
    top = [row for row in np.argsort(-lost, kind="stable")[:_BARS].tolist() if lost[row] > 0]
    total_ns = max(float(dur.sum()), 1.0)
    parts = {"at the roofline": done[top], "recoverable": lost[top]}
    charts.append(
        stacked_bars(
            f"Measured - roofline time: what perfect kernels would save (top {len(top)}){over_ranks(ops)}",
            [f"{names[row]}  {shapes[row]}" for row in top],
            parts,
            {part: ns / total_ns for part, ns in parts.items()},
        )
    )
    return charts


def _bubbles(shown: Table) -> list[dict[str, Any]]:
    names, dur = shown.coded("name"), shown.array("dur_ns")
    time = np.bincount(names.codes, weights=dur, minlength=len(names.values))
    largest = np.argsort(-time, kind="stable")[:_BUBBLE_NAMES]
    group = np.full(len(names.values), -1)
    group[largest] = np.arange(len(largest))
    labels = [names.values[code] for code in largest.tolist()]
    color = colors(labels)
    # The box of each bubble: what it is, how long it took, how far it got.
    texts = zip(*(shown.texts(name) for name in ("name", "shapes", "dtype", "bound", "note")), strict=True)
    number_names = ("count", "dur_ns", "flops_per_s", "bytes_per_s", "efficiency")
    numbers = zip(*(shown.array(name).tolist() for name in number_names), strict=True)
    boxes = []
    for (name, shapes, dtype, bound, note), (count, ns, flops, moved, efficiency) in zip(
        texts, numbers, strict=True
    ):
        lines = [wrapped(name), wrapped(shapes), f"{ns / 1e6:,.3f} ms in {count:,} calls"]
        lines.append(f"{flops / 1e12:,.2f} TFLOP/s {safe(dtype, 12)}, {moved / 1e9:,.0f} GB/s")
        if efficiency >= 0:
            lines.append(f"{efficiency:.1%} of the roofline, bound by {safe(bound, 20) or 'nothing'}")
        boxes.append("<br>".join([line for line in lines if line] + ([wrapped(note)] if note else [])))
    hover = np.array(boxes, dtype=object)
    traces = []
    for number, label in enumerate([*labels, _REST]):
        rows = np.flatnonzero(group[names.codes] == (number if number < len(labels) else -1))
        if not len(rows):
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": safe(label, 34),
                "legendgroup": "ops",
                "legendgrouptitle": {"text": "ops"},
                "x": rounded(shown.array("intensity")[rows], 4),
                "y": rounded(shown.array("flops_per_s")[rows], 0),
                "customdata": hover[rows].tolist(),
                "hovertemplate": "%{customdata}<extra></extra>",
                "marker": {
                    "color": GREY if label == _REST and number == len(labels) else color[label],
                    "opacity": 0.62,
                    "line": {"width": 0.6, "color": "rgba(255,255,255,0.6)"},
                    "size": rounded(dur[rows] / 1e6, 6),
                    "sizemode": "area",
                    "sizeref": float(dur.max()) / 1e6 / _LARGEST**2,
                    "sizemin": _SMALLEST,
                },
            }
        )
    return traces


def _roofs(result: Result, shown: Table, ends: Sequence[float]) -> list[dict[str, Any]]:
    """The chosen device's roofs for the element types in use; of other devices the main type's roof."""
    roofs = table(result, "roofs", "device", "role", "kind", "dtype", "flops_per_s", "bytes_per_s")
    if roofs is None:
        return []
    time: dict[str, int] = {}
    for dtype, dur in zip(shown.texts("dtype"), shown.array("dur_ns").tolist(), strict=True):
        time[dtype] = time.get(dtype, 0) + dur
    rows = list(
        zip(
            *(roofs.texts(name) for name in ("device", "kind", "dtype", "role")),
            *(roofs.array(name).tolist() for name in ("flops_per_s", "bytes_per_s")),
            strict=True,
        )
    )
    used = {dtype for dtype in time if any(dtype == row[2] and row[1] == "matrix" for row in rows)}
    main = max(used, key=lambda dtype: time[dtype], default="bf16")
    color = colors(row[0] for row in rows)
    device_peak = max((row[4] for row in rows if row[1:4] == ("matrix", main, "chosen")), default=0.0)
    lines = []
    for device, kind, dtype, role, peak, bandwidth in rows:
        if role == "chosen" and (dtype in used or (kind == "vector" and dtype == "fp32")):
            name = f"{'max-achievable' if kind == 'maf' else kind} {dtype}"
            lines.append(
                _line(name, device, peak, bandwidth, ends, color=_INK, dash=_DASH.get(kind, "solid"))
            )
        elif role != "chosen" and kind == "matrix" and dtype == main:
            line = _line(device, f"{main} matrix roof of others", peak, bandwidth, ends, color=color[device])
            line["line"] |= {"width": 0.9, "dash": "longdashdot"}
            # Devices of earlier generations are one click away.
            near = role == "measured" or peak >= device_peak / 2
            lines.append(line if near else line | {"visible": "legendonly"})
    return lines


def _line(
    name: str,
    group: str,
    peak: float,
    bandwidth: float,
    ends: Sequence[float],
    *,
    color: str,
    dash: str = "solid",
) -> dict[str, Any]:
    ridge = min(max(peak / bandwidth, ends[0]), ends[1])
    x = np.array([ends[0], ridge, ends[1]])
    y: Float = np.minimum(x * bandwidth, peak)
    rates = f"{peak / 1e12:,.1f} TFLOP/s, {bandwidth / 1e12:,.2f} TB/s"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": safe(name, 34),
        "legendgroup": safe(group, 40),
        "legendgrouptitle": {"text": safe(group, 40)},
        "x": x.tolist(),
        "y": y.tolist(),
        "line": {"width": 1.6, "color": color, "dash": dash},
        "hovertemplate": f"{safe(group, 40)}: {safe(name, 34)}<br>{rates}<extra></extra>",
    }


@figure("findings")
@needs("findings", "finding", "saving_ns", "additional_ns", "fraction_of_step")
def findings(ranked: Table) -> list[Figure]:
    """Table `findings`: one bar each; solid is what it adds to others, lighter what they save as well."""
    first = ranked.take(slice(_FINDINGS))
    saving = first.array("saving_ns")
    added = np.minimum(first.array("additional_ns"), saving)
    # Shares are of one step, so they are to its savings as the largest is to its own.
    share = float(first.array("fraction_of_step").max(initial=0.0)) / max(int(added.max(initial=0)), 1)
    parts = {"in addition to others": added, "saved by others as well": saving - added}
    truncation = f" (the first {_FINDINGS} of {len(ranked)})" if len(ranked) > _FINDINGS else ""
    drawn = stacked_bars(
        f"Step time that each finding saves{truncation}",
        first.texts("finding"),
        parts,
        {name: ns * share for name, ns in parts.items()},
        dict(zip(parts, (BLUE, _LIGHTER), strict=True)),
    )
    for trace in drawn["data"]:
        trace["hovertemplate"] = "%{x:,.3f} ms, %{customdata:.1%} of the step"
    return [drawn]
