"""Experts of MoE layers: computed one by one instead of in grouped GEMMs, and unevenly loaded.

Experts computed one by one repeat a sequence of ops, one iteration per expert. What a single iteration over
all rows would need is decided by counting: ops of one name (and of one forward op) that occur among a pass's
experts at least once per iteration belong to the loop, and one in as many is kept.

- Work that moves or computes rows keeps its total time, less the fixed cost of the removed calls. The fixed
  cost is the intercept of a line through the times over the bytes; if all calls move the same number of
  bytes, it is the time above what memory bandwidth explains.
- Ops that take one of several forms by the number of rows, such as index_select with and without gather, are
  counted together if each form alone is too rare: by the outermost op around them.
- Host reads of sizes, and the ops around them, are removed altogether.
- Work of the size of all experts' weights that each iteration repeats is removed altogether as well: autograd
  assembles the gradients of views of one parameter this way, and a grouped GEMM writes them at once.
- Where each iteration finds its rows in a one-hot mask, as loops of the transformers library do, its grouped
  path is added: it sorts all rows, and clears those of no expert of its own before and after each GEMM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.analysis.comm import MatchedCollective
from tracelens.analysis.moe import (
    BACKWARD,
    EXPERTS,
    FORWARD,
    PERMUTATION,
    PHASES,
    LayerPass,
    blocking,
    regions,
)
from tracelens.analysis.roofline import gemm_rate
from tracelens.arrays import Bool, Float, Int, isin, lookup, ordered, unique
from tracelens.devices import Device, Measured, message_seconds
from tracelens.findings import (
    Detection,
    Detections,
    Outcome,
    Quantity,
    RankContext,
    Remedy,
    detector,
    in_steps,
    step_count,
)
from tracelens.table import Result, codes
from tracelens.trace import Trace, enclosing_op, rows_by_code, union
from tracelens.units import duration, milliseconds
from tracelens.what_if import NotApplicable, ScenarioContext, efficiency, scenario, work_costs
from tracelens.what_if.graph import (
    ALL_TO_ALLS,
    Edge,
    Edit,
    Node,
    add_calls,
    usual_host_share,
    work_nodes,
)

LOOP_GEMMS = 4
"""This many GEMMs with weights of one size in one layer are a loop over experts."""

LOOP_SHARE = 0.75
"""Share of iterations that must have an op of the loop: experts without rows may be left out."""

GROUPED_ROWS = 240
"""Rows of an expert in whose time a grouped GEMM does nothing: tiles cut off at the borders of the groups,
and each group's begin and end. On H100s and H200s torch's grouped GEMMs reach 62% of the rate of the same
run's large GEMMs with 384 rows an expert, 69% with 512, 87% with 2,048."""

SORTING_OPS = 30
"""Ops of a loop in whose host time a pass of transformers' grouped path does what the loop does not: it sorts
tokens, counts them and keeps their order. Its forward passes launch 49 kernels, its backward passes 66, where
an iteration of the loop has 10 and 32; measured on 12 pairs of traces, a sort takes as long as twelve ops."""

CLEAR_RATE = 0.45
"""Share of HBM bandwidth at which rows are cleared by a mask with an element a row; 0.39 to 0.41 in nine
traces of H200s, 0.53 in two of H100s."""

COPY_RATE = 0.7
"""Share of HBM bandwidth at which rows are copied, likewise."""

EVEN = 1.02
"""Busiest rank / mean up to which tokens are balanced: kernels of equal work differ by as much."""

EVEN_TIME = 1.05
"""Slowest rank / mean of the experts' time up to which tokens are balanced, where rows are not recorded: two
H200s differ by up to 1.01 in five runs of one program with even tokens."""

UNEVEN = 1.5
"""Busiest rank / mean from which tokens are told to be uneven even where that costs no time here: such a rank
needs half as much memory and time again."""

_MASKED, _SPLIT = "one-hot mask", "rows split"
"""How a loop comes by the rows of each expert, by which remedies are chosen."""

GPUS_PER_NODE = 8
"""GPUs that the links of a node connect, in all bundled devices' servers."""

_GEMMS = ("gemm", "grouped_gemm")
_NONE = np.empty(0, dtype=np.int64)


