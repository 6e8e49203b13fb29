"""The arguments of a call as they stand in a script: read strictly, completed, with values, and scaled down.

Nothing recorded is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod
from typing import Any

import numpy as np

from tracelens.arrays import Int
from tracelens.dtypes import element_bytes, torch_dtype
from tracelens.errors import TracelensError
from tracelens.read import NotedArgument, NotedCall, NotedFile
from tracelens.trace import Trace, Work, decoded

NUMBERS = ("float64", "int64", "bool", "complex128")
"""Element types of Python numbers, which the profiler shows as tensors without dimensions."""
OP = re.compile(r"[A-Za-z_]\w{0,63}::[A-Za-z_]\w{0,127}", re.ASCII)
"""Names that torch registers ops under."""
RECORDED = ("shapes", "dtypes", "strides", "values")
"""Columns of the ops table that say what an op was called with."""
NO_SHAPES = "argument shapes missing; record with record_shapes=True"
LONG_LIST = "a list of more than 30 tensors: the profiler records no shapes for it"
PROFILED = 30
"""Tensors in a list whose shapes the profiler records."""
_LARGEST = 1 << 40  # elements of a tensor at most
_LONGEST = 1 << 14  # tensors of a list at most
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_FLOAT = re.compile(r"-?([0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(e[+-]?[0-9]{1,3})?|-?inf|nan")
_LIST = "TensorList"
_VALUES = ("Scalar", "ScalarList", "GenericList", "", "None")
INDICES_UNKNOWN = "the profiler does not record index tensor lists (Tensor?[])"
GROUP_SIZES = "group sizes live on the GPU and are not in the trace: each row is in a random group"
# Sizes up to this are not scaled: heads, experts, kernels and groups, which have to fit each other.
SMALL = 64
# The sizes of an image depend on each other through strides and padding; its batch does not.
_IMAGE = re.compile(r"conv|pool|upsample|group_norm|pixel|grid_sampl|unfold|im2col")
INDEXED = ("aten::index", "aten::_unsafe_index")
_ROWS = re.compile(r"vectorized_gather_kernel<(\d{1,3})[,>]")
_ELEMENTS = re.compile(r"index_elementwise_kernel<(\d{1,4}), (\d{1,2})[,>]")
_THREADS = 256


class Unreplayable(TracelensError):
    """No script can be made of this call; the message says why, without a name or a full stop."""


class NotedCalls:
    """What is known of the calls of a run beyond its traces, by op and shapes."""

    def __init__(self) -> None:
        self.cuts: list[str] = []  # what files lack, in their words
        self.sources: dict[str, str] = {}  # of generated kernels, which tracelens did not write
        self.generated: dict[str, NotedCall] = {}  # kernels by name, each as most of its calls are
        self._calls: dict[object, list[NotedCall]] = {}

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    def read(self, content: bytes) -> None:
        """Add those of a file; raises TracelensError for one that the recorder did not write."""
        file = NotedFile.read(content)
        self.cuts += [file.cut[:200]] if file.cut else []
        self.sources |= file.sources
        for call in file.calls:
            if call.source in file.sources:
                known = self.generated.get(call.op)
                if known is None or known.count < call.count:
                    self.generated[call.op] = call
                continue
            shapes = [
                (argument.shape, argument.dtype) if argument and argument.dtype else None
                for argument in call.arguments
            ]
            self._calls.setdefault(_noted_key(call.op, shapes), []).append(call)

    def of(self, op: str, shapes: str, dtypes: str) -> NotedCall | None:
        """The call that stands for those of a trace: of several the middle one by what they work on."""
        if not self._calls:
            return None
        types, dims = decoded(dtypes) or [], decoded(shapes) or []
        tensor_shapes: list[tuple[tuple[int, ...], str] | None] = []
        for index, name in enumerate(types):
            dim = _element(dims, index)
            is_tensor = name not in (_LIST, *_VALUES) and all(isinstance(size, int) for size in dim)
            tensor_shapes.append((tuple(dim), torch_dtype(str(name))) if is_tensor else None)
        calls = [
            call
            for call in self._calls.get(_noted_key(op, tensor_shapes), [])
            if len(call.arguments) <= len(types)
            and all(
                _lists_agree(_element(dims, index), argument)
                for index, argument in enumerate(call.arguments)
                if types[index] == _LIST
            )
        ]
        calls.sort(key=lambda call: sum(argument.work for argument in call.arguments if argument))
        middle = sum(call.count for call in calls) / 2
        for call in calls:
            middle -= call.count
            if middle <= 0:
                return call
        return None


def _noted_key(op: str, tensor_shapes: Sequence[tuple[tuple[int, ...], str] | None]) -> object:
    """What tells calls of an op apart: shapes and types of tensors; a number may look like a tensor.

    Kernels belong to ops below those that the recorder sees, which have the same arguments.
    """
    op = op.removesuffix("_").replace("_index_put_impl", "index_put")
    shapes = [
        (index, tensor)
        for index, tensor in enumerate(tensor_shapes)
        if tensor is not None and (tensor[0] or tensor[1] not in NUMBERS)
    ]
    return op, tuple(shapes)


def _lists_agree(dims: Any, noted: NotedArgument | None) -> bool:
    if not dims:  # longer than the profiler records, or of types that it does not
        listed = noted.tensors if noted else ()
        count = sum(run.count for run in listed)
        return count > PROFILED or not count or not all(run.dtype for run in listed)
    shapes = [run.shape for run in noted.tensors for _ in range(min(run.count, 64))] if noted else []
    return [tuple(dim) if isinstance(dim, list) else dim for dim in dims] == shapes


@dataclass(frozen=True)
class TensorArgument:
    """A tensor argument."""

    dtype: str  # torch's name of the element type
    shape: tuple[int, ...]  # in elements
    stride: tuple[int, ...]  # in elements
    maker: str = "strided"  # the function of a script that makes it, see templates/inputs.py.j2
    maker_args: tuple[Any, ...] = ()  # what that function is given beyond type, shape and strides
    noted: NotedArgument | None = None  # what the recorder noted of it

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def is_dense(self) -> bool:
        """Whether its strides follow from its shape and are not said."""
        return self.stride == dense(self.shape)

    def made(self, maker: str, *maker_args: Any) -> TensorArgument:
        return replace(self, maker=maker, maker_args=maker_args)


Argument = TensorArgument | list[Any] | bool | int | float | str | None
"""One argument of a call. None is what was not recorded, or None; text is never the trace's."""


