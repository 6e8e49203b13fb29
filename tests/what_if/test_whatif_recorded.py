"""Recorded runs: unchanged durations give back the step, and scenarios come close to what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelens
from tests.what_if.replays import assert_identity
from tracelens.trace.run import Run
from tracelens.what_if.replay.schedule import Times
from tracelens.what_if.whatif import whatif

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
FOLDERS = sorted({path.parent for path in SAMPLES.rglob("rank*.json.*")})
LADDER = SAMPLES / "ladder" / "ep4"
CORPUS = [
    "nvidia-h200-megatron/ep8",
    "nvidia-h200-megatron/pp2ep4",
    "mi300x/resnet_act_checkpoint.json.gz",
    "mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "misc/hta_control.json.gz",
    "misc/hta_test.json.gz",
    "misc/nccl_data.json.gz",
    "misc/negative_queue.json.gz",
    "misc/ns_resolution.json.gz",
    "misc/backward_thread.json",
    "misc/triton_example.json.gz",
    "nvidia-h100-hf/dsv2_grouped.json.gz",
]


def check(run: Run) -> None:
    """Each step of each rank is what the analyzer `steps` measures, and with nothing changed stays so."""
    recorded = assert_identity(run)
    steps = tracelens.analyze(run, "steps")["steps"]
    measured = steps.pivot(index="step", columns="rank", values="dur_ns")
    graph = recorded.graph
    times = Times(graph.start, graph.end, graph.start, graph.first[:-1])
    assert recorded.windows
    for window in recorded.windows:
        assert window.spans(times.start, times.end).tolist() == measured.loc[window.label].tolist()


def check_explained(run: Run, unexplained: float) -> None:
    """The step is projected exactly.

    With one latency for all launches, and without any unexplained delay, it stays within 1 %.
    """
    result = whatif(run, ["identity"])
    explained, path = result["explained"], result["critical_path"]
    (row,) = result["whatif"].itertuples()
    assert row.low_ns <= row.projected_ns == row.base_ns <= row.high_ns
    assert result["ranks"]["projected_ns"].tolist() == result["ranks"]["base_ns"].tolist()
    assert explained["replay"].tolist() == ["as measured", "typical launches", "no unexplained delays"]
    assert explained["error"].abs().max() < 0.01
    assert explained["unexplained_fraction"][0] < unexplained
    whole = path[path["scenario"] == "identity"]["dur_ns"].sum()
    assert whole in result["ranks"]["base_ns"].tolist()
    assert path[path["scenario"] == "(measured)"]["fraction"].sum() == pytest.approx(1)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(SAMPLES)))
def test_nothing_changed_gives_back_the_step(folder: Path) -> None:
    run = tracelens.load(folder)
    check(run)
    check_explained(run, 0.05)


@pytest.mark.parametrize("name", CORPUS)
def test_nothing_changed_gives_back_the_step_of_real_runs(corpus: Path, name: str) -> None:
    run = tracelens.load(corpus / name)
    check(run)
    if len(run.traces) > 1:
        check_explained(run, 0.01)


def test_every_run_of_several_ranks_is_among_them(corpus: Path) -> None:
    ranks = [str(file.parent.relative_to(corpus)) for file in corpus.rglob("rank*.json*")]
    assert {folder for folder in ranks if ranks.count(folder) > 1} <= set(CORPUS)


def test_balanced_tokens_are_what_a_run_without_skew_measured() -> None:
    """A run in which one rank gets twice the tokens, against the same run without that."""
    skewed = whatif(tracelens.load(SAMPLES / "faults" / "token_skew"), ["balanced"])
    control = whatif(tracelens.load(SAMPLES / "faults" / "control"), ["identity"]).meta["base_ns"]
    projected = int(skewed["whatif"]["projected_ns"][0])
    assert skewed.meta["base_ns"] / control > 1.15
    assert projected / control == pytest.approx(1, abs=0.1)


def test_without_garbage_collection_a_run_is_what_one_without_it_measured() -> None:
    """A run in which both ranks collect garbage for tens of milliseconds, against the same run without."""
    paused = whatif(tracelens.load(SAMPLES / "faults" / "gc"), ["no_garbage_collection"])
    control = whatif(tracelens.load(SAMPLES / "faults" / "control"), ["identity"]).meta["base_ns"]
    assert paused.meta["base_ns"] / control > 1.5
    assert int(paused["whatif"]["projected_ns"][0]) / control == pytest.approx(1, abs=0.1)


def test_sync_free_layers_take_away_waiting_only() -> None:
    """Measured sync-free layers launch more: without that the projection is too low, with it within 10 %.

    The host sets the pace of these runs, so each launch more costs what a launch takes on the path.
    """
    before = tracelens.load(LADDER / "03_dedup")
    result = whatif(before, ["sync_free"])
    projected = int(result["whatif"]["projected_ns"][0])
    path = result["critical_path"]
    host = path[(path["scenario"] == "sync_free") & (path["category"] == "host")]["dur_ns"].sum()
    launches = _launches(before)
    for rung in ("04_sync_free_2", "05_sync_free_3"):
        run = tracelens.load(LADDER / rung)
        measured = whatif(run, ["identity"]).meta["base_ns"]
        assert 0.8 < projected / measured < 0.9
        more = (_launches(run) - launches) * host / launches
        assert (projected + more) / measured == pytest.approx(1, abs=0.1)


def _launches(run: Run) -> int:
    steps = tracelens.analyze(run, "steps")["steps"]
    return int(steps["launches"].median())
