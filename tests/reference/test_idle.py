"""Idle time: every ns of every gap has the cause that the raw events say, and lies in what is blamed."""

import re
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

import tracelens
from tests.effort import THOROUGH, of_its_kind
from tests.reference.host import Recorded, recorded_of
from tests.reference.idle import REFILL, Gap, Piece, gaps_of
from tests.reference.raw import clipped, length, union
from tests.reference.traces import GROUPED_COMPILE, path_of
from tracelens.analysis.host import CODE, find_gaps, idle_pieces
from tracelens.trace import gpu_work, recorded_span, steps_of

FAULTS = "foreign/nvidia-h200-megatron/faults"
TRACES = [
    "corpus/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "corpus/mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "corpus/mi300x/Falconsai_nsfw_image_detection__1016002.json.gz",
    "corpus/mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "corpus/mi300x/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "corpus/mi300x/gaunernst_bert-small-uncased__1016001.json.gz",
    "corpus/mi300x/resnet_act_checkpoint.json.gz",
    "corpus/misc/backward_thread.json",
    "corpus/misc/hta_control.json.gz",
    "corpus/misc/hta_test.json.gz",
    "corpus/misc/nccl_data.json.gz",
    "corpus/misc/negative_queue.json.gz",
    "corpus/misc/ns_resolution.json.gz",
    "corpus/misc/triton_example.json.gz",
    "corpus/nvidia-h100-hf/dsv2_eager.json.gz",
    "corpus/nvidia-h100-hf/dsv2_grouped.json.gz",
    "foreign/mi300x-serving/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
    "foreign/mi300x-serving/vllm_prefilldecode_piecewise/graph_execution.json.gz",
    GROUPED_COMPILE,
    "foreign/nvidia-h200-hf/dsv2_grouped_stack_mem.json.zst",
    *(f"{FAULTS}/{kind}/rank{rank}.json.zst" for kind in ("control", "slow_kernels") for rank in (0, 4)),
    *(f"{FAULTS}/{kind}/rank{rank}.json.zst" for kind in ("host_delay", "gc") for rank in (2, 5)),
    *(
        f"corpus/nvidia-h200-megatron/{kind}/rank{rank}.json.gz"
        for kind in ("ep8", "pp2ep4")
        for rank in (0, 5)
    ),
    "foreign/nvidia-h200-megatron/pp2vpp2ep4/rank5.json.zst",
    *(f"sample_traces/faults/{kind}/rank1.json.zst" for kind in ("blocking_call", "gc", "slow_kernels")),
    "planted/slow_host/rank1.json.zst",
    "sample_traces/ladder/ep4/08_graph/rank0.json.zst",
    "sample_traces/one_gpu/grouped/rank0.json.gz",
    "sample_traces/one_gpu/loop/rank0.json.gz",
]
"""All of corpus and foreign but capture traces without GPU work, and a choice of ranks of each large run."""
SECOND_RANKS = (f"{FAULTS}/host_delay/rank5.json.zst", "corpus/nvidia-h200-megatron/ep8/rank0.json.gz")
"""Ranks that do what the other one of their run does."""
SWEPT = [name for name in TRACES if THOROUGH or (of_its_kind(Path(name)) and name not in SECOND_RANKS)]


class Blamed(NamedTuple):
    """What tracelens says of a trace, with times by the clock of the reference.

    Attributes:
        gaps: pieces by (start, end) of their gap.
        totals: the table `causes`: (gaps, ns) by cause.
        detail: the table `pieces`.
        begin: of what the tables are of: without step marks, behind what was in flight at the start.
    """

    gaps: dict[tuple[int, int], list[Piece]]
    totals: dict[str, tuple[int, int]]
    detail: list[Piece]
    begin: int


class Compared(NamedTuple):
    """The reference's reading of a trace, its gaps, and what tracelens says."""

    recording: Recorded
    gaps: list[Gap]
    blamed: Blamed


