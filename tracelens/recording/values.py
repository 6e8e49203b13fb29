"""What a profiler leaves out of a call, from one step outside the window: `rank<N>.values.json.zst`.

Statistics and sizes only, never what activations or weights are. One JSON object:

    schema      "tracelens.values/1"
    step        number of the step, counted from 0
    cut         what was left out, in words; "" for nothing
    calls       those of equal arguments as one, aten::copy_ inside others too:
        op          name
        count       such calls in the step
        arguments   one an argument of the op's schema; null where nothing is said, else one of
            shape, dtype, stride    a tensor; no stride where it is contiguous
              align                 bytes that divide its address, where these are fewer than ALIGNED
              same                  number of the argument before it that is the same tensor
              age                   bits of the number of bytes that calls touched since one touched it; left
                                    out where they are more than MAX_AGE
              sizes                 of the groups whose ends it holds
              hits                  pairs: how often an index occurs, how many of them do; left out by scrub
              sorted                whether these indices never fall
            tensors                 a list: such tensors, each with `count`, how many in a row are alike;
                                    without a dtype where there is none (of Tensor?[]); `same` as above
            value                   number, text, or list of numbers
              below                 what whole numbers in a tensor are below, for generated kernels
        source      of a generated Triton kernel, whose name `op` then is: its file's in the following
    sources     name to text of files that torch.compile generated, each named by the begin of its SHA-256
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import torch
import zstandard
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from tracelens.outputs import whole_file

SCHEMA = "tracelens.values/1"
MAX_BYTES = 2 << 20
"""Most bytes of a rank's file."""
ALIGNED = 16
"""Bytes that vectorized loads want; what the allocator gives out is aligned to 512."""
MAX_AGE = 29
"""A cache that keeps what was touched 512 MB before is on no GPU."""
_LIST = 30  # numbers or tensors of a list that the profiler records
_MOST_NUMBERS = 1 << 12  # numbers in a list, groups of a GEMM
_MOST_INDICES = 1 << 22  # to sort more would take too long, and too much memory
_MOST_HITS = 64  # pairs
_MOST_BELOW = 1 << 24  # rows of a table
_MOST_SOURCES = 4 << 20  # bytes of all generated files
_MOST_TEXT = 64 << 20  # bytes of all calls as they are kept meanwhile
_GROUPED = re.compile(r"group|attention")  # a vector of whole numbers says where groups end
_INDEXED = re.compile(r"index|gather|scatter|embedding|nll_loss|take|put|bincount")
_TEXT = re.compile(r"\w{1,32}")  # of rounding_mode, approximate and the like; no names of people or paths
_CACHED = "cuda"  # kind of device, AMD's too, whose times depend on what its caches hold
_COPIES = ("aten::_to_copy", "aten::clone")  # whose kernels a trace has under aten::copy_
# Ops inside others, which a trace has their kernels under, and how many first arguments they share.
_INSIDE = {
    "aten::_scaled_dot_product_cudnn_attention": ("aten::_cudnn_attention_forward", 4),
    "aten::_scaled_dot_product_cudnn_attention_backward": ("aten::_cudnn_attention_backward", 9),
}
_EXCHANGE = re.compile(r"all_?to_?all")
_INTEGERS = (torch.int64, torch.int32)
_FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError)


