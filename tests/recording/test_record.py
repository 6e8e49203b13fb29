"""`tracelens.record` around a loop on one CPU."""

from __future__ import annotations

import gc
import json
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch
from torch import Tensor, nn

import tracelens
from tests.recording.traces import names, only, read, scopes
from tracelens.errors import TracelensError
from tracelens.recording.scopes import recording
from tracelens.recording.window import RecordingWarning

# torch warns of its own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:torch.*")


def train_step() -> None:
    x = torch.ones(4, 4, requires_grad=True)
    y = torch.ones(4, 4, requires_grad=True)
    (x @ y).sum().backward()


def loop(folder: Path, count: int, work: Callable[[], Any] = train_step, **options: Any) -> Any:
    """Record a loop of so many steps; the recorder."""
    with tracelens.record(folder, **({"wait": 1, "warmup": 1, "steps": 2} | options)) as r:
        for _ in range(count):
            work()
            r.step()
    return r


def marks(path: Path) -> list[str]:
    return [name for name in names(scopes(read(path))) if name.startswith("ProfilerStep#")]


def sidecar(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def test_the_window_is_recorded_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "traces"
    r = loop(folder, 6)
    assert sorted(path.name for path in folder.iterdir()) == ["rank0.json.gz", "run.json"]
    assert r.path == folder / "rank0.json.gz"
    assert r.notes == []
    assert marks(r.path) == ["ProfilerStep#2", "ProfilerStep#3"]
    trace = read(r.path)
    assert sum(event["name"] == "aten::mm" for event in trace["traceEvents"]) == 2 * 3
    products = [event["args"] for event in trace["traceEvents"] if event["name"] == "aten::mm"]
    assert products[0]["Input Dims"] == [[4, 4], [4, 4]]
    assert "python_function" not in {event.get("cat") for event in trace["traceEvents"]}


def test_the_trace_is_there_when_the_window_ends(tmp_path: Path) -> None:
    with tracelens.record(tmp_path, wait=0, warmup=1, steps=1) as r:
        for step in range(4):
            assert recording() == (step == 1)
            assert (r.path is None) == (step < 2)
            train_step()
            r.step()
            assert (tmp_path / "run.json").exists() == (step >= 1)
        assert r.path is not None
        written = r.path.stat().st_mtime_ns
    assert r.path.stat().st_mtime_ns == written


def test_from_the_first_step_on(tmp_path: Path) -> None:
    r = loop(tmp_path, 2, wait=0, warmup=0, steps=2)
    assert marks(r.path) == ["ProfilerStep#0", "ProfilerStep#1"]


def test_what_the_trace_says_of_itself(tmp_path: Path) -> None:
    config = {"layers": 4, "dtype": torch.bfloat16, "rate": float("inf"), "text": 'a "b"\n\\c'}
    r = loop(tmp_path, 4, config=config, mesh={"ep": 8})
    trace = read(r.path)
    assert trace["distributedInfo"] == {"backend": "none", "rank": 0, "world_size": 1}
    told = trace["tracelens"]
    assert told["config"] == {"layers": 4, "dtype": "torch.bfloat16", "rate": "inf", "text": config["text"]}
    assert (told["mesh"], told["steps"], told["version"]) == ({"ep": 8}, [2, 4], tracelens.__version__)


def test_run_json(tmp_path: Path) -> None:
    r = loop(
        tmp_path,
        4,
        config={"layers": 4},
        mesh={"ep": 8},
        stack=True,
        memory=True,
        max_bytes=10**9,
        pace_steps=0,
    )
    found = sidecar(tmp_path)
    assert set(found.pop("software")) >= {"python", "torch"}
    assert found.pop("device")["count"] == torch.cuda.device_count()
    assert found.pop("recorded").endswith("+00:00")
    trace, host = read(r.path), found.pop("host")
    # Not every version of torch writes the name itself.
    assert host == trace["tracelens"]["host"] == trace.get("host_name", host)
    assert found == {
        "schema": "tracelens.run/1",
        "tracelens": tracelens.__version__,
        "world_size": 1,
        "rank_source": "one process",
        "ranks_per_host": 1,
        "window": {"wait": 1, "warmup": 1, "steps": 2, "recorded": [2, 3]},
        "options": {
            "shapes": True, "stack": True, "memory": True, "scopes": [], "max_bytes": 10**9, "scrub": False,
            "ranks": "all", "pace_steps": 0, "values": True,
        },
        "pace": None,
        "captures": 0,
        "files": {"0": "rank0.json.gz"},
        "config": {"layers": 4},
        "mesh": {"ep": 8},
        "facts": {},
        "notes": [],
    }  # fmt: skip


def test_facts_found_on_the_way_and_later(tmp_path: Path) -> None:
    with tracelens.record(tmp_path, wait=0, warmup=1, steps=1) as r:
        for step in range(3):
            r.facts[f"loss {step}"] = step / 2
            train_step()
            r.step()
            assert sidecar(tmp_path)["facts"] == r.facts if step == 1 else True
    assert sidecar(tmp_path)["facts"] == {"loss 0": 0.0, "loss 1": 0.5, "loss 2": 1.0}


@pytest.mark.parametrize("stack", [False, True])
def test_garbage_collections_are_recorded(tmp_path: Path, stack: bool) -> None:
    before = len(gc.callbacks)
    r = loop(tmp_path, 4, gc.collect, stack=stack)
    found = [event for event in read(r.path)["traceEvents"] if event["name"].startswith("Python GC")]
    assert len(found) == 2
    assert {event["cat"] for event in found} == {"python_function" if stack else "user_annotation"}
    assert len(gc.callbacks) == before


def test_threads_of_the_program_are_recorded(tmp_path: Path) -> None:
    def work() -> None:
        thread = threading.Thread(target=lambda: torch.ones(3).cos())
        thread.start()
        thread.join()

    events = read(loop(tmp_path, 4, work).path)["traceEvents"]
    assert sum(event["name"] == "aten::cos" for event in events) == 2


def test_frames_and_allocations_when_asked_for(tmp_path: Path) -> None:
    r = loop(tmp_path, 4, stack=True, memory=True)
    categories = {event.get("cat") for event in read(r.path)["traceEvents"]}
    assert {"python_function", "cpu_instant_event"} <= categories


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (0, "the loop ended after 0 steps: nothing recorded, the window is steps 2 to 3; "
            "run 4 steps, or pass a smaller wait (1), warmup (1) or steps (2)"),
        (1, "the loop ended after 1 step: nothing recorded"),
        (2, "the loop ended after 2 steps: nothing recorded"),
        (3, "the loop ended after 3 steps: 1 of 2 steps recorded, from step 2 on"),
    ],
)  # fmt: skip
def test_a_loop_that_ends_early(tmp_path: Path, steps: int, message: str) -> None:
    with pytest.warns(RecordingWarning) as caught:
        r = loop(tmp_path, steps)
    (warning,) = caught
    assert str(warning.message).startswith(message)
    assert warning.filename == __file__
    assert r.notes == [str(warning.message)]
    left = sorted(path.name for path in tmp_path.iterdir())
    assert not recording()
    if steps < 3:
        assert (left, r.path) == ([], None)
    else:
        assert left == ["rank0.json.gz", "run.json"]
        assert marks(r.path) == ["ProfilerStep#2"]
        assert sidecar(tmp_path)["window"]["recorded"] == [2]
        assert sidecar(tmp_path)["notes"] == r.notes


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError("loss is nan"), Interrupted(), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [0, 1, 2, 3, 5])
def test_an_exception_passes_through(tmp_path: Path, at: int, error: BaseException) -> None:
    """With warnings as errors too; work of the step that it ended stays, as no step."""

    def run() -> Any:
        with (
            warnings.catch_warnings(action="error"),
            tracelens.record(tmp_path, wait=1, warmup=1, steps=2) as r,
        ):
            recorders.append(r)
            for step in range(6):
                train_step()
                if step == at:
                    raise error
                r.step()

    recorders: list[Any] = []
    with pytest.raises(type(error)) as caught:
        run()
    assert caught.value is error
    assert caught.value.__cause__ is caught.value.__context__ is None
    (r,) = recorders
    assert not recording()
    assert len(r.notes) == (at < 5)
    if at < 3:
        assert r.path is None
    else:
        assert marks(r.path) == ["ProfilerStep#2", "ProfilerStep#3"][: at - 2]
    if at == 3:
        events = read(r.path)["traceEvents"]
        assert sum(event["name"] == "aten::mm" for event in events) == 2 * 3


