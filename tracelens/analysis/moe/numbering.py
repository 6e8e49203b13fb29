"""Step, micro-batch and layer of each pass through an MoE layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe.kernel_lexer import Tokens
from tracelens.analysis.moe.windows import LayerWindow
from tracelens.analysis.pipeline import FORWARD, Span, numbered_alone
from tracelens.arrays import Bool, Int
from tracelens.trace import Trace, steps_of


class PassNumber(NamedTuple):
    """Which pass through an MoE layer it is; all numbers from 0.

    Attributes:
        step: position in `steps_of`.
        microbatch: in the step.
        layer: among the MoE layers of the rank, through all its chunks of the model.
    """

    step: int
    microbatch: int
    layer: int


class _Forward(NamedTuple):
    """One micro-batch forward through one chunk of the model, and passes through its MoE layers.

    Attributes:
        step: position in `steps_of`.
        chunk: of the model, 0 where the rank has only one.
        microbatch: in the step.
        layers: passes in order of launch, as positions in the list of all.
        waiting: those of them that no recompute has repeated yet.
    """

    step: int
    chunk: int
    microbatch: int
    layers: list[int]
    waiting: list[int]


def pass_numbers(
    trace: Trace, lexed: Tokens, windows: Sequence[LayerWindow], origins: Sequence[int]
) -> list[PassNumber]:
    """Numbers of the passes.

    Args:
        trace: of the rank.
        lexed: its forward work.
        windows: of the passes, in order of launch.
        origins: which other pass each one repeats, see windows.origins.
    """
    first = np.array([window.first for window in windows], dtype=np.int64)
    launched, is_recompute = lexed.called[first], lexed.is_recompute[first]
    step = steps_of(trace).begun_at(launched).tolist()
    # Without chunks each uninterrupted forward is one micro-batch.
    spans = _spans(numbered_alone(trace), launched, is_recompute)
    keys: Sequence[object] = [(span.step, span.virtual, span.microbatch) for span in spans]
    if not keys:
        keys = _rounds(windows, lexed.segment[first].tolist(), is_recompute)
    forwards: dict[object, _Forward] = {}
    in_step: Counter[int] = Counter()
    of_window: list[tuple[_Forward, int]] = []
    for window, (key, origin) in enumerate(zip(keys, origins, strict=True)):
        if not is_recompute[window]:
            if key not in forwards:
                chunk, microbatch = 0, in_step[step[window]]
                if spans:
                    chunk, microbatch = spans[window].virtual, spans[window].microbatch
                in_step[step[window]] += 1
                forwards[key] = _Forward(step[window], chunk, microbatch, [], [])
            forwards[key].waiting.append(window)
            forwards[key].layers.append(window)
            of_window.append((forwards[key], len(forwards[key].layers) - 1))
        elif origin >= 0:
            of_window.append(of_window[origin])
        else:
            # Of the forward whose backward runs or, without chunks, of the earliest that waits for its own;
            # its layers from the last to the first.
            candidates = [forwards[key]] if key in forwards else [] if spans else forwards.values()
            forward = next((forward for forward in candidates if forward.waiting), None)
            of_window.append(of_window[forward.waiting.pop()] if forward is not None else _latest(forwards))
    before = _layers_before(list(forwards.values()))
    return [
        PassNumber(forward.step, forward.microbatch, before.get(forward.chunk, 0) + layer)
        for forward, layer in of_window
    ]


def _rounds(
    windows: Sequence[LayerWindow], segments: Sequence[int], is_recompute: Bool
) -> list[tuple[int, int]]:
    """(Segment, round) of each pass: a round ends where the frames of the layers begin to come again.

    Without an embedding nothing else parts one forward from the next. Layers without frames of their own, and
    two micro-batches layer by layer, are one round.
    """
    names: dict[int, list[str]] = {}
    for window, segment, again in zip(windows, segments, is_recompute.tolist(), strict=True):
        if not again:
            names.setdefault(segment, []).append(window.frame)
    count = {segment: _period(frames) for segment, frames in names.items()}
    seen: Counter[int] = Counter()
    keys = []
    for segment, again in zip(segments, is_recompute.tolist(), strict=True):
        keys.append((segment, 0 if again else seen[segment] // count[segment]))
        seen[segment] += not again
    return keys


def _period(names: Sequence[str]) -> int:
    """Length of the series of distinct names that all of them repeat; their number where they do not."""
    period = next((index for index, name in enumerate(names) if name == names[0] and index), len(names))
    distinct = len(set(names[:period])) == period > 1
    repeats = all(name == names[index % period] for index, name in enumerate(names))
    return period if distinct and repeats and all(names) else len(names)


def _spans(spans: Sequence[Span], launched: Int, is_recompute: Bool) -> list[Span]:
    """The pass of the pipeline that each pass through a layer is part of; empty where one is part of none."""
    starts = np.array([span.launched for span in spans], dtype=np.int64)
    index = np.searchsorted(starts, launched, side="right") - 1
    is_forward = np.array([span.phase == FORWARD for span in spans], dtype=bool)
    if not len(spans) or (index < 0).any() or (is_forward[index] == is_recompute).any():
        return []
    return [spans[number] for number in index.tolist()]


def _latest(forwards: dict[object, _Forward]) -> tuple[_Forward, int]:
    return next(reversed(forwards.values()), _Forward(0, 0, 0, [], [])), 0


def _layers_before(forwards: Sequence[_Forward]) -> dict[int, int]:
    """How many MoE layers a rank's chunks before each of its chunks have."""
    layers: dict[int, int] = {}
    for forward in forwards:
        layers[forward.chunk] = max(layers.get(forward.chunk, 0), len(forward.layers))
    return {chunk: sum(layers[lower] for lower in layers if lower < chunk) for chunk in layers}
