"""Which engine served: by its own frames, labels and ops, since engines write labels in each other's form."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tracelens.analysis.common import Label, grammar
from tracelens.arrays import Int
from tracelens.trace import Events


def engine_of(events: Events, marks: Int, labels: Iterable[Label]) -> str:
    """The engine whose steps a rank ran; all that it may be, joined by "or", where nothing tells.

    The outermost frame of an engine's code on the threads of the marks, else a label that only one engine
    writes, else ops of only one engine that may have written the labels.

    Args:
        events: of the rank.
        marks: event rows of the labeled ranges.
        labels: all that the rank's labels say, of ranges inside others, too.
    """
    known = grammar().engines
    thread = np.zeros(len(events.start), dtype=bool)
    for pid, tid in set(zip(events.pid[marks].tolist(), events.tid[marks].tolist(), strict=True)):
        thread |= (events.pid == pid) & (events.tid == tid)
    frames = thread & events.where("python")
    if frames.any():
        depth = {}
        for engine in known:
            if engine.frames and (inside := frames & events.named(engine.frames.search)).any():
                depth[engine.name] = int(events.depth[inside].min())
        if depth:
            return min(depth, key=lambda name: depth[name])
    written = list(dict.fromkeys(label.engines for label in labels))
    certain = list(dict.fromkeys(engines[0] for engines in written if len(engines) == 1))
    if certain:
        return ", ".join(certain)
    possible = list(dict.fromkeys(name for engines in written for name in engines))
    ops = events.where("op")
    seen = [
        engine.name
        for engine in known
        if engine.name in possible and engine.ops and (ops & events.named(engine.ops.search)).any()
    ]
    return " or ".join(seen or possible)