def test_another_recording_after_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert marks(loop(tmp_path / name, 4).path) == ["ProfilerStep#2", "ProfilerStep#3"]


@pytest.mark.parametrize("name", ["rank1.json.gz", "rank0.json.zst", "rank3.json"])
def test_ranks_of_another_run_in_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    """A report would take them for ranks of this run; what this recording writes anew does not matter."""
    loop(tmp_path, 4)
    loop(tmp_path, 4)
    (tmp_path / name).write_text("{}")
    with pytest.raises(TracelensError, match=rf"holds {name} of another run"):
        tracelens.record(tmp_path).__enter__()
    assert (tmp_path / name).read_text() == "{}"


def test_a_file_of_bounded_size(tmp_path: Path) -> None:
    whole = loop(tmp_path / "whole", 4, lambda: [train_step() for _ in range(20)], stack=True)
    bare = loop(tmp_path / "bare", 4, lambda: [train_step() for _ in range(20)])
    most = (whole.path.stat().st_size + bare.path.stat().st_size) // 2
    with pytest.warns(RecordingWarning, match="left out Python frames and allocations to stay under"):
        r = loop(tmp_path / "cut", 4, lambda: [train_step() for _ in range(20)], stack=True, max_bytes=most)
    assert r.path.stat().st_size <= most
    trace = read(r.path)
    assert trace["tracelens_cut"]["left_out"] == ["Python frames and allocations"]
    assert len(marks(r.path)) == 2
    assert sidecar(tmp_path / "cut")["notes"] == r.notes
    tracelens.load(tmp_path / "cut")


