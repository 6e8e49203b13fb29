"""The account of a ladder: it adds up rung by rung, and says what each changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders import draw, events, records, write
from tracelens.cli import run as run_cli
from tracelens.compare.ladder import LadderRun, Rung, ladder, read
from tracelens.errors import TracelensError
from tracelens.table import Result
from tracelens.trace import Run, make_run

# Two steps of 30 columns; each rung has one edit. A column is a microsecond.
BASELINE = """
    step 1                      | ------------------------------
    step 2                      |                               -----------------------------
    op aten::mm                 | --                            --
    op aten::mm                 |    --                            --
    op c10d::alltoall_base_     |       ---                           ---
    launch                      | a  b  c                       d  e  f
    s7 gemm_kernel              |   aaaabbbb                      ddddeeee
    s9 ncclDevKernel_SendRecv   |           cccccc                        ffffff
    s7 last_kernel              |                             =                             =
"""
# Both products in one launch of five columns instead of eight.
GROUPED = """
    step 1                      | --------------------------
    step 2                      |                           -----------------------------
    op aten::_grouped_mm        | --                        --
    op c10d::alltoall_base_     |       ---                       ---
    launch                      | a     c                   d     f
    s7 grouped_gemm_kernel      |   aaaaa                     ddddd
    s9 ncclDevKernel_SendRecv   |        cccccc                    ffffff
    s7 last_kernel              |                         =                             =
"""
# The exchange is half as long, and the host is later.
DEDUP = """
    step 1                      | ----------------------------
    step 2                      |                             ----------------------------
    op aten::_grouped_mm        | --                          --
    op c10d::alltoall_base_     |       ---                         ---
    launch                      | a     c                     d     f
    s7 grouped_gemm_kernel      |   aaaaa                       ddddd
    s9 ncclDevKernel_SendRecv   |        ccc                         fff
    s7 last_kernel              |                           =                            =
