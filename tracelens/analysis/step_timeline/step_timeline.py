"""What every rank does at each moment of the steps: the data of the picture of a report."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm import NOT_RECORDED, SEND_RECV, AlignedRun, communication_labels
from tracelens.analysis.common import no_gpu_work
from tracelens.analysis.host import CAUSES, idle_time
from tracelens.analysis.moe import STAGES, UNATTRIBUTED_NAME, regions
from tracelens.analysis.overview import MODULE_MARK, NO_SHAPE, module_frames, program_scopes, shape_texts
from tracelens.arrays import Bool, Int, lookup, typical_step, unique
from tracelens.table import (
    RANK,
    Coded,
    Column,
    Result,
    Schema,
    Skip,
    Table,
    codes,
    nearest,
    result,
    shortened,
    sums,
)
from tracelens.trace import (
    WORK_KINDS,
    Scope,
    Trace,
    Union,
    Work,
    cut,
    exclusive_pieces,
    gpu_work,
    is_step,
    steps_of,
)
from tracelens.units import amount, duration

KERNELS_SHOWN = 600_000
"""Of all ranks together: some 20 bytes each in a page."""
STATES_SHOWN = 1_000_000
"""Likewise. Of more, short ones are put together, in the typical step last."""
_FINEST_NS = 1000
COMMUNICATION, WAITING, IDLE = "communication", "waiting", "idle"
"""States besides the classes of kernels, copies and memsets."""
_TIMES = (
    Column("ts_ns", "int64", "ns", "since the first instant shown, by one clock for all ranks"),
    Column("dur_ns", "int64", "ns", "from there to the end"),
)
SHARES = Schema(
    "Recorded GPU time of each rank by activity",
    (
        RANK,
        Column(
            "state",
            "category",
            doc=f"kernel class, copy, fill (memset), {COMMUNICATION}, {WAITING} or {IDLE}",
        ),
        Column("dur_ns", "int64", "ns", "time in this state"),
        Column("fraction_of_recorded_time", "float64", "fraction", "of the rank's recorded time"),
    ),
    doc="Each nanosecond counts once: computation hides communication, communication hides copies. "
    f"{COMMUNICATION.capitalize()} moves data; {WAITING} is the time until the last rank arrives.",
)
STEPS = Schema(
    "Steps in the picture",
    (
        Column("step", "str", doc="'' for a recording without step marks"),
        *_TIMES,
        Column("kernels", "int64", "count", "its kernels, copies and memsets on all ranks"),
        Column("shown", "bool", doc="whether these are in the table `kernels`"),
    ),
    doc="A step runs from its first start to its last end on any rank.",
    drawn=True,
)
STATES = Schema(
    "Activity of each rank",
    (
        RANK,
        *_TIMES,
        Column("state", "category", doc="as in `shares`"),
        Column(
            "detail",
            "category",
            doc="op of a kernel; direction of a copy; collective and group; late rank and cause; cause of "
            "idle time",
        ),
    ),
    doc="Divides each rank's time without overlaps or gaps.",
    drawn=True,
)
KERNELS = Schema(
    "Kernels, copies and memsets",
    (
        RANK,
        Column("stream", "int64", doc="stream of the GPU"),
        *_TIMES,
        Column("name", "category", doc="kernel, or kind and direction of a copy"),
        Column("category", "category", doc="kernel class"),
        Column("op", "category", doc="innermost op around the launch call"),
        Column("shapes", "category", doc="of its arguments"),
        Column(
            "module",
            "category",
            doc="innermost nn.Module, else record_function scope; of backward work around the forward op",
        ),
        Column("stage", "category", doc="of the MoE layer"),
        Column("source", "category", doc="innermost frame of the user's program, if recorded with stacks"),
    ),
    drawn=True,
)
TRACES = Schema(
    "Traces in the picture",
    (
        RANK,
        Column("host", "category", doc="name of the machine, '' where the trace does not say"),
        Column("first_event_offset_ns", "int64", "ns", "its first event by the clock of the other tables"),
    ),
    doc="Perfetto shows times since the first event of a trace.",
    drawn=True,
)
MARKS = Schema(
    "Steps, passes and layers",
    (
        RANK,
        Column("kind", "category", doc="step, serving, pipeline or moe_layer"),
        Column("name", "category", doc="step mark, label of a serving step, pass or layer"),
        *_TIMES,
        Column("depth", "int64", "count", "0 outermost"),
    ),
    drawn=True,
)
MESSAGES = Schema(
    "Messages between ranks",
    (
        Column("from_rank", "int64", doc="rank that sends"),
        Column("from_ts_ns", "int64", "ns", "start of the send, by the clock of the other tables"),
        Column("to_rank", "int64", doc="rank that receives"),
        Column("to_ts_ns", "int64", "ns", "end of the receive"),
        Column("name", "category", doc="process group and size"),
    ),
    drawn=True,
)
TABLES = {
    "shares": SHARES,
    "steps": STEPS,
    "states": STATES,
    "kernels": KERNELS,
    "traces": TRACES,
    "marks": MARKS,
    "messages": MESSAGES,
}
COMMON = -1
"""Stands for the common clock among those of the ranks."""
_PHASE = {"forward": "F", "backward": "B"}


class Selection(Struct, frozen=True):
    """The steps of a run in order of time, and those whose kernels are shown."""

    begin: Mapping[str, int]  # first begin on any rank, ns by the common clock
    end: Mapping[str, int]  # last end
    kernels: Mapping[str, int]  # number of kernels, copies and memsets on all ranks
    typical: str  # the step that stands for the run
    shown: Sequence[str]  # steps whose kernels are shown
    budget: int  # kernels shown at most

    def table(self, origin: int) -> Table:
        """Rows of STEPS, times since `origin`."""
        return STEPS.from_rows(
            (step, begin - origin, self.end[step] - begin, self.kernels[step], step in self.shown)
            for step, begin in self.begin.items()
        )

    def skips(self) -> list[Skip]:
        """What is not shown."""
        why = f"the picture holds {self.budget:,} kernels"
        hidden = [step for step in self.begin if step not in self.shown]
        skips = [Skip(f"kernels of {len(hidden)} step(s): {shortened(hidden)}", why)] if hidden else []
        if (count := self.kernels[self.typical]) > self.budget:
            subject = f"all but the longest of {count:,} kernels of {self.typical or 'the run'}"
            skips.append(Skip(subject, why))
        return skips


class RankTimeline(Struct, frozen=True):
    """One rank, times by its own clock."""

    rank: int  # of the trace
    host: str  # name of the machine, "" where the trace does not say
    first_ns: int  # its first event
    absent: str  # why there is nothing to show, "" where there is
    labels: list[str]  # of its steps, "" for a recording without marks
    edges: Int  # of the steps, one more than labels
    states: States  # without waiting
    step: Int  # of each kernel, position of the step that launched it
    kernels: dict[str, Any]  # columns of KERNELS but the rank, in order of start


State = tuple[str, str]
"""State and detail, see STATES."""


class States(NamedTuple):
    """A rank's time, divided: pieces in order, without overlap or hole."""

    start: Int  # ns
    end: Int  # ns
    code: Int  # into `states`
    states: list[State]  # the different ones

    @property
    def state(self) -> Coded:
        return Coded.merged(self.code, [state for state, _ in self.states])

    @property
    def detail(self) -> Coded:
        return Coded.merged(self.code, [detail for _, detail in self.states])

    def of(self, state: str) -> Bool:
        """The pieces in this state."""
        mask: Bool = np.array([name == state for name, _ in self.states], dtype=bool)[self.code]
        return mask


