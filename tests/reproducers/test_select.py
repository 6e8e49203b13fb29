"""Which calls are asked for: by name, sizes, scope, rank, step and time."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import aligned, draw
from tests.reproducers.calls import called, trace_of
from tracelens.errors import TracelensError
from tracelens.reproducers import ReplaySelection, sizes
from tracelens.reproducers.calls import cases, fits, selected_work
from tracelens.trace import Trace, Union, make_run, select_step

SQUARE = 'shapes=[[4,4]] types=["float"] strides=[[4,1]]'
TRACE = aligned(f"""
                                         | 0         10        20        30        40
    step 1                               | --------------------
    step 2                               |                     --------------------
    python nn.Module: MoE_0              |  -------             ------
    scope experts                        |   -----
    op aten::mm seq=1 {SQUARE}           |    --
    op aten::mm {SQUARE}                 |                       --
    op aten::add_ {SQUARE}               |         --
    op mylib::mm {SQUARE}                |            --
    op MmBackward0 seq=1 fwd=3 tid=2     |                ----
    op aten::mm tid=2 {SQUARE}           |                 --
    op aten::bmm {SQUARE}                |                                --
    launch                               |    a    b  c           e       f
    launch tid=2                         |                  d
    s7 forward                           |      aaa               eee
    s7 add                               |          b
    s7 other                             |             cc
    s7 backward                          |                    ddddd
    s7 batched                           |                                 ff
