"""What a profiler leaves out of a call, from one step outside the window: `rank<N>.values.json.zst`.

Statistics and sizes only, never what activations or weights are. One JSON object:

    schema      "tracelens.values/1"
    step        number of the step, counted from 0
    cut         what was left out, in words; "" for nothing
    calls       those of equal arguments as one, without views; aten::copy_ inside others too:
        op          name
        count       such calls in the step
        arguments   one an argument of the op's schema; null where nothing is said, else one of
            shape, dtype, stride    a tensor; no stride where it is contiguous
              align                 bytes that divide its address, where these are fewer than ALIGNED
              same                  number of the argument before it that is the same tensor
              age                   bits of the number of bytes that calls touched since one touched it; left
                                    out where they are more than MAX_CACHE_AGE
              sizes                 of the groups whose ends it holds
              hits                  pairs: how often an index occurs, how many of them do; left out by scrub
              sorted                whether these indices never fall
            tensors                 a list: such tensors, each with `count`, how many in a row are alike;
                                    without a dtype where there is none (of Tensor?[]); `same` as above
            value                   number, text, or list of numbers
              below                 what whole numbers in a tensor are below, for generated kernels
        source      of a generated Triton kernel, whose name `op` then is: its file's in the following
    sources     name to text of files that torch.compile generated, each named by the begin of its SHA-256

In the step, what has to be read of a tensor is copied to the host, without waiting for it: statistics on
the GPU would load kernels that the program does not use, and wait for each. They are made when the file is
written.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import torch
import zstandard
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from tracelens.arrays import Int
from tracelens.limits import MAX_CACHE_AGE
from tracelens.outputs import whole_file
from tracelens.recording.pace import wait_for_gpus

SCHEMA = "tracelens.values/1"
MAX_BYTES = 2 << 20
"""Most bytes of a rank's file."""
ALIGNED = 16
"""Bytes that vectorized loads want; what the allocator gives out is aligned to 512."""
_LIST = 30  # numbers or tensors of a list that the profiler records
_MOST_NUMBERS = 1 << 12  # numbers in a list, groups of a GEMM
_MOST_INDICES = 1 << 22  # to copy more would take too long
_MOST_COPIED = 64 << 20  # bytes that wait for their statistics
_MOST_HITS = 64  # pairs
_MOST_BELOW = 1 << 24  # rows of a table
_MOST_SOURCES = 4 << 20  # bytes of all generated files
_MOST_TEXT = 64 << 20  # bytes of all calls as they are kept meanwhile
_GROUPED = re.compile(r"group|attention")  # a vector of whole numbers says where groups end
_INDEXED = re.compile(r"index|gather|scatter|embedding|nll_loss|take|put|bincount")
_TEXT = re.compile(r"\w{1,32}")  # of rounding_mode, approximate and the like; no names of people or paths
_CACHED = "is_cuda"  # of tensors, AMD's too, whose times depend on what caches hold
_COPIES = ("aten::_to_copy", "aten::clone")  # whose kernels a trace has under aten::copy_
# Ops inside others, which a trace has their kernels under, and how many first arguments they share.
_INSIDE = {
    "aten::_scaled_dot_product_cudnn_attention": ("aten::_cudnn_attention_forward", 4),
    "aten::_scaled_dot_product_cudnn_attention_backward": ("aten::_cudnn_attention_backward", 9),
}
_EXCHANGE = re.compile(r"all_?to_?all")
_INTEGERS = (torch.int64, torch.int32)
_PLAIN = (Tensor, Parameter)
_SEVERAL = (list, tuple)
_NUMBERS = (bool, int, float)
_FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError)


