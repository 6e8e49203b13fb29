"""What an op has to do: FLOPs and bytes from its arguments. Costs know no hardware.

One module a family of ops; a cost model is a function from `OpCall` to `OpCost`, registered under the names
of the ops it can count:

    @cost("aten::mm", "mylib::gemm*")
    def gemm(call: OpCall) -> OpCost: ...

Conventions, the same in every family:

- A multiply-add is 2 FLOPs. Work whose count depends on the implementation (exponentials, comparisons) is
  1 FLOP an element and operation.
- Bytes are the least that must move: every tensor argument once, results once. What a cache, a second pass
  or a workspace adds is the implementation's business, and shows as lost efficiency.
- What cannot be counted raises `Uncounted` with what the trace lacks; nothing is guessed.

Besides ops there are calls that the roofline makes up for work without a usable op:
`memcpy::htod` and its like (one argument: the bytes, u8), `collective::NAME` (two arguments: what goes in
and what comes out of a rank; values: see collective.py), and `kernel::NAME` (no arguments; `blocks` set).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal, NamedTuple

from tracelens.costs.call import OpCall, Tensor, Uncounted
from tracelens.guard import Failure, guard
from tracelens.registry import Registry

__all__ = ["COSTS", "CostModel", "OpCall", "OpCost", "Tensor", "Uncounted", "cost", "find"]

Engine = Literal["matrix", "vector"]
Link = Literal["", "host", "gpu"]


class OpCost(NamedTuple):
    """What one call must do at least.

    Attributes:
        flops: floating-point (or integer) operations.
        read_bytes, write_bytes: bytes between memory and compute units.
        dtype: element type the operations are done in, which decides the peak.
        engine: matrix units or vector units.
        link: the work goes over a link and is limited by it: between GPUs ("gpu") or to the host ("host").
        link_bytes: bytes one device sends, or receives if that is more, over that link.
        dims: named sizes that explain the numbers, such as (("M", 4096), ("N", 11008), ("K", 4096)).
        note: what a reader must know about the count ("half of it masked", "upper bound"), or "".
    """

    flops: int
    read_bytes: int
    write_bytes: int
    dtype: str
    engine: Engine = "vector"
    link: Link = ""
    link_bytes: int = 0
    dims: tuple[tuple[str, int], ...] = ()
    note: str = ""


@dataclass(frozen=True)
class CostModel:
    """A registered cost model.

    Attributes:
        name: of the op, or a pattern.
        function: what counts.
        forward: whether it needs the arguments of the op's forward op too.
        batch: whether it needs the lengths of the serving step's requests too.
        engine: "vector" where nothing it counts ever runs on matrix units.
        inner: whether it needs the ops that the op called too.
    """

    name: str
    function: Callable[[OpCall], OpCost]
    forward: bool = False
    batch: bool = False
    engine: Engine = "matrix"
    inner: bool = False

    @property
    def may_multiply(self) -> bool:
        """Whether what it counts may run on matrix units."""
        return self.engine == "matrix"

    def count(self, call: OpCall) -> OpCost:
        """What a call must do at least.

        Raises:
            Uncounted: the trace lacks something, or the model failed.
        """
        counted = guard(f"cost model {self.name}", self.function, call)
        if isinstance(counted, Failure):
            raise Uncounted(counted)
        return counted

    @property
    def doc(self) -> str:
        return (self.function.__doc__ or "").strip().partition("\n")[0]


COSTS: Registry[CostModel] = Registry("cost", "tracelens.costs")

CostFunction = Callable[[OpCall], OpCost]


def cost(
    *names: str, forward: bool = False, batch: bool = False, engine: Engine = "matrix", inner: bool = False
) -> Callable[[CostFunction], CostFunction]:
    """Register a cost model for ops.

    Args:
        names: op names as they stand in traces; `*` stands for any text. A name without a star is preferred,
            then the pattern with the most letters.
        forward: a backward op whose own arguments do not say enough: `call.forward` is then the forward op.
        batch: its arguments do not say how long the sequences are; `call.batch` is then that of the serving
            step around it, where it is labeled.
        engine: "vector" where no part of the op can run on matrix units. Reports of matrix FLOPs then do not
            count its calls, which saves most of their time.
        inner: its own arguments do not say enough: `call.inner` is then what it called. Calls with the same
            arguments, kernel and grid are taken to have called the same.
    """

    def keep(function: CostFunction) -> CostFunction:
        for name in names:
            model = CostModel(name, function, forward, batch, engine, inner)
            COSTS.add(name, model, f"{function.__module__}.{function.__name__}")
        # A notebook may register a model after the first analysis.
        _models.cache_clear()
        find.cache_clear()
        return function

    return keep


@cache
def find(name: str) -> CostModel | None:
    """The cost model for an op of this name, None where there is none."""
    exact, patterns = _models()
    if name in exact:
        return exact[name]
    return next((model for model in patterns if fnmatchcase(name, model.name)), None)


@cache
def _models() -> tuple[dict[str, CostModel], list[CostModel]]:
    models = [model for _, model in COSTS.items()]
    patterns = sorted((model for model in models if "*" in model.name), key=lambda model: -len(model.name))
    return {model.name: model for model in models if "*" not in model.name}, patterns