def test_too_large_a_step_is_not_written_and_the_loop_goes_on(tmp_path: Path) -> None:
    with pytest.warns(RecordingWarning, match=r"rank 0: rank0\.json\.gz was not written: one step .*=100;"):
        r = loop(tmp_path, 6, max_bytes=100)
    assert r.path is None
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert sidecar(tmp_path)["window"]["recorded"] == []
    assert sidecar(tmp_path)["notes"] == r.notes


def test_a_folder_that_vanishes_is_told_and_the_loop_goes_on(tmp_path: Path) -> None:
    folder, finished = tmp_path / "traces", []

    def work() -> None:
        if folder.exists():
            folder.rmdir()
        finished.append(train_step())

    with pytest.warns(RecordingWarning) as caught:
        loop(folder, 6, work)
    assert len(finished) == 6
    assert [str(warning.message).split(":")[0] for warning in caught] == [
        "rank 0",
        f"{folder / 'run.json'} was not written",
    ]


def test_a_path_in_the_config_is_told_as_the_loop_begins(tmp_path: Path) -> None:
    config = {"data": Path("/data/tokens.bin")}
    with pytest.raises(TracelensError, match="config or mesh: still contains a path of this machine"):
        tracelens.record(tmp_path, config=config, scrub=True).__enter__()
    assert read(loop(tmp_path, 4, config=config).path)["tracelens"]["config"] == {"data": "/data/tokens.bin"}