class Values:
    """Notes the arguments of calls while it is open, on this thread and autograd's."""

    def __init__(self, *, indices: bool) -> None:
        self.cut: dict[str, int] = {}  # what is left out, and how many times
        self._indices = indices
        # As text, or for what waits for statistics its number in `_waiting`; with how many there are.
        self._calls: dict[Any, int] = {}
        self._size = 0
        self._waiting: list[dict[str, Any]] = []
        self._copies: list[tuple[dict[str, Any], Tensor, Callable[[Tensor], dict[str, Any]]]] = []
        self._copied = 0  # bytes of these
        self._copies_made = 0  # ever
        self._noting = False
        self._mode: TorchDispatchMode | None = None
        self._sources: dict[str, str] = {}
        self._keys: dict[str, str] = {}  # path of a generated file to its name in the former
        self._unwatch: Callable[[], None] = lambda: None
        self._schemas: dict[int, _Schema] = {}  # by id of an op
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
        if not self._noting or (schema := self._schema(op)).is_view:
            return
        try:
            copies = self._copies_made
            arguments, tells = self._arguments(schema, args, kwargs)
            if tells:
                waits = self._copies_made != copies
                self._count(schema.name, arguments, waits)
                if schema.name in _INSIDE:
                    inner, shared = _INSIDE[schema.name]
                    self._count(inner, arguments[:shared], waits)
        except _FAILURES as error:
            self._leave_out(f"calls that could not be read ({type(error).__name__})")

    def done(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note what a call has touched, once it is done."""
        if not self._noting or (schema := self._schema(op)).is_view:
            return
        try:
            if schema.name in _COPIES and isinstance(result, Tensor):
                pair = [self._tensor(of, "", reads=False) for of in (result, args[0])]
                if any("age" in tensor for tensor in pair):
                    self._count("aten::copy_", pair)
            self._touch(args)
            self._touch(kwargs.values())
            if not schema.only_makes_room:
                self._touch((result,))
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
            names, copies = kernel.fn.arg_names, self._copies_made
            self._noting = False  # copies are no calls of the program
            arguments = [
                self._of_generated(value, is_read=not names[index].startswith("out_ptr"))
                for index, value in enumerate(values)
            ]
            waits = self._copies_made != copies
            self._count(name, arguments, waits, source=self._keys[kernel.filename])
            self._touch(values)
        except (*_FAILURES, OSError, KeyError) as error:
            self._leave_out(f"generated kernels that could not be read ({type(error).__name__})")
        finally:
            self._noting = True

    def _of_generated(self, value: Any, is_read: bool) -> dict[str, Any] | None:
        if isinstance(value, Tensor):
            argument = self._tensor(value, "", reads=False)
            if is_read and value.dtype in _INTEGERS and value.numel() and not _is_captured(value):
                self._copy(value if value.numel() <= _MOST_INDICES else value.max(), argument, _below)
            return argument
        if value is not None and not _is_finite(value):
            raise TypeError("an argument of another kind")
        return None if value is None else {"value": value}

    def _touch(self, values: Iterable[Any]) -> None:
        for value in values:
            if type(value) in _PLAIN:
                if getattr(value, _CACHED):
                    self._bytes += value.nbytes
                    self._touched[value.untyped_storage().data_ptr()] = self._bytes
            elif isinstance(value, _SEVERAL):
                self._touch(value)

    def _count(
        self, op: str, arguments: Sequence[dict[str, Any] | None], waits: bool = False, **more: str
    ) -> None:
        """Count a call, some of whose statistics may have to wait."""
        call = {"op": op, **more, "arguments": arguments}
        if waits:
            self._calls[len(self._waiting)] = 1
            self._waiting.append(call)
        else:
            self._keep(_text(call))

    def _keep(self, text: bytes, count: int = 1) -> None:
        if text not in self._calls:
            if self._size + len(text) > _MOST_TEXT:
                self._leave_out("calls beyond what is kept", count)
                return
            self._size += len(text)
        self._calls[text] = self._calls.get(text, 0) + count

    def _copy(self, tensor: Tensor, into: dict[str, Any], made: Callable[[Tensor], dict[str, Any]]) -> None:
        """Copy a tensor, of which something is said later."""
        if self._copied + tensor.nbytes > _MOST_COPIED:
            self._settle()
        self._copies.append((into, tensor.to("cpu", non_blocking=True, copy=True), made))
        self._copied += tensor.nbytes
        self._copies_made += 1

    def _settle(self) -> None:
        """Say what had to wait."""
        try:
            if self._copies:
                wait_for_gpus()
            for argument, copied, made in self._copies:
                argument.update(made(copied))
            waiting = [_text(call) for call in self._waiting]
        except _FAILURES as error:
            self._leave_out(f"calls that could not be read ({type(error).__name__})", len(self._waiting))
            waiting = []
        calls, self._calls, self._size = self._calls, {}, 0
        for key, count in calls.items():
            if isinstance(key, bytes):
                self._keep(key, count)
            elif waiting:
                self._keep(waiting[key], count)
        self._waiting, self._copies, self._copied = [], [], 0

    def write(self, path: Path, step: int) -> None:
        """Write the file; without calls none.

        Raises:
            OSError: it cannot be written.
        """
        self._settle()
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
        schema = self._schemas.get(id(op))  # ops stay, and their own hash is made in Python
        if schema is None:
            schema = self._schemas[id(op)] = _Schema.of(op)
        return schema

    def _leave_out(self, what: str, count: int = 1) -> None:
        self.cut[what] = self.cut.get(what, 0) + count

    def _arguments(
        self, schema: _Schema, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any] | None], bool]:
        """The arguments in the order of the schema, and whether they tell what a trace lacks."""
        name, given = schema.name, len(args)
        arguments: list[dict[str, Any] | None] = []
        tells = schema.exchanges
        seen: dict[tuple[Any, ...], int] = {}  # tensors of an argument to its number
        for index, declared in enumerate(schema.arguments):
            value = args[index] if index < given else kwargs.get(declared.name, declared.default)
            argument: dict[str, Any] | None = None
            if value is None:
                pass
            elif isinstance(value, Tensor):
                argument = self._tensor(value, name, reads=not declared.is_written)
                tells |= len(argument) > 2 + ("stride" in argument)
            elif _is_finite(value) or (isinstance(value, str) and _TEXT.fullmatch(value)):
                argument = {"value": value}
                tells |= declared.is_tensor or isinstance(value, str)
            elif not isinstance(value, _SEVERAL):
                pass
            elif any(isinstance(item, Tensor) for item in value):
                reads = not declared.is_written
                tensors = [
                    self._tensor(item, name, reads=reads) if isinstance(item, Tensor) else {"shape": []}
                    for item in value
                ]
                ages = [tensor.pop("age", None) for tensor in tensors if "dtype" in tensor]
                argument = {"tensors": tensors}
                if None not in ages:
                    argument["age"] = max(ages)
                tells |= len(value) > _LIST or name.startswith("aten::")
            elif all(map(_is_finite, value)):
                tells |= len(value) > _LIST
                if len(value) <= _MOST_NUMBERS:
                    argument = {"value": list(value)}
                else:
                    self._leave_out(f"lists of over {_MOST_NUMBERS:,} numbers")
            if argument and schema.compares and "value" not in argument:
                first = seen.setdefault(_identity(value), index)
                if first != index:
                    argument["same"], tells = first, True
            arguments.append(argument)
        return arguments, tells

    def _tensor(self, tensor: Tensor, op: str, *, reads: bool) -> dict[str, Any]:
        """What is said of a tensor."""
        dtype = tensor.dtype
        noted: dict[str, Any] = {"shape": tuple(tensor.shape), "dtype": str(dtype)[6:]}  # torch.float32
        if not tensor.is_contiguous():
            noted["stride"] = tensor.stride()
        if type(tensor) not in _PLAIN or tensor.is_meta:
            return noted
        if tensor.dim() and (address := tensor.data_ptr() % ALIGNED):
            noted["align"] = address & -address
        if reads and dtype in _INTEGERS and tensor.dim() and tensor.numel() and not _is_captured(tensor):
            self._read(tensor, op, noted)
        # When it was last touched, if that may still be in a cache.
        if getattr(tensor, _CACHED):
            touched = self._touched.get(tensor.untyped_storage().data_ptr())
            if touched is not None and (age := (self._bytes - touched).bit_length()) <= MAX_CACHE_AGE:
                noted["age"] = age
        return noted

    def _read(self, tensor: Tensor, op: str, noted: dict[str, Any]) -> None:
        """Note the whole numbers in a tensor, where a call depends on them."""
        if _GROUPED.search(op):
            if tensor.dim() == 1 and len(tensor) <= _MOST_NUMBERS:
                noted["sizes"] = ()
                self._copy(tensor, noted, _sizes)
        elif _INDEXED.search(op) and self._indices:
            # What is expanded repeats the same indices; it is made by expansion again.
            steps = tensor.stride()
            own = tensor[tuple(slice(None) if step else 0 for step in steps)] if 0 in steps else tensor
            if own.numel() <= _MOST_INDICES:
                noted |= {"hits": (), "sorted": False}
                self._copy(own, noted, _hits)
            else:
                self._leave_out(f"index tensors of over {_MOST_INDICES:,} elements")


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
    exchanges: bool  # whether it sends to other ranks
    compares: bool  # whether two of its arguments can be the same
    only_makes_room: bool  # what does touches nothing

    @classmethod
    def of(cls, op: Any) -> _Schema:
        name = op._schema.name
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
        return cls(
            name,
            arguments,
            is_view=not writes and any(made.alias_info for made in op._schema.returns),
            exchanges=bool(_EXCHANGE.search(name)),
            compares=sum(declared.is_tensor for declared in arguments) > 1,
            only_makes_room="empty" in name,
        )


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
    return isinstance(value, _NUMBERS) and math.isfinite(value)


def _is_captured(tensor: Tensor) -> bool:
    """Whether nothing can be read, because a graph is captured."""
    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _identity(value: Any) -> tuple[Any, ...]:
    """What is the same for the same tensors only."""
    return tuple(
        (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if type(tensor) in _PLAIN and tensor.numel()
        else id(tensor)
        for tensor in (value if isinstance(value, _SEVERAL) else [value])
    )


def _text(call: dict[str, Any]) -> bytes:
    """A call as text, in which tensors of a list that are alike in a row are one."""
    arguments = [
        argument | {"tensors": [{**tensor, "count": len([*alike])} for tensor, alike in groupby(tensors)]}
        if argument and (tensors := argument.get("tensors"))
        else argument
        for argument in call["arguments"]
    ]
    return orjson.dumps(call | {"arguments": arguments})


def _below(values: Tensor) -> dict[str, Any]:
    below = int(values.max()) + 1
    return {"below": below} if 0 < below <= _MOST_BELOW else {}


def _sizes(ends: Tensor) -> dict[str, Any]:
    """The sizes of groups that end there."""
    numbers = ends.tolist()
    return {"sizes": [end - begin for begin, end in zip([0, *numbers], numbers, strict=False)]}


def _hits(indices: Tensor) -> dict[str, Any]:
    """How often an index occurs, and how many do; close numbers as one where there are many."""
    index: Int = indices.reshape(-1).numpy()
    first, last = int(index.min()), int(index.max())
    counts = (
        np.bincount(index - first) if last - first < _MOST_BELOW else np.unique(index, return_counts=True)[1]
    )
    rows = np.bincount(counts)
    rows[0] = 0
    times = np.flatnonzero(rows)
    pairs = list(zip(times.tolist(), rows[times].tolist(), strict=True))
    width = -(-len(pairs) * 2 // _MOST_HITS) if len(pairs) > _MOST_HITS else 1
    hits: list[tuple[int, int]] = [] if width > 1 else pairs
    for low in range(0, len(pairs), width) if width > 1 else ():
        group = pairs[low : low + width]
        number = sum(rows for _, rows in group)
        least, more = divmod(sum(times * rows for times, rows in group), number)
        hits += [(least, number - more), *([(least + 1, more)] if more else [])]
    return {"hits": hits, "sorted": not bool((index[1:] < index[:-1]).any())}
