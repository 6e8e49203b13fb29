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
from itertools import groupby, takewhile
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
    NUMBERS,
    OP,
    Argument,
    TensorArgument,
    Unreplayable,
    complete,
    fill,
    read_arguments,
    same_tensors,
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
_NOTED = "Lists, groups, indices and texts are those of such a call in a step beside the recording."
_LIST_TYPE = "Element types in tensor lists are not recorded; they follow from the kernel."
# Kernels that only move elements are compiled for a width.
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")
_OF_WIDTH = {"1": "uint8", "2": "bfloat16", "4": "float32", "8": "int64", "16": "complex128"}
_NAME = 80  # characters of a file's name that are the op's
_LAUNCH_NS = 100  # calls with a least time below this are nothing but the start of a kernel
_RECENT = ("mi300x", "mi355x", "h100", "h200", "b200")


class Kit(NamedTuple):
    """What a script for an op is made of besides the common parts."""

    template: str = ""  # under templates/reference/, "" for none
    # whether that has `expected(args)`; without it the op in double precision is what is expected
    reference: bool = True
    named: bool = False  # whether that has a use for `named(args)`, the arguments by name
    prepare: bool = False  # whether that has `prepared(args)`, which completes the arguments
    slack: int = 3  # how many roundings of the least precise input type a result may be off
    compared: int = -1  # how many results are compared with the reference; -1: all
    unchecked: str = ""  # why none is
    functional: bool = False  # whether the op returns all that it makes
    overload: str = ""  # the one that is called (in `kit` its source), "" where the script has to find it
    direct: str = ""  # source of its call, "" where arguments are called by their names
    written: str = "args[0]"  # source of what it writes to, unless it is functional
    data: Mapping[str, Any] = {}  # what the template is given


_SDPA = "_scaled_dot_product_"
_ALONE = Kit(functional=True, overload="default")
_CONVOLUTION = _ALONE._replace(template="convolution", named=True)
_BATCH_NORM = _CONVOLUTION._replace(template="batch_norm", compared=1, data={"backward": False})
_BATCH_NORM_BACKWARD = _CONVOLUTION._replace(template="batch_norm", data={"backward": True})
_SCALED_GROUPED = _ALONE._replace(template="grouped", data={"ends_at": 4, "scaled": True})
_FIRST = Kit(compared=1)
_RANDOM = Kit(compared=0, unchecked="its results are random")
_ADDING = frozenset({"index_add", "scatter_add"})
_MOST_ARGUMENTS = {
    1: "silu sigmoid tanh relu neg exp log sqrt rsqrt sin cos abs erf reciprocal zero bitwise_not "
    "logical_not isnan nonzero log1p expm1 ceil floor sign _foreach_sqrt _foreach_zero "
    "_foreach_neg _foreach_reciprocal _foreach_abs _foreach_exp",
    2: "mm bmm dot mv silu_backward gelu sigmoid_backward tanh_backward clone cat stack tril triu "
    "logical_and logical_or flip repeat leaky_relu maximum minimum",
    3: "linear native_dropout _softmax _log_softmax gelu_backward threshold_backward copy "
    "index_select masked_scatter cumsum argmax argmin constant_pad_nd roll hardtanh bincount "
    "split_with_sizes_copy _chunk_cat _foreach_copy",
    4: "_fused_rms_norm histc _softmax_backward_data _log_softmax_backward_data gather scatter_add "
    "index_put _unsafe_index_put addcmul addcdiv index_copy",
    5: "addmm baddbmm addmv embedding embedding_dense_backward native_layer_norm index_add "
    "nll_loss_forward _index_put_impl topk _grouped_mm",
    6: "_fused_rms_norm_backward max_pool2d_with_indices slice_backward",
    7: "avg_pool2d nll_loss_backward _conv_depthwise2d",
    8: "native_layer_norm_backward native_group_norm native_batch_norm "
    "max_pool2d_with_indices_backward _scaled_mm",
    9: "convolution _scaled_grouped_mm",
    10: "native_group_norm_backward native_batch_norm_backward",
    11: "convolution_backward",
}
_ONE_OVERLOAD = {name: count for count, names in _MOST_ARGUMENTS.items() for name in names.split()}
"""Ops of ATen whose calls with up to so many arguments are those of one overload, the default."""
_TAKING_NONE = frozenset({
    "_grouped_mm", "_scaled_grouped_mm", "_scaled_mm", "convolution", "convolution_backward",
    "_conv_depthwise2d", "native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm",
    "_fused_rms_norm_backward", "nll_loss_forward", "nll_loss_backward",
})  # fmt: skip
"""Those of them where None stands for a tensor that is not there."""
_TOLD_BY = {
    **dict.fromkeys(
        ("add", "sub", "mul", "div", "rsub", "eq", "ne", "lt", "le", "gt", "ge", "remainder", "fill",
         "bitwise_and", "bitwise_or", "bitwise_xor", "_foreach_add", "_foreach_sub", "_foreach_mul",
         "_foreach_div"), 1,
    ),
    **dict.fromkeys(["lerp", "masked_fill", "_foreach_lerp"], 2),
    **dict.fromkeys(["_foreach_addcmul", "_foreach_addcdiv"], 3),
}  # fmt: skip
"""Position of the argument whose kind is the name of the overload, by op."""
_ONE_BY_ONE = re.compile(r"aten::(_foreach_|_fused_adam|cat\Z)")
"""Ops that take the tensors of all their lists in any order."""
_OPTIMIZERS = ("_fused_adam", "_fused_adamw")
_PUTTING = frozenset({"index_put", "_unsafe_index_put", "_index_put_impl"})
"""These add where their fourth argument says so, and else write."""
_WRITING = _PUTTING | {"scatter", "index_copy"}