class Values:
    """Notes the arguments of calls while it is open, on this thread and autograd's."""

    def __init__(self, *, indices: bool) -> None:
        self.cut: dict[str, int] = {}  # what is left out, and how many times
        self._indices = indices
        self._calls: dict[bytes, int] = {}  # as text, with how many there are
        self._size = 0
        self._noting = False
        self._mode: TorchDispatchMode | None = None
        self._sources: dict[str, str] = {}
        self._keys: dict[str, str] = {}  # path of a generated file to its name in the former
        self._unwatch: Callable[[], None] = lambda: None
        self._schemas: dict[Any, _Schema] = {}  # by op
        self._touched: dict[int, int] = {}  # address of a storage to the place of its last touch in the next
        self._bytes = 0  # that all calls have touched

    def open(self) -> None:
        """Begin; not inside another mode, which the program may leave before this one ends."""
        self._noting = _get_current_dispatch_mode() is None
        if self._noting:
            self._mode = _CallMode(self)
            self._mode.__enter__()
            self._unwatch = _watched(self.note_generated)
        else:
            self._leave_out("step, whose begin lies inside a TorchDispatchMode")

    def close(self, cut: str = "") -> None:
        """End, where it is too early for the reason `cut`.

        A mode stays, and notes nothing, while the program is in one of its own or this is another thread.
        """
        if self._noting and cut:
            self._leave_out(cut)
        self._noting = False
        self._unwatch()
        if self._mode is not None and _get_current_dispatch_mode() is self._mode:
            mode, self._mode = self._mode, None
            mode.__exit__(None, None, None)

    def note(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note a call, unless a trace has all of it. What fails is counted and ends no training."""
        if not self._noting:
            return
        try:
            arguments, tells = self._arguments(op, args, kwargs)
            if tells:
                name = op._schema.name
                self._count(name, arguments)
                if name in _INSIDE:
                    inner, shared = _INSIDE[name]
                    self._count(inner, arguments[:shared])
        except _FAILURES as error:
            self._leave_out(f"calls that could not be read ({type(error).__name__})")

    def done(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note what a call has touched, once it is done."""
        if not self._noting or (schema := self._schema(op)).is_view:
            return
        try:
            if schema.name in _COPIES and isinstance(result, Tensor):
                ages = [self._age(of) for of in (result, args[0])]
                if any(ages):
                    pair = zip((result, args[0]), ages, strict=True)
                    self._count("aten::copy_", [self._tensor(of, "", reads=False) | age for of, age in pair])
            # What only makes room touches nothing.
            touched = [args, *kwargs.values(), *([] if "empty" in schema.name else [result])]
            self._touch(_tensors(touched))
        except _FAILURES as error:
            self._leave_out(f"calls that could not be read ({type(error).__name__})")

    def note_generated(self, kernel: Any, values: Sequence[Any]) -> None:
        """Note a launch of a kernel that torch.compile generated, and its source."""
        if not self._noting:
            return
        try:
            name = kernel.inductor_meta["kernel_name"]
            if kernel.filename not in self._keys:
                source = Path(kernel.filename).read_text(encoding="utf-8")
                if sum(map(len, self._sources.values())) + len(source) > _MOST_SOURCES:
                    self._leave_out("generated kernels beyond what is kept")
                    return
                key = hashlib.sha256(source.encode()).hexdigest()[:16]
                self._keys[kernel.filename], self._sources[key] = key, source
            names = kernel.fn.arg_names
            arguments = [
                self._of_generated(value, is_read=not names[index].startswith("out_ptr"))
                for index, value in enumerate(values)
            ]
            self._count(name, arguments, source=self._keys[kernel.filename])
            self._touch(values)
        except (*_FAILURES, OSError, KeyError) as error:
            self._leave_out(f"generated kernels that could not be read ({type(error).__name__})")

    def _of_generated(self, value: Any, is_read: bool) -> dict[str, Any] | None:
        if isinstance(value, Tensor):
            argument = self._tensor(value, "", reads=False) | self._age(value)
            capturing = value.is_cuda and torch.cuda.is_current_stream_capturing()
            if is_read and value.dtype in _INTEGERS and value.numel() and not capturing:
                below = int(value.max()) + 1
                argument |= {"below": below} if 0 < below <= _MOST_BELOW else {}
            return argument
        if value is not None and not _is_finite(value):
            raise TypeError("an argument of another kind")
        return None if value is None else {"value": value}

    def _touch(self, values: Iterable[Any]) -> None:
        for tensor in values:
            if type(tensor) in (Tensor, Parameter) and tensor.device.type == _CACHED:
                self._bytes += tensor.nbytes
                self._touched[tensor.untyped_storage().data_ptr()] = self._bytes

    def _count(self, op: str, arguments: Sequence[dict[str, Any] | None], **more: str) -> None:
        text = orjson.dumps({"op": op, **more, "arguments": arguments})
        if text not in self._calls:
            if self._size + len(text) > _MOST_TEXT:
                self._leave_out("calls beyond what is kept")
                return
            self._size += len(text)
        self._calls[text] = self._calls.get(text, 0) + 1

    def write(self, path: Path, step: int) -> None:
        """Write the file; without calls none.

        Raises:
            OSError: it cannot be written.
        """
        calls = sorted(self._calls.items(), key=lambda call: -call[1])
        if not calls and not self.cut:
            path.unlink(missing_ok=True)
            return
        while True:
            texts = [text[:-1] + b', "count": %d}' % count for text, count in calls]
            cut = "; ".join(f"{count:,} {what}" for what, count in self.cut.items())
            listed = b",\n".join(texts)
            sources = {key: source for key, source in self._sources.items() if key.encode() in listed}
            head = {"schema": SCHEMA, "step": step, "cut": cut, "sources": sources}
            document = json.dumps(head).encode()[:-1] + b', "calls": [' + listed + b"]}\n"
            packed = zstandard.compress(document)
            if len(packed) <= MAX_BYTES:
                break
            kept = len(calls) * 2 // 3
            self._leave_out(f"kinds of calls, to stay under {MAX_BYTES:,} bytes", len(calls) - kept)
            calls = calls[:kept]
        with whole_file(path) as file:
            file.write(packed)

    def _schema(self, op: Any) -> _Schema:
        schema = self._schemas.get(op)
        if schema is None:
            schema = self._schemas[op] = _Schema.of(op)
        return schema

    def _leave_out(self, what: str, count: int = 1) -> None:
        self.cut[what] = self.cut.get(what, 0) + count

    def _arguments(
        self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any] | None], bool]:
        """The arguments in the order of the schema, and whether they tell what a trace lacks."""
        schema = self._schema(op)
        name = schema.name
        arguments: list[dict[str, Any] | None] = []
        tells = bool(_EXCHANGE.search(name))
        seen: dict[tuple[Any, ...], int] = {}  # tensors of an argument to its number
        for index, declared in enumerate(schema.arguments):
            value = args[index] if index < len(args) else kwargs.get(declared.name, declared.default)
            argument: dict[str, Any] | None = None
            if isinstance(value, Tensor):
                argument = self._tensor(value, name, reads=not declared.is_written) | self._age(value)
                tells |= not argument.keys() <= {"shape", "dtype", "stride"}
            elif _is_finite(value) or (isinstance(value, str) and _TEXT.fullmatch(value)):
                argument = {"value": value}
                tells |= isinstance(value, str) or declared.is_tensor
            elif isinstance(value, list | tuple) and any(isinstance(item, Tensor) for item in value):
                tensors = [
                    self._tensor(item, name, reads=not declared.is_written)
                    if isinstance(item, Tensor)
                    else {"shape": []}
                    for item in value
                ]
                runs = [(tensor, len([*alike])) for tensor, alike in groupby(tensors)]
                argument = {"tensors": [{**tensor, "count": count} for tensor, count in runs]}
                ages = [self._age(item) for item in value if isinstance(item, Tensor)]
                if all(ages):
                    argument |= max(ages, key=lambda age: age["age"])
                tells |= len(value) > _LIST or name.startswith("aten::")
            elif isinstance(value, list | tuple) and all(map(_is_finite, value)):
                tells |= len(value) > _LIST
                if len(value) <= _MOST_NUMBERS:
                    argument = {"value": list(value)}
                else:
                    self._leave_out(f"lists of over {_MOST_NUMBERS:,} numbers")
            if argument and ("dtype" in argument or "tensors" in argument):
                first = seen.setdefault(_identity(value), index)
                if first != index:
                    argument["same"], tells = first, True
            arguments.append(argument)
        return arguments, tells

    def _tensor(self, tensor: Tensor, op: str, *, reads: bool) -> dict[str, Any]:
        """What is said of a tensor."""
        noted: dict[str, Any] = {
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }
        if not tensor.is_contiguous():
            noted["stride"] = list(tensor.stride())
        if type(tensor) not in (Tensor, Parameter) or tensor.device.type == "meta":
            return noted
        if tensor.dim() and (address := tensor.data_ptr() % ALIGNED):
            noted["align"] = address & -address
        if not (reads and tensor.dtype in _INTEGERS and tensor.dim() and tensor.numel()):
            return noted
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            return noted  # nothing can be read while a graph is captured
        if _GROUPED.search(op):
            if tensor.dim() == 1 and len(tensor) <= _MOST_NUMBERS:
                ends = tensor.tolist()
                noted["sizes"] = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
        elif _INDEXED.search(op) and self._indices:
            # What is expanded repeats the same indices; it is made by expansion again.
            own = tensor[tuple(slice(None) if stride else 0 for stride in tensor.stride())].reshape(-1)
            if len(own) <= _MOST_INDICES:
                noted |= {"hits": _hits(own), "sorted": not bool((own[1:] < own[:-1]).any())}
            else:
                self._leave_out(f"index tensors of over {_MOST_INDICES:,} elements")
        return noted

    def _age(self, tensor: Tensor) -> dict[str, int]:
        """When it was last touched, if that may still be in a cache."""
        if type(tensor) not in (Tensor, Parameter) or tensor.device.type != _CACHED:
            return {}
        touched = self._touched.get(tensor.untyped_storage().data_ptr())
        age = MAX_AGE + 1 if touched is None else (self._bytes - touched).bit_length()
        return {"age": age} if age <= MAX_AGE else {}


