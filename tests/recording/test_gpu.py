"""Recording on a GPU, where autograd runs the backward on a thread of its own."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import tracelens
from tests.recording.traces import Scope, names, only, read, scopes
from tracelens import Run
from tracelens.recording import scoped
from tracelens.recording.window import RecordingWarning

STEPS = 2
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # Of its own deprecations, and of what it cannot record of this GPU.
    pytest.mark.filterwarnings(
        "ignore::FutureWarning:torch.*", "ignore::UserWarning:torch.*", "ignore::DeprecationWarning:torch.*"
    ),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a loop with a region inside a region, and a part that is recomputed."""
    w = torch.randn(512, 512, device="cuda", requires_grad=True)

    def layer(x: Tensor) -> Tensor:
        return scoped("inner", lambda x: (x @ w).relu(), x) @ w

    with tracelens.record(tmp_path_factory.mktemp("gpu"), wait=1, warmup=2, steps=STEPS) as r:
        for _ in range(4 + STEPS):
            x = torch.randn(512, 512, device="cuda", requires_grad=True).exp()
            y = scoped("outer", layer, x)
            y = checkpoint(layer, y, use_reentrant=False)
            y.sum().backward()
            r.step()
    assert r.notes == []
    assert r.path is not None
    found: Path = r.path
    return found


