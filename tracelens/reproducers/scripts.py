"""One call as a standalone script."""

from __future__ import annotations

import ast
import io
import math
import re
import textwrap
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracelens.analysis.comm import SEND_RECV
from tracelens.analysis.moe import STAGES
from tracelens.analysis.roofline import least_ns
from tracelens.costs import OpCost
from tracelens.devices import devices, match
from tracelens.dtypes import element_bytes, epsilon, torch_dtype
from tracelens.reproducers.arguments import (
    OP,
    Argument,
    TensorArgument,
    Unreplayable,
    complete,
    fill,
    read_arguments,
    scaled,
    tensors,
)
from tracelens.reproducers.calls import OpCase
from tracelens.reproducers.folder import Script
from tracelens.trace import describe
from tracelens.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

# Least tolerated error of a result: sums are added in another order, and single precision may run as TF32.
_SUMS = 1e-3
_BY_GRID = "Index tensors are not recorded; their length follows from the kernel grid."
_LIST_TYPE = "Element types in tensor lists are not recorded; they follow from the kernel."
# Kernels that only move elements are compiled for a width.
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")
_OF_WIDTH = {"1": "uint8", "2": "bfloat16", "4": "float32", "8": "int64", "16": "complex128"}
_NAME = 80  # characters of a file's name that are the op's
_LAUNCH_NS = 100  # calls with a least time below this are nothing but the start of a kernel
_RECENT = ("mi300x", "mi325x", "mi355x", "h100", "h200", "b200")
_CACHES = 1 << 29  # bytes of all sets of arguments: twice the largest cache of a GPU, 256 MB
_LARGE = 8 << 30  # bytes of a set that is alone


class Kit(NamedTuple):
    """What a script for an op is made of besides the common parts."""

    template: str = ""  # under templates/reference/, "" for none
    # whether it has `reference(given)`; without it the op in double precision is the reference
    reference: bool = True
    stand_in: bool = False  # whether it has `stand_in(given)`, for devices without a kernel of the op
    prepare: bool = False  # whether it has `prepare(given)`, which completes the arguments
    slack: int = 3  # how many roundings of the least precise input type a result may be off
    compared: int = -1  # how many results are compared with the reference; -1: all
    unchecked: str = ""  # why none is
    functional: bool = False  # whether the op has but one way to be called, and returns all that it makes
    data: Mapping[str, Any] = {}  # what the template is given


_SDPA = "_scaled_dot_product_"
_CONVOLUTION = Kit("convolution", stand_in=True, functional=True)
_BATCH_NORM = Kit("batch_norm", stand_in=True, compared=1, functional=True, data={"backward": False})
_BATCH_NORM_BACKWARD = Kit("batch_norm", stand_in=True, functional=True, data={"backward": True})
_SCALED_GROUPED = Kit("grouped", stand_in=True, functional=True, data={"ends_at": 4, "scaled": True})
_FIRST = Kit(compared=1)
_RANDOM = Kit(compared=0, unchecked="its results are random")
_ADDING = frozenset({"index_add", "scatter_add"})
_PUTTING = frozenset({"index_put", "_unsafe_index_put", "_index_put_impl"})
"""These add where their fourth argument says so, and else write."""
_WRITING = _PUTTING | {"scatter", "index_copy"}


def _attention(
    forward: str, backward: str, dropout: tuple[int, int], heads_first: bool, bias: str = "attn_bias",
    causal: str = 'by["is_causal"]',
) -> dict[str, Kit]:  # fmt: skip
    """Kits of a forward op and its backward op; `dropout` is the place of its probability in both."""
    data = {"heads_first": heads_first, "bias": bias, "causal": causal, "forward": forward}
    base = Kit("attention", stand_in=True, functional=True)
    forward_data = {**data, "backward": False, "dropout": dropout[0]}
    backward_data = {**data, "backward": True, "dropout": dropout[1]}
    return {
        forward: base._replace(compared=1, data=forward_data),
        backward: base._replace(prepare=True, slack=12, compared=3, data=backward_data),
    }


