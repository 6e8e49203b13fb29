"""Calls that other replay tools fail on: each from a drawn trace to a script that torch runs on the CPU.

AMD's TraceLens builds arguments from a table of known ops. What it is known to get wrong is here by name.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.reproducers.calls import MI300X, Called, called, case_of, described, script_of, space_of
from tests.reproducers.torch_process import run_script
from tracelens.reproducers.folder import write
from tracelens.reproducers.scripts import script
from tracelens.reproducers.verify import RUNNER, verify

torch = pytest.importorskip("torch")

BF16_CAT = "CatArrayBatchedCopy<OpaqueType<2u>, unsigned int, 3, 64, 64>"

CALLS: dict[str, tuple[Any, ...]] = {
    # -- strides
    "bmm with windows that overlap": ("bmm", "bf16 4 8 16 @ 32 4 1", "bf16 4 16 8"),
    "bmm of an expanded matrix": ("bmm", "fp32 4 8 16 @ 0 16 1", "fp32 4 16 8"),
    "bmm transposed": ("bmm", "bf16 4 8 16 @ 128 1 8", "bf16 4 16 8 @ 128 1 16"),
    "mm with gaps between rows": ("mm", "bf16 8 16 @ 48 1", "bf16 16 8"),
    "add of an expanded vector": ("add", "fp32 8 16", "fp32 8 16 @ 0 1", 1),
    "an empty tensor": ("add", "fp32 0 16", "fp32 0 16", 1),
    "a step inside rows": ("mul", "fp32 8 @ 2", "fp32 8"),
    # -- integers and truth values
    "mm of integers": ("mm", "i64 8 16", "i64 16 4"),
    "add of integers": ("add", "i32 8 16", "i32 8 16", 1),
    "bitwise_and of truth values": ("bitwise_and", "bool 8 16", "bool 8 16"),
    "masked_fill": ("masked_fill_", "bf16 8 16", "bool 8 16", -1.0),
    "where": ("where", "bool 8 16", "bf16 8 16", "bf16 8 16"),
    "embedding": ("embedding", "bf16 100 16", "i64 4 8", -1, False, False),
    "gather": ("gather", "fp32 8 16", 1, "i64 8 4", False),
    "scatter_": ("scatter_", "fp32 8 16", -1, "i64 8 4", "fp32 8 4"),
    "index_put": ("_index_put_impl_", "fp32 100 8", None, "fp32 24 8", True, True),
    "cumsum of integers": ("cumsum", "i32 64", 0, None),
    "one-hot counts": ("histc", "i32 100", 64, 0, 63),
    "nll_loss": ("nll_loss_forward", "fp32 16 100", "i64 16", None, 1, -100),
    "floor of a quotient of integers": ("div", "i64 64", "i64", None),
    # -- lists of tensors
    "cat": ("cat", ["bf16 4 8", "bf16 4 16"], 1),
    "cat of one": ("cat", ["fp32 4 8"], 0),
    "stack": ("stack", ["fp32 4 8", "fp32 4 8"], 0),
    "_foreach_add_ of a number": ("_foreach_add_", ["fp32 4 8", "fp32 5"], 1),
    "_foreach_add_ of a list": ("_foreach_add_", ["fp32 4 8", "fp32 5"], ["fp32 4 8", "fp32 5"], -0.001),
    "_foreach_mul_ of a number": ("_foreach_mul_", ["fp32 4 8", "fp32 5"], 0.9),
    "_foreach_mul_ of a tensor": ("_foreach_mul_", ["fp32 4 8", "fp32 5"], "fp32"),
    "_foreach_addcdiv_": ("_foreach_addcdiv_", *[["fp32 4", "fp32 5"]] * 3, 1),
    "_foreach_lerp_": ("_foreach_lerp_", *[["fp32 4", "fp32 5"]] * 2, 0.1),
    "_foreach_norm": ("_foreach_norm", ["fp32 4 8", "fp32 5"], 2, None),
    "_foreach_sqrt": ("_foreach_sqrt", ["fp32 4 8", "fp32 5"]),
    "_fused_adamw_": (
        "_fused_adamw_", *[["fp32 4", "fp32 5"]] * 4, [], ["fp32", "fp32"], 0.001, 0.9, 0.999, 0.01, 1e-8,
        False, False, None, None,
    ),
    # -- numbers that the profiler shows as tensors
    "mul by a long": ("mul", "i64 64", "i64"),
    "mul by a double": ("mul", "bf16 64", "fp64"),
    "add of a long to floats": ("add", "bf16 64", "i64", 1),
    "ge of a long": ("ge", "i64 64", "i64"),
    "remainder by a long": ("remainder", "i64 64", "i64"),
    "pow": ("pow", "fp32 64", 2),
    "fill_ of a long": ("fill_", "i64 64", 1),
    "fill_ of a tensor of numbers": ("fill_", "fp32 64", "fp64"),
    "eq of a bool": ("eq", "bool 64", "bool"),
    "_local_scalar_dense": ("_local_scalar_dense", "i64"),
    # -- narrow floats
    "copy_ to float8_e4m3fn": ("copy_", "fp8 8 16", "bf16 8 16", False),
    "copy_ from float8_e4m3fnuz": ("copy_", "bf16 8 16", "fp8z 8 16", False),
    "copy_ to float8_e5m2": ("copy_", "bf8 8 16 @ 1 8", "fp32 8 16", False),
    "copy_ to float8_e5m2fnuz": ("copy_", "bf8z 8 16", "fp32 8 16", False),
    "_scaled_mm": ("_scaled_mm", "fp8 32 64", "fp8 64 16 @ 1 64", "fp32", "fp32", None, None, 15, True),
    "_scaled_mm by rows": (
        "_scaled_mm", "fp8 32 64", "fp8 64 16 @ 1 64", "fp32 32 1", "fp32 1 16", None, None, 15, True,
    ),
    # -- lists that are empty, left out or shorter than their default
    "avg_pool2d without strides": ("avg_pool2d", "fp32 2 4 8 8", [2, 2], (), [0, 0], False, True, None),
    "max_pool2d_with_indices": ("max_pool2d_with_indices", "fp32 2 4 8 8", [3, 3], (), [1, 1], [1, 1], False),
    "mean over all": ("mean", "fp32 8 16", None),
    "mean over an empty list": ("mean", "fp32 8 16", (), False, None),
    "sum over a list": ("sum", "bf16 8 16", [0, 1], False, None),
    "sum with a type": ("sum", "bf16 8 16", [-1], True, 6),
    "convolution_backward": (
        "convolution_backward", "fp32 2 8 6 6", "fp32 2 4 6 6", "fp32 8 4 3 3", [0], [1, 1], [1, 1], [1, 1],
        False, [0, 0], 1, [True, True, False],
    ),
    "upsample_nearest1d": ("upsample_nearest1d", "fp32 2 4 8", [16], None),
    "all": ("all", "bool 64"),
    "native_layer_norm": ("native_layer_norm", "bf16 8 16", [16], "bf16 16", "bf16 16", 1e-5),
    "clamp without a lower end": ("clamp", "fp32 64", None, 0.5),
    "rsub": ("rsub", "fp32 64", 1, 1),
    "topk": ("topk", "fp32 8 16", 4, -1, True, True),
    "sort.stable": ("sort", "i64 64", False, -1, False),
    # -- results that are arguments
    "arange.start_out": ("arange", 0, 559, 1, "i64 0"),
    "mean.out": ("mean", "fp32 8 16", [1], False, None, "fp32 8"),
    "mm.out": ("mm", "bf16 8 16", "bf16 16 4", "bf16 8 4"),
    "cat.out": ("cat", ["bf16 4 8", "bf16 4 16"], 1, "bf16 4 24"),
    "clamp_min_": ("clamp_min_", "bf16 64", 0),
    "copy_ of a number": ("copy_", "i64", "i64", True),
}  # fmt: skip

KERNELS = {"cat": BF16_CAT, "cat.out": BF16_CAT}


def call_of(name: str) -> Called:
    op, *given = CALLS[name]
    return called(f"aten::{op}", *given, kernel=KERNELS.get(name, "kernel"))


def text_of(name: str) -> str:
    return script(case_of(call_of(name))).text


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str, str]]:
    """Status, check and note of each script; all of them run in one process."""
    folder = tmp_path_factory.mktemp("known")
    made = [script(case_of(call_of(name))) for name in CALLS]
    entries = write(folder, made, [])
    found = verify(folder, device="cpu", iters=1, python=sys.executable)
    notes = {row.file: row.note for row in found["notes"].itertuples()}
    rows = {row.file: row for row in found["scripts"].itertuples()}
    return {
        name: (rows[entry.file].status, rows[entry.file].check, notes.get(entry.file, ""))
        for name, entry in zip(CALLS, entries, strict=True)
    }


@pytest.mark.parametrize("name", CALLS)
def test_it_runs_and_is_right(name: str, verdicts: dict[str, tuple[str, str, str]]) -> None:
    status, check, note = verdicts[name]
    # A CPU has no histograms of integers, so that what is expected runs instead.
    assert (status, check) == ("ran", "none" if name == "one-hot counts" else "ok"), note


@pytest.mark.parametrize("name", CALLS)
def test_its_tensors_are_the_traced_ones(name: str) -> None:
    recorded = call_of(name).recorded
    made = [described(one) for one in space_of(text_of(name))["arguments"]()]
    columns = [recorded[key] for key in ("Input type", "Input Dims", "Input Strides")]
    assert not any(columns[1][len(made) :])  # what keeps its default is left out
    for one, kind, shape, stride in zip(made, *columns, strict=False):
        if kind == "TensorList":
            dtype = "bfloat16" if name in KERNELS else "float32"
            assert one == [(dtype, tuple(n), tuple(m)) for n, m in zip(shape, stride, strict=True)]
        elif kind in TORCH:
            assert one == (TORCH[kind], tuple(shape), tuple(stride))
        elif name != "index_put":  # its index follows from the shapes
            assert not isinstance(one, tuple)


TORCH = {
    "double": "float64", "float": "float32", "c10::BFloat16": "bfloat16", "long int": "int64", "int": "int32",
    "bool": "bool", "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e5m2": "float8_e5m2", "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_its_numbers_are_the_traced_ones(name: str) -> None:
    made = space_of(text_of(name))["arguments"]()
    for one, recorded in zip(made, CALLS[name][1:], strict=False):
        if isinstance(recorded, int | float):
            assert repr(one) == repr(recorded)
        elif isinstance(recorded, tuple | list) and not any(isinstance(item, str) for item in recorded):
            assert one == list(recorded)


@pytest.mark.parametrize(
    ("name", "overload"),
    [
        ("arange.start_out", "start_out"),
        ("mean.out", "out"),
        ("mm.out", "out"),
        ("cat.out", "out"),
        ("sort.stable", "stable"),
        ("mean over all", "default"),
        ("mean over an empty list", "dim"),
        ("sum over a list", "dim_IntList"),
        ("pow", "Tensor_Scalar"),
        ("masked_fill", "Scalar"),
        ("where", "self"),
        ("_foreach_add_ of a number", "Scalar"),
        ("_foreach_add_ of a list", "List"),
        ("_foreach_mul_ of a tensor", "Tensor"),
        ("_foreach_addcdiv_", "Scalar"),
        ("fill_ of a long", "Scalar"),
        ("fill_ of a tensor of numbers", "Tensor"),
        ("floor of a quotient of integers", "Tensor_mode"),
        ("mul by a long", "Tensor"),
        ("scatter_", "src"),
        ("all", "default"),
        ("bmm transposed", "default"),
    ],
)
def test_the_very_overload_is_called(name: str, overload: str) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Overloads(TorchDispatchMode):
        """The overloads that are called."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(func._overloadname)
            return func(*args, **(kwargs or {}))

    called: list[str] = []
    space = space_of(text_of(name))
    given = space["arguments"]()
    with Overloads():
        space["call"](given)
    assert called[0] == overload


