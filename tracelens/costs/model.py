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

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from functools import cache
from itertools import compress
from math import prod
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from tracelens.costs.sizes import Differ, Sizes, each, merged
from tracelens.dtypes import BITS
from tracelens.errors import TracelensError
from tracelens.guard import Failure, guard
from tracelens.limits import MOST_DIMENSIONS, MOST_ELEMENTS
from tracelens.registry import Registry

Engine = Literal["matrix", "vector"]
Link = Literal["", "host", "gpu"]


UPPER_BOUND = "upper bound"
"""What the note of a cost says where the call may compute or move less than was counted."""


class OpCost(NamedTuple):
    """What one call must do at least."""

    flops: int  # floating-point (or integer) operations
    read_bytes: int  # bytes between memory and compute units
    write_bytes: int  # bytes between memory and compute units
    dtype: str  # element type the operations are done in, which decides the peak
    engine: Engine = "vector"  # matrix units or vector units
    # the work goes over a link and is limited by it: between GPUs ("gpu") or to the host ("host")
    link: Link = ""
    link_bytes: int = 0  # bytes one device sends, or receives if that is more, over that link
    # named sizes that explain the numbers, such as (("M", 4096), ("N", 11008), ("K", 4096))
    dims: tuple[tuple[str, int], ...] = ()
    note: str = ""  # what a reader must know about the count ("half of it masked", "upper bound"), or ""


class CostModel(Struct, frozen=True):
    """A registered cost model."""

    name: str  # of the op, or a pattern
    function: Callable[[OpCall], OpCost]  # what counts
    forward: bool = False  # whether it needs the arguments of the op's forward op too
    batch: bool = False  # whether it needs the lengths of the serving step's requests too
    inner: bool = False  # whether it needs the ops that the op called too
    groups: bool = False  # whether it needs how many rows of a buffer lie in a group too

    def count(self, call: OpCall) -> OpCost:
        """What a call must do at least.

        Raises:
            Uncounted: the trace lacks something, or the model failed.
        """
        counted = guard(f"cost model {self.name}", self.function, call)
        if isinstance(counted, Failure):
            raise Uncounted(counted)
        return counted

    def count_alike(self, call: OpCall, shapes: Sequence[Any], blocks: Sequence[int]) -> list[OpCost | str]:
        """What calls must do that differ from `call` in their sizes and their kernel's blocks alone.

        Or the reason why that is not known: kept exceptions would keep the whole trace in memory.

        Args:
            call: one of them.
            shapes: of each.
            blocks: of each.
        """
        # What a call called differs in more than sizes, and plugins were written for integers.
        if len(shapes) >= _FEW and self._is_bundled and not self.inner:
            try:
                cost = self.function(call._replace(shapes=merged(shapes), blocks=merged(blocks)))
                return [OpCost(*of_call) for of_call in each(cost, len(shapes))]
            except Differ as differ:
                yes, no = (
                    iter(self.count_alike(call, [*compress(shapes, part)], [*compress(blocks, part)]))
                    for part in (differ.answers, [not answer for answer in differ.answers])
                )
                return [next(yes if answer else no) for answer in differ.answers]
            except Uncounted as why:
                return [why.reason] * len(shapes)
            except _FAILURES:  # the model does more with a size than calculate, or has a bug
                pass
        counted: list[OpCost | str] = []
        for of_call in zip(shapes, blocks, strict=True):
            try:
                counted.append(self.count(call._replace(shapes=of_call[0], blocks=of_call[1])))
            except Uncounted as why:
                counted.append(why.reason)
        return counted

    @property
    def _is_bundled(self) -> bool:
        return self.function.__module__.startswith("tracelens.")

    @property
    def doc(self) -> str:
        return (self.function.__doc__ or "").strip().partition("\n")[0]


COSTS: Registry[CostModel] = Registry("cost", "tracelens.costs")

_FEW = 4
"""Fewer calls than this are counted one by one."""
_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)

NO_SHAPES = "no shapes recorded (record_shapes=True)"
LONG_LIST = "a list of more than 30 tensors: the profiler records no shapes for it"


class Uncounted(TracelensError):
    """This call cannot be counted; the message says what the trace lacks, without a name or a full stop."""

    @property
    def reason(self) -> str:
        """The message; where it is the failure of a cost model, that Failure."""
        message = self.args[0]
        return message if isinstance(message, Failure) else str(self)