@detector(
    "expert_loop",
    evidence="moe",
    scenario="grouped_gemm",
    title="Expert loop",
    fix="grouped GEMM",
    measures={
        "GEMMs per layer, forward": "mean number of expert GEMMs in a forward pass",
        "passes per step": "forward passes through an MoE layer with a loop",
        "time of the loops per step": "first to last expert work of a pass, forward and backward",
        "gaps between their kernels per step": "part of that time with an idle GPU",
        "rate on the summed rows, forward": "FLOPs of the expert GEMMs / time of the forward loops",
        "largest expert / mean": "rows of the largest expert / mean over the experts",
    },
    threshold=f"{LOOP_GEMMS} expert GEMMs with weights of one size in one pass",
    limits="Needs the shapes of the GEMMs (record_shapes=True).",
    remedy="Compute all experts in one grouped GEMM.",
    remedies=(
        Remedy(
            "Primus: use_turbo_grouped_gemm (use_turbo_grouped_mlp in earlier releases) with "
            "enable_primus_turbo.",
            framework=("primus",),
            vendor=("amd",),
            best=True,
        ),
        Remedy(
            'transformers: load the model with experts_implementation="grouped_mm" (transformers 5; needs '
            "torch 2.9).",
            framework=("huggingface",),
            best=True,
            cause=(_SPLIT,),
        ),
        Remedy("Megatron-LM: --moe-grouped-gemm.", framework=("megatron",), best=True, cause=(_SPLIT,)),
        Remedy("The bundled workload: --experts grouped.", framework=("workload",)),
        Remedy(
            "Sort the tokens by expert and call torch.nn.functional.grouped_mm (torch 2.10; "
            "torch._grouped_mm before).",
            versions={"torch": ">=2.10"},
            plain=True,
        ),
        Remedy(
            "Sort the tokens by expert and call torch._grouped_mm.", versions={"torch": "<2.10"}, plain=True
        ),
        Remedy(
            "Loops of the transformers library find the rows of each expert in a one-hot mask, as this one "
            'does: load its models with experts_implementation="grouped_mm" (transformers 5; torch 2.9).',
            cause=(_MASKED,),
        ),
    ),
)
def expert_loop(context: RankContext) -> Outcome:
    """At least 4 expert GEMMs with weights of one size run one by one in a pass through an MoE layer."""
    layers = context.trace.once(regions)
    if not layers.passes:
        return "no MoE layer"
    is_loop = context.trace.once(loop_iterations) > 0
    if not is_loop.any():
        grouped = any(layer_pass.grouped for layer_pass in layers.passes)
        if any(not layer_pass.grouped and -1 in layer_pass.rows for layer_pass in layers.passes):
            return "shapes of the expert GEMMs not recorded; use record_shapes=True"
        return "the expert GEMMs are grouped" if grouped else "no loop over experts"
    # From the first to the last work of the experts in each pass with a loop, forward and backward.
    work = context.work
    number, stage, phase = (
        values[context.rows] for values in (layers.layer_pass, layers.stage, layers.phase)
    )
    rows = np.flatnonzero((number >= 0) & (stage == EXPERTS))
    rows = rows[is_loop[number[rows]]]
    cells, cell_of = np.unique(number[rows] * len(PHASES) + phase[rows], return_inverse=True)
    start, end = np.full(len(cells), np.iinfo(np.int64).max), np.zeros(len(cells), dtype=np.int64)
    np.minimum.at(start, cell_of, work.start[rows])
    np.maximum.at(end, cell_of, work.end[rows])
    forward, loop_ns = cells % len(PHASES) == FORWARD, end - start
    passes = int(forward.sum())
    if not passes:
        return "no loop over experts in the steps"
    # As grouped GEMMs: the GEMMs at the rate of the trace's large ones, twice as many in the backward pass;
    # what lies between them (activation, weighting, moving rows in and out) at the memory's bandwidth: what
    # each one writes is read again, and its input was written before.
    peak_rate = gemm_rate(context.trace, context.device, layers.stage == EXPERTS)
    grouped_ns: Float
    if not peak_rate or context.device is None:
        # Without figures of the device, whatever keeps the GPU busy stays.
        grouped_ns = context.busy.covered(start, end).astype(float)
    else:
        of_cell = [layers.passes[index] for index in (cells // len(PHASES)).tolist()]
        flops = np.array([_flops(layer_pass) for layer_pass in of_cell])
        moved = np.array(
            [
                float(sum(gemm.rows * (gemm.depth + gemm.columns) for gemm in layer_pass.gemms))
                * layer_pass.itemsize
                for layer_pass in of_cell
            ]
        )
        factor = np.where(cells % len(PHASES) == BACKWARD, 2.0, 1.0)
        grouped_ns = factor * (flops / peak_rate + moved / context.device.hbm_bytes_per_s) * 1e9
    saving = np.maximum(loop_ns - grouped_ns, 0)
    looping = [layers.passes[index] for index in (cells // len(PHASES))[forward].tolist()]
    launches = sum(len(layer_pass.gemms) for layer_pass in looping) / passes
    wall = float(loop_ns[forward].sum())
    rate = sum(_flops(layer_pass) for layer_pass in looping) / max(wall, 1) * 1e9
    gaps = loop_ns - context.busy.covered(start, end)
    uneven = np.mean([max(layer_pass.rows) / max(np.mean(layer_pass.rows), 1e-9) for layer_pass in looping])
    layers_looping = len({layer_pass.layer for layer_pass in looping})
    return Detection(
        (
            Quantity("GEMMs per layer, forward", launches, "count"),
            Quantity("passes per step", context.per_step(passes), "count"),
            Quantity("time of the loops per step", context.per_step(float(loop_ns.sum())), "ns"),
            Quantity("gaps between their kernels per step", context.per_step(float(gaps.sum())), "ns"),
            Quantity("rate on the summed rows, forward", rate, "flops/s"),
            Quantity("largest expert / mean", float(uneven), "ratio"),
        ),
        context.per_step(float(saving.sum())),
        union(start, end),
        f"{launches:.0f} sequential expert GEMMs per MoE layer in {layers_looping} layers reach "
        f"{rate / 1e12:,.0f} TFLOP/s in forward (large GEMMs: {peak_rate / 1e12:,.0f}); the loops take "
        f"{milliseconds(context.per_step(wall), 1)}/step forward and "
        f"{milliseconds(context.per_step(float(loop_ns[~forward].sum())), 1)}/step backward, "
        f"{gaps.sum() / max(loop_ns.sum(), 1):.0%} of that in gaps; grouped GEMMs need about "
        f"{milliseconds(context.per_step(float(grouped_ns.sum())), 1)}/step",
        "medium",
        cause=_MASKED if context.trace.once(_finds_rows_in_mask) else _SPLIT,
    )


def _flops(layer_pass: LayerPass) -> float:
    """FLOPs of the expert GEMMs in forward."""
    return float(sum(2 * gemm.rows * gemm.depth * gemm.columns for gemm in layer_pass.gemms))


def iterations(layer_pass: LayerPass) -> int:
    """Number of experts that a pass computes one by one, 0 if it does not."""
    if layer_pass.grouped or min((gemm.rows for gemm in layer_pass.gemms), default=-1) < 0:
        return 0
    return _experts(_rows_by_size(layer_pass))


def _rows_by_size(layer_pass: LayerPass) -> dict[tuple[int, int], list[int]]:
    """The size of each weight of a pass, (depth, columns), to the rows of its GEMMs."""
    rows: dict[tuple[int, int], list[int]] = {}
    for gemm in layer_pass.gemms:
        rows.setdefault((gemm.depth, gemm.columns), []).append(gemm.rows)
    return rows


def _experts(rows: Mapping[tuple[int, int], list[int]]) -> int:
    """Number of experts with these GEMMs, 0 where they are too few for a loop."""
    return min((len(of_size) for of_size in rows.values() if len(of_size) >= LOOP_GEMMS), default=0)


def loop_iterations(trace: Trace) -> Int:
    """`iterations` of all passes of a rank; ask with `trace.once(loop_iterations)`."""
    return np.array([*map(iterations, trace.once(regions).passes)], dtype=np.int64)


class ExpertLoops(Struct, frozen=True):
    """The loops over experts of one rank."""

    loops: list[Loop]  # passes through them
    dur: Int  # of each activity in the trace's `work`, ns; none without loops
    # FLOP/s of the run's large GEMMs outside of them, else what the device achieves; 0 if unknown
    rate: float
    dtype: str  # of the experts' GEMMs
    # whether each iteration finds its rows in a one-hot mask, as those of the transformers library do
    is_masked: bool = False


class Loop(Struct, frozen=True):
    """One pass, forward or backward, through the experts of one layer; rows are those of the trace's work."""

    layer_pass: LayerPass
    phase: int  # code into PHASES
    gemms: Int  # expert GEMMs that stay
    removed: Int  # work that a single iteration does not need
    kept: Int  # other work of the loop that stays
    kept_ns: Float  # its durations with the rows of all iterations
    blocking_calls: Int  # event rows of the calls by which the host waits in the loop


def expert_loops(trace: Trace, device: Device | None) -> ExpertLoops:
    """The loops over experts of one rank."""
    if not trace.once(loop_iterations).any():
        return ExpertLoops([], np.empty(0, dtype=np.int64), 0.0, "")
    layers, costs = trace.once(regions), trace.once(work_costs)
    items = unique(costs.item[(layers.stage == EXPERTS) & (costs.item >= 0)]).tolist()
    known = (costs.items[item].cost for item in items)
    dtype = next((cost.dtype for cost in known if cost.engine == "matrix"), "bf16")
    rate = gemm_rate(trace, device, layers.stage == EXPERTS)
    return ExpertLoops(
        loops(trace, _bytes_per_s(device)), trace.work.dur, rate, dtype, trace.once(_finds_rows_in_mask)
    )


def _finds_rows_in_mask(trace: Trace) -> bool:
    """Whether each iteration finds its rows in a one-hot mask; ask with `trace.once(_finds_rows_in_mask)`."""
    turns = int(trace.once(loop_iterations).sum())
    looks = trace.arrays.named(lambda name: name == "aten::nonzero").sum()
    return "aten::one_hot" in trace.arrays.names and looks >= LOOP_SHARE * turns > 0


@scenario("grouped_gemm", argument="=EFFICIENCY", usual=("",), reads=(expert_loops,))
def grouped_gemm(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Loops over experts become one grouped GEMM per weight, at EFFICIENCY of the achievable rate.

    Assumes:
        Without EFFICIENCY, GEMMs run at the rate of the large ones in the trace, but for tiles that each
        expert's rows do not fill. Host reads of sizes are gone; other work keeps its time less the fixed cost
        of the removed calls. Loops of the transformers library become its own grouped path, which sorts rows
        and clears those of other ranks' experts.
    """
    share = efficiency(argument, f"grouped_gemm={argument}") if argument else 0.0
    graph, of_rank = context.gpu_graph(), context.read(expert_loops)
    if not any(rank.loops for rank in of_rank):
        raise NotApplicable("no loop over experts: no 4 GEMMs of one weight size in an MoE layer")
    rates, passes = [], 0
    work, waits, sorts = (np.zeros(len(graph), dtype=bool) for _ in range(3))
    for index, rank in enumerate(of_rank):
        if not rank.loops:
            continue
        device = graph.ranks[index].device
        # The rate of a run's own large GEMMs reflects its shapes, power and clocks.
        rate, lost_rows = rank.rate, GROUPED_ROWS
        if share:
            peak = device and (device.max_achievable(rank.dtype) or device.peak("matrix", rank.dtype))
            if not peak:
                raise NotApplicable(f"the device's peak for {rank.dtype} GEMMs is unknown: give --device")
            rate, lost_rows = share * peak, 0
        elif not rate:
            raise NotApplicable("no large GEMM in the trace, and its device is unknown: give --device")
        rates.append(rate)
        node, dur = work_nodes(graph, index), rank.dur.astype(float)
        gemms_ns = []
        for loop in rank.loops:
            loop_ns = grouped_gemm_ns(loop.layer_pass, loop.phase, rate, _bytes_per_s(device), lost_rows)
            if rank.is_masked:
                loop_ns += cleared_ns(loop.layer_pass, loop.phase, _bytes_per_s(device))
                sorts[node[loop.gemms[:1]]] = True
            # Its GEMMs share the time of the grouped ones as they shared the loop's.
            own_ns = dur[loop.gemms]
            gemms_ns.append(loop_ns * own_ns / max(own_ns.sum(), 1))
        gemms = np.concatenate([loop.gemms for loop in rank.loops])
        kept = np.concatenate([loop.kept for loop in rank.loops])
        _scale(edit, node[gemms], dur[gemms], np.concatenate(gemms_ns))
        _scale(edit, node[kept], dur[kept], np.concatenate([loop.kept_ns for loop in rank.loops]))
        work[node[np.concatenate([loop.removed for loop in rank.loops])]] = True
        points = graph.nodes(index, Node.POINT, Node.WAITED)
        calls = np.concatenate([loop.blocking_calls for loop in rank.loops])
        waits[points] = np.isin(graph.event[points], calls)
        passes += len(rank.loops)
    # Removed work and its calls go; a call does when all that it launched does.
    busy, idle = (np.zeros(len(graph), dtype=bool) for _ in range(2))
    idle[graph.src[graph.edges_to(Edge.LAUNCH, work)]] = True
    busy[graph.src[graph.edges_to(Edge.LAUNCH, ~work)]] = True
    point = (idle | waits) & ~busy
    launches = int((idle & ~busy).sum())
    usual = usual_host_share(graph, edit, point)
    added = ""
    if op_ns := add_calls(graph, edit, graph.src[graph.edges_to(Edge.LAUNCH, sorts)], SORTING_OPS, point):
        added = (
            "; the grouped path of the transformers library clears rows around each GEMM, and sorts them in "
            f"{duration(SORTING_OPS * op_ns)} of host time a pass"
        )
    edit.dur[work] = 0
    edit.delay[work | point] = 0
    edit.lag[graph.edges_to(Edge.HOST, point)] = 0
    edit.lag[graph.edges_to(Edge.STREAM, work)] = 0
    edit.kept[graph.edges_to(Edge.SYNC, waits)] = False
    source = (
        f"{share:g} of what the device achieves"
        if share
        else f"the rate of the run's own large GEMMs, with {GROUPED_ROWS} rows more an expert"
    )
    return (
        f"{passes:,} loops become grouped GEMMs over the rows of all experts, which removes {launches:,} "
        f"launches; the GEMMs run at {np.mean(rates) / 1e12:,.0f} TFLOP/s ({source}) or at memory bandwidth; "
        "other work keeps its time less the fixed cost of the removed calls; host reads of sizes and the "
        f"expert-by-expert assembly of gradients are gone{added}{usual}"
    )


def _scale(edit: Edit, nodes: Int, before_ns: Float, after_ns: Float) -> None:
    """Scale the current durations, which other scenarios may have changed, by after / before."""
    edit.set_dur(nodes, edit.dur[nodes] * (after_ns / np.maximum(before_ns, 1)))


def grouped_gemm_ns(
    layer_pass: LayerPass, phase: int, rate: float, bytes_per_s: float, lost_rows: int
) -> float:
    """Ns of the grouped GEMMs of one pass: per weight the longer of FLOPs / rate and bytes / bandwidth.

    T rows of all experts, E experts: 2·T·K·N FLOPs; rows read, weights of all experts read, result written.
    The backward pass has two GEMMs of that size for each: for the rows' gradients and for the weights'. For
    each expert the GEMM takes as long as with `lost_rows` more rows.
    """
    rows_by_size = _rows_by_size(layer_pass)
    experts, total = _experts(rows_by_size), 0.0
    for (depth, columns), rows in rows_by_size.items():
        # Gate and up projections of one size are separate GEMMs.
        weights = len(rows) / experts
        all_rows = sum(rows)
        moved = (all_rows * (depth + columns) + weights * experts * depth * columns) * layer_pass.itemsize
        memory_s = moved / bytes_per_s if bytes_per_s else 0.0
        computed_rows = all_rows + lost_rows * weights * experts
        total += max(2 * computed_rows * depth * columns / rate, memory_s)
    return total * 1e9 * (2 if phase == BACKWARD else 1)


def cleared_ns(layer_pass: LayerPass, phase: int, bytes_per_s: float) -> float:
    """Ns in which rows are cleared by a mask: what the first GEMMs of a pass read, and what each GEMM writes.

    In the backward pass these are the gradients of the same rows, which are copied first; the copies of the
    forward pass take the place of the loop's own. Each element is read and written.
    """
    first = layer_pass.gemms[0]
    elements = sum(layer_pass.rows) * first.depth + sum(gemm.rows * gemm.columns for gemm in layer_pass.gemms)
    share = 1 / CLEAR_RATE + (1 / COPY_RATE if phase == BACKWARD else 0)
    return 2 * elements * layer_pass.itemsize * share / bytes_per_s * 1e9 if bytes_per_s else 0.0


def loops(trace: Trace, bytes_per_s: float) -> list[Loop]:
    """The loops over experts of one rank; `bytes_per_s` is its memory bandwidth, 0 if unknown."""
    layers, work, count = trace.once(regions), trace.work, trace.once(loop_iterations)
    inside = np.flatnonzero((layers.layer_pass >= 0) & np.isin(layers.stage, (EXPERTS, PERMUTATION)))
    inside = inside[count[layers.layer_pass[inside]] > 0]
    if not len(inside):
        return []
    launch_ns = lookup(trace.arrays.start, work.launch_call, work.start)
    inside = inside[np.argsort(launch_ns[inside], kind="stable")]
    loop, (layer_pass, phase) = codes(layers.layer_pass[inside], layers.phase[inside])
    passes = [layers.passes[number] for number in layer_pass.tolist()]
    reader = _LoopReader(trace, passes, count[layer_pass], bytes_per_s)
    read, read_loop = reader.repeated_reads(layer_pass * len(PHASES) + phase)
    found = reader.fates(inside, loop, read, read_loop)
    rows_of, reads_of = rows_by_code(found.loop * len(_Fate) + found.fate), rows_by_code(read_loop)
    result = []
    for number, one_pass in enumerate(passes):
        gemms, removed, kept = (rows_of.get(number * len(_Fate) + fate, _NONE) for fate in _Fate)
        result.append(
            Loop(
                layer_pass=one_pass,
                phase=int(phase[number]),
                gemms=found.row[gemms],
                removed=found.row[removed],
                kept=found.row[kept],
                kept_ns=found.kept_ns[kept],
                blocking_calls=reader.reads.event[read[reads_of.get(number, _NONE)]],
            )
        )
    return result


def _bytes_per_s(device: Device | None) -> float:
    return device.hbm_bytes_per_s if device else 0.0


class _Fate(IntEnum):
    """What becomes of the work of a loop where one iteration computes all experts."""

    GEMM = 0  # an expert GEMM that stays
    REMOVED = 1
    KEPT = 2  # other work that stays


class _LoopWork(Struct, frozen=True):
    """Work of loops whose fate is known."""

    row: Int
    loop: Int  # that it is in
    fate: Int
    kept_ns: Float  # its duration where it is kept, with the rows of all iterations


class _Repeated(NamedTuple):
    """Work of ops that every iteration repeats."""

    row: Int
    loop: Int  # that it is in
    group: Int  # of the ops of one name in one loop
    stays: Bool  # whether it is of the last calls of its group, as many as one iteration has


class _LoopReader:
    """Reads all loops of one rank.

    Args:
        trace: of the rank.
        passes: of the loops.
        count: iterations of each loop.
        bytes_per_s: memory bandwidth, 0 if unknown.
    """

    def __init__(self, trace: Trace, passes: Sequence[LayerPass], count: Int, bytes_per_s: float) -> None:
        self.work, self.name, self.dur = trace.work, trace.arrays.name, trace.work.dur
        self.passes, self.count, self.bytes_per_s = passes, count, bytes_per_s
        self.reads = trace.once(blocking)
        self.read_op = trace.once(enclosing_op)[self.reads.event]
        costing = trace.once(work_costs)
        read, written = costing.costs.read_bytes, costing.costs.write_bytes
        self.moved, self.written = (
            lookup(amounts, costing.item, -1) for amounts in (read + written, written)
        )
        gemms = [code for code, name in enumerate(self.work.categories) if name in _GEMMS]
        self.is_gemm = np.isin(self.work.category, gemms)
        # The outermost op around the op of each activity, -1 for none.
        around, parent = trace.once(enclosing_op), trace.arrays.parent
        self.outermost = self.work.op
        while ((outer := lookup(around, lookup(parent, self.outermost, -1), -1)) >= 0).any():
            self.outermost = np.where(outer >= 0, outer, self.outermost)

    def repeated_reads(self, cell: Int) -> tuple[Int, Int]:
        """Blocking calls that each iteration repeats, by the name of the op around, and the loop of each.

        `cell` is layer pass * len(PHASES) + phase of each loop, ascending.
        """
        read_cell = self.reads.layer_pass * len(PHASES) + self.reads.phase
        loop = np.minimum(np.searchsorted(cell, read_cell), len(cell) - 1)
        reads = np.flatnonzero((self.reads.layer_pass >= 0) & (cell[loop] == read_cell) & (self.read_op >= 0))
        loop = loop[reads]
        group, (of_loop, _) = codes(loop, self.name[self.read_op[reads]])
        is_repeated = np.bincount(group, minlength=len(of_loop)) >= LOOP_SHARE * self.count[of_loop]
        return reads[is_repeated[group]], loop[is_repeated[group]]

    def fates(self, rows: Int, loop: Int, read: Int, read_loop: Int) -> _LoopWork:
        """What becomes of the work of the loops.

        Args:
            rows: work among the experts in order of launch.
            loop: of each.
            read: blocking calls that iterations repeat.
            read_loop: of each.
        """
        on_weights = self._on_all_weights(rows, loop)
        row, of_loop, group, stays = self._repeated(rows[~on_weights], loop[~on_weights])
        groups = int(group.max(initial=-1)) + 1
        # Of what reads sizes nothing stays.
        ops = len(self.name) + 1
        read_ops = read_loop * ops + self.read_op[read]
        reads_sizes, has_gemm = (np.zeros(groups, dtype=bool) for _ in range(2))
        reads_sizes[group[isin(of_loop * ops + self.work.op[row], read_ops)]] = True
        has_gemm[group[self.is_gemm[row]]] = True
        fate = np.where(has_gemm[group], _Fate.GEMM, _Fate.KEPT)
        fate[~stays | reads_sizes[group]] = _Fate.REMOVED
        kept_ns = np.zeros(len(row))
        kept = np.flatnonzero(~(reads_sizes | has_gemm)[group])
        kept_ns[kept] = self._in_one_iteration(row[kept], of_loop[kept], group[kept], stays[kept])
        count = np.count_nonzero(on_weights)
        return _LoopWork(
            row=np.concatenate((rows[on_weights], row)),
            loop=np.concatenate((loop[on_weights], of_loop)),
            fate=np.concatenate((np.full(count, _Fate.REMOVED), fate)),
            kept_ns=np.concatenate((np.zeros(count), kept_ns)),
        )

    def _on_all_weights(self, rows: Int, loop: Int) -> Bool:
        """What writes as much as all experts' weights, and what has the same forward op.

        Work on rows may be as large, but not of one size in all iterations that is a multiple of a weight's.
        """
        group, (of_loop, size) = codes(loop, self.written[rows])
        count = self.count[of_loop]
        weights = [
            {gemm.depth * gemm.columns * one_pass.itemsize for gemm in one_pass.gemms}
            for one_pass in self.passes
        ]
        is_multiple = np.zeros(len(size), dtype=bool)
        for weight in set().union(*weights):
            has_weight = np.array([weight in of_pass for of_pass in weights], dtype=bool)[of_loop]
            is_multiple |= has_weight & (size % weight == 0) & (size >= count * weight)
        is_often = np.bincount(group, minlength=len(size)) >= LOOP_SHARE * count
        is_large = (is_multiple & is_often)[group] & ~self.is_gemm[rows]
        of_forward, (_, forward) = codes(loop, self.work.forward[rows])
        has_large = np.zeros(len(forward), dtype=bool)
        has_large[of_forward[is_large]] = True
        return is_large | (has_large & (forward >= 0))[of_forward]

    def _in_one_iteration(self, rows: Int, loop: Int, group: Int, stays: Bool) -> Float:
        """Durations of the work that stays if it does all the work, in proportion to its measured ones.

        Where experts have different rows, what is of one size for all of them does not follow the rows: each
        iteration repeats it, such as adding its part to the gradients of all tokens.
        """
        if not len(rows):
            return np.empty(0)
        # The kernels of one name in each group.
        name = self.work.name[rows]
        order = ordered(group, name)
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = (np.diff(group[order]) != 0) | (np.diff(name[order]) != 0)
        first = np.flatnonzero(begins)
        dur, moved = self.dur[rows[order]], self.moved[rows[order]]
        of_group, length = group[order[first]], np.diff(np.append(first, len(order)))
        staying = np.add.reduceat(stays[order].astype(np.int64), first)
        total_ns = np.add.reduceat(dur, first)
        mean_ns, mean_moved = total_ns / length, np.add.reduceat(moved, first) / length
        lowest, highest = np.minimum.reduceat(moved, first), np.maximum.reduceat(moved, first)
        # What a call takes however little it moves.
        fixed_ns = np.minimum.reduceat(dur, first).astype(float)
        per_byte = np.full(len(first), 1e9 / self.bytes_per_s if self.bytes_per_s else 0.0)
        for kernel in np.flatnonzero((lowest >= 0) & (lowest < highest)).tolist():
            calls = slice(first[kernel], first[kernel] + length[kernel])
            spread = moved[calls] - mean_moved[kernel]
            slope = float((spread * dur[calls]).sum() / (spread * spread).sum())
            per_byte[kernel] = max(per_byte[kernel], slope)
        by_bytes = np.minimum(np.maximum(mean_ns - per_byte * mean_moved, 0.0), fixed_ns)
        fixed_ns = np.where(lowest >= 0, by_bytes, fixed_ns)
        is_uneven = np.array([len(set(one_pass.rows)) > 1 for one_pass in self.passes], dtype=bool)
        of_one_size = is_uneven[loop[order[first]]] & (lowest > 0) & (lowest == highest)
        fixed_ns[of_one_size] = mean_ns[of_one_size]
        # Where none of its calls stays, it has its part of those that do.
        groups = int(group.max()) + 1
        share = np.minimum(np.bincount(group[stays], minlength=groups)[of_group], length)
        calls_left = np.where(staying > 0, staying, share / np.bincount(of_group)[of_group])
        in_one_ns, measured_ns = np.zeros(groups), np.zeros(groups)
        np.add.at(in_one_ns, of_group, total_ns - np.maximum(length - calls_left, 0) * fixed_ns)
        np.add.at(measured_ns, group[stays], self.dur[rows[stays]])
        kept_ns: Float = in_one_ns[group] * self.dur[rows] / np.maximum(measured_ns, 1)[group]
        return kept_ns

    def _repeated(self, rows: Int, loop: Int) -> _Repeated:
        """The work of each op that every iteration repeats."""
        parts, groups = [], 0
        for op in (self.work.op, self.outermost):
            of_op, of_forward = (lookup(self.name, ops[rows], -1) for ops in (op, self.work.forward))
            group, (of_loop, _, _) = codes(loop, of_op, of_forward)
            # A call is all that an op launched; of a group with work of no op, each activity.
            launched_by = self.work.op[rows]
            lacks_op = np.zeros(len(of_loop), dtype=bool)
            lacks_op[group[launched_by < 0]] = True
            call, (of_group, _) = codes(
                group, np.where(lacks_op[group], -1 - np.arange(len(rows)), launched_by)
            )
            calls = np.bincount(of_group, minlength=len(of_loop))
            # What the last calls launched stays, as many as one iteration has.
            last = np.empty(len(of_group), dtype=np.int64)
            last[call] = np.arange(len(rows))  # the last write stays
            order = ordered(of_group, -last)
            from_last = np.empty(len(of_group), dtype=np.int64)
            from_last[order] = np.arange(len(order)) - (np.cumsum(calls) - calls)[of_group[order]]
            of_iteration = np.maximum(np.rint(calls / self.count[of_loop]), 1)
            stays = (from_last < of_iteration[of_group])[call]
            is_repeated = (calls >= LOOP_SHARE * self.count[of_loop])[group]
            members = np.flatnonzero(is_repeated)
            members = members[ordered(group[members])]
            parts.append(_Repeated(rows[members], loop[members], groups + group[members], stays[members]))
            groups += len(of_loop)
            rows, loop = rows[~is_repeated], loop[~is_repeated]
            order = ordered(loop, rows)
            rows, loop = rows[order], loop[order]
        return _Repeated._make(np.concatenate(values) for values in zip(*parts, strict=True))


@detector(
    "token_imbalance",
    evidence="moe",
    scenario="balanced",
    title="Tokens are spread unevenly over ranks",
    fix="balancing the experts",
    needs=("collectives", "moe"),
    measures={
        "busiest rank / mean, worst layer": "rows for the busiest rank's experts / mean over ranks",
        "waiting for slower experts per step": "from the end of its own experts to that of the slowest",
    },
    threshold=f"{EVEN:.0%} of the mean on the busiest rank of a layer; where rows are not recorded, "
    f"{EVEN_TIME:.0%} of the experts' mean time",
    limits="Needs all ranks of the expert-parallel group.",
    remedy="Balance the routing: auxiliary loss or bias-corrected router, expert placement by load, replicas "
    "of busy experts, or a capacity limit.",
    remedies=(
        Remedy(
            "{megatron}: --moe-aux-loss-coeff, --moe-router-enable-expert-bias; "
            "--moe-router-force-load-balancing shows the possible gain.",
            framework=("megatron", "primus"),
            best=True,
        ),
        Remedy(
            "--enable-eplb places experts by load and replicates busy ones.", framework=("vllm", "sglang")
        ),
        Remedy("The bundled workload: --routing balanced shows the possible gain.", framework=("workload",)),
    ),
)
def token_imbalance(results: Mapping[str, Result]) -> Detections:
    """The experts of one rank take longer than those of the others in its expert-parallel group."""
    moe = results["moe"]
    balance = moe.data["balance"]
    if not len(balance):
        return "no expert-parallel ranks"
    ratio = balance.array("max_mean_ratio")
    worst = int(np.argmax(ratio))
    waits = moe.data["waits"]
    counted = in_steps(waits)
    if not counted.any() or 0 <= float(ratio.max()) < EVEN:
        return f"balanced: the busiest rank has {float(ratio.max()):.0%} of the mean"
    # Where rows are not recorded, by the time that the experts take.
    spent_ns, lost_ns = float(balance.array("experts_ns").sum()), float(balance.array("cost_ns").sum())
    slowest = 1 + lost_ns / max(spent_ns, 1)
    if ratio.max() < 0 and slowest < EVEN_TIME:
        return f"balanced: the slowest rank's experts take {slowest:.0%} of the mean"
    steps = step_count(results)
    rank, start, dur = (waits.array(name)[counted] for name in ("rank", "ts_ns", "dur_ns"))
    detections = {}
    for waiting_rank in unique(rank).tolist():
        of_rank = rank == waiting_rank
        where = union(start[of_rank], start[of_rank] + dur[of_rank])
        lost = float(dur[of_rank].sum()) / steps
        waiting = Quantity("waiting for slower experts per step", lost, "ns")
        finish = f"this rank's experts finish {milliseconds(lost)}/step before the slowest"
        if ratio[worst] < 0:
            evidence = f"{finish}, which takes {slowest:.0%} of the mean; row counts are not recorded"
            detections[waiting_rank] = Detection((waiting,), lost, where, evidence, "low")
            continue
        detections[waiting_rank] = Detection(
            (Quantity("busiest rank / mean, worst layer", float(ratio[worst]), "ratio"), waiting),
            lost,
            where,
            f"in MoE layer {balance.array('layer')[worst]} the busiest rank (mostly rank "
            f"{balance.array('worst_rank')[worst]}) computes {balance.array('tokens_max')[worst]:,.0f} rows "
            f"against a mean of {balance.array('tokens_mean')[worst]:,.0f} ({ratio[worst]:.0%}); {finish}",
            "medium",
            fact=f"in MoE layer {balance.array('layer')[worst]} the busiest rank computes {ratio[worst]:.1f} "
            "times the mean number of rows"
            if ratio[worst] >= UNEVEN
            else "",
        )
    return detections


class ExpertWork(Struct, frozen=True):
    """Activities of a rank in MoE layers, aligned with its trace's `work`."""

    layer_pass: Int  # number of the pass through a layer, -1 outside
    phase: Int  # code into PHASES, -1 outside
    stage: Int  # EXPERTS or PERMUTATION, in which work follows the tokens; -1 elsewhere


def expert_work(trace: Trace, device: Device | None) -> ExpertWork:
    """Which activities of a rank are in MoE layers."""
    layers = trace.once(regions)
    follows = np.isin(layers.stage, (EXPERTS, PERMUTATION))
    return ExpertWork(layers.layer_pass, layers.phase, np.where(follows, layers.stage, -1))


@scenario("balanced", reads=(expert_work,))
def balanced(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """All ranks get equally many tokens: routed experts and permutations take the mean over ranks.

    Assumes:
        All-to-alls take as long as their busiest rank's bytes do, by the rates measured on the device where
        it has some; those that do not record how many go where keep their time.
    """
    graph = context.graph
    if len(graph.ranks) < 2:
        raise NotApplicable("a single rank does not show the imbalance between ranks")
    layers, collectives = context.read(expert_work), context.recorded.collectives
    # The expert-parallel group of each rank: ranks that exchange tokens in their MoE layers.
    index_of = {rank.number: index for index, rank in enumerate(graph.ranks)}
    group = list(range(len(graph.ranks)))
    exchanges = np.ones(len(collectives.matched))  # of each collective, the share of its time that is left
    for number, collective in enumerate(collectives.matched):
        kernels = [(index_of[member.rank], member.record.kernel) for member in collective.participants]
        passes = [layers[rank].layer_pass[collectives.work[rank][kernel]] for rank, kernel in kernels]
        joined = {group[rank] for rank, _ in kernels}
        if min(passes) >= 0:
            device = graph.ranks[kernels[0][0]].device
            exchanges[number] = _even_share(collective, device.measured if device else Measured())
            if len(joined) > 1:
                group = [min(joined) if rank in joined else rank for rank in group]
    # Of each rank, (its group, pass through an MoE layer, phase, stage) to the nodes of work on its tokens.
    work_of_rank: list[dict[tuple[int, int, int, int], Int]] = []
    for rank, own in enumerate(layers):
        nodes = graph.nodes(rank, Node.WORK)
        row = graph.work[nodes]
        inside = (own.layer_pass[row] >= 0) & (own.stage[row] >= 0)
        nodes, row = nodes[inside], row[inside]
        cell, columns = codes(own.layer_pass[row], own.phase[row], own.stage[row])
        keys = [(group[rank], *key) for key in zip(*(values.tolist() for values in columns), strict=True)]
        rows = rows_by_code(cell)
        work_of_rank.append({key: nodes[rows[number]] for number, key in enumerate(keys)})
    column = {
        key: number for number, key in enumerate(dict.fromkeys(key for work in work_of_rank for key in work))
    }
    total = np.zeros((len(work_of_rank), len(column)))
    for rank, work in enumerate(work_of_rank):
        for key, nodes in work.items():
            total[rank, column[key]] = edit.dur[nodes].sum()
    ranks = Counter(group)
    size = np.array([ranks[key[0]] for key in column], dtype=np.int64)
    common = ((total > 0).sum(axis=0) == size) & (size > 1)
    if not common.any():
        raise NotApplicable("no MoE layer whose routed experts ran on several recorded ranks")
    mean = total.sum(axis=0) / np.maximum(size, 1)
    for rank, work in enumerate(work_of_rank):
        for key, nodes in work.items():
            if common[column[key]]:
                edit.set_dur(nodes, edit.dur[nodes] * (mean[column[key]] / total[rank, column[key]]))
    meetings, _ = context.meetings()
    share = exchanges[graph.collective[meetings]]
    before_ns = float(edit.dur[meetings][share < 1].sum())
    edit.set_dur(meetings[share < 1], edit.dur[meetings][share < 1] * share[share < 1])
    after_ns = float(edit.dur[meetings][share < 1].sum())
    experts = common & (np.array([key[-1] for key in column]) == EXPERTS)
    imbalance = total.max(axis=0)[experts].sum() / max(mean[experts].sum(), 1)
    among = next((rank.device.measured.message_ranks for rank in graph.ranks if rank.device), "")
    by_curves = f" at the rates measured among {among}" if among else ""
    messages = (
        f"transfers of {int((share < 1).sum()):,} all-to-alls shrink from {duration(before_ns)} to "
        f"{duration(after_ns)}, as their busiest rank's bytes do{by_curves}"
        if (share < 1).any()
        else "messages keep their sizes"
    )
    return f"the busiest rank's routed experts take {imbalance:.2f}x the mean; {messages}"


def _even_share(collective: MatchedCollective, measured: Measured) -> float:
    """Time of an all-to-all of equal ranks / as recorded, by the busiest rank's bytes to or from others."""
    records = [member.record for member in collective.participants]
    if not collective.collective.startswith(ALL_TO_ALLS) or len(records) < max(records[0].size, 2):
        return 1.0
    count, busiest, total = len(records), 0, 0
    for place, record in enumerate(records):
        sides = record.sent_to, record.received_from
        if any(len(side) != count for side in sides):
            return 1.0
        busiest = max(busiest, *(sum(side) - side[place] for side in sides))
        total += sum(record.sent_to)
    # Buffers hold what stays on the rank, too: in equal ones, as much as goes to each other rank.
    even = total / count
    buffer = busiest * count / (count - 1)
    if even >= buffer:
        return 1.0
    before = message_seconds(measured, "all_to_all", buffer, count, buffer / even)
    after = message_seconds(measured, "all_to_all", even, count)
    if before is None or after is None or count > GPUS_PER_NODE:
        return even / buffer
    return after.seconds / before.seconds