def test_arguments_are_new_each_time() -> None:
    space = space_of(text_of("_foreach_add_ of a list"))
    first, second = space["arguments"](), space["arguments"]()
    assert first[0][0].data_ptr() != second[0][0].data_ptr()
    assert not torch.equal(first[0][0], second[0][0])


def test_what_is_written_to_is_a_result() -> None:
    space = space_of(text_of("_foreach_add_ of a number"))
    given = space["arguments"]()
    before = [one.clone() for one in given[0]]
    results = space["call"](given)
    assert [one.data_ptr() for one in results] == [one.data_ptr() for one in given[0]]
    assert all(torch.equal(one, old + 1) for one, old in zip(results, before, strict=True))


def test_overlapping_windows_share_their_elements() -> None:
    first, _ = space_of(text_of("bmm with windows that overlap"))["arguments"]()
    assert torch.equal(first[0, 1, :12], first[0, 0, 4:])
    assert first.untyped_storage().nbytes() == 2 * (1 + 3 * 32 + 7 * 4 + 15)


def test_indices_are_in_range() -> None:
    for name, place, below in (("embedding", 1, 100), ("gather", 2, 16), ("nll_loss", 1, 100)):
        index = space_of(text_of(name))["arguments"]()[place]
        assert 0 <= int(index.min()) <= int(index.max()) < below
    for row in space_of(text_of("scatter_"))["arguments"]()[2].tolist():
        assert len(set(row)) == 4
        assert set(row) <= set(range(16))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("bf16 48 32", "bf16 4 32 16 @ 512 1 32"),
        ("bf16 4 16 32", "bf16 32 48 @ 1 32"),
        ("bf16 16 48 @ 1 16", "bf16 48 32"),
    ],
)
def test_ends_of_groups_end_at_the_last_row(first: str, second: str) -> None:
    text = script_of("aten::_grouped_mm", first, second, "i32 4", None, None).text
    ends = space_of(text)["arguments"]()[2].tolist()
    assert len(ends) == 4
    assert ends == sorted(ends)
    assert ends[-1] == 48


def test_a_number_is_on_the_host() -> None:
    number = space_of(text_of("mul by a double"))["arguments"]()[1]
    assert (number.device.type, number.dtype, number.item()) == ("cpu", torch.float64, 2.0)


@pytest.mark.rare
def test_one_process_of_its_own_does_the_same(tmp_path: Path) -> None:
    path = tmp_path / "mm.py"
    path.write_text(text_of("mm with gaps between rows"))
    options = ["--device", "cpu", "--iters", "3"]
    alone = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert alone.stdout.startswith(f"aten::mm is right; traced: 10.0 us on {MI300X}\n")
    command = [sys.executable, str(RUNNER), str(path), *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["check"], result["device"], result["torch"]) == ("ok", "cpu", torch.__version__)
    assert 0 < result["p10_us"] <= result["median_us"] <= result["p90_us"]
    assert (result["traced_us"], result["ratio"]) == (10.0, result["median_us"] / 10)
    lines = run_script(path, *options).stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(result)