class Tensor(NamedTuple):
    """A tensor argument."""

    shape: tuple[int, ...]  # its dimensions
    dtype: str  # short name, as in `dtypes`
    stored: int  # elements that lie in memory: an expanded dimension (stride 0) counts once

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes in memory; raises Uncounted for an unknown element type."""
        return size(self.stored, self.dtype)

    @property
    def dense_bytes(self) -> int:
        """Bytes of a new tensor of this shape and type; raises Uncounted for an unknown element type."""
        return size(self.numel, self.dtype)


def size(elements: int, dtype: str) -> int:
    """Bytes of so many elements, rounded up; raises Uncounted for an unknown element type."""
    if dtype not in BITS:
        raise Uncounted(f"unknown element type {dtype!r}" if dtype else "no element type recorded")
    return -(-elements * BITS[dtype] // 8)


class Lengths(NamedTuple):
    """Lengths of a batch's requests, as sums over them: what attention over a cache of keys depends on."""

    queries: int  # of the query lengths
    keys: int  # of the key lengths, the cache's and the queries' own
    squares: int  # of the squared query lengths
    products: int  # of query length times key length

    @property
    def is_consistent(self) -> bool:
        """Whether requests with such sums can exist, each with at least as many keys as queries."""
        queries, keys, squares, products = self
        return 0 <= queries <= keys and queries <= squares <= products <= queries * keys


class ServingBatch(NamedTuple):
    """The requests that one serving step serves: those in prefill, and those that decode."""

    prefill: Lengths
    decode: Lengths


class OpCall(NamedTuple):
    """One call of an op."""

    name: str  # of the op
    # one entry an argument: dimensions of a tensor, a list of dimensions for a list of tensors, [] for
    # anything else
    shapes: Sequence[Any] = ()
    # short element type of each tensor argument, "" for anything else and for lists of tensors
    dtypes: Sequence[str] = ()
    values: Sequence[str] = ()  # each scalar argument as text, "" for anything else
    strides: Sequence[Any] = ()  # like shapes; may be empty
    kernel: str = ""  # name of the GPU kernel that the call spends its time in, "" where not known
    blocks: int = -1  # thread blocks of that kernel, -1 where not known
    forward: OpCall | None = None  # for backward ops, the forward op where the trace has it
    batch: ServingBatch | None = None  # of the serving step that the call is in, where its label gives one
    inner: tuple[OpCall, ...] = ()  # the recorded ops that it called, in order, for models that need them
    # name and thread blocks (-1: not known) of its own kernels, in order, for the same models
    launches: tuple[tuple[str, int], ...] = ()
    is_replayed: bool = False  # a graph runs it: its arguments are those of the capture or of an eager run
    # rows of a buffer to how many of them lie in a group, where that was recorded, for models that need it
    group_rows: Mapping[int, int] = {}

    def has(self, index: int) -> bool:
        """Whether argument `index` is a tensor."""
        return 0 <= index < len(self.dtypes) and bool(self.dtypes[index])

    def tensor(self, index: int) -> Tensor:
        """Tensor argument `index`; raises Uncounted where it is none or was not recorded."""
        if not self.shapes:
            raise Uncounted(NO_SHAPES)
        if not self.has(index):
            raise Uncounted(f"argument {index} is not a recorded tensor")
        return self._tensor(index)

    def tensors(self, least: int = 1) -> list[Tensor]:
        """All tensor arguments in order, without those in lists; raises Uncounted where there are fewer."""
        tensors = [self._tensor(index) for index, dtype in enumerate(self.dtypes) if dtype]
        if not tensors:
            raise Uncounted(NO_SHAPES)
        if len(tensors) < least:
            raise Uncounted(f"{len(tensors)} recorded tensors instead of {least}")
        return tensors

    def bytes(self, *indices: int) -> int:
        """Bytes of the tensors among these arguments."""
        return sum(self.tensor(index).bytes for index in indices if self.has(index))

    def of_forward(self) -> OpCall:
        """The forward op; raises Uncounted where the trace lacks it."""
        if self.forward is None:
            raise Uncounted("its forward op is not in the trace")
        return self.forward

    def listed(self, index: int, dtype: str) -> list[Tensor]:
        """The tensors in list argument `index`, taken to be of `dtype`, which the profiler does not record.

        Raises:
            Uncounted: the list is missing, or too long for the profiler.
        """
        if not self.shapes:
            raise Uncounted(NO_SHAPES)
        shapes = self.shapes[index] if index < len(self.shapes) else []
        if not shapes or not isinstance(shapes[0], list):
            raise Uncounted(LONG_LIST)
        return [Tensor(shape, dtype, prod(shape)) for shape in map(_dimensions, shapes)]

    def in_groups(self, tensor: Tensor, dim: int) -> Tensor:
        """The part of a tensor that lies in groups: all of it where nothing else was recorded."""
        rows: Any = tensor.shape[dim]
        known = self.group_rows
        if not known:
            return tensor
        filled: Any = (
            Sizes([known.get(size, size) for size in rows.each])
            if isinstance(rows, Sizes)
            else known.get(rows, rows)
        )
        if filled == rows:
            return tensor
        shape = (*tensor.shape[:dim], filled, *tensor.shape[dim + 1 :])
        return Tensor(shape, tensor.dtype, prod(shape))

    def text(self, index: int) -> str:
        """Scalar argument `index` as recorded, "" where it was not."""
        return self.values[index] if 0 <= index < len(self.values) else ""

    def flag(self, index: int, default: bool = False) -> bool:
        text = self.text(index).lower()
        return text == "true" if text in ("true", "false") else default

    def integer(self, index: int, default: int | None = None) -> int:
        """Integer argument `index`; raises Uncounted where it was not recorded and has no default."""
        number = _parsed_integer(self.text(index))
        if number is not None:
            return number
        if default is None:
            raise Uncounted(f"argument {index} has no recorded value")
        return default

    def integers(self, index: int) -> list[int]:
        """Argument `index` as list of integers ("[1, 1]"), empty where it was not recorded."""
        words = self.text(index).strip("[]()").replace(",", " ").split()
        numbers = [number for word in words if (number := _parsed_integer(word)) is not None]
        return numbers if len(numbers) == len(words) else []

    def flags(self, index: int, count: int) -> list[bool]:
        """Argument `index` as a list of so many truth values, empty where it was not recorded as one."""
        words = [word.strip().lower() for word in self.text(index).strip("[]").split(",")]
        return [word == "true" for word in words] if len(words) == count else []

    def _tensor(self, index: int) -> Tensor:
        dims = _dimensions(self.shapes[index] if index < len(self.shapes) else [])
        stored = prod(dims)
        if index < len(self.strides):
            strides = self.strides[index]
            if strides and isinstance(strides, list | tuple) and len(strides) == len(dims):
                stored = prod(dim for dim, stride in zip(dims, strides, strict=True) if stride)
        return Tensor(dims, self.dtypes[index], stored)


