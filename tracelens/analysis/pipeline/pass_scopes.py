"""Scopes by which programs name the forward and backward of a micro-batch; the grammars are data."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.trace import Trace

# Numbers become sizes of tables: no model has ten thousand stages.
_GRAMMARS = (
    # torch.distributed.pipelining: stage, action, micro-batch; I and W are the two halves of a backward.
    r"PP:(?P<stage>[0-9]{1,4})(?P<kind>[FBIW])(?P<microbatch>[0-9]{1,6})",
    # Its schedules of one stage, and scopes that programs write themselves.
    r"(?P<kind>Forward|Backward|F|B)[ _]?(?P<microbatch>[0-9]{1,6})",
    # The bundled workload, with and without a pipeline: chunk 0 may be the whole model.
    r"mb(?P<microbatch>[0-9]{1,6})\.chunk(?P<stage>[0-9]{1,4})\.(?P<kind>[FB])",
    r"(?P<kind>forward|backward)[ _-]step(?:\D{0,2}(?P<microbatch>[0-9]{1,6}))?",
    # Python frames of Megatron-LM.
    r".*pipeline_parallel/schedules\.py\(\d+\): (?P<kind>forward|backward)_step",
)
_SCOPE = [re.compile(text) for text in _GRAMMARS]
_PAIR = re.compile(r"PP:\((?P<actions>.*)\)OVERLAP_F_B")


class _Action(NamedTuple):
    backward: bool
    virtual: int
    microbatch: int
    pipelined: bool


class Scopes(NamedTuple):
    """Scopes of micro-batches in order of time, none inside another.

    A scope of an overlapped forward and backward stands twice, with the same times.

    Attributes:
        start: ns.
        end: ns.
        backward: whether it is a backward.
        virtual: number of the stage in the whole model, -1 where the name does not say.
        microbatch: number, -1 where the name does not say.
        pipelined: whether one of them has the name of a part of a pipeline.
    """

    start: Int
    end: Int
    backward: Bool
    virtual: Int
    microbatch: Int
    pipelined: bool

    @property
    def usable(self) -> bool:
        """Whether both phases are named: one alone would leave the other without spans."""
        return bool(self.backward.any() and not self.backward.all())

    @property
    def staged(self) -> bool:
        """Whether they say the stage, and so that there is a pipeline."""
        return self.usable and self.pipelined and bool((self.virtual >= 0).all())


def pipeline_scopes(trace: Trace) -> Scopes:
    """The scopes of micro-batches of one rank."""
    events = trace.arrays
    actions = {code: parsed for code, name in enumerate(events.names) if (parsed := _actions(name))}
    rows = np.flatnonzero(np.isin(events.name, list(actions)) & events.where("annotation", "python"))
    rows = rows[np.lexsort((-events.end[rows], events.start[rows]))]
    rows_of_scopes: list[tuple[int, int, bool, int, int, bool]] = []
    reached = int(events.start[rows[0]]) if len(rows) else 0
    for row in rows.tolist():
        start, end = int(events.start[row]), int(events.end[row])
        if start < reached:  # inside another, as a model's own scope in that of the schedule
            continue
        reached = end
        rows_of_scopes += [(start, end, *action) for action in actions[int(events.name[row])]]
    table = np.array(rows_of_scopes, dtype=np.int64).reshape(-1, 6)
    return Scopes(
        table[:, 0], table[:, 1], table[:, 2] > 0, table[:, 3], table[:, 4], bool(table[:, 5].any())
    )


def _actions(name: str) -> tuple[_Action, ...]:
    """What a scope of this name does; empty if it is no scope of a micro-batch."""
    if pair := _PAIR.fullmatch(name):
        both = [_action(f"PP:{part}") for part in pair["actions"].split(";")]
        return tuple(action for action in both if action is not None)
    action = _action(name)
    return () if action is None else (action,)


def _action(name: str) -> _Action | None:
    for grammar in _SCOPE:
        if match := grammar.fullmatch(name):
            parts = match.groupdict()
            stage, microbatch = (int(parts.get(key) or -1) for key in ("stage", "microbatch"))
            pipelined = name.startswith("PP:") or stage > 0
            return _Action(parts["kind"][0] not in "Ff", stage, microbatch, pipelined)
    return None