"""
TEXTS = (BASELINE, GROUPED, DEDUP)
NAMES = ("baseline", "grouped", "dedup")


def run(text: str) -> Run:
    return make_run([draw(text, rank=0)])


def ladder_run(**options: Any) -> LadderRun:
    timed = options.pop("timed", ((4.0, 4.0, 4.2), (2.0, 2.0, 2.1), (2.5, 2.5, 2.5)))
    peaks = options.pop("peaks", (3 << 30, 2 << 30, 1 << 30))
    adds = ("", "experts=grouped", "dispatch=dedup")
    rungs = tuple(
        Rung(name, Path(name), added, f"for {name}", tuple(ms), peak)
        for name, added, ms, peak in zip(NAMES, adds, timed, peaks, strict=True)
    )
    return LadderRun(rungs, options.pop("tokens", 8000), "tiny", **options)


@pytest.fixture(scope="module")
def result() -> Result:
    return ladder(ladder_run(not_run=(("graph", "needs a GPU"),)), map(run, TEXTS))


def test_the_waterfall_adds_up_rung_by_rung(result: Result) -> None:
    table = result["waterfall"]
    traced = result["rungs"]["traced_ns"].tolist()
    assert traced == [29_500, 27_500, 28_000]
    assert set(table["level"].astype(str)) == {"category", "cause", "stage"}
    for (rung, _), rows in table.groupby(["rung", "level"], observed=True):
        assert int(rows["base_ns"].sum()) == traced[rung - 1]
        assert int(rows["cand_ns"].sum()) == traced[rung]
        assert int(rows["delta_ns"].sum()) == traced[rung] - traced[rung - 1]
    for _, rows in result["total"].groupby("level", observed=True):
        assert int(rows["delta_ns"].sum()) == traced[2] - traced[0] == result.meta["delta_ns"]
        assert rows["fraction_of_difference"].sum() == pytest.approx(1)


def test_each_part_by_hand(result: Result) -> None:
    table = result["waterfall"]
    parts = table[(table["level"] == "category") & (table["delta_ns"] != 0)]
    assert sorted(records(parts, "rung", "name", "delta_ns")) == [
        (1, "(idle)", 1_000),
        (1, "gemm", -8_000),
        (1, "grouped_gemm", 5_000),
        (2, "(idle)", 3_500),
        (2, "communication", -3_000),
    ]
    total = result["total"]
    whole = {
        row[0]: row[1:]
        for row in records(total[total["level"] == "category"], "name", "delta_ns", "top_rung")
    }
    assert whole["(idle)"] == (4_500, "dedup")
    assert whole["gemm"] == (-8_000, "grouped")


def test_what_each_rung_changed_in_words(result: Result) -> None:
    changed = result["changed"]
    assert records(changed, "rung", "name", "adds", "delta_ns", "purpose") == [
        (1, "grouped", "experts=grouped", -2_000, "for grouped"),
        (2, "dedup", "dispatch=dedup", 500, "for dedup"),
    ]
    first, second = changed["by_category"].tolist()
    assert first.startswith("gemm −0.008 ms, grouped_gemm +0.005 ms, idle +0.001 ms")
    assert "communication −0.003 ms" in second
    assert "exchanged aten::mm → aten::_grouped_mm −0.003 ms" in changed["calls"][0]


def test_throughput_gain_and_memory(result: Result) -> None:
    rungs = result["rungs"]
    assert rungs["tokens_per_s"].tolist() == [2_000_000, 4_000_000, 3_200_000]
    assert rungs["timed_ns"].tolist() == [4_000_000, 2_000_000, 2_500_000]
    assert rungs["speedup"].tolist() == pytest.approx([1, 2, 1.6])
    assert rungs["gain"].tolist() == pytest.approx([0, 1, -0.2])
    assert rungs["spread"].tolist() == pytest.approx([0.025, 0.025, 0])
    assert rungs["peak_bytes"].tolist() == [3 << 30, 2 << 30, 1 << 30]
    assert rungs["noise"].tolist() == ["", "beyond", "beyond"]
    assert result.meta["speedup"] == pytest.approx(1.6)


def test_rungs_that_were_left_out_are_told(result: Result) -> None:
    assert [(skip.subject, skip.reason) for skip in result.skips] == [("rung graph", "needs a GPU")]


def test_what_was_not_measured_is_absent_and_told() -> None:
    result = ladder(ladder_run(timed=((), (2.0,), ()), peaks=(-1, -1, -1)), map(run, TEXTS))
    rungs = result["rungs"]
    assert records(rungs, "tokens_per_s", "speedup", "gain") == [
        (None, None, 0),
        (4_000_000, None, None),
        (None, None, None),
    ]
    assert [skip.subject for skip in result.skips] == ["peak memory", "throughput of baseline, dedup"]
    assert result.meta["speedup"] is None


def test_steps_that_differ_by_less_than_they_vary_are_noise() -> None:
    result = ladder(ladder_run(timed=((4.0, 5.0, 3.0), (4.1, 5.1, 2.9), (4.0,))), map(run, TEXTS))
    assert result["rungs"]["noise"].tolist() == ["", "within", "unknown"]


def test_a_ladder_of_one_run_repeated_has_no_difference() -> None:
    result = ladder(ladder_run(), map(run, (BASELINE,) * 3))
    assert result.meta["delta_ns"] == 0
    assert (result["waterfall"]["delta_ns"] == 0).all()
    assert set(result["changed"]["by_category"]) == {"no difference"}


DOCUMENT = {
    "schema": "tracelens.ladder/1",
    "preset": "tiny",
    "device": "cuda",
    "ranks": 1,
    "tokens_a_step": 8000,
    "config": {},
    "rungs": [
        {
            "folder": f"{number:02}_{name}", "name": name, "adds": [], "purpose": "", "toggles": {},
            "timed_ms": [4.0, 4.1], "typical_ms": 4.05, "peak_bytes": None, "loss": [],
        }
        for number, name in enumerate(NAMES)
    ],
    "left": [],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A ladder on disk."""
    (tmp_path / "ladder.json").write_text(json.dumps(DOCUMENT))
    for number, (name, text) in enumerate(zip(NAMES, TEXTS, strict=True)):
        (tmp_path / f"{number:02}_{name}").mkdir()
        write(tmp_path / f"{number:02}_{name}" / "rank0.json", events(text), rank=0)
    return tmp_path


