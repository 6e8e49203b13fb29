"""`tracelens gate` as a user and a CI system meet it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.builders import events, write
from tracelens.cli import run as run_cli

DRAWING = """
    step 1      | ----------
    step 2      |           ----------
    step 3      |                     ----------
    op aten::mm |  --        --        --
    launch      |  a         b         c
    s7 gemm     |   aaa       bbb       ccc
"""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of two ranks before, after, and after that slowed them down; the report of those before."""
    folder = tmp_path_factory.mktemp("drawn")
    for name, ns in (("before", 1000), ("after", 1000), ("slow", 1100)):
        (folder / name).mkdir()
        for rank in range(2):
            write(folder / name / f"rank{rank}.json", events(DRAWING, ns_per_char=ns), rank=rank)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run_cli(["report", "before", "-o", "base.json"]) == 0
    return folder


@pytest.fixture
def folder(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, the current folder."""
    shutil.copytree(drawn, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("base", ["before", "base.json", "before/rank0.json"])
@pytest.mark.parametrize(("candidate", "code"), [("after", 0), ("slow", 1)])
def test_traces_and_reports_are_sides(
    folder: Path, base: str, candidate: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert run_cli(["gate", base, candidate]) == code
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith("Regression: 2 of 5" if code else "No regression: ")
    if code:
        failed = [line.split()[1] for line in out.splitlines() if line.startswith("fail ")]
        assert failed == ["computation.time<=1.003", "step.time<=1.01"]


def test_every_output(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    rules = [
        part
        for rule in ("step.time<=1.03", "kernel.count<=1", "op[aten::mm]<=+1ms")
        for part in ("--rule", rule)
    ]
    files = ["--junit", "out/g.xml", "--markdown", "out/g.md"]
    assert run_cli(["gate", "base.json", "slow", *rules, *files, "--json", "--github"]) == 1
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert list(found) == ["schema_version", "analyzer", "version", "inputs", "tables", "skips", "meta"]
    assert found["analyzer"] == "gate"
    assert found["inputs"] == ["base.json", "slow"]
    assert found["meta"]["verdict"] == "fail"
    figures = {row["metric"]: row for row in found["tables"]["figures"]}
    assert figures["step.time"]["estimate"] == pytest.approx(1.1)
    assert figures["op[aten::mm].time"]["estimate"] == 300
    assert [row["status"] for row in figures.values()] == ["fail", "pass", "pass"]
    wrote, *annotated = [line for line in err.splitlines() if not line.startswith("wrote out/g.md")]
    assert wrote == "wrote out/g.xml"
    assert annotated[0].startswith(
        "::error title=tracelens gate%3A step.time<=1.03::step.time: 10 µs to 11 µs per step"
    )
    assert ElementTree.parse("out/g.xml").getroot().attrib["failures"] == "1"
    assert (
        Path("out/g.md")
        .read_text()
        .startswith("**tracelens gate: regression, 1 of 3 rules failed: step time +1 µs (+10%)**")
    )


def test_annotations_stand_below_the_table(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert run_cli(["gate", "base.json", "after", "--github"]) == 0
    assert (
        capfd.readouterr().out.splitlines()[-1]
        == "::notice title=tracelens gate::no regression, 5 of 5 rules held"
    )


def test_rules_of_a_file(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text(
        "[tool.tracelens.gate]\nrules = ['step.time<=1.2', 'kernel.count<=1']\n"
    )
    assert run_cli(["gate", "base.json", "slow"]) == 0
    Path("strict.toml").write_text("[gate]\nrules = ['step.time<=1.0']\nconfidence = 0.9\n")
    capfd.readouterr()
    assert run_cli(["gate", "base.json", "slow", "--config", "strict.toml", "--json"]) == 1
    assert json.loads(capfd.readouterr().out)["meta"]["confidence"] == 0.9
    assert run_cli(["gate", "base.json", "slow", "--config", "strict.toml", "--rule", "step.time<=1.2"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["base.json", "nowhere"], "tracelens: nowhere: no such file or directory"),
        (["base.json"], "Missing argument 'CAND'"),
        (["base.json", "after", "--rule", "step.time<1"], "rule 'step.time<1': no limit"),
        (["base.json", "after", "--rule", "stp.time<=1"], "did you mean 'step.time'?"),
        (["base.json", "after", "--rule", "op[aten::nn].time<=1"], "neither run has the op"),
        (["base.json", "after", "--rule", "memory.peak<=1"], "record with profile_memory=True"),
        (["base.json", "after", "--rule", "moe.time<=1"], "no MoE layer"),
        (["base.json", "after", "--scope", "linked"], "use the same --scope for both"),
        (["base.json", "after", "--confidence", "99"], "must be above 0.5 and below 1"),
        (["base.json", "after", "--config", "no.toml"], "no.toml: no such file"),
        (["base.json", "after", "--junit", "base.json/g.xml"], "cannot write base.json/g.xml"),
        (
            ["old.json", "after"],
            "old.json: a report, written by tracelens 0.0.1, without the table steps.metrics",
        ),
        (["broken.json", "after"], "begins like a report but is not JSON"),
    ],
)
def test_errors_are_one_line_and_exit_2(
    folder: Path, arguments: list[str], said: str, refused: Callable[..., str]
) -> None:
    Path("old.json").write_text('{"results": {"ops": {}}, "findings": [], "meta": {"version": "0.0.1"}}')
    Path("broken.json").write_text('{"results": {"ops": ')
    assert said in refused("gate", *arguments)


def test_help_teaches_by_example(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["gate", "--help"]) == 0
    assert capfd.readouterr().out.count("tracelens gate") > 2


def test_exit_codes_of_what_noise_hides(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    last = "step 3      |                     ----------"
    one, two = DRAWING, DRAWING.replace(last, f"{last}---")
    for name, drawing in (("even.json", one), ("uneven.json", two)):
        write(folder / name, events(drawing, ns_per_char=1000), rank=0)
    arguments = ["gate", "even.json", "uneven.json", "--rule", "step.time<=1.01"]
    assert run_cli(arguments) == 3
    out = capfd.readouterr().out
    assert "no regression" not in out.lower()
    assert out.startswith("Inconclusive: noise hides")
    assert "only the noise within a run is known" in " ".join(out.split())
    assert [run_cli([*arguments, "--inconclusive", word]) for word in ("pass", "fail")] == [0, 1]
    Path("tracelens.toml").write_text("[gate]\ninconclusive = 'pass'\n")
    assert run_cli(arguments) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["before", "after", "--", "slow", "slow"],
        ["before", "after", "--", "slow", "slow", "--rule", "step.time<=1.03"],
        ["--base", "before", "--base", "after", "--cand", "slow"],
        ["base.json", "--cand", "slow"],
        ["--", "before", "slow"],
    ],
)
def test_several_runs_a_side(folder: Path, arguments: list[str]) -> None:
    assert run_cli(["gate", *arguments]) == 1


def test_a_baseline_that_grows(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for commit in ("c1", "c2"):
        assert (
            run_cli(["gate", "baseline", "add", "before", "after", "-o", "b.json", "--commit", commit]) == 0
        )
    assert capfd.readouterr().err.splitlines()[-1] == "wrote b.json: 4 runs"
    assert run_cli(["gate", "b.json", "after"]) == 0
    capfd.readouterr()
    assert run_cli(["gate", "b.json", "slow", "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert found["tables"]["causes"][0]["cause"] == "idle"
    assert found["tables"]["figures"][0]["base_runs"] == 2


def test_a_baseline_takes_runs_in_that_pass_or_are_accepted(
    folder: Path, capfd: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    add = ["gate", "baseline", "add", "-o", "b.json"]
    assert run_cli([*add, "before", "--commit", "c1"]) == 0
    kept = Path("b.json").read_bytes()
    capfd.readouterr()
    assert run_cli([*add, "slow", "--commit", "c2"]) == 1
    said = capfd.readouterr().err
    assert "b.json stays as it is: regression" in said
    assert "tracelens gate baseline accept" in said
    assert run_cli([*add, "slow", "--commit", "c2", "--rule", "step.time>=1.2"]) == 1
    assert Path("b.json").read_bytes() == kept
    assert "neither run has the op" in refused(*add, "slow", "--rule", "op[aten::nn].time<=1")
    assert run_cli([*add, "slow", "--commit", "c2", "--rule", "step.time<=1.2"]) == 0
    Path("b.json").write_bytes(kept)
    assert run_cli(["gate", "baseline", "accept", "-o", "b.json", "slow", "--commit", "c2"]) == 0
    assert run_cli(["gate", "b.json", "slow"]) == 0


def test_why_in_every_output(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = ["--junit", "g.xml", "--markdown", "g.md", "--report", "g.html", "--github"]
    assert run_cli(["gate", "before", "slow", *files]) == 1
    out = capfd.readouterr().out
    assert "::notice title=tracelens gate%3A cause::" in out
    assert "Causes" in out
    text = Path("g.md").read_text()
    assert text.startswith("**tracelens gate: regression")
    assert len(text.splitlines()) <= 25
    assert "Largest causes" in text
    assert "idle" in ElementTree.parse("g.xml").getroot()[0].findtext("system-out", "")
    assert "Waterfall" in Path("g.html").read_text()


def test_identical_inputs(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree("slow", "copy")
    for candidate in ("slow", "copy"):
        files = ["--json", "--github", "--junit", f"{candidate}.xml", "--markdown", f"{candidate}.md"]
        assert run_cli(["gate", "slow", candidate, *files]) == 0
        out, err = capfd.readouterr()
        assert json.loads(out)["meta"]["identical"] is True
        texts = [err, Path(f"{candidate}.xml").read_text(), Path(f"{candidate}.md").read_text()]
        assert all("the inputs are identical" in text for text in texts)
    assert run_cli(["gate", "slow", "copy"]) == 0
    assert "the inputs are identical" in capfd.readouterr().out
    assert run_cli(["gate", "slow", "copy", "--rule", "step.time<=1us"]) == 1  # a limit on the value itself
    (Path("copy") / "run.json").write_text("{}")
    capfd.readouterr()
    run_cli(["gate", "slow", "copy"])
    assert "the inputs are identical" not in capfd.readouterr().out


def test_which_runs_are_the_base_must_be_said(folder: Path, refused: Callable[..., str]) -> None:
    assert "nothing says which are the base" in refused("gate", "before", "after", "slow")
