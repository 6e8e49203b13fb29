"""Ranks to process groups, and layers to pipeline stages. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from tracelens.errors import TracelensError
from tracelens.planner.config.checks import at_least_one

DIMENSIONS = ("pp", "dp", "cp", "tp")
"""Outermost first: consecutive ranks differ in `tp`."""

HELP = {
    "ranks": "ranks of the run; data parallelism takes what the other dimensions leave",
    "pp": "pipeline stages",
    "vpp": "model chunks per stage; above 1 the schedule is interleaved",
    "cp": "context parallelism: ranks that share a sequence in attention",
    "tp": "tensor and sequence parallelism: ranks that share each dense matrix",
    "ep": "expert parallelism: ranks of a stage that share the experts; 0 for all",
    "node": "ranks per node, for hierarchical collectives; 0 for all",
    "pp_layout": "layers of each chunk in model order, as in 3,4,4,3; empty for an even split",
}


@dataclass(frozen=True)
class Layout:
    """Ranks as a grid of pipeline x data x context x tensor parallelism; experts lie across the last three.

    HELP describes the fields. Raises TracelensError if the ranks cannot be divided in this way.
    """

    ranks: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 0
    node: int = 0
    pp_layout: str = ""

    def __post_init__(self) -> None:
        at_least_one(self, ("ranks", "pp", "vpp", "cp", "tp"))
        inner = self.pp * self.cp * self.tp
        if self.ranks % inner:
            raise TracelensError(f"{self.ranks} ranks are not a multiple of pp x cp x tp = {inner}")
        if self.ep < 0 or self.stage_ranks % self.experts_over:
            raise TracelensError(f"ep ({self.ep}) must divide the {self.stage_ranks} ranks of a stage")
        if self.node < 0 or self.ranks % (self.node or self.ranks):
            raise TracelensError(f"node ({self.node}) must divide the {self.ranks} ranks")
        if self.vpp > 1 and self.pp == 1:
            raise TracelensError("vpp above 1 needs a pipeline: pp above 1")

    @property
    def dp(self) -> int:
        return self.ranks // (self.pp * self.cp * self.tp)

    @property
    def stage_ranks(self) -> int:
        return self.ranks // self.pp

    @property
    def experts_over(self) -> int:
        """Ranks that share the experts: `ep`, or all of a stage."""
        return self.ep or self.stage_ranks

    def coordinates(self, rank: int) -> dict[str, int]:
        """Index of a rank in each dimension of the grid, and in the groups "ep" and "edp"."""
        coordinates, rest = {}, rank
        for name in reversed(DIMENSIONS):
            rest, coordinates[name] = divmod(rest, getattr(self, name))
        coordinates["edp"], coordinates["ep"] = divmod(rank % self.stage_ranks, self.experts_over)
        return coordinates

    def groups(self, *names: str) -> list[list[int]]:
        """Ranks that differ in these dimensions only, one list per group, ascending.

        Args:
            names: of DIMENSIONS, or one of "ep" (ranks that share the experts) and "edp" (ranks with the
                same experts).
        """
        sizes = {name: getattr(self, name) for name in DIMENSIONS}
        if names in (("ep",), ("edp",)):
            sizes = {
                "pp": self.pp, "edp": self.stage_ranks // self.experts_over, "ep": self.experts_over
            }  # fmt: skip
        grid = np.arange(self.ranks).reshape(*sizes.values())
        axes = [axis for axis, name in enumerate(sizes) if name in names]
        size = np.prod([grid.shape[axis] for axis in axes], dtype=int)
        groups: list[list[int]] = np.moveaxis(grid, axes, range(-len(axes), 0)).reshape(-1, size).tolist()
        return groups

    def chunks(self, layers: int) -> list[range]:
        """Layers of each model chunk, in model order: chunk c lies on stage c % pp.

        Raises:
            TracelensError: `pp_layout` does not match chunks or layers; fewer layers than chunks.
        """
        count = self.pp * self.vpp
        if self.pp_layout:
            try:
                shares = [int(text) for text in self.pp_layout.split(",")]
            except ValueError:
                raise TracelensError(
                    f"pp_layout must list the layers per chunk, as in 3,4,4,3, not {self.pp_layout!r}"
                ) from None
            if len(shares) != count or sum(shares) != layers or min(shares) < 0:
                raise TracelensError(
                    f"pp_layout {self.pp_layout} must have {count} chunks (pp x vpp), {layers} layers in "
                    "total"
                )
        else:
            if layers < count:
                raise TracelensError(f"{layers} layers are too few for {count} chunks (pp x vpp)")
            shares = [layers // count + (chunk < layers % count) for chunk in range(count)]
        ends = accumulate(shares)
        return [range(end - share, end) for end, share in zip(ends, shares, strict=True)]
