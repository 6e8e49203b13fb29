"""Scripts as text: what stands in them, and that each is a short, clean Python file."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from tests.effort import ALIKE
from tests.reproducers.calls import CATALOG, H100, MI300X, RANDOM, called, case_of, script_of
from tracelens import load
from tracelens.costs import OpCost
from tracelens.reproducers import replay, scripts
from tracelens.reproducers.arguments import Unreplayable
from tracelens.reproducers.folder import Script
from tracelens.reproducers.scripts import WIDTH, least_us, script
from tracelens.version import __version__

LINES, MEDIAN = 60, 45
"""Most lines of a script, and the median over those of a trace."""

SAMPLES = Path(__file__).parents[2] / "sample_traces"
RECORDINGS = sorted({str(path.parent.relative_to(SAMPLES)) for path in SAMPLES.rglob("rank0.json.*")})
ALL = pytest.mark.parametrize("name", CATALOG)


@cache
def made(name: str) -> Script:
    return script(case_of(CATALOG[name]))


def plain(op: str, *given: Any, **options: Any) -> Script:
    return script_of(f"aten::{op}", *given, **options)


def assigned(text: str, name: str) -> Any:
    """What a script assigns to a name at its top."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign):
            (target,) = node.targets
            pairs = (
                zip(target.elts, node.value.elts, strict=True)
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                else [(target, node.value)]
            )
            for left, right in pairs:
                if isinstance(left, ast.Name) and left.id == name:
                    return ast.literal_eval(right)
    raise AssertionError(f"nothing is assigned to {name}")


# -- every kit -----------------------------------------------------------------------------------------


def test_every_kit_has_a_call_here() -> None:
    names = {name.partition(" (")[0].removesuffix("_") for name in CATALOG}
    # These make their tensors by themselves: what launches kernels is the op inside, such as normal_.
    assert set(scripts._KITS) - names == {"_fused_dropout", "rand", "randn", "randint"}


@ALL
def test_it_is_a_short_file(name: str) -> None:
    assert len(made(name).text.splitlines()) <= LINES


@pytest.mark.slow
@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(name, marks=[pytest.mark.rare] * (f"sample_traces/{name}" in ALIKE))
        for name in RECORDINGS
    ],
)
def test_scripts_of_a_trace_fit_a_screen(trace: str, tmp_path: Path) -> None:
    found = replay(load(str(SAMPLES / trace)), tmp_path / "out", top=None)["scripts"]
    lines = [len((tmp_path / "out" / file).read_text().splitlines()) for file in found["file"]]
    assert max(lines) <= LINES
    assert median(lines) <= MEDIAN


def test_lines_are_not_long() -> None:
    long = {line for name in CATALOG for line in made(name).text.splitlines() if len(line) > WIDTH}
    assert long == set()


@ALL
def test_it_is_python_with_a_header(name: str) -> None:
    text = made(name).text
    ast.parse(text)
    assert text.isascii()
    assert text.endswith("\n")
    assert "\n\n\n" not in text
    assert not any(line != line.rstrip() for line in text.splitlines())
    lines = text.splitlines()
    assert lines[0] == "# -*- coding: utf-8 -*-"
    assert lines[1].startswith(f"# Written by tracelens {__version__}. Needs only torch")
    first, second, *_ = assigned(text, "ABOUT")
    assert first.startswith(f"{CATALOG[name].op} ")
    assert second.startswith(f"1 call of 10.0 us (median; 10.0 to 10.0) on {MI300X}, rank ")