def test_scrubbed(tmp_path: Path) -> None:
    r = loop(tmp_path, 4, stack=True, scrub=True)
    trace = read(r.path)
    assert (trace.get("host_name", "host"), trace["traceName"]) == ("host", "rank0.json.gz")
    assert trace["tracelens"]["host"] is sidecar(tmp_path)["host"] is None
    assert str(Path(__file__).parents[2]) not in json.dumps(trace)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps must be a whole number, 1 or more, not 0"),
        ({"max_bytes": 0}, "max_bytes must be a number of bytes or None, not 0"),
        ({"max_bytes": "1G"}, "max_bytes must be a number of bytes or None, not '1G'"),
        ({"names": "mlp"}, "names selects modules of a model: pass model too"),
    ],
)
def test_wrong_arguments_are_told_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TracelensError) as caught:
        tracelens.record("traces", **arguments)
    assert str(caught.value) == message


def test_what_is_wrong_as_the_loop_begins(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TracelensError, match="cannot write a trace here"):
        tracelens.record(tmp_path / "file").__enter__()
    with pytest.raises(TracelensError, match="ranks contains 1, but the job has ranks 0 to 0"):
        tracelens.record(tmp_path, ranks=[1]).__enter__()
    with pytest.raises(TracelensError, match="no module of Linear looks like a transformer block"):
        tracelens.record(tmp_path, model=nn.Linear(1, 1)).__enter__()
    with pytest.raises(TracelensError, match="outside `with"):
        tracelens.record(tmp_path).step()
    r = loop(tmp_path, 4)
    with pytest.raises(TracelensError, match="records one loop"):
        r.__enter__()
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        pytest.raises(TracelensError, match="another torch profiler is running"),
    ):
        tracelens.record(tmp_path).__enter__()


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(4, 8, 16)), nn.Parameter(torch.randn(4, 16, 8))

    def forward(self, x: Tensor, expert: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for number in range(4):
            chosen = (expert == number).nonzero().flatten()
            y = y.index_add(0, chosen, (x[chosen] @ self.up[number]).relu() @ self.down[number])
        return y


class MoE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts, self.shared_experts = nn.Linear(8, 4), Experts(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        weight, expert = self.gate(x).softmax(-1).max(-1)
        routed: Tensor = self.experts(x, expert) * weight[:, None]
        return routed + self.shared_experts(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = nn.Linear(8, 8), MoE()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        y: Tensor = x + self.mlp(x)
        return y


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, id: Tensor) -> Tensor:
        x = self.embedding(id)
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.head(x)
        return y


def test_a_users_loop_from_recording_to_loading(tmp_path: Path) -> None:
    """A small MoE model, recorded as the documentation says, and read back with its steps and scopes."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with tracelens.record(tmp_path, wait=1, warmup=1, steps=2, model=model, config={"layers": 2}) as r:
        for _ in range(6):
            with r.span("data"):
                id = torch.randint(16, (32,))
            with r.region("loss") as region:
                loss = region.leave(nn.functional.cross_entropy(region.enter(model(id)), id))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            r.step()
    assert r.notes == []
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())

    parts = ("", ".attention", ".mlp", ".mlp.gate", ".mlp.experts", ".mlp.shared_experts")
    expected = [f"layers.{layer}{part}" for layer in (0, 1) for part in parts]
    assert sidecar(tmp_path)["options"]["scopes"] == expected
    events = tracelens.load(tmp_path).traces[0].events
    found = events[events["kind"] == "annotation"]["name"].astype(str)
    count = found.value_counts().to_dict()
    for name in ("ProfilerStep#2", "ProfilerStep#3"):
        assert count.pop(name) == 1
    for name in ("data", *(f"{name}{suffix}" for name in [*expected, "loss"] for suffix in ("", ".B"))):
        assert count.pop(name) == 2, name
    assert {name for name in count if not name.startswith(("Optimizer.", "Python GC"))} == set()

    (first, second) = (scope for scope in scopes(read(r.path)) if scope.name.startswith("ProfilerStep#"))
    inside = [scope for scope in scopes(read(r.path)) if first.holds(scope)]
    assert only(inside, "layers.1.mlp").holds(only(inside, "layers.1.mlp.experts"))
    assert only(inside, "layers.1.mlp.B").holds(only(inside, "layers.1.mlp.gate.B"))
    assert first.beside(second)
