"""Names of the regions that the workload marks in its traces, all in one place.

Each is a `record_function` scope (category `user_annotation`). Scopes are entered on the thread that runs the
forward pass; backward ops run on autograd's own thread and are tied to their region by their forward op.
"""

from __future__ import annotations

from typing import Final

from torch.profiler import record_function

DATA: Final = "data"
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
LOG: Final = "log"

EMBEDDING: Final = "embedding"
ATTENTION: Final = "attention"
DENSE_MLP: Final = "dense_mlp"
LM_HEAD: Final = "lm_head"
LOSS: Final = "loss"

MOE: Final = "moe"
ROUTER: Final = "moe.router"
DISPATCH: Final = "moe.dispatch"
EXPERTS: Final = "moe.experts"
COMBINE: Final = "moe.combine"
SHARED: Final = "moe.shared"


def span(name: str) -> record_function:
    """Scope of this name in the trace; costs next to nothing while no profiler runs."""
    return record_function(name)