_KITS: dict[str, Kit] = {
    **_attention("_cudnn_attention_forward", "_cudnn_attention_backward", (9, 13), True),
    **_attention("_flash_attention_forward", "_flash_attention_backward", (7, 10), False),
    **_attention(
        "_efficient_attention_forward", "_efficient_attention_backward", (8, 11), False, "bias",
        'by["custom_mask_type"] == 1',
    ),
    **_attention(f"{_SDPA}flash_attention", f"{_SDPA}flash_attention_backward", (3, 10), True),
    **_attention(f"{_SDPA}efficient_attention", f"{_SDPA}efficient_attention_backward", (5, 9), True),
    **_attention(f"{_SDPA}cudnn_attention", f"{_SDPA}cudnn_attention_backward", (5, 13), True),
    **dict.fromkeys(
        ("miopen_convolution", "miopen_depthwise_convolution", "miopen_convolution_transpose",
         "cudnn_convolution", "cudnn_convolution_transpose", "mkldnn_convolution"), _CONVOLUTION,
    ),
    **dict.fromkeys(("miopen_batch_norm", "cudnn_batch_norm"), _BATCH_NORM),
    **dict.fromkeys(("miopen_batch_norm_backward", "cudnn_batch_norm_backward"), _BATCH_NORM_BACKWARD),
    "native_batch_norm_backward": Kit("single", stand_in=True, functional=True),
    "histc": Kit("single", stand_in=True),
    "max_pool2d_with_indices_backward": Kit("max_pool_backward", reference=False, prepare=True),
    "_grouped_mm": Kit("grouped", functional=True, data={"ends_at": 2, "scaled": False}),
    "_scaled_grouped_mm": _SCALED_GROUPED,
    "_scaled_mm": Kit("scaled_mm", functional=True),
    **dict.fromkeys(("_fused_adam", "_fused_adamw"), Kit("fused_optimizer")),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), Kit("softmax_backward")),
    **dict.fromkeys(("sort", "topk", "max", "min", "median", "kthvalue", "mode", "cummax", "cummin"), _FIRST),
    **dict.fromkeys(
        ("native_dropout", "_fused_dropout", "bernoulli", "normal", "uniform", "exponential",
         "random", "multinomial", "rand", "randn", "randint", "randperm", "rrelu_with_noise"), _RANDOM,
    ),
}  # fmt: skip


class CollectiveKind(NamedTuple):
    """How a script calls one kind of collective; `rank`, `send`, `out`, COUNT and RANKS are in scope."""

    call: str  # source of the call
    sent: str  # source of the number of elements that a rank sends
    received: str  # of the number that it receives, "" where it receives in place
    expected: str  # source of what a rank receives
    reduces: bool = False  # whether it sums, so that the result can be inexact
    rooted: bool = False  # whether only the first rank receives
    # what runs on gloo where gloo lacks the call, and the note that says so
    instead: tuple[str, str] = ("", "")


# ====================
# The kinds of collectives: how a script calls each, and the expected result.


