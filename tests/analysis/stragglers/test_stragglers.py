"""Who is late, and why: four ranks of which rank 3 is slow for a known reason. A column is 10 us here."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.builders import draw, draw_run, records
from tracelens import analyze
from tracelens.analysis import ANALYZERS
from tracelens.analysis.stragglers import causes as _causes
from tracelens.analysis.stragglers.causes import CAUSES
from tracelens.table import Result
from tracelens.trace import Run, make_run, select_step

COLUMN = 10_000
WORDS = {
    "MM": 'aten::_grouped_mm shapes=[[1024,64],[64,64]] types=["c10::BFloat16","c10::BFloat16"]',
    "LARGER": 'aten::_grouped_mm shapes=[[4096,64],[64,64]] types=["c10::BFloat16","c10::BFloat16"]',
    "EXTRA": 'aten::mm shapes=[[512,512],[512,512]] types=["c10::BFloat16","c10::BFloat16"]',
    "ADD": 'aten::add_ shapes=[[64]] types=["c10::BFloat16"]',
    "NEXT": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "REDUCE": "record_param_comms collective=allreduce group=0 ranks=[0,1,2,3] size=4 in=8 out=8 dtype=Float",
    "PAIR": "record_param_comms collective=allreduce group=1 ranks=[3,4] size=2 in=8 out=8 dtype=Float",
    "TWO": "record_param_comms collective=allreduce group=2 ranks=[2,3] size=2 in=8 out=8 dtype=Float",
    "OTHER": "record_param_comms collective=allreduce group=5 ranks=[0,1,2,3] size=4 in=8 out=8 dtype=Float",
    "SEND": "record_param_comms collective=send group=7 ranks=[0,1] size=2 in=8 out=8 dtype=Float",
    "RECV": "record_param_comms collective=recv group=7 ranks=[0,1] size=2 in=8 out=8 dtype=Float",
}

# All is launched ahead. Both all-reduces end together; the first begins together, too.
ORDINARY = """
    op REDUCE   | - -
    op MM       |  -
    launch      | abc
    s7 gemm     |       bbb
    s9 nccl_All |    aaa   ccccccccccccc
"""

LATE = {
    "extra_work": """
    op REDUCE   | -  -
    op MM       |  -
    op EXTRA    |   -
    launch      | abxc
    s7 gemm     |       bbb
    s11 gemm    |          xxxxxxxx
    s9 nccl_All |    aaa           ccccc
""",
    "silent_host": """
    op REDUCE   | -             -
    op MM       |             -
    launch      | a           b c
    s7 gemm     |              bbb
    s9 nccl_All |    aaa          cccccc
""",
    "python_code": """
    op REDUCE         | -             -
    python decode     |     ------
    op MM             |             -
    launch            | a           b c
    s7 gemm           |              bbb
    s9 nccl_All       |    aaa          cccccc
""",
    "kernel_loading": """
    op REDUCE                | -             -
    launch cuModuleLoadData  |     ------
    op MM                    |             -
    launch                   | a           b c
    s7 gemm                  |              bbb
    s9 nccl_All              |    aaa          cccccc
""",
    "profiler": """
    op REDUCE                                  | -             -
    python torch/profiler/profiler.py(1): step |      ------
    op MM                                      |             -
    launch                                     | a           b c
    s7 gemm                                    |              bbb
    s9 nccl_All                                |    aaa          cccccc
""",
    "data_loading": """
    op REDUCE   | -             -
    scope NEXT  |      -------
    op MM       |             -
    launch      | a           b c
    s7 gemm     |              bbb
    s9 nccl_All |    aaa          cccccc
""",
    "collective_call": """
    op REDUCE             | -             -
    op c10d::alltoall_base_ |      -------
    op MM                 |             -
    launch                | a           b c
    s7 gemm               |              bbb
    s9 nccl_All           |    aaa          cccccc
""",
    "token_load": """
    op REDUCE   | - -
    op LARGER   |  -
    launch      | abc
    s7 gemm     |       bbbbbbbbbbb
    s9 nccl_All |    aaa           ccccc
""",
    "slow_kernels": """
    op REDUCE   | - -
    op MM       |  -
    launch      | abc
    s7 gemm     |       bbbbbbbbbbb
    s9 nccl_All |    aaa           ccccc
