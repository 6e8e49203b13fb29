"""Experts in a loop become grouped GEMMs: simulated loops, their grouped twin, and recorded runs of both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tracelens
from tests.analysis.moe_traces import HIDDEN, INNER, Model, Recorder, recorded
from tests.what_if.replays import run_of
from tracelens.analysis.moe import BACKWARD, FORWARD, LayerPass, regions
from tracelens.analysis.moe.layers import GemmSize
from tracelens.errors import TracelensError
from tracelens.opportunities import experts as grouping
from tracelens.trace import Run, Trace
from tracelens.what_if import Edge, Edit, Node, ScenarioContext, parse_request, whatif
from tracelens.what_if.graph import RunGraph, StepSpan, build
from tracelens.what_if.replay.schedule import schedule

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
LADDER = SAMPLES / "ladder" / "ep4"
ROWS = 16
RATE, EFFICIENCY = 65.536e9, 0.375
# Of both products on 16 rows: 16 us.
PRODUCTS_NS = 2 * ROWS * HIDDEN * (2 * INNER + INNER) / (RATE * EFFICIENCY) * 1e9


def visit(*products: GemmSize) -> LayerPass:
    return LayerPass(0, 0, 0, False, 8, 2, 8, HIDDEN, 2, False, products)


def device_file(folder: Path, bytes_per_s: float = 1e12) -> str:
    """A device slow enough for the products of small experts to take time."""
    path = folder / "slow.toml"
    path.write_text(f'name = "slow"\nhbm_bytes_per_s = {bytes_per_s}\n[matrix]\nbf16 = {RATE}\n')
    return str(path)


def one_turn(self: Recorder, rows: Sequence[int]) -> None:
    """One expert's ops on all rows, its products as fast as the device allows."""
    self.mlp(sum(rows), round(PRODUCTS_NS / 2))


@pytest.mark.parametrize("order", ["F0", "F0 B0", "F0 F1 B0 B1"])
def test_a_loop_becomes_one_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, order: str) -> None:
    """Eight experts one by one, and the same run in which one turn has the rows of all."""
    loop, _ = recorded(Model(order=order))
    monkeypatch.setattr(Recorder, "compute", one_turn)
    grouped, _ = recorded(Model(order=order))
    result = whatif(loop, [f"grouped_gemm={EFFICIENCY}"], device_file=device_file(tmp_path))
    measured = whatif(grouped, ["identity"]).meta["base_ns"]
    assert measured < result.meta["base_ns"]
    assert int(result["whatif"]["projected_ns"][0]) == measured
    (assumption,) = result["assumptions"]["assumption"]
    assert assumption.startswith(f"{2 * len(order.split())} loops ")


def test_other_scenarios_hold_beside_it(tmp_path: Path) -> None:
    """Products that are twice as fast are so in one turn, too, whatever is named first."""
    loop, _ = recorded(Model(order="F0"))
    grouped, scale = f"grouped_gemm={EFFICIENCY}", "scale:*nvjet*=0.5"
    result = whatif(
        loop, [grouped, f"{grouped}+{scale}", f"{scale}+{grouped}"], device_file=device_file(tmp_path)
    )
    first, second, slow = result["whatif"]["projected_ns"].tolist()
    assert first == second < slow - PRODUCTS_NS / 2


def test_what_of_a_loop_goes_and_what_stays() -> None:
    (trace,) = recorded(Model(layers=1))[0].traces
    forward, backward = grouping.loops(trace, 0)
    assert [grouping.iterations(forward.layer_pass), forward.phase, backward.phase] == [8, FORWARD, BACKWARD]
    # Two products and one activation a turn; backward each product is two kernels in as many ops, and the
    # gradients of two weights are added up.
    assert [len(rows) for rows in (forward.gemms, forward.kept, forward.removed)] == [2, 1, 7 * 3]
    assert [len(rows) for rows in (backward.gemms, backward.kept, backward.removed)] == [4, 3, 7 * 7]
    # An activation takes 2 us however little it does.
    assert forward.kept_ns.tolist() == [2_000]
    assert set(np.concatenate([forward.gemms, forward.kept, forward.removed]).tolist()) <= set(
        np.flatnonzero(trace.once(regions).layer_pass == 0).tolist()
    )