def read_arguments(
    shapes: str, dtypes: str, strides: str, values: str, of_lists: str, noted: NotedCall | None = None
) -> list[Argument]:
    """The arguments of a call, from the texts of the ops table and what the recorder noted.

    Raises:
        Unreplayable: something is missing, or is nothing that a call can take.
    """
    types, dims = decoded(dtypes), decoded(shapes)
    steps, texts = decoded(strides), decoded(values)
    if not types or not dims:
        raise Unreplayable(NO_SHAPES)
    arguments: list[Argument] = []
    for index, name in enumerate(types):
        dim, step = _element(dims, index), _element(steps, index)
        known = noted.arguments[index] if noted and index < len(noted.arguments) else None
        if known and known.tensors and (name == _LIST or name in _VALUES):
            arguments.append(noted_list(known))
        elif name == _LIST:
            if not isinstance(dim, list) or not all(isinstance(sizes, list) for sizes in dim):
                raise Unreplayable("a tensor list without a list of shapes")
            if not dim and index == 0:  # what an op works on is never empty
                raise Unreplayable(LONG_LIST)
            arguments.append(
                [_tensor_argument(of_lists, sizes, _element(step, item)) for item, sizes in enumerate(dim)]
            )
        elif name in _VALUES:
            text = str(_element(texts, index)).strip()
            if text in ("", "None"):
                value = known.value if known else None
                arguments.append([*value] if isinstance(value, tuple) else value)
            elif text.startswith("[") and text.endswith("]"):
                words = [word.strip() for word in text[1:-1].split(",") if word.strip()]
                arguments.append([_number(word, index) for word in words])
            else:
                arguments.append(_number(text, index))
        else:
            dtype = torch_dtype(str(name))
            if not dtype:
                raise Unreplayable(f"element type {str(name)[:40]!r} is not supported for tensors")
            arguments.append(replace(_tensor_argument(dtype, dim, step), noted=known))
    if not tensors(arguments):
        raise Unreplayable(LONG_LIST if _LIST in types else "no tensor among its recorded arguments")
    return arguments


