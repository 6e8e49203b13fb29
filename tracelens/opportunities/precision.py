"""Element types: GEMMs in 32 bits where the device is faster in 16, and tokens sent wider than GEMMs read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import Struct

from tracelens.analysis.common import NO_LAUNCH
from tracelens.analysis.roofline import OpCalls, costing, on_matrix_units, reachable_time
from tracelens.arrays import Bool, Float, Int, lookup, unique
from tracelens.costs import OpCost
from tracelens.devices import Device, memory_rate
from tracelens.dtypes import BITS, short_dtype
from tracelens.errors import TracelensError
from tracelens.findings import Detection, Outcome, Quantity, RankContext, Remedy, detector
from tracelens.opportunities.scaling import costs, time_ratio
from tracelens.table import Coded, codes, nearest
from tracelens.trace import Trace, matching, rows_by_code
from tracelens.units import duration, plural, size_text
from tracelens.what_if import NotApplicable, ScenarioContext, scenario, work_costs
from tracelens.what_if.graph import ALL_TO_ALLS, Edit, Node, drop_work, marked_calls, unblock

MOST = 0.5
"""Of the time of GEMMs and attention, from which a type is that of the program. In our recordings of programs
in 16 bits, routers and losses in FP32 take about 3% of it at most; those in FP32 have all of it there."""

WIDE = ("fp32", "tf32")
NARROW = ("bf16", "fp16")
"""Types of 16 bits to compute in instead, the better one first: it has the range of FP32."""

TOKENS_SHARE = 0.1
"""Of the bytes that all-to-alls send, above which those of 32 bits are tokens: routing weights, which are in
FP32 for a reason, are under 1%; outputs of experts alone, in FP32 beside tokens in BF16, are two thirds."""

_NAMES = {
    "tf32": re.compile(r"tf32|xf32|(?<!16_)s1688gemm(?!_b?f16|_fp16)|^Cijk_\w+?_S_MX_", re.IGNORECASE),
    "fp32": re.compile(r"sgemm|ffma|^Cijk_\w+?_S_?B_", re.IGNORECASE),
}
"""GEMM kernels of cuBLAS, CUTLASS and Tensile whose names tell the type where no arguments do."""

KNOWN_SHARE = 0.5
"""Of the time of GEMMs in 32 bits: where less is of GEMMs with shapes, which the scenario needs, the saving
is an estimate. A trade-off: most of them decide."""

# Causes, by which remedies are chosen: the type that the GEMMs are in, and those that the device has.
_BESIDE_TF32, _FP32, _TF32, _TO_FP16 = "FP32 beside TF32", "FP32", "TF32", "FP16 only"
_TO_BF16 = (_BESIDE_TF32, _FP32, _TF32)

UNKNOWN = "unknown"
"""In place of the type of a GEMM without recorded arguments whose kernel's name does not tell."""

_ROOT, _SQUARE = re.compile("aten::rsqrt"), re.compile("aten::(?:pow|square)")
_NORM_OPS = 4
"""Ops from the square to the root: square, mean, sum with epsilon, and perhaps a cast."""
_LOGITS = re.compile(r"aten::_log_softmax(?:_backward_data)?")
_LOSS = re.compile(_LOGITS.pattern + r"|aten::(?:log_softmax|nll_loss\w*|cross_entropy_loss)")
_EMBEDDING = re.compile("aten::embedding_dense_backward")

_GROUPED = "aten::_grouped_mm"
_GROUPED_KERNELS = 3
"""That torch launches at most for a grouped GEMM: it, and what prepares its arguments."""

_FUSED_OPTIMIZER = re.compile("aten::_fused_")
OPTIMIZER_SHARE = 0.64
"""Time of a fused optimizer in 16 bits / in 32, whose bytes halve: 0.58 to 0.66 in eight pairs of traces."""

_SUM_BITS = 16
"""Results and sums of narrower GEMMs are written in 16 bits."""


