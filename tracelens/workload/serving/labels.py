"""Names of forward passes in a trace, in ATOM's grammar (see serving_labels.toml). No torch here."""

from __future__ import annotations

from tracelens.workload.serving.plan import Kind, Plan
from tracelens.workload.serving.split import Batch, size

SHOWN = 3
"""Context lengths that a label spells out."""


def label(kind: Kind, batch: Batch, plan: Plan) -> str:
    """Label of one rank's forward pass.

    Args:
        kind: of the pass.
        batch: what the rank runs, padding left out.
        plan: of the tick.
    """
    tokens, name, requests = size(batch), str(kind), str(len(batch))
    if plan.graph:
        return f"{name}[bs={requests}/{plan.graph} tok={tokens} d={tokens}]"
    if kind.endswith("decode"):
        name = name.replace("decode", "eager_decode")
    lengths = [piece.first + len(piece.tokens) for piece in batch]
    return f"{name}[bs={requests} tok={tokens} ctx={_shown(lengths)}]" + (" tbo=1" if plan.split else "")


def half_label(number: int, batch: Batch) -> str:
    """Label of one half of a pass under two-batch overlap."""
    return f"ub{number}[tok={size(batch)}]"


def _shown(lengths: list[int]) -> str:
    if len(lengths) == 1:
        return str(lengths[0])
    more = len(lengths) - SHOWN
    return f"[{', '.join(map(str, lengths[:SHOWN]))}]" + (f"...+{more}" if more > 0 else "")