_FRAME = re.compile(r"^(?P<path>.+\.py)\((?P<line>\d+)\): (?P<function>.+)$", re.DOTALL)
_INSTALLED = re.compile(r"^.*/(?:site-packages|dist-packages|lib/python3[^/]*)/")
_LIBRARIES = sys.stdlib_module_names | {"torch", "triton"}


def rank_timeline(trace: Trace, *, scope: Scope = "all") -> RankTimeline:
    """The part of one rank."""
    rank, work = trace.meta.rank, gpu_work(trace, scope)
    if not len(work.event):
        none = np.zeros(0, dtype=np.int64)
        nothing = States(none, none, none, [])
        return RankTimeline(
            rank=rank,
            host="",
            first_ns=0,
            absent=no_gpu_work(trace, scope),
            labels=[],
            edges=none,
            states=nothing,
            step=none,
            kernels={},
        )
    steps = steps_of(trace)
    labels = steps.labels if steps.marked else [""]
    position = trace.arrays.places(trace.work.event)[work.event]
    times = {"stream": work.stream, "ts_ns": work.start, "dur_ns": work.dur}
    kernels = {**times, **activity_texts(trace, work)}
    return RankTimeline(
        rank=rank,
        host=trace.meta.host,
        first_ns=int(trace.arrays.start.min()),
        absent="",
        labels=labels,
        edges=steps.edges,
        states=rank_states(trace, scope),
        step=steps.of_work[position],
        kernels=kernels,
    )


