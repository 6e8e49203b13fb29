"""Numbers of MoE layers and of passes through them: on a rank with several chunks of the model, and through
all stages of a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import tracelens
from tests.analysis.moe_traces import Model, as_trace, record
from tests.analysis.schedules import Piece, drawn_stages, played
from tests.builders import records
from tracelens.analysis.moe.layers import LayerWindow, Tokens
from tracelens.analysis.moe.regions import PassNumber, chunk_layers, model_layers, pass_numbers
from tracelens.trace import Run, Trace, make_run

LAYERS = {0: 2, 1: 1, 2: 3}
"""MoE layers in each chunk."""


STAGES = 2


def recorded(chunks: int) -> tuple[Trace, list[Piece]]:
    lanes = played(STAGES, 4, chunks)
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
            numbers.append(PassNumber(0, piece.micro_batch, before + layer, piece.chunk * STAGES))
    count = len(called)
    rows = np.arange(count)
    none = np.zeros(count, dtype=bool)
    tokens = Tokens(
        row=rows,
        called=np.array(called),
        kind=rows,
        op=rows,
        is_recompute=np.array(recompute),
        segment=np.array(segment),
        all_reduces=none,
    )
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
        PassNumber(0, micro_batch, layer) for micro_batch in range(2) for layer in range(2)
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
    none = np.zeros(len(frames), dtype=bool)
    tokens = Tokens(
        row=rows,
        called=rows,
        kind=rows,
        op=rows,
        is_recompute=none,
        segment=none.astype(np.int64),
        all_reduces=none,
    )
    windows = [LayerWindow(row, row + 1, row, name.strip(), ()) for row, name in enumerate(frames)]
    numbers = pass_numbers(trace, tokens, windows, [-1] * len(windows))
    assert [(number.micro_batch, number.layer) for number in numbers] == layers


def test_layers_of_each_chunk() -> None:
    numbers = [PassNumber(0, 0, layer, chunk) for layer, chunk in ((0, 1), (1, 5), (2, 5), (0, 1))]
    assert chunk_layers(numbers, [1, 3, 5]) == {1: 1, 3: 0, 5: 2}
    assert chunk_layers(numbers, []) == {}  # not known which chunks the rank runs
    assert chunk_layers([PassNumber(0, 0, 1)], [2]) == {2: 2}
    assert chunk_layers([PassNumber(0, 0, 1)], [0, 2]) == {}  # nor which of them a pass is of
    assert chunk_layers([], [3]) == {3: 0}


@pytest.mark.parametrize(
    ("ranks", "numbers"),
    [
        ([{0: 2}, {0: 2}], [[0, 1], [0, 1]]),
        ([{0: 2}, {1: 1}], [[0, 1], [2]]),
        ([{0: 0, 2: 1}, {1: 1, 3: 2}], [[1], [0, 2, 3]]),
        # A V: the first rank has the first and the last chunk.
        ([{0: 1, 3: 1}, {1: 1, 2: 1}], [[0, 3], [1, 2]]),
        # Two pipelines, of one of which the first stage is missing; a stage whose recording lacks a layer.
        ([{0: 2}, {1: 1}, {1: 2}], [[0, 1], [2], [2, 3]]),
        ([{1: 2}], "no rank of the run has chunk 0 of the model"),
        ([{0: 2}, {2: 2}], "no rank of the run has chunk 1 of the model"),
        ([{0: 2}, {}], "a trace does not tell which part of the model it runs"),
    ],
    ids=str,
)
def test_numbers_through_all_stages(ranks: list[Mapping[int, int]], numbers: list[list[int]] | str) -> None:
    found = model_layers(ranks)
    assert (found if isinstance(found, str) else [layers.tolist() for layers in found]) == numbers


def pipeline(*layers: int) -> Run:
    """A run whose stages have so many MoE layers each."""
    ranks = range(len(layers))
    models = [
        Model(layers=count, dense="d", messages=True, order="F0 F1 B0 B1", pipeline=ranks) for count in layers
    ]
    return make_run(as_trace(record(model, rank)) for rank, model in enumerate(models))


def layers_of(run: Run) -> tuple[list[tuple[int, int]], list[str]]:
    """(rank, layer) of the layers in the table, and skips about their numbers."""
    result = tracelens.analyze(run, "moe")
    kernels = tracelens.Run(run.traces).kernels()
    rows = records(result["layers"], "rank", "layer")
    moe = kernels[kernels["layer"].notna()]
    assert set(zip(moe["rank"], moe["layer"], strict=True)) == set(rows)
    subject = "layer numbers through the pipeline"
    return rows, [skip.reason for skip in result.skips if skip.subject == subject]


def test_stages_of_a_recorded_pipeline() -> None:
    assert layers_of(pipeline(1, 2)) == ([(0, 0), (1, 1), (1, 2)], [])
    assert layers_of(pipeline(0, 2, 1)) == ([(1, 0), (1, 1), (2, 2)], [])
    rows, (reason,) = layers_of(make_run(pipeline(1, 2).traces[1:]))
    assert rows == [(1, 0), (1, 1)]
    assert reason == (
        "each rank counts its own MoE layers from 0: no rank of the run has chunk 0 of the model"
    )


@pytest.mark.parametrize("name", ["plain", "interleaved"])
def test_layers_have_the_numbers_of_their_scopes(name: str) -> None:
    """The first layer of the sample is dense, so that the scope L1 is around MoE layer 0."""
    samples = Path(__file__).parents[3] / "sample_traces" / "pipeline"
    for kernels in (run := tracelens.load(samples / name)).kernels(), run.kernels(rank=1):
        scope = kernels["module"].astype(str).str.extract(r"^L(\d+)")[0]
        moe = kernels["layer"].notna() & scope.notna()
        assert moe.any()
        assert (kernels["layer"][moe] == scope[moe].astype(int) - 1).all()