def noted_list(noted: NotedArgument) -> list[TensorArgument | None]:
    """The tensors of a list as the recorder noted them; raises as `read_arguments`."""
    if sum(run.count for run in noted.tensors) > _LONGEST:
        raise Unreplayable(f"a list of over {_LONGEST:,} tensors")
    return [
        tensor for run in noted.tensors for tensor in [noted_tensor(run) if run.dtype else None] * run.count
    ]


def noted_tensor(noted: NotedArgument) -> TensorArgument:
    """A tensor as the recorder noted it; raises as `read_arguments`."""
    dtype = torch_dtype(noted.dtype)
    if not dtype:
        raise Unreplayable(f"element type {noted.dtype!r} is not supported for tensors")
    return replace(_tensor_argument(dtype, list(noted.shape), list(noted.stride or ())), noted=noted)


def tensors(arguments: Sequence[Argument]) -> list[TensorArgument]:
    """All tensors, also those in lists."""
    return [
        tensor
        for argument in arguments
        for tensor in (argument if isinstance(argument, list) else [argument])
        if isinstance(tensor, TensorArgument)
    ]


def same_tensors(arguments: Sequence[Argument], noted: NotedCall | None) -> list[tuple[int, int]]:
    """Pairs of arguments that are the same tensor or list: the number of a later one, and of the first."""
    listed = noted.arguments[: len(arguments)] if noted else ()
    return [
        (index, known.same)
        for index, known in enumerate(listed)
        if known and known.same is not None and known.same < index
        and arguments[index] is not None
        and _like(arguments[index]) == _like(arguments[known.same])
    ]  # fmt: skip


def _like(argument: Argument) -> object:
    """What the same tensors share."""
    if isinstance(argument, list):
        return [_like(item) for item in argument]
    if isinstance(argument, TensorArgument):
        return argument.dtype, argument.shape, argument.stride
    return argument


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    return tuple(prod(max(size, 1) for size in shape[dim + 1 :]) for dim in range(len(shape)))


def _tensor_argument(dtype: str, dim: Any, step: Any) -> TensorArgument:
    shape = _sizes(dim)
    stride = _sizes(step) if step else dense(shape)
    if len(stride) != len(shape):
        raise Unreplayable("a tensor with a different number of strides and dimensions")
    if max(prod(shape), _extent(shape, stride)) > _LARGEST:
        raise Unreplayable("a tensor larger than any memory: the recorded sizes are wrong")
    return TensorArgument(dtype, shape, stride)


def _sizes(value: Any) -> tuple[int, ...]:
    """A list of sizes; older profilers wrote them as text."""
    if isinstance(value, list) and all(_INTEGER.fullmatch(str(size)) for size in value):
        sizes = tuple(int(size) for size in value)
        if min(sizes, default=0) >= 0 and len(sizes) <= 32:
            return sizes
    raise Unreplayable(f"a recorded shape is not a list of sizes: {str(value)[:40]}")


def _number(word: str, index: int) -> bool | int | float:
    if word in ("True", "False"):
        return word == "True"
    if _INTEGER.fullmatch(word):
        return int(word)
    if _FLOAT.fullmatch(word):
        return float(word)
    raise Unreplayable(f"argument {index} has the value {word[:40]!r}, not a number")