@detector(
    "wide_gemms",
    evidence="roofline",
    scenario="dtype=bf16",
    title="GEMMs in FP32",
    fix="computing in 16 bits",
    measures={
        "share of the GPU time": "GEMMs and attention in FP32 or TF32",
        "rate": "FLOP/s of these, where their shapes are known",
        "rate in 16 bits": "FLOP/s that the device reaches for the same work in BF16, else FP16",
    },
    threshold=f"{MOST:.0%} of the time of GEMMs and attention, on a device that is faster in 16 bits",
    limits="Types are those of recorded arguments (record_shapes=True), else of kernels by their names. "
    "Whether a model keeps its quality in 16 bits is not known.",
    remedies=(
        Remedy(
            'First torch.set_float32_matmul_precision("high"): GEMMs of float32 tensors run in TF32 on the '
            "tensor cores, which reads 10 of the 23 bits of their mantissas.",
            vendor=("nvidia",),
            cause=(_BESIDE_TF32,),
        ),
        Remedy(
            'First torch.set_float32_matmul_precision("high"): GEMMs of float32 tensors run in TF32 (earlier '
            "releases of torch: with HIPBLASLT_ALLOW_TF32=1 only), which reads 10 of the 23 bits of their "
            "mantissas.",
            vendor=("amd",),
            cause=(_BESIDE_TF32,),
        ),
        Remedy(
            "Compute in bfloat16, which has 7 bits and halves what other kernels and messages move, too; "
            "master weights, norms, router and loss stay in float32. Compare the loss with that in float32.",
            trains=True,
            cause=_TO_BF16,
        ),
        Remedy(
            "Compute in bfloat16, which has 7 bits and halves what other kernels move, too. Compare the "
            "results with those in float32.",
            trains=False,
            cause=_TO_BF16,
        ),
        Remedy(
            "The device has no bfloat16: compute in float16, whose range ends at 65,504, with "
            "torch.autocast and in training torch.amp.GradScaler.",
            cause=(_TO_FP16,),
        ),
        Remedy("{megatron}: --bf16.", framework=("megatron", "primus"), cause=_TO_BF16),
        Remedy(
            "transformers: TrainingArguments(bf16=True).",
            framework=("huggingface",),
            trains=True,
            cause=_TO_BF16,
        ),
        Remedy(
            "transformers: from_pretrained with dtype=torch.bfloat16.",
            framework=("huggingface",),
            trains=False,
            cause=_TO_BF16,
        ),
        Remedy("The bundled workload: --set dtype=bfloat16.", framework=("workload", "workload_serve")),
        Remedy(
            "With torch alone: torch.autocast with dtype=torch.bfloat16, or model.bfloat16().",
            plain=True,
            cause=_TO_BF16,
        ),
    ),
)
def wide_gemms(context: RankContext) -> Outcome:
    """GEMMs and attention run in FP32 or TF32 on a device that multiplies faster in 16 bits."""
    work, device = context.work, context.device
    if not len(work.event):
        return "no GPU work"
    if work.cpu_only:
        return NO_LAUNCH
    if device is None:
        return "the device is unknown, and so are its rates: give --device"
    known = costing(context.trace, context.trace.work)
    item = known.item[context.rows]
    types = _types(context)
    wide = types.mask(lambda name: name in WIDE)
    spent_ns = {name: int(work.dur[types.equals(name)].sum()) for name in WIDE}
    wide_ns, all_ns = sum(spent_ns.values()), int(work.dur[~types.equals("")].sum())
    if not all_ns:
        return "no GEMM or attention"
    if wide_ns < MOST * all_ns:
        return f"{wide_ns / all_ns:.0%} of the time of GEMMs and attention is in 32 bits"
    own = max(WIDE, key=lambda name: spent_ns[name])
    own_peak = device.peak("matrix", own) or 0.0
    narrow = next((name for name in NARROW if device.matrix.get(name, 0.0) > own_peak), "")
    if not narrow:
        return f"{device.title} has no faster matrix units for 16 bits"
    # By kind of call; the last element is for kernels that only their names tell.
    kinds = unique(item[wide & (item >= 0)])
    factor = np.full(len(known.items) + 1, own_peak / device.matrix[narrow])
    for kind in kinds.tolist():
        cost = known.items[kind].cost
        factor[kind] = min(time_ratio(cost, in_type(cost, narrow), device), 1.0)
    saved_ns = float((work.dur * (1 - factor[item]))[wide].sum())
    rates = _rates(context, kinds, narrow)
    off = "" if own in device.matrix else ", which this device computes off its matrix units"
    known_ns = int(work.dur[wide & (item >= 0)].sum())
    is_known = known_ns >= KNOWN_SHARE * wide_ns
    cause = _BESIDE_TF32 if own == "fp32" and "tf32" in device.matrix else own.upper()
    share = wide_ns / max(int(work.dur.sum()), 1)
    names = np.bincount(work.name[wide], work.dur[wide])
    reached = (
        f"; they reach {rates[0] / 1e12:,.3g} TFLOP/s, in {narrow.upper()} the device reaches "
        f"{rates[1] / 1e12:,.3g} TFLOP/s for their sizes"
        if is_known and all(rates)
        else "; the shapes of most are not recorded"
    )
    return Detection(
        (
            Quantity("share of the GPU time", share, "fraction"),
            *(
                (Quantity("rate", rates[0], "flops/s"), Quantity("rate in 16 bits", rates[1], "flops/s"))
                if is_known and all(rates)
                else ()
            ),
        ),
        context.per_step(saved_ns),
        context.during(wide),
        f"{share:.0%} of the GPU time goes to GEMMs and attention in {own.upper()}{off} (most in "
        f"{work.names[int(names.argmax())][:60]}){reached}",
        "medium",
        f"dtype={narrow}" if is_known else "",
        title=f"GEMMs in {own.upper()}",
        cause=cause if narrow == "bf16" else _TO_FP16,
    )