class AttentionArguments(NamedTuple):
    """Where an attention op and its backward op have their arguments."""

    forward: str  # name
    backward: str  # name
    # arguments of the forward op that the backward op has, by their position there, or what they are instead
    taken: tuple[int | bool, ...]
    saved: Mapping[int, int]  # position among backward's arguments to that among forward's results
    scale: tuple[int, int]  # positions of the scale, with which keywords begin, in both ops
    causal: tuple[int, int]
    dropout: tuple[int, int]
    bias: tuple[int, int] = (-1, -1)  # -1: has none
    heads_first: bool = True


_ATTENTION = (
    AttentionArguments("_cudnn_attention_forward", "_cudnn_attention_backward",
              (1, 2, 3, 8, 9, 10, 11, 12, True, 13, 14, False), {4: 0, 5: 1, 6: 6, 7: 7},
              scale=(12, 15), causal=(10, 14), dropout=(9, 13), bias=(3, 8)),
    AttentionArguments("_flash_attention_forward", "_flash_attention_backward",
              (1, 2, 3, 6, 7, 8, 9, 10, 11, False), {4: 0, 5: 1, 12: 2, 13: 3},
              scale=(10, 14), causal=(8, 11), dropout=(7, 10), heads_first=False),
    AttentionArguments("_efficient_attention_forward", "_efficient_attention_backward",
              (1, 2, 3, 4, 6, 7, 8, 9, 11, 14, True), {5: 0, 10: 1, 12: 2, 13: 3},
              scale=(11, 16), causal=(9, 14), dropout=(8, 11), bias=(3, 4), heads_first=False),
    AttentionArguments(f"{_SDPA}flash_attention", f"{_SDPA}flash_attention_backward",
              (1, 2, 3, 10, 11, False), {4: 0, 5: 1, 6: 2, 7: 3, 8: 4, 9: 5, 12: 6, 13: 7},
              scale=(6, 14), causal=(4, 11), dropout=(3, 10)),
    AttentionArguments(f"{_SDPA}efficient_attention", f"{_SDPA}efficient_attention_backward",
              (1, 2, 3, 4, True, 9, 11), {5: 0, 6: 1, 7: 2, 8: 3},
              scale=(7, 12), causal=(6, 11), dropout=(5, 9), bias=(3, 4)),
    AttentionArguments(f"{_SDPA}cudnn_attention", f"{_SDPA}cudnn_attention_backward",
              (1, 2, 3, 8, True, 13, 14, False), {4: 0, 5: 1, 6: 6, 7: 7, 9: 2, 10: 3, 11: 4, 12: 5},
              scale=(8, 15), causal=(6, 14), dropout=(5, 13), bias=(3, 8)),
)  # fmt: skip
_ATTENTION_OPS = {
    name: (attention, backward)
    for attention in _ATTENTION
    for backward, name in enumerate((attention.forward, attention.backward))
}
_WINDOWS = ("window_size_left", "window_size_right")
_KEYWORDS = {
    **dict.fromkeys(("add", "sub", "_foreach_add", "_foreach_sub"), (2, "alpha")),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), (3, "beta", "alpha")),
    **dict.fromkeys(("addcmul", "addcdiv"), (3, "value")),
    "gelu": (1, "approximate"), "gelu_backward": (2, "approximate"), "clone": (1, "memory_format"),
    "gather": (3, "sparse_grad"), "sort": (1, "stable", "dim", "descending"),
    "index_add": (4, "alpha"), "cumsum": (2, "dtype"),
    "sum": (3, "dtype"), "mean": (3, "dtype"),
    **dict.fromkeys(_OPTIMIZERS, (
        6, "lr", "beta1", "beta2", "weight_decay", "eps", "amsgrad", "maximize", "grad_scale", "found_inf",
    )),
    **{name: (attention.scale[backward], "scale") for name, (attention, backward) in _ATTENTION_OPS.items()},
    "_flash_attention_forward": (10, "scale", *_WINDOWS, "seqused_k", "alibi_slopes"),
    "_flash_attention_backward": (14, "scale", *_WINDOWS),
    "_efficient_attention_forward": (11, "scale", "seqlen_k", "window_size"),
    "_efficient_attention_backward": (
        16, "scale", "num_splits_key", "window_size", "shared_storage_dqdkdv",
    ),
}  # fmt: skip
"""How many arguments have a position, and the names of those behind, which have none."""