def test_work_on_rows_keeps_what_is_not_fixed_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations of 1 us and 100 ns a row: for the rows of all experts 1 us and 1.6."""

    def mlp(self: Recorder, rows: int, ns: int = 0, inner: int = INNER) -> None:
        self.mm(rows, HIDDEN, 2 * inner, ns)
        self.op("aten::silu", "vectorized_elementwise_silu", ns=1_000 + 100 * rows, shapes=[[rows, inner]])
        self.mm(rows, inner, HIDDEN, ns)

    monkeypatch.setattr(Recorder, "mlp", mlp)
    (trace,) = recorded(Model(layers=1, order="F0"))[0].traces
    (loop,) = grouping.loops(trace, 1e12)
    assert loop.kept_ns.tolist() == pytest.approx([1_000 + 100 * ROWS])
    # A row is 64 bytes to read and 64 to write: 400 ns at 0.32 GB/s, which leaves 400 ns of fixed cost of the
    # 1.2 us that two rows take in the mean; at 0.1 GB/s nothing is left.
    (slow,) = grouping.loops(trace, 0.32e9)
    assert slow.kept_ns.tolist() == pytest.approx([400 + 400 * ROWS])
    (slowest,) = grouping.loops(trace, 0.1e9)
    assert slowest.kept_ns.tolist() == pytest.approx([8 * 1_000 + 100 * ROWS])


@pytest.mark.parametrize(("experts", "goes"), [(8, True), (16, True), (3, False)])
def test_gradients_of_all_experts_in_each_turn_go(
    monkeypatch: pytest.MonkeyPatch, experts: int, goes: bool
) -> None:
    """Zeros of the size of all experts' weights that each turn fills, and what has the same forward op."""
    whole = [experts, HIDDEN, 2 * INNER]
    run_back = Recorder.one_back

    def one_back(self: Recorder, name: str, kernel: str, ns: int, more: dict[str, Any]) -> None:
        if name != "aten::select":
            run_back(self, name, kernel, ns, more)
            return
        for op, shapes in (("aten::fill_", [whole, []]), ("aten::copy_", [whole[1:], whole[1:], []])):
            with self.around("cpu_op", op, **self.arguments(shapes, ())):
                self.launch(op.replace("aten::", "kernel_of_"), ns)

    def mlp(self: Recorder, rows: int, ns: int = 0, inner: int = INNER) -> None:
        if inner == INNER:
            self.op("aten::select", "none", grad="SelectBackward0")
        self.mm(rows, HIDDEN, 2 * inner, ns)
        self.mm(rows, inner, HIDDEN, ns)

    monkeypatch.setattr(Recorder, "one_back", one_back)
    monkeypatch.setattr(Recorder, "mlp", mlp)
    (trace,) = recorded(Model(layers=1))[0].traces
    _, backward = grouping.loops(trace, 0)
    stays = {trace.work.names[code] for code in trace.work.name[backward.kept].tolist()}
    assert ({"kernel_of_fill_", "kernel_of_copy_"} <= stays) != goes
    assert stays.isdisjoint({"kernel_of_fill_", "kernel_of_copy_"}) == goes


def test_sizes_that_the_host_reads_in_the_loop_go(monkeypatch: pytest.MonkeyPatch) -> None:
    mlp = Recorder.mlp

    def reads(self: Recorder, rows: int, ns: int = 0, inner: int = INNER) -> None:
        self.op("aten::_local_scalar_dense", waits=True)
        mlp(self, rows, ns, inner)

    monkeypatch.setattr(Recorder, "mlp", reads)
    (trace,) = recorded(Model(layers=1, order="F0"))[0].traces
    (loop,) = grouping.loops(trace, 0)
    # The first read is in front of the experts' first product, which is where the loop is seen to begin.
    assert len(loop.blocking_calls) in (7, 8)
    gone = {trace.work.names[code] for code in trace.work.name[loop.removed].tolist()}
    assert "Memcpy DtoH (Device -> Pinned)" in gone
    stays = {trace.work.names[code] for code in trace.work.name[loop.kept].tolist()}
    assert "Memcpy DtoH (Device -> Pinned)" not in stays


