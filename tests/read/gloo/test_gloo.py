"""gloo's communication on the host: whose it is, in which group, and how much it moves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import Event, aligned, draw, events, read, records
from tracelens.read.gloo import Group, header_groups, listed_groups, peer_group, thread_groups
from tracelens.trace import Trace

UNKNOWN = Group("not recorded", "", ())
WORLD, HALF, PAIR = Group("0", "world", (0, 1, 2, 3)), Group("1", "half", (0, 1)), Group("2", "pp", (0, 2))


def header(*groups: Group, rank: int = 0, world: int = 4) -> dict[str, Any]:
    """distributedInfo as PyTorch writes it."""
    listed = [{"pg_name": one.name, "pg_desc": one.description, "ranks": list(one.ranks)} for one in groups]
    return {"backend": "gloo", "rank": rank, "world_size": world, "pg_config": listed}


def call(name: str, dims: Any, types: Any, values: Any = ()) -> str:
    """An op with recorded arguments, for a drawing."""
    texts = [str(part).replace(" ", "").replace("'", '"') for part in (dims, types, list(values))]
    return f"op {name} shapes={texts[0]} types={texts[1]} values={texts[2]}"


def mark(name: str, dims: Any, tid: int, dtype: str = "float") -> str:
    """gloo's annotation on a thread, for a drawing."""
    return f'scope gloo:{name} tid={tid} shapes={str(dims).replace(" ", "")} types=["{dtype}"]'


ALL_REDUCE = call("c10d::allreduce_", [[[3, 4]], []], ["TensorList", ""])


