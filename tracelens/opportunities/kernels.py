"""Kernels that are slow for their size, and chains of them that one kernel replaces.

Such chains are losses over a vocabulary, steps of an optimizer, routers of MoE layers and permutations
of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tracelens.analysis.fusable import (
    CHAIN,
    COPY,
    LOSSES,
    NLL_BACK,
    PARALLEL,
    SOFTMAX,
    SOFTMAX_BACK,
    VOCABULARY,
    Chains,
    StageWork,
    distinct,
    events_named,
    loss_chains,
    of_size,
    operands,
    optimizer_chains,
    permutation_bytes,
    permutation_chains,
    permutation_work,
    router_chains,
    router_work,
    sizes_of,
    unfused_loss,
    unfused_optimizer,
    width,
)
from tracelens.analysis.moe import FORWARD, PHASES
from tracelens.analysis.roofline import SLOW_RATIO, SlowCalls, slow_calls
from tracelens.arrays import ordered, unique
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.findings import Detection, Outcome, Quantity, RankContext, Remedy, detector
from tracelens.opportunities.launches import SMALL_NS
from tracelens.trace import Trace, matching, union, wildcards
from tracelens.units import duration, milliseconds, plural
from tracelens.what_if import NotApplicable, ScenarioContext, number, scenario
from tracelens.what_if.graph import Edit, Node, fuse
from tracelens.what_if.replay import labels

_LAUNCH_NS = 5_000
"""What a saving leaves for each kernel that has to be launched still."""

_FUSED = re.compile(
    r"liger\w*cross_entropy|^(?!binary)\w*cross_entropy\w*_kernel|^online_softmax_kernel|xentropy|^_?cce_"
    r"|^triton_\w*(?:log_softmax|nll_loss)",
    re.IGNORECASE,
)
"""Kernels of fused losses: Liger, Transformer Engine, FlashAttention, Apex, cut cross-entropy and those that
torch.compile makes."""

_ALLOCATES = (COPY, SOFTMAX, SOFTMAX_BACK, *NLL_BACK)
"""Ops whose result is a new tensor of the logits' size."""
_SHOWN = 3  # kinds of calls that a sentence names
_NOT_FUSED = (
    "torch.compile runs already and leaves these kernels apart: look for graph breaks "
    "(TORCH_LOGS=graph_breaks); ops that it does not generate itself, such as sorts, stay."
)


@detector(
    "slow_kernels",
    evidence="roofline",
    scenario="good_kernels",
    title="Slow kernels",
    fix="kernels at the rates that the device reaches",
    symptom=True,
    measures={
        "slow kernels": "time of their calls, per step",
        "at the device's rates": "time that the same calls need, per step",
        "kinds of calls": "ops by arguments",
    },
    threshold=f"calls that take {SLOW_RATIO:g} times as long as the device needs for their size",
    limits="Needs shapes (record_shapes=True) and a known device. Sorts and what has no cost model are not "
    "looked at. Rates of devices that were not measured are those of a measured one, scaled.",
    remedy="Replay the calls (tracelens replay --finding slow_kernels), and try another kernel for them: "
    "another backend or library, another layout or alignment of the tensors.",
    remedies=(
        Remedy("torch.compile fuses passes over memory.", compiled=False),
        Remedy(
            "On AMD: tuned GEMMs (hipBLASLt offline tuning, PYTORCH_TUNABLEOP_ENABLED=1), attention by "
            "AITER or CK, and AITER's fused MoE kernels.",
            vendor=("amd",),
        ),
        Remedy(
            "Attention: torch.nn.attention.sdpa_kernel picks the backend (cuDNN or flash).",
            vendor=("nvidia",),
        ),
    ),
)
def slow_kernels(context: RankContext) -> Outcome:
    """Kernels run far below the rate that the device reaches for work of their size."""
    if not len(context.work.event):
        return "no GPU work"
    if context.device is None:
        return "the device is unknown, and so are its rates: give --device"
    slow = context.slow
    if not len(slow.items):
        return f"no kernel takes {SLOW_RATIO:g} times as long as the device needs for its size"
    in_steps = slow.share_within(context.rows, context.trace.work)
    lost_ns, dur_ns = slow.lost_ns * in_steps, slow.dur_ns * in_steps
    if not lost_ns.any():
        return "no slow kernel runs within the steps"
    slow_ns, needed_ns, wasted_ns = (
        context.per_step(float(each.sum())) for each in (dur_ns, dur_ns - lost_ns, lost_ns)
    )
    kinds = int((lost_ns > 0).sum())
    most = np.argsort(-lost_ns, kind="stable")[: min(kinds, _SHOWN)].tolist()
    told = "; ".join(_told(slow, number, context.per_step(float(in_steps[number]))) for number in most)
    more = f"; and {plural(kinds - _SHOWN, 'more kind')}" if kinds > _SHOWN else ""
    others = f" and {plural(kinds - 1, 'more kind')} of calls" if kinds > 1 else ""
    source = "measured" if slow.is_measured else "scaled from a measured device"
    first = slow.items[most[0]].name
    return Detection(
        (
            Quantity("slow kernels", slow_ns, "ns"),
            Quantity("at the device's rates", needed_ns, "ns"),
            Quantity("kinds of calls", kinds, "count"),
        ),
        wasted_ns,
        context.during(np.isin(context.rows, slow.rows)),
        f"{duration(slow_ns)} per step go to calls that need {duration(needed_ns)} at the rates "
        f"that {context.device.title} reaches for their sizes ({source}): {told}{more}",
        "medium" if slow.is_measured else "low",
        title=f"Slow kernels: {first}{others}",
    )


