"""What the values of inputs have to be for an op to accept them: indices in range, groups that add up.

Values are not in a trace. Most ops take any; for the others this says which function of a script makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tracelens.reproducers.inputs.arguments import NUMBERS, Argument, Tensor, Unreplayable

Rule = Callable[[list[Argument]], None]

_ATEN = "aten::"
INDICES_UNKNOWN = "the profiler does not record index tensor lists (Tensor?[])"
EVEN_GROUPS = "group sizes live on the GPU and are not in the trace: even sizes assumed"


def fill(op: str, arguments: Sequence[Argument]) -> list[Argument]:
    """The arguments with what makes the values of each tensor.

    Raises:
        Unreplayable: the trace does not say enough.
    """
    filled = list(arguments)
    _python_numbers(filled)
    if not op.startswith(_ATEN):
        return filled
    name = _plain(op)
    if name in _RULES:
        _RULES[name](filled)
    if name in _GROUPED:
        _ends(filled, _GROUPED[name])
    return filled


def _plain(op: str) -> str:
    """Name of an op of torch without its namespace and the mark of the in-place variant."""
    name = op.removeprefix(_ATEN)
    return name if name.startswith("__") else name.removesuffix("_")


def _python_numbers(arguments: list[Argument]) -> None:
    """A tensor without dimensions that is not the first argument is a Python number, by its type."""
    for position, argument in enumerate(arguments):
        if position and isinstance(argument, Tensor) and not argument.shape and argument.dtype in NUMBERS:
            arguments[position] = argument.made("number")


def _tensor(arguments: Sequence[Argument], position: int) -> Tensor:
    argument = arguments[position] if position < len(arguments) else None
    if not isinstance(argument, Tensor):
        raise Unreplayable(f"argument {position} is not a recorded tensor")
    return argument


def _integer(arguments: Sequence[Argument], position: int) -> int:
    argument = arguments[position] if position < len(arguments) else None
    if not isinstance(argument, int):
        raise Unreplayable(f"argument {position} has no recorded value")
    return argument


def _size(shape: Sequence[int], dim: int) -> int:
    """A size of a shape; of one without dimensions 1, as torch has it."""
    if not shape:
        return 1
    if not -len(shape) <= dim < len(shape):
        raise Unreplayable(f"dimension {dim} is out of range for {len(shape)} recorded dimensions")
    return shape[dim]


def _set(arguments: list[Argument], position: int, maker: str, *maker_args: int | list[int]) -> None:
    arguments[position] = _tensor(arguments, position).made(maker, *maker_args)


def _into(position: int, target: int, dim: int) -> Rule:
    """Argument `position` holds indices into a dimension of argument `target`."""

    def rule(arguments: list[Argument]) -> None:
        shape = _tensor(arguments, target).shape
        _set(arguments, position, "indices", _size(shape, dim if len(shape) > 1 else 0))

    return rule


def _along(position: int, distinct: bool = False) -> Rule:
    """Argument `position` holds indices into the first argument, along dimension `argument 1`."""

    def rule(arguments: list[Argument]) -> None:
        into, index = _tensor(arguments, 0).shape, _tensor(arguments, position).shape
        if arguments[1] is None and len(into) < 2:
            arguments[1] = 0  # older profilers record no values, but there is only one dimension
        dim = _integer(arguments, 1)
        below = _size(into, dim)
        if distinct and index and _size(index, dim) <= below:
            _set(arguments, position, "distinct", below, dim % len(index))
        else:
            _set(arguments, position, "indices", below)

    return rule


def _below(position: int, value: int) -> Rule:
    """Argument `position` holds indices below the number that is argument `value`."""
    return lambda arguments: _set(arguments, position, "indices", _integer(arguments, value))


def _positive(*positions: int) -> Rule:
    """These arguments are above 0, such as variances."""

    def rule(arguments: list[Argument]) -> None:
        for position in positions:
            argument = arguments[position] if position < len(arguments) else None
            if isinstance(argument, Tensor):
                arguments[position] = argument.made("positive")
            elif isinstance(argument, list):
                arguments[position] = [
                    element.made("positive") for element in argument if isinstance(element, Tensor)
                ]

    return rule


def _index_put(arguments: list[Argument]) -> None:
    """One index tensor over the first dimension, which is what the shapes of values and target leave."""
    target, values = _tensor(arguments, 0), _tensor(arguments, 2)
    if not target.shape or not values.shape or values.shape[1:] != target.shape[1:]:
        raise Unreplayable(INDICES_UNKNOWN)
    index = Tensor("int64", values.shape[:1], (1,), "indices", (target.shape[0],))
    arguments[1] = [index]


def _index(arguments: list[Argument]) -> None:
    """An index tensor over the first dimension, see indices.py."""
    index_tensors = arguments[1] if len(arguments) > 1 else None
    if not isinstance(index_tensors, list) or not index_tensors:
        raise Unreplayable(INDICES_UNKNOWN)
    arguments[1] = [tensor.made("indices", _size(_tensor(arguments, 0).shape, 0)) for tensor in index_tensors]


def _masked_scatter(arguments: list[Argument]) -> None:
    """The mask, broadcast to the target, asks for no more elements than the source has."""
    target, mask, source = (_tensor(arguments, position) for position in range(3))
    copies = max(target.numel // max(mask.numel, 1), 1)
    _set(arguments, 1, "mask", min(source.numel // copies, mask.numel))


def _packed(*positions: int, backward: bool = False) -> Rule:
    """These say where sequences begin and end that lie behind each other; even ones are taken."""

    def rule(arguments: list[Argument]) -> None:
        query = 1 if backward else 0
        for position, tokens in zip(positions, (query, query + 1), strict=True):
            ends = arguments[position] if position < len(arguments) else None
            if isinstance(ends, Tensor) and ends.numel > 1:
                shape = _tensor(arguments, tokens).shape
                rows = _size(shape, 0 if len(shape) < 4 else 1)  # with four, the first is a batch of one
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
        arguments[5] = [replace(tensor, dtype="float32") for tensor in steps if isinstance(tensor, Tensor)]


def _divided(arguments: list[Argument]) -> None:
    """Texts are not recorded; a quotient in integers is rounded down."""
    if len(arguments) > 2 and _tensor(arguments, 0).dtype.startswith("int"):
        arguments[2] = "floor"


def _ends(arguments: list[Argument], position: int) -> None:
    """Argument `position` holds where each group's rows end; layouts: costs/grouped_gemm.py."""
    if len(arguments) <= position or not isinstance(arguments[position], Tensor):
        return
    first, second, ends = (_tensor(arguments, operand) for operand in (0, 1, position))
    if not {len(first.shape), len(second.shape)} <= {2, 3}:
        raise Unreplayable("a grouped GEMM takes tensors of two or three dimensions")
    rows = second.shape[-1] if len(first.shape) == 3 else first.shape[-2 if len(second.shape) == 3 else -1]
    arguments[position] = ends.made("ends", _even(rows, ends.numel))


