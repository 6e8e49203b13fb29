"""Names for parts of a program: in the trace, the work of each part stands inside a scope of its name.

    with span("data"):                          # forward only: anything on the host
        batch = next(loader)

    y = scoped("L3.experts", experts, x)        # forward, and backward as "L3.experts.B"

    with region("L3.router") as r:              # the same where there is no single function to call
        scores = self.gate(r.enter(x))
        weights, chosen = r.leave(scores.topk(k))

What enters a region is handed on as a view, whose gradient is complete when the region's backward is done;
where its outputs were made, the backward begins. So `name.B` opens when the first gradient of an output
arrives and closes when that of every input has left, on the thread on which autograd runs. A region has no
backward scope if no gradient leaves it (pass a parameter through `enter` if none of its inputs needs one), if
none arrives, or if tensors leave on another device than they entered.

Scopes cost next to nothing while no profiler runs, and code that torch.compile compiles runs without them.

`Hooks` makes scopes for the modules of a model, by forward hooks; the model itself stays as it is.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, ParamSpec, TypeVar

import torch
import torch.autograd.profiler as _autograd_profiler
from torch.profiler import record_function

from tracelens.errors import TracelensError

T = TypeVar("T")
P = ParamSpec("P")
_NOTHING = nullcontext()
_REGIONS = "tracelens.regions"


class Region:
    """A part of the forward pass and of the backward pass; this one records nothing."""

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def enter(self, value: T) -> T:
        """What goes into the region, to be used instead of `value`.

        Args:
            value: a tensor, or tuples, lists and dicts of them; anything else is handed back as it is, also
                objects with tensors: their owner may rely on which object it is.
        """
        return value

    def leave(self, value: T) -> T:
        """What comes out of the region, `value` itself.

        Args:
            value: as for `enter`, and dataclasses.
        """
        return value


_OFF = Region()


class _Recorded(Region):
    """A region while a profiler runs."""

    def __init__(self, name: str) -> None:
        self._scope = record_function(name)
        self._backward = _BackwardScope(f"{name}.B")

    def __enter__(self) -> Region:
        self._scope.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._scope.__exit__(*error)

    def enter(self, value: T) -> T:
        return _mapped(value, self._backward.enter) if torch.is_grad_enabled() else value

    def leave(self, value: T) -> T:
        if self._backward.inputs:
            _visit(value, self._backward.leave)
        return value


class _BackwardScope:
    """The backward scope of one region in one forward pass.

    The graph's nodes at the outputs own it, and it knows the nodes at the inputs: the way gradients go. The
    nodes at the inputs must not own it in turn, or the whole graph would be held by a ring of references
    that goes through C++, where the garbage collector cannot see it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[tuple[Any, torch.device]] = []
        self.waiting: set[int] = set()
        self.open: _Open | None = None

    def enter(self, x: Any) -> Any:
        """A view of a tensor that needs a gradient; the view's node runs last in the region's backward."""
        if not x.requires_grad or x.layout != torch.strided:
            return x
        x = x.view_as(x)
        this, number = weakref.ref(self), len(self.inputs)

        def after(*_: Any) -> None:
            owner = this()
            if owner is not None:
                owner.arrived(number)

        x.grad_fn.register_hook(after)
        self.inputs.append((x.grad_fn, x.device))
        return x

    def leave(self, y: Any) -> None:
        """Open the scope when a gradient of `y` arrives."""
        node, device = y.grad_fn, y.device
        # What was made before the region was entered only passes through it.
        if node is None or node._sequence_nr() < self.inputs[0][0]._sequence_nr():
            return
        # So does what leaves as it entered; its node would own this, and this the node.
        if any(node is entry_node for entry_node, _ in self.inputs):
            return
        # The regions that end with this node, the innermost first; one hook opens them, the outermost first.
        ending: list[_BackwardScope] | None = node.metadata.get(_REGIONS)
        if ending is None:
            ending = node.metadata[_REGIONS] = []
            node.register_prehook(lambda _: _begin(ending, device))
        if self not in ending:
            ending.append(self)

    def begin(self, device: torch.device) -> None:
        """Open the scope, unless it is open in this backward pass or nothing would close it."""
        task = torch._C._current_graph_task_id()
        if self.open is not None:
            if self.open.task == task:
                return
            self.open.end()  # left by a backward pass that an exception ended
        # A device's nodes all run on one thread, and a scope must end on the thread that it began on.
        self.waiting = {
            number
            for number, (node, where) in enumerate(self.inputs)
            if where == device and torch._C._will_engine_execute_node(node)
        }
        if self.waiting:
            self.open = _Open(self, task)

    def arrived(self, number: int) -> None:
        """The gradient of an input is complete."""
        if self.open is None:
            return
        self.waiting.discard(number)
        if not self.waiting:
            self.open.end()
            self.open = None