def rank_states(trace: Trace, scope: Scope = "all") -> States:
    """The states of a rank with GPU work, without its waiting, which needs all ranks.

    Busy time is divided as in the breakdown, idle time by cause as in `idle`; pieces end with their step.
    """
    edges = steps_of(trace).edges
    # There may be millions of pieces: none of them is kept here.
    return merged(_cut_at(in_order(_busy_and_idle(trace, scope)), edges), edges)


def _busy_and_idle(trace: Trace, scope: Scope) -> States:
    """The pieces in any order."""
    work, events = gpu_work(trace, scope), trace.arrays
    names, unnamed = [*events.names, ""], len(events.names)
    is_comm = work.kind == WORK_KINDS.index("comm")
    computes = work.kind == WORK_KINDS.index("computation")
    detail = np.where(computes, lookup(events.name, work.op, unnamed), work.name)
    of_work, (category, text) = codes(work.category.astype(np.int64), detail.astype(np.int64))
    states = [
        (work.categories[class_code], names[name])
        for class_code, name in zip(category.tolist(), text.tolist(), strict=True)
    ]
    comm = work.take(is_comm)
    if len(comm.event):
        labels = communication_labels(trace, comm)
        pair, (collective, group) = codes(
            labels.collective.codes.astype(np.int64), labels.group.codes.astype(np.int64)
        )
        of_work[is_comm] = len(states) + pair
        for name, of_group in zip(collective.tolist(), group.tolist(), strict=True):
            known = (labels.collective.values[name], labels.group.values[of_group])
            states.append((COMMUNICATION, " ".join(text for text in known if text != NOT_RECORDED)))
    row, start, end = exclusive_pieces(work.start, work.end, work.kind)
    _, idle = idle_time(trace, scope)
    return States(
        start=np.concatenate((start, idle.start)),
        end=np.concatenate((end, idle.end)),
        code=np.concatenate((of_work[row].astype(np.int32), idle.cause + np.int32(len(states)))),
        states=[*states, *((IDLE, cause) for cause in CAUSES)],
    )


def _cut_at(states: States, edges: Int) -> States:
    """The pieces from the first edge to the last, cut at those between; they come in order."""
    start, end, code, names = states
    edges = unique(edges)
    across = np.searchsorted(start, edges) - 1
    is_cut = (across >= 0) & (edges < lookup(end, across, 0))
    cuts, rows = edges[is_cut], across[is_cut]
    start, end = np.insert(start, rows + 1, cuts), np.insert(end, rows, cuts)
    code = np.insert(code, rows + 1, code[rows])
    inside = slice(*np.searchsorted(start, edges[[0, -1]]).tolist())
    return States(start[inside], end[inside], code[inside], names)


def in_order(states: States) -> States:
    """The pieces in order of time, without those that have no extent."""
    start, end, code, names = states
    del states  # each column goes as the next one comes
    order = np.argsort(start, kind="stable")
    order = order[end[order] > start[order]]
    start = start[order]
    end = end[order]
    return States(start, end, code[order], names)


def merged(states: States, edges: Int) -> States:
    """The same with neighbors of one step that are in one state as one piece.

    Args:
        states: in order.
        edges: of the steps.
    """
    # Of the different states only those that occur, once each.
    used = np.flatnonzero(np.bincount(states.code, minlength=len(states.states)))
    number: dict[State, int] = {}
    of_state = np.zeros(len(states.states), dtype=states.code.dtype)
    of_state[used] = [number.setdefault(states.states[code], len(number)) for code in used.tolist()]
    code = of_state.take(states.code)
    begins = np.ones(len(code), dtype=bool)
    begins[1:] = code[1:] != code[:-1]
    at_edge = np.searchsorted(states.start, edges)
    begins[at_edge[at_edge < len(code)]] = True
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(code))[: len(first)] - 1
    return States(states.start[first], states.end[last], code[first], list(number))


