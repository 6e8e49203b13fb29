"""Recordings that lack something or contradict themselves, and those that only look like it."""

from __future__ import annotations

import json
import re

import pytest

from tests.builders import aligned, draw, draw_run, events, read, records
from tracelens import analyze, report
from tracelens.analysis.completeness import DOUBTS
from tracelens.rendering import RENDERERS
from tracelens.table import Result
from tracelens.trace import Trace, make_run

MS = 1_000_000

COMPLETE = """
    launch                       | abcdefgh
    s7 gemm                      |  aabbccddeeffgghh
    launch cudaDeviceSynchronize |         ----------
"""


def doubts(trace: Trace) -> list[tuple[str, int]]:
    """(doubt, count) of a single rank, most time first."""
    return records(analyze(make_run([trace]), "completeness")["doubts"], "doubt", "count")


def drawn(text: str, **options: object) -> list[tuple[str, int]]:
    return doubts(draw(aligned(text), **options))


def steps(*contents: str, before: str = "-", after: str = "-") -> str:
    """Steps of ten columns, each a drawing of ops, launches and kernels that is put behind the one before."""
    rows = {"op aten::mm": "", "launch": "", "s7 gemm": "", "s9 add": ""}
    for content in contents:
        drawings = (line.partition("|") for line in content.strip().splitlines())
        lines = {label.strip(): drawing for label, _, drawing in drawings}
        for label in rows:
            rows[label] += lines.get(label, "").removeprefix(" ").ljust(10)
    marks = [f"step {number} | {' ' * (1 + 10 * number)}----------" for number, _ in enumerate(contents)]
    lines = [f"{label} |  {row}" for label, row in rows.items()]
    end = " " * (1 + 10 * len(contents))
    return aligned(
        "\n".join([f"op first | {before}", *marks, *lines, f"launch cudaDeviceSynchronize | {end}{after}"])
    )


def test_a_complete_recording_raises_no_doubt() -> None:
    result = analyze(make_run([draw(aligned(COMPLETE))]), "completeness")
    assert not len(result["doubts"])
    assert not len(result["stretches"])
    assert [skip.subject for skip in result.skips] == ["rank 0: doubts"]


def test_launch_calls_without_kernels_are_missing_kernels_in_the_gap_where_they_must_have_run() -> None:
    trace = draw(
        aligned("""
        launch                       | abcdefgh
        s7 gemm                      |  aabb        gghh
        launch cudaDeviceSynchronize |         ----------
        """)
    )
    result = analyze(make_run([trace]), "completeness")
    assert records(result["doubts"], "rank", "doubt", "dur_ns", "count", "ts_ns") == [
        (0, "missing kernels", 8000, 4, 5000)
    ]
    assert records(result["stretches"], "local_ts_ns", "dur_ns") == [(5000, 8000)]
    assert result["doubts"]["fraction_of_recorded_time"][0] == pytest.approx(8 / 18)


def test_one_lost_kernel_is_a_doubt() -> None:
    assert drawn("""
        launch                       | abcdefgh
        s7 gemm                      |  aabbcc  eeffgghh
        launch cudaDeviceSynchronize |         ----------
    """) == [("missing kernels", 1)]


def test_a_kernel_without_the_correlation_id_of_its_like_lacks_its_link() -> None:
    text = """
        launch                       | abcdefgh
        s7 gemm                      |  aabb{}ddeeffgghh
        launch cudaDeviceSynchronize |         -----------
    """
    assert not drawn(text.format("cc"))
    assert drawn(text.format("--")) == [("missing links", 1)]
    assert drawn(text.format("cc"), correlations=False, flows=False) == [("missing links", 8)]


def test_a_call_without_the_arrow_that_others_have() -> None:
    found = events(aligned(COMPLETE))
    assert not doubts(read(found))
    arrows = [event for event in found if event["ph"] == "s"]
    assert doubts(read([event for event in found if event is not arrows[2]])) == [("missing links", 1)]
    assert not doubts(read([event for event in found if event["ph"] not in "sf"]))


