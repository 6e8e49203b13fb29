"""Every kit's script run by torch on the CPU; and wrong results, profiles and a compiler with some."""

from __future__ import annotations

import hashlib
import json
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.reproducers.calls import CATALOG, RANDOM, case_of, described, script_of, space_of
from tests.reproducers.torch_process import run_script
from tracelens.reproducers.folder import write
from tracelens.reproducers.scripts import script
from tracelens.reproducers.verify import RUNNER, failed, verify

torch = pytest.importorskip("torch")

NATIVE = {
    "mkldnn_convolution", "max_pool2d_with_indices_backward", "_grouped_mm (rows)", "_grouped_mm (columns)",
    "_grouped_mm (inner)", "_scaled_mm (one scale)", "_scaled_mm (a scale a row)", "_fused_adam_",
    "_fused_adamw_", "_softmax_backward_data", "_log_softmax_backward_data", "sort", "topk", "max", "min",
    "median", "kthvalue", "mode", "cummax", "cummin", *RANDOM,
}  # fmt: skip
"""Those that a CPU has kernels of; for the others a stand-in runs."""


class Row(NamedTuple):
    """What came of one script."""

    status: str
    check: str
    note: str


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Row]:
    """All scripts, run one after the other in one process."""
    folder = tmp_path_factory.mktemp("kits")
    entries = write(folder, [script(case_of(call)) for call in CATALOG.values()], [])
    found = verify(folder, device="cpu", iters=1, python=sys.executable)
    table = {row.file: row for row in found["scripts"].itertuples()}
    notes = {row.file: row.note for row in found["notes"].itertuples()}
    return {
        name: Row(table[entry.file].status, table[entry.file].check, notes.get(entry.file, ""))
        for name, entry in zip(CATALOG, entries, strict=True)
    }


@pytest.mark.parametrize("name", CATALOG)
def test_it_runs_and_is_right(name: str, rows: Mapping[str, Row]) -> None:
    row = rows[name]
    checked = name in NATIVE and name not in RANDOM  # a stand-in is the reference itself
    assert (row.status, row.check) == ("ran", "ok" if checked else "none"), row.note
    assert row.note.startswith("stand-in for ") == (name not in NATIVE)


