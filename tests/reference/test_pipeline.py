"""Passes and bubbles from the JSON: by hand, by the names of scopes, and by tracelens."""

from functools import cache
from pathlib import Path

import pytest

import tracelens
from tests.reference.compared import results
from tests.reference.pipeline import (
    BACKWARD,
    FORWARD,
    Bubble,
    Lane,
    bubbles,
    graph_passes,
    inputs,
    lane,
    scoped_passes,
)
from tests.reference.raw import files, read
from tests.reference.traces import INTERLEAVED, PLAIN, PP2EP4, PP2VPP2EP4, path_of

MS = 1_000_000


@cache
def lanes(path: Path) -> list[list[Lane]]:
    """All pipelines of a run of two stages: rank r and the one half a world further."""
    recordings = {recording.rank: recording for recording in map(read, files(path))}
    half = len(recordings) // 2
    return [
        [lane(recordings[rank], (first, first + half)) for rank in (first, first + half)]
        for first in range(half)
    ]


@cache
def by_rank(path: Path) -> dict[int, Bubble]:
    rows = {bubble.rank: bubble for stages in lanes(path) for bubble in bubbles(stages)}
    return dict(sorted(rows.items()))


def test_bubbles_of_an_interleaved_pipeline() -> None:
    rows = by_rank(path_of(PP2VPP2EP4))
    shares = [round(float(100 * row.fraction), 1) for row in rows.values()]
    assert shares == [21.0, 22.9, 20.6, 20.9, 5.4, 5.5, 5.8, 5.8]
    assert {round(row.phase / MS) for row in rows.values()} == {403}
    assert {round(float(100 * row.theory), 2) for row in rows.values()} == {5.88}
    # What the first stage has more than the ramp, it waits for the second one's longer passes.
    assert [round(rows[rank].imbalance / MS) for rank in range(4)] == [43, 42, 43, 46]
    assert [rows[rank].imbalance for rank in range(4, 8)] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "chunks", "micro_batches"),
    [
        (PP2VPP2EP4, 2, 8),
        pytest.param(PP2EP4, 1, 8, marks=pytest.mark.rare),
        (PLAIN, 1, 4),
        (INTERLEAVED, 2, 4),
    ],
)
def test_each_chunk_has_all_micro_batches_both_ways(name: str, chunks: int, micro_batches: int) -> None:
    for stages in lanes(path_of(name)):
        for one in stages:
            assert (one.chunks, one.micro_batches) == (chunks, micro_batches)
            passes = {(item.phase, item.chunk, item.micro_batch) for item in one.passes}
            assert len(passes) == len(one.passes) == 2 * chunks * micro_batches


@pytest.mark.parametrize("name", [PLAIN, INTERLEAVED])
def test_the_graph_tells_what_the_scopes_say(name: str) -> None:
    """Which pass is which; the scopes also name work around the graph, so times differ a little."""
    for recording in map(read, files(path_of(name))):
        named, told = (
            [
                (item.phase, item.chunk, item.micro_batch)
                for item in sorted(passes, key=lambda item: item.launched)
            ]
            for passes in (scoped_passes(recording), graph_passes(recording))
        )
        assert named == told


@pytest.mark.parametrize("name", [PP2VPP2EP4, PP2EP4, PLAIN, INTERLEAVED])
def test_messages_tell_the_same_numbers(name: str) -> None:
    """Each pass follows the one that made its input: the next chunk of the model, the same micro-batch."""
    recordings = {recording.rank: recording for recording in map(read, files(path_of(name)))}
    for stages in lanes(path_of(name)):
        stage = {one.rank: number for number, one in enumerate(stages)}
        received = inputs([recordings[rank] for rank in stage], {one.rank: one.passes for one in stages})
        last = len(stages) * stages[0].chunks - 1
        for one in stages:
            for phase, direction, without in ((FORWARD, 1, 0), (BACKWARD, -1, last)):
                needed = [
                    (item.chunk * len(stages) + stage[one.rank], item.micro_batch) for item in one.of(phase)
                ]
                told = [
                    (made.chunk * len(stages) + stage[source] + direction, made.micro_batch)
                    for source, made in received[one.rank]
                    if made.phase == phase
                ]
                assert [number for number in needed if number[0] != without] == told


@pytest.mark.parametrize("name", [PP2VPP2EP4, PP2EP4, PLAIN, INTERLEAVED])
def test_tracelens_has_the_same_bubbles(name: str) -> None:
    table = results(path_of(name))["pipeline"]["bubble"]
    columns = ["bubble_ns", "ramp_ns", "imbalance_ns", "forward_ns", "backward_ns"]
    found = dict(zip(table["rank"].tolist(), table[columns].to_numpy().tolist(), strict=True))
    assert found == {
        rank: [row.bubble, row.ramp, row.imbalance, row.forward, row.backward]
        for rank, row in by_rank(path_of(name)).items()
    }
    fractions = zip(table["rank"].tolist(), table["bubble_fraction"], table["expected_fraction"], strict=True)
    for rank, bubble, expected in fractions:
        row = by_rank(path_of(name))[rank]
        assert (bubble, expected) == pytest.approx((float(row.fraction), float(row.theory)))


@pytest.mark.parametrize("name", [PP2VPP2EP4, PP2EP4, PLAIN, INTERLEAVED])
def test_tracelens_has_the_same_passes(name: str) -> None:
    table = results(path_of(name))["pipeline"]["spans"]
    columns = ["rank", "phase", "chunk", "micro_batch", "dur_ns", "busy_ns"]
    found = sorted(table[columns].astype({"phase": str}).itertuples(index=False, name=None))
    assert found == sorted(
        (one.rank, item.phase, item.chunk, item.micro_batch, item.end - item.start, item.busy)
        for stages in lanes(path_of(name))
        for one in stages
        for item in one.passes
    )


@pytest.mark.parametrize("rank", [0, 5])
def test_moe_layers_of_an_interleaved_pipeline(rank: int) -> None:
    """Two chunks of one layer each on a rank, and eight micro-batches through each of them."""
    file = path_of(PP2VPP2EP4) / f"rank{rank}.json.zst"
    table = tracelens.analyze(tracelens.load(file), "moe")["passes"]
    for phase in (FORWARD, BACKWARD):
        of_phase = table[table["phase"].astype(str) == phase]
        assert of_phase.groupby("layer")["micro_batch"].nunique().tolist() == [8, 8]
        assert len(of_phase) == 16