def test_a_kernel_of_nccl_without_the_record_that_others_have() -> None:
    text = f"""
        op c10d::allreduce_          | - - - -
        op {REDUCE}                  | - {{}} - -
        launch                       | a b c d
        s9 ncclDevKernel_AllReduce   |  a b c d
        launch cudaDeviceSynchronize |         --
    """
    assert not drawn(text.format("-"))
    assert drawn(text.format(" ")) == [("missing collectives", 1)]


@pytest.mark.parametrize(
    ("left", "expected"), [((0, 1, 2), []), ((0, 2), [("missing step marks", 1)]), ((), [])]
)
def test_a_step_number_that_lacks(left: tuple[int, ...], expected: list[tuple[str, int]]) -> None:
    lines = steps(*(ONE.format(*letters) for letters in ("abcd", "efgh", "ijkl"))).splitlines()
    kept = [line for line in lines if not line.startswith("step") or int(line.split()[1]) in left]
    assert drawn("\n".join(kept)) == expected


def test_a_step_that_is_marked_on_the_gpu_only() -> None:
    text = steps(ONE.format(*"abcd"), ONE.format(*"efgh"))
    on_gpu = "gpu ProfilerStep#{} | {}"
    marked = "\n".join([text, on_gpu.format(0, "  ------"), on_gpu.format(1, " " * 12 + "------")])
    assert not drawn(marked)
    without_first = "\n".join(line for line in marked.splitlines() if not line.startswith("step 0"))
    assert ("missing step marks", 1) in drawn(without_first)


def test_a_rank_without_any_of_the_step_marks_of_others() -> None:
    whole = steps(
        *(ONE.format(*letters) for letters in ("abcdefg"[:4], "hijk", "lmno", "pqrs", "tuvw", "xyzA"))
    )
    unmarked = "\n".join(line for line in whole.splitlines() if not line.startswith("step"))
    table = analyze(draw_run(whole, unmarked), "completeness")["doubts"]
    assert records(table, "rank", "doubt", "count") == [(1, "missing step marks", 6)]


def test_a_stream_that_all_other_ranks_have() -> None:
    text = """
        launch                       | abcdef ghijkl
        s7 gemm                      |  abcdef
        {}                           |         ghijkl
        launch cudaDeviceSynchronize |               --
    """
    whole = aligned(text.format("s9 add"))
    lacking = aligned(
        text.replace(" ghijkl\n        s7", "\n        s7").replace("        ghijkl", "").format("s9 add")
    )
    on_another = aligned(text.format("s8 add"))
    table = analyze(draw_run(whole, lacking, whole), "completeness")["doubts"]
    assert records(table, "rank", "doubt", "count") == [(1, "missing streams", 1)]
    assert not len(analyze(draw_run(whole, lacking), "completeness")["doubts"])
    assert not len(analyze(draw_run(whole, on_another, on_another, whole), "completeness")["doubts"])


def test_launches_at_the_end_are_cut_off_unless_the_host_waited_for_them() -> None:
    ahead = """
        launch  | abcdefgh
        s7 gemm |  aabbccddee
    """
    waited = "launch cudaDeviceSynchronize |         ----------"
    assert drawn(ahead) == [("cut", 3)]
    assert drawn(f"{ahead}\n{waited}") == [("missing kernels", 3)]


def test_kernels_without_launch_calls_are_missing_launches_if_launched_during_the_recording() -> None:
    text = """
        op f    | --------
        launch  | a      h
        s7 gemm |         aabbccddeeffgghh
    """
    assert drawn(text) == [("missing launches", 6)]


def test_kernels_that_were_queued_before_the_recording_began_belong_to_no_whole_trace() -> None:
    text = steps(
        """
        op aten::mm |  ----
        launch      |  mnop
        s7 gemm     |      mnop
        """
    )
    early = "s7 earlier                   | abcd"  # the first of them ran already
    assert not drawn(f"{text}\n{early}")
    assert drawn("\n".join([*text.splitlines()[:1], *text.splitlines()[2:], early])) == [("cut", 3)]


def test_a_recording_of_which_most_gpu_work_has_no_launch_call_begins_too_late() -> None:
    text = """
        step 1     |  ----
        op f       |  ----
        launch     |  ghij
        s7 earlier | {}
        s7 gemm    |       ghij
    """
    assert not drawn(text.format("abcd"))
    assert drawn(text.format("abcde")) == [("cut", 5)]
    assert drawn("s7 gemm | abcd") == [("missing launches", 4)]


