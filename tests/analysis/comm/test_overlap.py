"""Communication under computation: every column by hand, and against a count of columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.drawings import Drawing, drawings
from tests.builders import Event, draw, draw_run, events, read, records
from tracelens import analyze, report
from tracelens.table import Result
from tracelens.trace import Run, make_run, select_step
from tracelens.trace.activities import SCOPES

TIMES = ("group", "collective", "count", "comm_ns", "hidden_ns", "exposed_ns")
FRACTIONS = ("hidden_fraction", "bound_fraction", "exposed_fraction_of_total")
SLOW = (
    "name",
    "shapes",
    "blocks",
    "overlapped_count",
    "alone_count",
    "overlapped_mean_ns",
    "alone_mean_ns",
    "slowdown",
    "extra_ns",
)


def overlap(text: str, **options: Any) -> Result:
    return analyze(make_run([draw(text)]), "overlap", **options)


def times(result: Result) -> list[tuple[Any, ...]]:
    return records(result["overlap"], *TIMES)


def skips(result: Result) -> list[tuple[str, str]]:
    return [(skip.subject, skip.reason) for skip in result.skips]


TWO_GROUPS = """
                                                          | 0    5    10   15   20
    op record_param_comms collective=all_to_allv group=ep | --
    op record_param_comms collective=allreduce group=dp   |   --
    launch                                                | a b
    s7 gemm                                               |      ======   ====
    s8 ncclDevKernel_SendRecv                             |     aaaaaaaa
    s9 ncclDevKernel_AllReduce                            |           bbbbbb