def _element(values: Any, index: int) -> Any:
    return values[index] if isinstance(values, list) and index < len(values) else []


# ====================
# What the values of inputs have to be for an op to accept them: indices in range, groups that add up.
# They are not in a trace. Most ops take any; for the others this says which function of a script makes them.

Rule = Callable[[list[Argument]], None]


def fill(op: str, arguments: Sequence[Argument]) -> list[Argument]:
    """The arguments with what makes the values of each tensor.

    Raises:
        Unreplayable: the trace does not say enough.
    """
    filled = list(arguments)
    for position, argument in enumerate(filled):
        # A tensor without dimensions that is not the first argument is a Python number, by its type.
        if (
            position
            and isinstance(argument, TensorArgument)
            and argument.dtype in NUMBERS
            and not argument.shape
        ):
            value = argument.noted.value if argument.noted else None
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
            filled[position] = argument.made("number", *([value] if is_number else []))
    name = op.removeprefix("aten::")
    if name != op:
        name = name if name.startswith("__") else name.removesuffix("_")  # the mark of the in-place variant
        if name in _RULES:
            _RULES[name](filled)
        ends = _GROUPED.get(name)
        if ends is not None and ends < len(filled) and isinstance(filled[ends], TensorArgument):
            # It holds where each group's rows end; layouts: costs/gemm.py.
            first, second = _tensor_at(filled, 0).shape, _tensor_at(filled, 1).shape
            if not {len(first), len(second)} <= {2, 3}:
                raise Unreplayable("a grouped GEMM takes tensors of two or three dimensions")
            rows = second[-1] if len(first) == 3 else first[-2 if len(second) == 3 else -1]
            groups = _tensor_at(filled, ends).numel
            if name in _IN_STEPS:
                _set(filled, ends, "ends", _even(rows, groups))
            else:
                _set(filled, ends, "routed", rows, groups)
    return [
        [_as_noted(item) for item in argument] if isinstance(argument, list) else _as_noted(argument)
        for argument in filled
    ]


def _as_noted(argument: Argument) -> Argument:
    """A tensor with groups and indices as the recorder noted them, where they fit what the call needs."""
    if not isinstance(argument, TensorArgument) or argument.noted is None:
        return argument
    noted, tensor, given = argument.noted, replace(argument, noted=None), argument.maker_args
    if tensor.maker in ("routed", "ends") and noted.sizes:
        rows, groups = given if tensor.maker == "routed" else (sum(given[0]), len(given[0]))
        if len(noted.sizes) == groups and sum(noted.sizes) <= rows:
            return tensor.made("ends", list(noted.sizes))
    if noted.hits and (tensor.maker == "indices" or (tensor.maker == "distinct" and len(tensor.shape) == 1)):
        count = _extent(tensor.shape, tensor.stride) if tensor.numel else 0
        hit = sum(rows for _, rows in noted.hits)
        if sum(times * rows for times, rows in noted.hits) == count and hit <= given[0]:
            return tensor.made("hits", given[0], [*noted.hits], noted.sorted)
    return tensor


