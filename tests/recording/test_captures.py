"""Captures of graphs before the window, with a stand-in for `torch.cuda.graph` on a CPU."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch
import torch.cuda.graphs as graphs
from torch import nn
from torch.profiler import ProfilerActivity, profile

import tracelens
from tests.builders import aligned, events, kernel_names, write
from tests.recording.traces import only, read, scopes
from tracelens.errors import TracelensError
from tracelens.read import parse
from tracelens.recording import recorder as recorder_module
from tracelens.recording import twin
from tracelens.recording.scopes import recording
from tracelens.recording.window import RecordingWarning
from tracelens.trace.graphs.nodes import forward_op

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:torch.*")


class Broken(RuntimeError):
    pass


class Capture(graphs.graph):
    """A capture that launches nothing; `fails` names the method that raises."""

    fails = ""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def method(name: str) -> Callable[..., None]:
        def call(self: Capture, *_: object) -> None:
            if self.fails == name:
                raise Broken(name)

        return call

    for name in ("__enter__", "__exit__"):
        monkeypatch.setattr(graphs.graph, name, method(name))


def capture(op: Callable[[torch.Tensor], object] = torch.sin, fails: str = "") -> None:
    x = torch.ones(3)
    with Capture(fails):
        op(x)


def loop(folder: Path, *works: Callable[[], object], **options: Any) -> Any:
    """Record a loop of four steps, the first of which wait, warm up and are recorded; the recorder."""
    with tracelens.record(folder, **({"wait": 2, "warmup": 1, "steps": 1} | options)) as r:
        for step in range(5):
            if step < len(works):
                works[step]()
            torch.ones(4).exp()
            r.step()
    return r


def captured(folder: Path, rank: int = 0) -> Path:
    return folder / "capture_traces" / f"rank{rank}.json.gz"


def ops(path: Path) -> list[str]:
    """Ops of a trace that no other op runs, without those that make tensors."""
    found = [event for event in read(path)["traceEvents"] if event.get("cat") == "cpu_op"]
    names = [event["name"] for event in sorted(found, key=lambda event: event["ts"])]
    return [name for name in names if name not in ("aten::ones", "aten::empty", "aten::fill_")]


def sidecar(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def test_captures_before_the_window_are_recorded_in_one_trace_beside_it(tmp_path: Path) -> None:
    before = (graphs.graph.__enter__, graphs.graph.__exit__, torch.cuda.make_graphed_callables)

    def both() -> None:
        capture(torch.sin)
        assert not recording()
        capture(torch.cos)

    r = loop(tmp_path, both, lambda: capture(torch.tan))
    assert (graphs.graph.__enter__, graphs.graph.__exit__, torch.cuda.make_graphed_callables) == before
    assert r.notes == []
    assert sidecar(tmp_path)["captures"] == 3
    assert ops(captured(tmp_path)) == ["aten::sin", "aten::cos", "aten::tan"]
    (event,) = (event for event in read(captured(tmp_path))["traceEvents"] if event["name"] == "aten::cos")
    assert event["args"]["Input Dims"] == [[3]]
    assert ops(r.path) == ["aten::exp"]
    there = sorted(path.name for path in tmp_path.iterdir() if path.name != "rank0.values.json.zst")
    assert there == ["capture_traces", "rank0.json.gz", "run.json"]
    assert len(tracelens.load(tmp_path).traces) == 1


def test_ids_of_sessions_do_not_collide(tmp_path: Path) -> None:
    """A backward pass that is captured by itself knows its forward ops: they are in the same trace."""
    weight = torch.ones(4, 4, requires_grad=True)
    outputs: list[torch.Tensor] = []

    def both() -> None:
        with Capture():
            outputs.append((weight @ weight).sum())
        with Capture():
            torch.autograd.grad(outputs[0], weight)

    loop(tmp_path, both)
    (trace,) = parse(str(captured(tmp_path)))
    names = [trace.arrays.names[code] for code in trace.arrays.name.tolist()]
    forward = forward_op(trace)
    behind = {names[row] for row in forward[np.flatnonzero(forward >= 0)].tolist()}
    assert behind == {"aten::mm", "aten::sum"}
    ids = [event["args"]["External id"] for event in read(captured(tmp_path))["traceEvents"]
           if "External id" in event.get("args", {})]  # fmt: skip
    assert len(ids) == len(set(ids)) > 4


def test_captures_in_the_window_are_in_its_trace(tmp_path: Path) -> None:
    r = loop(tmp_path, *[lambda: None] * 3, capture)
    assert "aten::sin" in ops(r.path)
    assert not captured(tmp_path).exists()
    assert sidecar(tmp_path)["captures"] == 0


def test_a_capture_in_the_warm_up_steps_is_noted(tmp_path: Path) -> None:
    with pytest.warns(RecordingWarning, match="warm-up steps are not recorded.* pass a larger wait"):
        r = loop(tmp_path, *[lambda: None] * 2, lambda: [capture(), capture()])
    assert len(r.notes) == 1
    assert "aten::exp" in ops(r.path)
    assert not captured(tmp_path).exists()


def test_captures_of_an_earlier_recording_go(tmp_path: Path) -> None:
    loop(tmp_path, capture)
    other = captured(tmp_path, 1)
    other.write_bytes(captured(tmp_path).read_bytes())
    loop(tmp_path)
    assert not captured(tmp_path).exists()
    assert other.exists()


@pytest.mark.parametrize("fails", ["__enter__", "__exit__", "inside"])
def test_a_capture_that_fails_is_not_kept(tmp_path: Path, fails: str) -> None:
    def inside(_: object) -> None:
        raise Broken(fails)

    def work() -> None:
        with pytest.raises(Broken, match=fails):
            capture(inside if fails == "inside" else torch.tan, fails)
        assert not recording()
        capture(torch.cos)

    r = loop(tmp_path, work)
    assert r.notes == []
    assert sidecar(tmp_path)["captures"] == 1
    assert ops(captured(tmp_path)) == ["aten::cos"]
    assert ops(r.path) == ["aten::exp"]


@pytest.mark.parametrize("fails", ["start", "stop", "export_chrome_trace"])
def test_a_profiler_that_fails_is_noted_and_the_program_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    class Profiler:
        def __init__(self, **_: object) -> None:
            pass

        def __getattr__(self, name: str) -> Callable[..., None]:
            def method(*_: object) -> None:
                if name == fails:
                    raise RuntimeError("CUPTI is busy")

            return method

    monkeypatch.setattr(recorder_module, "_KinetoProfile", Profiler)
    with pytest.warns(RecordingWarning, match="the capture of a graph was not recorded: CUPTI is busy"):
        r = loop(tmp_path, lambda: [capture(), capture()])
    assert len(r.notes) == 1
    assert ops(r.path) == ["aten::exp"]
    assert not captured(tmp_path).exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_capture_under_a_profiler_of_the_program_is_left_to_it(tmp_path: Path) -> None:
    def work() -> None:
        with profile(activities=[ProfilerActivity.CPU]) as own:
            capture()
        assert any(event.key == "aten::sin" for event in own.key_averages())

    r = loop(tmp_path, work)
    assert r.notes == []
    assert not captured(tmp_path).exists()


def test_a_twin_holds_what_runs_in_it(tmp_path: Path) -> None:
    def work() -> None:
        with twin():
            torch.ones(3).cos()
            capture(torch.sin)
            assert recording()

    loop(tmp_path, work, capture)
    assert ops(captured(tmp_path)) == ["aten::cos", "aten::sin", "aten::sin"]
    assert sidecar(tmp_path)["captures"] == 2
    with twin():  # no recorder waits
        assert not recording()


def test_a_step_inside_a_twin_ends_it(tmp_path: Path) -> None:
    states = []
    with tracelens.record(tmp_path, wait=1, warmup=1, steps=1) as r, r.twin():
        torch.ones(3).cos()
        for _ in range(3):
            torch.ones(4).exp()
            r.step()
            states.append(recording())
    assert states == [False, True, False]
    assert r.notes == []
    assert ops(r.path) == ["aten::exp"]
    assert not captured(tmp_path).exists()


def test_the_window_waits_for_the_capture_of_another_thread(tmp_path: Path) -> None:
    inside, stepping = threading.Event(), threading.Event()
    ended: list[bool] = []

    def work(_: object) -> None:
        inside.set()
        stepping.wait(10)
        torch.ones(3).tan()
        ended.append(True)

    thread = threading.Thread(target=capture, args=(work,))

    def start() -> None:
        thread.start()
        inside.wait(10)
        capture(torch.cos)  # one profiler at a time: this one is not recorded, nor does it end the other's
        threading.Timer(0.2, stepping.set).start()

    def warm_up() -> None:
        assert ended

    r = loop(tmp_path, lambda: None, start, warm_up)
    thread.join()
    assert r.notes == []
    assert "aten::tan" in ops(captured(tmp_path))
    assert ops(r.path) == ["aten::exp"]


def test_a_thread_that_was_refused_begins_no_session_inside_its_capture(tmp_path: Path) -> None:
    """The end of a session synchronizes the device, which a capture under way would not survive."""
    refused, free = threading.Event(), threading.Event()

    def work(_: object) -> None:
        refused.set()
        free.wait(10)
        with twin():
            assert not recording()

    thread = threading.Thread(target=capture, args=(work,))

    def first() -> None:
        with twin():
            thread.start()
            refused.wait(10)
        free.set()
        thread.join()

    r = loop(tmp_path, first)
    assert r.notes == []


def test_a_loop_that_ends_while_it_waits_leaves_nothing(tmp_path: Path) -> None:
    def run() -> None:
        with tracelens.record(tmp_path) as r:
            capture()
            r.step()

    with pytest.warns(RecordingWarning, match="nothing recorded"):
        run()
    assert list(tmp_path.iterdir()) == []
    assert not recording()


def test_a_rank_that_does_not_record_has_no_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    before = graphs.graph.__enter__
    with tracelens.record(tmp_path, ranks=[0], wait=0, warmup=0, steps=1) as r:
        assert graphs.graph.__enter__ is before
        with r.twin():
            assert not recording()
        r.step()
    assert r.notes == []


def test_steps_with_a_capture_are_not_timed_as_steps_without_a_profiler(tmp_path: Path) -> None:
    def steps(*works: Callable[[], object]) -> set[str]:
        r = loop(tmp_path, *works, wait=4, warmup=0)
        return set(read(r.path)["tracelens"]["pace"])

    assert steps(capture) == {"recording", "before"}
    assert steps(*[lambda: None] * 3, capture) == {"recording"}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4))])


def test_graphed_callables_warm_up_in_the_trace_and_without_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model()
    (layer,) = model.layers

    def make(callables: Any, sample: Any) -> Any:
        assert not {**callables[0]._forward_hooks, **callables[0]._forward_pre_hooks}
        callables[0](sample).sin()
        capture(lambda _: callables[0](sample).cos())
        return callables

    monkeypatch.setattr(graphs, "make_graphed_callables", make)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", make)
    with tracelens.record(tmp_path, wait=1, warmup=1, steps=1, model=model, names=r"layers\.0") as r:
        torch.cuda.make_graphed_callables((layer,), torch.ones(2, 4))
        assert layer._forward_hooks
        assert layer._forward_pre_hooks
        for _ in range(3):
            layer(torch.ones(2, 4))
            r.step()
    assert not {**layer._forward_hooks, **layer[0]._forward_hooks}
    assert torch.cuda.make_graphed_callables is make
    found = [name for name in ops(captured(tmp_path)) if name in ("aten::sin", "aten::cos")]
    assert found == ["aten::sin", "aten::cos"]
    inner = [scope for scope in scopes(read(captured(tmp_path))) if scope.name == "layers.0.0"]
    assert len(inner) == 2
    assert r.path is not None
    assert only(scopes(read(r.path)), "layers.0").holds(only(scopes(read(r.path)), "layers.0.0"))


def test_a_bounded_and_scrubbed_trace_of_captures(tmp_path: Path) -> None:
    def many() -> None:
        capture(lambda x: [x.sin() for _ in range(300)])

    r = loop(tmp_path / "scrubbed", many, scrub=True, stack=True)
    assert r.notes == []
    text = json.dumps(read(captured(tmp_path / "scrubbed")))
    assert "python_function" in text
    assert str(Path(__file__).parents[2]) not in text
    small = captured(tmp_path / "scrubbed").stat().st_size // 2
    with pytest.warns(RecordingWarning, match="left out Python frames"):
        r = loop(tmp_path / "cut", many, stack=True, max_bytes=small)
    assert captured(tmp_path / "cut").stat().st_size <= small
    with pytest.warns(RecordingWarning, match=r"rank0.json.gz was not written: larger than max_bytes=4,000"):
        r = loop(tmp_path / "none", many, max_bytes=4000)
    assert r.path is not None
    assert not captured(tmp_path / "none").exists()
    assert sidecar(tmp_path / "none")["captures"] == 0


def test_captures_that_cannot_be_written_are_noted(tmp_path: Path) -> None:
    (tmp_path / "capture_traces").touch()
    with pytest.warns(RecordingWarning, match="was not written: .*File exists"):
        r = loop(tmp_path, capture)
    assert ops(r.path) == ["aten::exp"]
    assert sidecar(tmp_path)["window"]["recorded"] == [3]
    assert sidecar(tmp_path)["captures"] == 0


class Drawn:
    """A profiler of drawn captures, each a graph of its own."""

    graphs = (("aten::mm", "aten::add"), ("aten::bmm",))
    exported = 0

    def __init__(self, **_: object) -> None:
        pass

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def export_chrome_trace(self, path: str) -> None:
        names = self.graphs[Drawn.exported]
        lines = ["launch hipStreamBeginCapture | b"]
        for number, name in enumerate(names):
            shift = " " * 5 * number
            lines.append(f"op {name} |  {shift}----")
            lines.append(f"launch hipLaunchKernel kernel={name[6:]} |  {shift} {'cd'[number]}")
        lines.append("launch hipStreamEndCapture | " + " " * 20 + "e")
        found = events(aligned("\n".join(lines)), start_ns=1_000_000 * (1 + Drawn.exported))
        Drawn.exported += 1
        header = ' {\n  "schemaVersion": 1,\n  "traceEvents": [\n'
        texts = (json.dumps(event, indent=1).replace("\n", "\n   ") for event in found)
        body = ",\n".join(f"  {{{text[1:].rsplit('}', 1)[0].rstrip()}\n  }}" for text in texts)
        Path(path).write_text(f'{header}{body}\n  ], "traceName": "x" }}')


def test_replays_are_read_with_the_captures_of_their_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_KinetoProfile", Drawn)
    monkeypatch.setattr(Drawn, "exported", 0)
    loop(tmp_path, lambda: [capture(), capture()])
    replayed = events(aligned("""
        launch hipGraphLaunch | a   e
        s7 bmm                |   a
        s7 mm                 |       e
        s7 add                |         e
    """))  # fmt: skip
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json.gz").unlink(missing_ok=True)
        write(tmp_path / f"rank{rank}.json", replayed, rank=rank)
    for path in (tmp_path, f"{tmp_path}/*", f"{tmp_path}/**"):
        zero, one = tracelens.load(path).traces
        assert kernel_names(zero, "op_id") == ["aten::bmm", "aten::mm", "aten::add"]
        assert kernel_names(one, "op_id") == ["", "", ""]


def test_two_recorders_take_turns(tmp_path: Path) -> None:
    """The inner one profiles; hooks that another one replaced stay, and do nothing."""
    outer = tracelens.record(tmp_path / "outer", wait=3, warmup=0, steps=1)
    inner = tracelens.record(tmp_path / "inner", wait=3, warmup=0, steps=1)

    def both() -> None:
        with outer, inner:
            capture()
            outer._stop()

    with pytest.warns(RecordingWarning):
        both()
    with Capture():
        assert not recording()
    assert not captured(tmp_path / "outer").exists()
    with pytest.raises(TracelensError):
        outer.__enter__()