def _types(context: RankContext) -> Coded:
    """The type in which each piece of work in the steps multiplies; "" for work that does not."""
    work, known = context.work, costing(context.trace, context.trace.work)
    item = known.item[context.rows]
    costs, multiplies = known.costs, known.costs.on_matrix_units & (known.costs.flops > 0)
    of_kind = [dtype if here else "" for dtype, here in zip(costs.dtype, multiplies.tolist(), strict=True)]
    without_cost = set(work.name[item < 0].tolist())  # of which only the name tells
    of_name = [
        next((dtype for dtype, pattern in _NAMES.items() if pattern.search(name)), UNKNOWN)
        if code in without_cost
        else UNKNOWN
        for code, name in enumerate(work.names)
    ]
    by_name = np.where(on_matrix_units(work), work.name, len(of_name))
    return Coded.used(np.where(item >= 0, item, len(of_kind) + by_name), [*of_kind, *of_name, ""])


def _rates(context: RankContext, kinds: Int, dtype: str) -> tuple[float, float]:
    """FLOP/s of kinds of calls, as recorded and as the device reaches in another type; 0 where not known."""
    known, device = costing(context.trace, context.trace.work), context.device
    calls, dur_ns = known.by_kind
    flops, needed_ns = 0.0, 0.0
    for kind in kinds.tolist():
        item = known.items[kind]
        flops += item.cost.flops * float(calls[kind])
        if device is not None:
            needed = reachable_time(item.name, in_type(item.cost, dtype), device)
            needed_ns += needed.ns * float(calls[kind])
    rates = [flops / ns * 1e9 if ns else 0.0 for ns in (float(dur_ns[kinds].sum()), needed_ns)]
    return rates[0], rates[1]


def in_type(cost: OpCost, dtype: str) -> OpCost:
    """The same GEMM or attention with operands of another type."""
    new, old = BITS[dtype], BITS[cost.dtype]
    return cost._replace(
        dtype=dtype,
        read_bytes=round(cost.read_bytes * new / old),
        write_bytes=round(cost.write_bytes * (max(new, _SUM_BITS) / max(old, _SUM_BITS))),
    )