def activity_texts(trace: Trace, work: Work) -> dict[str, Coded]:
    """What is known of each activity, one row each, "" where it is not.

    Args:
        trace: of the rank.
        work: any of its GPU work.

    Returns:
        name, category, op, shapes, module, stage and source; see the schema KERNELS.
    """
    events = trace.arrays
    names, unnamed = [*events.names, ""], len(events.names)
    shape, shapes = shape_texts(trace, work)
    modules = module_frames(trace)
    if not modules.any():
        modules = program_scopes(trace)
    stages = [*STAGES, UNATTRIBUTED_NAME, ""]
    stage = trace.once(regions).stage[events.places(trace.work.event)[work.event]]
    frames = events.where("python")
    source = Coded(np.zeros(len(work.event), dtype=np.int64), [""])
    if frames.any():
        sources = [user_frame(name) for name in events.names]
        is_user_code = np.array([text != "" for text in sources], dtype=bool)[events.name]
        source = _around(trace, work, is_user_code & frames, [*sources, ""])
    columns = {
        "name": Coded.used(work.name, work.names),
        "category": Coded.used(work.category, work.categories),
        "op": Coded.used(lookup(events.name, work.op, unnamed), names),
        "shapes": Coded.used(shape, ["" if text == NO_SHAPE else text for text in shapes]),
        "module": _around(trace, work, modules, [name.removeprefix(MODULE_MARK) for name in names]),
        "stage": Coded.used(np.where(stage >= 0, stage, len(stages) - 1), stages),
        "source": source,
    }
    return {
        name: Coded(column.codes.astype(np.int32, copy=False), column.values)
        for name, column in columns.items()
    }


def _around(trace: Trace, work: Work, marked: Bool, texts: list[str]) -> Coded:
    """Text of the innermost marked event around each piece's forward op, else around its call.

    Args:
        trace: of the rank.
        work: its work.
        marked: of each event.
        texts: of each name of events, and "" behind them.
    """
    events = trace.arrays
    around = nearest(events.parent, events.depth, marked)
    of_call, of_forward = (lookup(around, event, -1) for event in (work.host_call, work.forward))
    event = np.where(of_forward >= 0, of_forward, of_call)
    return Coded.used(lookup(events.name, event, len(texts) - 1), texts)


def user_frame(name: str) -> str:
    """A Python frame as "model.py:12 forward"; "" for one of Python, torch or Triton, and for other names.

    >>> user_frame("/venv/lib/python3.12/site-packages/megatron/core/router.py(91): forward")
    'megatron/core/router.py:91 forward'
    """
    frame = _FRAME.match(name)
    if frame is None:
        return ""
    path = _INSTALLED.sub("", frame["path"])
    if path.partition("/")[0].removesuffix(".py") in _LIBRARIES or path.startswith("<"):
        return ""
    return f"{path}:{frame['line']} {frame['function']}"


