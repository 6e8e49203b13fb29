"""Scopes for the modules of a model, by forward hooks; the model itself stays as it is."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tracelens.errors import TracelensError
from tracelens.recording.scopes import Region, recording, region

Names = str | Callable[[str, Any], str | bool | None]

_BLOCKS = ("layers", "layer", "blocks", "h")
_PARTS = re.compile(
    r"(?:self_|cross_)?(?:attn|attention)|mlp|ffn|feed_forward|(?:block_sparse_)?moe|router"
    r"|(?:routed_|local_)?experts|shared_(?:experts?|mlp)|(?:token_)?dispatcher"
)
_INSIDE_EXPERTS = re.compile(r"(?:^|\.)(?:shared_|routed_|local_)?experts?\.")


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
    if callable(names):
        return names(name, module)
    if names is None:
        return _is_known_part(model, name)
    try:
        return re.search(names, name) is not None
    except re.error as error:
        raise TracelensError(f"names is not a regular expression ({error}): {names!r}") from None


def _is_known_part(model: Any, name: str) -> bool:
    *parents, last = name.split(".")
    if not any(parent in _BLOCKS for parent in parents) or _INSIDE_EXPERTS.search(name):
        return False
    if last.isdecimal():
        return parents[-1] in _BLOCKS
    # "gate" is the router where there are experts beside it, and a matrix of a gated MLP where not.
    router = last == "gate" and hasattr(model.get_submodule(".".join(parents)), "experts")
    return router or _PARTS.fullmatch(last) is not None


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