""",
    "late_launch": """
    op REDUCE        | -             -
    op MM            |             -
    op aten::nonzero |      -----
    launch           | a           b c
    s7 gemm          |              bbb
    s9 nccl_All      |    aaa          cccccc
""",
    "stalled_host": """
    op REDUCE   | -             -
    op ADD      |  ! !  -------
    op MM       |             -
    launch      | a           b c
    s7 gemm     |              bbb
    s9 nccl_All |    aaa          cccccc
""",
    "blocking_call": """
    op REDUCE                    | -             -
    op aten::item                |     ------
    launch cudaStreamSynchronize |     ------
    op MM                        |             -
    launch                       | a           b c
    s7 gemm                      |              bbb
    s9 nccl_All                  |    aaa          cccccc
""",
    "garbage_collection": """
    op REDUCE        | -             -
    python Python GC |       -----
    op MM            |             -
    launch           | a           b c
    s7 gemm          |              bbb
    s9 nccl_All      |    aaa          cccccc
""",
    "inherited": """
    op REDUCE        | -  -
    op PAIR          |  -
    op MM            |   -
    launch           | aebc
    s7 gemm          |               bbb
    s9 nccl_All      |    aaaeeeeeeee   cccccc
""",
    "unknown": """
    op REDUCE   | - -
    launch      | a c
    s7 gemm     |              ===
    s9 nccl_All |    aaa          cccccc
