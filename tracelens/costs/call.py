"""`OpCall`: one call of an op as its trace recorded it, with readers that fail in one way."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from tracelens.dtypes import BITS
from tracelens.errors import TracelensError
from tracelens.guard import Failure
from tracelens.limits import MOST_DIMENSIONS, MOST_ELEMENTS

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
    """A tensor argument.

    Attributes:
        shape: its dimensions.
        dtype: short name, as in `dtypes`.
        stored: elements that lie in memory: an expanded dimension (stride 0) counts once.
    """

    shape: tuple[int, ...]
    dtype: str
    stored: int

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
    """Lengths of a batch's requests, as sums over them: what attention over a cache of keys depends on.

    Attributes:
        queries: of the query lengths.
        keys: of the key lengths, the cache's and the queries' own.
        squares: of the squared query lengths.
        products: of query length times key length.
    """

    queries: int
    keys: int
    squares: int
    products: int

    @property
    def is_consistent(self) -> bool:
        """Whether requests with such sums can exist, each with at least as many keys as queries."""
        queries, keys, squares, products = self
        return 0 <= queries <= keys and queries <= squares <= products <= queries * keys


class Batch(NamedTuple):
    """The requests that one serving step serves: those in prefill, and those that decode."""

    prefill: Lengths
    decode: Lengths


class OpCall(NamedTuple):
    """One call of an op.

    Attributes:
        name: of the op.
        shapes: one entry an argument: dimensions of a tensor, a list of dimensions for a list of tensors,
            [] for anything else.
        dtypes: short element type of each tensor argument, "" for anything else and for lists of tensors.
        values: each scalar argument as text, "" for anything else.
        strides: like shapes; may be empty.
        kernel: name of the GPU kernel that the call spends its time in, "" where not known.
        blocks: thread blocks of that kernel, -1 where not known.
        forward: for backward ops, the forward op where the trace has it.
        batch: of the serving step that the call is in, where its label gives one.
        inner: the recorded ops that it called, in order, for models that need them.
        launches: name and thread blocks (-1: not known) of its own kernels, in order, for the same models.
        is_replayed: a graph runs it: its arguments are those of the capture or of an eager run.
    """

    name: str
    shapes: Sequence[Any] = ()
    dtypes: Sequence[str] = ()
    values: Sequence[str] = ()
    strides: Sequence[Any] = ()
    kernel: str = ""
    blocks: int = -1
    forward: OpCall | None = None
    batch: Batch | None = None
    inner: tuple[OpCall, ...] = ()
    launches: tuple[tuple[str, int], ...] = ()
    is_replayed: bool = False

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

    def tensors(self) -> list[Tensor]:
        """All tensor arguments in order, without those in lists; raises Uncounted where none was recorded."""
        tensors = [self._tensor(index) for index, dtype in enumerate(self.dtypes) if dtype]
        if not tensors:
            raise Uncounted(NO_SHAPES)
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
        strides = self.strides[index] if index < len(self.strides) else ()
        stored = prod(dims)
        if strides and isinstance(strides, list | tuple) and len(strides) == len(dims):
            stored = prod(dim for dim, stride in zip(dims, strides, strict=True) if stride)
        return Tensor(dims, self.dtypes[index], stored)


def _parsed_integer(text: str) -> int | None:
    """The integer that `text` is, None where it is none or beyond 64 bits."""
    digits = text.removeprefix("-")
    return int(text) if len(digits) < 20 and digits.isascii() and digits.isdigit() else None


_INT = {int}
_LISTS = (list, tuple)


def _dimensions(shape: Any) -> tuple[int, ...]:
    if type(shape) in _LISTS and (not shape or (set(map(type, shape)) == _INT and min(shape) >= 0)):
        if len(shape) > MOST_DIMENSIONS or prod(size or 1 for size in shape) > MOST_ELEMENTS:
            raise Uncounted(f"a recorded shape is larger than any tensor: {str(shape)[:40]}")
        return tuple(shape)
    raise Uncounted(f"a recorded shape is not a list of sizes: {str(shape)[:40]}")