def test_grouped_products_by_hand() -> None:
    """Four experts with 10, 20, 30, 40 rows: weights of 100 x 50, then of 50 x 100."""
    rows = (10, 20, 30, 40)
    layer_pass = visit(
        *[GemmSize(count, 100, 50) for count in rows], *[GemmSize(count, 50, 100) for count in rows]
    )
    # 2 x 100 x 100 x 50 = 1e6 FLOPs each at 1 GFLOP/s: 1 ms. (100 x 150 + 4 x 5,000) x 2 bytes = 70,000.
    assert grouping.grouped_gemm_ns(layer_pass, FORWARD, 1e9, 1e9, 0) == pytest.approx(2e6)
    assert grouping.grouped_gemm_ns(layer_pass, BACKWARD, 1e9, 1e9, 0) == pytest.approx(4e6)
    # 240 rows more for each of 4 experts: 1,060 instead of 100.
    assert grouping.grouped_gemm_ns(layer_pass, BACKWARD, 1e9, 1e9, 240) == pytest.approx(4e6 * 10.6)
    assert grouping.grouped_gemm_ns(layer_pass, FORWARD, 1e12, 1e9, 0) == pytest.approx(2 * 70_000)
    # Gate and up projections apart: two products of a size an expert, and as many weights.
    gate = visit(*[GemmSize(count, 100, 50) for count in rows for _ in range(2)])
    assert grouping.iterations(gate) == 8
    apart = visit(*gate.gemms, *[GemmSize(count, 50, 100) for count in rows])
    assert grouping.iterations(apart) == 4
    assert grouping.grouped_gemm_ns(apart, FORWARD, 1e9, 1e9, 0) == pytest.approx(3e6)
    assert grouping.grouped_gemm_ns(apart, FORWARD, 1e12, 1e9, 0) == pytest.approx(
        2 * (200 * 150 + 8 * 5_000) + 70_000
    )


def test_cleared_rows_by_hand() -> None:
    """100 rows of four experts: 100 x 100 read by the first GEMMs, 100 x (50 + 100) written, 2 bytes each."""
    rows = (10, 20, 30, 40)
    layer_pass = visit(
        *[GemmSize(count, 100, 50) for count in rows], *[GemmSize(count, 50, 100) for count in rows]
    )
    moved = 2 * 25_000 * 2
    assert grouping.cleared_ns(layer_pass, FORWARD, 1e9) == pytest.approx(moved / grouping.CLEAR_RATE)
    assert grouping.cleared_ns(layer_pass, BACKWARD, 1e9) == pytest.approx(
        moved / grouping.CLEAR_RATE + moved / grouping.COPY_RATE
    )
    assert grouping.cleared_ns(layer_pass, FORWARD, 0) == 0


