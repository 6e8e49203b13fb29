"""The tables of simulated schedules."""

from __future__ import annotations

import numpy as np
import pytest

from tracelens.errors import TracelensError, UnknownName
from tracelens.planner.pipeline import SCHEDULES, Costs, Setting, Uniform, pipeline
from tracelens.table import Result

STAGE = Uniform(4_000_000, 8_000_000)


def project(*names: str, chunks: int = 2, source: Uniform = STAGE, **more: int) -> Result:
    return pipeline(Setting(names, 4, 16, chunks, **more), source)  # type: ignore[arg-type]


def test_the_summary_has_both_conventions() -> None:
    table = project("1f1b", "interleaved")["summary"].set_index("schedule")
    assert table["bubble_fraction"].tolist() == pytest.approx([3 / 19, 3 / 35])
    assert table["bubble_ideal_ratio"].tolist() == pytest.approx([3 / 16, 3 / 32])
    assert table["makespan_ns"].tolist() == [19 * 12_000_000, 35 * 6_000_000]
    assert table["speedup"].tolist() == pytest.approx([1, 19 * 2 / 35])
    assert table["peak_chunks"].tolist() == [4, 2 * 3 + 4 + 1]
    assert table["peak_micro_batches"].tolist() == [4, 5.5]
    assert table["step_ns"].isna().all()
    assert table["peak_bytes"].isna().all()


def test_what_a_step_has_besides_is_added() -> None:
    table = project("1f1b", rest_ns=5)["summary"]
    assert table["step_ns"][0] == table["makespan_ns"][0] + 5


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_tables_agree_with_each_other(name: str) -> None:
    result = project(name, source=Uniform(4_000_000, 8_000_000, 0.25), activation_bytes=1000)
    summary = result["summary"].iloc[0]
    stages, spans, held = result["stages"], result["spans"], result["in_flight"]
    assert (spans["ts_ns"] + spans["dur_ns"]).max() == summary["makespan_ns"]
    assert stages["idle_fraction"].mean() == pytest.approx(summary["bubble_fraction"])
    assert (stages["forward_ns"] + stages["backward_ns"] + stages["idle_ns"] == summary["makespan_ns"]).all()
    assert stages["peak_chunks"].max() == summary["peak_chunks"] == held["chunks"].max()
    assert stages["peak_bytes"].max() == summary["peak_bytes"] == held["bytes"].max()
    assert summary["longest_ns"] == (stages["end_ns"] - stages["start_ns"]).max()
    # A micro-batch on a stage holds 1000 bytes, in shares of its chunks.
    assert summary["peak_bytes"] == 1000 * summary["peak_micro_batches"]
    last = held.groupby("rank").tail(1)
    assert last["chunks"].tolist() == last["bytes"].tolist() == [0] * 4
    assert (held["chunks"] >= 0).all()
    assert spans["paired"].any() == name.endswith("overlap")
    busy = spans[~spans["paired"]].groupby("rank")["dur_ns"].sum()
    pairs = spans[spans["paired"]].drop_duplicates(["rank", "ts_ns"]).groupby("rank")["dur_ns"].sum()
    total = busy.add(pairs, fill_value=0).to_numpy()
    assert (total == (stages["forward_ns"] + stages["backward_ns"]).to_numpy()).all()


def test_each_schedule_has_its_own_number_of_chunks() -> None:
    result = project("1f1b", "interleaved", "zb-v", chunks=4)
    table = result["summary"]
    assert table["chunks"].tolist() == [1, 4, 2]
    partition = result["partition"]
    assert partition.groupby("schedule", observed=True, sort=False).size().tolist() == [4, 16, 8]
    v = partition[partition["schedule"] == "zb-v"]
    assert v["stage"].tolist() == [0, 1, 2, 3, 3, 2, 1, 0]
    assert partition["layers"].isna().all()


def test_messages_make_more_of_a_difference_to_more_chunks() -> None:
    costs = Costs(500_000, 500_000)
    free, dear = (
        pipeline(Setting(("1f1b", "interleaved"), 4, 16, 4, costs=cost), STAGE)["summary"]["makespan_ns"]
        for cost in (Costs(), costs)
    )
    more = (dear - free).to_numpy()
    assert 0 < more[0] < more[1]


def test_activations_are_as_large_as_the_layers_of_a_chunk() -> None:
    setting = Setting(("gpipe",), 2, 1, layout="1,3", activation_bytes=100)
    assert pipeline(setting, STAGE)["stages"]["peak_bytes"].tolist() == [50, 150]


def test_schedules_are_named_once() -> None:
    assert project("1f1b", "1f1b")["summary"]["schedule"].tolist() == ["1f1b"]
    with pytest.raises(TracelensError, match="name at least one schedule: gpipe, 1f1b"):
        project()
    with pytest.raises(UnknownName, match="did you mean 'zb-h1'"):
        project("zbh1")


def test_more_than_can_be_simulated_is_refused() -> None:
    with pytest.raises(TracelensError, match="8,000,000 passes of 1f1b exceed"):
        pipeline(Setting(("1f1b",), 4, 1_000_000), STAGE)


@pytest.mark.parametrize("times", [(0, 0), (-1, 2), (1, -2)])
def test_times_that_cannot_be(times: tuple[int, int]) -> None:
    with pytest.raises(TracelensError, match="must not be negative or both 0"):
        Uniform(*times)
    with pytest.raises(TracelensError, match="0 to 1"):
        Uniform(1, 2, 1.5)


def test_shares_of_a_stage_keep_its_time() -> None:
    chunks = Uniform(1_000_003, 2_000_001).chunks(4, 8, ())
    assert abs(int(chunks.forward.sum()) - 4 * 1_000_003) <= 4
    assert np.ptp(chunks.forward) == 0


@pytest.mark.parametrize(("name", "chunks"), [("zb-v", 2), ("interleaved", 3)])
def test_one_stage_may_have_several_chunks(name: str, chunks: int) -> None:
    result = pipeline(Setting((name,), 1, 4, chunks), Uniform(6, 12, layers=6))
    assert result["partition"]["layers"].tolist() == [6 // chunks] * chunks
    assert result["summary"]["makespan_ns"][0] == 4 * 18