@analyzer(
    "step_timeline",
    title="The step on every rank",
    order=5,
    part=rank_timeline,
    shared=("aligned run",),
    needs=("moe", "pipeline", "serving", "stragglers"),
    tables=TABLES,
)
def step_timeline(
    parts: Sequence[RankTimeline],
    aligned: AlignedRun,
    results: Mapping[str, Result],
    *,
    scope: Scope = "all",
) -> Result:
    """What does each rank do at each moment of the step: compute, communicate, wait for others, or idle?

    Reading:
        In an HTML report, one lane per rank, by one clock. `shares` adds the lanes up: compare the ranks in
        one state.

    Limits:
        Waiting is known only in collectives that were matched across ranks.

    Args:
        parts: from `rank_timeline`.
        aligned: the run.
        results: of the analyzers whose passes, layers and waiting it shows.
        scope: "all", or "linked" for work whose launch call is in the trace.

    Returns:
        table `shares`; for the picture in an HTML page, all by one clock, `steps`, `states`, `kernels`,
        `traces`, `marks` and `messages`. meta: `typical_step`, which stands for the run.
    """
    skips = [Skip(f"rank {part.rank}", part.absent) for part in parts if part.absent]
    parts = [part for part in parts if not part.absent]
    if not parts:
        return result({"shares": SHARES.concat([])}, skips, scope=scope)
    shift = aligned.shift
    origin = min(int(part.edges[0]) + shift[part.rank] for part in parts)
    end = max(int(part.edges[-1]) + shift[part.rank] for part in parts)
    start = {COMMON: -origin} | {part.rank: shift[part.rank] - origin for part in parts}
    drawn_marks = marks(results, parts, start)
    if not len(drawn_marks):
        skips.append(Skip("steps, passes and layers", "none marked, see `timeline` and `moe`"))

    # The states of all ranks with their waiting for each other, as far as it is known.
    states: Sequence[States] = [part.states for part in parts]
    lost = results["stragglers"].data.get("lost")
    if lost is not None and len(lost):
        of_rank = [lost.take(np.flatnonzero(lost.array("rank") == part.rank)) for part in parts]
        states = [
            merged(with_waiting(part.states, waits), part.edges)
            for part, waits in zip(parts, of_rank, strict=True)
        ]
    elif any(lane.of(COMMUNICATION).any() for lane in states):
        reason = "none known: needs matched collectives of at least two ranks"
        skips.append(Skip(f"{WAITING} within {COMMUNICATION}", reason))

    # On each rank, the state first in which all of them spend most time.
    totals: list[dict[str, int]] = []
    together: Counter[str] = Counter()
    for lane in states:
        state = lane.state
        state_ns = sums(state.codes.astype(np.int64), lane.end - lane.start, len(state.values))
        totals.append(dict(zip(state.values, state_ns.tolist(), strict=True)))
        together.update(totals[-1])
    shares = []
    for part, total in zip(parts, totals, strict=True):
        names = [name for name, _ in together.most_common() if name in total]
        dur = np.array([total[name] for name in names], dtype=np.int64)
        rank = np.full(len(names), part.rank)
        shares.append(
            {"rank": rank, "state": names, "dur_ns": dur, "fraction_of_recorded_time": dur / int(dur.sum())}
        )

    # The picture holds so many states: coarser ones if there are more, in the typical step last.
    selection = select_steps(parts, shift, KERNELS_SHOWN)
    drawn = states
    for kept in (selection.typical, None):
        steps = [part.labels.index(kept) if kept in part.labels else -1 for part in parts]
        bin_ns, longest_ns = _FINEST_NS, max(int(np.diff(part.edges).max()) for part in parts)
        while (count := sum(len(lane.start) for lane in drawn)) > STATES_SHOWN and bin_ns < 2 * longest_ns:
            lanes = zip(parts, states, steps, strict=True)
            drawn = [coarser(lane, part.edges, bin_ns, step) for part, lane, step in lanes]
            bin_ns *= 2
        if count <= STATES_SHOWN:
            break
    if drawn is not states:
        subject = f"order of states within {duration(bin_ns // 2)}{f', except in {kept}' if kept else ''}"
        skips.append(Skip(subject, f"the picture holds {STATES_SHOWN:,} states"))
    state_rows = [
        {
            "rank": np.full(len(lane.start), part.rank),
            "ts_ns": lane.start + start[part.rank],
            "dur_ns": lane.end - lane.start,
            "state": lane.state,
            "detail": lane.detail,
        }
        for part, lane in zip(parts, drawn, strict=True)
    ]
    tables = {
        "shares": SHARES.concat(shares),
        "steps": selection.table(origin),
        "states": STATES.concat(state_rows),
        "kernels": kernel_table(parts, selection, start),
        "traces": TRACES.from_rows(
            (part.rank, part.host, part.first_ns + start[part.rank]) for part in parts
        ),
        "marks": drawn_marks,
    }
    if len(sent := messages(aligned, origin, end)):
        tables["messages"] = sent
    return result(tables, [*skips, *selection.skips()], scope=scope, typical_step=selection.typical)