"""


def test_every_column_of_two_groups_that_communicate_at_once() -> None:
    result = overlap(TWO_GROUPS)
    # Computation    5-11, 14-18: 10; all GPU work 4-18: 14
    # all_to_allv    4-12:  8, hidden 5-11:        6
    # allreduce     10-16:  6, hidden 10-11, 14-16: 3
    # together       4-16: 12, hidden 5-11, 14-16: 8
    assert times(result) == [
        ("(all)", "(all)", 2, 12_000, 8_000, 4_000),
        ("ep", "all_to_allv", 1, 8_000, 6_000, 2_000),
        ("dp", "allreduce", 1, 6_000, 3_000, 3_000),
    ]
    assert records(result["overlap"], "rank", *FRACTIONS) == [
        (0, pytest.approx(8 / 12), pytest.approx(10 / 12), pytest.approx(4 / 14)),
        (0, pytest.approx(6 / 8), 1.0, pytest.approx(2 / 14)),
        (0, pytest.approx(3 / 6), 1.0, pytest.approx(3 / 14)),
    ]


def test_kernels_of_one_group_on_two_streams_count_their_time_once() -> None:
    result = overlap("""
        op record_param_comms collective=allreduce group=dp | -- --
        launch                                              | a  b
        s7 gemm                                             |           ====
        s8 ncclDevKernel_AllReduce                          |     aaaaa
        s9 ncclDevKernel_AllReduce                          |        bbbbb
    """)
    assert times(result) == [
        ("(all)", "(all)", 2, 8_000, 2_000, 6_000),
        ("dp", "allreduce", 2, 8_000, 2_000, 6_000),
    ]


def test_collectives_of_one_group_are_rows_of_their_own() -> None:
    result = overlap("""
        op record_param_comms collective=allreduce group=dp | --
        op record_param_comms collective=broadcast group=dp |   --
        launch                                              | a b
        s8 ncclDevKernel_AllReduce                          |     aa
        s8 ncclDevKernel_Broadcast                          |        bbbbb
    """)
    assert times(result)[1:] == [
        ("dp", "broadcast", 1, 5_000, 0, 5_000),
        ("dp", "allreduce", 1, 2_000, 0, 2_000),
    ]


def changed(text: str, change: Callable[[Event], None]) -> Run:
    """The drawing with something changed in each event."""
    result = events(text)
    for event in result:
        change(event)
    return make_run([read(result)])


def test_a_group_is_shown_by_its_description() -> None:
    def describe(event: Event) -> None:
        group = event.get("args", {}).get("Process Group Name")
        if group:
            event["args"]["Process Group Description"] = {"ep": "EXPERT", "dp": ""}[group]

    result = analyze(changed(TWO_GROUPS, describe), "overlap")
    assert result["overlap"]["group"].tolist() == ["(all)", "EXPERT", "dp"]


def test_a_description_of_several_groups_is_told_apart_by_the_name() -> None:
    def describe(event: Event) -> None:
        if "Process Group Name" in event.get("args", {}):
            event["args"]["Process Group Description"] = "undefined"

    result = analyze(changed(TWO_GROUPS, describe), "overlap")
    assert result["overlap"]["group"].tolist() == ["(all)", "undefined (ep)", "undefined (dp)"]


def test_a_kernel_of_several_records_has_all_their_names() -> None:
    result = overlap("""
        op record_param_comms collective=send group=pp      | --
        op record_param_comms collective=recv group=pp      |   -- --
        op nccl:coalesced                                   |         ----
        op record_param_comms collective=coalesced group=pp |         ---
        launch                                              |          a
        s8 ncclDevKernel_SendRecv                           |            aaaa
    """)
    assert times(result) == [
        ("(all)", "(all)", 1, 4_000, 0, 4_000),
        ("pp", "recv, send", 1, 4_000, 0, 4_000),
    ]


def test_communication_without_records_says_so() -> None:
    result = overlap("""
        op record_param_comms collective=allreduce group=dp | --
        launch                                              | a
        s7 gemm                                             |      ====
        s8 ncclDevKernel_AllReduce                          |   aaaa
        s8 ncclDevKernel_Broadcast                          |        == =
    """)
    assert times(result)[1:] == [
        ("dp", "allreduce", 1, 4_000, 1_000, 3_000),
        ("(not recorded)", "(not recorded)", 2, 3_000, 2_000, 1_000),
    ]
    assert skips(result)[0] == (
        "rank 0: group and collective of 2 communication kernels",
        "no record_param_comms around their launches; record with ProfilerActivity.CPU",
    )


@pytest.mark.parametrize(
    ("text", "scope", "reason"),
    [
        ("s7 gemm | ====", "all", "no communication kernel"),
        ("s7 ncclAllReduce | ====", "linked", "no GPU work is linked"),
        ("launch  | a\ns8 gemm |  aa\ns7 nccl |   ====", "linked", "--scope all"),
        ("s7 ncclAllReduce | !", "all", "no duration"),
        ("python f | ==", "all", "ProfilerActivity.CUDA"),
        ("op f | ==", "all", "no communication kernel"),
    ],
)
def test_without_communication_there_is_a_reason(text: str, scope: str, reason: str) -> None:
    result = overlap(text, scope=scope)
    assert len(result["overlap"]) == 0
    ((subject, why),) = skips(result)
    assert subject == "rank 0"
    assert reason in why


def test_a_collective_without_extent_is_left_out_with_a_reason() -> None:
    result = overlap("""
        op record_param_comms collective=barrier group=dp   | --
        op record_param_comms collective=allreduce group=dp |   --
        launch                                              | a b
        s8 ncclDevKernel_AllReduce corr=a                   |     !
        s8 ncclDevKernel_AllReduce                          |        bbb
    """)
    assert times(result) == [
        ("(all)", "(all)", 2, 3_000, 0, 3_000),
        ("dp", "allreduce", 1, 3_000, 0, 3_000),
    ]
    assert ("rank 0: barrier of dp", "its kernels have no duration") in skips(result)


LINKED = """
                     | 0    5    10   15   20
    launch           | a b c
    s7 gemm          |   ======
    s7 fill          |            bb
    s7 gemm          |                aaaa
    s8 ncclAllReduce |   ccccccccccccccccc
    s9 ncclAllReduce |                   ====