_GATHERED = "torch.cat([values(src, COUNT) for src in range(RANKS)])"
_SUM = "sum(values(src, COUNT) for src in range(RANKS))"
_MY_SUM = "sum(values(src, RANKS * COUNT)[rank * COUNT :][:COUNT] for src in range(RANKS))"
_SCATTER = "scatter(out, send)"
_MATRIX = (
    "sum(COUNT[rank])",
    "sum(row[rank] for row in COUNT)",
    "torch.cat([values(src, sum(row))[sum(row[:rank]) :][: row[rank]] for src, row in enumerate(COUNT)])",
)
COLLECTIVE_KINDS = {
    "all_reduce": CollectiveKind("dist.all_reduce(send)", "COUNT", "", _SUM, True),
    "all_gather": CollectiveKind("gather(out, send)", "COUNT", "RANKS * COUNT", _GATHERED),
    "all_gather of a list": CollectiveKind(
        "dist.all_gather(list(out.chunk(RANKS)), send)", "COUNT", "RANKS * COUNT", _GATHERED
    ),
    "reduce_scatter": CollectiveKind(_SCATTER, "RANKS * COUNT", "COUNT", _MY_SUM, True),
    "reduce_scatter of a list": CollectiveKind(
        "dist.reduce_scatter(out, list(send.chunk(RANKS)))",
        "RANKS * COUNT",
        "COUNT",
        _MY_SUM,
        reduces=True,
        instead=(_SCATTER, "gloo: one tensor, not a list of them"),
    ),
    "broadcast": CollectiveKind("dist.broadcast(send, 0)", "COUNT", "", "values(0, COUNT)"),
    "reduce": CollectiveKind("dist.reduce(send, 0)", "COUNT", "", _SUM, True, True),
    "gather": CollectiveKind(
        "dist.gather(send, None if rank else list(out.chunk(RANKS)), 0)",
        "COUNT",
        "0 if rank else RANKS * COUNT",
        f"{_GATHERED}[: len(out)]",
        rooted=True,
    ),
    "scatter": CollectiveKind(
        "dist.scatter(out, None if rank else list(send.chunk(RANKS)), 0)",
        "0 if rank else RANKS * COUNT",
        "COUNT",
        "values(0, RANKS * COUNT)[rank * COUNT :][:COUNT]",
    ),
    "all_to_all": CollectiveKind(
        "dist.all_to_all_single(out, send)",
        "RANKS * COUNT",
        "RANKS * COUNT",
        "torch.cat([values(src, RANKS * COUNT)[rank * COUNT :][:COUNT] for src in range(RANKS)])",
    ),
    "all_to_allv": CollectiveKind(
        "dist.all_to_all_single(out, send, [row[rank] for row in COUNT], COUNT[rank])", *_MATRIX
    ),
    SEND_RECV: CollectiveKind("exchange(rank, send, out)", *_MATRIX),
}
"""Of all_to_allv and send/recv COUNT is a matrix, else the elements of one rank's piece."""
_ALL_TO_ALL = ("all_to_all", "all_to_allv", "alltoall", "alltoallv", "alltoall_base", "all_to_all_single")
NAMES = {
    **dict.fromkeys(("allreduce", "all_reduce", "allreduce_coalesced"), "all_reduce"),
    **dict.fromkeys(
        ("_allgather_base", "all_gather_into_tensor", "allgather_into_tensor_coalesced",
         "all_gather_into_tensor_coalesced"), "all_gather",
    ),
    **dict.fromkeys(("allgather", "all_gather", "allgather_coalesced"), "all_gather of a list"),
    **dict.fromkeys(
        ("_reduce_scatter_base", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
        "reduce_scatter",
    ),
    **dict.fromkeys(("reduce_scatter", "reduce_scatter_coalesced"), "reduce_scatter of a list"),
    **dict.fromkeys(("broadcast", "_broadcast_oop"), "broadcast"),
    **dict.fromkeys(("reduce", "_reduce_oop"), "reduce"),
    **dict.fromkeys(_ALL_TO_ALL, "all_to_all"),
    "gather": "gather", "scatter": "scatter", SEND_RECV: SEND_RECV,
}  # fmt: skip
"""Names that torch records to kinds."""

WIDTH = 110
_FEW = 5
_INDENT = "    "
_UNPRINTABLE = re.compile(r"[^ -~]")

DATA = "DATA"


class SourceText(NamedTuple):
    """Python source made of data."""

    text: str  # as it stands in a script
    outline: str = (
        DATA  # the same without the data, see `is_outline`: one expression, if nothing else is said
    )


Choice = bool | Kit | CollectiveKind | frozenset[str]
"""What a template's structure depends on; never text of a trace. A set is one of MAKERS."""

UNFAITHFUL = "its script was not written: "
"""How the reason begins where a script would be more than its template and data."""

FIRST_LINES = b"#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\n"
"""Of each script. Python looks for a declared encoding (PEP 263) in these lines only."""
MAKERS = frozenset({"strided", "number", "positive", "mask", "indices", "distinct", "ends", "Like"})
"""Functions of templates that data may call: they make inputs of given sizes."""
SIZES = ("n", "m", "k")
"""Names of the sizes that differ from round to round of a loop."""
_ALLOWED = re.compile(
    rf"(?:(?:{DATA}|yield|for|in|range|left_out|_|{'|'.join(SIZES)})(?!\w)"
    rf"|# (?:{'|'.join(map(re.escape, STAGES))})(?=\n|\Z)|[ ,:()\n])*"
)
_PRINTABLE = bytes(range(ord(" "), ord("~") + 1)) + b"\n"


def script(case: OpCase, max_elements: int | None = None) -> Script:
    """A script that runs, checks and times the call of `case`.

    Raises:
        Unreplayable: the trace does not say enough, what it says is nothing that can be called, or the script
            would be more than its template and data.
    """
    op = case.call.op
    if not OP.fullmatch(op):
        raise Unreplayable("not a registered op name (namespace::name)")
    # Element type of tensors in lists, from the kernel: its type, or one of the width that it moves.
    of_lists = torch_dtype(case.cost.dtype) if case.cost else ""
    if not of_lists:
        width = next((match[1] for name in case.kernels if (match := _OPAQUE.search(name))), "4")
        of_lists = _OF_WIDTH.get(width, "float32")
    recorded = read_arguments(*case.call.recorded, of_lists=of_lists)
    traced = complete(op, recorded, case.call.kernel, case.call.blocks)
    arguments = traced if max_elements is None else scaled(op, traced, max_elements)
    unscaled = arguments == traced
    cost = case.cost if unscaled else None
    filled = fill(op, arguments)
    inputs = tensors(filled)
    # Sets of arguments that take turns: together they are beyond any cache.
    size = sum(tensor.numel * element_bytes(tensor.dtype) for tensor in inputs)
    copies = 1 if size > _LARGE else min(16, 2 + _CACHES // max(size, 1))
    # Tolerated error: some roundings of the coarsest input type, 0 where there are only integers.
    op_kit = kit(op, filled)
    eps = max((epsilon(tensor.dtype) for tensor in inputs), default=0.0)
    rtol = max(op_kit.slack * eps, _SUMS) if eps else 0.0
    median_us = round(float(np.median(case.times)) / 1e3, 3)
    shapes = describe(case.call.shapes, case.call.dtypes)
    comments = [
        f"{op} {shapes}",
        f"{timed((case.times / 1e3).tolist(), case.devices)}, rank {', '.join(map(str, case.ranks))}",
        f"Kernels: {', '.join(case.kernels)}",
        *in_graph(case.sources),
        *([_BY_GRID] if case.call.blocks >= 0 else []),
        *([_LIST_TYPE] if "TensorList" in case.call.dtypes else []),
        *([] if unscaled else ["Sizes are scaled down from those above."]),
    ]
    text = render(
        "op.py.j2",
        {
            "kit": op_kit,
            "library": not op.startswith("aten::"),
            "kinds": frozenset(tensor.maker for tensor in inputs),
            "complex": any(tensor.dtype.startswith("complex") for tensor in inputs),
        },
        about=about(comments),
        op=op,
        traced_us=median_us if unscaled else None,
        traced_on=plain(", ".join(case.devices)),
        flops=cost.flops if cost else 0,
        bytes=cost.read_bytes + cost.write_bytes if cost else 0,
        least_us=SourceText(mapping(least_us(cost, case.devices), len("LEAST_US = {}"))),
        arguments=call_arguments(filled),
        copies=copies,
        rtol=rtol,
    )
    return Script(
        name=re.sub(r"\W+", "_", op)[:_NAME],
        kind="op",
        subject=op,
        shapes=shapes,
        text=text,
        count=len(case.times),
        traced_us=median_us if unscaled else 0.0,
        total_us=case.total_ns / 1e3,
    )


def least_us(cost: OpCost | None, traced_on: Sequence[str]) -> dict[str, float]:
    """Least time of a call on recent devices and the traced one, by the name that tells the device.

    Without those on which it takes next to nothing: starting a kernel is all that such a call is.
    """
    if cost is None:
        return {}
    least_by_device = {}
    traced_devices = {match(name) for name in traced_on}
    for device in devices():
        if device.name not in _RECENT and device not in traced_devices:
            continue
        least = least_ns(cost, device)
        if least > _LAUNCH_NS:
            least_by_device[device.aliases[0]] = least / 1e3
    return least_by_device


# ====================
# Ops that need more than a call: another reference, a stand-in, what a forward pass leaves.


def kit(op: str, arguments: Sequence[Argument]) -> Kit:
    """What a script for this op with these arguments needs."""
    name = op.removeprefix("aten::").removesuffix("_")
    op_kit = _KITS.get(name, Kit())
    if (repeats := _repeats(arguments)) > 1:
        if name in _ADDING or (name in _PUTTING and len(arguments) > 3 and arguments[3] is True):
            # Each addition to an element rounds, up or down.
            return op_kit._replace(slack=math.ceil(op_kit.slack * math.sqrt(repeats)))
        if name in _WRITING:
            return Kit(compared=0, unchecked="the last write to an element wins, in any order")
    if op_kit.template == "scaled_mm":
        # Unless each scale is one for all, or lies beside its rows, columns or blocks.
        scales = [scale for scale in arguments[2:4] if isinstance(scale, TensorArgument)]
        if not all(len(scale.shape) == 2 or scale.numel == 1 for scale in scales):
            return Kit(compared=0, unchecked="its scales are swizzled")
    if op_kit.template == "attention":  # without a reference where it is not plain attention
        dropout_index = op_kit.data["dropout"]
        if dropout_index < len(arguments) and arguments[dropout_index]:
            return op_kit._replace(compared=0, unchecked="its results are random")
        if any(isinstance(argument, TensorArgument) and argument.maker == "ends" for argument in arguments):
            return op_kit._replace(stand_in=False, compared=0, unchecked="no reference for packed sequences")
    if op_kit is _SCALED_GROUPED:  # unless groups are rows of the first operand, times a matrix each
        operands = [argument for argument in arguments[:2] if isinstance(argument, TensorArgument)]
        if [len(operand.shape) for operand in operands] != [2, 3]:
            return Kit(compared=0, unchecked="no reference for scaled groups of columns")
    return op_kit


def _repeats(arguments: Sequence[Argument]) -> int:
    """How often the indices that a script makes meet the same element, at most."""
    made = [tensor for tensor in tensors(arguments) if tensor.maker == "indices"]
    return max((-(-tensor.numel // max(tensor.maker_args[0], 1)) for tensor in made), default=1)


# ====================
# Python source of what comes from a trace: literals, and calls of the functions that make inputs.


def plain(text: str, most: int = WIDTH - len(f'{_INDENT}"",')) -> str:
    """Text of a trace for people to read: one line of printable ASCII, shortened in its middle."""
    clean = _UNPRINTABLE.sub("?", text)
    return clean if len(clean) <= most else f"{clean[: most - 33]}...{clean[-30:]}"


def about(texts: Sequence[str]) -> SourceText:
    """What a script says about itself: a list with one text a line."""
    items = "".join(f"{_INDENT}{literal(plain(text))},\n" for text in texts)
    return SourceText(f"[\n{items}]")


def in_graph(sources: Iterable[str]) -> list[str]:
    """What a script says of calls that graphs replay; `sources` are where these are recorded."""
    origins = {"capture": "its capture", "twin": "a run without graphs"}
    return [
        f"Replayed by a graph: op and arguments are those of {origins[source]}."
        for source in sources
        if source in origins
    ]


def timed(times_us: Sequence[float], devices: Sequence[str]) -> str:
    """Number of calls, their times and devices."""
    calls = "1 call" if len(times_us) == 1 else f"{len(times_us):,} calls"
    return (
        f"{calls} of {median(times_us):,.1f} us (median; {min(times_us):,.1f} to {max(times_us):,.1f}) on "
        f"{', '.join(devices) or 'an unknown device'}"
    )


def literal(value: Any) -> str:
    """Source of a text, number, None, or list or tuple of these; text becomes escaped ASCII."""
    if isinstance(value, str):
        escaped = value.encode("unicode_escape").decode("ascii").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, list | tuple):
        inner = ", ".join(map(literal, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    raise TypeError(f"no source for {type(value).__name__}")


def repeated(values: Sequence[int]) -> str:
    """Source of a list of numbers, short where all are the same."""
    if len(values) > 3 and len(set(values)) == 1:
        return f"[{values[0]}] * {len(values)}"
    return literal(list(values))


def code(argument: Argument) -> str:
    """Source of an argument."""
    if isinstance(argument, TensorArgument):
        if argument.maker == "number":
            return f"number({literal(argument.dtype)})"
        if argument.maker == "ends":
            return f"ends({literal(argument.dtype)}, {repeated(argument.maker_args[0])})"
        maker_args = (argument.dtype, argument.shape, argument.stride, *argument.maker_args)
        return f"{argument.maker}({', '.join(map(literal, maker_args))})"
    if isinstance(argument, list):
        items = [code(element) for element in argument]
        if len(items) > 1 and len(set(items)) == 1 and isinstance(argument[0], TensorArgument):
            return f"[{items[0]} for _ in range({len(items)})]"
        return f"[{', '.join(items)}]"
    return literal(argument)


def call_arguments(arguments: Sequence[Argument]) -> SourceText:
    """Source of the list of arguments of a call, in a statement with an indent of one."""
    items = "".join(f"{2 * _INDENT}{line}\n" for line in lines([code(argument) for argument in arguments], 8))
    return SourceText(f"[\n{items}{_INDENT}]")


def lines(items: Sequence[str], indent: int) -> list[str]:
    """Items of a list as lines, each with a comma behind it: tensors one a line if there are only a few."""
    wrapped_lines: list[str] = []
    for item in items:
        packed = len(items) > _FEW or "(" not in item + wrapped_lines[-1] if wrapped_lines else False
        if packed and len(wrapped_lines[-1]) + len(item) + 2 <= WIDTH - indent:
            wrapped_lines[-1] += f" {item},"
        else:
            wrapped_lines += textwrap.wrap(
                f"{item},", WIDTH - indent, subsequent_indent="    ", break_long_words=False
            )
    return wrapped_lines


def mapping(values: Mapping[str, float], taken: int) -> str:
    """Source of a dict of numbers above 0, to four digits or more; `taken`: columns in front of it."""
    rows = [""]
    for name, value in values.items():
        item = f"{literal(name)}: {f'{value:.0f}' if value >= 1e4 else f'{value:.4g}'}, "
        if taken + len(rows[-1]) + len(item) > WIDTH:
            taken = len(_INDENT)
            rows.append("")
        rows[-1] += item
    return "{" + f"\n{_INDENT}".join(row.rstrip() for row in rows).rstrip(",") + "}"


# ====================
# Scripts from templates: what a trace says goes in as data, and the result is held against the template.


def render(template: str, choices: Mapping[str, Choice], /, **data: Any) -> str:
    """A script from a template.

    The template is rendered twice: with the data, and with DATA in its place. If the two differ in more than
    that, text of a trace got into the script in a way that nobody meant.

    Args:
        template: name.
        choices: what its structure depends on.
        data: what it is filled with: numbers, texts, lists, which become literals, or SourceText.

    Raises:
        Unreplayable: the script is not its template with other data.
    """
    for name, choice in choices.items():
        if not (
            choice <= MAKERS
            if isinstance(choice, frozenset)
            else isinstance(choice, bool | Kit | CollectiveKind)
        ):
            raise TypeError(f"{name} may not affect the structure of a script")
    sources = {
        name: value if isinstance(value, SourceText) else SourceText(literal(value))
        for name, value in data.items()
    }
    if with_data := [name for name, source in sources.items() if not is_outline(source.outline)]:
        raise TypeError(f"the outline of {', '.join(with_data)} contains data")
    fixed = {**choices, "version": __version__}
    compiled = _environment().get_template(template)
    text = compiled.render(fixed, **{name: source.text for name, source in sources.items()})
    outline = compiled.render(fixed, **{name: source.outline for name, source in sources.items()})
    if reason := difference(text.encode("utf-8", "surrogatepass"), outline):
        raise Unreplayable(f"{UNFAITHFUL}{reason}; please report this as a bug")
    return text


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("tracelens.reproducers"),
        autoescape=False,  # Python, not HTML; `render` checks what comes out
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )


# ====================
# A script is its template and data, and nothing else: checked on the bytes that Python would read.
#
# The outline of a script is its template with the name DATA in each place of data. Nothing of a trace stands
# in an outline, so whatever a trace says, the script's syntax tree has to be the outline's, where each DATA
# is an expression of constants; and its comments have to be the outline's.


def is_outline(text: str) -> bool:
    """Whether source is an outline of expressions, calls and loops, with no data in it."""
    return _ALLOWED.fullmatch(text) is not None


def difference(script: bytes, outline: str) -> str:
    """How a script differs from its outline in more than data; "" if it does not."""
    if not script.startswith(FIRST_LINES) or script.translate(None, _PRINTABLE):
        return "unexpected first lines or characters"
    try:
        tree, comments = ast.parse(script), _comments(script)
        expected_tree, expected_comments = _parsed(outline)
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return "it does not parse"
    if comments != expected_comments:
        return "its comments differ from the template's"
    return "" if _same(tree, expected_tree) else "its syntax tree differs from the template's"


@lru_cache(maxsize=64)
def _parsed(outline: str) -> tuple[ast.Module, list[str]]:
    script = outline.encode()
    return ast.parse(script), _comments(script)


def _comments(script: bytes) -> list[str]:
    tokens = tokenize.tokenize(io.BytesIO(script).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def _same(node: object, outline: object) -> bool:
    """Whether two syntax trees are equal, but for expressions of data in the place of DATA."""
    if isinstance(outline, ast.Name) and outline.id == DATA:
        return _is_data(node)
    if type(node) is not type(outline):
        return False
    if isinstance(outline, ast.AST):
        ours, expected = vars(node), vars(outline)
        return all(_same(ours.get(name), expected.get(name)) for name in outline._fields)
    if isinstance(node, list) and isinstance(outline, list):
        return len(node) == len(outline) and all(map(_same, node, outline))
    return node == outline


def _is_data(node: object) -> bool:
    """Whether an expression consists of constants and calls of MAKERS."""
    match node:
        case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return True
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return all(map(_is_data, elements))
        case ast.Dict(keys=keys, values=values):
            return all(map(_is_data, [*keys, *values]))
        case ast.Call(
            func=ast.Name(id="float"), args=[ast.Constant(value="inf" | "-inf" | "nan")], keywords=[]
        ):
            return True
        case ast.Call(func=ast.Name(id=name), args=elements, keywords=[]):
            return name in MAKERS and all(map(_is_data, elements))
        case ast.BinOp(left=ast.List() as elements, op=ast.Mult(), right=ast.Constant(value=int())):
            return _is_data(elements)
        case ast.ListComp(
            elt=element,
            generators=[
                ast.comprehension(
                    target=ast.Name(id="_"),
                    iter=ast.Call(func=ast.Name(id="range"), args=[ast.Constant()], keywords=[]),
                    ifs=[],
                    is_async=0,
                )
            ],
        ):
            return _is_data(element)
        case ast.Name(id=name):
            return name in SIZES
    return False
