"""GPU work without an op to call: one drawing a reason, with shares by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import tracelens
from tests.builders import aligned, draw
from tracelens.reproducers.arguments import Unreplayable
from tracelens.reproducers.calls import (
    BEFORE,
    BY_GRAPH,
    COLLECTIVE,
    INDUCTOR,
    NO_OP,
    NO_SIZES,
    OP_SCRIPT,
    UNREGISTERED,
    account,
    callable_op,
    cases,
    unreplayed,
)
from tracelens.reproducers.scripts import script
from tracelens.trace import Trace

ONE = 'shapes=[[4,4]] types=["float"] strides=[[4,1]]'


def called(trace: Trace) -> list[str]:
    """Name of the op to call for each piece of GPU work, in order of start."""
    events = trace.arrays
    return [
        events.names[events.name[row]] if row >= 0 else "" for row in callable_op(trace, trace.work).tolist()
    ]


def told(trace: Trace) -> list[tuple[str, str]]:
    return [(skip.subject, skip.reason) for skip in unreplayed(trace, trace.work)]


# -- the op to call ------------------------------------------------------------------------------------


def test_the_innermost_op_that_is_registered() -> None:
    trace = draw(aligned(f"""
        op aten::linear {ONE} | -----
        op aten::mm {ONE}     |  ---
        launch                |   a
        s7 gemm               |     aa
    """))  # fmt: skip
    assert called(trace) == ["aten::mm"]
    assert told(trace) == []


def test_an_op_around_what_is_no_op() -> None:
    # As flash attention of old, and what it launches beside it.
    trace = draw(aligned(f"""
        op mylib::attend {ONE} | --------
        op FlashAttnFunc {ONE} |  -----
        launch                 |   a b c
        s7 flash_fwd           |     aa
        s7 merge               |        b
        s7 scale               |          c
    """))  # fmt: skip
    assert called(trace) == ["mylib::attend"] * 3
    (case,) = cases(trace, trace.work)
    assert (case.call.op, case.times.tolist()) == ("mylib::attend", [4000])
    assert told(trace) == []


def test_no_op_around_it_if_another_in_there_is_called_by_itself() -> None:
    # Called as a whole, the product would be there twice.
    trace = draw(aligned(f"""
        op mylib::attend {ONE} | ---------
        op FlashAttnFunc       |  --
        op aten::mm {ONE}      |      --
        launch                 |   a   b
        s7 flash_fwd           |     aa
        s7 gemm                |         bb
    """))  # fmt: skip
    assert called(trace) == ["", "aten::mm"]
    # Which part of the work is asked about makes no difference.
    assert callable_op(trace, trace.work.take(np.array([0]))).tolist() == [-1]


def test_an_op_without_arguments_is_part_of_one_that_has_them() -> None:
    trace = draw(aligned(f"""
        op aten::randn_like {ONE} | ----
        op aten::normal_          |  --
        launch                    |   a
        s7 k                      |     aa
    """))  # fmt: skip
    assert called(trace) == ["aten::randn_like"]


@pytest.mark.parametrize("name", ["autograd::engine::evaluate_function: MmBackward0", "a::b::c", "mm", "x::"])
def test_names_that_nobody_registers(name: str) -> None:
    trace = draw(aligned(f"""
        op {name} {ONE} | ----
        launch          |  a
        s7 k            |    aa
    """))  # fmt: skip
    assert called(trace) == [""]


def test_communication_and_graphs_are_no_calls() -> None:
    trace = draw(aligned(f"""
        op c10d::allreduce_ {ONE}         | --
        op mylib::replayed {ONE}          |      --
        op record_param_comms             | -
        launch                            | a
        launch cudaGraphLaunch            |      b
        s9 ncclDevKernel_AllReduce_Sum_f32 |   aa
        s7 gemm                           |        bb
    """))  # fmt: skip
    assert called(trace) == ["", ""]


def test_a_registered_triton_op_is_a_call() -> None:
    # torch.library.triton_op: the kernel's name is Triton's, the op is there with its arguments.
    trace = draw(aligned(f"""
        op mylib::rotate {ONE}        | ---
        launch cuLaunchKernelEx       |  a
        s7 triton_poi_fused_rotate_0  |    aa
    """))  # fmt: skip
    assert called(trace) == ["mylib::rotate"]
    assert told(trace) == []


MODULE = """
import torch

@torch.library.custom_op("{name}::rotate", mutates_args=())
def rotate(x: torch.Tensor, by: int) -> torch.Tensor:
    return x.roll(by)