def _extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last one of a tensor."""
    return 1 + sum((size - 1) * pitch for size, pitch in zip(shape, stride, strict=True))


def _tensor_at(arguments: Sequence[Argument], position: int) -> TensorArgument:
    argument = arguments[position] if position < len(arguments) else None
    if not isinstance(argument, TensorArgument):
        raise Unreplayable(f"argument {position} is not a recorded tensor")
    return argument


def _integer_at(arguments: Sequence[Argument], position: int) -> int:
    argument = arguments[position] if position < len(arguments) else None
    if not isinstance(argument, int):
        raise Unreplayable(f"argument {position} has no recorded value")
    return argument


def _size_at(shape: Sequence[int], dim: int) -> int:
    """A size of a shape; of one without dimensions 1, as torch has it."""
    if not shape:
        return 1
    if not -len(shape) <= dim < len(shape):
        raise Unreplayable(f"dimension {dim} is out of range for {len(shape)} recorded dimensions")
    return shape[dim]


def _set(arguments: list[Argument], position: int, maker: str, *maker_args: int | list[int]) -> None:
    arguments[position] = _tensor_at(arguments, position).made(maker, *maker_args)


def _into(position: int, target: int, dim: int) -> Rule:
    """Argument `position` holds indices into a dimension of argument `target`."""

    def rule(arguments: list[Argument]) -> None:
        shape = _tensor_at(arguments, target).shape
        _set(arguments, position, "indices", _size_at(shape, dim if len(shape) > 1 else 0))

    return rule


def _along(position: int, distinct: bool = False, vector: bool = False) -> Rule:
    """Argument `position` holds indices into the first argument, along dimension `argument 1`.

    They are of the same number of dimensions, unless they are a `vector` whichever dimension it runs along.
    """

    def rule(arguments: list[Argument]) -> None:
        into, index = _tensor_at(arguments, 0).shape, _tensor_at(arguments, position).shape
        if arguments[1] is None and len(into) < 2:
            arguments[1] = 0  # older profilers record no values, but there is only one dimension
        dim = _integer_at(arguments, 1)
        below = _size_at(into, dim)
        along = 0 if vector else dim
        if distinct and index and _size_at(index, along) <= below:
            _set(arguments, position, "distinct", below, along % len(index))
        else:
            _set(arguments, position, "indices", below)

    return rule


def _positive(*positions: int) -> Rule:
    """These arguments are above 0, such as variances."""

    def rule(arguments: list[Argument]) -> None:
        for position in positions:
            argument = arguments[position] if position < len(arguments) else None
            if isinstance(argument, TensorArgument):
                arguments[position] = argument.made("positive")
            elif isinstance(argument, list):
                arguments[position] = [
                    element.made("positive") for element in argument if isinstance(element, TensorArgument)
                ]

    return rule


def _index_put(arguments: list[Argument]) -> None:
    """One index tensor over the first dimension, which is what the shapes of values and target leave."""
    target, values = _tensor_at(arguments, 0), _tensor_at(arguments, 2)
    if arguments[1] is None:
        if not target.shape or not values.shape or values.shape[1:] != target.shape[1:]:
            raise Unreplayable(INDICES_UNKNOWN)
        arguments[1] = [TensorArgument("int64", values.shape[:1], (1,))]
    _index(arguments)


def _index(arguments: list[Argument]) -> None:
    """Index tensors, each over a dimension, see `complete`; what None stands for is not indexed."""
    index_tensors = arguments[1] if len(arguments) > 1 else None
    if not isinstance(index_tensors, list) or not index_tensors:
        raise Unreplayable(INDICES_UNKNOWN)
    if any(tensor is not None and not tensor.dtype.startswith("int") for tensor in index_tensors):
        raise Unreplayable("masks as indices are not recorded")
    shape = _tensor_at(arguments, 0).shape
    arguments[1] = [
        tensor and tensor.made("indices", _size_at(shape, dim)) for dim, tensor in enumerate(index_tensors)
    ]


def _masked_scatter(arguments: list[Argument]) -> None:
    """The mask, broadcast to the target, asks for no more elements than the source has."""
    target, mask, source = (_tensor_at(arguments, position) for position in range(3))
    copies = max(target.numel // max(mask.numel, 1), 1)
    _set(arguments, 1, "mask", min(source.numel // copies, mask.numel))


def _packed(*positions: int, backward: bool = False) -> Rule:
    """These say where sequences begin and end that lie behind each other; even ones are taken."""

    def rule(arguments: list[Argument]) -> None:
        query = 1 if backward else 0
        for position, tokens in zip(positions, (query, query + 1), strict=True):
            ends = arguments[position] if position < len(arguments) else None
            if isinstance(ends, TensorArgument) and ends.numel > 1:
                shape = _tensor_at(arguments, tokens).shape
                rows = _size_at(shape, 0 if len(shape) < 4 else 1)  # with four, the first is a batch of one
                arguments[position] = ends.made("ends", [0, *_even(rows, ends.numel - 1)])

    return rule


def _even(rows: int, groups: int) -> list[int]:
    """Sizes of so many groups of rows, as even as can be."""
    return [rows * (group + 1) // groups - rows * group // groups for group in range(groups)]


def _optimizer(arguments: list[Argument]) -> None:
    """Second moments and numbers of steps are above 0; the latter are in single precision for all types."""
    _positive(3, 5)(arguments)
    steps = arguments[5] if len(arguments) > 5 else None
    if isinstance(steps, list):
        arguments[5] = [
            replace(tensor, dtype="float32") for tensor in steps if isinstance(tensor, TensorArgument)
        ]


def _divided(arguments: list[Argument]) -> None:
    """Texts are not recorded; a quotient in integers is rounded down."""
    if len(arguments) > 2 and arguments[2] is None and _tensor_at(arguments, 0).dtype.startswith("int"):
        arguments[2] = "floor"


_GROUPED = {"_grouped_mm": 2, "_scaled_grouped_mm": 4}
_IN_STEPS = {"_scaled_grouped_mm"}
"""Those whose groups have sizes that their blocks of scales divide: even ones are taken."""
_RULES: dict[str, Rule] = {
    "_flash_attention_forward": _packed(3, 4),
    "_flash_attention_backward": _packed(6, 7, backward=True),
    "_efficient_attention_forward": _packed(4, 5),
    "_efficient_attention_backward": _packed(6, 7, backward=True),
    "_cudnn_attention_forward": _packed(4, 5),
    "_cudnn_attention_backward": _packed(9, 10, backward=True),
    **dict.fromkeys(
        ("index_select", "index_add", "index_fill", "gather", "scatter_add", "scatter_reduce"), _along(2)
    ),
    "index_copy": _along(2, distinct=True, vector=True),
    "scatter": _along(2, distinct=True),
    **dict.fromkeys(("index", "_unsafe_index"), _index),
    **dict.fromkeys(("index_put", "_unsafe_index_put", "_index_put_impl"), _index_put),
    "masked_scatter": _masked_scatter,
    **dict.fromkeys(("embedding", "embedding_renorm"), _into(1, 0, 0)),
    "embedding_dense_backward": lambda arguments: _set(arguments, 1, "indices", _integer_at(arguments, 2)),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _into(1, 0, 1)),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _into(2, 1, 1)),
    "div": _divided,
    **dict.fromkeys(("multinomial", "sqrt", "rsqrt", "log", "log2", "_foreach_sqrt"), _positive(0)),
    **dict.fromkeys(("addcdiv", "_foreach_addcdiv"), _positive(2)),
    "native_batch_norm": _positive(4),
    "native_batch_norm_backward": _positive(4, 6),
    **dict.fromkeys(("_scaled_mm", "_scaled_grouped_mm"), _positive(2, 3)),
    **dict.fromkeys(("_fused_adam", "_fused_adamw"), _optimizer),
}


# ====================
# Index tensors that a trace does not have, from the launch grid of the kernel that reads them.
#
# The profiler records nothing of a list of index tensors (Tensor?[]), but the grids of PyTorch's kernels tell
# how many rows were asked for:
#
#     vectorized_gather_kernel<A, ...>   rows x ceil(bytes of a row / (256 A)) blocks
#     index_elementwise_kernel<T, V>     ceil(elements / (T V)) blocks; exact to T V elements
#
# Source: PyTorch, ATen/native/cuda/IndexKernelUtils.cu and IndexKernel.cu.


def grids(trace: Trace, work: Work, op: Int) -> tuple[Int, Int]:
    """Kernel and its thread blocks, of work whose op has index tensors that are not recorded.

    Returns:
        code into the trace's names and number of blocks of each piece, -1 for all other work.
    """
    events = trace.arrays
    indexed = [code for code, name in enumerate(events.names) if name in INDEXED]
    is_indexed = (op >= 0) & np.isin(events.name[op], indexed) & work.is_kernel
    return np.where(is_indexed, work.name, -1), np.where(is_indexed, work.blocks, -1)


def complete(op: str, arguments: Sequence[Argument], kernel: str, blocks: int) -> list[Argument]:
    """The arguments with the index tensor over the first dimension, where the kernel tells its length."""
    completed = list(arguments)
    target = completed[0] if completed else None
    if op not in INDEXED or len(completed) < 2 or completed[1] is not None:
        return completed
    if not isinstance(target, TensorArgument) or not target.shape:
        return completed
    rows = 0
    if match := _ROWS.search(kernel):
        row = prod(target.shape[1:]) * element_bytes(target.dtype)
        blocks_per_row = -(-row // (_THREADS * int(match[1]))) if row else 0
        if blocks_per_row and blocks > 0 and blocks % blocks_per_row == 0:
            rows = blocks // blocks_per_row
    elif (match := _ELEMENTS.search(kernel)) and len(target.shape) == 1 and blocks > 0:
        rows = blocks * int(match[1]) * int(match[2])
    if rows > 0:
        completed[1] = [TensorArgument("int64", (rows,), (1,))]
    return completed


# ====================
# Sizes scaled down, so that a call fits a smaller machine.


def scaled(op: str, arguments: Sequence[Argument], most: int) -> list[Argument]:
    """The arguments with sizes divided by the least power of two that leaves no tensor over `most` elements.

    Where small and dependent sizes leave more than that, all others are as small as they can be.

    Equal sizes stay equal, also where they are numbers among the arguments; what was dense stays dense, and
    overlaps and gaps stay in proportion.
    """
    shapes = [tensor.shape for tensor in tensors(arguments)]
    sizes = {n for shape in shapes for n in shape if n > SMALL}
    if _IMAGE.search(op):  # only the first size of the image, if no weight has it too
        images = [shape for shape in shapes if len(shape) > 2]
        sizes = {images[0][0]} if images and not any(images[0][0] in shape[1:] for shape in images) else set()
    divisor = 1
    while divisor < max(sizes, default=0):
        if max(prod(_scaled_size(n, sizes, divisor) for n in shape) for shape in shapes) <= most:
            break
        divisor *= 2
    if divisor == 1:
        return list(arguments)
    return [_scaled_argument(argument, sizes, divisor) for argument in arguments]


def _scaled_size(n: int, sizes: set[int], divisor: int) -> int:
    if n not in sizes:
        return n
    # Kernels want rows of whole 16 bytes and tiles of 16.
    unit = 16 if n % 16 == 0 else 1
    return -(-n // (divisor * unit)) * unit


def _scaled_argument(argument: Argument, sizes: set[int], divisor: int) -> Argument:
    if isinstance(argument, list):
        return [_scaled_argument(element, sizes, divisor) for element in argument]
    if isinstance(argument, int) and not isinstance(argument, bool):
        return _scaled_size(argument, sizes, divisor)
    if not isinstance(argument, TensorArgument):
        return argument
    old_shape, old_stride = argument.shape, argument.stride
    shape = tuple(_scaled_size(n, sizes, divisor) for n in old_shape)
    stride, old_end, new_end = list(old_stride), 1, 1
    for dim in sorted(range(len(shape)), key=lambda dim: (old_stride[dim], old_shape[dim])):
        if stride[dim]:
            stride[dim] = max(1, old_stride[dim] * new_end // old_end)
            # A dimension without elements still has the stride of one with one.
            old_end, new_end = old_stride[dim] * max(old_shape[dim], 1), stride[dim] * max(shape[dim], 1)
    return replace(argument, shape=shape, stride=tuple(stride))