def _parsed_integer(text: str) -> int | None:
    """The integer that `text` is, None where it is none or beyond 64 bits."""
    digits = text.removeprefix("-")
    return int(text) if len(digits) < 20 and digits.isascii() and digits.isdigit() else None


def _dimensions(shape: Any) -> tuple[int, ...]:
    if type(shape) is list or type(shape) is tuple:
        for dim in shape:
            if (type(dim) is not int and type(dim) is not Sizes) or dim < 0:
                break
        else:
            if len(shape) > MOST_DIMENSIONS or _elements(shape) > MOST_ELEMENTS:
                raise Uncounted(f"a recorded shape is larger than any tensor: {str(shape)[:40]}")
            return tuple(shape)
    raise Uncounted(f"a recorded shape is not a list of sizes: {str(shape)[:40]}")


def _elements(shape: Sequence[int]) -> int:
    """Elements of a tensor, as if no size were 0."""
    return prod(shape) or prod(size or 1 for size in shape)


CostFunction = Callable[[OpCall], OpCost]


def cost(
    *names: str,
    forward: bool = False,
    batch: bool = False,
    inner: bool = False,
    groups: bool = False,
) -> Callable[[CostFunction], CostFunction]:
    """Register a cost model for ops.

    Args:
        names: op names as they stand in traces; `*` stands for any text. A name without a star is preferred,
            then the pattern with the most letters.
        forward: a backward op whose own arguments do not say enough: `call.forward` is then the forward op.
        batch: its arguments do not say how long the sequences are; `call.batch` is then that of the serving
            step around it, where it is labeled.
        inner: its own arguments do not say enough: `call.inner` is then what it called. Calls with the same
            arguments, kernel and grid are taken to have called the same.
        groups: its rows are cut into groups, and those behind the last one are left out: `call.in_groups`
            then says how many lie in a group, where that was recorded.
    """

    def keep(function: CostFunction) -> CostFunction:
        for name in names:
            model = CostModel(name, function, forward, batch, inner, groups)
            COSTS.add(name, model, f"{function.__module__}.{function.__name__}")
        # A notebook may register a model after the first analysis.
        _models.cache_clear()
        find.cache_clear()
        return function

    return keep


@cache
def find(name: str) -> CostModel | None:
    """The cost model for an op of this name, None where there is none."""
    exact, patterns, any_of_them = _models()
    if name in exact:
        return exact[name]
    match = any_of_them.match(name)
    return patterns[match.lastindex - 1] if match and match.lastindex else None


@cache
def _models() -> tuple[dict[str, CostModel], list[CostModel], re.Pattern[str]]:
    """Models by name; those of a pattern, the longest first; and all patterns as groups of one."""
    models = [model for _, model in COSTS.items()]
    patterns = sorted((model for model in models if "*" in model.name), key=lambda model: -len(model.name))
    any_of_them = "|".join(f"({translate(model.name)})" for model in patterns)
    return {model.name: model for model in models if "*" not in model.name}, patterns, re.compile(any_of_them)
