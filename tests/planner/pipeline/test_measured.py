"""Times from traces: drawn ones, whose times are known, and recorded ones, which must be given back."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelens
from tests.analysis.schedules import Piece, played, stage, stages
from tests.reference.traces import PP2VPP2EP4, path_of
from tracelens.errors import TracelensError
from tracelens.planner.pipeline import Fixed, Layers, Setting, make_schedule, pipeline, simulate
from tracelens.planner.pipeline.measured import PipelineMeasurement, measure, measured_costs, measured_source
from tracelens.table import Result
from tracelens.trace import make_run

SAMPLES = Path(__file__).parents[3] / "sample_traces" / "pipeline"
SCOPES = "PP:{stage}{kind}{micro_batch}"
US = 1000


@cache
def sample(name: str) -> PipelineMeasurement:
    return measure(tracelens.load(SAMPLES / name))


def project(measured: PipelineMeasurement, *names: str, chunks: int = 1) -> Result:
    size = measured.size
    counts = {1 if name == "1f1b" else chunks for name in names}
    setting = Setting(
        names,
        size.stages,
        size.micro_batches,
        chunks,
        costs=measured_costs(measured, size.stages),
        rest_ns=measured.rest_ns,
    )
    return pipeline(setting, measured_source(measured, size.stages, counts), measured)


@given(st.integers(2, 4), st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
def test_a_drawn_pipeline_is_given_back(
    size: int, rounds: int, chunks: int, forward: int, backward: int
) -> None:
    lanes = played(size, rounds * size, chunks, forward, backward)
    measured = measure(stages(*lanes, chunks=chunks, scopes=SCOPES))
    (line,) = measured.lines
    assert (line.size.stages, line.size.micro_batches, line.size.chunks) == (size, rounds * size, chunks)
    assert (line.forward == forward * US).all()
    assert (line.backward == backward * US).all()
    assert measured.chunks.forward.tolist() == [forward * US] * (size * chunks)
    # What was recorded is the order of Megatron-LM's schedule, and its makespan the closed form.
    name = "interleaved" if chunks > 1 else "1f1b"
    assert line.schedule.orders == make_schedule(name, size, rounds * size, chunks).orders
    whole = (rounds * size * chunks + size - 1) * (forward + backward) * US
    assert line.phase_ns == simulate(line.schedule, line.times()).makespan == whole


def test_waits_for_messages_and_of_the_host_are_told_apart() -> None:
    # Stage 1 waits 2 us for each activation, stage 0 3 us for each gradient; its host takes 1 us in between.
    first = [("F", 0, 2), ("F", 3, 5), ("B", 11, 14), ("B", 19, 22)]
    second = [("F", 4, 6), ("B", 6, 8), ("F", 8, 10), ("B", 14, 16)]
    lanes = [
        [Piece(kind, start, end, number // 2 if lane else number % 2) for number, (kind, start, end) in rows]
        for lane, rows in enumerate((list(enumerate(first)), list(enumerate(second))))
    ]
    measured = measure(stages(*lanes, scopes=SCOPES))
    (line,) = measured.lines
    assert (line.costs.forward_transit, line.costs.backward_transit) == (2 * US, 3 * US)
    # Stage 0: 1 us after its first forward. Stage 1: none, none, and 4 us.
    assert line.costs.gap == (1 * US, round(4 * US / 3))
    # The mean gap lies elsewhere than the recorded one, but the last backward still waits for its message.
    assert simulate(line.schedule, line.times()).makespan == pytest.approx(22 * US, abs=5)
    assert line.phase_ns == 22 * US


def test_without_all_stages_there_is_nothing_to_simulate() -> None:
    lanes = played(3, 3, 1)
    run = make_run([stage(lanes[rank], rank, 3, 1, scopes=SCOPES) for rank in (0, 2)], partial=True)
    with pytest.raises(TracelensError, match="some of its stages are not recorded"):
        measure(run)


def test_a_run_without_a_pipeline_is_refused() -> None:
    with pytest.raises(
        TracelensError, match="no complete pipeline in the trace: pass the ranks of all stages"
    ):
        measure(tracelens.load(SAMPLES.parent / "one_gpu" / "grouped"))


@pytest.mark.parametrize(("name", "tolerance"), [("plain", 0.001), ("interleaved", 0.003)])
def test_recorded_passes_give_back_the_recorded_phase(name: str, tolerance: float) -> None:
    measured = sample(name)
    table = project(measured, "interleaved", chunks=measured.size.chunks)["check"].set_index("times")
    assert abs(table["offset"]["each pass"]) < tolerance
    assert abs(table["offset"]["mean of chunk"]) < 0.02
    assert table["measured_ns"]["each pass"] == measured.phase_ns


def test_layers_of_a_recorded_pipeline_add_up_to_its_passes() -> None:
    for name, shares in (("plain", (2, 2)), ("interleaved", (1, 1, 1, 1))):
        measured = sample(name)
        assert measured.shares == shares
        assert measured.layers is not None
        # The layers with experts count as one kind, so that only the sum over all chunks is kept.
        chunks = Layers(measured.layers).chunks(2, len(shares), shares)
        for phase in ("forward", "backward"):
            parts, whole = (float(getattr(one, phase).sum()) for one in (chunks, measured.chunks))
            assert parts == pytest.approx(whole, rel=1e-6)
        forward = measured.layers.forward
        assert forward[0] < forward[1] == forward[2] == forward[3]
        assert min(*measured.layers.embedding, *measured.layers.head) > 0


def test_interleaving_is_predicted_from_the_run_without() -> None:
    """The step time of the interleaved run, from that of the plain one: within 10%."""
    table = project(sample("plain"), "1f1b", "interleaved", chunks=2)["summary"].set_index("schedule")
    measured = sample("interleaved")
    step = measured.phase_ns + measured.rest_ns
    assert table["makespan_ns"]["interleaved"] == pytest.approx(measured.phase_ns, rel=0.1)
    assert table["step_ns"]["interleaved"] == pytest.approx(step, rel=0.1)
    assert table["speedup"]["interleaved"] > 1


def test_no_interleaving_is_not_predicted_from_a_faster_recording() -> None:
    """The host of the plain recording took half as long again for the same calls, which nothing foretells."""
    table = project(sample("interleaved"), "interleaved", "1f1b", chunks=2)["summary"].set_index("schedule")
    offset = table["makespan_ns"]["1f1b"] / sample("plain").phase_ns - 1
    assert -0.2 < offset < -0.1


def test_megatron_lm_is_given_back(corpus: Path) -> None:
    path = corpus / "nvidia-h200-megatron" / "pp2ep4"
    if not path.is_dir():
        pytest.skip(f"{path} is not in this corpus")
    measured = measure(tracelens.load(path))
    assert [line.ranks for line in measured.lines] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert measured.lines[0].schedule.orders == make_schedule("1f1b", 2, 8).orders
    table = project(measured, "1f1b")["check"]
    own, mean = (
        table[table["times"] == times]["offset"].abs().max() for times in ("each pass", "mean of chunk")
    )
    assert own < 0.002
    assert mean < 0.01
    assert measured.layers is None
    with pytest.raises(TracelensError, match="--layers"):
        project(measured, "interleaved", chunks=2)


def test_interleaved_megatron_lm_is_given_back() -> None:
    measured = measure(tracelens.load(path_of(PP2VPP2EP4)))
    size = measured.size
    assert (size.stages, size.micro_batches, size.chunks, size.group) == (2, 8, 2, 2)
    assert measured.lines[0].schedule.orders == make_schedule("interleaved", 2, 8, 2).orders
    check = project(measured, "interleaved", chunks=2)["check"]
    assert check[check["times"] == "each pass"]["offset"].abs().max() < 0.002
    assert check[check["times"] == "mean of chunk"]["offset"].abs().max() < 0.02
    # Without interleaving a stage has two neighbouring chunks as one.
    one, two = (measured_source(measured, 2, {1, 2}).chunks(2, count, ()) for count in (2, 4))
    assert one.forward.tolist() == [two.forward[:2].sum(), two.forward[2:].sum()]


def test_times_are_the_runs_own_unless_it_is_cut_otherwise() -> None:
    measured = sample("plain")
    assert isinstance(measured_source(measured, 2, {1}), Fixed)
    assert isinstance(measured_source(measured, 2, {1, 2}), Layers)
    assert isinstance(measured_source(measured, 4, {1}), Layers)
    assert isinstance(measured_source(measured, 2, {1}, repartition=True), Layers)
    with pytest.raises(TracelensError, match="names 4 layers, not 5"):
        measured_source(measured, 2, {2}, layers=5)
    with pytest.raises(TracelensError, match="names 4 layers, not 5"):
        measured_source(measured, 2, {1}, layers=5)
    with pytest.raises(TracelensError, match="another partition needs times of layers"):
        measured_source(measured._replace(layers=None), 2, {1}, repartition=True)
    unnamed = measured_source(measured._replace(layers=None), 2, {2}, layers=4)
    assert isinstance(unnamed, Layers)
    halves = np.rint(measured.chunks.forward / 2).astype(np.int64)
    assert unnamed.times.forward.tolist() == np.repeat(halves, 2).tolist()


def test_gaps_of_other_stages_are_the_mean() -> None:
    measured = sample("plain")
    assert measured_costs(measured, 2) == measured.costs
    assert measured_costs(measured, 4).gap == (round(np.mean(measured.costs.gap)),) * 4
