"""Mutants that once broke something, made small: each with what comes out of it now."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import tracelens
from tests.analysis.schedules import stage, stages
from tests.builders import aligned, draw, draw_run, records
from tests.effort import effort
from tests.fuzz.check import REPLAYS, STAGES, Checker, check, write_and_load
from tests.fuzz.sources import Document, documents
from tracelens.analysis.comm import MatchedCollective, Participant, Record, fit
from tracelens.errors import TracelensError
from tracelens.merge import fuse
from tracelens.reproducers import replay
from tracelens.reproducers.arguments import TensorArgument, scaled
from tracelens.trace import Run, make_run

pytestmark = pytest.mark.rare

LARGEST = 2**63 - 1
OTHER_TURNS = effort(3, 1)
NAME = "Collective name"
NO_GLOO_ARGUMENTS = [[], [[]], [[1]], [[2**62, 4]], [[[3], [4]]], [5, []], "x", None, [[-1]], [["a"]]]


def mutated(source: str, change: Callable[[list[Document]], None]) -> list[Document]:
    traces = documents(source)
    change(traces)
    return traces


def through_everything(source: str, change: Callable[[list[Document]], None], turn: int = 0) -> Checker:
    """The traces of a source, changed, through all stages; none of them may fail.

    Of cases of one kind, numbered by `turn`, the first goes through all stages, and each other one through
    loading, all analyzers and one of OTHER_TURNS parts of the stages.
    """
    traces = mutated(source, change)
    assert json.dumps(traces) != json.dumps(documents(source))
    checker = check(traces, source, STAGES[turn % OTHER_TURNS :: OTHER_TURNS] if turn else STAGES)
    assert checker.failures == []
    return checker


def each(traces: Sequence[Document], **fields: Any) -> list[dict[str, Any]]:
    """All events with these fields."""
    return [
        event
        for trace in traces
        for event in trace["traceEvents"]
        if all(event.get(key) == value for key, value in fields.items())
    ]


@pytest.mark.parametrize("source", ["ep4", "pipeline", "gloo"])
def test_all_durations_are_zero(source: str) -> None:
    def change(traces: list[Document]) -> None:
        for event in each(traces, ph="X"):
            event["dur"] = 0

    through_everything(source, change)


def test_a_diff_with_a_step_of_no_duration() -> None:
    lasting = draw_run(aligned("step 0 | ----\nlaunch | a\ns7 k | aaaa"))
    nothing = draw_run(aligned("step 0 | !\nlaunch | a\ns7 k corr=a | !"))
    for base, cand in ((lasting, nothing), (nothing, lasting)):
        report = tracelens.diff(base, cand)
        meta = report["diff"].meta
        assert 0 in (meta["base_ns"], meta["cand_ns"])
        assert meta["delta_ns"] == meta["cand_ns"] - meta["base_ns"] != 0
        assert "inf" not in report.title


def test_an_idle_gap_around_a_step_of_no_duration() -> None:
    """The GPU stands still while one step ends, another begins and ends, and behind both."""
    steps = "step 1 | --------\nstep 2 corr=b |         !"
    waits = draw_run(aligned(f"{steps}\nlaunch | a                -\ns7 k | aaaa              ---"))
    works = draw_run(aligned(f"{steps}\nlaunch | a                -\ns7 k | aaaaaaaa          ---"))
    result = tracelens.diff(waits, works)["diff"]
    idle = [
        row for row in records(result["waterfall"], "level", "name", "base_ns", "cand_ns") if "idle" in row[1]
    ]
    assert idle
    for *_, base_ns, cand_ns in idle:
        assert (base_ns, cand_ns) == (2000, 0)


# -- pipelines -----------------------------------------------------------------------------------------


def relabelled(text: str) -> Callable[[list[Document]], None]:
    def change(traces: list[Document]) -> None:
        for event in each(traces[1:2]):
            if str(event["name"]).startswith("ProfilerStep"):
                event["name"] = text

    return change


@pytest.mark.parametrize("source", ["pipeline", "interleaved"])
def test_one_rank_of_a_pipeline_calls_its_step_otherwise(source: str) -> None:
    checker = through_everything(source, relabelled("ProfilerStep#77"))
    assert not [text for text in checker.refused if text.startswith("analyze")]


def test_a_stage_without_a_step_is_named() -> None:
    steps = [("ProfilerStep#1", -1, 12)], [("ProfilerStep#2", -1, 12)]
    lines = ("0011..aa..bb", "..00aa11bb..")
    run = make_run(
        stage(line, rank, 2, steps=marks) for rank, (line, marks) in enumerate(zip(lines, steps, strict=True))
    )
    result = tracelens.analyze(run, "pipeline")
    assert set(records(result["bubble"], "rank", "step")) <= {(0, "ProfilerStep#1"), (1, "ProfilerStep#2")}
    subjects = {skip.subject for skip in result.skips}
    assert {"step ProfilerStep#1 of rank 1", "step ProfilerStep#2 of rank 0"} <= subjects


@pytest.mark.parametrize("scopes", ["", "PP:{stage}{kind}{micro_batch}"])
def test_a_rank_outside_of_its_own_pipeline_group(scopes: str) -> None:
    result = tracelens.analyze(
        stages("0011..aa..bb", "..00aa11bb..", ranks="[0, 7]", scopes=scopes), "pipeline"
    )
    assert set(result["bubble"]["rank"]) <= {0, 1}
    if not scopes:
        assert [skip.subject for skip in result.skips if "not this one" in skip.reason] == ["rank 1"]


def test_a_number_of_a_stage_that_no_model_has() -> None:
    run = stages(
        "0011..aa..bb", "..00aa11bb..", messages=False, scopes="PP:99999999999{stage}{kind}{micro_batch}"
    )
    assert len(tracelens.analyze(run, "pipeline")["bubble"]) == 0


def test_send_on_one_rank_in_a_step_of_another_label() -> None:
    def change(traces: list[Document]) -> None:
        relabelled("ProfilerStep#1000")(traces)
        sends = [
            event for event in each(traces[:1]) if event.get("args", {}).get("Collective name") == "send"
        ]
        assert sends
        for event in sends:
            event["args"]["Collective name"] = "recv"

    through_everything("pipeline", change)


# -- numbers at the end of their range -----------------------------------------------------------------


@pytest.mark.parametrize(("turn", "key"), list(enumerate(["tid", "pid"])))
def test_a_thread_of_the_largest_number(turn: int, key: str) -> None:
    def change(traces: list[Document]) -> None:
        for event in each(traces[:1], cat="cpu_op"):
            event[key] = LARGEST

    through_everything("exchange", change, turn)


@pytest.mark.parametrize(("turn", "rank"), list(enumerate([LARGEST, 2**31, 2**64])))
def test_a_rank_of_the_largest_number(turn: int, rank: int) -> None:
    def change(traces: list[Document]) -> None:
        traces[1]["distributedInfo"]["rank"] = rank

    through_everything("exchange", change, turn)


@pytest.mark.parametrize("rank", [0, 1_073_740, 1_073_741, 2**40])
def test_ids_of_a_fused_file_keep_31_bits(rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_LIMITS", "ranks=2T")
    run = make_run([draw(aligned("launch | a\ns7 k | aaaa"), rank=rank)])
    fuse(run, tmp_path / "fused.json")
    found = json.loads((tmp_path / "fused.json").read_bytes())["traceEvents"]
    assert f"rank {rank}: host" in {
        event["args"]["name"] for event in found if event["name"] == "process_name"
    }
    assert all(0 < event[key] < 2**31 for event in found for key in ("pid", "tid"))
    tracelens.load(tmp_path / "fused.json")


@pytest.mark.parametrize(("turn", "value"), list(enumerate([LARGEST, 2**62, 2**64, -1])))
def test_a_message_of_the_largest_size(turn: int, value: int) -> None:
    def change(traces: list[Document]) -> None:
        for event in each(traces):
            if "In msg nelems" in event.get("args", {}):
                event["args"]["In msg nelems"] = value

    through_everything("ep4", change, turn)
    run = load(mutated("ep4", change))
    for trace in run.traces:
        assert set(trace.tables["collectives"].array("in_bytes")) == {-1}


def load(traces: Sequence[Document]) -> Run:
    with TemporaryDirectory() as folder:
        return write_and_load(traces, Path(folder))


# -- arguments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "dims"),
    list(enumerate([[5, []], [[5, []]], [[[5], []], []], [[[5], [[]]]], [[-4, 4]], [[2**62, 4]], ["x"]])),
)
def test_cat_with_dimensions_that_are_none(turn: int, dims: list[Any]) -> None:
    def change(traces: list[Document]) -> None:
        for event in each(traces, cat="cpu_op", name="aten::cat"):
            event["args"]["Input Dims"] = dims

    through_everything("one_gpu_loop", change, turn)


@pytest.mark.parametrize("first", range(0, len(NO_GLOO_ARGUMENTS), 3))
@pytest.mark.parametrize("key", ["Input Dims", "Input type", "Concrete Inputs"])
def test_arguments_of_gloo_are_replaced(key: str, first: int) -> None:
    """Event by event another value, so that each op has several of them over the values of `first`."""

    def change(traces: list[Document]) -> None:
        for trace in traces:
            calls = [event for event in each([trace]) if str(event["name"]).startswith(("gloo:", "c10d::"))]
            for event, value in zip(calls, islice(cycle(NO_GLOO_ARGUMENTS), first, None), strict=False):
                event["args"][key] = value

    traces = mutated("gloo", change)
    assert check(traces, "gloo", ("json", *REPLAYS, "diff")).failures == []
    for trace in load(traces).traces:
        sizes = trace.tables["collectives"]
        assert min(sizes.array("in_bytes").min(initial=0), sizes.array("out_bytes").min(initial=0)) >= -1


def test_a_tensor_without_elements_is_scaled_down() -> None:
    empty, full = (TensorArgument("torch.bfloat16", (rows, 4096), (4096, 1), "dense") for rows in (0, 4096))
    small = [item for item in scaled("aten::add", [empty, full], 1 << 20) if isinstance(item, TensorArgument)]
    assert [item.shape for item in small] == [(0, 1024), (1024, 1024)]
    assert [item.stride for item in small] == [(1024, 1), (1024, 1)]


def test_a_rank_that_its_group_does_not_list_is_not_replayed(tmp_path: Path) -> None:
    run = stages("0011..aa..bb", "..00aa11bb..", ranks="[7, 8]")
    with pytest.raises(TracelensError):
        replay(run, tmp_path / "scripts", top=None)


# -- what is fitted and summed -------------------------------------------------------------------------


def test_a_line_never_begins_below_zero() -> None:
    def instance(size: int, ns: int) -> MatchedCollective:
        record = Record(0, "", "allreduce", "0", "", (0, 1), 2, "Float", size, size, (), ())
        return MatchedCollective(
            "allreduce", "0", 0, (Participant(0, record, 0, ns), Participant(1, record, 0, ns))
        )

    rows, skips = fit([instance(1000, 10), instance(2000, 400), instance(3000, 900)])
    assert skips == []
    assert rows[0]["alpha_ns"] == [0.0]
    slope = (1000 * 10 + 2000 * 400 + 3000 * 900) / (1000**2 + 2000**2 + 3000**2)
    assert rows[0]["beta_bytes_per_s"][0] == pytest.approx(1e9 / slope)
    straight, _ = fit([instance(1000, 150), instance(2000, 250)])
    assert straight[0]["alpha_ns"][0] == pytest.approx(50)
    assert straight[0]["beta_bytes_per_s"][0] == pytest.approx(1e10)


def test_kernels_far_apart_do_not_overflow() -> None:
    def change(traces: list[Document]) -> None:
        for number, event in enumerate(each(traces, cat="kernel")):
            if number % 2:
                event["ts"] = 4_436_633_073_632_676 + number

    through_everything("pipeline", change)
