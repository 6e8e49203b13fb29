"""Collectives of one micro-batch under the computation of another, where there is no pipeline.

    F0   (F1 | B0)   (F2 | B1)   ...   B of the last

In `(F1 | B0)` forward and backward take turns: whoever is about to wait for a collective hands over to the
other, which computes while the collective is on its way. So that neither has to be cut into pieces by hand,
each keeps a thread of its own, and a baton says whose turn it is. Only one of the two ever runs, and they
change at the same places on all ranks: collectives are launched in one order everywhere, and what one
launches on the device comes in order with what the other does.

On a GPU autograd goes on in a thread of its own, on behalf of the one that called it. Hence a rule that needs
no list of threads: the caller's thread is the forward, all others are the backward, recomputation in it
included.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

import torch

from tracelens.workload.parallel.collectives import Waiting

T = TypeVar("T")


def interleave(count: int, forward: Callable[[int], T], backward: Callable[[int, T], None]) -> None:
    """Run all micro-batches, 1 or more, the backward of each together with the forward of the next.

    The forwards run on the caller's thread; the backwards, which are given what the forward returned, on a
    helper thread, except the last. What either raises is raised here; the other has ended by then.
    """
    made = forward(0)
    stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None
    usual = Waiting.before

    def adopted(number: int, made: T) -> None:
        # Each thread has a device and a stream of its own.
        if stream is not None:
            torch.cuda.set_device(stream.device)
            torch.cuda.set_stream(stream)
        backward(number, made)

    with ThreadPoolExecutor(1, "backward") as helper:
        for number in range(1, count):
            baton = _Baton()
            Waiting.before = baton.hand_over
            try:
                backward_done = helper.submit(baton.run, partial(adopted, number - 1, made))
                try:
                    made = baton.run(partial(forward, number))
                except _Ended:
                    pass  # the backward's failure, raised by what follows
                finally:
                    wait([backward_done])
                backward_done.result()
            finally:
                Waiting.before = usual
    backward(count - 1, made)


class _Ended(Exception):
    """The other one has failed."""


class _Baton:
    """Whose turn it is; the forward, on the thread that makes it, begins."""

    def __init__(self) -> None:
        self.caller = threading.get_ident()
        self.changed = threading.Condition()
        self.is_forward = True  # the one that runs
        self.alone = False  # the other one is done
        self.failed = False

    def run(self, part: Callable[[], T]) -> T:
        """Run one of the two from its first turn on, and leave the other alone afterwards."""
        failed = True
        try:
            with self.changed:
                self._await_turn()
            done = part()
            failed = False
        finally:
            with self.changed:
                self.alone, self.failed = True, self.failed or failed
                self.changed.notify_all()
        return done

    def hand_over(self) -> None:
        """Let the other run until it hands over in turn; go on at once where there is no other any more."""
        with self.changed:
            self.is_forward = not self._is_caller()
            self.changed.notify_all()
            self._await_turn()

    def _await_turn(self) -> None:
        me = self._is_caller()
        self.changed.wait_for(lambda: self.alone or self.is_forward == me)
        if self.failed:
            raise _Ended

    def _is_caller(self) -> bool:
        return threading.get_ident() == self.caller