def run(text: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(text)
    return run_script(path, "--device", "cpu", "--iters", "2", *options)


def test_a_profile_is_written(tmp_path: Path) -> None:
    done = run(
        script_of("aten::mm", "bf16 8 16", "bf16 16 4").text, tmp_path, "--profile", "out.json", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["check"] == "ok"
    names = [event.get("name") for event in json.loads((tmp_path / "out.json").read_text())["traceEvents"]]
    assert names.count("aten::mm") == 2  # as often as it was timed


@pytest.mark.slow
@pytest.mark.rare
@pytest.mark.parametrize("op", ["aten::mm", "aten::add"])
def test_it_can_be_compiled(op: str, tmp_path: Path) -> None:
    done = run(script_of(op, "fp32 8 8", "fp32 8 8").text, tmp_path, "--compile", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["check"] == "ok"


PATCHES = {
    "no tolerance": (
        script_of("aten::mm", "bf16 64 128", "bf16 128 64").text,
        ", 0.0234375  #",
        ", 0  #",
    ),
    "another result": (
        script_of("aten::mm", "fp32 64 128", "fp32 128 64").text,
        "    return tree_leaves(torch.ops.aten.mm.default(*args))",
        "    return [torch.mm(*args) * (1.01 if args[0].dtype == torch.float32 else 1)]",
    ),
    "one element": (
        script_of("aten::add", "fp32 64 128", "fp32 64 128", 1).text,
        "    return tree_leaves(torch.ops.aten.add.Tensor(*args[:2], alpha=args[2]))",
        "    out = torch.add(*args[:2])\n"
        "    out.view(-1)[77] += 0.1 * (out.dtype == torch.float32)\n"
        "    return [out]",
    ),
    "what is written to": (
        script_of("aten::_foreach_add_", ["fp32 8", "fp32 9"], 1).text,
        "torch.Tensor, lambda t: ",
        "torch.Tensor, lambda t: 2 * ",
    ),
    "an integer": (
        script_of("aten::add", "i64 64", "i64 64", 1).text,
        "torch.Tensor, lambda t: t.double() if t.is_floating_point() else t",
        "torch.Tensor, lambda t: t + (torch.arange(64) == 63)",
    ),
    "another reference": (
        script_of("aten::_grouped_mm", "bf16 48 32", "bf16 4 32 16 @ 512 1 32", "i32 4", None, None).text,
        "a[span] @ b[group]",
        "a[span] @ b[0]",
    ),
}
"""Scripts with one place changed, so that they must be wrong."""


def patched(name: str) -> str:
    text, old, new = PATCHES[name]
    assert text.count(old) == 1, old
    return text.replace(old, new)


def test_wrong_results_are_found(tmp_path: Path) -> None:
    one = script_of("aten::mm", "fp32 4 4", "fp32 4 4")
    entries = write(tmp_path, [one._replace(text=patched(name)) for name in PATCHES], [])
    found = verify(tmp_path, device="cpu", iters=1, python=sys.executable)
    rows = {row.file: row for row in found["scripts"].itertuples()}
    for name, entry in zip(PATCHES, entries, strict=True):
        assert (rows[entry.file].status, rows[entry.file].check) == ("wrong", "wrong"), name
    assert failed(found)
    assert found["notes"]["note"].str.contains("not (?:close|equal)").all()


def test_a_wrong_result_is_exit_status_1(tmp_path: Path) -> None:
    done = run(patched("no tolerance"), tmp_path, "--json")
    assert done.returncode == 1
    check = json.loads(done.stdout.splitlines()[-1])["check"]
    assert check.startswith("wrong: Tensor-likes are not ")
    assert "\n" not in check


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(tmp_path: Path) -> None:
    done = run(script_of("aten::mm", "fp32 4 4", "fp32 4 4").text, tmp_path, "--device", "cuda")
    assert (done.returncode, done.stdout) == (1, "")
    assert "torch sees no GPU" in done.stderr.splitlines()[-1]


def test_one_call_at_least_is_timed(tmp_path: Path) -> None:
    done = run(script_of("aten::mm", "fp32 4 4", "fp32 4 4").text, tmp_path, "--iters", "0", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["median_us"] > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["fp32 4 5", "fp32 4 5"], "mat1 and mat2 shapes cannot be multiplied"),
        ([f"fp32 {1 << 20} {1 << 20}", "fp32 4 4"], "memory"),
    ],
)
def test_what_torch_refuses_is_told_in_its_words(given: list[str], said: str, tmp_path: Path) -> None:
    done = run(script_of("aten::mm", *given).text, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", [name for name in CATALOG if "attention" in name])
def test_attention_is_that_of_the_formula(name: str) -> None:
    """The reference against softmax(Q K^T * scale + mask) V in double precision, and its gradients."""
    call = CATALOG[name]
    space = space_of(script(case_of(call)).text)
    torch.manual_seed(0)
    given = space["arguments"]()
    schema = getattr(torch.ops.aten, CATALOG[name].op.removeprefix("aten::")).default._schema
    by = {argument.name: value for argument, value in zip(schema.arguments, given, strict=False)}
    ins = [by[one].double().requires_grad_() for one in ("query", "key", "value")]
    heads_first = "scaled_dot" in name or "cudnn" in name
    q, k, v = ins if heads_first else (one.transpose(1, 2) for one in ins)
    if k.shape[1] != q.shape[1]:
        k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (k, v))
    scores = q @ k.transpose(-2, -1) * (by.get("scale") or q.shape[-1] ** -0.5)
    causal = by["is_causal"] if "is_causal" in by else by["custom_mask_type"] == 1
    if causal:
        scores = scores.masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), -torch.inf)
    bias = by.get("bias", by.get("attn_bias"))
    if bias is not None:
        scores = scores + bias.double()
    out = scores.softmax(-1) @ v
    wanted = [out if heads_first else out.transpose(1, 2)]
    if "backward" in name:
        wanted = list(torch.autograd.grad(wanted[0], ins, given[0].double()))
    for got, want in zip(space["expected"](given), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_a_convolution_is_that_of_the_formula() -> None:
    space = space_of(script(case_of(CATALOG["cudnn_convolution"])).text)
    given = space["arguments"]()
    (got,) = space["expected"](given)
    patches = torch.nn.functional.unfold(given[0].double(), 3, padding=1, stride=2)
    want = (given[1].double().flatten(1) @ patches).unflatten(-1, got.shape[2:])
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_grouped_products_are_those_of_a_loop() -> None:
    for name in ("_grouped_mm (rows)", "_grouped_mm (columns)", "_grouped_mm (inner)"):
        space = space_of(script(case_of(CATALOG[name])).text)
        given = space["arguments"]()
        (got,) = space["expected"](given)
        a, b = (one.double() for one in given[:2])
        ends = [0, *given[2].tolist()]
        assert ends == sorted(ends)
        assert ends[-1] == 48
        found = []
        for group in range(4):
            span = slice(ends[group], ends[group + 1])
            found.append(
                a[span] @ b[group]
                if b.dim() == 3
                else a[group] @ b[:, span]
                if a.dim() == 3
                else a[:, span] @ b[span]
            )
        want = torch.cat(found, 1 if a.dim() == 3 else 0)
        torch.testing.assert_close(got.reshape(want.shape), want, rtol=1e-9, atol=1e-9)


def test_a_scaled_product_is_that_of_the_formula() -> None:
    for name in ("_scaled_mm (one scale)", "_scaled_mm (a scale a row)"):
        space = space_of(script(case_of(CATALOG[name])).text)
        given = space["arguments"]()
        a, b, rows, columns = (one.double() for one in given[:4])
        torch.testing.assert_close(space["expected"](given)[0], a @ b * rows * columns, rtol=1e-9, atol=1e-9)


def test_scaled_sizes_run_too(tmp_path: Path) -> None:
    """The layouts of the largest calls of a Mixture of Experts, at 64 Ki elements."""
    calls: list[Any] = [
        ("aten::_grouped_mm", "bf16 24576 2048", "bf16 64 2048 1408 @ 2883584 1 2048", "i32 64", None, None),
        ("aten::index_put_", "fp32 24576 2048", None, "fp32 24576 2048", True),
        ("aten::bmm", "bf16 64 4096 128 @ 128 8192 1", "bf16 64 128 4096 @ 128 1 8192"),
        ("aten::_softmax", "bf16 8 16 2048 2048", -1, False),
        ("aten::native_layer_norm", "bf16 16 4096 2048", [2048], "bf16 2048", "bf16 2048", 1e-5),
        ("aten::scatter_add_", "fp32 131072 1", 0, "i64 131072 1", "fp32 131072 1"),
        ("aten::cat", ["bf16 4096 1408", "bf16 4096 2816"], 1),
    ]
    made = [script_of(op, *given, max_elements=1 << 16) for op, *given in calls]
    write(tmp_path, made, [])
    found = verify(tmp_path, device="cpu", iters=1, python=sys.executable)
    assert found["scripts"]["check"].tolist() == ["ok"] * len(calls), found["notes"]["note"].tolist()
    for one, (op, *_) in zip(made, calls, strict=True):
        assert one.subject == op
        assert one.traced_us == 0


def test_rows_that_meet_are_added_with_as_many_roundings(tmp_path: Path) -> None:
    """256 rows to each element, in a type of eight bits; what is written instead is whichever comes last."""
    calls: list[Any] = [
        ("aten::_index_put_impl_", "bf16 16 64", None, "bf16 4096 64", True, True),
        ("aten::index_add_", "bf16 16 64", 0, "i64 4096", "bf16 4096 64"),
        ("aten::index_put_", "bf16 16 64", None, "bf16 4096 64", False),
    ]
    write(tmp_path, [script_of(op, *given) for op, *given in calls], [])
    found = verify(tmp_path, device="cpu", iters=1, python=sys.executable)
    added, put, written = found["scripts"]["check"].tolist()
    assert (added, put) == ("ok", "ok")
    assert written == "none"


def test_out_of_the_box_it_takes_the_cpu() -> None:
    space = space_of(script_of("aten::mm", "fp32 4 4", "fp32 4 4").text)
    assert described(space["arguments"]()) == [("float32", (4, 4), (4, 1))] * 2
    assert space["ON"] == "cpu"


def test_what_a_script_runs_is_run_as_it_was_written(tmp_path: Path) -> None:
    text = "from pathlib import Path\nprint(*sorted(path.name for path in Path(__file__).parent.iterdir()))\n"
    text += "print({check})\n".format(
        check=repr(json.dumps({"check": "ok", "device": "cpu", "median_us": 1}))
    )
    source = "def kernel(): pass\n"
    key = hashlib.sha256(source.encode()).hexdigest()[:16]
    one = script_of("aten::mm", "bf16 8 16", "bf16 16 4")._replace(name="a", text=text, source=key)
    write(tmp_path, [one], [], lambda _: {f"generated_{key}.py": source.encode()})
    assert verify(tmp_path, device="cpu").data["scripts"].texts("status") == ["ran"]
    (tmp_path / f"generated_{key}.py").write_text("import os")
    found = verify(tmp_path, device="cpu")
    assert found.data["scripts"].texts("status") == ["failed"]
    assert f"run it directly with python generated_{key}.py" in found.data["notes"].texts("note")[0]


runner = SimpleNamespace(**runpy.run_path(str(RUNNER)))


def test_what_a_call_overwrites_is_put_back() -> None:
    given = [torch.ones(4)]
    rounds = runner.Rounds(torch, lambda args: args[0].mul_(2), given, [])
    assert len(rounds.elapsed_us(5)) == 5
    rounds.elapsed_us(5, cold=False)
    # Each call began with what the first had left.
    assert given[0].tolist() == [4, 4, 4, 4]


class Event(NamedTuple):
    """One of a profile."""

    name: str
    us: tuple[float, ...] = ()
    cpu_children: tuple[Event, ...] = ()

    @property
    def kernels(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(duration=us) for us in self.us]


def test_a_call_takes_the_time_of_its_own_kernels() -> None:
    """As in a trace, where a kernel belongs to the innermost op."""
    launch = Event("cudaLaunchKernel", (8.0,))
    op = Event("aten::_softmax_backward_data", (5.0,), (Event("aten::mul", (3.0,), (launch,)), launch))
    call = Event(runner.CALL, (), (op, Event("custom_launcher", (1.0,))))
    assert [event.name for event in runner.inside(call)].count("cudaLaunchKernel") == 2
    assert {event.name: runner.own_us(event) for event in runner.inside(call)} == {
        runner.CALL: 0, op.name: 5, "aten::mul": 3, "cudaLaunchKernel": 0, "custom_launcher": 1,
    }  # fmt: skip


def test_only_what_is_written_once_is_written_anew() -> None:
    assert runner.dense(torch.ones(4, 3).T)
    assert not runner.dense(torch.ones(3).expand(4, 3))
    assert not runner.dense(torch.ones(0))
    assert runner.known_ages("12,,0") == [12, -1, 0]


def test_a_profiler_counts_one_call_after_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between start and stop for Nsight Compute, between two fences for rocprofv3, which knows no start."""
    done: list[str] = []
    cudart = SimpleNamespace(
        cudaProfilerStart=lambda: done.append("start"), cudaProfilerStop=lambda: done.append("stop")
    )
    cuda = SimpleNamespace(
        _sleep=lambda cycles: done.append("fence"), synchronize=lambda: done.append("wait")
    )
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(**vars(cuda), cudart=lambda: cudart))

    def call(args: list[Any]) -> None:
        done.append("call")
        args[0].mul_(2)

    given = [torch.ones(4)]
    rounds = runner.Rounds(torch, call, given, [])
    done.clear()
    rounds.count()
    before = ["call"] * runner.WARM_UP + ["fence", "wait"]
    assert done == [*before, "start", "call", "wait", "stop", "fence", "wait"]
    assert given[0].tolist() == [4, 4, 4, 4]  # what the call overwrites was put back
    monkeypatch.setattr(torch.version, "hip", "6.4")
    done.clear()
    rounds.count()
    assert done == [*before, "call", "wait", "fence", "wait"]


def test_counters_need_a_gpu(tmp_path: Path) -> None:
    done = run(script_of("aten::mm", "fp32 4 4", "fp32 4 4").text, tmp_path, "--counters")
    assert (done.returncode, done.stderr.strip()) == (1, "--counters needs a GPU")