""",
}
"""What rank 3 does instead, by cause."""

FROM_BEFORE = ("recording_began", "inherited")

LONG = dict.fromkeys(("silent_host", "python_code", "collective_call", "stalled_host"), 1_000_000)
"""ns of a column where a cause takes longer than a few us."""

FIGURES = {
    "extra_work": "80.0 µs more computation than the median of the others: 1 extra aten::mm bf16[512,512] "
    "bf16[512,512] per step on stream 11, which no other rank uses (80.0 µs here)",
    "silent_host": "GPU idle 6.00 ms (others 0 ns) because the host was in no recorded op, call or frame: "
    "cudaLaunchKernel -> aten::_grouped_mm",
    "python_code": "GPU idle 4.00 ms (others 0 ns) because the host was in Python code: decode",
    "kernel_loading": "GPU idle 40.0 µs (others 0 ns) because the host was loading kernels in "
    "cuModuleLoadData",
    "profiler": "GPU idle 50.0 µs (others 0 ns) because the profiler held the host up: "
    "torch/profiler/profiler.py(1): step",
    "data_loading": "GPU idle 60.0 µs (others 0 ns) because the host was loading data in "
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "collective_call": "GPU idle 6.00 ms (others 0 ns) because the host was in c10d::alltoall_base_",
    "stalled_host": "GPU idle 6.00 ms (others 0 ns) because the host stalled inside aten::add_",
    "token_load": "80.0 µs more computation than the median of the others: "
    "4,096 rows against 1,024 in aten::_grouped_mm (110 µs against 30.0 µs)",
    "slow_kernels": "80.0 µs more computation than the median of the others: "
    "aten::_grouped_mm bf16[1024,64] bf16[64,64] 110 µs per call against 30.0 µs (1 call)",
    "late_launch": "GPU idle 70.0 µs (others 0 ns) because the host launched late, "
    "the longest time in aten::nonzero",
    "blocking_call": "GPU idle 70.0 µs (others 0 ns) because the host was blocked in "
    "cudaStreamSynchronize in aten::item",
    "garbage_collection": "GPU idle 50.0 µs (others 0 ns) because of garbage collection: Python GC",
    "inherited": "had left",
    "unknown": "70.0 µs late, not explained",
}


def aligned(text: str) -> str:
    """The drawing with its words spelt out and its bars in one column."""
    rows = [line.partition("|") for line in text.splitlines() if line.strip()]
    labels = [" ".join(WORDS.get(word, word) for word in label.split()) for label, _, _ in rows]
    width = max(map(len, labels))
    return "\n".join(f"{label:{width}} |{line}" for label, (_, _, line) in zip(labels, rows, strict=True))


def ranks(*texts: str, starts: tuple[int, ...] = (), ns_per_char: int = COLUMN) -> Run:
    starts = starts or (0,) * len(texts)
    return make_run(
        draw(aligned(text), rank=rank, start_ns=start, ns_per_char=ns_per_char)
        for rank, (text, start) in enumerate(zip(texts, starts, strict=True))
    )


def verdicts(result: Result) -> list[tuple[int, int, int, str]]:
    return records(result["stragglers"], "rank", "others_wait_ns", "last_arrivals", "cause")


@cache
def four(text: str, starts: tuple[int, ...] = (), ns_per_char: int = COLUMN) -> Result:
    run = ranks(ORDINARY, ORDINARY, ORDINARY, text, starts=starts, ns_per_char=ns_per_char)
    return analyze(run, "stragglers")


@pytest.mark.parametrize("cause", [cause for cause in CAUSES if cause not in FROM_BEFORE])
def test_rank_3_is_named_with_its_cause_and_the_figures(cause: str) -> None:
    column = LONG.get(cause, COLUMN)
    result = four(LATE[cause], ns_per_char=column)
    late = 8 if cause in ("token_load", "extra_work", "slow_kernels") else 7
    # At the first all-reduce nobody waits; the lowest rank counts as the last of those that arrive together.
    assert verdicts(result)[0] == (3, 3 * late * column, 1, cause)
    assert verdicts(result)[1:] == [(0, 0, 1, "unknown")]
    assert result["stragglers"]["evidence"][0].startswith(FIGURES[cause])
    assert "(before allreduce 1 of ranks 0-3)" in result["stragglers"]["evidence"][0]
    worst = records(
        result["worst"], "collective", "group", "order", "last_rank", "wait_ns", "cause", "late_ns"
    )
    assert worst == [("allreduce", "ranks 0-3", 1, 3, 3 * late * column, cause, late * column)]


@pytest.mark.parametrize(
    ("rank", "cause"),
    [(number % 3, cause) for number, cause in enumerate(CAUSES) if cause not in FROM_BEFORE],
)
def test_any_rank_can_be_the_slow_one(rank: int, cause: str) -> None:
    texts = [ORDINARY] * 4
    texts[rank] = LATE[cause]
    run = ranks(*texts, ns_per_char=LONG.get(cause, COLUMN))
    assert verdicts(analyze(run, "stragglers"))[0][::3] == (rank, cause)


def test_a_rank_is_compared_with_those_who_waited_for_it() -> None:
    # Ranks 1 and 2 have as much to do as rank 3, but for a column; it is rank 0 that waits.
    nearly = LATE["token_load"].replace("bbbbbbbbbbb", "bbbbbbbbbb ").replace(" ccccc", "cccccc")
    result = analyze(ranks(ORDINARY, nearly, nearly, LATE["token_load"]), "stragglers")
    assert verdicts(result)[0] == (3, (8 + 1 + 1) * COLUMN, 1, "token_load")
    assert result["stragglers"]["evidence"][0].startswith(FIGURES["token_load"])
    assert result["worst"]["late_ns"].tolist() == [8 * COLUMN]


def held_up(second: str, third: str) -> Result:
    """Rank 3 has more to do, holds rank 2 up in their own group, and with it all others."""
    waiting = ORDINARY.replace("ccccccccccccc", "ccccccccccccccc")
    texts = [
        f"""
    op REDUCE   | -  -
    op {what} |  -
    op TWO      |   -
    launch      | abec
    s7 gemm     |       {gemm}
    s9 nccl_All |    aaa{kernels}
