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

In the step, what calls get is kept as it is there: of tensors their sizes and addresses, never they
themselves. What has to be read of one is copied to the host, without waiting for it: statistics on the GPU
would load kernels that the program does not use, and wait for each. All else is done when the file is
written.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from inspect import unwrap
from itertools import groupby, islice
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

try:
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
except ImportError:  # of another version of torch
    set_code_exec_strategy = None

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
_MOST_KEPT = 1 << 21  # items of a tape: 48 MB of 80,000 calls
_MOST_TEXT = 64 << 20  # bytes of all calls as they are kept meanwhile
_ROOM = 1 << 20  # bytes of pinned memory that are got first
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
_AS_THEY_ARE = (*_NUMBERS, str)
_FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError)

_Tape = list[Any]
"""What is kept of calls, flat, since many more objects would have Python collect garbage often: of each its
schema or generated kernel, how many arguments it has by place and by name, these, and what it gave."""
_Read = tuple[Tensor, Callable[[Tensor], dict[str, Any]]]
"""A copy of the whole numbers in a tensor, and what makes statistics of them."""


class Values:
    """Notes the arguments of calls while it is open, on this thread and autograd's."""

    def __init__(self, *, indices: bool) -> None:
        self.cut: dict[str, int] = {}  # what is left out, and how many times
        self.is_open = False
        self._indices = indices
        self._mode: TorchDispatchMode | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._schemas: dict[int, _Schema | None] = {}  # by id of an op
        self._tape: _Tape = []
        self._copies = _HostCopies()
        self._calls = _DistinctCalls(self._leave_out)

    def open(self) -> None:
        """Begin; not inside another mode, which the program may leave before this one ends."""
        self.is_open = _get_current_dispatch_mode() is None
        if self.is_open:
            if torch.cuda.is_initialized():
                with suppress(RuntimeError):  # the first copy tries again
                    self._copies.make_room()
            self._mode = _CallMode(self)
            self._mode.__enter__()
            self._unwatch = _watched(self.note_generated)
        else:
            self._leave_out("step, whose begin lies inside a TorchDispatchMode")

    def close(self, cut: str = "") -> None:
        """End, where it is too early for the reason `cut`.

        A mode stays, and notes nothing, while the program is in one of its own or this is another thread.
        """
        if self.is_open and cut:
            self._leave_out(cut)
        self.is_open = False
        self._unwatch()
        if self._mode is not None and _get_current_dispatch_mode() is self._mode:
            mode, self._mode = self._mode, None
            mode.__exit__(None, None, None)

    def schema(self, op: Any) -> _Schema | None:
        """What is asked of an op at each call; None where nothing is."""
        try:
            return self._schemas[id(op)]  # ops stay, and their own hash is made in Python
        except KeyError:
            schema = self._schemas[id(op)] = _Schema.of(op)
            return schema

    def note(self, schema: _Schema, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Tape | None:
        """What is kept of a call that is about to be made. What fails is counted and ends no training."""
        tape: _Tape = [schema, len(args), len(kwargs)]
        try:
            if schema.reads:
                self._keep_and_read(schema, args, kwargs, tape)
            else:
                _keep(args, tape)
                for name in kwargs:
                    tape.append(name)
                    _keep((kwargs[name],), tape)
        except _FAILURES as error:
            self._leave_out(f"calls that could not be read ({type(error).__name__})")
            return None
        return tape

    def _keep_and_read(
        self, schema: _Schema, args: Sequence[Any], kwargs: Mapping[str, Any], tape: _Tape
    ) -> None:
        read = self._read_ends if schema.is_grouped else self._read_indices
        for written, value in zip(schema.written.values(), args, strict=False):
            _keep((value,), tape, None if written else read)
        for name in kwargs:
            tape.append(name)
            _keep((kwargs[name],), tape, None if schema.written[name] else read)

    def done(self, tape: _Tape, result: Any) -> None:
        """Note a call that is made, and what it gave."""
        size = len(tape)
        try:
            _keep((result,), tape)
        except _FAILURES as error:
            self._leave_out(f"calls that could not be read ({type(error).__name__})")
            tape[size:] = [None]
        self._tape.extend(tape)
        if len(self._tape) > _MOST_KEPT:
            self._settle()

    def note_generated(self, kernel: Any, values: Sequence[Any]) -> None:
        """Note a launch of a kernel that torch.compile generated."""
        if not self.is_open:
            return
        self.is_open = False  # copies are no calls of the program
        try:
            names = kernel.fn.arg_names[: len(values)]
            tape: _Tape = [kernel, len(names), 0]
            for name, value in zip(names, values, strict=False):
                if not (value is None or isinstance(value, Tensor) or _is_finite(value)):
                    raise TypeError("an argument of another kind")
                _keep((value,), tape, None if name.startswith("out_ptr") else self._read_any)
            self.done(tape, None)
        except _FAILURES as error:
            self._leave_out(f"generated kernels that could not be read ({type(error).__name__})")
        finally:
            self.is_open = True

    def _read_ends(self, tensor: Tensor) -> _Read | None:
        if tensor.dim() != 1 or len(tensor) > _MOST_NUMBERS:
            return None
        return self._copy(tensor), _sizes

    def _read_indices(self, tensor: Tensor) -> _Read | None:
        if not self._indices or not tensor.dim():
            return None
        # What is expanded repeats the same indices; it is made by expansion again.
        steps = tensor.stride()
        own = tensor[tuple(slice(None) if step else 0 for step in steps)] if 0 in steps else tensor
        if own.numel() > _MOST_INDICES:
            self._leave_out(f"index tensors of over {_MOST_INDICES:,} elements")
            return None
        return self._copy(own), _hits

    def _read_any(self, tensor: Tensor) -> _Read:
        return self._copy(tensor if tensor.numel() <= _MOST_INDICES else tensor.max()), _below

    def _copy(self, tensor: Tensor) -> Tensor:
        if self._copies.size + tensor.nbytes > _MOST_COPIED:
            self._settle()
        return self._copies.of(tensor)

    def _settle(self) -> None:
        """Tell what was noted."""
        tape, self._tape = self._tape, []
        copies, self._copies = self._copies, _HostCopies()
        if copies.size:
            wait_for_gpus()
        for note in _notes(tape):
            self._calls.tell(note)

    def write(self, path: Path, step: int) -> None:
        """Write the file; without calls none.

        Raises:
            OSError: it cannot be written.
        """
        self._settle()
        calls = self._calls.most_first()
        if not calls and not self.cut:
            path.unlink(missing_ok=True)
            return
        while True:
            texts = [text[:-1] + b', "count": %d}' % count for text, count in calls]
            cut = "; ".join(f"{count:,} {what}" for what, count in self.cut.items())
            listed = b",\n".join(texts)
            sources = {key: source for key, source in self._calls.sources.items() if key.encode() in listed}
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

    def _leave_out(self, what: str, count: int = 1) -> None:
        self.cut[what] = self.cut.get(what, 0) + count


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

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch wraps the following, so that torch.compile leaves it alone.

        That takes longer than a note, and imports the compiler; its code is marked instead.
        """
        return set_code_exec_strategy is None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and any(kind not in _PLAIN for kind in types):
            return NotImplemented  # DTensor and the like call ops on plain tensors, which come here again
        kwargs = kwargs or {}
        values = self._values
        schema = values.schema(func) if values.is_open else None
        if schema is None:
            return func(*args, **kwargs)
        tape = values.note(schema, args, kwargs)
        result = func(*args, **kwargs)
        if tape is not None:
            values.done(tape, result)
        return result


if set_code_exec_strategy is not None:
    set_code_exec_strategy(
        unwrap(_CallMode.__torch_dispatch__).__code__,
        _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP),  # it and what it calls
    )


class _Declared(NamedTuple):
    """An argument of an op, by its schema."""

    name: str
    default: Any
    is_tensor: bool  # or a list of tensors


class _Schema:
    """What is asked of an op, most of it after the step; torch makes objects of it each time."""

    def __init__(self, op: Any) -> None:
        self.name: str = op._schema.name
        self.is_grouped = bool(_GROUPED.search(self.name))  # whole numbers in tensors are where groups end
        self.reads = self.is_grouped or bool(_INDEXED.search(self.name))  # whether it depends on these
        self._op = op

    @classmethod
    def of(cls, op: Any) -> _Schema | None:
        """That of an op; None of views, of which a trace has all."""
        if not isinstance(op, torch._ops.OpOverload) or op.namespace == "profiler":
            return None
        return None if op.is_view and op._schema.returns else cls(op)

    @cached_property
    def arguments(self) -> list[_Declared]:
        return [
            _Declared(
                declared.name,
                declared.default_value,
                is_tensor="Tensor" in str(declared.type),
            )
            for declared in self._op._schema.arguments
        ]

    @cached_property
    def written(self) -> dict[str, bool]:
        """Whether it writes an argument, by name."""
        return {
            declared.name: declared.alias_info is not None and bool(declared.alias_info.is_write)
            for declared in self._op._schema.arguments
        }

    @cached_property
    def compares(self) -> bool:
        """Whether two of its arguments can be the same."""
        return sum(declared.is_tensor for declared in self.arguments) > 1


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


def _keep(values: Sequence[Any], tape: _Tape, read: Callable[[Tensor], _Read | None] | None = None) -> None:
    """Put values on a tape, and read whole numbers in tensors.

    Of a tensor: its kind, what `_KeptTensor` has; of several values: their kind, how many, each; numbers and
    text as they are; None of others.
    """
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            address, dtype = value.data_ptr(), value.dtype
            tape += (
                Tensor,
                value.shape,
                dtype,
                None if value.is_contiguous() else value.stride(),
                address,
                value.storage_offset() if address else _without_address(value),
                getattr(value, _CACHED),
                read(value) if read is not None and dtype in _INTEGERS and _is_readable(value) else None,
            )
        elif value is None or isinstance(value, _AS_THEY_ARE):
            tape.append(value)
        elif isinstance(value, _SEVERAL):
            tape += (list, len(value))
            _keep(value, tape, read)
        elif isinstance(value, Tensor):
            stride = None if value.is_contiguous() else value.stride()
            tape += (Tensor, value.shape, value.dtype, stride, 0, (id(value), 0), False, None)
        else:
            tape.append(None)


def _without_address(tensor: Tensor) -> tuple[int | None, int]:
    """What tells a tensor from others, None if sizes do, and the address of its storage."""
    return None if tensor.numel() else id(tensor), tensor.untyped_storage().data_ptr()


class _KeptTensor(NamedTuple):
    """What is kept of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...] | None  # None where contiguous
    address: int
    offset: Any  # in its storage; without an address as `_without_address` has it
    is_cached: bool  # whether times depend on what caches hold of it
    read: _Read | None

    @property
    def storage(self) -> int:
        """The address of its storage."""
        address: int = self.address - self.offset * self.dtype.itemsize if self.address else self.offset[1]
        return address

    @property
    def identity(self) -> Any:
        """What is the same for the same tensor only."""
        if self.address or self.offset[0] is None:
            return self.address, self.dtype, self.shape, self.stride
        return self.offset[0]


