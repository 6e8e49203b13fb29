"""Names of the regions that the workload marks in its traces, all in one place."""

from __future__ import annotations

from typing import Final

MOE: Final = "moe"
ROUTER: Final = "router"
DISPATCH: Final = "dispatch"
PERMUTE: Final = "permute"
EXPERTS: Final = "experts"
COMBINE: Final = "combine"
SHARED: Final = "shared"