def told(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    return records(trace.collectives, *columns)


def tied(trace: Trace) -> list[tuple[str, str, int]]:
    """Name of each annotation, of its op, and the column at which the op begins."""
    names, found = trace.events["name"].astype(str).tolist(), []
    starts = trace.events["ts_ns"].tolist()
    pairs = sorted(
        zip(*map(trace.tables["links"].array, ("kernel_id", "op_id")), strict=True),
        key=lambda pair: starts[pair[0]],
    )
    for work, op in pairs:
        if names[work].startswith("gloo:"):
            found.append((names[work], names[op] if op >= 0 else "", starts[op] // 1000 if op >= 0 else -1))
    return found


def test_work_on_another_thread_belongs_to_the_op_that_asked_for_it() -> None:
    trace = draw(
        aligned(f"""
                                          | 0    5    10   15   20
            {ALL_REDUCE}                  | -- --
            op aten::mm                   |       ----
            {mark("all_reduce", [[3, 4]], 7)} |  ---      ---
            {mark("all_reduce", [[3, 4]], 8)} |      ---
            op aten::copy_ tid=8          |       -
        """),
        distributedInfo=header(WORLD),
    )  # fmt: skip
    # Three pieces for two calls: one is left without. The copy is gloo's own.
    assert tied(trace) == [
        ("gloo:all_reduce", "c10d::allreduce_", 0),
        ("gloo:all_reduce", "c10d::allreduce_", 3),
        ("gloo:all_reduce", "", -1),
    ]
    names = trace.arrays.names
    work = trace.work
    assert [names[code] for code in work.name] == ["gloo:all_reduce"] * 2 + ["aten::mm", "gloo:all_reduce"]
    assert work.categories[work.category[0]] == "communication"
    assert told(trace, "group", "order", "kernel_id") == [("0", 0, work.event[0]), ("0", 1, work.event[1])]


def test_sizes_tell_calls_that_overlap_apart() -> None:
    small, large = ([[[size]], []] for size in (2, 9))
    trace = draw(
        aligned(f"""
            {call("c10d::allreduce_", small, ["TensorList", ""])} | --
            {call("c10d::allreduce_", large, ["TensorList", ""])} |   --
            {mark("all_reduce", [[9]], 7)}                        |    ---
            {mark("all_reduce", [[2]], 9)}                        |     ---
        """)
    )
    assert [start for _, _, start in tied(trace)] == [2, 0]


def test_the_profilers_own_record_is_preferred() -> None:
    trace = draw(
        aligned(f"""
            {ALL_REDUCE}                                                                         | ----
            op record_param_comms collective=all_reduce group=5 ranks=[0,1] size=2 in=7 out=7 dtype=Half |  -
            {mark("all_reduce", [[3, 4]], 7)}                                                    |    ----
        """),
        distributedInfo=header(WORLD),
    )  # fmt: skip
    (work,) = trace.work.event.tolist()
    assert trace.arrays.names[trace.arrays.name[work]] == "gloo:all_reduce"
    assert told(trace, "collective", "group", "in_bytes", "kernel_id") == [("all_reduce", "5", 14, work)]


EXCHANGE = [[5, 4], [6, 4], [], [], [], [], []]
TYPES = ["float", "float", "", "ScalarList", "ScalarList", "Scalar", "Scalar"]


@pytest.mark.parametrize(
    ("op", "annotation", "expected"),
    [
        (
            call("c10d::alltoall_base_", EXCHANGE, TYPES, ["", "", "", "[1,2,1,1]", "[3,1,1,1]"]),
            mark("all_to_all", [[6, 4]], 7),
            ("all_to_allv", "Float", 96, 80, "[3,1,1,1]", "[1,2,1,1]"),
        ),
        (
            call("c10d::alltoall_base_", [[8], [8], []], ["long", "long", ""], ["", "", "", "[]", "[]"]),
            mark("all_to_all", [[8]], 7, "c10::BFloat16"),
            ("all_to_all", "BFloat16", 16, 16, "", ""),
        ),
        (
            call("c10d::_allgather_base_", [[8, 3], [2, 3]], ["double", "double"]),
            mark("all_gather", [[2, 3]], 7, "double"),
            ("_allgather_base", "Double", 48, 192, "", ""),
        ),
        (
            call("c10d::allgather_", [[], [[2, 3]]], ["", "TensorList"]),
            mark("all_gather", [[2, 3]], 7),
            ("allgather", "Float", 24, 96, "", ""),
        ),
        (
            call("c10d::_reduce_scatter_base_", [[2], [8]], ["float", "float"]),
            mark("all_reduce", [[8]], 7),
            ("_reduce_scatter_base", "Float", 32, 8, "", ""),
        ),
        (ALL_REDUCE, mark("all_reduce", [[3, 4]], 7), ("allreduce", "Float", 48, 48, "", "")),
        (
            call("c10d::gather_", [[], [[5]]], ["", "TensorList"]),
            mark("gather", [[5]], 7),
            ("gather", "Float", 20, 80, "", ""),
        ),
        (
            call("c10d::barrier", [[1]], ["bool"]),
            "scope gloo:barrier tid=7",
            ("barrier", "Bool", 0, 0, "", ""),
        ),
    ],
    ids=lambda value: value.split()[1] if isinstance(value, str) else "",
)  # fmt: skip
def test_what_moves_is_read_from_the_op(op: str, annotation: str, expected: tuple[Any, ...]) -> None:
    trace = draw(aligned(f"{op} | --\n{annotation} |  ---"), distributedInfo=header(WORLD))
    columns = ("collective", "dtype", "in_bytes", "out_bytes", "in_split", "out_split")
    assert told(trace, *columns) == [expected]
    assert told(trace, "group", "group_description", "group_ranks", "group_size") == [
        ("0", "world", "[0, 1, 2, 3]", 4)
    ]


def _message(name: str, peer: int, ts: float) -> list[Event]:
    """An op and the annotation that begins inside of it and lasts longer, on one thread."""
    mine = name.removesuffix("_")
    args = {"Input Dims": [[[9]], [], [], []], "Input type": ["TensorList", "", "Scalar", "Scalar"]}
    place = {"ph": "X", "pid": 100, "tid": 1}
    values = {"Concrete Inputs": ["", "", str(peer), "0"]}
    op = {"cat": "cpu_op", "name": f"c10d::{name}", "ts": ts, "dur": 2, "args": args | values}
    tensor = {"Input Dims": [[9]], "Input type": ["float"]}
    note = {"cat": "user_annotation", "name": f"gloo:{mine}", "ts": ts + 1, "dur": 5, "args": tensor}
    return [place | op, place | note]


def test_sends_and_receives_say_to_whom() -> None:
    found = [*_message("send", 1, 10), *_message("recv_", 3, 13), *events("op aten::mm |               --")]
    trace = read(found, distributedInfo=header(WORLD, HALF, rank=2))
    # Place 3 of the group is rank 3, which is not in the half, so the group of all ranks is meant.
    assert told(trace, "collective", "group", "peer", "in_bytes", "out_bytes", "dtype") == [
        ("send", "0", 1, 36, 36, "Float"),
        ("recv", "0", 3, 36, 36, "Float"),
    ]
    # What runs beside a message on its thread is work of its own.
    assert [trace.arrays.names[code] for code in trace.work.name] == ["gloo:send", "gloo:recv", "aten::mm"]


def test_without_a_header_nothing_is_said_about_the_group() -> None:
    (row,) = told(draw(ALL_REDUCE + " | --"), "group_ranks", "group_size", "kernel_id", "event_id")
    assert row == ("", None, 0, 0)  # the op itself stands for the communication that was not recorded


def test_groups_of_the_header() -> None:
    assert header_groups(header(WORLD, HALF)) == [WORLD, HALF]
    assert header_groups({"world_size": 2}) == [Group("0", "default_pg", (0, 1))]
    assert header_groups({"pg_config": '[{"pg_name": "5", "ranks": [1]}]'}) == [Group("5", "", (1,))]
    for broken in ("{", 7, [7], [{"ranks": "x"}], [{"ranks": ["x"]}]):
        assert header_groups({"pg_config": broken}) == []


@pytest.mark.parametrize(
    ("sizes", "groups", "expected"),
    [
        # Two threads each, in the order in which the groups were made.
        ({11: set(), 12: set(), 15: set(), 16: set()}, [WORLD, HALF], {11: "0", 12: "0", 15: "1", 16: "1"}),
        # A group that did nothing, or of which one thread did nothing.
        ({11: {4}, 12: set(), 15: {2}}, [WORLD, PAIR, HALF], {11: "0", 12: "0", 15: "?"}),
        ({15: {2}}, [WORLD, HALF], {15: "1"}),
        ({11: {4}, 12: {2}}, [WORLD, HALF], {11: "0", 12: "1"}),
        # One of two groups of other ranks: not known. Of the same ranks: it does not matter which.
        ({11: set()}, [WORLD, HALF], {11: "?"}),
        ({11: set()}, [WORLD, WORLD._replace(name="9")], {11: "0 or 9"}),
        # Neighbours by id belong together.
        ({11: set(), 12: set(), 20: set()}, [WORLD, HALF], {11: "0", 12: "0", 20: "1"}),
        ({11: set(), 19: set(), 20: set()}, [WORLD, HALF], {11: "0", 19: "1", 20: "1"}),
        # More groups at work than the header has, or sizes that no group has.
        ({11: {4}, 12: {2}, 13: {3}}, [WORLD, HALF], {11: "?", 12: "?", 13: "?"}),
        ({11: {3}}, [WORLD, HALF], {11: "?"}),
        ({}, [WORLD], {}),
    ],
)
def test_groups_of_threads(sizes: dict[int, set[int]], groups: list[Group], expected: dict[int, str]) -> None:
    found = thread_groups(sizes, groups, UNKNOWN)
    assert {thread: group.name if group.ranks else "?" for thread, group in found.items()} == expected


def test_a_group_of_several_possible_ones_has_no_description() -> None:
    found = thread_groups({11: set()}, [WORLD, WORLD._replace(name="9", description="experts")], UNKNOWN)
    assert found == {11: WORLD._replace(name="0 or 9", description="")}


@pytest.mark.parametrize(
    ("threads", "sizes", "expected"),
    [
        ([15, 16, 11, 12], {11: set()}, {15: "0", 16: "0", 11: "1", 12: "1"}),  # as they were made
        ([11, 12, 15, 16], {15: {4}}, {}),  # no group of four ranks has it
        ([11, 12, 15, 16], {17: set()}, {}),  # a thread that is not listed
        ([11, 12, 15], {15: set()}, {}),
    ],
)
def test_all_threads_of_the_process_in_the_header(
    threads: list[int], sizes: dict[int, set[int]], expected: dict[int, str]
) -> None:
    found = listed_groups(threads, sizes, [WORLD, HALF])
    assert {thread: group.name for thread, group in found.items()} == expected


def test_the_recorders_list_of_threads_is_used() -> None:
    text = aligned(f"{ALL_REDUCE} | --\n{mark('all_reduce', [[3, 4]], 15)} |  ---")
    groups = header(WORLD, HALF, PAIR)
    (known,) = told(
        draw(text, distributedInfo=groups, tracelens={"gloo_threads": [11, 12, 15, 16, 18, 19]}), "group"
    )
    assert known == ("1",)
    ((unknown,),) = told(draw(text, distributedInfo=groups), "group")
    assert unknown.startswith("not recorded")


def test_groups_that_are_not_known_are_not_the_same() -> None:
    found = thread_groups({11: {2}, 12: {4}}, [], UNKNOWN)
    assert found[11].name != found[12].name


@pytest.mark.parametrize(
    ("rank", "partners", "groups", "expected"),
    [
        (0, [1], [WORLD], "0"),
        (0, [1], [WORLD, HALF], "0"),  # rank 1 in either
        (0, [1], [WORLD, PAIR], "2"),  # a pipeline's group is for messages
        (0, [1], [WORLD, PAIR._replace(description="other")], None),  # rank 1 or rank 2
        (0, [3, 1], [WORLD, PAIR._replace(description="other")], "0"),
        (1, [1], [WORLD, HALF], None),  # nobody sends to itself
        (0, [7], [WORLD], None),
        (0, [], [], None),
    ],
)
def test_group_of_messages(rank: int, partners: list[int], groups: list[Group], expected: str | None) -> None:
    found = peer_group(rank, partners, groups, lambda text: text == "pp")
    assert (found.name if found else None) == expected
