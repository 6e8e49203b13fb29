"""The batch size that a graph was captured for, and the one that a step runs.

Engines capture a graph for each of several sizes and pad a batch to the smallest that holds it. A capture's
label or the list of captures beside it says its size, the label of the step around a graph launch what it
holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tracelens.arrays import Bool
from tracelens.trace.trace import Trace

_CAPTURE = re.compile(r"capture_(\d+)_(\w+)$")
_PADDED = re.compile(r"\bbs=\d+/(\d+)|\braw_bs=\d+ bs=(\d+)")
# Requests where each decodes a token, and tokens where some are in prefill.
_REQUESTS = (
    re.compile(r"\bexecute_(\d+)_context_"),
    re.compile(r"\bexecute_context_\d+\((\d+)\)_generation_\d+\((\d+)\)"),
    re.compile(r"^step\[(?:EXTEND|SPLIT_PREFILL|DLLM_EXTEND|MIXED|prefill|mixed) .*\btoks=(\d+)"),
    re.compile(r"^step\[(?!EXTEND|SPLIT_PREFILL|DLLM_EXTEND|MIXED|prefill|mixed)\w+ .*?\bbs=(\d+)"),
    re.compile(r"^(?!step\[)(?:\w+ )?\w*decode\w*\W.*?\bbs=(\d+)"),
)


class Size(NamedTuple):
    """A size that graphs were captured for; `mode` is the engine's, FULL or PIECEWISE, "" if unknown."""

    batch: int
    mode: str = ""


UNKNOWN = Size(-1)


class Batch(NamedTuple):
    """What a step runs: requests or tokens, and whether that is after padding; -1 where no label says it."""

    size: int
    is_padded: bool = False

    def padded(self, captured: Size, sizes: Iterable[Size]) -> int:
        """The size of the graph that runs it, -1 if unknown or none is large enough.

        Args:
            captured: a graph like it, for its mode.
            sizes: all that were captured.
        """
        if self.size < 0 or self.is_padded:
            return self.size
        large = {size.batch for size in sizes if size.mode == captured.mode and size.batch >= self.size}
        return min(large, default=-1)

    def fits(self, captured: Size, sizes: Iterable[Size]) -> bool | None:
        """Whether a captured graph is of the size that runs it; None where that is unknown."""
        if self.size < 0 or captured.batch < 0:
            return None
        return self.padded(captured, sizes) == captured.batch


def captured_size(label: str) -> Size:
    """The size in a label such as capture_32_FULL."""
    match = _CAPTURE.match(label)
    return Size(int(match[1]), match[2]) if match else UNKNOWN


def step_batch(label: str) -> Batch:
    """The batch in a serving engine's label of a step."""
    if match := _PADDED.search(label):
        return Batch(int(match[1] or match[2]), is_padded=True)
    for pattern in _REQUESTS:
        if match := pattern.search(label):
            return Batch(sum(int(count) for count in match.groups()))
    return Batch(-1)


def batch_around(trace: Trace, row: int) -> Batch:
    """The batch of the innermost labelled step around an event."""
    for label in _annotations(trace, row):
        if (batch := step_batch(label)).size >= 0:
            return batch
    return Batch(-1)


def size_around(trace: Trace, row: int) -> Size:
    """The size in the innermost label of a capture around an event."""
    return next(
        (size for label in _annotations(trace, row) if (size := captured_size(label)) != UNKNOWN), UNKNOWN
    )


def _annotations(trace: Trace, row: int) -> Iterable[str]:
    """Names of the annotations around an event, innermost first."""
    events, is_label = trace.arrays, trace.once(_is_label)
    while row >= 0:
        if is_label[row]:
            yield events.names[events.name[row]]
        row = int(events.parent[row])


def _is_label(trace: Trace) -> Bool:
    return trace.arrays.where("annotation", "slice")
