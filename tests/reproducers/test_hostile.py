"""A trace may say anything: each record is a script or a refusal. See also tests/hostile/test_scripts.py."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Event, events, write
from tests.hostile.script_attacks import ATTACKS
from tests.hostile.script_forms import form
from tests.reproducers.calls import MI300X, called, case_of, script_of, trace_of
from tests.reproducers.torch_process import run_script
from tracelens import load
from tracelens.reproducers import replay
from tracelens.reproducers.arguments import Unreplayable
from tracelens.reproducers.calls import cases
from tracelens.reproducers.scripts import script
from tracelens.table import Result
from tracelens.trace import make_run

MM = ("aten::mm", "bf16 64 32", "bf16 32 16")
TWIN = script_of(*MM).text


def harmless(text: str, twin: str = TWIN) -> None:
    """The script does what that of a harmless trace does."""
    assert text.isascii()
    assert form(text.encode()) == form(twin.encode())
    assert len(text.splitlines()) == len(twin.splitlines())


@given(st.text(max_size=60))
def test_any_names(name: str) -> None:
    case = case_of(called(*MM))._replace(kernels=(name,), devices=())
    harmless(script(case).text, script(case._replace(kernels=("gemm",))).text)


def test_names_that_are_no_utf_8(tmp_path: Path) -> None:
    found = _events(called(*MM, kernel="KERNEL"))
    header = {"deviceProperties": [{"id": 0, "name": MI300X}]}
    path = write(tmp_path / "t.json", found, **header)
    path.write_bytes(path.read_bytes().replace(b"KERNEL", b"k\xff\xfe\xc3\x28\xed\xa0\x80#\xf0"))
    result = replay(load(path), tmp_path / "out")
    (file,) = result.data["scripts"].texts("file")
    harmless((tmp_path / "out" / file).read_text(encoding="utf-8"))


def _events(call: Any) -> list[Event]:
    """A call as raw events."""
    op, launch, *work = events("op f corr=- | ---\nlaunch      |  a\ns7 k        |   aaaaaaaaaa")
    op |= {"name": call.op, "args": call.recorded}
    for one in work:
        if one["cat"] == "kernel":
            one["name"] = call.kernel
    return [op, launch, *work]


def test_names_of_the_library_of_an_op() -> None:
    # It stands in the help of an option.
    text = script_of("import_os_system::f", "fp32 4").text
    harmless(text, script_of("mylib::f", "fp32 4").text)
    text = script_of("__import__::system", "fp32 4").text
    harmless(text, script_of("mylib::f", "fp32 4").text)


# -- what is no op, no number, no type -----------------------------------------------------------------


def replayed(tmp_path: Path, *calls: Any) -> tuple[Result, dict[str, str]]:
    """The result and the texts of the scripts of a trace with these calls and a harmless one."""
    result = replay(make_run([trace_of(called(*MM), *calls)]), tmp_path / "out", top=None)
    return result, {
        file: (tmp_path / "out" / file).read_text() for file in result.data["scripts"].texts("file")
    }


@pytest.mark.parametrize(
    "name", ["aten::mm\n", "aten::mm.out", "aten::\u0661", "a::b::c", "aten::" + "m" * 200]
)
def test_names_that_are_almost_those_of_ops(name: str, tmp_path: Path) -> None:
    result, texts = replayed(tmp_path, called(name, "fp32 4"))
    assert len(texts) == 1
    assert len(result.skips) == 1


EXPRESSIONS = [
    "__import__('os').system('touch PWNED')",
    "1 if open('PWNED', 'w') else 2",
    "0 or exit()",
    "1;2",
]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expressions_are_no_values(text: str, tmp_path: Path) -> None:
    result, texts = replayed(tmp_path, called("aten::add", "fp32 4", "fp32 4", text_of(text), us=9))
    assert list(texts) == ["01_aten_mm.py"]
    assert "not a number" in result.skips[0].reason


class text_of:  # noqa: N801  # a value as the profiler writes it
    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 1 << 70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(ATTACKS) | st.sampled_from(["float", "Scalar", "TensorList", "long int", "2", "[2]"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a"]), inner, max_size=1),
    max_leaves=8,
)  # fmt: skip


@given(
    st.sampled_from(["aten::mm", "aten::gather", "aten::index_put_", "aten::_grouped_mm", "mylib::f"]),
    st.lists(json_values, min_size=4, max_size=4),
)
def test_any_record_is_a_script_or_a_refusal(op: str, columns: list[Any]) -> None:
    call = called(op, "fp32 4")
    call.recorded.update(zip(list(call.recorded), columns, strict=True))
    trace = trace_of(call)
    for case in cases(trace, trace.work):
        try:
            text = script(case).text
        except Unreplayable:
            continue
        assert not [node for node in ast.walk(ast.parse(text)) if _suspicious(node)]


def _suspicious(node: ast.AST) -> bool:
    """Calls that no template makes."""
    if not isinstance(node, ast.Call):
        return False
    return ast.unparse(node.func) in {"open", "eval", "exec", "exit"} or "system" in ast.unparse(node.func)


# -- with torch ----------------------------------------------------------------------------------------


def run(text: str, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script.py"
    path.write_text(text)
    return run_script(path, "--device", "cpu", "--iters", "1", *options)


@pytest.mark.torch
def test_hostile_names_are_printed_as_one_line_of_ascii(tmp_path: Path) -> None:
    name = f'{MI300X} %(prog)s 50% \x1b[2J\n"\\'
    done = run(script(case_of(called(*MM, kernel=name), device=name)).text, tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["traced_on"] == f'{MI300X} %(prog)s 50% ?[2J?"\\'
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("nolib::f", "has no nolib::f that takes these arguments"),
        ("aten::no_such_op", "has no aten::no_such_op that takes these arguments"),
        ("prim::f", "has no prim::f that takes these arguments"),
        ("aten::__import__", "has no aten::__import__ that takes these arguments"),
    ],
)
def test_what_torch_does_not_know_is_refused(op: str, said: str, tmp_path: Path) -> None:
    done = run(script_of(op, "fp32 4").text, tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert said in line