"""


@pytest.mark.torch
def test_its_script_calls_it(tmp_path: Path) -> None:
    options = 'shapes=[[4,4],[]] types=["float","Scalar"] strides=[[4,1],[]] values=["","1"]'
    trace = draw(aligned(f"""
        op rotating::rotate {options} | ---
        launch cuLaunchKernelEx       |  a
        s7 rotate_kernel              |    aa
    """))  # fmt: skip
    (tmp_path / "rotations.py").write_text(MODULE.format(name="rotating"))
    (tmp_path / "script.py").write_text(script(cases(trace, trace.work)[0]).text)
    ran = subprocess.run(
        [sys.executable, "script.py", "rotations"],
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": "."},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("rotating::rotate is right; traced: 2.0 us on ")


# -- why there is none ----------------------------------------------------------------------------------

LONG = 'shapes=[[],[]] types=["TensorList","Scalar"] values=["","0"]'


def everything() -> Trace:
    """40 us of GPU work: as many us of each kind as its kernel has columns."""
    comms = "collective=allreduce group=0 ranks=[0,1] size=2 in=4 out=4 dtype=Float"
    rows = [
        (f"op aten::mm {ONE}", "--"),
        (f"op record_param_comms {comms}", "  --"),
        ("op record_param_comms", "    --"),
        ("op MyFunction", "      --"),
        ("op triton_red_fused_sum_3", "        --"),
        (f"op aten::cat {LONG}", "          --"),
        ("op aten::add_", "            --"),
        ('op aten::index shapes=[[4,4],[]] types=["float",""]', "              --"),
        ("launch", "a b c d e f g h i"),
        ("launch hipGraphLaunch", "                  j"),
        ("s7 gemm", " " * 20 + "aaaaaaaaaa"),
        ("s9 ncclDevKernel_AllReduce_Sum_f32", " " * 30 + "bbbbbccc"),
        ("s7 mine", " " * 38 + "d" + "-----"),
        ("s7 triton_red_fused_sum_3", " " * 44 + "ee"),
        ("s7 elementwise", " " * 46 + "fffghh"),
        ("s7 apex_kernel", " " * 52 + "iiiiii"),
        ("s7 in_graph", " " * 58 + "jj"),
    ]
    width = max(len(label) for label, _ in rows)
    return draw("\n".join(f"{label:{width}}| {line}" for label, line in rows))


def test_every_reason_with_its_share() -> None:
    trace = everything()
    found = told(trace)
    assert [subject for subject, _ in found] == [
        f"15.0% of GPU time (6.0 µs): {NO_OP}",
        f"12.5% of GPU time (5.0 µs): {BEFORE}",
        f"7.5% of GPU time (3.0 µs): {NO_SIZES}",
        "7.5% of GPU time (3.0 µs): a list of more than 30 tensors: the profiler records no shapes for it",
        f"5.0% of GPU time (2.0 µs): {BY_GRAPH}",
        f"5.0% of GPU time (2.0 µs): {INDUCTOR}",
        "5.0% of GPU time (2.0 µs): incomplete arguments",
        "2.5% of GPU time (1.0 µs): ops without recorded arguments",
        f"2.5% of GPU time (1.0 µs): {UNREGISTERED}",
    ]
    reasons = dict(found)
    named = {subject.partition(": ")[2]: reason for subject, reason in reasons.items()}
    # What to do, and which op it is.
    assert "torch.library.triton_op" in named[NO_OP]
    assert "warmup" in named[BEFORE]
    assert "TORCH_COMPILE_DISABLE=1" in named[INDUCTOR]
    assert named[INDUCTOR].endswith("(triton_red_fused_sum_3)")
    assert "torch.library.custom_op" in named[UNREGISTERED]
    assert named[UNREGISTERED].endswith("(MyFunction)")
    assert "record_shapes=True (aten::add_)" in named["ops without recorded arguments"]
    assert "Tensor?[]" in named["incomplete arguments"]


def test_all_shares_add_up() -> None:
    trace = everything()
    found = account(trace, trace.work)
    assert (found.total(OP_SCRIPT), found.total(COLLECTIVE)) == (10_000, 5_000)
    assert found.ns.sum() == 40_000
    assert found.total("of no such kind") == 0


def test_work_of_one_call_that_overlaps_counts_once() -> None:
    trace = draw(aligned(f"""
        op aten::mm {ONE} | -----
        launch            | a b
        s7 gemm           |     aaaa
        s8 fill           |       bbbb
    """))  # fmt: skip
    assert account(trace, trace.work).total(OP_SCRIPT) == 6_000


def test_the_largest_ops_of_a_reason_are_named() -> None:
    lines = [f"op Function{letter} | {' ' * at}-" for at, letter in enumerate("abcd")]
    kernels = [f"s7 k | {' ' * (10 * at + 10)}{letter * (at + 1)}" for at, letter in enumerate("abcd")]
    trace = draw(aligned("\n".join([*lines, "launch | abcd", *kernels])))
    ((_, reason),) = told(trace)
    assert reason.endswith("(Functiond, Functionc, Functionb and 1 more)")


def test_no_work_no_skips() -> None:
    trace = draw("launch | --")
    assert told(trace) == []


# -- real traces ----------------------------------------------------------------------------------------

SMALL = [
    "mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "mi300x/resnet_act_checkpoint.json.gz",
    "misc/hta_test.json.gz",
    "misc/nccl_data.json.gz",
    "misc/negative_queue.json.gz",
    "misc/triton_example.json.gz",
    "nvidia-h200-megatron/ep8/rank0.json.gz",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_real_shares_add_up(corpus: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # That a script is what its template says takes most of the time, and is tested elsewhere.
    monkeypatch.setattr(import_module("tracelens.reproducers.scripts"), "difference", lambda *_: "")
    (trace,) = tracelens.load(str(corpus / name)).traces
    found = account(trace, trace.work)
    # By the scripts that there are: what their calls took, one by one.
    made = 0
    for case in cases(trace, trace.work):
        try:
            script(case)
        except Unreplayable:
            continue
        made += case.total_ns
    assert found.total(OP_SCRIPT) == made
    said = [re.search(r"\(([\d,.]+) µs\)", skip.subject) for skip in unreplayed(trace, trace.work)]
    opaque = sum(round(float(one[1].replace(",", "")) * 1e3) for one in said if one)
    whole = found.total(OP_SCRIPT) + found.total(COLLECTIVE) + opaque
    assert whole == pytest.approx(found.ns.sum(), abs=100 * len(said))
    # Only work of one call that overlaps itself makes a difference.
    assert 0.995 * trace.work.dur.sum() < found.ns.sum() <= trace.work.dur.sum()