def _watched(note: Callable[[Any, Sequence[Any]], None]) -> Callable[[], None]:
    """Show the launches of generated kernels until the function that this returns is called."""
    kind = getattr(sys.modules.get("torch._inductor.runtime.triton_heuristics"), "CachingAutotuner", None)
    if kind is None:
        return lambda: None
    run = kind.run

    def noted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        note(kernel, args)
        return run(kernel, *args, **kwargs)

    kind.run = noted
    return lambda: setattr(kind, "run", run)


class _Declared(NamedTuple):
    """An argument of an op, by its schema."""

    name: str
    default: Any
    is_written: bool
    is_tensor: bool  # or a list of tensors


class _Schema(NamedTuple):
    """What is asked of an op at each call; torch makes objects of it each time."""

    name: str
    arguments: list[_Declared]
    is_view: bool

    @classmethod
    def of(cls, op: Any) -> _Schema:
        arguments = [
            _Declared(
                declared.name,
                declared.default_value,
                is_written=declared.alias_info is not None and bool(declared.alias_info.is_write),
                is_tensor="Tensor" in str(declared.type),
            )
            for declared in op._schema.arguments
        ]
        writes = any(declared.is_written for declared in arguments)
        is_view = not writes and any(made.alias_info for made in op._schema.returns)
        return cls(op._schema.name, arguments, is_view)