""")


def kernels(wanted: ReplaySelection, trace: Trace | None = None) -> list[str]:
    """Names of the selected_work kernels with their starts, us."""
    work = selected_work(trace or draw(TRACE), wanted)
    order = np.argsort(work.start)
    return [f"{work.names[work.name[at]]} {work.start[at] // 1000}" for at in order.tolist()]


ALL = ["forward 5", "add 9", "other 12", "backward 19", "forward 23", "batched 32"]


def test_everything() -> None:
    assert kernels(ReplaySelection()) == ALL
    assert ReplaySelection().selects_all
    assert not ReplaySelection(op="*").selects_all


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        ("aten::mm", ["forward 5", "backward 19", "forward 23"]),
        ("aten::*mm", ["forward 5", "backward 19", "forward 23", "batched 32"]),
        ("*::mm", ["forward 5", "other 12", "backward 19", "forward 23"]),
        ("aten::add_", ["add 9"]),
        ("aten::?mm", ["batched 32"]),
        ("aten::[ab]*", ["add 9", "batched 32"]),
        ("*", ALL),
        ("aten::m", []),
        ("aten::mm(", []),  # a pattern of the shell, not a regular expression
        ("aten.*", []),
    ],
)
def test_by_op(op: str, wanted: list[str]) -> None:
    assert kernels(ReplaySelection(op=op)) == wanted


@pytest.mark.parametrize("op", ["mm", "::mm", "n::add_"])
def test_a_pattern_is_of_the_whole_name(op: str) -> None:
    # As fnmatchcase has it, which the names of collectives are held against.
    assert kernels(ReplaySelection(op=op)) == []


def test_by_module_with_its_gradients() -> None:
    assert kernels(ReplaySelection(module="nn.Module: MoE_0")) == ["forward 5", "backward 19", "forward 23"]
    assert kernels(ReplaySelection(module="*MoE*")) == ["forward 5", "backward 19", "forward 23"]
    # The gradient of the first product only: the second one is not followed by any.
    assert kernels(ReplaySelection(module="experts")) == ["forward 5", "backward 19"]


def test_by_scope() -> None:
    assert kernels(ReplaySelection(module="Experts")) == []
    assert kernels(ReplaySelection(module="ProfilerStep#2")) == ["forward 23", "batched 32"]


def test_a_module_is_not_the_name_of_an_op() -> None:
    assert kernels(ReplaySelection(module="aten::mm")) == []


def test_all_that_is_asked_for_has_to_hold() -> None:
    assert kernels(ReplaySelection(module="*MoE*", op="aten::mm")) == [
        "forward 5",
        "backward 19",
        "forward 23",
    ]
    assert kernels(ReplaySelection(module="experts", op="aten::add_")) == []
    assert kernels(ReplaySelection(module="*MoE*", op="aten::bmm")) == []


def test_by_rank() -> None:
    three = draw(TRACE, rank=3)
    assert kernels(ReplaySelection(rank=3), three) == ALL
    assert kernels(ReplaySelection(rank=0), three) == []
    assert kernels(ReplaySelection(rank=-1), three) == ALL


def test_by_step() -> None:
    run = select_step(make_run([draw(TRACE)]), "2")
    # Of what still runs when the step begins, the part within it counts.
    assert kernels(ReplaySelection(op="aten::mm"), run.traces[0]) == ["forward 24"]
    assert kernels(ReplaySelection(op="aten::add_"), run.traces[0]) == []


@pytest.mark.parametrize(
    ("at_us", "wanted"),
    [
        (0, ["forward 5", "add 9", "other 12", "backward 19"]),  # the first step starts, and all in it
        (1, ["forward 5", "backward 19"]),  # the module, with its gradients
        (3, ["forward 5", "backward 19"]),  # the product
        (5, ["forward 5"]),  # its kernel
        (7, ["forward 5"]),  # the last microsecond of that
        (8, ["add 9"]),  # the next op; the kernel has ended
        (15, ["backward 19"]),  # a node of autograd
        (20, ["backward 19", "forward 23", "batched 32"]),  # the second step, while a kernel runs
        (30, []),
        (1000, []),
    ],
)
def test_by_time(at_us: int, wanted: list[str]) -> None:
    assert kernels(ReplaySelection(at_ns=at_us * 1000)) == wanted


def test_times_are_since_the_first_event() -> None:
    late = draw(TRACE, start_ns=1_712_195_495_519_000_000)
    (found,) = kernels(ReplaySelection(at_ns=19_000), late)
    assert found == "backward 1712195495519019"


def union(*pairs: tuple[int, int]) -> Union:
    return Union(*(np.array([1000 * pair[at] for pair in pairs], dtype=np.int64) for at in (0, 1)))


def test_by_when_it_runs() -> None:
    # `add` starts at 9 and `backward` at 19: they only touch.
    trace = draw(TRACE, rank=2)
    during = {2: union((7, 9), (13, 19))}
    assert kernels(ReplaySelection(during=during), trace) == ["forward 5", "other 12"]
    assert kernels(ReplaySelection(during=during, op="aten::*"), trace) == ["forward 5"]
    # No time of this rank.
    assert kernels(ReplaySelection(during={7: union((0, 100))}), trace) == []
    assert kernels(ReplaySelection(during={2: union()}), trace) == []


def test_by_sizes() -> None:
    calls = [called("aten::mm", "bf16 64 32", "bf16 32 16"), called("aten::cat", ["fp32 64 32", "fp32 5"], 0)]
    trace = trace_of(*calls)
    cat, mm = sorted(cases(trace, trace.work), key=lambda case: case.call.op)

    def fitting(*shapes: tuple[int, ...]) -> list[str]:
        return [case.call.op for case in (mm, cat) if fits(case, ReplaySelection(shapes=shapes))]

    assert fitting() == ["aten::mm", "aten::cat"]
    assert fitting((64, 32)) == ["aten::mm", "aten::cat"]
    assert fitting((32, 16)) == ["aten::mm"]
    assert fitting((5,)) == ["aten::cat"]
    assert fitting((64, 32), (32, 16)) == ["aten::mm"]
    assert fitting((64, 32), (7,)) == []
    assert fitting((64,)) == []


def test_a_call_that_cannot_be_read_has_no_sizes() -> None:
    trace = trace_of(called("aten::mm", "bf16 64 32", "bf16 32 16"))
    (case,) = cases(trace, trace.work)
    odd = case._replace(call=case.call._replace(dtypes='["nonsense", "float"]'))
    assert not fits(odd, ReplaySelection(shapes=[(64, 32)]))
    assert fits(odd, ReplaySelection())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("4096,2048", (4096, 2048)),
        ("4096x2048", (4096, 2048)),
        ("[4096, 2048]", (4096, 2048)),
        ("(7)", (7,)),
        (" 1, 2 ,3 ", (1, 2, 3)),
    ],
)
def test_sizes(text: str, wanted: tuple[int, ...]) -> None:
    assert sizes(text) == wanted


@pytest.mark.parametrize("text", ["", "a", "1,", "-1,2", "1.5", "1;2", "__import__('os')", "1**9", "²"])
def test_text_that_is_no_sizes(text: str) -> None:
    with pytest.raises(TracelensError, match="is not a shape; write sizes such as 4096,2048"):
        sizes(text)


def test_collectives_have_no_arguments_to_ask_for() -> None:
    assert not ReplaySelection(op="allreduce").ops_only
    for wanted in (
        ReplaySelection(shapes=[(1,)]),
        ReplaySelection(module="x"),
        ReplaySelection(at_ns=0),
        ReplaySelection(rank=0),
    ):
        assert wanted.ops_only
        assert not wanted.selects_all
    assert not ReplaySelection(during={}).ops_only
    assert not ReplaySelection(during={}).selects_all