def test_the_gpu_is_waited_for_where_timed_steps_begin_and_end(tmp_path: Path) -> None:
    """Steps that only queue work take its time, also where the loop ends before the part does."""
    x = torch.randn(4096, 4096, device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with tracelens.record(tmp_path, wait=7, warmup=1, steps=1, pace_steps=5) as r:
        for step in range(14):
            if step == 2:
                begin.record()
            for _ in range(20):
                y = x @ x
            if step == 6:
                end.record()
            r.step()
        for _ in range(500):  # what is done behind the loop is none of its steps
            y = x @ x
    assert y.isfinite().all()
    before, after = tracelens.load(tmp_path).traces[0].meta.pace
    assert (before.steps, after.steps) == (5, 3)
    assert before.dur_ns == pytest.approx(begin.elapsed_time(end) * 1e6, rel=0.1)
    assert after.step_ns == pytest.approx(before.step_ns, rel=0.2)


@pytest.mark.parametrize("how", ["eager", "compiled", "graph"])
@pytest.mark.parametrize("warmup", [0, 2])
def test_each_kernel_was_launched_in_the_window(how: str, warmup: int, tmp_path: Path) -> None:
    """Though the host runs far ahead of the GPU, as here, where nothing waits for it."""
    x = torch.randn(4096, 4096, device="cuda")

    def program() -> Tensor:
        y = x
        for _ in range(30):
            y = (y @ x).relu() * 0.01
        return y

    run = torch.compile(program) if how == "compiled" else program
    for _ in range(3):
        run()
    if how == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            program()
        run = graph.replay
    with tracelens.record(tmp_path, wait=2 if warmup else 0, warmup=warmup, steps=STEPS) as r:
        for _ in range(6):
            run()
            r.step()
    assert r.path is not None
    events = read(r.path)["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    calls = {
        event["args"].get("correlation")
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    products = [event for event in kernels if "gemm" in event["name"] or "nvjet" in event["name"]]
    assert len(products) == 30 * STEPS
    assert {event["args"]["correlation"] for event in kernels} <= calls


def test_the_gpu_is_recorded(path: Path) -> None:
    trace = read(path)
    products = [event for event in trace["traceEvents"] if event["name"] == "aten::mm"]
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    # Two layers of two products, one of them recomputed up to what is needed, and twice as many backward.
    assert len(products) >= STEPS * (4 + 1 + 8)
    assert len(kernels) > len(products)
    assert {event["args"]["device"] for event in kernels} == {torch.cuda.current_device()}


def test_backward_scopes_stand_on_the_thread_that_runs_the_backward(path: Path) -> None:
    found = scopes(read(path))
    marks = [scope for scope in found if scope.name.startswith("ProfilerStep#")]
    assert len(marks) == STEPS
    for mark in marks:
        inside = [scope for scope in found if mark.start <= scope.start and scope.end <= mark.end]
        outer, backward = only(inside, "outer"), only(inside, "outer.B")
        assert outer.tid == mark.tid != backward.tid
        assert names(inside).count("inner") == 3
        assert names(inside).count("inner.B") == 2
        nested = [scope for scope in inside if scope.name == "inner.B" and backward.holds(scope)]
        assert len(nested) == 1
        assert nested_rightly([scope for scope in inside if scope.tid == backward.tid])


def nested_rightly(found: list[Scope]) -> bool:
    """Whether any two scopes lie one in the other or apart."""
    return all(a.holds(b) or b.holds(a) or a.beside(b) for at, a in enumerate(found) for b in found[at + 1 :])


def test_gpu_work_is_counted_in_its_scope(path: Path) -> None:
    """Forward and backward, as tracelens reads it."""
    table = tracelens.analyze(tracelens.load(path), "scopes")["scopes"].set_index("name")
    assert table.loc["outer", "forward_ns"] > 0
    assert table.loc["outer", "backward_ns"] > 0
    assert table.loc["outer.B", "exclusive_ns"] > 0


def test_a_region_that_leaves_on_another_device_has_no_backward(tmp_path: Path) -> None:
    """Its gradient begins on one thread and ends on another, and a scope must not."""
    with tracelens.record(tmp_path, wait=0, warmup=1, steps=1) as r:
        for _ in range(2):
            x = torch.ones(4, 4, requires_grad=True)
            scoped("moves", lambda x: x.cuda().exp(), x).sum().backward()
            r.step()
    assert r.path is not None
    found = names(scopes(read(r.path)))
    assert "moves" in found
    assert "moves.B" not in found


@pytest.mark.parametrize("finished", range(4))
def test_a_loop_that_ends_before_its_window_is_told_so(tmp_path: Path, finished: int) -> None:
    """Also while the profiler warms up, when it is told to stop what it has not begun."""
    recorder = tracelens.record(tmp_path, wait=1, warmup=3, steps=1)

    def loop() -> None:
        with recorder as r:
            for _ in range(finished):
                torch.ones(4, device="cuda").exp().sum().item()
                r.step()

    with pytest.warns(RecordingWarning, match="nothing recorded"):
        loop()
    assert recorder.path is None


class Body(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def of_graphs(run: Run) -> pd.DataFrame:
    """The kernels that graphs replayed."""
    kernels = run.kernels()
    (trace,) = run.traces
    graph = trace.arrays.named(lambda name: "GraphLaunch" in name)
    links = trace.tables["links"]
    is_replayed = graph[links.array("launch_id")] & (links.array("launch_id") >= 0)
    return kernels[kernels["kernel_id"].isin(links.array("kernel_id")[is_replayed])]


def attributed(run: Run) -> float:
    """Share of the time of replayed kernels that has an op."""
    replayed = of_graphs(run)
    assert len(replayed)
    return float(replayed.loc[replayed["op"] != "", "dur_ns"].sum() / replayed["dur_ns"].sum())


@pytest.mark.parametrize("has_twin", [False, True])
def test_replays_of_graphs_captured_before_the_window_are_attributed(tmp_path: Path, has_twin: bool) -> None:
    model = Body().cuda().eval()
    inputs = {batch: torch.randn(batch, 256, device="cuda") for batch in (8, 64, 256)}
    with torch.no_grad():
        expected = {batch: model(x) for batch, x in inputs.items()}
        with tracelens.record(tmp_path, wait=1, warmup=1, steps=2, model=model, names=r"^layers\.\d+$") as r:
            graphs, outputs = {}, {}
            for batch, x in inputs.items():
                with r.twin() if has_twin else nullcontext():
                    model(x)
                graphs[batch] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graphs[batch]):
                    outputs[batch] = model(x)
            for _ in range(5):
                for graph in graphs.values():
                    graph.replay()
                torch.cuda.synchronize()
                r.step()
    assert r.notes == []
    for batch, output in outputs.items():
        torch.testing.assert_close(output, expected[batch])
    run = tracelens.load(tmp_path)
    assert attributed(run) >= 0.99
    replayed = of_graphs(run)
    linear = replayed[replayed["op"] == "aten::addmm"]
    # Each step two layers of two, of three batch sizes; cuBLAS takes several kernels for one of them. Without
    # a twin, nothing in the smallest graph says its batch size.
    counts = linear["shapes"].str.removeprefix("~").value_counts()
    assert len(counts) == 6
    assert (counts % 4 == 0).all()
    assert set(linear["module"]) == {"layers.0", "layers.1"}


def test_graphed_callables_are_attributed_forward_and_backward(tmp_path: Path) -> None:
    model = Body().cuda()
    x = torch.randn(64, 256, device="cuda", requires_grad=True)
    sample = (x.detach().clone().requires_grad_(),)
    with tracelens.record(tmp_path, wait=1, warmup=1, steps=1, model=model, names=r"^layers\.\d+$") as r:
        first, second = torch.cuda.make_graphed_callables(tuple(model.layers), (sample, sample))
        for _ in range(3):
            second(first(x)).sum().backward()
            r.step()
    assert r.notes == []
    assert attributed(tracelens.load(tmp_path)) >= 0.99


def test_cuda_graph_trees_are_attributed(tmp_path: Path) -> None:
    model = torch.compile(Body().cuda().eval(), mode="reduce-overhead", dynamic=False)
    x = torch.randn(64, 256, device="cuda")
    with torch.no_grad(), tracelens.record(tmp_path, wait=4, warmup=1, steps=1) as r:
        for _ in range(6):
            model(x)
            r.step()
    assert r.notes == []
    assert attributed(tracelens.load(tmp_path)) >= 0.99