def _attention(attention: AttentionArguments, backward: int, arguments: Sequence[Argument]) -> Kit:
    """The kit of an attention op with these arguments."""
    name = attention.backward if backward else attention.forward
    base = _ALONE._replace(direct=_direct(name, "default", arguments, of_any=True))
    unchecked = ""
    if attention.dropout[backward] < len(arguments) and arguments[attention.dropout[backward]]:
        unchecked = "its results are random"
    if any(isinstance(argument, TensorArgument) and argument.maker == "ends" for argument in arguments):
        unchecked = "no reference for packed sequences"
    known = [argument is not None for argument in arguments]

    def at(index: int, instead: str, form: str = "args[{}]") -> str:
        return form.format(index) if 0 <= index < len(known) and known[index] else instead

    by_shift: dict[int, list[int]] = {}
    for place, index in attention.saved.items():
        by_shift.setdefault(place - index, []).append(place)
    spans = [(shift, min(places), max(places) + 1) for shift, places in by_shift.items()]
    scale = attention.scale[backward]
    numbered = "_efficient_attention_" in f"{name}_" and not name.startswith(_SDPA)
    words = [
        at(index, "None") if index is not True and index is not False else str(index)
        for index in attention.taken
    ]
    words += [f"scale=args[{scale}]"] if at(scale, "") else []
    return base._replace(
        template="attention",
        prepare=bool(backward),
        # The first rows of a causal attention are sums of a few large values that may cancel; gradients of
        # the first keys are sums over all rows.
        slack=24 if backward else 12,
        compared=0 if unchecked else 3 if backward else 1,
        unchecked=unchecked,
        data={
            "forward": attention.forward,
            "taken": f"\n{' ' * 12}".join(textwrap.wrap(", ".join(words), WIDTH - 13)),
            "saved": ", ".join(f"saved[{begin - shift}:{end - shift}]" for shift, begin, end in spans),
            "places": ", ".join(f"args[{begin}:{end}]" for _, begin, end in spans),
            "first": backward,
            "bias": at(attention.bias[backward], "None", "args[{}].double()"),
            "causal": at(attention.causal[backward], "False", "args[{}] == 1" if numbered else "args[{}]"),
            "scale": at(scale, "None"),
            "heads_first": attention.heads_first,
        },
    )