"""


def test_linked_leaves_out_what_has_no_call_and_counts_fills_as_computation() -> None:
    # All:    comm 2-22, computation 2-8 and 15-19. Linked: comm 2-19, computation 11-13 and 15-19.
    assert times(overlap(LINKED))[0][2:] == (2, 20_000, 10_000, 10_000)
    assert times(overlap(LINKED, scope="linked"))[0][2:] == (1, 17_000, 6_000, 11_000)


def test_every_rank_has_its_rows() -> None:
    result = analyze(draw_run(TWO_GROUPS, "s7 gemm | ==", "s7 ncclAllReduce | =="), "overlap")
    assert records(result["overlap"], "rank", "group", "comm_ns") == [
        (0, "(all)", 12_000),
        (0, "ep", 8_000),
        (0, "dp", 6_000),
        (2, "(all)", 2_000),
        (2, "(not recorded)", 2_000),
    ]
    assert "rank 1" in [subject for subject, _ in skips(result)]


STEPS = """
    step 1           | --------
    step 2           |         ------------
    s7 gemm          |   ===   =====    ===
    s8 ncclAllReduce |    =====  ======
"""


def test_a_step_is_seen_alone() -> None:
    run = make_run([draw(STEPS)])
    # Computation 2-5, 8-13, 16-19; communication 3-8, 10-16; step 1 ends where step 2 begins, at 8.
    for step, want, share in (
        ("1", (1, 5_000, 2_000, 3_000), 3 / 8),
        ("2", (1, 6_000, 3_000, 3_000), 3 / 12),
    ):
        result = report(run, ["overlap"], step=step)["overlap"]
        assert times(result)[0][2:] == want
        (fraction,) = result["overlap"]["exposed_fraction_of_total"][:1]
        assert fraction == pytest.approx(share)


SLOWED = """
    op aten::mm shapes=[[4,8],[8,2]] types=["float","float"] | -- -- -- -- -- -- --
    launch                                                   | a  b  c  d  e  f  g
    s7 gemm                                                  | {gemm}
    s7 relu                                                  | {relu}
    s9 ncclAllReduce                                         | {nccl}