@ALL
def test_it_needs_only_torch(name: str) -> None:
    imported = set()
    for node in ast.walk(ast.parse(made(name).text)):
        if isinstance(node, ast.Import):
            imported |= {one.name for one in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert imported - set(sys.stdlib_module_names) <= {"torch", "torch.utils._pytree"}


@ALL
def test_it_says_what_the_trace_says(name: str) -> None:
    one = made(name)
    assert assigned(one.text, "OP") == CATALOG[name].op == one.subject
    assert (assigned(one.text, "TRACED_US"), assigned(one.text, "TRACED_ON")) == (10.0, MI300X)
    assert (one.kind, one.count, one.traced_us, one.total_us, one.processes) == ("op", 1, 10.0, 10.0, 1)
    assert one.name == CATALOG[name].op.replace("::", "_")


@ALL
def test_random_results_are_not_checked(name: str) -> None:
    text = made(name).text
    unchecked = "UNCHECKED" in text and assigned(text, "UNCHECKED") == "its results are random"
    assert unchecked == (name in RANDOM)
    assert ("RTOL" in text) != unchecked


@pytest.mark.skipif(not (find_spec("ruff") or shutil.which("ruff")), reason="ruff is not installed")
def test_ruff_finds_nothing(tmp_path: Path) -> None:
    texts = {name: made(name).text for name in CATALOG}
    texts["library"] = script_of("mylib::f", "fp32 4").text
    texts["plain"] = plain("mm", "bf16 4 8", "bf16 8 2").text
    for number, text in enumerate(texts.values()):
        (tmp_path / f"s{number}.py").write_text(text)
    ruff = [sys.executable, "-m", "ruff"] if find_spec("ruff") else [str(shutil.which("ruff"))]
    # Not: that files run by `python FILE` be executable, that times and their successors be `pairwise`, and
    # that UTF-8 need not be declared: see outline.py.
    rules = ["--isolated", "--ignore", "EXE001,RUF007,UP009", "--output-format", "concise", "--no-cache"]
    done = subprocess.run(
        [*ruff, "check", *rules, "."], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "All checks passed!\n"


# -- one op --------------------------------------------------------------------------------------------


def test_arguments_stand_in_the_order_of_the_schema() -> None:
    text = plain("addmm", "bf16 2 @ 1", "bf16 4 8 @ 1 4", "bf16 8 2", 1, 0.5).text
    function = next(
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == "arguments"
    )
    (returned,) = [node for node in function.body if isinstance(node, ast.Return)]
    assert isinstance(returned.value, ast.List)
    assert [ast.unparse(one) for one in returned.value.elts] == [
        "strided('bfloat16', (2,))",
        "strided('bfloat16', (4, 8), (1, 4))",
        "strided('bfloat16', (8, 2))",
        "1",
        "0.5",
    ]


def test_only_the_makers_that_are_used() -> None:
    def functions(text: str) -> list[str]:
        return [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]

    common = ["arguments", "strided", "call", "expected"]
    assert functions(plain("mm", "bf16 4 8", "bf16 8 2").text) == common
    assert "torch.tensor(2, dtype=torch.float64)" in plain("mul", "bf16 4 8", "fp64").text
    assert functions(plain("index_select", "bf16 4 8", 0, "i64 3").text) == [
        *common[:2],
        "indices",
        *common[2:],
    ]
    assert functions(plain("rsqrt", "fp32 8").text) == [*common[:2], "positive", *common[2:]]


def test_the_header_tells_of_all_calls() -> None:
    case = case_of(called("aten::mm", "bf16 4 8", "bf16 8 2", kernel="gemm_a"))
    case = case._replace(times=np.array([8000, 9000, 20_000, 2_000_000]), ranks=(0, 3), kernels=("a", "b"))
    one = script(case)
    assert assigned(one.text, "ABOUT") == [
        "aten::mm bf16[4,8] bf16[8,2]",
        f"4 calls of 14.5 us (median; 8.0 to 2,000.0) on {MI300X}, rank 0, 3",
        "Kernels: a, b",
    ]
    assert (one.count, one.traced_us, one.total_us) == (4, 14.5, 2037.0)
    assert one.shapes == "bf16[4,8] bf16[8,2]"


def test_an_unknown_device() -> None:
    one = script(case_of(called("aten::mm", "bf16 4096 8192", "bf16 8192 2048"), device=""))
    assert " on an unknown device, rank " in assigned(one.text, "ABOUT")[1]
    assert assigned(one.text, "TRACED_ON") == ""
    # Recent ones are known without it.
    assert set(assigned(one.text, "LEAST_US")) == {
        "MI300X",
        "MI355X",
        "H100 80GB HBM3",
        "H200",
        "B200",
    }


def test_scaled_down_there_is_no_traced_time() -> None:
    one = plain("mm", "bf16 4096 1024", "bf16 1024 512", max_elements=1 << 16)
    assert 'strided("bfloat16", (512, 128)),' in one.text
    assert "Sizes are scaled down from those above." in assigned(one.text, "ABOUT")
    assert (assigned(one.text, "TRACED_US"), one.traced_us, one.total_us) == (None, 0.0, 10.0)
    assert (assigned(one.text, "FLOPS"), "LEAST_US" in one.text) == (0, False)
    assert one.shapes == "bf16[4096,1024] bf16[1024,512]"
    same = plain("mm", "bf16 4096 1024", "bf16 1024 512", max_elements=1 << 22)
    assert same == plain("mm", "bf16 4096 1024", "bf16 1024 512")


def test_a_call_of_next_to_nothing_has_no_least_time() -> None:
    # 48 bytes move in no time; what such a call takes is the start of its kernel.
    text = plain("relu", "fp32 6").text
    assert (assigned(text, "BYTES"), "LEAST_US" in text) == (48, False)


def test_what_a_call_must_do_at_least() -> None:
    text = plain("mm", "bf16 4096 8192", "bf16 8192 2048").text
    flops, moved = 2 * 4096 * 8192 * 2048, 2 * (4096 * 8192 + 8192 * 2048 + 4096 * 2048)
    assert (assigned(text, "FLOPS"), assigned(text, "BYTES")) == (flops, moved)
    # 1307.4e12 and 989.4e12 of bf16 a second by the data sheets of these, far above their memory.
    least = assigned(text, "LEAST_US")
    assert least["MI300X"] == pytest.approx(flops / 1307.4e6, rel=1e-3)
    assert least["H100 80GB HBM3"] == pytest.approx(flops / 989.4e6, rel=1e-3)


def test_least_times_of_what_is_not_counted() -> None:
    assert least_us(None, [H100]) == {}
    assert least_us(OpCost(0, 0, 0, "fp32"), [H100]) == {}
    text = script_of("mylib::f", "fp32 4").text
    assert (assigned(text, "FLOPS"), assigned(text, "BYTES"), "LEAST_US" in text) == (0, 0, False)


def test_an_older_device_has_its_own_least_time() -> None:
    one = script(
        case_of(called("aten::mm", "fp32 4096 8192", "fp32 8192 2048"), device="Tesla V100-SXM2-32GB")
    )
    assert len(assigned(one.text, "LEAST_US")) == 6


@pytest.mark.parametrize(
    ("given", "rtol"),
    [
        (["fp32 4 8", "fp32 8 2"], 1e-3),  # may be TF32
        (["bf16 4 8", "bf16 8 2"], 3 / 128),
        (["fp16 4 8", "fp16 8 2"], 3 / 1024),
        (["fp64 4 8", "fp64 8 2"], 1e-3),
        (["i64 4 8", "i64 8 2"], 0.0),
        (["bf16 4 8", "fp32 8 2"], 3 / 128),  # the coarser counts
        (["fp8 4 8", "bf16 8 2"], 3 / 8),
        (["bf8 4 8", "bf16 8 2"], 3 / 4),
    ],
)
def test_results_may_be_off_by_a_few_roundings(given: list[str], rtol: float) -> None:
    assert assigned(plain("mm", *given).text, "RTOL") == rtol


def test_sums_of_many_gradients_may_be_off_by_more() -> None:
    assert assigned(made("_flash_attention_backward").text, "RTOL") == 24 / 128


def test_complex_numbers_have_complex_references() -> None:
    assert "t.cdouble() if t.is_complex()" in plain("mul", "c64 8", "c64 8").text
    assert "cdouble() if" not in plain("mul", "fp32 8", "fp32 8").text


# -- lists of tensors, libraries, refusals -------------------------------------------------------------

CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::"
APPLY = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<1>, "
)


@pytest.mark.parametrize(
    ("op", "kernel", "dtype"),
    [
        # Those that only move elements know their width.
        ("cat", f"{CAT}OpaqueType<2u>, unsigned int, 3, 64, 64>(x)", "bfloat16"),
        ("cat", f"{CAT}OpaqueType<1u>, unsigned int, 3, 64, 64>(x)", "uint8"),
        ("cat", f"{CAT}OpaqueType<4u>, unsigned int, 3, 64, 64>(x)", "float32"),
        ("cat", f"{CAT}OpaqueType<8u>, unsigned int, 3, 64, 64>(x)", "int64"),
        ("cat", f"{CAT}OpaqueType<16>, unsigned int, 3, 64, 64>(x)", "complex128"),
        ("cat", f"{CAT}OpaqueType<3u>, unsigned int, 3, 64, 64>(x)", "float32"),
        ("cat", "another", "float32"),
        ("_foreach_neg_", f"{APPLY}at::native::UnaryOpFunctor<c10::BFloat16, 1, 1, 0>>(x)", "bfloat16"),
        ("_foreach_neg_", f"{APPLY}at::native::UnaryOpFunctor<double, 1, 1, 0>>(x)", "float64"),
        ("_foreach_neg_", f"{APPLY}at::native::UnaryOpFunctor<evil, 1, 1, 0>>(x)", "float32"),
    ],
)
def test_types_in_lists_come_from_the_kernel(op: str, kernel: str, dtype: str) -> None:
    text = plain(op, ["fp32 4", "fp32 5"], *([0] if op == "cat" else []), kernel=kernel).text
    assert f'[strided("{dtype}", (4,)), strided("{dtype}", (5,))]' in text
    said = "Element types in tensor lists are not recorded; they follow from the kernel."
    assert said in assigned(text, "ABOUT")


def test_ops_of_other_libraries_are_imported_on_request() -> None:
    text = script_of("_my_lib2::f", "fp32 4").text
    assert "[__import__(module) for module in sys.argv[1:]]" in text
    assert "__import__" not in plain("relu", "fp32 4").text


@pytest.mark.parametrize(
    "op", ["relu", "aten:relu", "MmBackward0", "aten::a b", "aten::relu.out", "aten::re\nlu"]
)
def test_other_names_are_no_ops(op: str) -> None:
    case = case_of(called("aten::relu", "fp32 4"))
    with pytest.raises(Unreplayable, match="not a registered op name"):
        script(case._replace(call=case.call._replace(op=op)))


def test_attention_with_dropout_is_not_checked() -> None:
    q = "bf16 2 8 4 16"
    text = plain("_flash_attention_forward", q, q, q, None, None, 8, 8, 0.1, True, False, None).text
    assert '"its results are random"' in text


def test_packed_sequences_are_even_ones() -> None:
    # Where each begins and ends is not in a trace; with random numbers a kernel would read anywhere.
    q, k, begins = "bf16 24 4 16", "bf16 26 4 16", "i32 4"
    common = [begins, begins, 8, 9, 0.0, True]
    for text in (
        plain("_flash_attention_forward", q, k, k, *common, False, None).text,
        plain("_flash_attention_backward", q, q, k, k, q, "fp32 4 24", *common, "i64 2", "i64").text,
    ):
        words = " ".join(text.split())
        assert 'ends("int32", [0, 8, 8, 8]), ends("int32", [0, 8, 9, 9]), 8, 9, 0.0, True,' in words
        assert '"no reference for packed sequences"' in words


def test_packed_sequences_of_efficient_attention() -> None:
    q, begins = "bf16 1 24 4 16", "i32 4"
    text = plain("_efficient_attention_forward", q, q, q, None, begins, begins, 8, 8, 0.0, 1, True, None).text
    assert 'ends("int32", [0, 8, 8, 8])' in text
    assert '"no reference for packed sequences"' in text


def test_scales_that_are_swizzled_are_not_checked() -> None:
    fp8 = "fp8 128 128"
    text = plain("_scaled_mm", fp8, fp8, "e8m0 512", "e8m0 512", None, None, 15, False).text
    assert '"its scales are swizzled"' in text


@pytest.mark.parametrize(("source", "text"), [("capture", "its capture"), ("twin", "a run without graphs")])
def test_a_call_that_a_graph_replays_says_where_it_is_recorded(source: str, text: str) -> None:
    case = case_of(called("aten::mm", "bf16 4 8", "bf16 8 2"))
    lines = assigned(script(case._replace(sources=(source,))).text, "ABOUT")
    assert [line for line in lines if "graph" in line] == [
        f"Replayed by a graph: op and arguments are those of {text}."
    ]
    assert not [line for line in assigned(script(case).text, "ABOUT") if "graph" in line]
