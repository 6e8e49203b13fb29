"""Stored baselines: what they keep, and what they tell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tests.compare.gate.gate_sides import side
from tracelens.analysis.common import Setup
from tracelens.compare.gate import (
    Samples,
    Side,
    add_to_baseline,
    baseline_side,
    gate,
    read_baseline,
    read_rule,
)
from tracelens.compare.gate.runs import RecordingDoubt
from tracelens.errors import TracelensError


def run(name: str, *ms: float, **options: object) -> Samples:
    return side(name, metrics={"step.time": [1e6 * one for one in ms], "op[a].time": [1e6, 2e6]}, **options)


def stored(tmp_path: Path, *commits: tuple[str, list[Samples]], keep: int = 20) -> str:
    path = tmp_path / "base.json"
    for commit, runs in commits:
        content, _ = add_to_baseline(str(path), runs, commit, keep)
        path.write_bytes(content)
    return str(path)


def test_what_is_stored_is_read(tmp_path: Path) -> None:
    doubtful = replace(
        run("a", 10, 11),
        doubts=(RecordingDoubt(0, "cut", "no end"),),
        setup=Setup("H200", 1),
        parts=("before",),
    )
    path = stored(tmp_path, ("c1", [doubtful]))
    ((samples, commit, _),) = read_baseline(path) or ()
    assert commit == "c1"
    assert (samples.doubts, samples.setup, samples.parts) == (doubtful.doubts, doubtful.setup, doubtful.parts)
    assert {name: rows.tolist() for name, rows in samples.values.items()} == {
        name: rows.tolist() for name, rows in doubtful.values.items()
    }


def test_the_newest_commit_is_the_base_and_older_ones_its_history(tmp_path: Path) -> None:
    path = stored(tmp_path, ("c1", [run("a", 10, 10.1), run("b", 10, 10.2)]), ("c2", [run("c", 12, 12.1)]))
    base = baseline_side(read_baseline(path) or (), path)
    assert [[len(group) for group in base.history], len(base.runs)] == [[2], 1]
    assert base.each_step("step.time")[0].mean() == pytest.approx(12.05e6)
    assert base.noise_of_history("step.time", True).freedom == 1


def test_only_the_last_runs_are_kept(tmp_path: Path) -> None:
    path = stored(tmp_path, *((f"c{n}", [run(str(n), n, n)]) for n in range(1, 6)), keep=3)
    assert [run.commit for run in read_baseline(path) or ()] == ["c3", "c4", "c5"]
    with pytest.raises(TracelensError, match="at least one"):
        add_to_baseline(path, [], "", 0)


def test_runs_of_another_setup_tell_nothing(tmp_path: Path) -> None:
    other = replace(run("a", 10, 10.1), setup=Setup("H100", 1))
    path = stored(tmp_path, ("c1", [other]), ("c2", [replace(other, setup=Setup("H200", 1))]))
    assert baseline_side(read_baseline(path) or (), path).history == ()


def test_one_run_a_commit_tells_the_noise_though_one_commit_changed_the_program() -> None:
    rng = np.random.default_rng(0)
    means = [*rng.normal(100, 0.5, 8), *rng.normal(80, 0.5, 8)]
    groups = tuple((run(str(n), mean, mean),) for n, mean in enumerate(means))
    spread = Side(groups[-1], groups[:-1]).noise_of_history("step.time", True)
    assert 0.002 < np.sqrt(spread.variance) < 0.012
    assert 4 < spread.freedom < 6


def test_a_quiet_history_makes_a_single_run_conclusive(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    runs = [run(str(n), *rng.normal(100, 0.1, 2)) for n in range(8)]
    path = stored(tmp_path, ("c1", runs))
    base, rule = baseline_side(read_baseline(path) or (), path), [read_rule("step.time<=1.01")]
    verdicts = [
        [gate(one, run("new", 100 * slower, 100.1 * slower), rule).verdict for slower in (1, 1.05)]
        for one in (base, runs[0])
    ]
    assert verdicts == [["pass", "fail"], ["inconclusive", "inconclusive"]]


def test_files_that_are_no_baseline(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    path.write_text('{"traceEvents": []}')
    assert read_baseline(str(path)) is None
    with pytest.raises(TracelensError, match="exists and is not a baseline"):
        add_to_baseline(str(path), [run("a", 1, 2)], "")
    path.write_text('{"schema":"tracelens.baseline/1","runs":[{"metrics":{}}]}')
    with pytest.raises(TracelensError, match="a damaged baseline"):
        read_baseline(str(path))