"""
SLOWED = SLOWED.format(
    gemm=" " * 22 + "aaaa bbbb cccc       dddddd eeeeee ffffffffgggg",
    relu="== == ==" + " " * 60 + "= = = !",
    nccl=" " * 41 + "===============" + " " * 5 + "=" * 40,
)


def test_every_column_of_the_slowdown() -> None:
    result = overlap(SLOWED)
    # gemm alone 4 4 4, beside communication 6 6 8 4 (of the 8 half). relu alone 2 2 2, beside it 1 1 1.
    assert records(result["slowdown"], "rank", *SLOW) == [
        (0, "(all)", "", None, 7, 6, 27_000 / 7, 22_000 / 7, 27 / 22, 5_000),
        (0, "gemm", "fp32[4,8] fp32[8,2]", None, 4, 3, 6_000.0, 4_000.0, 1.5, 8_000),
        (0, "relu", "", None, 3, 3, 1_000.0, 2_000.0, 0.5, -3_000),
    ]


def slowdown(alone: str, beside: str, comm: str = "s9 ncclAllReduce") -> Result:
    """Kernels k drawn in `alone`, then communication with `beside` next to it."""
    width = len(alone)
    return overlap(f"""
        s7 k             | {alone}{beside}
        {comm:16} | {" " * width}{"=" * len(beside)}
    """)


def counts(result: Result) -> list[tuple[int, int]]:
    return records(result["slowdown"], "overlapped_count", "alone_count")[1:]


@pytest.mark.parametrize(
    ("alone", "beside", "expected"),
    [
        ("== == == ", "= = =", [(3, 3)]),
        ("== == == ", "= =", []),
        ("== == ", "= = =", []),
        ("== == == ===", "= = = =", [(3, 3)]),  # 3 columns alone and 1 beside: neither
        ("== == == ==", "== = =", [(3, 3)]),  # half and half
        ("== == == ==== ! ", "! = = =", [(3, 4)]),  # without extent
    ],
)
def test_calls_that_are_compared(alone: str, beside: str, expected: list[tuple[int, int]]) -> None:
    result = slowdown(alone, beside)
    if expected:
        assert counts(result) == expected
    else:
        assert "slowdown" not in result.tables
        assert any(subject.startswith("rank 0: slowdown") for subject, _ in skips(result))


def test_communication_on_the_same_stream_or_another_gpu_slows_nothing_down() -> None:
    assert counts(slowdown("== == == ", "= = =")) == [(3, 3)]
    for comm in ("s7 ncclAllReduce", "s9 nccl device=1"):
        result = slowdown("== == == ", "= = =", comm)
        assert "slowdown" not in result.tables
        assert skips(result)[-1] == (
            "rank 0: slowdown",
            "no kernel is overlapped by communication for half of its time",
        )
        assert times(result)[0][4] == 3_000  # it is hidden all the same


def test_kernels_of_different_size_are_not_compared() -> None:
    def blocks(event: Event) -> None:
        if event["name"] == "k":
            event["args"]["grid"] = [int(event["dur"]), 1, 1]

    text = """
        s7 k             | == == == = = =    = = = == == ==
        s9 ncclAllReduce |                   ==============
    """
    result = analyze(changed(text, blocks), "overlap")
    assert records(result["slowdown"], "blocks", "overlapped_mean_ns", "alone_mean_ns", "extra_ns") == [
        (None, 1_500.0, 1_500.0, 0),
        (1, 1_000.0, 1_000.0, 0),
        (2, 2_000.0, 2_000.0, 0),
    ]


def test_calls_with_different_arguments_are_not_compared() -> None:
    result = overlap("""
        op aten::mm shapes=[[4]] types=["float"] | - - - - - -
        op aten::mm shapes=[[8]] types=["float"] |             - - - - - -
        launch                                   | a b c d e f g h i j k l
        s7 gemm                                  |                         a b c gg hh ii dd ee ff j k l
        s9 ncclAllReduce                         |                                        ==============
    """)
    assert records(result["slowdown"], "shapes", "overlapped_mean_ns", "alone_mean_ns", "extra_ns")[1:] == [
        ("fp32[4]", 2_000.0, 1_000.0, 3_000),
        ("fp32[8]", 1_000.0, 2_000.0, -3_000),
    ]


def test_what_cannot_be_compared_is_counted() -> None:
    result = overlap("""
        s7 k             | == == ==    == == == ==
        s7 only          |                          = =
        s9 ncclAllReduce |             ================
    """)
    assert counts(result) == [(4, 3)]
    assert [subject for subject, _ in skips(result)][1:] == [
        "rank 0: slowdown of 2 kernel calls under communication"
    ]


def test_kernels_that_a_step_cuts_are_not_compared() -> None:
    run = make_run([
        draw("""
            step 1           | ----------------------
            step 2           |                       ----------
            s7 k             | == == ==   = = =        =
            s8 k             |                     ======
            s9 ncclAllReduce |            ===============
        """)
    ])  # fmt: skip
    assert counts(analyze(run, "overlap")) == [(5, 3)]
    assert counts(analyze(select_step(run, "1"), "overlap")) == [(3, 3)]


@given(drawings, st.sampled_from(SCOPES))
def test_all_together_is_what_the_timeline_says(drawing: Drawing, scope: str) -> None:
    run = make_run([draw(drawing.text)])
    timeline = dict(records(analyze(run, "timeline", scope=scope)["timeline"], "metric", "dur_ns"))
    rows = times(analyze(run, "overlap", scope=scope))
    if not timeline.get("comm"):
        assert not rows
        return
    exposed = timeline["exposed_comm"]
    assert rows[0][3:] == (timeline["comm"], timeline["comm"] - exposed, exposed)


class Piece(NamedTuple):
    """A kernel: what it is, and the columns that it runs in."""

    what: tuple[str, ...]
    start: int
    length: int

    @property
    def columns(self) -> set[int]:
        return set(range(self.start, self.start + self.length))


COMPUTING = st.builds(Piece, st.sampled_from([("gemm",), ("relu",)]), st.integers(0, 60), st.integers(0, 5))
COMMUNICATING = st.builds(
    Piece,
    st.sampled_from([("ep", "all_to_allv"), ("dp", "allreduce"), ("dp", "broadcast"), ()]),
    st.integers(0, 60),
    st.integers(0, 12),
)


def drawn(computing: Iterable[Piece], communicating: Iterable[Piece]) -> Run:
    """Each kernel on a stream of its own; communication with a record around its call."""
    rows = []
    for piece in computing:
        rows.append((f"s{len(rows)} {piece.what[0]}", piece.start, "=" * piece.length or "!"))
    for index, piece in enumerate(communicating):
        call = chr(ord("a") + index) if piece.what else "="
        if piece.what:
            group, collective = piece.what
            rows.append((f"op record_param_comms group={group} collective={collective}", 3 * index, "--"))
            rows.append(("launch", 3 * index, call))
        rows.append((f"s{len(rows)} nccl corr={call}", piece.start, "=" * piece.length or "!"))
    width = max(len(label) for label, _, _ in rows)
    return make_run(
        [draw("\n".join(f"{label:{width}} | {' ' * offset}{mark}" for label, offset, mark in rows))]
    )


def union_of(pieces: Iterable[Piece]) -> set[int]:
    return set().union(*(piece.columns for piece in pieces))


pieces = (st.lists(COMPUTING, max_size=14), st.lists(COMMUNICATING, min_size=1, max_size=5))


@given(*pieces)
def test_overlap_against_every_column(computing: list[Piece], communicating: list[Piece]) -> None:
    result = analyze(drawn(computing, communicating), "overlap")
    groups: dict[tuple[str, ...], list[Piece]] = {("(all)", "(all)"): communicating}
    for piece in communicating:
        groups.setdefault(piece.what or ("(not recorded)",) * 2, []).append(piece)
    comp = union_of(computing)
    work = [*computing, *communicating]
    total = max(piece.start + piece.length for piece in work) - min(piece.start for piece in work)
    want = {}
    for names, pieces in groups.items():
        comm = union_of(pieces)
        if comm:
            size, hidden = len(comm), len(comm & comp)
            fractions = (hidden / size, min(size, len(comp)) / size, (size - hidden) / total)
            want[names] = (len(pieces), 1000 * size, 1000 * hidden, 1000 * (size - hidden), *fractions)
    rows = records(result["overlap"], *TIMES, *FRACTIONS)
    assert {row[:2]: row[2:] for row in rows} == {names: pytest.approx(row) for names, row in want.items()}
    assert len(rows) == len(want)
    assert [row[3] for row in rows] == sorted((row[3] for row in rows), reverse=True)


@given(*pieces)
def test_slowdown_against_every_column(computing: list[Piece], communicating: list[Piece]) -> None:
    result = analyze(drawn(computing, communicating), "overlap")
    comm = union_of(communicating)
    beside, alone = defaultdict(list), defaultdict(list)
    for piece in computing:
        time = len(piece.columns & comm)
        if piece.length and 2 * time >= piece.length:
            beside[piece.what[0]].append(piece.length)
        elif piece.length and not time:
            alone[piece.what[0]].append(piece.length)
    want = {}
    for name in beside:
        slow, usual = beside[name], alone[name]
        if min(len(slow), len(usual)) >= 3:
            extra = 1000 * (sum(slow) - sum(usual) / len(usual) * len(slow))
            want[name] = (
                len(slow),
                len(usual),
                round(extra),
                sum(slow) * len(usual) / sum(usual) / len(slow),
            )
    if not want:
        assert "slowdown" not in result.tables
        return
    shown = ("name", "overlapped_count", "alone_count", "extra_ns", "slowdown")
    together, *rows = records(result["slowdown"], *shown)
    assert {row[0]: row[1:] for row in rows} == {name: pytest.approx(row) for name, row in want.items()}
    assert [row[3] for row in rows] == sorted((row[3] for row in rows), reverse=True)
    assert together[:4] == ("(all)", *(sum(row[column] for row in rows) for column in (1, 2, 3)))