def test_calls_while_a_graph_is_captured_and_memsets_of_no_byte_have_no_work() -> None:
    assert not drawn("""
        launch cudaStreamBeginCapture | -
        launch                        |  abcdef
        launch cudaStreamEndCapture   |        -
        launch cudaMemsetAsync        |         ghij
        launch cudaGraphLaunch        |             k
        s7 gemm                       |              kkkk
        launch cudaDeviceSynchronize  |                  -
    """)


GRAPHS = """
    launch cudaGraphLaunch       | a         b         c
    s7 norm                      |  a         b         c
    s7 gemm                      |   aa        bb        {}
    s7 softmax                   |     a         b         c
    s7 reduce                    |      a         b         {}
    launch cudaDeviceSynchronize |                            ---
"""


def test_a_replay_that_lacks_kernels_of_its_siblings_is_damaged() -> None:
    assert not drawn(GRAPHS.format("cc", "c"))
    assert drawn(GRAPHS.format("  ", "c")) == [("missing graph kernels", 1)]


def test_a_graph_that_only_ends_earlier_is_another_graph() -> None:
    assert not drawn(GRAPHS.format("cc", " "))


@pytest.mark.parametrize(
    ("lacking", "expected"),
    [("d", [("missing graph kernels", 1)]), ("a", []), ("g", []), ("cd", []), ("bcef", [])],
    ids=["amid", "first", "last", "two of a kind", "few siblings"],
)
def test_a_single_replay_amid_its_siblings_that_begins_later_is_damaged(
    lacking: str, expected: list[tuple[str, int]]
) -> None:
    norm = "".join(f"   {letter if letter not in lacking else ' '} " for letter in "abcdefg")
    text = f"""
        launch cudaGraphLaunch       | a    b    c    d    e    f    g
        s7 norm                      |{norm.removeprefix(" ")}
        s7 gemm                      |   a    b    c    d    e    f    g
        launch cudaDeviceSynchronize |                                  --
    """
    assert drawn(text) == expected


def test_a_graph_launch_without_any_kernel_is_damaged() -> None:
    assert drawn("""
        launch cudaGraphLaunch       | a    b    c
        s7 gemm                      |  aa        cc
        launch cudaDeviceSynchronize |             ---
    """) == [("missing graph kernels", 1)]


QUEUED = """
    launch                       | ab
    s7 gemm                      |  aa      bb
    launch cudaDeviceSynchronize |   ---------
"""


