"""Tasks on the cores of this machine: in child processes and in this one, whoever is free."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import IO

from tracelens.errors import TracelensError
from tracelens.workers.task import Portion, Task, attempt

Answer = list[Portion] | TracelensError


class Local:
    """Carries tasks out in order of the files; children do some of them while this process does others."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]] = ()) -> None:
        self.processes = processes
        self._waiting: SimpleQueue[Task] = SimpleQueue()
        self._done: SimpleQueue[Answer] = SimpleQueue()

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Portion]:
        """The portions of all tasks, as they come.

        Raises:
            TracelensError: the first that a task ends with, or a child died.
        """
        stdin_tasks = [task for task in tasks if task.path == "-"]  # a child's stdin is another
        for task in tasks:
            if task not in stdin_tasks:
                self._waiting.put(task)
        for process in self.processes:
            threading.Thread(target=self._feed, args=(process,), daemon=True).start()
        unanswered = len(tasks)
        while unanswered:
            answers = self._ready()
            if not answers:
                local_task = stdin_tasks.pop() if stdin_tasks else self._next()
                answers = [attempt(local_task) if local_task is not None else self._done.get()]
            for answer in answers:
                unanswered -= 1
                if isinstance(answer, TracelensError):
                    raise answer
                yield from answer

    def _next(self) -> Task | None:
        try:
            return self._waiting.get_nowait()
        except Empty:
            return None

    def _ready(self) -> list[Answer]:
        answers: list[Answer] = []
        while not self._done.empty():
            answers.append(self._done.get())
        return answers

    def _feed(self, process: subprocess.Popen[bytes]) -> None:
        """Give a child one task after the other and pass its answers on."""
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None
        while (task := self._next()) is not None:
            try:
                pickle.dump(task, stdin, protocol=5)
                stdin.flush()
                self._done.put(pickle.load(stdout))
            except (OSError, EOFError, ValueError, pickle.UnpicklingError):  # ValueError: closed meanwhile
                code = process.wait()
                problem = f"the process that read {task.path} died (exit code {code}); try TRACELENS_JOBS=1"
                self._done.put(TracelensError(problem))
                return


def serve(stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None) -> None:
    """Carry out the tasks that come in on stdin until it is closed."""
    source, target = stdin or sys.stdin.buffer, stdout or sys.stdout.buffer
    gc.disable()  # as in the command: a process that ends soon needs no collector
    while True:
        try:
            task = pickle.load(source)
        except EOFError:
            return
        answer = attempt(task)
        # Errors have constructors of their own, which pickle does not know; their text is what counts.
        reply = TracelensError(str(answer)) if isinstance(answer, TracelensError) else answer
        pickle.dump(reply, target, protocol=5)
        target.flush()
