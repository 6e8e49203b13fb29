"""Captures without kernel names, as CUDA records them: names from the replay itself.

An op with the same arguments launches the same kernels. Paired one by one, calls of equal ops therefore have
equal kernels, but for places where the replay differs; those stand out against the kernel that most calls
have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tracelens.arrays import Int
from tracelens.trace.classify import classify_kernels
from tracelens.trace.graphs.alignment import Alignment, align
from tracelens.trace.graphs.nodes import KERNEL, Content, Nodes, Replay, Template, op_texts

CONSISTENT = 0.9
"""Share of nodes whose kernel is that of most calls of the same op, and of GEMMs that run a GEMM kernel."""

LEAST_UNNAMED = 4
"""So few nodes without names may be of any graph."""

MAJORITY = 2 / 3
"""Share of an op's calls that name its kernel."""

_GEMM_OP = re.compile(r"aten::(?:mm|addmm|bmm|baddbmm|_scaled_mm|_grouped_mm|_scaled_grouped_mm)$")
_GEMM_CLASSES = ("gemm", "grouped_gemm")


def consistent(template: Template, graph: Replay, by_order: Alignment) -> Alignment | None:
    """The pairs of an alignment by order alone where equal calls have equal kernels; None where too few have.

    Args:
        template: without names.
        graph: a replay.
        by_order: their alignment.
    """
    texts = op_texts(template.trace, template.op)
    named = inferred(template.nodes, template.op, texts, graph.nodes) if by_order.is_whole else None
    if named is None:
        return None
    node = align(named, graph, {}).node
    return by_order._replace(node=np.where(by_order.node >= 0, node, -1))


def inferred(template: Nodes, op: Int, contents: Sequence[Content], replay: Nodes) -> Nodes | None:
    """The template with the kernel names that most calls of the same op have in the replay.

    None where the two are no one graph: they differ in the number or kinds of nodes, in too many kernels, or
    GEMMs do not run GEMM kernels.

    Args:
        template: without names.
        op: event row of the op of each node, -1 for none.
        contents: of that op.
        replay: a replay's nodes.
    """
    if len(template) < LEAST_UNNAMED or not np.array_equal(template.kind, replay.kind):
        return None
    seen: dict[object, Counter[str]] = {}
    keys = list(zip(contents, _ordinals(op), strict=True))
    for key, name in zip(keys, replay.name, strict=True):
        seen.setdefault(key, Counter())[name] += 1
    agreed = {
        key: names.most_common(1)[0][0]
        for key, names in seen.items()
        if names.most_common(1)[0][1] >= MAJORITY * names.total()
    }
    names = [agreed.get(key, "") for key in keys]
    kernels = template.kind == KERNEL
    same = np.array([name == other for name, other in zip(names, replay.name, strict=True)])
    if same[kernels].mean() < CONSISTENT or not _has_gemms(template, op, replay):
        return None
    names = [name if kernel else "" for name, kernel in zip(names, kernels.tolist(), strict=True)]
    return Nodes(template.kind, names, template.blocks, template.op)


def _ordinals(op: Int) -> list[int]:
    """Which of its op's calls each is."""
    count: Counter[int] = Counter()
    ordinals = []
    for row in op.tolist():
        ordinals.append(count[row] if row >= 0 else 0)
        count[row] += 1
    return ordinals


def _has_gemms(template: Nodes, op: Int, replay: Nodes) -> bool:
    """Whether ops that are GEMMs run a GEMM kernel; true where there are none."""
    calls = [row for row, name in enumerate(template.op) if _GEMM_OP.match(name)]
    classes = classify_kernels([replay.name[row] for row in calls]) if calls else []
    with_gemm = {op[row] for row, kernel in zip(calls, classes, strict=True) if kernel in _GEMM_CLASSES}
    return len(with_gemm) >= CONSISTENT * len(set(op[calls].tolist()))
