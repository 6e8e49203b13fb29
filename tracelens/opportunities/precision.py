"""Element types: programs that multiply in 32 bits although the device is faster in 16."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tracelens.analysis.common import NO_LAUNCH
from tracelens.analysis.roofline import Counted, costing, on_matrix_units, reachable_time
from tracelens.arrays import Int, unique
from tracelens.costs import OpCost
from tracelens.dtypes import BITS, short_dtype
from tracelens.errors import TracelensError
from tracelens.findings import Detection, Outcome, Quantity, RankContext, Remedy, detector
from tracelens.opportunities.scaling import costs, time_ratio
from tracelens.table import sums
from tracelens.trace import Work
from tracelens.units import duration
from tracelens.what_if import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.graph import Edit, Node

WIDE_SHARE = 0.5
"""Of the time of GEMMs and attention, from which 32 bits are the type of the program. Routers and losses of
programs in 16 bits take up to 5% of it in our recordings, GEMMs of programs in FP32 all of it."""

WIDE = ("fp32", "tf32")
NARROW = ("bf16", "fp16")
"""Types of 16 bits to compute in instead, the better one first: it has the range of FP32."""

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

_OTHER, _NONE = -1, -2
"""Codes of work that multiplies in another type than WIDE has, and of work that does not multiply."""

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
    threshold=f"{WIDE_SHARE:.0%} of the time of GEMMs and attention, on a device that is faster in 16 bits",
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
    dtype = _types(work, item, known.items)
    wide = dtype >= 0
    spent_ns = sums(dtype[wide], work.dur[wide], len(WIDE))
    wide_ns, all_ns = int(spent_ns.sum()), int(work.dur[dtype > _NONE].sum())
    if not all_ns:
        return "no GEMM or attention"
    if wide_ns < WIDE_SHARE * all_ns:
        return f"{wide_ns / all_ns:.0%} of the time of GEMMs and attention is in 32 bits"
    own = WIDE[int(spent_ns.argmax())]
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


def _types(work: Work, item: Int, items: Sequence[Counted]) -> Int:
    """The type in which each piece of work multiplies: its index in WIDE, _OTHER or _NONE.

    Args:
        work: of the steps.
        item: of each piece, its kind of call; -1 where that has no cost.
        items: the kinds of calls.
    """
    codes = {name: code for code, name in enumerate(WIDE)}
    of_kind = [
        codes.get(kind.cost.dtype, _OTHER) if kind.cost.engine == "matrix" and kind.cost.flops else _NONE
        for kind in items
    ]
    of_name = [
        next((codes[dtype] for dtype, pattern in _NAMES.items() if pattern.search(name)), _OTHER)
        for name in work.names
    ]
    by_name = np.where(on_matrix_units(work), np.array(of_name, dtype=np.int64)[work.name], _NONE)
    return np.where(item >= 0, np.array([*of_kind, _NONE], dtype=np.int64)[item], by_name)


def _rates(context: RankContext, kinds: Int, dtype: str) -> tuple[float, float]:
    """FLOP/s of kinds of calls, as recorded and as the device reaches in another type; 0 where not known."""
    known, device = costing(context.trace, context.trace.work), context.device
    calls, dur_ns = known.by_kind(context.trace.work)
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


@scenario("dtype", argument="=TYPE", usual=(), reads=(costs,))
def dtype(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """GEMMs multiply in TYPE (fp8, bf16, fp32, ...); from 16 bits, the model and its messages are in it.

    Assumes:
        Each GEMM keeps its share of the roofline. Results stay at least 16 bits wide: of narrower types,
        casts, scales, other kernels and messages stay the same. Else other kernels of floating-point numbers,
        the optimizer and messages take as much time as they move bytes.
    """
    if argument not in BITS:
        raise TracelensError(f"scenario dtype={argument}: unknown type (known: {', '.join(BITS)})")
    graph, changed, before_ns, after_ns = context.gpu_graph(), 0, 0.0, 0.0
    new, replaced, other_ns = BITS[argument], set[str](), [0.0, 0.0]
    for rank, part in enumerate(context.read(costs)):
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
        nodes = graph.nodes(rank, Node.WORK)
        work = graph.work[nodes]
        gemms = multiplied[part.cost[work]]
        dur_ns = edit.dur[nodes].astype(float)
        factor = ratio[part.cost[work]]
        # Those of the model: a type of which no GEMM is was not meant, such as that of a loss.
        if new >= _SUM_BITS and replaced:
            moved = np.ones(len(part.costs) + 1)
            for row, cost in enumerate(part.costs):
                if not multiplied[row] and not cost.link and cost.dtype in replaced:
                    moved[row] = new / BITS[cost.dtype]
            factor = np.where(gemms, factor, moved[part.cost[work]])
            of_optimizer = part.parameters[work] & (part.cost[work] < 0)
            factor[of_optimizer] = new / max(BITS[name] for name in replaced)
        edit.set_dur(nodes, dur_ns * factor)
        after = edit.dur[nodes].astype(float)
        before_ns, after_ns = before_ns + float(dur_ns[gemms].sum()), after_ns + float(after[gemms].sum())
        other_ns[0] += float(dur_ns[~gemms].sum())
        other_ns[1] += float(after[~gemms].sum())
        changed += int((gemms & (factor != 1)).sum())
    if not changed:
        raise NotApplicable(f"no GEMM of another type than {argument} with recorded shapes")
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
    return (
        f"{changed:,} GEMMs and attentions read operands in {argument}: {duration(after_ns)} instead of "
        f"{duration(before_ns)} over all ranks; each keeps its share of the roofline; results stay at least "
        f"16 bits wide; {rest}"
    )