_KITS: dict[str, Kit] = {
    **dict.fromkeys(
        ("miopen_convolution", "miopen_depthwise_convolution", "miopen_convolution_transpose",
         "cudnn_convolution", "cudnn_convolution_transpose", "mkldnn_convolution"), _CONVOLUTION,
    ),
    **dict.fromkeys(("miopen_batch_norm", "cudnn_batch_norm"), _BATCH_NORM),
    **dict.fromkeys(("miopen_batch_norm_backward", "cudnn_batch_norm_backward"), _BATCH_NORM_BACKWARD),
    "native_batch_norm_backward": _ALONE._replace(template="single"),
    "histc": _ALONE._replace(template="single"),
    "max_pool2d_with_indices_backward": _ALONE._replace(
        template="max_pool_backward", reference=False, prepare=True
    ),
    "_grouped_mm": _ALONE._replace(template="grouped", data={"ends_at": 2, "scaled": False}),
    "_scaled_grouped_mm": _SCALED_GROUPED,
    "_scaled_mm": _ALONE._replace(template="scaled_mm"),
    **dict.fromkeys(_OPTIMIZERS, Kit("fused_optimizer", written="args[:5]")),
    **dict.fromkeys(
        ("_softmax_backward_data", "_log_softmax_backward_data"), _ALONE._replace(template="softmax_backward")
    ),
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
    "sum([*zip(*COUNT)][rank])",
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
        _GATHERED,
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
_RUNS = 64  # kinds of tensors in a list, written side by side; the profiler's own lists have up to 30
_INDENT = "    "
_UNPRINTABLE = re.compile(r"[^ -~]")

DATA = "DATA"


class SourceText(NamedTuple):
    """Python source made of data."""

    text: str  # as it stands in a script
    outline: str = DATA  # the same without the data, see `is_outline`; else one expression


Choice = bool | Kit | CollectiveKind | frozenset[str]
"""What a template's structure depends on; never text of a trace. A set is one of MAKERS."""

UNFAITHFUL = "its script was not written: "
"""How the reason begins where a script would be more than its template and data."""

FIRST_LINE = b"# -*- coding: utf-8 -*-\n"
"""Of each script. Python looks for a declared encoding (PEP 263) in the second line only without one here."""
MAKERS = frozenset(
    ("strided", "positive", "mask", "indices", "distinct", "hits", "ends", "routed", "each", "shared", "Like")
)
"""Functions of templates that data may call or name: they make inputs of given sizes."""
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
    recorded = read_arguments(*case.call.recorded, of_lists=of_lists, noted=case.noted)
    traced = complete(op, recorded, case.call.kernel, case.call.blocks)
    arguments = traced if max_elements is None else scaled(op, traced, max_elements)
    unscaled = arguments == traced
    cost = case.cost if unscaled else None
    filled = _in_runs(op, fill(op, arguments))
    inputs = tensors(filled)
    # Tolerated error: some roundings of the coarsest input type, 0 where there are only integers.
    trimmed = filled[: len(filled) - len([*takewhile(lambda argument: argument is None, reversed(filled))])]
    op_kit = kit(op, trimmed)
    if op_kit.direct:  # arguments behind the last one keep their defaults
        filled = trimmed
    else:
        op_kit = kit(op, filled)
    if op_kit.template == "attention" and op_kit.prepare:  # what the forward op leaves is not made
        saved = _ATTENTION_OPS[op.removeprefix("aten::")][0].saved
        filled = [None if index in saved else argument for index, argument in enumerate(filled)]
        inputs = tensors(filled)
    eps = max((epsilon(tensor.dtype) for tensor in inputs), default=0.0)
    rtol = max(op_kit.slack * eps, _SUMS) if eps else 0.0
    median_us = round(float(np.median(case.times)) / 1e3, 3)
    shapes = describe(case.call.shapes, case.call.dtypes)
    comments = [
        f"{op} {shapes}",
        f"{timed((case.times / 1e3).tolist(), case.devices)}, rank {', '.join(map(str, case.ranks))}",
        f"Kernels: {', '.join(case.kernels)}",
        *in_graph(case.sources),
        *([_NOTED] if case.noted else [_BY_GRID] if case.call.blocks >= 0 else []),
        *([_LIST_TYPE] if "TensorList" in case.call.dtypes and not case.noted else []),
        *([] if unscaled else ["Sizes are scaled down from those above."]),
    ]
    same = same_tensors(filled, case.noted)
    for later, _ in same:
        filled[later] = None
    lists: ListTables = {}
    source = call_arguments(filled, lists, same, "return prepared(" if op_kit.prepare else "return ")
    least = least_us(cost, case.devices)
    text = render(
        "op.py.j2",
        {
            "kit": op_kit,
            "library": not op.startswith("aten::"),
            "kinds": makers(inputs) | ({"each"} if lists else set()) | ({"shared"} if same else set()),
            "gaps": not all(tensor.is_dense for tensor in inputs),
            "bools": any(tensor.dtype == "bool" and tensor.maker == "strided" for tensor in inputs),
            "rated": bool(least),
            "complex": any(tensor.dtype.startswith("complex") for tensor in inputs),
            "floats": all(
                tensor.dtype.startswith(("float", "bfloat", "complex")) and element_bytes(tensor.dtype) > 1
                for tensor in inputs
                if tensor.maker in ("strided", "positive", "distinct")
            ),
            "lists": bool(lists),
            "in_place": op.endswith("_")
            or not op_kit.direct
            or op_kit.direct.endswith(f"out=args[{len(filled) - 1}])"),
            "long": len(op) > 36,
        },
        about=about(comments),
        op=op,
        traced_us=median_us if unscaled else None,
        traced_on=plain(", ".join(case.devices)),
        flops=cost.flops if cost else 0,
        bytes=cost.read_bytes + cost.write_bytes if cost else 0,
        least_us=SourceText(mapping(least, len("LEAST_US = {}"))),
        arguments=source,
        tensor_lists=list_sizes(lists),
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
        ages=case.ages if unscaled else (),
    )


def _in_runs(op: str, arguments: list[Argument]) -> list[Argument]:
    """The arguments with tensors of a shape side by side: long lists are short so, and take the same time."""
    lists = [argument for argument in arguments if isinstance(argument, list) and len(argument) > _FEW]
    if not _ONE_BY_ONE.match(op) or len(set(map(len, lists))) != 1:
        return arguments
    rows = sorted(zip(*lists, strict=True), key=lambda row: [_maker(item)[1:] for item in row])
    in_runs = iter(zip(*rows, strict=True))
    return [list(next(in_runs)) if argument in lists else argument for argument in arguments]


def makers(inputs: Sequence[TensorArgument]) -> frozenset[str]:
    """The functions of a script that make these."""
    return frozenset(tensor.maker for tensor in inputs) & MAKERS


def least_us(cost: OpCost | None, traced_on: Sequence[str]) -> dict[str, float]:
    """Least time of a call on recent devices and the traced one, by the name that tells the device.

    Without those on which it takes next to nothing: starting a kernel is all that such a call is.
    """
    traced = {match(name) for name in traced_on} if cost else set()
    return {
        device.aliases[0]: least / 1e3
        for device in devices()
        if cost
        and (device.name in _RECENT or device in traced)
        and (least := least_ns(cost, device)) > _LAUNCH_NS
    }


# ====================
# Ops that need more than a call: another reference, a stand-in, what a forward pass leaves.


def kit(op: str, arguments: Sequence[Argument]) -> Kit:
    """What a script for this op with these arguments needs."""
    name = op.removeprefix("aten::").removesuffix("_")
    if name in _ATTENTION_OPS and op.startswith("aten::"):
        return _attention(*_ATTENTION_OPS[name], arguments)
    op_kit = _KITS.get(name, Kit())
    if op.startswith("aten::"):
        overload = op_kit.overload or _overload(name, arguments)
        of_any = name in _TAKING_NONE
        direct = "" if op_kit.named or op_kit.prepare else _direct(op[6:], overload, arguments, of_any)
        # An op in place returns what it writes to, unless that is a list.
        functional = op_kit.functional or bool(
            overload and not op[6:].startswith(("_foreach", "_fused_adam"))
        )
        functional &= not (op.endswith("_") and not direct)
        qualified = f"torch.ops.aten.{op[6:]}.{overload}" if overload else ""
        op_kit = op_kit._replace(overload=qualified, direct=direct, functional=functional)
    if (repeats := _repeats(arguments)) > 1:
        if name in _ADDING or (name in _PUTTING and len(arguments) > 3 and arguments[3] is True):
            # Each addition to an element rounds, up or down.
            return op_kit._replace(slack=math.ceil(op_kit.slack * math.sqrt(repeats)))
        if name in _WRITING:
            return op_kit._replace(compared=0, unchecked="the last write to an element wins, in any order")
    if op_kit.template == "scaled_mm":
        # Unless each scale is one for all, or lies beside its rows, columns or blocks.
        scales = [scale for scale in arguments[2:4] if isinstance(scale, TensorArgument)]
        if not all(len(scale.shape) == 2 or scale.numel == 1 for scale in scales):
            return _ALONE._replace(compared=0, unchecked="its scales are swizzled")
    dims = tuple(len(operand.shape) for operand in arguments[:2] if isinstance(operand, TensorArgument))
    if op_kit.template == "grouped":
        op_kit = op_kit._replace(data={**op_kit.data, "dims": dims})
    if name == "_scaled_grouped_mm" and dims != (2, 3):  # not rows of the first operand times a matrix each
        return _ALONE._replace(compared=0, unchecked="no reference for scaled groups of columns")
    return op_kit


def _overload(base: str, arguments: Sequence[Argument]) -> str:
    """The overload of an op of ATen that takes such arguments; "" where the script has to find it."""
    kinds = [
        "".join(sorted({_KINDS.get(type(item), "") for item in argument})) + "List"
        if isinstance(argument, list)
        else _KINDS.get(type(argument), "")
        for argument in arguments
    ]
    count = len(arguments)
    told_by = _TOLD_BY.get(base, count)
    most = _ONE_OVERLOAD.get(base, 0)
    if most and count == most + 1 and kinds[-1] == "Tensor":
        return "out"
    if base in ("sort", "arange", "pow", "scatter", "floor_divide", "clamp"):
        return _BY_KINDS.get((base, *kinds), "")
    if count <= most or (base in _OPTIMIZERS and kinds[6:7] == ["Scalar"]):
        return "default"
    if told_by < count <= told_by + 1 + (base in _KEYWORDS):
        return "List" if kinds[told_by] == "TensorList" else kinds[told_by]
    if base in ("sum", "mean") and kinds[1:2] == ["ScalarList"] and 2 < count <= 4:
        return "dim_IntList" if base == "sum" else "dim"
    if base in ("max", "min", "all", "any") and count != 2:
        return "default" if count == 1 else "dim" if kinds[1] == "Scalar" else ""
    if base == "where" and kinds == ["Tensor"] * 3:
        return "self"
    return "Tensor" if base == "index" and kinds[1:] == ["TensorList"] else ""


_BY_KINDS = {
    ("sort", "Tensor", "Scalar", "Scalar"): "default",
    ("sort", "Tensor", "Scalar", "Scalar", "Scalar"): "stable",
    ("arange", "Scalar", "Scalar", "Scalar", "Tensor"): "start_out",
    ("pow", "Tensor", "Scalar"): "Tensor_Scalar",
    ("scatter", "Tensor", "Scalar", "Tensor", "Tensor"): "src",
    ("scatter", "Tensor", "Scalar", "Tensor", "Scalar"): "value",
    ("floor_divide", "Tensor", "Tensor"): "default",
    ("clamp", "Tensor", "Scalar"): "default",
    ("clamp", "Tensor", "Scalar", "Scalar"): "default",
    ("clamp", "Tensor", "", "Scalar"): "default",
}
"""Overloads of ops by the kinds of their arguments; of an op that works in place where that has the same."""
_KINDS = {TensorArgument: "Tensor", bool: "Scalar", int: "Scalar", float: "Scalar"}


def _direct(name: str, overload: str, arguments: Sequence[Argument], of_any: bool = False) -> str:
    """Source of a call with arguments in their order; "" where some are not known, unless None is fine."""
    positional, *keywords = _KEYWORDS.get(name.removesuffix("_"), (len(arguments),))
    if overload.endswith("out"):
        positional, keywords = min(positional, len(arguments) - 1), [*keywords, "out"]
    assert isinstance(positional, int)
    if not overload or (None in arguments and not of_any) or len(arguments) > positional + len(keywords):
        return ""
    words = ["*args" if len(arguments) <= positional else f"*args[:{positional}]"]
    words += [
        f"{key}=args[{index}]"
        for index, key in enumerate(keywords, positional)
        if index < len(arguments) and arguments[index] is not None
    ]
    head, inner = f"torch.ops.aten.{name}.{overload}(", ", ".join(words)
    if len(head) + len(inner) > WIDTH - len("    return tree_leaves())"):
        inner = "\n".join(["", *(f"{2 * _INDENT}{line}" for line in textwrap.wrap(inner, WIDTH - 10))])
    return f"{head}{inner})"


def _repeats(arguments: Sequence[Argument]) -> int:
    """How often the indices that a script makes meet the same element, at most."""
    made = tensors(arguments)
    even = [-(-tensor.numel // max(tensor.maker_args[0], 1)) for tensor in made if tensor.maker == "indices"]
    hits = [times for tensor in made if tensor.maker == "hits" for times, _ in tensor.maker_args[1]]
    return max((*even, *hits), default=1)


# ====================
# Python source of what comes from a trace: literals, and calls of the functions that make inputs.


def plain(text: str, most: int = WIDTH - len('ABOUT = ["",')) -> str:
    """Text of a trace for people to read: one line of printable ASCII, shortened in its middle."""
    clean = _UNPRINTABLE.sub("?", text)
    return clean if len(clean) <= most else f"{clean[: most - 33]}...{clean[-30:]}"


def about(texts: Sequence[str]) -> SourceText:
    """What a script says about itself: a list with one text a line."""
    items = f",\n{' ' * len('ABOUT = [')}".join(literal(plain(text)) for text in texts)
    return SourceText(f"[{items}]")


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


def repeated(values: Sequence[Any]) -> str:
    """Source of a list of numbers, short where the same stand in a row."""
    runs = [(number, len([*same])) for number, same in groupby(values)]
    short = " + ".join(f"[{literal(number)}] * {count}" for number, count in runs)
    text = literal(list(values))
    return short if len(values) > 3 and len(short) < len(text) else text


ListTables = dict[tuple[tuple[int, ...], ...], list[tuple[tuple[int, ...], ...]]]
"""The shapes of lists of tensors, each with the strides of lists of these shapes; () for dense tensors."""


def code(argument: Argument, lists: ListTables | None = None) -> str:
    """Source of an argument; what `each` makes of long lists of tensors is added to `lists`, if given."""
    if isinstance(argument, TensorArgument):
        if argument.maker == "number":
            number = literal(argument.maker_args[0] if argument.maker_args else 2)
            return f"torch.tensor({number}, dtype=torch.{argument.dtype})"  # a Python number, to the profiler
        if argument.maker == "ends":
            return f"ends({literal(argument.dtype)}, {repeated(argument.maker_args[0])})"
        if argument.maker == "routed":
            return f"routed({', '.join(map(literal, (argument.dtype, *argument.maker_args)))})"
        maker_args = (argument.dtype, argument.shape, *argument.maker_args)
        strides = () if argument.is_dense else (argument.stride,)
        return f"{argument.maker}({', '.join(map(literal, (*maker_args, *strides)))})"
    if not isinstance(argument, list):
        return literal(argument)
    if not tensors(argument):
        return repeated(argument)
    items = [code(element) for element in argument]
    if len(items) > 1 and len(set(items)) == 1:
        return f"[{items[0]} for _ in range({len(items)})]"
    parts = [[*alike] for _, alike in groupby(argument, lambda item: _maker(item)[:2])]
    if lists is not None and len(items) > _FEW >= len(parts) and all(map(_maker, argument)):
        return " + ".join(_each(alike, lists) for alike in parts)
    if len(items) > _RUNS:
        raise Unreplayable(f"a list of {len(items):,} tensors of several types")
    return f"[{', '.join(items)}]"


def _each(alike: Sequence[TensorArgument], lists: ListTables) -> str:
    """Source of tensors of one type, whose shapes and strides are added to `lists`."""
    shapes = tuple(tensor.shape for tensor in alike)
    strides = tuple(() if tensor.is_dense else tensor.stride for tensor in alike)
    columns = lists.setdefault(shapes, [])
    columns += [] if strides in columns else [strides]
    number, column = [*lists].index(shapes), columns.index(strides)
    return f"each({alike[0].maker}, {literal(alike[0].dtype)}, {number}{f', {column}' if column else ''})"


def _maker(item: Argument) -> tuple[Any, ...]:
    """What makes a tensor of a list, its type, shape and strides; of others nothing."""
    if not isinstance(item, TensorArgument) or item.maker not in ("strided", "positive"):
        return ()
    return item.maker, item.dtype, item.shape, item.stride


def list_sizes(lists: ListTables) -> SourceText:
    """Source of what `each` makes tensors of: shape, how many in a row, strides by list unless dense."""
    margin, texts = " " * len("LISTS = ["), []
    for shapes, columns in lists.items():
        rows = []
        for (shape, *strides), same in groupby(zip(shapes, *columns, strict=True)):
            while strides and not strides[-1]:
                strides.pop()
            rows.append(literal((shape, len([*same]), *strides)))
        if len(rows) > _RUNS:
            raise Unreplayable(f"a list with {len(rows):,} different tensors in a row")
        texts.append(f"\n{margin} ".join(lines(rows, len(f"{margin}[],"))).removesuffix(","))
    return SourceText("[[" + f"],\n{margin}[".join(texts) + "]]")


def call_arguments(
    arguments: Sequence[Argument],
    lists: ListTables,
    same: Sequence[tuple[int, int]] = (),
    behind: str = "return ",
) -> SourceText:
    """Source of the list of arguments of a call, of which some are the `same`, in a line behind some text."""
    begin, end = ("shared([", f"], {literal(list(same))})") if same else ("[", "]")
    indent = len(f"{_INDENT}{behind}{begin}")
    wrapped = lines([code(argument, lists) for argument in arguments], indent + len(end))
    joined = f"\n{' ' * indent}".join(wrapped)
    return SourceText(f"{begin}{joined.removesuffix(',')}{end}")


def lines(items: Sequence[str], indent: int) -> list[str]:
    """Items of a list as lines, each with a comma behind it."""
    wrapped_lines: list[str] = []
    for item in items:
        if wrapped_lines and len(wrapped_lines[-1]) + len(item) + 2 <= WIDTH - indent:
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
    if not script.startswith(FIRST_LINE) or script.translate(None, _PRINTABLE):
        return "an unexpected first line or characters"
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
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="torch"), attr="tensor"),
            args=[ast.Constant(value=int() | float()) | ast.UnaryOp(op=ast.USub(), operand=ast.Constant())],
            keywords=[ast.keyword(arg="dtype", value=ast.Attribute(value=ast.Name(id="torch"), attr=dtype))],
        ):
            return dtype in NUMBERS
        case ast.Call(func=ast.Name(id=name), args=elements, keywords=[]):
            return name in MAKERS and all(map(_is_data, elements))
        case ast.BinOp(left=ast.List() as elements, op=ast.Mult(), right=ast.Constant(value=int())):
            return _is_data(elements)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = (ast.List, ast.BinOp, ast.Call)
            return all(isinstance(part, parts) and _is_data(part) for part in (left, right))
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
            return name in SIZES or name in MAKERS
    return False