def marks(results: Mapping[str, Result], parts: Sequence[RankTimeline], start: Mapping[int, int]) -> Table:
    """The marks of all ranks, by rank and depth.

    Args:
        results: of `moe`, `pipeline` and `serving`.
        parts: of the ranks.
        start: rank to what is added to its times to get them since the first instant shown; that of the
            first rank, by whose clock most results are, at -1.
    """
    by_kind = {}
    steps = []
    for part in parts:
        whole = [number for number, step in enumerate(part.labels) if step and is_step(step)]
        begin, end = part.edges[:-1][whole], part.edges[1:][whole]
        names = [part.labels[number] for number in whole]
        steps.append(_rows(np.full(len(whole), part.rank), names, begin + start[part.rank], end - begin))
    if any(len(rows["rank"]) for rows in steps):
        by_kind["step"] = steps
    for kind, source, name in (
        ("serving", "serving", "steps"),
        ("pipeline", "pipeline", "spans"),
        ("moe_layer", "moe", "passes"),
    ):
        table = results[source].data.get(name)
        if table is None or not len(table):
            continue
        names = []
        if kind == "serving":  # what a step serves: "decode 32" of 32 tokens
            columns = map(table.values, ("kind", "dummy", "tokens", "requests"))
            for served, dummy, tokens, requests in zip(*columns, strict=True):
                size = tokens if tokens >= 0 else requests
                text = f"dummy {served}" if dummy and served != "idle" else served
                names.append(f"{text} {size}" if size >= 0 and not dummy else text)
        elif kind == "pipeline":
            chunks = len(set(table.values("chunk"))) > 1
            columns = map(table.values, ("phase", "micro_batch", "chunk"))
            for phase, micro_batch, chunk in zip(*columns, strict=True):
                of_chunk = f" chunk {chunk}" if chunks else ""
                names.append(f"{_PHASE[phase]} micro-batch {micro_batch}{of_chunk}")
        else:
            columns = map(table.values, ("layer", "phase"))
            names = [f"layer {layer} {phase}" for layer, phase in zip(*columns, strict=True)]
        # Passes through layers have the times of their rank.
        shift = [start[rank if kind == "moe_layer" else COMMON] for rank in table.values("rank")]
        times = table.array("ts_ns") + np.array(shift, dtype=np.int64)
        by_kind[kind] = [_rows(table.array("rank"), names, times, table.array("dur_ns"))]
    rows = [
        row | {"kind": [kind] * len(row["rank"]), "depth": np.full(len(row["rank"]), depth)}
        for depth, (kind, parts_of_kind) in enumerate(by_kind.items())
        for row in parts_of_kind
    ]
    table = MARKS.concat(rows)
    # A serving step without kernels lasts as long as its mark on the host, maybe before all GPU work.
    table = table.take(table.array("ts_ns") >= 0)
    return table.take(np.lexsort((table.array("ts_ns"), table.array("depth"), table.array("rank"))))


def _rows(rank: Int, names: list[str], start: Int, dur: Int) -> dict[str, Any]:
    return {"rank": rank, "name": Coded.of(names), "ts_ns": start, "dur_ns": dur}


def messages(aligned: AlignedRun, origin: int, end: int) -> Table:
    """Sends with their receives that lie in the picture.

    Args:
        aligned: the run.
        origin: first instant shown, ns by the common clock.
        end: last instant.
    """
    rows = []
    for pair in aligned.collectives:
        sender, receiver = pair.participants[0], pair.participants[-1]
        if pair.collective == SEND_RECV and origin <= sender.start and receiver.end <= end:
            size = f": {amount(pair.bytes, 'bytes')}" if pair.bytes >= 0 else ""
            times = sender.start - origin, receiver.end - origin
            rows.append((sender.rank, times[0], receiver.rank, times[1], f"{pair.group}{size}"))
    return MESSAGES.from_rows(rows)