"""
        for what, gemm, kernels in (("MM", "bbb", second), ("LARGER", "b" * 11, third))
    ]
    return analyze(ranks(waiting, waiting, *texts), "stragglers")


def test_who_held_the_last_rank_up_is_to_blame() -> None:
    result = held_up("   eeeeeeeeee cccc", "           eeccccc")
    # Rank 2 waits 8 columns in the group of two; for rank 2 the others wait 11, 11 and 1.
    assert verdicts(result)[0] == (3, (8 + 11 + 11 + 1) * COLUMN, 2, "token_load")
    assert [row[0] for row in verdicts(result)] == [3, 0]
    evidence = result["worst"]["evidence"][0]
    assert evidence.startswith("held rank 2 up, which spent 100 µs in other communication (others 0 ns)")
    assert "allreduce 0 of ranks 2-3, where rank 3 was last" in evidence
    assert FIGURES["token_load"] in evidence


def test_a_rank_late_for_its_own_doing_is_still_late_for_it() -> None:
    result = held_up("   eeeeeeeeeeccccc", "           ee cccc")
    assert verdicts(result)[0] == (3, (8 + 11 + 11 + 1) * COLUMN, 2, "token_load")
    assert FIGURES["token_load"] in result["worst"]["evidence"][0]


def test_equal_names_and_grids_are_not_equal_work() -> None:
    """Kernels from before the recording have no arguments: that they took longer shows no slower GPU."""
    early = "    s7 persistent |{}\n"
    ordinary, late = ORDINARY + early.format(" ==="), LATE["token_load"] + early.format(" =======")
    result = analyze(ranks(ordinary, ordinary, ordinary, late), "stragglers")
    assert verdicts(result)[0][::3] == (3, "token_load")


def test_a_call_of_several_kernels_is_one() -> None:
    ordinary = ORDINARY.replace("      bbb", "      bb", 1) + "    s8 tail     |         b\n"
    late = LATE["slow_kernels"].replace("bbbbbbbbbbb", "bbbbb") + "    s8 tail     |            bbbbbb\n"
    result = analyze(ranks(ordinary, ordinary, ordinary, late), "stragglers")
    assert verdicts(result)[0][::3] == (3, "slow_kernels")
    assert result["stragglers"]["evidence"][0].startswith(FIGURES["slow_kernels"])


def test_a_communication_that_still_runs_is_not_where_the_comparison_begins() -> None:
    def beside(text: str) -> str:
        """With another all-reduce of all ranks on another stream, from column 6 to 30."""
        rows = text.replace("| abc", "| abcx")
        return rows + "    op OTHER    |    -\n    s5 nccl_All |       xxxxxxxxxxxxxxxxxxxxxxxx\n"

    result = analyze(ranks(*[beside(ORDINARY)] * 3, beside(LATE["token_load"])), "stragglers")
    assert verdicts(result)[0] == (3, 3 * 8 * COLUMN, 1, "token_load")


def test_what_the_others_ran_at_another_time_counts() -> None:
    # Rank 3 runs the larger one where the others run the smaller, and slowly.
    ordinary = """
    op REDUCE   | - - -
    op MM       |  -
    op LARGER   |    -
    launch      | abcde
    s7 gemm     |       bbb             dddd
    s9 nccl_All |    aaa   ccccccccccccc    eeee
    """
    late = """
    op REDUCE   | - - -
    op LARGER   |  -
    op MM       |    -
    launch      | abcde
    s7 gemm     |       bbbbbbbbbbbbb   dddd
    s9 nccl_All |    aaa             ccc    eeee
    """
    result = analyze(ranks(ordinary, ordinary, ordinary, late), "stragglers")
    assert verdicts(result)[0] == (3, 3 * 10 * COLUMN, 1, "slow_kernels")
    assert (
        "aten::_grouped_mm bf16[4096,64] bf16[64,64] 130 µs per call against 40.0 µs"
        in (result["stragglers"]["evidence"][0])
    )


def test_slower_kernels_explain_no_more_than_the_longer_computation() -> None:
    # Its aten::_grouped_mm takes 10 columns longer, but it has no aten::bmm to run: 4 columns more in all.
    # The GPU idles for 7.
    ordinary = """
    op REDUCE                                    | -  -
    op MM                                        |  -
    op aten::bmm shapes=[[2,2]] types=["float"]  |   -
    launch                                       | abdc
    s7 gemm                                      |       bbbbdddddd
    s9 nccl_All                                  |    aaa          cccccccccccccccc
    """
    late = """
    op REDUCE        | -             -
    op aten::nonzero |        ----
    op MM            |             -
    launch           | a           b c
    s7 gemm          |              bbbbbbbbbbbbbb
    s9 nccl_All      |    aaa                     ccccc
    """
    result = analyze(ranks(ordinary, ordinary, ordinary, late), "stragglers")
    assert verdicts(result)[0][::3] == (3, "late_launch")


def test_without_arguments_the_evidence_says_so() -> None:
    plain = [text.replace("op MM     ", "op aten::_grouped_mm") for text in (ORDINARY, LATE["slow_kernels"])]
    result = analyze(ranks(plain[0], plain[0], plain[0], plain[1]), "stragglers")
    assert verdicts(result)[0][3] == "slow_kernels"
    assert "arguments not recorded: the call may have been larger" in result["stragglers"]["evidence"][0]


def test_every_cause_is_tested() -> None:
    assert set(LATE) == set(FIGURES) == set(CAUSES) - {"recording_began"}


# Rank 4 computes for long before it joins rank 3 in group 1, which has nobody else.
OUTSIDE = """
    op PAIR     |  -
    op LARGER   | -
    launch      | ae
    s7 gemm     |    aaaaaaaaaaaaaa
    s9 nccl_All |                  eee