_GROUPED = {"_grouped_mm": 2, "_scaled_grouped_mm": 4}

_RULES: dict[str, Rule] = {
    "_flash_attention_forward": _packed(3, 4),
    "_flash_attention_backward": _packed(6, 7, backward=True),
    "_efficient_attention_forward": _packed(4, 5),
    "_efficient_attention_backward": _packed(6, 7, backward=True),
    "_cudnn_attention_forward": _packed(4, 5),
    "_cudnn_attention_backward": _packed(9, 10, backward=True),
    **dict.fromkeys(
        ("index_select", "index_add", "index_fill", "gather", "scatter_add", "scatter_reduce"),
        _along(2),
    ),
    **dict.fromkeys(("index_copy", "scatter"), _along(2, distinct=True)),
    **dict.fromkeys(("index", "_unsafe_index"), _index),
    **dict.fromkeys(("index_put", "_unsafe_index_put", "_index_put_impl"), _index_put),
    "masked_scatter": _masked_scatter,
    **dict.fromkeys(("embedding", "embedding_renorm"), _into(1, 0, 0)),
    "embedding_dense_backward": _below(1, 2),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _into(1, 0, 1)),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _into(2, 1, 1)),
    "div": _divided,
    **dict.fromkeys(("multinomial", "sqrt", "rsqrt", "log", "log2", "_foreach_sqrt"), _positive(0)),
    "native_batch_norm": _positive(4),
    "native_batch_norm_backward": _positive(4, 6),
    **dict.fromkeys(("_scaled_mm", "_scaled_grouped_mm"), _positive(2, 3)),
    **dict.fromkeys(("_fused_adam", "_fused_adamw"), _optimizer),
}