class _Open:
    """A scope that was opened by autograd; those of a thread end in the reverse order of their beginning."""

    _thread = threading.local()

    def __init__(self, owner: _BackwardScope, task: int) -> None:
        self.owner, self.task = weakref.ref(owner), task
        self.scope: Any = record_function(owner.name)
        stack = self._stack()
        # Left likewise, and the graph is gone.
        while stack and stack[-1].owner() is None:
            stack.pop().scope.__exit__(None, None, None)
        stack.append(self)
        self.scope.__enter__()

    @classmethod
    def _stack(cls) -> list[_Open]:
        if not hasattr(cls._thread, "scopes"):
            cls._thread.scopes = []
        stack: list[_Open] = cls._thread.scopes
        return stack

    def end(self) -> None:
        """End the scope, and first those opened inside it that have not ended."""
        stack = self._stack()
        while self in stack:
            stack.pop().scope.__exit__(None, None, None)


Names = str | Callable[[str, Any], str | bool | None]
_BLOCKS = ("layers", "layer", "blocks", "h")
_PARTS = re.compile(
    r"(?:self_|cross_)?(?:attn|attention)|mlp|ffn|feed_forward|(?:block_sparse_)?moe|router"
    r"|(?:routed_|local_)?experts|shared_(?:experts?|mlp)|(?:token_)?dispatcher"
)
_INSIDE_EXPERTS = re.compile(r"(?:^|\.)(?:shared_|routed_|local_)?experts?\.")