"""
HELD_UP = """
    op REDUCE   | -  -
    op PAIR     |  -
    op MM       |   -
    launch      | aebc
    s7 gemm     |                     bbb
    s9 nccl_All |    aaaeeeeeeeeeeeeee   ccccccc
"""
WAITING = ORDINARY.replace("ccccccccccccc", "c" * 21)


def test_a_collective_with_a_rank_outside_holds_rank_3_up() -> None:
    result = analyze(ranks(WAITING, WAITING, WAITING, HELD_UP, OUTSIDE), "stragglers")
    # Starts of the second all-reduce: 9, 9, 9 and 23, less two of the PAIR that ends at 20.
    rows = {row[0]: row[1:] for row in verdicts(result)}
    assert rows[3] == (3 * 14 * COLUMN, 1, "inherited")
    evidence = dict(records(result["stragglers"], "rank", "evidence"))[3]
    assert evidence.startswith("spent 140 µs in other communication (others 0 ns): allreduce 0 of ranks 3-4")
    assert "where rank 4 was last" in evidence
    assert rows[4][0] == 11 * COLUMN


# As HELD_UP, with the communication of rank 3 alone in two parts.
HELD_UP_TWICE = """
    op REDUCE   | -    -
    op PAIR     |  - -
    op MM       |     -
    launch      | ae fbc
    s7 gemm     |                     bbb
    s9 nccl_All |    aaaeeeeeeeeeeefff   ccccccc
"""


@pytest.mark.parametrize(("most", "cut"), [(1, 1), (2, 0), (4096, 0)])
def test_communication_that_was_not_looked_at_is_told(
    most: int, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_causes, "AT_ONCE", most)
    result = analyze(ranks(WAITING, WAITING, WAITING, HELD_UP_TWICE), "stragglers")
    assert verdicts(result)[0][3] == "inherited"
    assert sum("earlier causes" in skip.subject for skip in result.skips) == cut


def test_what_was_inherited_does_not_depend_on_clocks() -> None:
    texts = (WAITING, WAITING, WAITING, HELD_UP, OUTSIDE)
    # Ranks 3 and 4 are on another host.
    apart = analyze(ranks(*texts, starts=(0, 0, 0, 8_000_000, 8_000_000)), "stragglers")
    together = analyze(ranks(*texts), "stragglers")
    assert verdicts(apart) == verdicts(together)
    assert apart["stragglers"]["evidence"].tolist() == together["stragglers"]["evidence"].tolist()


def test_what_was_inherited_from_a_communication_of_everybody_like_it() -> None:
    # Each rank is in a group of its own with one of the ranks 4 to 7, which are not there.
    alone = {
        rank: f"record_param_comms collective=allreduce group={9 + rank} ranks=[{rank},{rank + 4}] size=2"
        " in=8 out=8 dtype=Float"
        for rank in range(4)
    }
    early = """
    op REDUCE   | -  -
    op ALONE    |  -
    op MM       |   -
    launch      | aebc
    s7 gemm     |         bbb
    s9 nccl_All |    aaaee   ccccccccccccccc
    """
    late = """
    op REDUCE   | -  -
    op ALONE    |  -
    op MM       |   -
    launch      | aebc
    s7 gemm     |                  bbb
    s9 nccl_All |    aaaeeeeeeeeeee   cccccc
    """
    texts = [
        aligned(text.replace("ALONE", alone[rank])) for rank, text in enumerate((early, early, early, late))
    ]
    result = analyze(draw_run(*texts, ns_per_char=COLUMN), "stragglers")
    assert verdicts(result)[0] == (3, 3 * 9 * COLUMN, 1, "inherited")
    assert result["stragglers"]["evidence"][0].startswith(
        "had left the communication before it 90.0 µs later than the others"
    )


def test_a_rank_whose_recording_began_later() -> None:
    late = """
    op REDUCE   |               -
    launch      |               c
    s9 nccl_All |                cccc
    """
    early = """
    op REDUCE   |        -
    launch      |        c
    op aten::f  | -
    s9 nccl_All |         ccccccccccc
    """
    result = analyze(ranks(early, early, early, late), "stragglers")
    assert verdicts(result)[0] == (3, 3 * 7 * COLUMN, 1, "recording_began")
    assert result["stragglers"]["evidence"][0].startswith("its recording began 140 µs later than the others'")


def test_the_first_collective_counts_from_where_the_recording_begins() -> None:
    early = """
    op aten::f  | -
    op REDUCE   |  -
    launch      |  c
    s9 nccl_All |   ccccccccccccccc
    """
    late = """
    op aten::f  | -------------
    op REDUCE   |              -
    launch      |              c
    s9 nccl_All |               ccc
    """
    result = analyze(ranks(early, early, early, late), "stragglers")
    assert verdicts(result) == [(3, 3 * 12 * COLUMN, 1, "late_launch")]
    assert "aten::f" in result["stragglers"]["evidence"][0]


# Every rank synchronises here, as a dispatcher does that must know how many tokens it gets.
SYNCED = """
    op REDUCE                    | -         -
    launch cudaStreamSynchronize |      --
    op MM                        |         -
    launch                       | a       b c
    s7 gemm                      |          bbb
    s9 nccl_All                  |    aaa      ccccccccccccccccccccccccccc
