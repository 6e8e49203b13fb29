"""How a run is spread over ranks: which ranks form which group, which layers lie on which. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, product

from tracelens.errors import TracelensError
from tracelens.planner.config.checks import at_least_one

DIMENSIONS = ("pp", "dp", "cp", "tp")
"""Outermost first: ranks with neighbouring numbers differ in `tp`."""

HELP = {
    "ranks": "ranks of the run; data parallelism takes those that the other dimensions leave",
    "pp": "pipeline stages",
    "vpp": "model chunks per stage; above 1, the interleaved schedule",
    "cp": "ranks that share one sequence in attention",
    "tp": "ranks that share each dense matrix, and the sequence between them",
    "ep": "ranks of a stage that share the experts; 0 for all of them",
    "node": "ranks per node, for hierarchical collectives; 0 for all",
    "pp_layout": "layers of each chunk in the order of the model, as in 3,4,4,3; empty for even shares",
}


@dataclass(frozen=True)
class Layout:
    """Ranks as a grid of pipeline x data x context x tensor parallelism; experts lie across the last three.

    The fields are told in HELP.
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
        """Raise TracelensError when the ranks cannot be divided in this way."""
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
        """Ranks of one pipeline stage."""
        return self.ranks // self.pp

    @property
    def experts_over(self) -> int:
        """Ranks that share the experts: `ep`, or all of a stage."""
        return self.ep or self.stage_ranks

    def coordinates(self, rank: int) -> dict[str, int]:
        """Place of a rank in the grid, by dimension; with `ep` and `edp`, its place among the experts."""
        coordinates, rest = {}, rank
        for name in reversed(DIMENSIONS):
            rest, coordinates[name] = divmod(rest, getattr(self, name))
        coordinates["edp"], coordinates["ep"] = divmod(rank % self.stage_ranks, self.experts_over)
        return coordinates

    def groups(self, *names: str) -> list[list[int]]:
        """Ranks that differ in these dimensions alone, one list a group, ascending.

        Args:
            names: of DIMENSIONS, or one of "ep" (ranks that share the experts) and "edp" (ranks with the
                same experts).
        """
        if names in (("ep",), ("edp",)):
            return self._expert_groups(names[0])
        sizes = {name: range(getattr(self, name)) for name in DIMENSIONS}
        fixed_names = [name for name in DIMENSIONS if name not in names]
        groups = []
        for fixed in product(*(sizes[name] for name in fixed_names)):
            inside = product(*(sizes[name] for name in DIMENSIONS if name in names))
            varied = [name for name in DIMENSIONS if name in names]
            groups.append(
                [
                    self._rank(
                        dict(zip(fixed_names, fixed, strict=True))
                        | dict(zip(varied, coordinates, strict=True))
                    )
                    for coordinates in inside
                ]
            )
        return groups

    def _rank(self, coordinates: dict[str, int]) -> int:
        rank = 0
        for name in DIMENSIONS:
            rank = rank * getattr(self, name) + coordinates[name]
        return rank

    def _expert_groups(self, name: str) -> list[list[int]]:
        groups: dict[tuple[int, int], list[int]] = {}
        fixed_name = "edp" if name == "ep" else "ep"
        for rank in range(self.ranks):
            coordinates = self.coordinates(rank)
            groups.setdefault((coordinates["pp"], coordinates[fixed_name]), []).append(rank)
        return list(groups.values())

    def chunks(self, layers: int) -> list[range]:
        """Layers of each model chunk in the order of the model: chunk c lies on stage c % pp.

        Raises:
            TracelensError: `pp_layout` has another number of chunks or layers; fewer layers than chunks.
        """
        count = self.pp * self.vpp
        if self.pp_layout:
            try:
                shares = [int(text) for text in self.pp_layout.split(",")]
            except ValueError:
                raise TracelensError(
                    f"pp_layout must be layers a chunk, as in 3,4,4,3, not {self.pp_layout!r}"
                ) from None
            if len(shares) != count or sum(shares) != layers or min(shares) < 0:
                raise TracelensError(
                    f"pp_layout {self.pp_layout} must be {count} counts (pp x vpp), {layers} layers together"
                )
        else:
            if layers < count:
                raise TracelensError(f"{layers} layers are too few for {count} chunks (pp x vpp)")
            shares = [layers // count + (chunk < layers % count) for chunk in range(count)]
        ends = accumulate(shares)
        return [range(end - share, end) for end, share in zip(ends, shares, strict=True)]