def select_steps(parts: Sequence[RankTimeline], shift: Mapping[int, int], budget: int) -> Selection:
    """The steps of a run.

    Args:
        parts: of its ranks, at least one.
        shift: rank to the ns that are added to its times to get them by the common clock.
        budget: kernels that can be shown; the typical step is always among those that are.
    """
    begins: dict[str, list[int]] = {}
    ends: dict[str, list[int]] = {}
    kernels: dict[str, int] = {}
    for part in parts:
        counts = np.bincount(part.step, minlength=len(part.labels)).tolist()
        edges = (part.edges + shift[part.rank]).tolist()
        for position, step in enumerate(part.labels):
            begins.setdefault(step, []).append(edges[position])
            ends.setdefault(step, []).append(edges[position + 1])
            kernels[step] = kernels.get(step, 0) + counts[position]
    order = sorted(begins, key=lambda step: min(begins[step]))
    durations = {step: sum(ends[step]) - sum(begins[step]) for step in order}
    whole = [step for step in order if is_step(step)] or order
    everywhere = [step for step in whole if len(begins[step]) == len(parts)] or whole
    mean_ns = [durations[step] // len(begins[step]) for step in everywhere]
    # As the scenarios choose theirs, so that the picture and the findings are about one step.
    typical = everywhere[typical_step(mean_ns, len(parts))]
    # Of the others, whole ones first, as many as there is room for.
    others = sorted((step for step in order if step != typical), key=lambda step: not is_step(step))
    total = np.cumsum([kernels[step] for step in (typical, *others)]).tolist()
    return Selection(
        begin={step: min(begins[step]) for step in order},
        end={step: max(ends[step]) for step in order},
        kernels=kernels,
        typical=typical,
        shown=[typical, *(step for step, count in zip(others, total[1:], strict=True) if count <= budget)],
        budget=budget,
    )


def kernel_table(parts: Sequence[RankTimeline], selection: Selection, start: Mapping[int, int]) -> Table:
    """KERNELS of all ranks, one below the other; `start` as for `marks`."""
    count = selection.kernels[selection.typical]
    tables = []
    for part in parts:
        steps_shown = [number for number, step in enumerate(part.labels) if step in selection.shown]
        rows = np.flatnonzero(np.isin(part.step, steps_shown))
        if count > selection.budget:  # that step is alone; each rank has its share, the longest kernels
            order = np.argsort(-part.kernels["dur_ns"][rows], kind="stable")
            rows = rows[np.sort(order[: len(rows) * selection.budget // count])]
        columns = {name: values.take(rows) for name, values in part.kernels.items()}
        columns |= {"rank": np.full(len(rows), part.rank), "ts_ns": columns["ts_ns"] + start[part.rank]}
        tables.append(columns)
    return KERNELS.concat(tables)


def with_waiting(states: States, lost: Table) -> States:
    """The states with the part of the communication that waits for other ranks.

    Args:
        states: of a rank, by its own clock.
        lost: its rows of the table `lost` of `stragglers`, which lie in its communication.
    """
    # A kernel that waits while another does has no time of its own there.
    lost = lost.take(lost.array("dur_ns") > 0)
    if not len(lost):
        return states
    lost = lost.take(np.argsort(lost.array("local_ts_ns"), kind="stable"))
    begin = lost.array("local_ts_ns")
    waits = Union(begin, begin + lost.array("dur_ns"))
    cause = lost.coded("cause")
    late, (late_ranks, causes) = codes(lost.array("late_rank"), cause.codes.astype(np.int64))
    late += len(states.states)
    details = []  # whom the rank waits for, and why that one is late
    for rank, name in zip(late_ranks.tolist(), (cause.values[code] for code in causes.tolist()), strict=True):
        details.append(
            f"for rank {rank}" if name == "unknown" else f"for rank {rank}: {name.replace('_', ' ')}"
        )
    comm = np.flatnonzero(states.of(COMMUNICATION))
    others = np.flatnonzero(~states.of(COMMUNICATION))
    moves = Union(states.start[comm], states.end[comm])
    waited, wait_start, wait_end = cut(*waits, moves)
    moving, start, end = cut(*moves, waits.complement(int(states.start[0]), int(states.end[-1])))
    return in_order(
        States(
            np.concatenate((states.start[others], start, wait_start)),
            np.concatenate((states.end[others], end, wait_end)),
            np.concatenate((states.code[others], states.code[comm[moving]], late[waited])),
            [*states.states, *((WAITING, detail) for detail in details)],
        )
    )


def coarser(states: States, edges: Int, bin_ns: int, kept: int = -1) -> States:
    """Fewer pieces with the same totals in each bin of this length: there each state is one piece.

    Args:
        states: in order.
        edges: of the steps.
        bin_ns: within it the order of short pieces is lost; longer ones stay where they are.
        kept: number of the step that stays as it is, -1 for none.
    """
    step = np.searchsorted(edges, states.start, side="right") - 1
    first, last = ((time - edges[step]) // bin_ns for time in (states.start, states.end - 1))
    short = (first == last) & (step != kept)
    begins = np.ones(len(short), dtype=bool)
    begins[1:] = ~short[1:] | ~short[:-1] | (first[1:] != first[:-1]) | (step[1:] != step[:-1])
    group, (_, code) = codes(np.cumsum(begins), states.code)
    dur = np.zeros(len(code), dtype=np.int64)
    np.add.at(dur, group, states.end - states.start)
    end = states.start[0] + np.cumsum(dur)
    return States(end - dur, end, code, states.states)
