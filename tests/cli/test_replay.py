"""`tracelens replay` as a user meets it: what it writes, what it says, and how it ends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.builders import aligned, events, write
from tracelens.cli import run as run_cli
from tracelens.reproducers import replay
from tracelens.reproducers.folder import read

SAMPLES = Path(__file__).parents[2] / "sample_traces"
LOOP, GROUPED = str(SAMPLES / "one_gpu/loop/rank0.json.gz"), str(SAMPLES / "one_gpu/grouped/rank0.json.gz")
EP4 = str(SAMPLES / "ladder/ep4/00_baseline")


class Outcome:
    """What one call left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def table(self) -> list[dict[str, Any]]:
        """Rows of the scripts of --json."""
        rows: list[dict[str, Any]] = json.loads(self.out)["tables"]["scripts"]
        return rows


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]):
    """Call the command line in this process."""

    def call(*arguments: str) -> Outcome:
        code = run_cli(["replay", *arguments])
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A trace of three calls on rank 0 and their collective."""
    path = tmp_path / "small.json"
    found = events(aligned("""
        python nn.Module: MoE_0                                                             | ------
        op aten::mm shapes=[[64,32],[32,16]] types=["float","float"]                        |  --
        op aten::relu shapes=[[64,16]] types=["float"]                                      |     --
        op aten::relu shapes=[[64,16]] types=["float"] tid=2                                |         --
        launch                                                                              |  a  b
        launch tid=2                                                                        |         c
        s7 gemm                                                                             |   aaaa
        s7 clamp                                                                            |       bb
        s7 clamp                                                                            |          ccc
    """))  # fmt: skip
    write(path, found, rank=0, deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}])
    return str(path)


def test_scripts_are_written_and_listed(run, small: str, tmp_path: Path) -> None:
    outcome = run(small, "-o", "out")
    assert outcome.code == 0
    assert outcome.out.startswith("tracelens replay: 2 scripts, 100.0% of GPU time\n")
    assert "01_aten_relu.py" in outcome.out
    assert outcome.err == "wrote out\n"
    assert [entry.file for entry in read(tmp_path / "out")] == ["01_aten_relu.py", "02_aten_mm.py"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "01_aten_relu.py",
        "02_aten_mm.py",
        "replay.json",
    ]


def test_json_is_one_object(run, small: str) -> None:
    outcome = run(small, "-o", "out", "--json")
    assert (outcome.code, outcome.err) == (0, "wrote out\n")
    value = json.loads(outcome.out)
    assert list(value) == ["schema_version", "analyzer", "version", "inputs", "tables", "skips", "meta"]
    assert (value["analyzer"], value["version"]) == ("replay", tracelens.__version__)
    assert value["meta"] == {"fraction_of_gpu_time": 1.0, "not_written": 0}
    assert value["tables"] == {
        "scripts": [
            {
                "file": "01_aten_relu.py", "subject": "aten::relu", "shapes": "fp32[64,16]", "count": 2,
                "traced_ns": 2500, "total_ns": 5000, "fraction_of_gpu_time": pytest.approx(5 / 9),
                "processes": 1,
            },
            {
                "file": "02_aten_mm.py", "subject": "aten::mm", "shapes": "fp32[64,32] fp32[32,16]",
                "count": 1,
                "traced_ns": 4000, "total_ns": 4000, "fraction_of_gpu_time": pytest.approx(4 / 9),
                "processes": 1,
            },
        ]
    }  # fmt: skip


def test_json_names_its_inputs(run, small: str) -> None:
    assert json.loads(run(small, "-o", "out", "--json").out)["inputs"] == [small]


def test_the_largest_first_and_how_many_more(run, small: str) -> None:
    outcome = run(small, "-o", "out", "--top", "1")
    assert outcome.out.startswith("tracelens replay: 1 scripts, 55.6% of GPU time\n")
    assert outcome.err == "wrote out; 1 more calls with a larger --top\n"
    assert len(run(small, "-o", "out", "--top", "0", "--json").table) == 2


@pytest.mark.parametrize(
    ("options", "subjects"),
    [
        (["--op", "aten::mm"], ["aten::mm"]),
        (["--op", "*"], ["aten::relu", "aten::mm"]),
        (["--shape", "64x16"], ["aten::relu"]),
        (["--shape", "64,32", "--shape", "32,16"], ["aten::mm"]),
        (["--module", "*MoE*"], ["aten::mm", "aten::relu"]),  # of two calls one is outside
        (["--rank", "0"], ["aten::relu", "aten::mm"]),
        (["--at", "1000"], ["aten::mm"]),
        (["--by", "recoverable"], ["aten::relu", "aten::mm"]),
        (["--op", "aten::relu", "--module", "*MoE*"], ["aten::relu"]),
    ],
)
def test_what_is_asked_for(run, small: str, options: list[str], subjects: list[str]) -> None:
    outcome = run(small, "-o", "out", "--json", *options)
    assert outcome.code == 0, outcome.err
    assert [row["subject"] for row in outcome.table] == subjects


def test_of_a_module_only_its_calls_count(run, small: str) -> None:
    (mm, relu) = run(small, "-o", "out", "--json", "--module", "*MoE*").table
    assert (mm["count"], relu["count"], relu["total_ns"]) == (1, 1, 2000)


def test_sizes_are_scaled_down(run, small: str, tmp_path: Path) -> None:
    (mm,) = run(small, "-o", "out", "--json", "--op", "aten::mm", "--max-elements", "100000").table
    assert mm["traced_ns"] == 4000
    large = tmp_path / "large.json"
    shapes = '[[4096,1024],[1024,512]] types=["float","float"]'
    write(large, events(aligned(f"op aten::mm shapes={shapes} | --\nlaunch | a\ns7 k | aa")))
    (mm,) = run(str(large), "-o", "out", "--json", "--max-elements", "65536").table
    assert (mm["traced_ns"], mm["total_ns"], mm["shapes"]) == (0, 2000, "fp32[4096,1024] fp32[1024,512]")
    assert 'strided("float32", (512, 128)),' in (tmp_path / "out" / "01_aten_mm.py").read_text()


def test_a_sample_trace(run) -> None:
    outcome = run(GROUPED, "-o", "out", "--op", "aten::_grouped_mm", "--json")
    assert outcome.code == 0
    # Two products forward, gate and up in one, and for each two gradients; in two layers and two steps.
    assert {row["subject"] for row in outcome.table} == {"aten::_grouped_mm"}
    assert sum(row["count"] for row in outcome.table) == 24
    step = run(GROUPED, "-o", "out", "--op", "aten::_grouped_mm", "--step", "3", "--json")
    assert sum(row["count"] for row in step.table) == 12


def test_collectives_of_all_ranks(run, tmp_path: Path) -> None:
    record = "collective=allreduce group=0 ranks=[0,1] size=2 in=50 out=50 dtype=Half"
    drawing = aligned(f"op record_param_comms {record} | --\nlaunch | a\ns9 ncclDevKernel_AllReduce | aaa")
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", events(drawing), rank=rank)
    outcome = run("rank0.json", "rank1.json", "-o", "out", "--op", "all*", "--json")
    (row,) = outcome.table
    assert (row["subject"], row["processes"], row["file"]) == ("allreduce", 2, "01_allreduce.py")
    # A rank has arguments of ops; a collective is everybody's.
    outcome = run("rank0.json", "rank1.json", "-o", "out", "--rank", "1")
    assert (outcome.code, outcome.out) == (2, "")
    assert "no call matches; the largest are none" in outcome.err


def test_whole_layers(run) -> None:
    outcome = run(GROUPED, "-o", "out", "--sequence", "--json")
    assert outcome.code == 0
    assert [row["file"] for row in outcome.table] == ["01_moe_layer_forward.py", "02_moe_layer_backward.py"]


def test_while_time_is_lost(run) -> None:
    outcome = run(GROUPED, "-o", "out", "--finding", "loss_unfused", "--json")
    assert outcome.code == 0
    assert "aten::_log_softmax" in {row["subject"] for row in outcome.table}
    assert "aten::_grouped_mm" not in {row["subject"] for row in outcome.table}


def test_collectives_that_run_while_time_is_lost(run) -> None:
    outcome = run(EP4, "-o", "out", "--finding", "exposed_all_to_all", "--json")
    assert outcome.code == 0, outcome.err
    assert {row["subject"] for row in outcome.table} == {"all_to_allv"}
    assert {row["processes"] for row in outcome.table} == {4}


def test_while_the_gpu_idles_there_is_nothing_to_run(run) -> None:
    outcome = run(GROUPED, "-o", "out", "--finding", "launch_bound")
    assert outcome.code == 2
    assert "no op or collective runs on the GPU while this finding costs time" in outcome.err


def test_what_changed(run) -> None:
    changes = tracelens.diff(tracelens.load(LOOP), tracelens.load(GROUPED))["diff"].data["changes"]
    names = changes.texts("cand")
    row = names.index("aten::index_add") + 1
    outcome = run(GROUPED, "-o", "out", "--diff", LOOP, "--row", str(row), "--json")
    assert outcome.code == 0, outcome.err
    assert "aten::index_add" in {found["subject"] for found in outcome.table}


def test_only_what_changed(run) -> None:
    changes = tracelens.diff(tracelens.load(LOOP), tracelens.load(GROUPED))["diff"].data["changes"]
    changed = changes.texts("cand")[1].split(", ")
    outcome = run(GROUPED, "-o", "out", "--diff", LOOP, "--row", "2", "--json")
    assert {found["subject"] for found in outcome.table} == set(changed)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rank", "7"], "tracelens: no rank 7 in the trace; it has 0"),
        (["--rank", "x"], "Invalid value for '--rank'"),
        (["--shape", "4,a"], "tracelens: '4,a' is not a shape; write sizes such as 4096,2048"),
        (
            ["--op", "aten::bmm"],
            "tracelens: no call matches; the largest are aten::relu, aten::mm",
        ),
        (["--shape", "7"], "no call matches"),
        (["--module", "nothing"], "no call matches"),
        (["--at", "999999"], "no call matches"),
        (["--step", "9"], "no step '9'"),
        (["--finding", "nothing"], "unknown detector 'nothing'; known: "),
        (["--finding", "expert_loop"], "tracelens: no finding 'expert_loop' in this trace: "),
        (["--diff", "nowhere.json"], "tracelens: nowhere.json: no such file or directory"),
        (["--diff", "SMALL", "--row", "1"], "tracelens: no row 1: 0 rows changed"),
        (["--sequence"], "tracelens: MoE layer: no MoE layer in the trace"),
        (["--top", "-1"], "Invalid value for '--top'"),
        (["--by", "size"], "Invalid value for '--by': 'size' is not one of 'time', 'recoverable'"),
        (["--device", "h9000"], "unknown device 'h9000'"),
        (["--frobnicate"], "No such option: --frobnicate"),
    ],
)
def test_errors_are_one_line_and_exit_2(
    refused: Callable[..., str], small: str, options: list[str], said: str, tmp_path: Path
) -> None:
    words = [small if word == "SMALL" else word for word in options]
    assert said in refused("replay", small, "-o", "out", *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["SMALL"], "Missing option '-o' / '--output'"),
        (["-o", "out"], "Missing argument 'PATH...'"),
        (["nowhere.json", "-o", "out"], "tracelens: nowhere.json: no such file or directory"),
        (["SMALL", "-o", "SMALL"], "small.json: is the input"),
        (["verify"], "tracelens replay verify: Missing argument 'DIR'"),
        (
            ["verify", "nowhere"],
            "tracelens: nowhere: no replay.json; make one with tracelens replay TRACE",
        ),
        (["verify", "nowhere", "--device", "tpu"], "'tpu' is not one of 'cuda', 'cpu'"),
        (
            ["SMALL", "-o", "."],
            "tracelens: .: holds the input ",
        ),
        (["IDLE", "-o", "out"], "tracelens: nothing can be replayed: there is no GPU work"),
        (["GONE", "-o", "out", "--diff", "SMALL"], "exists only in"),
        (["UNKNOWN", "-o", "out", "--by", "recoverable"], "no roofline: the trace names no known device"),
    ],
)
def test_bad_calls_are_one_line_and_exit_2(
    refused: Callable[..., str], small: str, arguments: list[str], said: str, tmp_path: Path
) -> None:
    idle, gone, unknown = tmp_path / "idle.json", tmp_path / "gone.json", tmp_path / "unknown.json"
    write(idle, events("launch | ---"))
    shapes = 'shapes=[[64,32],[32,16]] types=["float","float"]'
    write(gone, events(aligned(f"op aten::mm {shapes} | --\nlaunch | a\ns7 gemm |  aaaa")), rank=0)
    write(unknown, events(aligned(f"op aten::mm {shapes} | --\nlaunch | a\ns7 gemm |  aaaa")))
    words = {"SMALL": small, "IDLE": str(idle), "GONE": str(gone), "UNKNOWN": str(unknown)}
    if "." in arguments:
        for path in (idle, gone, unknown):
            path.unlink()
    assert said in refused("replay", *(words.get(word, word) for word in arguments))


def test_a_folder_with_other_files_is_left_alone(run, small: str, tmp_path: Path) -> None:
    assert run(small, "-o", "out").code == 0
    (tmp_path / "out" / "notes.txt").write_text("mine")
    outcome = run(small, "-o", "out", "--top", "1")
    assert (outcome.code, outcome.out) == (2, "")
    assert (
        outcome.err
        == "tracelens: out: holds notes.txt, which is not a script of a replay; choose another -o\n"
    )
    assert (tmp_path / "out" / "02_aten_mm.py").exists()
    (tmp_path / "out" / "notes.txt").unlink()
    assert run(small, "-o", "out", "--top", "1").code == 0
    assert not (tmp_path / "out" / "02_aten_mm.py").exists()


def test_what_cannot_be_made_is_said(run, tmp_path: Path) -> None:
    trace = tmp_path / "index.json"
    shapes = 'shapes=[[64,32],[]] types=["float",""]'
    write(trace, events(aligned(f"op aten::index {shapes} | --\nlaunch | a\ns7 k | aaaa")))
    outcome = run(str(trace), "-o", "out")
    assert outcome.code == 0
    assert "Not computed: " in outcome.out
    assert "Tensor?[]" in outcome.out


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_nothing_can_be_verified(run, small: str) -> None:
    assert run(small, "-o", "out").code == 0
    outcome = run("verify", "out")
    assert (outcome.code, outcome.out) == (2, "")
    assert "has no torch" in outcome.err
    assert outcome.err.count("\n") == 1


def test_another_interpreter_that_is_none(run, small: str) -> None:
    assert run(small, "-o", "out").code == 0
    outcome = run("verify", "out", "--python", "no-such-python")
    assert (outcome.code, outcome.out) == (2, "")
    assert "no-such-python" in outcome.err
    outcome = run("verify", "out", "--only", "nothing")
    assert (outcome.code, outcome.out) == (2, "")
    assert "no script matches 'nothing'" in outcome.err


def verified(path: Path, rows: list[dict[str, Any]], factor: float = 1.0, **more: Any) -> str:
    """JSON of a verification in which each of these scripts takes so many times its traced time."""
    scripts = [
        {
            **{name: row[name] for name in ("file", "subject", "shapes", "count")},
            "status": "match", "replayed_ns": row["traced_ns"] * factor, "roofline": 0.5 / factor,
            **more,
        }
        for row in rows
    ]  # fmt: skip
    path.write_text(json.dumps({"tables": {"scripts": scripts}, "meta": {"device": "H200"}}))
    return str(path)


def test_compare_says_what_ops_and_the_step_gain(run, tmp_path: Path) -> None:
    rows = run(GROUPED, "-o", "out", "--op", "aten::_grouped_mm", "--top", "0", "--json").table
    assert rows
    total_ns = sum(row["count"] * row["traced_ns"] for row in rows)
    before, after = verified(tmp_path / "a.json", rows), verified(tmp_path / "b.json", rows, 0.5)
    outcome = run("compare", before, after, "--trace", GROUPED, "--json")
    assert outcome.code == 0, outcome.err
    value = json.loads(outcome.out)
    assert list(value["tables"]) == ["step", "ops"]
    ops = value["tables"]["ops"]
    assert {(row["ratio"], row["before_roofline"], row["after_roofline"]) for row in ops} == {(0.5, 0.5, 1.0)}
    assert sum(row["gain_ns"] for row in ops) == pytest.approx(total_ns / 2)
    assert [row["gain_ns"] for row in ops] == sorted((row["gain_ns"] for row in ops), reverse=True)
    (step,) = value["tables"]["step"]
    assert step["scenario"] == "AFTER"
    # All kernels of these calls, and no others, become twice as fast.
    kernels = {kernel for row in read(Path("out")) for kernel in kernels_of(Path("out") / row.file)}
    scenario = "+".join(f"scale:{kernel}=0.5" for kernel in sorted(kernels))
    expected = tracelens.whatif(tracelens.load(GROUPED), [scenario]).data["whatif"]
    assert step["projected_ns"] == pytest.approx(expected.array("projected_ns")[0], rel=1e-3)
    assert step["projected_ns"] < step["base_ns"]
    # Without a change the step stays what it is.
    outcome = run("compare", before, before, "--trace", GROUPED, "--json")
    (step,) = json.loads(outcome.out)["tables"]["step"]
    assert step["projected_ns"] == pytest.approx(step["base_ns"], rel=1e-3)


def kernels_of(script: Path) -> list[str]:
    """Names of the kernels of a script, each as a pattern."""
    (line,) = (line for line in script.read_text().splitlines() if '"Kernels: ' in line)
    return [line.partition('"Kernels: ')[2].partition("...")[0].partition('"')[0] + "*"]


def test_compare_ends_with_1_if_the_new_kernel_is_wrong(run, tmp_path: Path, small: str) -> None:
    rows = run(small, "-o", "out", "--json").table
    before = verified(tmp_path / "a.json", rows)
    outcome = run("compare", before, verified(tmp_path / "b.json", rows, 0.1, status="wrong"), "-o", "c.html")
    assert (outcome.code, outcome.out) == (1, "")
    assert "wrote c.html" in outcome.err
    assert run("compare", verified(tmp_path / "c.json", rows, status="failed"), before).code == 0
    printed = run("compare", before, verified(tmp_path / "d.json", rows, 2.0))
    assert printed.code == 0
    assert "calls take 2.00x" in printed.out.partition("\n")[0]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"tables": {"scripts": []}}', '{"tables": 3}', '{"results": {"x": {}}}', "[" * 100_000,
     '{"tables": {"scripts": [{"file": "a", "subject": "b", "shapes": "", "status": "ran", "count": -1, '
     '"replayed_ns": 1e400, "roofline": null}]}}'],
)  # fmt: skip
def test_compare_refuses_other_files_in_a_line(run, tmp_path: Path, small: str, content: str) -> None:
    before = verified(tmp_path / "a.json", run(small, "-o", "out", "--json").table)
    (tmp_path / "b.json").write_text(content)
    outcome = run("compare", before, "b.json")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1


@pytest.mark.rare
@pytest.mark.torch
def test_with_torch_all_is_verified(run, small: str, tmp_path: Path) -> None:
    assert run(small, "-o", "out").code == 0
    outcome = run("verify", "out", "--device", "cpu", "--iters", "1", "--json")
    assert outcome.code == 0, outcome.err
    value = json.loads(outcome.out)
    assert list(value) == ["schema_version", "analyzer", "version", "inputs", "tables", "skips", "meta"]
    assert list(value["tables"]) == ["summary", "notes", "scripts"]
    assert [(row["status"], row["check"]) for row in value["tables"]["scripts"]] == [("ran", "ok")] * 2
    path = tmp_path / "out" / "02_aten_mm.py"
    path.write_text(path.read_text().replace("lambda t: t.double()", "lambda t: 2 * t.double()"))
    outcome = run("verify", "out", "--device", "cpu", "--iters", "1", "-o", "v.json")
    assert (outcome.code, outcome.out) == (1, "")
    (value,) = json.loads((tmp_path / "v.json").read_text())["results"].values()
    assert {row["file"]: row["status"] for row in value["tables"]["scripts"]} == {
        "01_aten_relu.py": "ran",
        "02_aten_mm.py": "failed",
    }
    # Only the bytes that the list has a hash of are run.
    listed = json.loads((tmp_path / "out" / "replay.json").read_text())
    listed["scripts"][1]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "out" / "replay.json").write_text(json.dumps(listed))
    outcome = run("verify", "out", "--device", "cpu", "--iters", "1", "--only", "mm")
    assert outcome.code == 1
    assert "wrong" in outcome.out
    assert "relu" not in outcome.out


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["verify", "--help"], ["verify", "-h"]])
def test_help_teaches_by_example(run, arguments: list[str]) -> None:
    outcome = run(*arguments)
    assert (outcome.code, outcome.err) == (0, "")
    assert "Examples:" in outcome.out
    assert outcome.out.count("tracelens replay verify") > 1 or arguments[:1] == ["verify"]
    assert "--json" in outcome.out


def test_help_names_every_option(run) -> None:
    out = run("--help").out
    for option in (
        "--output", "--op", "--shape", "--module", "--rank", "--step", "--top", "--by", "--finding", "--at",
        "--diff", "--row", "--sequence", "--max-elements", "--device", "--device-file", "--partial", "--json",
    ):  # fmt: skip
        assert option in out
    out = run("verify", "--help").out
    for option in (
        "--device", "--iters", "--only", "--tolerance", "--strict", "--timeout", "--ranks", "--python",
        "--output", "--json",
    ):  # fmt: skip
        assert option in out


def test_the_library_writes_the_same(run, small: str, tmp_path: Path) -> None:
    assert run(small, "-o", "out").code == 0
    replay(tracelens.load(small), tmp_path / "library")
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "library" / path.name).read_bytes()


def test_candidates_are_handed_over_with_their_targets(run, tmp_path: Path) -> None:
    assert run(GROUPED, "--candidates", "3", "-o", "out").code == 0
    listed = json.loads((tmp_path / "out" / "candidates.json").read_text())
    rows = listed["candidates"]
    assert [row["file"] for row in rows] == [entry.file for entry in read(tmp_path / "out")]
    assert len(rows) == 3
    gains = [row["gain_ns"] for row in rows]
    assert gains == sorted(gains, reverse=True)
    for row in rows:
        assert 0 < row["roofline_ns"] <= row["target_ns"] <= row["traced_ns"]
        assert row["gain_ns"] == pytest.approx(row["total_ns"] - row["calls"] * row["target_ns"])
    readme = (tmp_path / "out" / "README.md").read_text()
    assert all(row["file"] in readme for row in rows)
    # The folder is one of ours, and may be written again.
    assert run(GROUPED, "--candidates", "1", "-o", "out").code == 0
    assert len(read(tmp_path / "out")) == 1