def test_a_loop_with_a_one_hot_mask_becomes_the_path_that_sorts_and_clears(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both passes wait for the host, which sorts as long as it needs for 30 of the loop's ops."""
    compute, mlp = Recorder.compute, Recorder.mlp

    def masked(self: Recorder, rows: Sequence[int]) -> None:
        self.op("aten::one_hot")
        compute(self, rows)

    def finds(self: Recorder, rows: int, ns: int = 0, inner: int = INNER) -> None:
        self.op("aten::nonzero", "flag_nonzero", ns=1)
        mlp(self, rows, 1, inner)

    monkeypatch.setattr(Recorder, "mlp", finds)
    given = [f"grouped_gemm={EFFICIENCY}"], device_file(tmp_path, 1e15)

    def projected(model: Model) -> tuple[int, str]:
        result = whatif(recorded(model)[0], given[0], device_file=given[1])
        return int(result["whatif"]["projected_ns"][0]), result["assumptions"]["assumption"][0]

    model = Model(layers=1, kernel_ns=1)
    plain, _ = projected(model)
    monkeypatch.setattr(Recorder, "compute", masked)
    longer, assumption = projected(model)
    # A call takes 1.2 us, what lies around it another 0.2 or 0.4.
    assert longer - plain == pytest.approx(2 * grouping.SORTING_OPS * 1_500, rel=0.1)
    assert "transformers" in assumption


def test_work_of_one_size_for_all_experts_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each expert adds to the gradients of all tokens; with equal rows that may be work on its own rows."""

    def mlp(self: Recorder, rows: int, ns: int = 0, inner: int = INNER) -> None:
        self.mm(rows, HIDDEN, 2 * inner, ns)
        self.op("aten::add_", "vectorized_elementwise_add", ns=3_000, shapes=[[8, HIDDEN], [8, HIDDEN], []])
        self.mm(rows, inner, HIDDEN, ns)

    monkeypatch.setattr(Recorder, "mlp", mlp)
    (loop,) = grouping.loops(recorded(Model(layers=1, order="F0"))[0].traces[0], 1e12)
    assert loop.kept_ns.tolist() == [3_000]
    (even,) = grouping.loops(recorded(Model(layers=1, order="F0", rows=lambda *_: [2] * 8))[0].traces[0], 1e9)
    assert even.kept_ns[0] > 3_000


def test_where_there_is_nothing_to_group() -> None:
    run = recorded(Model(loop=False))[0]
    assert "no loop over experts" in skipped(run, "grouped_gemm")
    loop = recorded(Model())[0]
    assert "no large GEMM in the trace" in skipped(loop, "grouped_gemm")
    assert "peak for bf16 GEMMs" in skipped(loop, "grouped_gemm=0.5")
    with pytest.raises(TracelensError, match="grouped_gemm=fast: 'fast' is not a positive number"):
        whatif(loop, ["grouped_gemm=fast"])
    host = run_of("op aten::mm shapes=[[64,64],[64,64]] | ----")
    assert skipped(host, "grouped_gemm").startswith("CPU-only run")


def skipped(run: Run, scenario: str) -> str:
    """Why a scenario does not apply."""
    (skip,) = [
        candidate
        for candidate in whatif(run, [scenario]).skips
        if candidate.subject == f"scenario {scenario}"
    ]
    return skip.reason


def base_ns(run: Run) -> int:
    base: int = whatif(run, ["identity"]).meta["base_ns"]
    return base


@pytest.mark.parametrize(
    ("loop", "grouped"),
    [("nvidia-h100-hf/dsv2_eager.json.gz", "nvidia-h100-hf/dsv2_grouped.json.gz")],
)
def test_an_eager_run_predicts_the_grouped_one(corpus: Path, loop: str, grouped: str) -> None:
    """Nine times as fast; both hosts were recorded at a pace of their own."""
    result = whatif(tracelens.load(corpus / loop), ["grouped_gemm"])
    measured = base_ns(tracelens.load(corpus / grouped))
    assert result.meta["base_ns"] / measured > 9
    assert int(result["whatif"]["projected_ns"][0]) / measured == pytest.approx(1, abs=0.15)


def test_a_loop_predicts_the_grouped_run() -> None:
    result = whatif(tracelens.load(SAMPLES / "one_gpu" / "loop"), ["grouped_gemm"])
    measured = base_ns(tracelens.load(SAMPLES / "one_gpu" / "grouped"))
    assert result.meta["base_ns"] / measured > 1.7
    assert int(result["whatif"]["projected_ns"][0]) / measured == pytest.approx(1, abs=0.15)


def test_the_ladder_s_loop_predicts_its_grouped_rung_but_for_the_host_s_pace() -> None:
    """The GPUs' work is as measured; the hosts of the two recordings were not equally fast.

    Outside of MoE layers both runs launch the same. Where the first one's hosts took longer for that, the
    prediction does so too; at the second one's pace it is within a tenth of what was measured.
    """
    before, after = (tracelens.load(LADDER / rung) for rung in ("00_baseline", "01_grouped_gemm"))
    recorded_, grouped = build(before), build(after)
    graph, window, measured = recorded_.graph, recorded_.windows[0], grouped.windows[0]
    step = measured.spans(grouped.graph.start, grouped.graph.end).mean()
    edit = Edit.of(graph)
    ((item, argument),) = parse_request("grouped_gemm").parts
    item.change(ScenarioContext(recorded_, before.traces), edit, argument)
    times = schedule(graph, edit)
    assert 1.1 < window.spans(times.start, times.end).mean() / step < 1.3
    for rank_index, (trace, other) in enumerate(zip(before.traces, after.traces, strict=True)):
        assert edit.dur[inside(recorded_.graph, rank_index, window)].sum() == pytest.approx(
            grouped.graph.dur[inside(grouped.graph, rank_index, measured)].sum(), rel=0.04
        )
        pace = outside_ns(grouped.graph, rank_index, other, measured) / outside_ns(
            graph, rank_index, trace, window
        )
        assert pace < 1
        host = np.isin(graph.edge, (Edge.HOST, Edge.HANDOVER)) & (graph.rank[graph.dst] == rank_index)
        edit.lag[host] = np.rint(edit.lag[host] * pace).astype(np.int64)
    times = schedule(graph, edit)
    assert window.spans(times.start, times.end).mean() / step == pytest.approx(1, abs=0.1)


def inside(graph: RunGraph, rank_index: int, window: StepSpan) -> NDArray[np.bool_]:
    """A rank's GPU work in a step."""
    begin, end = window.borders(graph.start, graph.end)[rank_index]
    mine: NDArray[np.bool_] = (
        (graph.rank == rank_index) & (graph.kind == Node.WORK) & (graph.start >= begin) & (graph.start < end)
    )
    return mine


def outside_ns(graph: RunGraph, rank_index: int, trace: Trace, window: StepSpan) -> int:
    """A host's own time between launches of work that is in no MoE layer."""
    begin, end = window.borders(graph.start, graph.end)[rank_index]
    launched = np.full(len(graph), -1, dtype=np.int64)
    launch = (graph.edge == Edge.LAUNCH) & (graph.rank[graph.dst] == rank_index)
    launched[graph.src[launch]] = graph.work[graph.dst[launch]]
    src, dst = graph.src, graph.dst
    rows = np.flatnonzero(
        (graph.edge == Edge.HOST)
        & (launched[src] >= 0)
        & (launched[dst] >= 0)
        & (graph.rank[dst] == rank_index)
    )
    rows = rows[(graph.start[dst[rows]] >= begin) & (graph.start[dst[rows]] < end)]
    visit = trace.once(regions).layer_pass
    same = (visit[launched[src[rows]]] < 0) & (visit[launched[dst[rows]]] < 0)
    return int(graph.lag[rows[same]].sum())


def test_an_op_in_two_forms_is_repeated_as_one() -> None:
    """Eight iterations: index_add's backward is a gather in five of them, an index_select in three.

    An op that only three iterations have stays out.
    """
    name = np.array(
        [0] * 5 + [1] * 3 + [2] * 8 + [3] * 3 + [2] * 3
    )  # of ops: two forms, around them, another
    reader = object.__new__(grouping._LoopReader)
    work: Any = SimpleNamespace(op=np.array([*range(8), *range(16, 19)]), forward=np.full(11, -1))
    reader.work, reader.name = work, np.where(np.arange(22) >= 19, 4, name)
    reader.outermost = np.array([*range(8, 16), *range(19, 22)])
    reader.count = np.array([8])
    repeated = reader._repeated(np.arange(11), np.zeros(11, dtype=np.int64))
    assert repeated.row.tolist() == [*range(8)]
    assert repeated.stays.tolist() == [False] * 7 + [True]


@pytest.mark.parametrize(("known_ms", "told"), [(35.5, False), (55.0, True), (65.7, True)])
def test_the_loops_own_share_of_the_profiler_goes_with_it(known_ms: float, told: bool) -> None:
    """A loop whose host is slowed down less than usual says little of the program that is left."""
    result = whatif(tracelens.load(LADDER / "00_baseline"), ["grouped_gemm"], unprofiled_step_ms=known_ms)
    factor = result.meta["host_time_factor"]
    (text,) = result["assumptions"]["assumption"]
    found = re.findall(
        r"is ([0-9.]+) of the recorded instead of ([0-9.]+), nearer to the usual ([0-9.]+)", text
    )
    assert bool(found) is told
    for numbers in found:
        now, before, usual = map(float, numbers)
        assert usual <= now < before == pytest.approx(factor, abs=0.02)
