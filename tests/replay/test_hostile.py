"""A trace may say anything: nothing of it is run, and nothing is written but scripts in their folder."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Event, aligned, events, read, write
from tests.replay.calls import MI300X, called, case_of, script_of, trace_of
from tracelens import load
from tracelens.errors import TracelensError
from tracelens.replay.arguments import Unreplayable
from tracelens.replay.cases import cases
from tracelens.replay.make import replay
from tracelens.replay.scripts import script
from tracelens.schema import Result
from tracelens.trace.run import make_run

ATTACKS = [
    '"); import os; os.system("touch PWNED") #',
    "'''+__import__('os').system('touch PWNED')+'''",
    "\nimport os; os.system('touch PWNED')\n",
    "\r\nopen('PWNED', 'w')\n#",
    '"""\nopen("PWNED", "w")\n"""',
    "\\",
    '\\"',
    "{{ cycler.__init__.__globals__.os.system('touch PWNED') }}",
    "{% include '/etc/passwd' %}",
    "# -*- coding: utf-7 -*-",
    "\u2028open('PWNED', 'w')\x85open('PWNED', 'w')\x0c",
    "\x00\x07\x1b[2J",
    "../../../../PWNED",
    "$(touch PWNED)`touch PWNED`",
    "%s%n{0.__class__}",
    "é日本",
]
MM = ("aten::mm", "bf16 64 32", "bf16 32 16")
TWIN = script_of(*MM).text


def shape(text: str) -> str:
    """The syntax tree of a script but for what its texts say."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def called_names(text: str) -> set[str]:
    """What a script calls, and imports."""
    tree = ast.parse(text)
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    imports = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)}
    return calls | imports


def harmless(text: str, twin: str = TWIN) -> None:
    """The script does what that of a harmless trace does."""
    assert text.isascii()
    assert set(text) - {"\n"} == {character for character in text if character.isprintable()}
    assert called_names(text) == called_names(twin)
    assert shape(text) == shape(twin)
    assert len(text.splitlines()) == len(twin.splitlines())


# -- names that stand in a script ----------------------------------------------------------------------


@pytest.mark.parametrize("attack", ATTACKS)
def test_names_of_kernels(attack: str) -> None:
    for name in (attack, f"gemm{attack}", "k" * 200 + attack):
        harmless(script_of(*MM, kernel=name).text)


@pytest.mark.parametrize("attack", ATTACKS)
def test_names_of_devices(attack: str) -> None:
    text = script(case_of(called(*MM), device=MI300X + attack)).text
    harmless(text, script(case_of(called(*MM), device=f"{MI300X}, the other")).text)
    assert ast.literal_eval(_assigned(text, "TRACED_ON")) == MI300X + attack


def _assigned(text: str, name: str) -> str:
    """Source of what is assigned to the second of two names."""
    (line,) = [line for line in text.splitlines() if f", {name} = " in line]
    return line.partition(" = ")[2].partition(", ")[2]


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


@pytest.mark.parametrize("attack", ATTACKS)
def test_names_of_ops(attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    names = [f"aten::mm{attack}", attack, f"{attack}::mm", f"aten::{attack}"]
    result, texts = replayed(tmp_path, *(called(name, "fp32 4") for name in names))
    assert list(texts) == ["01_aten_mm.py"]
    harmless(texts["01_aten_mm.py"])
    assert "launched by what is no registered op" in result.skips[0].subject
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
        ["here", "out", "01_aten_mm.py", "replay.json"]
    )


@pytest.mark.parametrize(
    "name", ["aten::mm\n", "aten::mm.out", "aten::\u0661", "a::b::c", "aten::" + "m" * 200]
)
def test_names_that_are_almost_those_of_ops(name: str, tmp_path: Path) -> None:
    result, texts = replayed(tmp_path, called(name, "fp32 4"))
    assert len(texts) == 1
    assert len(result.skips) == 1


@pytest.mark.parametrize("attack", ATTACKS)
def test_values_types_and_sizes(attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    plain = called("aten::sum", "fp32 4 4", 1, False).recorded
    changed = [
        {**plain, "Concrete Inputs": ["", attack, "False"]},
        {**plain, "Concrete Inputs": ["", f"[1, {attack}]", "False"]},
        {**plain, "Input type": [attack, "Scalar", "Scalar"]},
        {**plain, "Input type": [f"float{attack}", "Scalar", "Scalar"]},
        {**plain, "Input Dims": [[attack, 4], [], []]},
        {**plain, "Input Dims": [attack, [], []]},
        {**plain, "Input Dims": attack},
        {**plain, "Input Strides": [[attack, 1], [], []]},
        {**plain, "Input type": attack},
    ]
    calls = []
    for number, recorded in enumerate(changed):
        call = called(f"aten::sum{number}", "fp32 4")
        call.recorded.clear()
        call.recorded.update(recorded)
        calls.append(call)
    result, texts = replayed(tmp_path, *calls)
    assert list(texts) == ["01_aten_mm.py"]
    harmless(texts["01_aten_mm.py"])
    assert result.skips
    for skip in result.skips:
        assert len(skip.reason.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
        ["here", "out", "01_aten_mm.py", "replay.json"]
    )


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
    assert "which is no number" in result.skips[0].reason


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


RECORD = "op record_param_comms collective={} group=0 ranks=[0,1] size=2 in=50 out=50 dtype={}"


@pytest.mark.parametrize(
    ("name", "dtype"), [("allreduce", "Half"), ("ATTACK", "Half"), ("allreduce", "ATTACK")]
)
def test_collectives(name: str, dtype: str, tmp_path: Path) -> None:
    drawing = aligned(f"""
        {RECORD.format(name, dtype)}   | ---
        launch                         |  a
        s9 ncclDevKernel_AllReduce     |   aaa
    """)
    texts = []
    for number, attack in enumerate(("harmless", *ATTACKS)):
        found = json.loads(json.dumps(events(drawing)).replace('"ATTACK"', json.dumps(attack)))
        for event in found:
            if event["name"] == "record_param_comms":
                event["args"] |= {"Process Group Description": attack, "Process Group Name": attack}
        folder = tmp_path / f"out{number}"
        try:
            files = replay(make_run(read(found, rank=rank) for rank in (0, 1)), folder)
        except TracelensError:
            texts.append([])
        else:
            texts.append([(folder / file).read_text() for file in files.data["scripts"].texts("file")])
    assert not (tmp_path / "PWNED").exists()
    for some in texts:
        assert len(some) == (0 if "ATTACK" in (name, dtype) else 1)
        for text in some:
            harmless(text, texts[0][0])


# -- with torch ----------------------------------------------------------------------------------------


def run(text: str, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script.py"
    path.write_text(text)
    command = [sys.executable, str(path), "--device", "cpu", "--iters", "1", *options]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_hostile_names_are_shown_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    name = MI300X + "".join(ATTACKS)
    done = run(script(case_of(called(*MM, kernel=name), device=name)).text, tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["traced_on"] == name
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


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
    pytest.importorskip("torch")
    done = run(script_of(op, "fp32 4").text, tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert said in line