SIMILAR = (
    "corpus/misc/hta_control.json.gz",
    "corpus/mi300x/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "sample_traces/faults/gc/rank1.json.zst",
    "sample_traces/one_gpu/grouped/rank0.json.gz",
)
"""Large ones of programs and machines that others are of as well."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.rare] * (name in SIMILAR)) for name in SWEPT],
)
def compared(request: pytest.FixtureRequest) -> Compared:
    path = path_of(request.param)
    recording = recorded_of(path)
    return Compared(recording, gaps_of(recording), blamed(path, recording))


def blamed(path: Path, recording: Recorded) -> Blamed:
    run = tracelens.load(path)
    (trace,) = run.traces
    tables = tracelens.analyze(run, "idle")
    work = gpu_work(trace)
    steps = steps_of(trace)
    gaps = find_gaps(work, steps.edges)
    # What each trace counts from is its own affair: both begin with the same work.
    shift = recording.work[0].start - int(work.start[0])
    names = {code: name for name, code in CODE.items()}
    pieces = defaultdict(list)
    parts = idle_pieces(trace, work, gaps)
    for gap, start, end, cause, host in zip(*(values.tolist() for values in parts[:5]), strict=True):
        name = trace.arrays.names[trace.arrays.name[host]] if host >= 0 else ""
        pieces[gap].append(Piece(start + shift, end + shift, names[cause], name))
    windows = zip(gaps.start.tolist(), gaps.end.tolist(), strict=True)
    by_gap = {(start + shift, end + shift): pieces[gap] for gap, (start, end) in enumerate(windows)}
    totals = tables["causes"]
    counts = zip(totals["count"].tolist(), totals["dur_ns"].tolist(), strict=True)
    rows = tables["pieces"]
    columns = (rows[name].tolist() for name in ("local_ts_ns", "dur_ns", "cause", "host"))
    detail = [
        Piece(start + shift, start + shift + dur, cause, host)
        for start, dur, cause, host in zip(*columns, strict=True)
    ]
    begin = (int(steps.edges[0]) if steps.marked else recorded_span(trace, work)[0]) + shift
    return Blamed(by_gap, dict(zip(totals["cause"].tolist(), counts, strict=True)), detail, begin)


def split(pieces: list[Piece] | tuple[Piece, ...]) -> list[tuple[int, int, str]]:
    """(start, end, cause) with neighbours of one cause joined."""
    joined: list[tuple[int, int, str]] = []
    for piece in sorted(pieces):
        if joined and joined[-1][2] == piece.cause and joined[-1][1] == piece.start:
            joined[-1] = joined[-1][0], piece.end, piece.cause
        else:
            joined.append((piece.start, piece.end, piece.cause))
    return joined


def test_every_gap_is_split_alike(compared: Compared) -> None:
    found = compared.blamed.gaps
    assert sorted(found) == [(gap.start, gap.end) for gap in compared.gaps]
    differing = {
        (gap.start, gap.end): (split(gap.pieces), split(found[gap.start, gap.end]))
        for gap in compared.gaps
        if split(gap.pieces) != split(found[gap.start, gap.end])
    }
    assert differing == {}


def idle_ns(compared: Compared) -> int:
    return sum(gap.end - gap.start for gap in compared.gaps if gap.end > compared.blamed.begin)


def test_causes_add_up_to_the_idle_time(compared: Compared) -> None:
    totals = compared.blamed.totals
    assert sum(ns for _, ns in totals.values()) == idle_ns(compared)
    pieces = [
        (gap, piece)
        for gap, pieces in compared.blamed.gaps.items()
        if gap[1] > compared.blamed.begin
        for piece in pieces
    ]
    assert totals == {
        cause: (
            len({gap for gap, piece in pieces if piece.cause == cause}),
            sum(piece.end - piece.start for _, piece in pieces if piece.cause == cause),
        )
        for cause in {piece.cause for _, piece in pieces}
    }


def test_listed_pieces_are_those_of_their_gaps(compared: Compared) -> None:
    result = compared.blamed
    expected = [named(piece) for pieces in result.gaps.values() for piece in pieces]
    assert {named(piece) for piece in result.detail} <= set(expected)
    assert len(set(result.detail)) == len(result.detail)


def named(piece: Piece) -> Piece:
    """The piece with its host as tables write it, without addresses."""
    return piece._replace(host=re.sub(r" at 0x[0-9a-f]+", "", piece.host))


def test_blamed_time_lies_in_the_event_named(compared: Compared) -> None:
    """At least 90% of each piece, whoever's thread the event is on."""
    spans = defaultdict(list)
    recording = compared.recording
    for event in (*recording.events(), *recording.overhead):
        spans[event.name].append((event.start, event.end))
    busy = {name: union(intervals) for name, intervals in spans.items()}
    astray = []
    for (begin, _), pieces in compared.blamed.gaps.items():
        for piece in pieces:
            if piece.cause == REFILL:
                # The call is over: it kept the GPU idle from the begin of this gap, or from within it.
                is_true = inside(busy[piece.host], piece._replace(start=begin, end=piece.start)) > 0
            else:
                is_true = not piece.host or inside(busy[piece.host], piece) >= 0.9 * (piece.end - piece.start)
            if not is_true:
                astray.append(piece)
    assert astray == []


def inside(intervals: list[tuple[int, int]], piece: Piece) -> int:
    """How much of the piece these disjoint, ascending intervals cover, ns."""
    first = max(bisect_right(intervals, (piece.start, piece.start)) - 1, 0)
    stop = bisect_right(intervals, (piece.end, piece.end))
    return length(clipped(intervals[first:stop], piece.start, piece.end))