def _told(slow: SlowCalls, kind: int, per_step: float) -> str:
    """One kind of call with its times and rates; `per_step`: the share of its calls that a step has."""
    item, count = slow.items[kind], float(slow.calls[kind])
    mean_ns, needed_ns = float(slow.dur_ns[kind]) / count, float(slow.reachable_ns[kind])
    cost = item.cost
    moved = cost.read_bytes + cost.write_bytes
    rate = (
        f"{cost.flops / mean_ns / 1e3:,.0f} TFLOP/s"
        if cost.engine == "matrix" and cost.flops
        else f"{moved / mean_ns:,.0f} GB/s"
    )
    return (
        f"{item.name} {item.shapes[:60]}: {plural(count * per_step, 'call')} of {duration(mean_ns)} ({rate}) "
        f"where {duration(needed_ns)} would do"
    )


@scenario("good_kernels", argument="=OP", reads=(slow_calls,))
def good_kernels(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Slow kernels, or those of OP, run at the rate that the device reaches for work of their size.

    Assumes:
        Rates are those measured by size on the device, or on one of which it is a known multiple; GEMMs are
        no faster than the run's best. Kernels that are not slow keep their time, as do sorts, transfers and
        what has no cost model.
    """
    graph, by_rank = context.gpu_graph(), context.read(slow_calls)
    pattern = wildcards(argument) if argument else None
    changed, before_ns, after_ns = 0, 0.0, 0.0
    kinds: set[str] = set()
    for index, slow in enumerate(by_rank):
        names = [item.name for item in slow.items]
        wanted = matching(names, pattern) if pattern else np.ones(len(names), dtype=bool)
        kinds |= {name for name, is_wanted in zip(names, wanted.tolist(), strict=True) if is_wanted}
        rows, kind = slow.rows[wanted[slow.kind]], slow.kind[wanted[slow.kind]]
        nodes = graph.nodes(index, Node.WORK)
        nodes = nodes[np.isin(graph.work[nodes], rows)]
        factor = slow.factor[kind[np.searchsorted(rows, graph.work[nodes])]]
        changed += len(nodes)
        before_ns += float(edit.dur[nodes].sum())
        edit.set_dur(nodes, edit.dur[nodes] * factor)
        after_ns += float(edit.dur[nodes].sum())
    if not changed:
        raise NotApplicable(
            f"no call of an op like {argument!r} is slow" if argument else "no call is slow for its size"
        )
    return (
        f"{changed:,} activities of {len(kinds)} ops take {duration(after_ns)} instead of "
        f"{duration(before_ns)} over all ranks, at the rates that the device reaches for their sizes"
    )


@scenario("scale", argument=":PATTERN=FACTOR", usual=())
def scale(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """GPU work whose kernel, op, collective or class matches PATTERN takes FACTOR times as long.

    Assumes:
        Everything else stays the same.
    """
    text, equals, factor_text = argument.rpartition("=")
    if not equals or not text:
        raise TracelensError(f"scenario scale:{argument}: write scale:PATTERN=FACTOR, as in scale:gemm=0.5")
    factor = 0.0 if factor_text.strip() == "0" else number(factor_text, f"scale:{argument}")
    pattern, graph = wildcards(text), context.graph
    matches = np.zeros(len(graph), dtype=bool)
    for column in labels(context.recorded):
        matches |= matching(column.values, pattern)[column.codes]
    nodes = np.flatnonzero(matches & (graph.dur > 0))
    if not len(nodes):
        raise NotApplicable(f"no kernel, op, collective or kernel class matches {text!r}")
    edit.set_dur(nodes, edit.dur[nodes] * factor)
    return f"{len(nodes):,} activities take {factor:g}x as long; everything else stays the same"


@detector(
    "loss_unfused",
    evidence="ops",
    scenario="fused_loss",
    title="Cross-entropy loss runs kernel by kernel",
    fix="a fused loss",
    measures={
        "loss": "time of the chain, per step",
        "share of the step": "time of the chain / step time",
        "kernels per step": "kernels of the chain",
        "passes over the logits per step": "how often its kernels read or write all logits",
        "intermediate copies of the logits": "bytes written in addition to the result, per step",
        "one fused kernel": "time for the least bytes at the achievable bandwidth, per step",
    },
    threshold=f"{VOCABULARY:,} classes",
    limits="Needs the shapes of the loss (record_shapes=True).",
    remedy="Fuse the loss into one kernel that keeps the logits' own type. It also frees the memory of the "
    "intermediate copies.",
    remedies=(
        Remedy(
            "{megatron}: --cross-entropy-loss-fusion with --cross-entropy-fusion-impl te.",
            framework=("megatron", "primus"),
        ),
        Remedy("transformers: TrainingArguments(use_liger_kernel=True).", framework=("huggingface",)),
        Remedy("The bundled workload: --loss fused.", framework=("workload",)),
        Remedy(
            "For example Liger's cross entropy, or its fused linear cross entropy, which never stores the "
            "logits; or torch.compile around the loss.",
            plain=True,
            compiled=False,
        ),
        Remedy(
            "For example Liger's cross entropy, or its fused linear cross entropy, which never stores the "
            "logits; or the loss within what is compiled, without a graph break before it.",
            plain=True,
            compiled=True,
        ),
    ),
)
def loss_unfused(context: RankContext) -> Outcome:
    """A cross-entropy loss over a vocabulary (4,096 classes and more) runs as a chain of separate kernels."""
    if not len(context.work.event):
        return "no GPU work"
    loss = unfused_loss(context)
    if loss is None:
        names = [context.work.names[code] for code in unique(context.work.name)]
        if fused := next((name for name in names if _FUSED.search(name)), None):
            return f"the loss is already fused ({fused})"
        if not len(events_named(context, *LOSSES, PARALLEL)):
            return "no unfused cross-entropy loss"
        classes = [size.columns for loss_sizes in sizes_of(context) for size in loss_sizes]
        if not classes:
            return "the loss's shapes are not recorded (use record_shapes=True), so its vocabulary is unknown"
        if max(classes) >= VOCABULARY:
            return "the loss runs no kernels of its own over the logits"
        return f"the loss has {max(classes):,} classes, too few for a vocabulary"
    work, sizes, amounts = loss.work, loss.sizes, loss.amounts
    where = context.during(work.mask)
    least = loss.fused_ns
    saving = context.per_step(max(where.total - least, 0.0))
    # Bytes of all tensors of the logits' size that the losses write to new memory.
    group, calls = distinct(context, unique(context.work.op[work.mask & (context.work.op >= 0)]))
    copied = 0.0
    for call, times in zip(calls, np.bincount(group, minlength=len(calls)).tolist(), strict=True):
        like = [tensor for tensor in operands(call) if of_size(tensor, sizes)]
        if like and call.name in _ALLOCATES:
            # The flag of the softmax: it takes 16-bit logits and writes FP32.
            wide = call.name == SOFTMAX and call.flag(2)
            copied += times * like[0].numel * (4 if wide else width(like[0].dtype))
    copies = context.per_step(copied - amounts.backward * amounts.element)
    time, kernels = context.per_step(where.total), context.per_step(int(work.mask.sum()))
    share = where.total / max(context.window[1] - context.window[0], 1)
    shapes = " and ".join(f"{rows:,} x {columns:,}" for rows, columns in sorted(sizes)[:3])
    return Detection(
        (
            Quantity("loss", time, "ns"),
            Quantity("share of the step", min(share, 1.0), "fraction"),
            Quantity("kernels per step", kernels, "count"),
            Quantity("passes over the logits per step", context.per_step(loss.passes), "count"),
            Quantity("intermediate copies of the logits", max(copies, 0.0), "bytes"),
            Quantity("one fused kernel", context.per_step(least), "ns"),
        ),
        saving,
        where,
        f"the loss over {shapes} logits takes {duration(time)} per step ({share:.1%}) "
        f"in {kernels:.0f} kernels that write {max(copies, 0.0) / 1e9:.2f} GB of intermediate copies; one "
        f"fused kernel takes {duration(context.per_step(least))} at {loss.source}",
        "medium",
    )


@scenario("fused_loss", reads=(loss_chains,))
def fused_loss(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The cross-entropy loss over the vocabulary runs as one kernel forward and one backward.

    Assumes:
        The fused kernels run at memory bandwidth: logits read twice, their gradient written once.
    """
    return _fused(
        context,
        edit,
        loss_chains,
        "no cross-entropy loss over a vocabulary that runs kernel by kernel",
        "memory bandwidth (logits read twice, their gradient written once)",
    )


@detector(
    "optimizer_unfused",
    evidence="ops",
    scenario="fused_optimizer",
    title="Optimizer runs op by op",
    fix="a fused optimizer",
    measures={
        "optimizer on the host": "time of its steps, per step",
        "kernels of the optimizer": "per step",
        "time of these kernels": "per step",
        "fused kernels": "time for the same tensors, each read and written once, per step",
    },
    threshold=f"{CHAIN} kernels in a step of Adam, AdamW or SGD of torch.optim, none of them fused",
    limits="Optimizers are known by the mark that torch.optim sets around a step, on the host's side.",
    remedy="Update all parameters with fused kernels.",
    remedies=(
        Remedy('transformers: TrainingArguments(optim="adamw_torch_fused").', framework=("huggingface",)),
        Remedy('torchtitan: --optimizer.implementation "fused".', framework=("torchtitan",)),
        Remedy("torch.optim: pass fused=True to the optimizer.", plain=True),
        Remedy(
            "By itself torch chooses neither lists of parameters (foreach) nor fused kernels for DTensors "
            "(FSDP2, tensor parallelism), and fused=False turns off both. Fused kernels take DTensors and "
            "other parameters in groups of their own only.",
        ),
    ),
)
def optimizer_unfused(context: RankContext) -> Outcome:
    """Adam, AdamW or SGD of torch.optim runs op by op, over one parameter at a time or over lists of them."""
    optimizer = unfused_optimizer(context)
    if optimizer is None:
        return "no step of Adam, AdamW or SGD of torch.optim that runs op by op"
    where = context.during(optimizer.rows)
    fused_ns = where.total * optimizer.fused_share
    kernels, host_ns = context.per_step(len(optimizer.rows)), context.per_step(optimizer.host_ns)
    spent_ns, least_ns = context.per_step(where.total), context.per_step(fused_ns)
    how = "op by op over lists of parameters" if optimizer.by_lists else "parameter by parameter"
    return Detection(
        (
            Quantity("optimizer on the host", host_ns, "ns"),
            Quantity("kernels of the optimizer", kernels, "count"),
            Quantity("time of these kernels", spent_ns, "ns"),
            Quantity("fused kernels", least_ns, "ns"),
        ),
        max(spent_ns - least_ns, 0.0),
        where,
        f"{optimizer.kind} runs {how}: {kernels:,.0f} kernels per step that take {milliseconds(spent_ns)}, "
        f"launched within {milliseconds(host_ns)} of the host; fused kernels move the same tensors once, in "
        f"about {milliseconds(least_ns)}",
        "medium",
    )


@scenario("fused_optimizer", reads=(optimizer_chains,))
def fused_optimizer(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Adam, AdamW or SGD of torch.optim updates all parameters with fused kernels.

    Assumes:
        The fused kernels move weights, gradients and moments once: 7/20 of the bytes of AdamW's separate ops,
        5/8 of SGD's with momentum; a byte takes them 1.2 to 1.4 times as long, as measured on an H200.
    """
    return _fused(
        context,
        edit,
        optimizer_chains,
        "no step of Adam, AdamW or SGD of torch.optim that runs op by op",
        "memory bandwidth (weights, gradients and moments read and written once)",
        pauses=False,  # ops that go through Python for each parameter take as long
    )


@detector(
    "router_unfused",
    evidence="moe",
    scenario="fused_router",
    title="Unfused router",
    fix="a fused router",
    measures={
        "kernels per layer, forward": "mean number in a forward pass",
        "time per step": "time of these kernels, forward and backward, with the gaps under 10 µs before them",
        "share of kernels under 10 µs": "by number",
    },
    threshold=f"{CHAIN} kernels per layer in a forward pass without the GEMM, none of them a known fused one",
    limits="Fused kernels are known by name.",
    remedy="Route with one kernel: scores, top-k and auxiliary loss together.",
    remedies=(
        Remedy(
            "Primus: moe_use_fused_router_with_aux_score.", framework=("primus",), vendor=("amd",), best=True
        ),
        Remedy(
            "Megatron-LM: --moe-router-fusion (Transformer Engine 2.7 or later).",
            framework=("megatron",),
            best=True,
        ),
        Remedy("The bundled workload: --router fused.", framework=("workload",)),
        Remedy("The bundled workload: --set router=fused.", framework=("workload_serve",)),
        Remedy(
            "With torch alone: a Triton kernel, or torch.compile around the router.",
            plain=True,
            compiled=False,
        ),
        Remedy(
            f"With torch alone: a Triton kernel. {_NOT_FUSED}",
            plain=True,
            compiled=True,
        ),
    ),
)
def router_unfused(context: RankContext) -> Outcome:
    """A chain of softmax, topk, scatter, sum and div kernels in the router, in place of one fused kernel."""
    stage = router_work(context)
    if isinstance(stage, str):
        return stage
    # The chain's kernels with the short gaps in front of them.
    work = context.work
    order = ordered(stage.cell, work.start[stage.rows])
    rows, cell = stage.rows[order], stage.cell[order]
    start, end = work.start[rows].copy(), work.end[rows]
    reached = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    is_same_pass = np.concatenate(([False], cell[1:] == cell[:-1]))
    close = (start - reached < SMALL_NS) & (reached <= start) & is_same_pass
    start[close] = reached[close]
    where = union(start, end)
    small = float((context.work.dur[stage.rows] < SMALL_NS).mean())
    fused_ns = _LAUNCH_NS * len(stage.cells)
    return Detection(
        (
            Quantity("kernels per layer, forward", stage.kernels, "count"),
            Quantity("time per step", context.per_step(where.total), "ns"),
            Quantity("share of kernels under 10 µs", small, "fraction"),
        ),
        context.per_step(max(where.total - fused_ns, 0)),
        where,
        f"{stage.kernels:.0f} kernels per layer in forward in addition to the router GEMM, {small:.0%} "
        f"under {SMALL_NS // 1000} µs; {_passes(stage)}they take "
        f"{milliseconds(context.per_step(where.total))}/step including the gaps under {SMALL_NS // 1000} µs "
        f"before them; one fused kernel per pass takes about {milliseconds(context.per_step(fused_ns))}/step",
        "medium",
    )


@scenario("fused_router", reads=(router_chains,))
def fused_router(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Routers of MoE layers run as one kernel in addition to their GEMM.

    Assumes:
        The fused kernel takes the time of the longest kernel that it replaces.
    """
    return _fused(
        context,
        edit,
        router_chains,
        "no MoE layer whose router runs kernel by kernel",
        "the time of the longest kernel that it replaces",
    )


@detector(
    "permute_unfused",
    evidence="moe",
    scenario="fused_permute",
    title="Unfused permutation of tokens",
    fix="fusing the permutation",
    measures={
        "kernels per layer, forward": "mean number in a forward pass",
        "time per step": "time of these kernels, forward and backward",
        "useful bandwidth": "bytes that permuting must move at least / time",
    },
    threshold=f"{CHAIN} kernels per layer in a forward pass, none of them a known fused one",
    limits="Fused kernels are known by name.",
    remedy="Sort and move tokens with fused kernels.",
    remedies=(
        Remedy("Primus: moe_permute_fusion.", framework=("primus",)),
        Remedy(
            "Megatron-LM: --moe-permute-fusion (Transformer Engine 2.1 or later).",
            framework=("megatron",),
            best=True,
        ),
        Remedy("The bundled workload: --permute fused.", framework=("workload",)),
        Remedy("The bundled workload: --set permute=fused.", framework=("workload_serve",)),
        Remedy(
            "With torch alone: Triton kernels, or torch.compile around the permutation.",
            plain=True,
            compiled=False,
        ),
        Remedy(
            f"With torch alone: Triton kernels. {_NOT_FUSED}",
            plain=True,
            compiled=True,
        ),
    ),
)
def permute_unfused(context: RankContext) -> Outcome:
    """A chain of sorts, scans and index kernels between router and experts, in place of a permute kernel."""
    stage = permutation_work(context)
    if isinstance(stage, str):
        return stage
    least = sum(permutation_bytes(context, cell) for cell in stage.cells.tolist())
    busy = context.during(stage.rows)
    spent = busy.total
    fused_ns = least / context.device.hbm_bytes_per_s * 1e9 if context.device is not None else 0.0
    fused_ns += 2 * _LAUNCH_NS * len(stage.cells)
    speed = least / max(spent, 1) * 1e9
    against = (
        f" at {speed / 1e9:,.0f} GB/s of useful traffic; a fused permutation takes about "
        f"{milliseconds(context.per_step(fused_ns))}/step"
        if least
        else "; how many tokens they move is not recorded"
    )
    return Detection(
        (
            Quantity("kernels per layer, forward", stage.kernels, "count"),
            Quantity("time per step", context.per_step(spent), "ns"),
            *([Quantity("useful bandwidth", speed, "bytes/s")] if least else []),
        ),
        context.per_step(max(spent - fused_ns, 0)),
        busy,
        f"{stage.kernels:.0f} kernels per layer in forward; {_passes(stage)}they take "
        f"{milliseconds(context.per_step(spent))}/step{against}",
        "medium" if context.device is not None and least else "low",
    )


def _passes(stage: StageWork) -> str:
    """Of which passes a time is, where it is not of forward passes alone."""
    has_backward = bool((stage.cells[stage.cells >= 0] % len(PHASES) != FORWARD).any())
    return "with those in backward " if has_backward else ""


@scenario("fused_permute", reads=(permutation_chains,))
def fused_permute(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Permutations of tokens run as one kernel each.

    Assumes:
        The fused kernels run at memory bandwidth: tokens read once and written once per expert, and back.
    """
    return _fused(
        context,
        edit,
        permutation_chains,
        "no MoE layer whose permutation runs kernel by kernel",
        "memory bandwidth (tokens read once and written once per expert, and back)",
    )


def _fused(
    context: ScenarioContext,
    edit: Edit,
    find: Callable[[Trace, Device | None], Chains],
    reason: str,
    limit: str,
    *,
    pauses: bool = True,
) -> str:
    graph = context.gpu_graph()
    by_rank = context.read(find)
    if not any(len(chains.rows) for chains in by_rank):
        raise NotApplicable(reason)
    count, launches, before_ns, after_ns = fuse(graph, edit, by_rank, pauses=pauses)
    return (
        f"{count:,} chains of kernels become one kernel each, at {limit}: {duration(after_ns)} instead of "
        f"{duration(before_ns)} over the recording; {launches:,} launches and the host time before them "
        "disappear; blocking calls in between stay"
    )
