"""Numbers of passes through MoE layers on a rank with several chunks of the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.analysis.schedules import Piece, drawn_stages, played
from tracelens.analysis.moe.layers import LayerWindow, Tokens
from tracelens.analysis.moe.regions import PassNumber, pass_numbers
from tracelens.trace import Trace

LAYERS = {0: 2, 1: 1, 2: 3}
"""MoE layers in each chunk."""


def recorded(chunks: int) -> tuple[Trace, list[Piece]]:
    lanes = played(2, 4, chunks)
    return drawn_stages(*lanes, chunks=chunks)[0], lanes[0]


def lexed(passes: Sequence[tuple[Piece, bool]]) -> tuple[Tokens, list[LayerWindow], list[PassNumber]]:
    """One token a layer of each pass, the windows around them, and the numbers that they should get."""
    called, recompute, segment, numbers = [], [], [], []
    for index, (piece, is_recompute) in enumerate(passes):
        before = sum(count for chunk, count in LAYERS.items() if chunk < piece.chunk)
        layers = range(LAYERS[piece.chunk])
        for order, layer in enumerate(reversed(layers) if is_recompute else layers):
            called.append(piece.start * 1000 - 99 + order)
            recompute.append(is_recompute)
            segment.append(index)
            numbers.append(PassNumber(0, piece.microbatch, before + layer))
    count = len(called)
    rows = np.arange(count)
    tokens = Tokens(rows, np.array(called), rows, rows, np.array(recompute), np.array(segment))
    return tokens, [LayerWindow(row, row + 1, row, "", ()) for row in range(count)], numbers


@pytest.mark.parametrize("chunks", [2, 3])
def test_layers_are_those_of_all_chunks(chunks: int) -> None:
    trace, lane = recorded(chunks)
    tokens, windows, expected = lexed([(piece, False) for piece in lane if piece.kind == "F"])
    assert pass_numbers(trace, tokens, windows, [-1] * len(windows)) == expected


def test_recomputed_layers_are_those_of_the_forward_whose_backward_runs() -> None:
    """Backwards begin with the last chunk, so the first micro-batch of all is not the first to go back."""
    trace, lane = recorded(2)
    tokens, windows, expected = lexed([(piece, piece.kind == "B") for piece in lane])
    assert pass_numbers(trace, tokens, windows, [-1] * len(windows)) == expected


def test_without_a_pipeline_a_segment_is_a_micro_batch() -> None:
    _, lane = recorded(2)
    trace = drawn_stages("0011aabb", messages=False)[0]
    tokens, windows, _ = lexed([(piece, False) for piece in lane[:2]])
    assert pass_numbers(trace, tokens, windows, [-1] * len(windows)) == [
        PassNumber(0, microbatch, layer) for microbatch in range(2) for layer in range(2)
    ]


@pytest.mark.parametrize(
    ("frames", "layers"),
    [
        ("ababab", [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]),
        ("abcab", [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]),
        # One name for all layers, two micro-batches layer by layer, and a layer twice tell nothing.
        ("aaaa", [(0, layer) for layer in range(4)]),
        ("aabb", [(0, layer) for layer in range(4)]),
        ("abac", [(0, layer) for layer in range(4)]),
        ("    ", [(0, layer) for layer in range(4)]),
    ],
)
def test_without_an_embedding_frames_that_come_again_are_another_micro_batch(
    frames: str, layers: list[tuple[int, int]]
) -> None:
    trace = drawn_stages("0011aabb", messages=False)[0]
    rows = np.arange(len(frames))
    none = np.zeros(len(frames), dtype=np.int64)
    tokens = Tokens(rows, rows, rows, rows, none.astype(bool), none)
    windows = [LayerWindow(row, row + 1, row, name.strip(), ()) for row, name in enumerate(frames)]
    numbers = pass_numbers(trace, tokens, windows, [-1] * len(windows))
    assert [(number.microbatch, number.layer) for number in numbers] == layers
