"""What ranks do together: collectives, overlap, MoE layers, pipelines, and the steps of serving engines.

Who waits and who is waited for, what computation hides of the communication, how evenly tokens are spread.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from tracelens.arrays import Float, Int, unique
from tracelens.rendering.figures.colors import (
    BLUE,
    BUBBLE,
    ORANGE,
    PASSES,
    SEQUENTIAL,
    SERVING,
    STAGES,
    colors,
)
from tracelens.rendering.figures.figure import (
    MOST_BARS,
    MOST_ROWS,
    POINTS,
    Figure,
    axis,
    bars,
    chart,
    clock_chart,
    extent,
    figure,
    horizontal_bars,
    ms,
    needs,
    over_ranks,
    plain,
    rank_bars,
    rank_times,
    ranks,
    rounded,
    rows_axis,
    safe,
    stacked_bars,
    table,
    wrapped,
)
from tracelens.rendering.thresholds import EVEN_SPAN, UNEVEN_SPAN
from tracelens.table import Coded, Result, Table

_MATRIX = 64
_WRITTEN = 8  # ranks of a matrix whose cells have room for their numbers

_MOST_ROWS = 32
_TOP = 15
_ALL = "(all)"
_HOVER = (
    "%{customdata[0]}<br>%{x:,.3f} ms; %{customdata[1]:,} calls take %{customdata[2]:.0%} of the time alone"
)

_RANKS = 64
_CELLS = 4000
_PHASES = ("forward_ns", "backward_ns", "recompute_ns")

_SERVING_RANKS = 64
_MARKS = 3000


@figure("collectives")
def collectives(result: Result) -> list[Figure]:
    """Table `ranks` as bars of communication and waiting, and table `traffic` as a matrix."""
    per_rank = table(result, "ranks", "rank", "comm_ns", "wait_ns", "kernel_ns")
    if per_rank is None or not per_rank.array("kernel_ns").any():
        return []
    if not (per_rank.array("wait_ns") >= 0).any():
        return _traffic(result)
    kernel_ns = per_rank.array("kernel_ns")
    waiting_ns = np.maximum(per_rank.array("wait_ns"), 0)  # -1 on ranks of which it is not known
    parts = {"communication": np.maximum(per_rank.array("comm_ns"), 0), "waiting": waiting_ns}
    share = waiting_ns.sum() / kernel_ns.sum()
    waiting = rank_times(
        f"Communication kernels: {share:.0%} of their time is waiting for the last rank",
        per_rank.values("rank"),
        parts,
        {name: ns / np.maximum(kernel_ns, 1) for name, ns in parts.items()},
    )
    return [waiting, *_traffic(result)]


@needs("traffic", "group", "from_rank", "to_rank", "sent_bytes")
def _traffic(traffic: Table) -> list[Figure]:
    """A matrix of bytes for the process group that exchanges most."""
    groups = traffic.coded("group")
    sent = np.bincount(groups.codes, weights=traffic.array("sent_bytes"), minlength=len(groups.values))
    group = int(np.argmax(sent))
    traffic = traffic.take(groups.codes == group)
    ranks = unique(traffic.array("from_rank"))[:_MATRIX].tolist()
    sent_bytes = traffic.pivot("from_rank", "to_rank", "sent_bytes", ranks).by_row()
    matrix = np.array([sent_bytes[rank] for rank in ranks])
    if not matrix.any():
        return []
    names = list(map(str, ranks))
    drawn: dict[str, Any] = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": (matrix / 2**20).round(3).tolist(),
        "colorscale": SEQUENTIAL,
        "colorbar": {"title": {"text": "MiB"}},
        "hovertemplate": "rank %{y} to rank %{x}: %{z:,.2f} MiB<extra></extra>",
    }
    if len(names) <= _WRITTEN:
        drawn["texttemplate"] = "%{z:,.2f}"
    title = f"Bytes from rank to rank in group {plain(groups.values[group], 30)}"
    if len(groups.values) > 1:
        title += f", the largest of {len(groups.values)}"
    side = 140 + 22 * len(names)
    return [
        chart(
            [drawn],
            title,
            min(max(side, 260), 700),
            xaxis=axis("to rank", type="category", showgrid=False),
            yaxis=axis("from rank", type="category", autorange="reversed", showgrid=False),
        )
    ]


@figure("overlap")
@needs("overlap", "rank", "group", "collective", "comm_ns", "hidden_ns", "exposed_ns")
def hidden_communication(overlaps: Table) -> list[Figure]:
    """Hidden and exposed time of each collective; of many ranks, exposed time by rank."""
    total_exposed_ns, total_ns = (int(overlaps.array(name).sum()) for name in ("exposed_ns", "comm_ns"))
    share = f": {total_exposed_ns / total_ns:.0%} exposed" if total_ns > 0 else ""
    shown = ranks(overlaps)
    if len(shown) > MOST_BARS:
        # Exposed time of the largest collectives.
        names = Coded.of(_names(overlaps.texts("collective"), overlaps.texts("group")))
        row = names.codes * len(shown) + np.searchsorted(shown, overlaps.array("rank"))
        exposed_ns, comm_ns = (
            np.bincount(row, weights=overlaps.array(name), minlength=len(names.values) * len(shown)).reshape(
                len(names.values), len(shown)
            )
            for name in ("exposed_ns", "comm_ns")
        )
        largest = np.argsort(-comm_ns.sum(axis=1), kind="stable")[:_TOP].tolist()
        return [
            rank_times(
                f"Exposed communication by collective{share}",
                shown,
                {names.values[code]: exposed_ns[code] for code in largest},
                {names.values[code]: exposed_ns[code] / np.maximum(comm_ns[code], 1) for code in largest},
            )
        ]
    rows_per_rank = max(1, _MOST_ROWS // len(shown))
    rank, comm = overlaps.array("rank"), overlaps.array("comm_ns")
    rows = np.argsort(-comm, kind="stable")
    of_rank = [rows[rank[rows] == number][:rows_per_rank] for number in shown]
    drawn = overlaps.take(np.concatenate(of_rank))
    labels = _names(drawn.texts("collective"), drawn.texts("group"))
    if len(shown) > 1:
        labels = [f"rank {number} {name}" for number, name in zip(drawn.values("rank"), labels, strict=True)]
    title = f"Communication by collective and process group{share}"
    if len(drawn) < len(overlaps):
        title += f" ({len(drawn)} of {len(overlaps)} rows: of each rank the largest)"
    parts = {"hidden": drawn.array("hidden_ns"), "exposed_comm": drawn.array("exposed_ns")}
    row_ns = np.maximum(drawn.array("comm_ns"), 1)
    return [stacked_bars(title, labels, parts, {part: ns / row_ns for part, ns in parts.items()})]


def _names(collectives: list[str], groups: list[str]) -> list[str]:
    """The collective; where it is used by several process groups, with the group."""
    pairs = list(zip(collectives, groups, strict=True))
    used = Counter(collective for collective, _ in set(pairs))
    return [f"{collective} {group}" if used[collective] > 1 else collective for collective, group in pairs]


@figure("overlap")
@needs("slowdown", "rank", "name", "shapes", "overlapped_count", "alone_mean_ns", "extra_ns")
def slowdowns_by_communication(slowdowns: Table) -> list[Figure]:
    """Kernels that are slower beside communication."""
    slowdowns = slowdowns.take(~slowdowns.coded("name").equals(_ALL))
    group, (names, shapes) = slowdowns.group("name", "shapes")
    calls = slowdowns.array("overlapped_count")
    extra, count, alone = (
        np.bincount(group, weights=weights, minlength=len(names))
        for weights in (slowdowns.array("extra_ns"), calls, slowdowns.array("alone_mean_ns") * calls)
    )
    top = [row for row in np.argsort(-extra, kind="stable")[:_TOP].tolist() if extra[row] > 0]
    if not top:
        return []
    texts = [f"{names[row]} {shapes[row]}".strip() for row in top]
    parts = {"alone": alone[top], "extra": extra[top]}
    total_ns = parts["alone"] + parts["extra"]
    title = "Calls overlapped by communication: their time alone, and the slowdown"
    drawn = stacked_bars(
        f"{title} (top {len(top)}){over_ranks(slowdowns)}",
        texts,
        parts,
        {part: ns / total_ns for part, ns in parts.items()},
        {"alone": BLUE, "extra": ORANGE},
    )
    ratio = 1 + parts["extra"] / parts["alone"]
    hover = zip(texts, count[top].astype(int).tolist(), ratio.tolist(), strict=True)
    customdata = [[wrapped(text), calls, round(times, 4)] for text, calls, times in hover]
    for trace in drawn["data"]:
        trace |= {"customdata": customdata, "hovertemplate": _HOVER}
    return [drawn]


@figure("moe")
@needs("tokens", "rank", "layer", "tokens", "ratio")
def token_loads(loads: Table) -> list[Figure]:
    """Layers by ranks, coloured by load."""
    # An even layer or rank tells nothing: where not all fit, the most uneven ones are shown.
    numbers = {name: unique(loads.array(name)) for name in ("rank", "layer")}
    shown_ranks = _most_uneven(loads, "rank", _RANKS)
    shown_layers = _most_uneven(loads, "layer", _CELLS // len(shown_ranks))
    ratio = _matrix(loads, "ratio", shown_layers, shown_ranks)
    measured = ratio[~np.isnan(ratio)]
    if len(numbers["rank"]) < 2 or not len(measured):
        return []
    span = min(max(float(np.abs(measured - 1).max()), EVEN_SPAN), UNEVEN_SPAN)
    tokens = _matrix(loads, "tokens", shown_layers, shown_ranks)
    drawn: dict[str, Any] = {
        "type": "heatmap",
        "x": list(map(str, shown_ranks.tolist())),
        "y": list(map(str, shown_layers.tolist())),
        "z": _cells(ratio, 4),
        "customdata": _cells(tokens, 1),
        "zmin": 1 - span,
        "zmid": 1,
        "zmax": 1 + span,
        "xgap": 1,
        "ygap": 1,
        "colorscale": [[0, BLUE], [0.5, "rgba(152,161,173,0.16)"], [1, ORANGE]],
        "colorbar": {"title": {"text": "of the mean"}, "tickformat": ".0%"},
        "hoverongaps": False,
        "hovertemplate": "rank %{x}, layer %{y}: %{customdata:,.1f} tokens, %{z:.1%} of the mean"
        "<extra></extra>",
    }
    truncated = [
        f"{len(shown)} of {len(numbers[name])} {name}s"
        for name, shown in (("rank", shown_ranks), ("layer", shown_layers))
        if len(shown) < len(numbers[name])
    ]
    title = "Tokens per MoE layer and rank, relative to the mean of the ranks"
    if truncated:
        title += f" (the most uneven {', '.join(truncated)})"
    return [
        chart(
            [drawn],
            title,
            min(max(150 + 26 * len(shown_layers), 240), 760),
            xaxis=axis("rank", type="category", showgrid=False),
            yaxis=axis("layer", type="category", autorange="reversed", showgrid=False),
        )
    ]


def _most_uneven(loads: Table, name: str, most: int) -> Int:
    """The ranks or layers, at most so many, in order of their numbers."""
    numbers, group = np.unique(loads.array(name), return_inverse=True)
    ratio = loads.array("ratio")
    deviation = np.zeros(len(numbers))
    np.maximum.at(deviation, group, np.where(ratio >= 0, np.abs(ratio - 1), 0))
    uneven: Int = numbers[np.sort(np.argsort(-deviation, kind="stable")[:most])]
    return uneven


def _matrix(loads: Table, value: str, layers: Int, ranks: Int) -> Float:
    """The values by layer and rank; what is not there or not known is NaN."""
    layer, rank, values = (loads.array(name) for name in ("layer", "rank", value))
    inside = np.isin(layer, layers) & np.isin(rank, ranks) & (values >= 0)
    matrix = np.full((len(layers), len(ranks)), np.nan)
    matrix[np.searchsorted(layers, layer[inside]), np.searchsorted(ranks, rank[inside])] = values[inside]
    return matrix


def _cells(matrix: Float, digits: int) -> list[list[float | None]]:
    return [[None if np.isnan(number) else number for number in rounded(row, digits)] for row in matrix]


@figure("moe")
@needs("stages", "rank", "stage", "fraction_of_step", *_PHASES)
def time_of_stages(stage_times: Table) -> list[Figure]:
    """Time of each rank in the stages of MoE layers."""
    shown = ranks(stage_times)
    fractions = stage_times.pivot("stage", "rank", "fraction_of_step", shown)
    stages = fractions.rows
    phases = np.stack([stage_times.pivot("stage", "rank", name, shown).values for name in _PHASES], axis=-1)
    total_ns = phases.sum(axis=-1)
    largest = int(np.argmax(total_ns.sum(axis=-1)))
    share = float(total_ns[largest].sum()) / max(float(total_ns.sum()), 1.0)
    drawn = rank_times(
        f"Time in MoE layers per step, by stage: {plain(stages[largest], 30)} takes {share:.0%}",
        shown,
        dict(zip(stages, total_ns, strict=True)),
        fractions.by_row(),
        colors(stages, STAGES),
    )
    if len(shown) > MOST_BARS:
        return [drawn]
    splits = ", ".join(
        f"{name.removesuffix('_ns')} %{{customdata[{number}]:,.3f}} ms"
        for number, name in enumerate(_PHASES, 1)
    )
    for trace, times in zip(drawn["data"], phases, strict=True):
        trace["customdata"] = [
            [fraction, *ms(split)] for fraction, split in zip(trace["customdata"], times, strict=True)
        ]
        trace["hovertemplate"] = "%{x:,.3f} ms, %{customdata[0]:.1%} of the step<br>" + splits
    return [drawn]


@figure("pipeline")
def pipeline(result: Result) -> list[Figure]:
    """Tables `spans` and `waits`: the first step of all ranks on one clock."""
    spans = table(
        result, "spans", "rank", "step", "stage", "chunk", "micro_batch", "phase", "ts_ns", "dur_ns"
    )
    if spans is None:
        return []
    step = spans.coded("step")
    label = step.values[int(step.codes[0])]
    stages = spans.array("stage")
    order = {rank: int(stages[spans.array("rank") == rank][0]) for rank in ranks(spans)}
    # Stages of one pipeline below each other, as far as rank numbers tell and the figure can hold.
    spans_per_rank = int(np.unique(spans.array("rank"), return_counts=True)[1].max())
    most = max(1, min(MOST_ROWS, POINTS // spans_per_rank))
    shown = sorted(order, key=lambda rank: (order[rank], rank))[:most]
    drawn = _of_step(spans, label, shown)
    begin, end = extent(drawn)
    traces = bars(drawn, "phase", PASSES, shown, begin)
    waits = table(result, "waits", "rank", "step", "part", "ts_ns", "dur_ns")
    if waits is not None:
        waits = _of_step(waits, label, shown)
        longest = np.argsort(-waits.array("dur_ns"), kind="stable")[: max(POINTS - len(drawn), 0)]
        traces += bars(waits.take(np.sort(longest)), "part", BUBBLE, shown, begin)
    title = "Forward and backward of each micro-batch, and the causes of the bubble"
    if len(set(step.codes.tolist())) > 1:
        title += f": {plain(label, 40)}"
    if len(shown) < len(order):
        title += f" ({len(shown)} of {len(order)} ranks)"
    return [clock_chart(title, traces, [f"rank {rank} stage {order[rank]}" for rank in shown], end - begin)]


def _of_step(rows: Table, label: str, shown: list[int]) -> Table:
    """The rows of one step and some ranks."""
    return rows.take(rows.coded("step").equals(label) & np.isin(rows.array("rank"), shown))


@figure("serving")
@needs("steps", "rank", "index", "kind", "dummy", "tokens", "ts_ns", "dur_ns")
def serving_steps(steps: Table) -> list[Figure]:
    """One lane a rank, coloured by kind of step."""
    shown = ranks(steps)[:_SERVING_RANKS]
    drawn = steps.take(np.isin(steps.array("rank"), shown))
    truncation = ""
    if len(drawn) > _MARKS:
        truncation = f" (the first {_MARKS:,} of {len(steps):,} steps)"
    elif len(drawn) < len(steps):
        truncation = f" (ranks {shown[0]} to {shown[-1]})"
    drawn = drawn.take(np.argsort(drawn.array("ts_ns"), kind="stable")[:_MARKS])
    # A step is drawn as its kind, unless it serves no request.
    dummies = zip(drawn.texts("kind"), drawn.array("dummy").tolist(), strict=True)
    names = Coded.of(["without a request" if empty else kind for kind, empty in dummies])
    first = int(drawn.array("ts_ns").min())
    traces = []
    for name in sorted(names.values):
        part = drawn.take(names.equals(name))
        columns = (part.values(column) for column in ("index", "kind", "tokens"))
        traces.append(
            horizontal_bars(
                name=safe(name, 30),
                marker={"color": colors([name], SERVING)[name]},
                width=0.8,
                y=np.searchsorted(shown, part.array("rank")).tolist(),
                base=ms(part.array("ts_ns") - first),
                x=ms(part.array("dur_ns")),
                customdata=[
                    [index, safe(kind, 30), f"{count:,} tokens" if count >= 0 else "tokens unknown"]
                    for index, kind, count in zip(*columns, strict=True)
                ],
                hovertemplate="step %{customdata[0]}: %{customdata[1]}, %{customdata[2]}, %{x:,.3f} ms",
            )
        )
    return [
        chart(
            traces,
            f"Steps of each rank by kind, on one clock{truncation}",
            130 + min(26, max(9, 832 // len(shown))) * len(shown),
            barmode="overlay",
            showlegend=True,
            xaxis=axis("time (ms)"),
            yaxis=rows_axis([f"rank {number}" for number in shown]),
        )
    ]


@figure("serving")
@needs("ranks", "rank", "kind", "dur_ns", "fraction_of_step_time")
def time_of_kinds(per_kind: Table) -> list[Figure]:
    """Time of each rank in steps of each kind."""
    color = colors(per_kind.texts("kind"), SERVING)
    return [rank_bars("Time in steps of each kind", per_kind, "kind", ranks(per_kind), color=color)]