@detector(
    "wide_messages",
    evidence="collectives",
    scenario="narrow_messages",
    title="Tokens are sent in 32 bits",
    fix="sending tokens in 16 bits",
    measures={
        "all-to-alls per step": "those that send numbers of 32 bits and more",
        "bytes per step": "that they send",
        "time per step": "of them, waiting included",
    },
    threshold=f"{TOKENS_SHARE:.0%} of the bytes of all-to-alls, where {MOST:.0%} of the time of GEMMs and "
    "attention is in 16 bits or fewer",
    limits="Only all-to-alls: gradients are added up in 32 bits for a reason. Permutations of wide rows and "
    "casts, which would take less time or go, stay as they are.",
    remedy="Cast tokens to the type of the GEMMs before they are sent, and let no op between the cast and "
    "the all-to-all return float32, such as a product with float32 routing weights: autocast does not cast "
    "for collectives. What is summed over experts can still be summed in float32.",
)
def wide_messages(context: RankContext) -> Outcome:
    """All-to-alls send numbers of 32 bits to and from GEMMs that compute in 16 bits or fewer."""
    sent = _all_to_alls(context)
    if not sent.is_wide.any():
        return "no all-to-all sends numbers of 32 bits"
    wide_bytes, all_bytes = int(sent.size[sent.is_wide].sum()), int(sent.size.sum())
    if not all_bytes:
        return "how much all-to-alls send is not recorded"
    if wide_bytes <= TOKENS_SHARE * all_bytes:
        return f"{wide_bytes / all_bytes:.1%} of what all-to-alls send is in 32 bits: no tokens"
    rows = np.flatnonzero(np.isin(context.work.event, sent.kernel[sent.is_wide]))
    types, dur = _types(context), context.work.dur
    spent_ns = {name: int(dur[types.equals(name)].sum()) for name in sorted(filter(None, types.values))}
    narrow_ns = {name: ns for name, ns in spent_ns.items() if 0 < BITS.get(name, 0) <= _SUM_BITS}
    if not spent_ns or sum(narrow_ns.values()) < MOST * sum(spent_ns.values()):
        return "GEMMs and attention are not known to be in 16 bits or fewer"
    own = max(narrow_ns, key=lambda name: narrow_ns[name])
    spent = context.during(rows)
    saved_ns = float((dur[rows] * (1 - _SUM_BITS / 32)).sum())
    count, size = context.per_step(len(rows)), context.per_step(wide_bytes)
    return Detection(
        (
            Quantity("all-to-alls per step", count, "count"),
            Quantity("bytes per step", size, "bytes"),
            Quantity("time per step", context.per_step(spent.total), "ns"),
        ),
        context.per_step(saved_ns),
        spent,
        f"{size_text(size)} per step are sent in 32 bits, by {plural(count, 'all-to-all')} that last "
        f"{duration(context.per_step(spent.total))} together, waiting included; "
        f"{narrow_ns[own] / sum(spent_ns.values()):.0%} of the time of GEMMs and attention is in "
        f"{own.upper()}",
        "medium",
    )


class _Sent(Struct, frozen=True):
    """All-to-alls of a rank."""

    kernel: Int  # event row of each
    size: Int  # bytes that it sends, 0 where not recorded
    is_wide: Bool  # whether these are numbers of 32 bits and more


def _all_to_alls(context: RankContext) -> _Sent:
    """Those that run in the steps."""
    table = context.trace.tables["collectives"]
    kernel = table.array("kernel_id")
    mine = table.coded("collective").mask(lambda name: name.startswith(ALL_TO_ALLS))
    mine &= np.isin(kernel, context.work.event)
    is_wide = table.coded("dtype").mask(_is_wide)
    return _Sent(kernel[mine], np.maximum(table.array("in_bytes")[mine], 0), is_wide[mine])


def _is_wide(dtype: str) -> bool:
    """Whether an element type is of floating-point numbers with more than 16 bits."""
    return short_dtype(dtype) in ("fp32", "fp64")