class Hooks:
    """Hooks on modules as `choose` returns them, until removed."""

    def __init__(self, modules: dict[str, Any]) -> None:
        self._calls = threading.local()
        self._modules = modules
        self._handles = {name: self._hooked(name) for name in modules}

    def remove(self) -> None:
        for handles in self._handles.values():
            handles.close()
        self._handles.clear()

    @contextmanager
    def without(self, modules: Iterable[Any]) -> Iterator[None]:
        """Inside, these modules themselves have none of the hooks; those in them do."""
        bare = {id(module) for module in modules}
        names = [name for name in self._handles if id(self._modules[name]) in bare]
        for name in names:
            self._handles[name].close()
        try:
            yield
        finally:
            for name in set(names) & set(self._handles):  # none where all were removed meanwhile
                self._handles[name] = self._hooked(name)

    def _hooked(self, name: str) -> ExitStack:
        module, handles = self._modules[name], ExitStack()
        handles.enter_context(module.register_forward_pre_hook(self._before(name), with_kwargs=True))
        # Always: recomputation leaves a forward by an exception once it has what it needs.
        handles.enter_context(module.register_forward_hook(self._after, always_call=True))
        return handles

    def _before(self, name: str) -> Callable[..., tuple[Any, Any] | None]:
        def before(_: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
            if not recording():
                return None
            part = region(name)
            self._open().append(part)
            part.__enter__()
            return part.enter(args), part.enter(kwargs)

        return before

    def _after(self, _: Any, __: Any, output: Any) -> None:
        calls = self._open()
        if calls:  # none: the call began before the recording did
            part = calls.pop()
            part.leave(output)
            part.__exit__(None, None, None)

    def _open(self) -> list[Region]:
        if not hasattr(self._calls, "stack"):
            self._calls.stack = []
        stack: list[Region] = self._calls.stack
        return stack


def recording() -> bool:
    """Whether a profiler runs in this process, and scopes are worth opening."""
    # Compiled code must not depend on the profiler: it would be compiled anew when the recording begins.
    return not torch.compiler.is_dynamo_compiling() and bool(_autograd_profiler._is_profiler_enabled)


def span(name: str) -> AbstractContextManager[Any]:
    """Scope around whatever the `with` holds; it has no backward."""
    if not recording():
        # Dynamo knows contexts that it saw being made.
        return nullcontext() if torch.compiler.is_dynamo_compiling() else _NOTHING
    scope: AbstractContextManager[Any] = record_function(name)
    return scope


def region(name: str) -> Region:
    """Region of this name, to be entered by `with`; its backward is named `name.B`."""
    if not recording():
        return Region() if torch.compiler.is_dynamo_compiling() else _OFF
    return _Recorded(name)


def scoped(name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function as a region: its arguments enter, its result leaves."""
    if not recording():
        return function(*args, **kwargs)
    with _Recorded(name) as part:
        return part.leave(function(*part.enter(args), **part.enter(kwargs)))


def _begin(ending: list[_BackwardScope], device: torch.device) -> None:
    if recording():
        for backward in reversed(ending):
            backward.begin(device)


def _mapped(value: T, change: Callable[[Any], Any]) -> T:
    """A value with every tensor in its tuples, lists and dicts changed; other types are left alone."""
    mapped: Any = value
    if isinstance(mapped, torch.Tensor):
        mapped = change(mapped)
    elif type(mapped) in (tuple, list):
        mapped = type(mapped)(_mapped(item, change) for item in mapped)
    elif type(mapped) is dict:
        mapped = {key: _mapped(item, change) for key, item in mapped.items()}
    result: T = mapped
    return result


def _visit(value: Any, see: Callable[[Any], None]) -> None:
    """Every tensor of a value: in tuples, lists, mappings and dataclasses."""
    if isinstance(value, torch.Tensor):
        see(value)
    elif isinstance(value, tuple | list):
        for item in value:
            _visit(item, see)
    elif isinstance(value, dict):
        _visit(list(value.values()), see)
    elif hasattr(value, "__dataclass_fields__"):
        _visit(list(vars(value).values()), see)


def choose(model: Any, names: Names | None = None) -> dict[str, Any]:
    """Modules that get a scope, by the name of the scope.

    Args:
        model: a torch.nn.Module.
        names: a regular expression that qualified names must match somewhere, or a function of (qualified
            name, module) that returns whether it gets a scope, or the scope's name. None: the blocks of a
            transformer and, inside them, attention, MLP, router, dispatcher, experts and shared experts.

    Raises:
        TracelensError: not a module, a broken expression, or no module is chosen.
    """
    if not hasattr(model, "named_modules"):
        raise TracelensError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    scoped: dict[str, Any] = {}
    for name, module in model.named_modules():
        scope = _scope(model, name, module, names) if name else None
        if scope:
            scoped[scope if isinstance(scope, str) else name] = module
    if not scoped:
        problem = "looks like a transformer block" if names is None else "matches names"
        raise TracelensError(
            f"no module of {type(model).__name__} {problem}; pass names, a regular expression"
        )
    return scoped


def _scope(model: Any, name: str, module: Any, names: Names | None) -> str | bool | None:
    """Whether a module gets a scope, or the scope's name."""
    if callable(names):
        return names(name, module)
    if names is not None:
        try:
            return re.search(names, name) is not None
        except re.error as error:
            raise TracelensError(f"names is not a regular expression ({error}): {names!r}") from None
    *parents, last = name.split(".")
    if not any(parent in _BLOCKS for parent in parents) or _INSIDE_EXPERTS.search(name):
        return False
    if last.isdecimal():
        return parents[-1] in _BLOCKS
    # "gate" is the router where there are experts beside it, and a matrix of a gated MLP where not.
    is_router = last == "gate" and hasattr(model.get_submodule(".".join(parents)), "experts")
    return is_router or _PARTS.fullmatch(last) is not None
