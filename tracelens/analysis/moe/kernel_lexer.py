"""The forward work of one rank in order of launch, classified by its role in an MoE layer."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import numpy as np

from tracelens.analysis.common import recomputed
from tracelens.analysis.pipeline import gradient_sync, in_autograd, stage_messages
from tracelens.arrays import Bool, Int, lookup
from tracelens.table import nearest
from tracelens.trace import WORK_KINDS, Trace, matching

OTHER, BORDER, TOPK, GEMM, GROUPED, COMM, PERMUTE, ROUTE, COPY_OUT, SUM, CAST, SQUARE = range(12)
"""Kinds of work: BORDER lies in no MoE layer, PERMUTE moves or sorts tokens, ROUTE may be part of the router
as well as of the permutation, COPY_OUT brings sizes to the host, SQUARE may begin a normalization."""


def kinds_lookup(*kinds: int) -> Bool:
    """A table that says of each kind whether it is one of some: `kinds_lookup(GEMM, GROUPED)[kind]`.

    Windows of one layer have few tokens, for which `np.isin` takes longer than all else.
    """
    return np.isin(np.arange(SQUARE + 1), kinds)


# By the op that launched it, or the op around that one (a sort copies and fills, too).
_OPS = (
    (TOPK, r"aten::topk|.*(?:topk_?(?:softmax|gating|router|score)|grouped_?topk|moe_?gate|fused_?rout).*"),
    (
        PERMUTE,
        r"aten::(?:sort|argsort|nonzero|masked_select|index|index_select|_?index_put_?(?:_?impl_)?|index_add_?"
        r"|index_copy_?|cat|repeat_interleave|scatter_add_?|searchsorted|take_along_dim)"
        r"|.*(?:permute|sort_?chunks|moe_?sort|align_?block).*",
    ),
    (ROUTE, r"aten::(?:scatter_?|gather|one_hot|histc|bincount|cumsum)"),
    (GROUPED, r"aten::(?:bmm|baddbmm)|aten::_?grouped_mm"),
    (GEMM, r"aten::(?:mm|addmm|_scaled_mm|_int_mm|linear|matmul)"),
    (BORDER, r"aten::(?:rsqrt|embedding|_embedding_bag|nll_loss.*|_?log_softmax|.*conv(?:olution|\d|_).*)"),
    (SUM, r"aten::sum"),
    (CAST, r"aten::(?:copy_|_to_copy|to)"),
    (SQUARE, r"aten::(?:pow|square)"),
)
# By the class of the kernel (kernels.toml) where the op does not say.
_CATEGORIES = {
    "gemm": GEMM,
    "grouped_gemm": GROUPED,
    "normalization": BORDER,
    "attention": BORDER,
    "rotary": BORDER,
    "loss": BORDER,
    "convolution": BORDER,
    "optimizer": BORDER,
    "sort_scan": PERMUTE,
    "indexing": PERMUTE,
}
_ROUTER_KERNEL = re.compile(r"topk|gating|rout(?:er|ing)|grouped_?score|moe_?gate", re.IGNORECASE)
# Scopes and functions that gather parameters. Modules wrapped for it (FSDPBlock_0) and files hold much else.
_PARAMETERS = re.compile(
    r"^FSDP::|^FullyShardedDataParallel\._|(?:^|: |\.)_?(?:pre_forward|unshard|foreach_all_gather"
    r"|pre_backward_hook|all_?gather_?params|fetch_sub_module|all_gather_coalesced)",
    re.IGNORECASE,
)
HOST_COPY = re.compile(r"DtoH|DeviceToHost|DEVICE_TO_HOST", re.IGNORECASE)


class Tokens(NamedTuple):
    """Forward work in order of launch.

    Attributes:
        row: position in the trace's work.
        called: when the host called it, ns, ascending.
        kind: one of the kinds above.
        op: event row of its op, -1 if none.
        is_recompute: whether it is recomputed in the backward pass.
        segment: number of the uninterrupted forward pass that it is part of: of one micro-batch, through one
            chunk of the model.
    """

    row: Int
    called: Int
    kind: Int
    op: Int
    is_recompute: Bool
    segment: Int


def tokens(trace: Trace, caller: Int, autograd: Bool, is_recompute: Bool) -> Tokens:
    """The forward work of a rank.

    Args:
        trace: of the rank.
        caller: event row of the call behind each piece of work, -1 if none.
        autograd: which work the autograd engine launched.
        is_recompute: which of it is recomputed forward work.
    """
    events, work = trace.arrays, trace.work
    row = np.flatnonzero((caller >= 0) & (~autograd | is_recompute) & ~_of_parameters(trace))
    row = row[np.argsort(events.start[caller[row]], kind="stable")]
    called = events.start[caller[row]]
    kind = trace.once(kinds)[row]
    sent = np.isin(work.event[row], stage_messages(trace, unnamed=True).kernel)
    kind[sent] = BORDER
    segment = np.zeros(len(row), dtype=np.int64)
    backward = np.sort(events.start[caller[(caller >= 0) & autograd & ~is_recompute]])
    first = _named(trace, work.op[row], re.compile(r"aten::(?:embedding|_embedding_bag)")) >= 0
    for part in np.flatnonzero(~is_recompute[row]), np.flatnonzero(is_recompute[row]):
        cut = np.ones(len(part), dtype=bool)
        # A pass ends where another embedding begins, and at messages between pipeline stages.
        starts = first[part], sent[part]
        cut[1:] = np.any([begins[1:] & ~begins[:-1] for begins in starts], axis=0)
        # Without an embedding it ends where backward work is launched; with one that may be another
        # micro-batch's, launched between two layers of this one to hide its all-to-all.
        if not first[part].any():
            cut[1:] |= np.diff(np.searchsorted(backward, called[part])) > 0
        if is_recompute[row][part].any():
            cut[1:] |= np.diff(part) > 1
        segment[part] = segment.max(initial=0) + np.cumsum(cut)
    return Tokens(row, called, kind, work.op[row], is_recompute[row], segment)


def callers(trace: Trace) -> tuple[Int, Bool, Bool]:
    """Of each piece of work: its call (-1: none), whether autograd launched it, whether it is recomputed."""
    work = trace.work
    caller = work.host_call
    return caller, lookup(in_autograd(trace), caller, False), lookup(trace.once(recomputed), caller, False)


def kinds(trace: Trace) -> Int:
    """Kind of each piece of work; ask with `trace.once(kinds)`."""
    events, work = trace.arrays, trace.work
    by_category = np.array([_CATEGORIES.get(name, OTHER) for name in work.categories], dtype=np.int64)
    kind = by_category[work.category]
    router = matching(work.names, _ROUTER_KERNEL)
    is_routing = work.category == work.categories.index("moe_routing")
    kind[is_routing] = np.where(router[work.name[is_routing]], TOPK, PERMUTE)
    by_name = np.full(len(events.names) + 1, OTHER)
    for code, name in enumerate(events.names):
        by_name[code] = _kind_of(name)
    op = work.op
    above = lookup(events.parent, op, -1)
    for event in (op, above):
        by_op = by_name[lookup(events.name, event, len(events.names))]
        kind = np.where((by_op != OTHER) & (kind != GROUPED), by_op, kind)
    leaves = matching(work.names, HOST_COPY)[work.name]
    kind[leaves & ~work.is_kernel & np.isin(kind, (OTHER, CAST))] = COPY_OUT
    kind[work.kind == WORK_KINDS.index("comm")] = COMM
    return kind


def _of_parameters(trace: Trace) -> Bool:
    """Which work gathers parameters or reduces gradients: it is not about tokens."""
    work, table = trace.work, trace.tables["collectives"]
    is_all_to_all = table.coded("collective").mask(re.compile("all_?to_?all").search)
    all_to_all = np.isin(work.event, table.array("kernel_id")[is_all_to_all])
    comm = (work.kind == WORK_KINDS.index("comm")) & ~all_to_all
    of_parameters: Bool = comm & (_around(trace, work.op, _PARAMETERS) | gradient_sync(trace, work))
    return of_parameters


@cache
def _kind_of(op: str) -> int:
    """Kind of the work of an op, by its name alone; the ranks of a job have the same names."""
    return next((kind for kind, grammar in _OPS if re.fullmatch(grammar, op)), OTHER)


def _named(trace: Trace, rows: Int, grammar: re.Pattern[str]) -> Int:
    """The event itself or the one around it whose whole name fits, -1 if neither does."""
    events = trace.arrays
    fits = events.named(grammar.fullmatch)
    above = lookup(events.parent, rows, -1)
    fitting = np.full(len(rows), -1, dtype=np.int64)
    for event in (above, rows):
        fitting = np.where(lookup(fits, event, False), event, fitting)
    return fitting


def _around(trace: Trace, rows: Int, grammar: re.Pattern[str]) -> Bool:
    """Whether these events lie in one with such a name."""
    events = trace.arrays
    fits = matching(events.names, grammar)
    if not fits.any():
        return np.zeros(len(rows), dtype=bool)
    around = nearest(events.parent, events.depth, fits[events.name])
    return lookup(around, rows, -1) >= 0
