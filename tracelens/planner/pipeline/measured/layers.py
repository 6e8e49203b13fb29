"""Times of layers in the passes of one rank, by the annotations that name them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.pipeline import FORWARD, Span, pipeline_scopes, stage_messages
from tracelens.arrays import Int, lookup
from tracelens.table import nearest
from tracelens.trace import Trace, gpu_work, interval_of, union

_PART = re.compile(
    r"(?P<layer>L\d+)(?:\.(?P<inner>\w+))?(?:\..*)?|(?P<embedding>embedding)\b.*|(?:head|loss)\b.*"
)


class LayerWalls(NamedTuple):
    """Wall time of the parts of the model on one rank.

    Attributes:
        ns: part (L0, L1, ..., embedding, head) to mean forward and backward per micro-batch.
        kinds: layer to the names of its annotations, which identify its kind.
        chunk_of: layer to its chunk of the model.
    """

    ns: Mapping[str, tuple[float, float]]
    kinds: Mapping[str, frozenset[str]]
    chunk_of: Mapping[str, int]


def layer_walls(trace: Trace, spans: Sequence[Span]) -> LayerWalls:
    """Wall time of each part of the model in the passes of a rank, which are on its own clock.

    Each moment of a pass counts for the part whose work ends next, waits before it included, so that the
    parts of a pass add up to it.
    """
    events, work = trace.arrays, gpu_work(trace)
    names, codes, kinds = _parts(events.names)
    is_part = events.where("annotation") & (codes[events.name] >= 0)
    around = nearest(events.parent, events.depth, is_part)

    def part_of(event: Int) -> Int:
        scope = lookup(around, event, -1)
        return lookup(codes, lookup(events.name, scope, -1), -1)

    part = part_of(work.forward)
    part = np.where(part >= 0, part, part_of(work.host_call))
    spans = sorted(spans, key=lambda span: span.start)
    start, end = (
        np.array([getattr(span, name) for span in spans], dtype=np.int64) for name in ("start", "end")
    )
    pass_index = interval_of(start, end, work.start)
    rows = np.flatnonzero((pass_index >= 0) & (part >= 0))
    rows = rows[np.lexsort((work.end[rows], pass_index[rows]))]
    pass_index, part, stop = pass_index[rows], part[rows], work.end[rows]
    stop = np.minimum(stop, end[pass_index])
    first = np.append(True, np.diff(pass_index) != 0)[: len(pass_index)]
    last = np.append(first[1:], True)[: len(pass_index)]
    stop[last] = end[pass_index[last]]
    before = np.where(first, start[pass_index], np.append(0, stop[:-1])[: len(pass_index)])
    part_ns = np.zeros((len(spans), len(names)), dtype=np.int64)
    np.add.at(part_ns, (pass_index, part), stop - before)
    forward = np.array([span.phase == FORWARD for span in spans])
    # A part runs only in the passes of its own chunk: means are per micro-batch, not per pass.
    count = max(len({(span.step, span.microbatch) for span in spans}), 1)
    means = (part_ns[forward].sum(axis=0) / count, part_ns[~forward].sum(axis=0) / count)
    ns = {
        name: (float(forward_ns), float(backward_ns))
        for name, forward_ns, backward_ns in zip(names, *means, strict=True)
        if forward_ns + backward_ns > 0
    }
    virtual = np.array([span.virtual for span in spans], dtype=np.int64)
    chunk_of = {
        name: int(virtual[part_ns[:, code].argmax()]) for code, name in enumerate(names) if name in kinds
    }
    kinds_present = {name: kind for name, kind in kinds.items() if name in ns}
    return LayerWalls(ns, kinds_present, {name: chunk_of[name] for name in kinds_present})


def _parts(texts: Sequence[str]) -> tuple[list[str], Int, dict[str, frozenset[str]]]:
    """Parts of the model, the part of each event name (-1 for none), and the annotations in each layer."""
    names: dict[str, int] = {}
    inner: dict[str, set[str]] = {}
    codes = np.full(len(texts), -1, dtype=np.int64)
    for code, text in enumerate(texts):
        match = _PART.fullmatch(text)
        if match is None:
            continue
        name = match["layer"] or match["embedding"] or "head"
        codes[code] = names.setdefault(name, len(names))
        if match["layer"]:
            inner.setdefault(name, set()).update({match["inner"]} - {None, "B"})
    return list(names), codes, {name: frozenset(scopes) for name, scopes in inner.items()}


def exposed(trace: Trace, spans: Sequence[Span]) -> tuple[float, float]:
    """Exposed communication as a share of a rank's forwards and of its backwards."""
    work = gpu_work(trace)
    # Messages between stages wait for the other stage, beside computation of this one.
    messages = stage_messages(trace, unnamed=pipeline_scopes(trace).usable)
    work = work.take(~np.isin(work.event, messages.kernel))
    start, end = (
        np.array([getattr(span, name) for span in spans], dtype=np.int64) for name in ("start", "end")
    )
    busy = union(work.start, work.end).covered(start, end)
    not_comm = work.union("computation", "memcpy", "memset").covered(start, end)
    forward = np.array([span.phase == FORWARD for span in spans])
    wall = end - start
    shares = [
        float((busy - not_comm)[rows].sum() / max(int(wall[rows].sum()), 1)) for rows in (forward, ~forward)
    ]
    return shares[0], shares[1]