class _NotedCall(NamedTuple):
    """A call; each value is a `_KeptTensor`, a list, a number, text or None."""

    of: Any  # _Schema or the generated kernel
    args: list[Any]
    kwargs: dict[str, Any]
    result: Any


def _notes(tape: _Tape) -> Iterator[_NotedCall]:
    """The calls on a tape."""
    items = iter(tape)
    for of in items:
        by_place, by_name = next(items), next(items)
        args = [_value(items) for _ in range(by_place)]
        kwargs = {next(items): _value(items) for _ in range(by_name)}
        yield _NotedCall(of, args, kwargs, _value(items))


def _value(items: Iterator[Any]) -> Any:
    """The next value of a tape."""
    item = next(items)
    if item is Tensor:
        shape, *rest = islice(items, 7)
        return _KeptTensor(tuple(shape), *rest)
    return [_value(items) for _ in range(next(items))] if item is list else item


class _HostCopies:
    """Tensors copied to the host without waiting, into few pieces of pinned memory: to get one takes long."""

    def __init__(self) -> None:
        self.size = 0  # bytes
        self._room: dict[torch.dtype, Tensor] = {}  # the same memory as numbers of each kind
        self._used = self._end = 0  # bytes of it

    def make_room(self, size: int = _ROOM) -> None:
        """Get memory, pinned where a GPU is in use."""
        with torch.inference_mode(False):  # what is made in it could not be written outside
            room = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=torch.cuda.is_initialized())
            self._room = {dtype: room.view(dtype) for dtype in _INTEGERS}
        self._used, self._end = 0, size

    def of(self, tensor: Tensor) -> Tensor:
        """A copy, whose content is there once the GPUs were waited for."""
        self.size += tensor.nbytes
        if not getattr(tensor, _CACHED) or not tensor.is_contiguous():
            return tensor.to("cpu", non_blocking=True, copy=True)
        size = -(-tensor.nbytes // 8) * 8
        if self._used + size > self._end:
            self.make_room(max(_ROOM, 2 * self._end, size))
        begin = self._used // tensor.itemsize
        self._used += size
        copy = self._room[tensor.dtype].as_strided(tensor.shape, tensor.stride(), begin)
        return copy.copy_(tensor, non_blocking=True)


class _DistinctCalls:
    """What is told of notes, once copies are made: distinct calls as text, with how many there are."""

    def __init__(self, leave_out: Callable[..., None]) -> None:
        self.sources: dict[str, str] = {}
        self._leave_out = leave_out
        self._counts: dict[bytes, int] = {}
        self._size = 0
        self._keys: dict[str, str] = {}  # path of a generated file to its name in `sources`
        self._touched: dict[int, int] = {}  # address of a storage to the place of its last touch in the next
        self._bytes = 0  # that all calls have touched

    def most_first(self) -> list[tuple[bytes, int]]:
        return sorted(self._counts.items(), key=lambda call: -call[1])

    def tell(self, note: _NotedCall) -> None:
        """Tell of a call, unless a trace has all of it. What fails is counted."""
        is_generated = not isinstance(note.of, _Schema)
        try:
            if is_generated:
                self._tell_generated(note.of, note.args)
            else:
                self._tell(*note)
        except (*_FAILURES, OSError, LookupError) as error:
            kind = "generated kernels" if is_generated else "calls"
            self._leave_out(f"{kind} that could not be read ({type(error).__name__})")

    def _tell(self, schema: _Schema, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        arguments, tells = self._arguments(schema, args, kwargs)
        if tells:
            self._count(schema.name, arguments)
            if schema.name in _INSIDE:
                inner, shared = _INSIDE[schema.name]
                self._count(inner, arguments[:shared])
        if schema.name in _COPIES and isinstance(result, _KeptTensor):
            pair = [self._tensor(result), self._tensor(args[0])]
            if any("age" in tensor for tensor in pair):
                self._count("aten::copy_", pair)
        self._touch(args)
        self._touch(kwargs.values())
        if "empty" not in schema.name:  # which only makes room
            self._touch((result,))

    def _tell_generated(self, kernel: Any, args: list[Any]) -> None:
        if kernel.filename not in self._keys:
            source = Path(kernel.filename).read_text(encoding="utf-8")
            if sum(map(len, self.sources.values())) + len(source) > _MOST_SOURCES:
                self._leave_out("generated kernels beyond what is kept")
                return
            key = hashlib.sha256(source.encode()).hexdigest()[:16]
            self._keys[kernel.filename], self.sources[key] = key, source
        arguments = [
            None
            if value is None
            else self._tensor(value)
            if isinstance(value, _KeptTensor)
            else {"value": value}
            for value in args
        ]
        self._count(kernel.inductor_meta["kernel_name"], arguments, source=self._keys[kernel.filename])
        self._touch(args)

    def _touch(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, list):
                self._touch(value)
            elif isinstance(value, _KeptTensor) and value.is_cached:
                self._bytes += math.prod(value.shape) * value.dtype.itemsize
                self._touched[value.storage] = self._bytes

    def _count(self, op: str, arguments: Sequence[dict[str, Any] | None], **more: str) -> None:
        text = _text({"op": op, **more, "arguments": arguments})
        if text not in self._counts:
            if self._size + len(text) > _MOST_TEXT:
                self._leave_out("calls beyond what is kept")
                return
            self._size += len(text)
        self._counts[text] = self._counts.get(text, 0) + 1

    def _arguments(
        self, schema: _Schema, args: list[Any], kwargs: dict[str, Any]
    ) -> tuple[list[dict[str, Any] | None], bool]:
        """The arguments in the order of the schema, and whether they tell what a trace lacks."""
        arguments: list[dict[str, Any] | None] = []
        tells = bool(_EXCHANGE.search(schema.name))  # what goes to other ranks
        seen: dict[tuple[Any, ...], int] = {}  # tensors of an argument to its number
        for index, declared in enumerate(schema.arguments):
            value = args[index] if index < len(args) else kwargs.get(declared.name, declared.default)
            argument: dict[str, Any] | None = None
            if isinstance(value, _KeptTensor):
                argument = self._tensor(value)
                tells |= len(argument) > 2 + ("stride" in argument)
            elif _is_finite(value) or (isinstance(value, str) and _TEXT.fullmatch(value)):
                argument = {"value": value}
                tells |= declared.is_tensor or isinstance(value, str)
            elif not isinstance(value, list):
                pass
            elif any(isinstance(item, _KeptTensor) for item in value):
                tensors = [
                    self._tensor(item) if isinstance(item, _KeptTensor) else {"shape": []} for item in value
                ]
                ages = [tensor.pop("age", None) for tensor in tensors if "dtype" in tensor]
                argument = {"tensors": tensors}
                if None not in ages:
                    argument["age"] = max(ages)
                tells |= len(value) > _LIST or schema.name.startswith("aten::")
            elif all(map(_is_finite, value)):
                tells |= len(value) > _LIST
                if len(value) <= _MOST_NUMBERS:
                    argument = {"value": value}
                else:
                    self._leave_out(f"lists of over {_MOST_NUMBERS:,} numbers")
            if argument and schema.compares and "value" not in argument:
                tensors_of = value if isinstance(value, list) else [value]
                identity = tuple(
                    item.identity if isinstance(item, _KeptTensor) else None for item in tensors_of
                )
                first = seen.setdefault(identity, index)
                if first != index:
                    argument["same"], tells = first, True
            arguments.append(argument)
        return arguments, tells

    def _tensor(self, tensor: _KeptTensor) -> dict[str, Any]:
        """What is said of a tensor."""
        noted: dict[str, Any] = {"shape": tensor.shape, "dtype": str(tensor.dtype)[6:]}  # torch.float32
        if tensor.stride is not None:
            noted["stride"] = tensor.stride
        if tensor.shape and (beyond := tensor.address % ALIGNED):
            noted["align"] = beyond & -beyond
        if tensor.read is not None:
            copy, statistics = tensor.read
            noted |= statistics(copy)
        # When it was last touched, if that may still be in a cache.
        if tensor.is_cached and (touched := self._touched.get(tensor.storage)) is not None:
            age = (self._bytes - touched).bit_length()
            if age <= MAX_CACHE_AGE:
                noted["age"] = age
        return noted


def _is_finite(value: object) -> bool:
    """Whether JSON has this number."""
    return isinstance(value, _NUMBERS) and math.isfinite(value)


def _is_readable(tensor: Tensor) -> bool:
    """Whether something is in it that can be read; not where a graph is captured."""
    if not tensor.numel() or tensor.is_meta:
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


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