@scenario("narrow_messages")
def narrow_messages(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """All-to-alls send numbers of 32 bits and more in 16 bits.

    Assumes:
        Transfers take as much time as they move bytes, latency included. Casts and all else stay the same.
    """
    meetings, collectives = context.meetings()
    factor = np.array(
        [
            _SUM_BITS / BITS[short_dtype(record.dtype)]
            if collective.collective.startswith(ALL_TO_ALLS) and _is_wide(record.dtype)
            else 1.0
            for collective in collectives
            for record in [collective.participants[0].record]
        ],
        dtype=float,
    )
    if not (factor != 1).any():
        raise NotApplicable("no all-to-all recorded on several ranks sends numbers of 32 bits")
    before_ns = float(edit.dur[meetings][factor != 1].sum())
    edit.set_dur(meetings, edit.dur[meetings] * factor)
    after_ns = float(edit.dur[meetings][factor != 1].sum())
    return (
        f"transfers of {int((factor != 1).sum()):,} all-to-alls take {duration(after_ns)} instead of "
        f"{duration(before_ns)}, as much as they move fewer bytes, latency included; casts and all else stay "
        "the same"
    )


class OpByOp(Struct, frozen=True):
    """A call that torch writes op by op in 32 bits, and has one kernel for in 16: forward or backward."""

    rows: Int  # of the trace's `work`
    cost: OpCost  # of one kernel
    name: str  # of the op that runs it
    calls: Int  # event rows of what the host does in it, if it waits for the GPU there


class KeptWide(Struct, frozen=True):
    """Work of a rank that libraries leave in 32 bits in programs of 16, aligned with its trace's `work`."""

    stays: Bool
    casts: Int  # of what it reads and writes, that come with it
    cast_bytes: Int  # that these read and write
    call_ns: Float  # mean time of a call, by kind in the trace's `work_costs`
    optimizer: Bool  # which is that of a fused optimizer
    op_by_op: list[OpByOp]


def kept_wide(trace: Trace, device: Device | None) -> KeptWide:
    """Losses, gradients of embeddings, and normalizations that are written op by op.

    Such a normalization squares, averages, and multiplies by the root: between the two casts of its input and
    its output. A loss casts logits, and the backward pass their gradients.
    """
    work, name, names = trace.work, trace.arrays.name, trace.arrays.names
    counted = trace.once(work_costs)
    written = lookup(counted.costs.write_bytes, counted.item, 0)
    caused = np.where(work.forward >= 0, work.forward, work.op)  # the forward op of each piece
    names_of = [lookup(name, row, -1) for row in (work.op, caused)]

    def named(pattern: re.Pattern[str]) -> Bool:
        fits = matching(names, pattern)
        of_op, of_forward = (lookup(fits, code, False) for code in names_of)
        return of_op | of_forward

    of_loss = named(_LOSS)
    # In order of launch, the ops around each root of a mean of squares.
    forward = np.flatnonzero((work.op >= 0) & (work.forward < 0))
    ops = work.op[forward][np.argsort(trace.arrays.start[work.op[forward]], kind="stable")]
    op_name = name[ops]
    scaled, inside = [], []
    for at in np.flatnonzero(matching(names, _ROOT)[op_name]).tolist():
        before, behind = range(max(at - _NORM_OPS, 0), at), range(at + 1, min(at + 3, len(ops)))
        squares = [place for place in before if _SQUARE.fullmatch(names[op_name[place]])]
        products = [place for place in behind if names[op_name[place]] == "aten::mul"]
        if squares and products:
            inside += ops[squares[0] : products[0] + 1].tolist()
            scaled.append(int(ops[products[0]]))
    of_norm = np.isin(caused, inside)
    # The casts go with the first piece of each, forward and backward.
    casts, cast_bytes = (np.zeros(len(work.op), dtype=np.int64) for _ in range(2))
    _, first = np.unique(codes(caused, work.op)[0], return_index=True)
    is_first = np.zeros(len(work.op), dtype=bool)
    is_first[first] = True
    for mask, count in ((is_first & np.isin(caused, scaled), 2), (named(_LOGITS), 1)):
        casts[mask] = count
        cast_bytes[mask] = count * written[mask] * 3 // 2  # 32 bits on one side, 16 on the other
    calls, dur_ns = counted.by_kind
    return KeptWide(
        of_loss | of_norm | named(_EMBEDDING),
        casts,
        cast_bytes,
        dur_ns / np.maximum(calls, 1),
        named(_FUSED_OPTIMIZER),
        [*_unfused_attention(trace), *_looped_gemms(trace)],
    )


def _unfused_attention(trace: Trace) -> Iterator[OpByOp]:
    """Calls of attention that torch writes op by op: with grouped queries it has no kernel for 32 bits."""
    events, work = trace.arrays, trace.work
    is_call = events.named(lambda name: name == "aten::_scaled_dot_product_attention_math")
    around = nearest(events.parent, events.depth, is_call)
    caused = np.where(work.forward >= 0, work.forward, work.op)
    within, (call, backward) = codes(lookup(around, caused, -1), (work.forward >= 0).astype(np.int64))
    ops = trace.once(OpCalls)
    for part, rows in rows_by_code(within).items():
        cost = ops.cost(int(call[part]), "", -1, -1) if call[part] >= 0 else None
        if cost is None:
            continue
        name = "aten::_scaled_dot_product_flash_attention"
        if backward[part]:
            # Of five GEMMs instead of two, which read and write as much again.
            cost = cost._replace(
                flops=cost.flops * 5 // 2, read_bytes=2 * cost.read_bytes, write_bytes=2 * cost.write_bytes
            )
            name += "_backward"
        yield OpByOp(rows, cost, name, np.empty(0, dtype=np.int64))


def _looped_gemms(trace: Trace) -> Iterator[OpByOp]:
    """Grouped GEMMs that torch runs as a GEMM a group, whose sizes the host reads first."""
    events, work = trace.arrays, trace.work
    if _GROUPED not in events.names:
        return
    around = nearest(events.parent, events.depth, events.named(_GROUPED.__eq__))
    inside = np.flatnonzero(around >= 0)
    calls = rows_by_code(around[inside])
    ops = trace.once(OpCalls)
    for call, rows in rows_by_code(lookup(around, work.op, -1)).items():
        if call < 0 or len(rows) <= _GROUPED_KERNELS:
            continue
        if cost := ops.cost(call, "", -1, -1):
            yield OpByOp(rows, cost, _GROUPED, inside[calls[call]])


def _one_kernel_each(
    calls: Iterable[OpByOp], dtype: str, device: Device, place: Int, dur_ns: Float
) -> Iterator[tuple[OpByOp, Int, int, float]]:
    """Calls that take longer than one kernel: places of their work, the one that stays, its time / as it was.

    Args:
        calls: that run op by op.
        dtype: what it is computed in.
        device: that computes it.
        place: of each piece of work, -1 for none.
        dur_ns: time of the work at each place.
    """
    for call in calls:
        own = place[call.rows]
        own = own[own >= 0]
        needed = reachable_time(call.name, in_type(call.cost, dtype), device)
        if 0 < needed.ns < dur_ns[own].sum():
            longest = int(own[np.argmax(dur_ns[own])])
            yield call, own, longest, needed.ns / float(dur_ns[longest])


@scenario("dtype", argument="=TYPE", usual=(), reads=(costs, kept_wide))
def dtype(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """GEMMs multiply in TYPE (fp8, bf16, fp32, ...); from 16 bits, the model and its messages are in it.

    Assumes:
        Each GEMM keeps its share of the roofline. Results stay at least 16 bits wide: of narrower types,
        casts, scales, other kernels and messages stay the same. Else other kernels of floating-point
        numbers, the optimizer and messages take as much time as they move bytes, and attention at least what
        the device reaches. From 32 to 16 bits, losses and normalizations that are written op by op stay as
        they are, with casts around them; attention and grouped GEMMs that ran op by op are one kernel each.
        Other host time stays the same.
    """
    if argument not in BITS:
        raise TracelensError(f"scenario dtype={argument}: unknown type (known: {', '.join(BITS)})")
    graph, changed, before_ns, after_ns = context.gpu_graph(), 0, 0.0, 0.0
    new, replaced, other_ns = BITS[argument], set[str](), [0.0, 0.0]
    casts, fused, gone = 0, Counter[str](), np.zeros(len(graph), dtype=bool)
    freed: list[Int] = []
    for rank, (part, wide) in enumerate(zip(context.read(costs), context.read(kept_wide), strict=True)):
        ratio = np.ones(len(part.costs) + 1)
        multiplied = np.zeros(len(part.costs) + 1, dtype=bool)
        for row, cost in enumerate(part.costs):
            multiplied[row] = cost.engine == "matrix" and cost.flops > 0
            if multiplied[row] and cost.dtype != argument and cost.dtype in BITS:
                replaced.add(cost.dtype)
                if part.device is None:
                    raise NotApplicable(f"trace {rank}: unknown device; give --device")
                if not part.device.peak("matrix", argument):
                    raise NotApplicable(
                        f"{part.device.title} has no matrix units for {argument}, by its device file"
                    )
                ratio[row] = time_ratio(cost, in_type(cost, argument), part.device)
                if "Nq" in dict(cost.dims) and wide.call_ns[row]:  # attention, by another kernel
                    needed = reachable_time(part.names[row], in_type(cost, argument), part.device)
                    ratio[row] = max(ratio[row], min(needed.ns / wide.call_ns[row], 1.0))
        nodes = graph.nodes(rank, Node.WORK)
        work = graph.work[nodes]
        gemms = multiplied[part.cost[work]]
        dur_ns = edit.dur[nodes].astype(float)
        factor, cast_ns = ratio[part.cost[work]], np.zeros(len(nodes))
        # Those of the model: a type of which no GEMM is was not meant, such as that of a loss.
        if new >= _SUM_BITS and replaced:
            moved = np.ones(len(part.costs) + 1)
            for row, cost in enumerate(part.costs):
                if not multiplied[row] and not cost.link and cost.dtype in replaced:
                    moved[row] = new / BITS[cost.dtype]
            factor = np.where(gemms, factor, moved[part.cost[work]])
            of_optimizer = part.parameters[work] & (part.cost[work] < 0)
            old = max(BITS[name] for name in replaced)
            factor[of_optimizer] = new / old
            if new < old and part.device:
                factor[wide.stays[work]] = 1.0
                factor[wide.optimizer[work]] = OPTIMIZER_SHARE
                casts += int(wide.casts[work].sum())
                sizes, of_size = np.unique(wide.cast_bytes[work], return_inverse=True)
                cast_ns = np.array(
                    [size / memory_rate(part.device, max(size, 1)).per_s * 1e9 for size in sizes.tolist()]
                )[of_size]
                place = np.full(len(part.cost), -1, dtype=np.int64)
                place[work] = np.arange(len(work))
                of_type = [each for each in wide.op_by_op if each.cost.dtype in replaced]
                calls = [np.empty(0, dtype=np.int64)]
                for call, own, kept, share in _one_kernel_each(of_type, argument, part.device, place, dur_ns):
                    factor[own], cast_ns[own] = 0.0, 0.0
                    factor[kept] = share
                    gone[nodes[own[own != kept]]] = True
                    fused["grouped GEMMs" if call.name == _GROUPED else "attention"] += 1
                    calls.append(call.calls)
                freed.append(np.concatenate(calls))
        edit.set_dur(nodes, dur_ns * factor + np.where(dur_ns > 0, cast_ns, 0))
        after = edit.dur[nodes].astype(float)
        before_ns, after_ns = before_ns + float(dur_ns[gemms].sum()), after_ns + float(after[gemms].sum())
        other_ns[0] += float(dur_ns[~gemms].sum())
        other_ns[1] += float(after[~gemms].sum())
        changed += int((gemms & (factor != 1)).sum())
    if not changed:
        raise NotApplicable(f"no GEMM of another type than {argument} with recorded shapes")
    drop_work(graph, edit, gone)
    if freed:
        unblock(graph, edit, marked_calls(graph, freed, Node.WAITED))
    rest = "casts, scales, other kernels and messages stay the same"
    if new >= _SUM_BITS:
        meetings, collectives = context.meetings()
        types = [short_dtype(each.participants[0].record.dtype) for each in collectives]
        factor = np.array([new / BITS[name] if name in replaced else 1.0 for name in types], dtype=float)
        edit.set_dur(meetings, edit.dur[meetings] * factor)
        rest = (
            f"other kernels take {duration(other_ns[1])} instead of {duration(other_ns[0])}, as much as "
            f"they move fewer or more bytes, transfers of {int((factor != 1).sum()):,} messages likewise"
        )
        for name, count in fused.items():
            rest += f"; {plural(count, 'call')} of {name}, op by op before, as one kernel each"
        if casts:
            rest += f"; losses and normalizations stay in 32 bits between {casts:,} more casts"
    return (
        f"{changed:,} GEMMs and attentions read operands in {argument}: {duration(after_ns)} instead of "
        f"{duration(before_ns)} over all ranks; each keeps its share of the roofline; results stay at least "
        f"16 bits wide; {rest}"
    )