class _CallMode(TorchDispatchMode):  # type: ignore[misc]  # torch is Any where it is not installed
    """Shows each call below autograd to its owner, and changes nothing."""

    supports_higher_order_operators = True

    def __init__(self, values: Values) -> None:
        super().__init__()
        self._values = values

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What torch.compile compiled runs compiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in (Tensor, Parameter) for kind in types):
            return NotImplemented  # DTensor and the like call ops on plain tensors, which come here again
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload) or func.namespace == "profiler":
            return func(*args, **kwargs)
        self._values.note(func, args, kwargs)
        result = func(*args, **kwargs)
        self._values.done(func, args, kwargs, result)
        return result


def _is_finite(value: object) -> bool:
    """Whether JSON has this number."""
    return isinstance(value, bool | int | float) and math.isfinite(value)


def _tensors(values: Any) -> Iterator[Tensor]:
    """Those among arguments and results, in lists too."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _identity(value: Any) -> tuple[Any, ...]:
    """What is the same for the same tensors only."""
    return tuple(
        (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if type(tensor) in (Tensor, Parameter) and tensor.numel()
        else id(tensor)
        for tensor in (value if isinstance(value, list | tuple) else [value])
    )


def _hits(indices: Tensor) -> list[list[int]]:
    """How often an index occurs, and how many indices do; close numbers as one where there are many."""
    counts = indices.unique(return_counts=True)[1]
    times, rows = (part.tolist() for part in counts.unique(return_counts=True))
    pairs = list(zip(times, rows, strict=True))
    width = -(-len(pairs) * 2 // _MOST_HITS) if len(pairs) > _MOST_HITS else 1
    if width == 1:
        return [list(pair) for pair in pairs]
    hits: list[list[int]] = []
    for first in range(0, len(pairs), width):
        group = pairs[first : first + width]
        number = sum(rows for _, rows in group)
        least, more = divmod(sum(times * rows for times, rows in group), number)
        hits += [[least, number - more], *([[least + 1, more]] if more else [])]
    return hits