def test_an_idle_gpu_with_queued_work_lacks_work_beyond_the_slices_of_other_processes() -> None:
    assert not drawn(QUEUED, ns_per_char=MS // 2)
    trace = draw(aligned(QUEUED), ns_per_char=MS)
    table = analyze(make_run([trace]), "completeness")["doubts"]
    assert records(table, "doubt", "count", "dur_ns") == [("missing work", 1, 6 * MS)]


IN_FLIGHT = "rank 0: work in flight at the start"


@pytest.mark.parametrize(("before", "in_flight"), [("", True), ("   ", False)])
def test_a_host_that_waits_at_the_start_waits_for_work_in_flight(before: str, in_flight: bool) -> None:
    text = f"""
        op f                         | ------------------
        launch cudaDeviceSynchronize | {before}---------
        launch                       |             ab
        s7 gemm                      |              aab
    """
    assert not drawn(text, ns_per_char=MS // 2)
    result = analyze(make_run([draw(aligned(text), ns_per_char=MS)]), "completeness")
    assert len(result["doubts"]) == (not in_flight)
    assert any(skip.subject == IN_FLIGHT for skip in result.skips) == in_flight


def test_work_that_was_in_flight_at_the_start_belongs_to_no_step() -> None:
    """A copy to the host waits on a stream for what is not recorded, while another stream goes on."""
    text = aligned("""
        op f                   | --------------------------------
        launch                 | a
        s9 add                 |  a
        launch cudaMemcpyAsync |   bbbbbbbbbbbbbbbbbbbbbb
        s7 copy DtoH           |                         b
        launch                 |                          c
        s7 gemm                |                           cc
    """)
    run = make_run([draw(text, ns_per_char=MS)])
    result = analyze(run, "completeness")
    assert not len(result["doubts"])
    assert any(skip.subject == IN_FLIGHT for skip in result.skips)
    assert records(analyze(run, "steps")["steps"], "dur_ns", "idle_ns") == [(4 * MS, MS)]
    marked = aligned(f"{text}\nstep 1 | --------------------------------")
    assert records(analyze(make_run([draw(marked, ns_per_char=MS)]), "steps")["steps"], "dur_ns") == [
        (8 * MS,)
    ]


@pytest.mark.parametrize(("beside", "in_flight"), [("", True), ("abcde", False)])
def test_a_recorded_copy_in_flight_at_the_start_belongs_to_no_step(beside: str, in_flight: bool) -> None:
    text = aligned(f"""
        launch          | {beside or "     "}            fg
        s7 copy DtoH    | ----------------
        s9 add          |   {beside}
        s7 gemm         |                   fg
    """)
    run = make_run([draw(text, ns_per_char=MS)])
    result = analyze(run, "completeness")
    assert not len(result["doubts"])
    assert any(skip.subject == IN_FLIGHT for skip in result.skips) == in_flight
    assert records(analyze(run, "steps")["steps"], "dur_ns") == [(4 * MS if in_flight else 20 * MS,)]


def test_a_collective_in_flight_at_the_start_is_no_loss() -> None:
    """Rank 1 is late: the kernel of rank 0 that waits for it began before the recording, which drops it."""
    call = f"op {REDUCE.replace(',2,3', '')}"
    waiting = aligned(f"""
        {call}                       |            -   -   -
        launch                       |            b   c   d
        s9 nccl_AllReduce device=0   |             bb  cc  dd
        launch cudaDeviceSynchronize | ----------           -
    """)
    late = aligned(f"""
        {call}                       |       -    -   -   -
        launch                       |       a    b   c   d
        s9 nccl_AllReduce device=1   |        aa   bb  cc  dd
        launch cudaDeviceSynchronize |                      -
    """)
    ranks = [draw(text, rank=rank, ns_per_char=MS) for rank, text in enumerate((waiting, late))]
    result = analyze(make_run(ranks), "completeness")
    assert not len(result["doubts"]), result["doubts"].to_dict("records")


def test_next_to_a_graph_a_tenth_of_a_millisecond_is_enough() -> None:
    of_graph = QUEUED.replace("launch          ", "launch cudaGraphLaunch")
    assert not drawn(aligned(of_graph), ns_per_char=10_000)
    assert drawn(aligned(of_graph), ns_per_char=20_000) == [("missing work", 1)]


def test_a_host_that_launches_late_leaves_the_gpu_idle_and_nothing_is_missing() -> None:
    assert not drawn(
        """
        launch  | a        b
        s7 gemm |  aa       bb
        """,
        ns_per_char=10 * MS,
    )


WAITING_ON = """
    launch                       | {}
    s7 gemm                      |   aabbccdd
    launch cudaDeviceSynchronize |          ------------
"""


def test_a_host_that_waits_on_after_the_last_work_ends_early_or_the_gpus_clock_is_early() -> None:
    in_order, too_late = WAITING_ON.format("abcd"), WAITING_ON.format("   a b cd")
    assert not drawn(in_order, ns_per_char=MS // 20)
    assert drawn(in_order, ns_per_char=MS // 8) == [("ends early", 1)]
    assert drawn(too_late, ns_per_char=MS // 8) == [("clock", 4)]


ONE = """
    op aten::mm | --------
    launch      | {0}{1}{2}{3}
    s7 gemm     |  {0}{1}{2}{3}
"""


def test_steps_alike_raise_no_doubt() -> None:
    assert not drawn(steps(*(ONE.format(*letters) for letters in ("abcd", "efgh", "ijkl"))))


def test_a_step_without_the_kernels_of_its_siblings_is_short() -> None:
    lacking = """
        op aten::mm | --------
        launch      | i
        s7 gemm     |  i
    """
    text = steps(ONE.format(*"abcd"), ONE.format(*"efgh"), lacking, ONE.format(*"mnop"))
    assert drawn(text) == [("short step", 1)]


def test_a_step_in_which_the_host_does_less_may_have_fewer_kernels() -> None:
    less = """
        launch      | i
        s7 gemm     |  i
    """
    assert not drawn(steps(ONE.format(*"abcd"), ONE.format(*"efgh"), less, ONE.format(*"mnop")))


def test_a_stream_without_work_in_the_last_step_ends_early() -> None:
    text = """
        op first                     | -
        step 1                       |  --------------------
        step 2                       |                      --------------------
        step 3                       |                                          --------------------
        op aten::mm                  |  --                  --                  --
        launch                       |  abcdefghijkl        mnopqrstuvwx        yzABCDEFGH
        s7 gemm                      |   abcdef              mnopqr              yzABCDEFGH
        s9 all_reduce                |         ghijkl              stuvwx
        launch cudaDeviceSynchronize |                                                            -
    """
    assert drawn(text) == [("ends early", 1)]


def test_launches_before_the_first_step_mark_are_those_of_a_step_that_was_cut() -> None:
    text = steps(ONE.format(*"abcd"), ONE.format(*"efgh"), ONE.format(*"ijkl"))
    without_first = "\n".join(line for line in text.splitlines() if not line.startswith("step 0"))
    assert ("cut", 4) in drawn(without_first)


def test_a_last_step_that_only_just_began_is_cut() -> None:
    text = """
        op first                     | -
        step 1                       |  ----------------------------------------
        step 2                       |                                          --
        op aten::mm                  |  --
        launch                       |  abcd
        s7 gemm                      |   abcd
        launch cudaDeviceSynchronize |                                            -
    """
    assert drawn(text) == [("cut", 1)]


FRAMED = """
    launch                       | {}
    s7 gemm                      |  {}
    launch cudaDeviceSynchronize | {}
"""
CALLS = "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("marks", "closing", "expected"),
    [
        (("Iteration Start: PyTorch Profiler", "Record Window End"), "--", []),
        (("Iteration Start: PyTorch Profiler", "Record Window End"), "", [("cut", 1)]),
        (("Iteration Start: PyTorch Profiler",), "", [("cut", 1)]),
        (("Record Window End",), "--", [("cut", 1)]),
        ((), "", []),
        ((), "--", []),
    ],
)
def test_a_recording_with_one_of_the_profilers_ends_was_cut_at_the_other(
    marks: tuple[str, ...], closing: str, expected: list[tuple[str, int]]
) -> None:
    text = FRAMED.format(CALLS, CALLS, " " * len(CALLS) + closing)
    instants = [{"ph": "i", "s": "g", "name": name, "ts": 0, "pid": "", "tid": ""} for name in marks]
    assert doubts(read([*events(aligned(text)), *instants])) == expected


def test_kernels_before_their_launch_calls_and_out_of_order_are_the_clocks_fault() -> None:
    assert drawn("""
        launch  |         abcdef
        s7 gemm | aabbcc      ddeeff
    """) == [("clock", 3)]
    backwards = """
        launch  | abcdef
        s7 gemm |          ffeeddccbbaa
    """
    assert drawn(backwards, ns_per_char=5000) == [("clock", 5)]


def test_work_that_ends_after_the_host_waited_for_it_is_the_clocks_fault() -> None:
    text = """
        launch                       | ab
        launch cudaDeviceSynchronize |   ----
        s7 gemm                      |  aaa     bbb
    """
    assert not drawn(text, ns_per_char=1000)
    assert drawn(text, ns_per_char=100_000) == [("clock", 1)]


def test_kernels_of_one_stream_do_not_run_together() -> None:
    text = """
        launch  | abcd
        s7 gemm |  aaaaa
        s7 norm |    bbbbb
        s9 add  |    ccccc
        s9 mul  |         ddd
    """
    assert drawn(text) == [("overlapping kernels", 1)]


def test_kernels_of_a_graph_overlap_in_branches_unless_they_take_much_longer_than_their_like() -> None:
    text = """
        launch cudaGraphLaunch | a
        s7 gemm                |  a  a  a  {}  a  a
        s7 norm                |   a  a  a   a   a  a
    """
    assert not drawn(text.format("aa "))
    assert drawn(text.format("aaaaa")) == [("overlapping kernels", 1)]


def test_what_the_profiler_says_it_lost() -> None:
    warning = "WARNING:2024-04-03 18:51:35 1102:1102 CuptiActivityApi.cpp:137] "
    lines = [f"{warning}Exceeded max GPU buffer count (33 > 32) - terminating tracing", "INFO: all is well"]
    assert drawn(COMPLETE, WARNING=lines) == [("dropped events", 1)]
    counts = "Record counts: Out-of-range = 3829, Unexpected CUDA events = 0, CUPTI stopped early? = {}"
    assert not drawn(COMPLETE, INFO=[counts.format(0)])
    assert drawn(COMPLETE, INFO=[counts.format(1)]) == [("dropped events", 1)]


def test_a_rank_without_the_last_step_of_the_others_ends_early() -> None:
    whole = steps(*(ONE.format(*letters) for letters in ("abcd", "efgh", "ijkl")))
    shorter = steps(*(ONE.format(*letters) for letters in ("abcd", "efgh")))
    table = analyze(draw_run(whole, whole, shorter), "completeness")["doubts"]
    assert records(table, "rank", "doubt", "count") == [(2, "ends early", 1)]


def test_a_rank_without_the_first_step_of_the_other_begins_late() -> None:
    whole = steps(*(ONE.format(*letters) for letters in ("abcd", "efgh", "ijkl")))
    lines = whole.splitlines()
    width = lines[0].index("|") + 2
    blank = [line[: width + 1] + " " * 10 + line[width + 11 :] for line in lines[1:]]
    later = "\n".join(line for line in blank if not line.startswith("step 0"))
    table = analyze(draw_run(whole, later), "completeness")["doubts"]
    assert records(table, "rank", "doubt", "count") == [(1, "cut", 1)]


REDUCE = "record_param_comms collective=allreduce group=0 ranks=[0,1,2,3] size=4 in=8 out=8 dtype=Float"


@pytest.mark.parametrize("odd", [0, 2])
def test_one_rank_of_a_machine_with_another_clock(odd: int) -> None:
    """Of one machine are ranks with GPUs of different numbers, unless the traces name their hosts."""

    def clocks(apart_ns: int, *, gpus: int = 4, **header: str) -> list[tuple[int, str]]:
        ranks = [
            draw(
                aligned(f"""
                    op {REDUCE}                             | - - -
                    launch                                  | a b c
                    s9 nccl_AllReduce device={rank % gpus}  |  a b c
                    launch cudaDeviceSynchronize            |       -
                """),
                rank=rank,
                start_ns=10 * MS + (apart_ns if rank == odd else 0),
                **{key: value.format(rank == odd) for key, value in header.items()},
            )
            for rank in range(4)
        ]
        return records(analyze(make_run(ranks), "completeness")["doubts"], "rank", "doubt")

    assert clocks(5 * MS) == [(odd, "clock")]
    assert not clocks(0)
    assert not clocks(5 * MS, gpus=2)
    assert not clocks(5 * MS, host_name="other {}")


SUMS = 'shapes=[[4]] types=["float"]'
WORLD = {
    "backend": "gloo",
    "world_size": 2,
    "pg_config": [{"pg_name": "0", "pg_desc": "world", "ranks": [0, 1]}],
}


@pytest.mark.parametrize(("on_gpu", "doubtful"), [(True, [0, 1]), (False, [])])
def test_ends_of_collectives_tell_of_clocks_where_gpus_run_them(on_gpu: bool, doubtful: list[int]) -> None:
    """In turn one of two ranks ends 0.8 ms later, as the scheduler of a busy machine makes CPUs do."""
    letters = "abcdef"
    ranks = []
    for rank in range(2):
        work = "".join(
            f"{letter * (10 - 8 * (index % 2 ^ rank)):<12}" for index, letter in enumerate(letters)
        )
        if on_gpu:
            text = f"""
                op {REDUCE.replace(",2,3", "")}             | {"-           " * len(letters)}
                launch                                      | {"".join(f"{letter:<12}" for letter in letters)}
                s9 nccl_AllReduce device={rank}             | {work}
                launch cudaDeviceSynchronize                | {" " * 72}-
            """
        else:
            text = f"""
                op c10d::allreduce_ shapes=[[[4]]] types=["TensorList"] | {"-           " * len(letters)}
                scope gloo:all_reduce tid=7 {SUMS}                      | {re.sub("[a-f]", "-", work)}
            """
        info = WORLD | {"rank": rank}
        ranks.append(draw(aligned(text), rank=rank, ns_per_char=100_000, distributedInfo=info))
    run = make_run(ranks)
    assert records(analyze(run, "collectives")["clocks"], "residual_ns") == [(400_000,), (400_000,)]
    table = analyze(run, "completeness")["doubts"]
    assert [rank for rank, doubt in records(table, "rank", "doubt") if doubt == "clock"] == doubtful


def test_a_rank_that_begins_after_the_others_have_communicated_begins_late() -> None:
    text = aligned(f"""
        op {REDUCE}                  | {{}}   - - - - -
        launch                       | {{}}   b c d e f
        s9 nccl_AllReduce            |   {{}}  b c d e f
        launch cudaDeviceSynchronize |              ----
    """)
    ranks = [
        draw(text.format(*drawing), rank=rank, start_ns=10 * MS)
        for rank, drawing in enumerate([("-", "a", "a"), ("-", "a", "a"), ("-", "a", "a"), (" ", " ", " ")])
    ]
    table = analyze(make_run(ranks), "completeness")["doubts"]
    assert records(table, "rank", "doubt", "count") == [(3, "cut", 1)]


def test_a_report_leads_with_its_doubts_and_sums_them_up() -> None:
    run = make_run([draw(aligned(QUEUED), ns_per_char=MS)])
    doubtful = report(run, ["findings", "completeness"])
    assert [result.analyzer for result in doubtful.results] == ["completeness", "findings"]
    trust = doubtful.meta["trust"]
    assert not trust["complete"]
    assert [row["doubt"] for row in trust["doubts"]["0"]] == ["missing work"]
    sound = report(make_run([draw(aligned(COMPLETE))]), ["findings", "completeness"])
    assert [result.analyzer for result in sound.results] == ["findings", "completeness"]
    assert sound.meta["trust"] == {"complete": True, "doubts": {}}


def test_findings_in_doubtful_time_have_low_confidence() -> None:
    text = """
        launch                       | abcde         f
        s7 gemm                      |  aabb          ff
        launch cudaDeviceSynchronize |                --
    """
    run = make_run([draw(aligned(text), ns_per_char=MS)])
    findings: Result = analyze(run, "findings")
    table = findings["findings"]
    assert len(table)
    assert set(table["confidence"].astype(str)) == {"low"}
    assert all("missing kernels" in text for text in table["evidence"])


def test_every_doubt_says_what_it_affects_and_what_to_do() -> None:
    for kind in DOUBTS.values():
        assert kind.meaning
        assert kind.affects
        assert kind.metrics
        assert kind.advice


def test_a_selected_step_does_not_change_what_is_said_of_the_recording() -> None:
    text = steps(*(ONE.format(*letters) for letters in ("abcd", "efgh", "ijkl")))
    run = make_run([draw(text)])
    assert not len(analyze(run, "completeness", step=1)["doubts"])
    assert not len(analyze(run, "completeness")["doubts"])


def test_kernels_without_correlation_id_may_be_those_of_calls_that_seem_to_lack_theirs() -> None:
    text = """
        launch                       | abcdefgh
        s7 gemm                      |  aabb        gghh
        s9 ncclDevKernel             |      ----
        launch cudaDeviceSynchronize |         ----------
    """
    assert drawn(text) == [("missing kernels", 4)]
    assert drawn(text.replace("  ----\n", "  - --\n")) == [("missing kernels", 4)]
    assert not drawn(text.replace("  ----\n", "  - - - -\n"))


def test_the_json_of_a_report_says_whether_it_can_be_trusted() -> None:
    lost = report(make_run([draw(aligned(QUEUED), ns_per_char=MS)]))
    (content,) = RENDERERS.get("json").files(lost).values()
    document = json.loads(content)
    assert next(iter(document["results"])) == "completeness"
    assert set(document["results"]["completeness"]["tables"]) == {"doubts", "stretches"}
    (doubt,) = document["meta"]["trust"]["doubts"]["0"]
    assert (doubt["doubt"], doubt["count"], doubt["dur_ns"]) == ("missing work", 1, 6 * MS)
    assert not document["meta"]["trust"]["complete"]