def test_a_ladder_is_reported_from_its_folder(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outputs = [part for name in ("l.html", "l.md", "csv/") for part in ("-o", str(folder / name))]
    assert run_cli(["workload", "ladder", "--from", str(folder), "--json", *outputs]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["analyzer"] == "ladder"
    assert list(document["tables"]) == ["rungs", "changed", "total", "waterfall"]
    assert (document["meta"]["base_ns"], document["meta"]["last_ns"]) == (29_500, 28_000)
    assert "What each rung changed" in (folder / "l.md").read_text()
    assert "Throughput of each rung" in (folder / "l.html").read_text()
    assert run_cli(["workload", "ladder", "--from", str(folder)]) == 0
    out = capfd.readouterr().out
    assert out.startswith("1.00 x the throughput: 4.05 ms to 4.05 ms a step ")
    assert "\ntracelens workload ladder\n" in out
    assert "tracelens analyze ladder" not in out


def test_the_gate_fails_when_a_rung_is_turned_off(folder: Path) -> None:
    """Against what has the first rung, the baseline is a regression; a run against itself never is."""
    base, grouped = str(folder / "00_baseline"), str(folder / "01_grouped")
    gate = ["gate", "--trust-anyway"]  # the last kernel of a step has no launch
    assert run_cli([*gate, grouped, base]) == 1
    assert run_cli([*gate, grouped, grouped]) == 0  # the inputs are identical
    assert run_cli([*gate, grouped, grouped, "--rule", "kernel.count<=1.0"]) == 0
    assert run_cli([*gate, grouped, base, "--rule", "kernel.count<=1.01"]) == 1
    assert run_cli([*gate, base, grouped, "--rule", "kernel.count<=1.01"]) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.unlink(), "no ladder.json, no rungs; create them with"),
        (lambda path: path.write_text("{"), "is not JSON"),
        (lambda path: path.write_text("[]"), "its schema is None, not 'tracelens.ladder/1'"),
        (lambda path: path.write_text(json.dumps(DOCUMENT | {"schema": "x/2"})), "its schema is 'x/2'"),
        (
            lambda path: path.write_text(json.dumps(DOCUMENT | {"rungs": [{}]})),
            "is damaged (KeyError('name'))",
        ),
        (
            lambda path: path.write_text(json.dumps(DOCUMENT | {"rungs": []})),
            "no rung above the baseline",
        ),
    ],
)
def test_a_folder_that_holds_no_ladder(change: Any, said: str, folder: Path) -> None:
    change(folder / "ladder.json")
    with pytest.raises(TracelensError) as error:
        read(folder)
    assert said in str(error.value)


def test_a_rung_without_its_traces(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "01_grouped" / "rank0.json").unlink()
    assert run_cli(["workload", "ladder", "--from", str(folder)]) == 2
    err = capfd.readouterr().err
    assert "01_grouped" in err
    assert err.count("\n") == 1


def test_a_folder_named_elsewhere_is_not_read(folder: Path) -> None:
    rungs = [{**rung, "folder": f"/somewhere/else/{rung['folder']}"} for rung in DOCUMENT["rungs"]]  # type: ignore[attr-defined]
    (folder / "ladder.json").write_text(json.dumps(DOCUMENT | {"rungs": rungs}))
    assert [rung.folder.parent for rung in read(folder).rungs] == [folder] * 3