"""
SYNCED_AND_COLLECTED = """
    op REDUCE                    | -                               -
    launch cudaStreamSynchronize |      --
    python Python GC             |        ----------------------
    op MM                        |                               -
    launch                       | a                              bc
    s7 gemm                      |                                 bbb
    s9 nccl_All                  |    aaa                             cccc
"""


def test_a_call_that_blocks_on_every_rank_is_not_the_cause_of_what_follows() -> None:
    result = analyze(ranks(SYNCED, SYNCED, SYNCED, SYNCED_AND_COLLECTED), "stragglers")
    assert verdicts(result)[0] == (3, 3 * 23 * COLUMN, 1, "garbage_collection")
    slept = SYNCED_AND_COLLECTED.replace("Python GC", "train.py(3): log")
    result = analyze(ranks(SYNCED, SYNCED, SYNCED, slept), "stragglers")
    assert verdicts(result)[0][3] == "late_launch"
    assert "the longest time in train.py(3): log" in result["stragglers"]["evidence"][0]


def test_a_copy_that_the_host_waits_for_blocks() -> None:
    late = """
    op REDUCE              | -             -
    op aten::to            |    --------
    launch cudaMemcpyAsync |     mmmmmmm
    op MM                  |             -
    launch                 | a           b c
    s7 copy                |       mmmm
    s7 gemm                |              bbb
    s9 nccl_All            |    aaa          cccccc
    """
    result = four(late)
    assert verdicts(result)[0][0] == 3
    assert verdicts(result)[0][3] == "blocking_call"
    assert "cudaMemcpyAsync in aten::to" in result["stragglers"]["evidence"][0]


def test_a_queue_that_a_blocking_call_ran_dry_is_its_doing() -> None:
    # The call costs 3 columns of idle time, but from then on each launch comes late: 6 x 3 columns more.
    ahead = """
    op REDUCE                    | -        -
    op MM                        |  --------
    launch                       | abcdefghiz
    s7 gemm                      |       bbbbbbcdefghi
    s9 nccl_All                  |    aaa             zzzzzzzzzzzzzzzzzzzzzzzzzz
    """
    late = """
    op REDUCE                    | -                                      -
    launch cudaStreamSynchronize |   -----------
    op MM                        |  -            -------------------------
    launch                       | ab            c   d   e   f   g   h   iz
    s7 gemm                      |       bbbbbb   c   d   e   f   g   h   i
    s9 nccl_All                  |    aaa                                  zzzzz
    """
    result = analyze(ranks(ahead, ahead, ahead, late), "stragglers")
    assert verdicts(result)[0][0] == 3
    assert verdicts(result)[0][3] == "blocking_call"
    assert (
        "before, it was blocked for 110 µs (others 0 ns) in cudaStreamSynchronize"
        in (result["stragglers"]["evidence"][0])
    )


def test_what_blocked_in_another_step_is_no_cause_in_this_one() -> None:
    early = """
    step 1      | ------------
    step 2      |             -----------------
    op REDUCE   |              -
    launch      |              c
    s9 nccl_All |               ccccccccccccccc
    """
    late = """
    step 1                       | ------------
    step 2                       |             -----------------
    launch cudaDeviceSynchronize |   --------
    op aten::nonzero             |              ---------
    op REDUCE                    |                        -
    launch                       |                        c
    s9 nccl_All                  |                         ccccc
    """
    run = select_step(ranks(early, early, early, late), "2")
    assert verdicts(analyze(run, "stragglers")) == [(3, 3 * 10 * COLUMN, 1, "late_launch")]


def test_a_launch_that_comes_late_while_the_gpu_is_busy() -> None:
    # All compute alike; rank 3 asks for its all-reduce later, and it could have begun at 9.
    busy = """
    op REDUCE   | - -
    op MM       |  -
    launch      | abc
    s7 gemm     |       bbbbbbbbbbbb
    s9 nccl_All |    aaa   ccccccccccccc
    """
    late = """
    op REDUCE   | -              -
    op MM       |  -
    launch      | ab             c
    s7 gemm     |       bbbbbbbbbbbb
    s9 nccl_All |    aaa          cccccc
    """
    result = analyze(ranks(busy, busy, busy, late), "stragglers")
    assert verdicts(result)[0] == (3, 3 * 7 * COLUMN, 1, "late_launch")
    assert "it was launched 130 µs after the others'" in result["stragglers"]["evidence"][0]


def test_a_gpu_that_is_slow_at_everything_is_slow_at_shapes_of_its_own() -> None:
    # Rank 3 takes twice as long for what all run alike, and twice as long as well for the experts' rows,
    # which are others on each rank.
    def text(rows: int, slow: int) -> str:
        alike, expert = 4 * slow, 3 * slow
        middle, last = " " * alike + "c" * (12 - alike), " " * expert + "e" * (20 - expert)
        return f"""
    op REDUCE   | - - -
    op MM       |  -
    op EXPERT   |    -
    launch      | abcde
    s7 gemm     |       {"b" * alike:12}{"d" * expert}
    s9 nccl_All |    aaa{middle}{last}
    """.replace("EXPERT", f'aten::bmm shapes=[[{rows},64],[64,64]] types=["Half","Half"]')

    drawn = [text(1000 + rank, 1) for rank in range(3)] + [text(1003, 2)]
    result = analyze(ranks(*drawn), "stragglers")
    causes = records(result["causes"], "rank", "cause", "others_wait_ns", "count")
    assert causes[0] == (3, "slow_kernels", 3 * (4 + 3) * COLUMN, 2)
    assert records(result["worst"], "order", "cause") == [(1, "slow_kernels"), (2, "slow_kernels")]
    assert "2.00x as long for equal work" in " ".join(result["worst"]["evidence"])


SEVERAL = {
    "ordinary": """
    op REDUCE   | -  - -   -
    op MM       |  -
    launch      | abcd e   f
    s7 gemm     |       bbb
    s9 nccl_All |    aaa   dddddddddddeeeeeeeeeeeeeeeefffffffff
    """,
    "loaded, then late": """
    op REDUCE        | -  -                            - -
    op LARGER        |  -
    op aten::nonzero |                     --------
    launch           | ab d                            e f
    s7 gemm          |       bbbbbbbbbbb
    s9 nccl_All      |    aaa           ddd             eeefffffffff
    """,
}


def test_several_causes_in_one_run() -> None:
    result = analyze(ranks(*[SEVERAL["ordinary"]] * 3, SEVERAL["loaded, then late"]), "stragglers")
    causes = records(result["causes"], "rank", "cause", "others_wait_ns", "count")
    assert causes[:2] == [(3, "late_launch", 3 * 13 * COLUMN, 1), (3, "token_load", 3 * 8 * COLUMN, 1)]
    assert verdicts(result)[0] == (3, 3 * 21 * COLUMN, 2, "late_launch")
    (fraction,) = [
        row[1] for row in records(result["stragglers"], "rank", "fraction_of_others_wait") if row[0] == 3
    ]
    assert fraction == pytest.approx(13 / 21)


def test_ranks_alike_to_within_noise_are_not_blamed_with_more_than_that() -> None:
    # Rank 1 is two columns late, which are 0.6 us here.
    texts = [ORDINARY, ORDINARY.replace("cccccccccccc", "  cccccccccc", 1), ORDINARY, ORDINARY]
    result = analyze(ranks(*texts, ns_per_char=300), "stragglers")
    assert result["stragglers"]["others_wait_ns"].max() <= 3 * 2 * 300
    assert set(result["stragglers"]["cause"]) == {"unknown"}
    evidence = result["stragglers"]["evidence"][0]
    assert evidence.startswith("the others waited 1.80 µs in total")


@pytest.mark.parametrize("cause", [cause for cause in CAUSES if cause not in FROM_BEFORE])
def test_clocks_of_several_hosts_do_not_matter(cause: str) -> None:
    starts = (0, 5_000_000, 7_000_000_000, 123_456_789)
    column = LONG.get(cause, COLUMN)
    drawn = four(LATE[cause], ns_per_char=column)
    assert verdicts(four(LATE[cause], starts=starts, ns_per_char=column)) == verdicts(drawn)
    since_1970 = (1_712_195_495_519_689_500,) * 4
    shown = four(LATE[cause], starts=since_1970, ns_per_char=column)
    assert verdicts(shown) == verdicts(drawn)
    assert shown["stragglers"]["evidence"].tolist() == drawn["stragglers"]["evidence"].tolist()


def test_one_rank_alone_shows_nothing() -> None:
    result = analyze(ranks(ORDINARY), "stragglers")
    assert all(not len(result[name]) for name in ("stragglers", "causes", "worst"))
    assert any("waiting needs at least two" in skip.reason for skip in result.skips)
    assert "rank 0" in {skip.subject for skip in result.skips}


def test_a_stage_that_computes_before_it_sends_carries_no_load() -> None:
    # The receiver stands still meanwhile: that is the order of a pipeline.
    sender = """
    op SEND     |  -
    op MM       | -
    launch      | ab
    s7 gemm     |   aaaaaaaaaa
    s9 nccl_P2P |             bbb
    """
    receiver = """
    op RECV     | -
    launch      | b
    s9 nccl_P2P |  bbbbbbbbbbbbbb
    """
    result = analyze(ranks(sender, receiver), "stragglers")
    assert verdicts(result) == [(0, 11 * COLUMN, 1, "unknown")]
    assert "pipeline stages differ by design" in result["stragglers"]["evidence"][0]


def test_a_stage_that_blocks_before_it_sends_is_late() -> None:
    sender = """
    op SEND                      |                     -
    launch cudaStreamSynchronize |   -------
    op MM                        | -
    op aten::nonzero             |           ---------
    launch                       | a                   b
    s7 gemm                      |   aaaaaaa
    s9 nccl_P2P                  |                      bbb
    """
    receiver = """
    op RECV     | -
    launch      | b
    s9 nccl_P2P |  bbbbbbbbbbbbbbbbbbbbbbb
    """
    assert verdicts(analyze(ranks(sender, receiver), "stragglers"))[0][::3] == (0, "late_launch")


def test_caused_waiting_is_that_of_the_collectives() -> None:
    run = ranks(WAITING, WAITING, WAITING, HELD_UP, OUTSIDE)
    columns = ("rank", "others_wait_ns", "last_arrivals")
    own_rows = sorted(records(analyze(run, "stragglers")["stragglers"], *columns))
    theirs = records(analyze(run, "collectives")["ranks"], *columns)
    assert own_rows == [row for row in theirs if row[2]]


def test_all_time_of_a_part_is_told() -> None:
    for text in (*LATE.values(), HELD_UP, SYNCED):
        (trace,) = ranks(text).traces
        part = ANALYZERS.get("stragglers").part_of(trace)
        assert np.array_equal(part.time.sum(axis=1), np.diff(part.edges))
        assert part.work.ns.sum() == part.time[:, 0].sum()


@pytest.mark.parametrize("cause", [cause for cause in CAUSES if cause not in FROM_BEFORE])
def test_clocks_that_count_from_different_days_do_not_matter(cause: str) -> None:
    """The base of a trace's clock is in its header; all recorded at the same time here."""
    day, base = 86_400 * 10**9, 1_790_000_000_000_000_000
    traces = [
        draw(
            aligned(text), rank=rank, ns_per_char=LONG.get(cause, COLUMN), start_ns=7 * day - shift,
            baseTimeNanoseconds=base + shift,
        )
        for rank, (text, shift) in enumerate(
            zip((ORDINARY, ORDINARY, ORDINARY, LATE[cause]), (0, day, 0, 3 * day), strict=True)
        )
    ]  # fmt: skip
    measured = analyze(make_run(traces), "stragglers")
    drawn = four(LATE[cause], ns_per_char=LONG.get(cause, COLUMN))
    assert verdicts(measured) == verdicts(drawn)
    assert measured["stragglers"]["evidence"].tolist() == drawn["stragglers"]["evidence"].tolist()
