"""Captures of CUDA and HIP graphs that happen before the window, recorded beside the trace.

A replay shows its kernels and nothing else. Their ops, shapes and scopes are known while the graph is
captured, which most programs do long before the window: each capture then runs under a short profiler of its
own, and what all of them recorded becomes one trace, from which readers attribute the replays
(`tracelens.trace.graphs`). A capture in the window needs none: the recorder's profiler sees it.

On NVIDIA GPUs a capture names no kernels; an eager run of the same work does. `make_graphed_callables` warms
up by one, which is recorded with its captures; of other programs what runs inside `twin()`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.autograd.profiler as _autograd_profiler
import torch.cuda.graphs as _graphs

from tracelens.errors import TracelensError
from tracelens.recording.pack import TooLarge, pack, split
from tracelens.recording.scopes import Hooks
from tracelens.recording.window import Phase

_FAILURES = (RuntimeError, ValueError, AssertionError, OSError, Warning, TracelensError)
"""What torch's profiler and its file may raise; none of it may end the program that is recorded."""

_active: list[Captures] = []


def twin() -> AbstractContextManager[None]:
    """Record what runs inside as the eager twin of a graph, where a recorder waits for its window."""
    return _active[-1].session() if _active else nullcontext()


class _Depth(threading.local):
    """Captures and twins that a thread is in, one inside the other."""

    value = 0


class Captures:
    """Profiles captures and eager twins while the recorder waits, from now on until removed."""

    def __init__(
        self,
        part: Path,
        profiler: Callable[[], Any],
        phase: Callable[[], Phase],
        note: Callable[[str], None],
        hooks: Hooks | None = None,
    ) -> None:
        """Start to look out for captures.

        Args:
            part: file for what is recorded, until `pack`.
            profiler: makes a profiler with `start`, `stop` and `export_chrome_trace`.
            phase: of the recorder. Its own profiler runs unless it waits, and a process has one.
            note: called with what goes wrong.
            hooks: the recorder's, on modules.
        """
        self.count = 0  # graphs whose captures are recorded
        self._part, self._make, self._phase, self._note, self._hooks = part, profiler, phase, note, hooks
        self._tail = b""
        self._profiler: Any = None  # while a session is under way
        self._thread, self._is_whole, self._graphs = 0, True, 0  # of that session
        self._depth = _Depth()
        self._lock = threading.RLock()  # held by the thread of the session
        self._patches = ExitStack()
        self._is_removed = False
        self._patch()
        _active.append(self)

    def remove(self) -> None:
        """Leave torch as it was."""
        self._is_removed = True
        _active.remove(self)
        self._patches.close()

    @contextmanager
    def session(self) -> Iterator[None]:
        """Record what this thread does inside, unless a profiler runs already."""
        self._begin()
        is_whole = False
        try:
            yield
            is_whole = True
        finally:
            self._end(is_whole)

    def give_way(self) -> None:
        """Wait for the session of another thread, and drop one of this thread: the recorder's begins."""
        with self._lock:
            if self._profiler is not None:
                self._stop(is_whole=False)

    def pack(self, out: Path, *, frames: bool, max_bytes: int | None, paths: bool) -> None:
        """Write the trace of all sessions; without any, remove that of an earlier recording."""
        try:
            if not self._tail:
                out.unlink(missing_ok=True)
                return
            with self._part.open("ab") as file:
                file.write(b"\n" + self._tail)
            out.parent.mkdir(exist_ok=True)
            packed = pack(self._part, out, range(1), frames=frames, max_bytes=max_bytes, paths=paths)
            if frames and not packed.frames:
                self._note(f"{out}: left out Python frames to stay under max_bytes={max_bytes:,}")
        except (OSError, TracelensError) as error:
            self.count = 0
            reason = f"larger than max_bytes={max_bytes:,}" if isinstance(error, TooLarge) else error
            self._note(f"{out} was not written: {reason}")

    def clean_up(self) -> None:
        """Remove what only `pack` needs."""
        self._part.unlink(missing_ok=True)

    def _begin(self) -> None:
        self._depth.value += 1
        if self._depth.value > 1 or not self._lock.acquire(blocking=False):
            return
        self._thread, self._is_whole, self._graphs = threading.get_ident(), True, 0
        if not (self._is_removed or _autograd_profiler._is_profiler_enabled):
            if self._phase() == "wait":
                try:
                    profiler = self._make()
                    profiler.start()
                    self._profiler = profiler
                except _FAILURES as error:
                    self._note(f"the capture of a graph was not recorded: {error}")
            else:
                self._note(
                    "graphs captured in the profiler's warm-up steps are not recorded, and their replays "
                    "stay unattributed: pass a larger wait"
                )
        if self._profiler is None:
            self._lock.release()

    def _end(self, is_whole: bool) -> None:
        self._depth.value -= 1
        if not self._is_own():
            return
        self._is_whole &= is_whole
        if not self._depth.value:
            self._stop(self._is_whole)

    def _is_own(self) -> bool:
        """Whether this thread has a session under way."""
        return self._profiler is not None and self._thread == threading.get_ident()

    def _stop(self, is_whole: bool) -> None:
        profiler, self._profiler = self._profiler, None
        try:
            profiler.stop()
            if is_whole and not self._is_removed:
                self._add(profiler)
        except _FAILURES as error:
            self._note(f"the capture of a graph was not recorded: {error}")
        finally:
            self._lock.release()

    def _add(self, profiler: Any) -> None:
        """Append a session's events; ids and the times' origin are of the process, and so of all sessions."""
        raw = self._part.with_name(f"{self._part.name}.json")
        try:
            profiler.export_chrome_trace(str(raw))
            parts = split(raw)
            header = next(parts)
            with self._part.open("ab") as file:
                comma = b",\n" if self._tail else b""
                if not self._tail:
                    file.write(header.rstrip() + b"\n")
                event = next(parts)
                for following in parts:  # one behind: the last part is the tail
                    file.write(comma + event)
                    comma, event = b",\n", following
                self._tail = event
                self.count += self._graphs
        finally:
            raw.unlink(missing_ok=True)

    def _patch(self) -> None:
        enter, leave = _graphs.graph.__enter__, _graphs.graph.__exit__
        make = _graphs.make_graphed_callables

        @functools.wraps(enter)
        def recorded_enter(graph: Any) -> Any:
            self._begin()
            is_entered = False
            try:
                result = enter(graph)
                is_entered = True
            finally:
                if not is_entered:
                    self._end(is_whole=False)
            return result

        @functools.wraps(leave)
        def recorded_leave(graph: Any, *error: Any) -> Any:
            is_whole = False
            try:
                result = leave(graph, *error)
                is_whole = not any(error)
            finally:
                self._graphs += is_whole and self._is_own()
                self._end(is_whole)
            return result

        @functools.wraps(make)
        def recorded_make(callables: Any, *args: Any, **kwargs: Any) -> Any:
            modules = callables if isinstance(callables, tuple) else (callables,)
            hooks = None if self._is_removed else self._hooks
            # It refuses modules with hooks.
            with self.session(), hooks.without(modules) if hooks else nullcontext():
                return make(callables, *args, **kwargs)

        self._replace(_graphs.graph, "__enter__", recorded_enter)
        self._replace(_graphs.graph, "__exit__", recorded_leave)
        for module in (_graphs, torch.cuda):
            self._replace(module, "make_graphed_callables", recorded_make)

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        original = getattr(owner, name)

        def restore() -> None:
            if getattr(owner, name) is function:  # else it was replaced once more, and calls this one
                setattr(owner, name, original)

        setattr(owner, name, function)
        self._patches.callback(restore)
