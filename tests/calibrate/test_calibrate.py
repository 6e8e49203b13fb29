"""The benchmark on small sizes of a CPU, and the stopwatch of GPUs with clocks that tests set."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tracelens.calibrate import calibrate  # noqa: E402
from tracelens.calibrate.kernels import gemm_curves  # noqa: E402
from tracelens.calibrate.sizes import FULL, TRIAL, GroupedSizes, PlainSizes  # noqa: E402
from tracelens.calibrate.timing import Stopwatch  # noqa: E402
from tracelens.cli import run  # noqa: E402
from tracelens.devices import GemmCurve, read_device  # noqa: E402
from tracelens.devices.spec import is_grid  # noqa: E402
from tracelens.errors import TracelensError  # noqa: E402

CPU = Stopwatch(torch.device("cpu"), 1 << 20, is_quick=True)


def test_the_command_writes_a_device_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cpu.toml"
    assert run(["calibrate", "--device", "cpu", "-o", str(path)]) == 0
    assert f"wrote {path}" in capfd.readouterr().err
    device = read_device(path)
    measured = device.measured
    assert device.name == "cpu"
    assert {curve.dtype for curve in measured.gemms} == {"bf16", "fp32"} == set(device.matrix)
    assert device.matrix["bf16"] == max(1e9, measured.best_gemm("bf16") or 0)
    sizes = {(c.k, c.n, c.matrices) for c in measured.gemms if c.kind == "output"}
    assert sizes >= {(k, n, 1) for k in (32, 64) for n in (32, 64)} | {(32, 32, 2), (32, 32, 4)}
    assert [head.seq for head in measured.attention] == [(32, 64)]
    names = ["copy", "triad", "concat", "scatter", "to_device", "to_host"]
    assert [curve.name for curve in measured.bandwidths] == names
    assert measured.launch.forward_ns > measured.launch.op_ns > 0 < measured.launch.backward_ns
    assert measured.about["torch"] == torch.__version__


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "-o", str(tmp_path / "x.toml")]) == 2
    err = capfd.readouterr().err
    assert "finds no GPU: run `tracelens calibrate` on a machine with one" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "x.toml").exists()


def test_another_device_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TracelensError, match="--device must be cuda or cpu, not tpu"):
        calibrate("tpu")


def test_sizes_are_grids_that_a_device_file_takes() -> None:
    for sizes in (FULL, TRIAL):
        for gemm in (*sizes.plain, *sizes.grouped):
            assert list(gemm.rows) == sorted(gemm.rows)
            counts = gemm.matrices if isinstance(gemm, GroupedSizes) else (1,)
            assert is_grid((k, n, count) for k in gemm.k for n in gemm.n for count in counts)


def test_rates_are_flops_over_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stopwatch, "seconds", lambda *_args, **_more: 1e-6)
    curve, *_ = gemm_curves(CPU, PlainSizes("bf16", (32,), (64,), (16, 32)))
    assert isinstance(curve, GemmCurve)
    assert curve.flops_per_s == pytest.approx((2 * 16 * 32 * 64 / 1e-6, 2 * 32 * 32 * 64 / 1e-6))
    grouped, *_ = gemm_curves(CPU, GroupedSizes("bf16", (32,), (64,), (4,), (16,)))
    assert isinstance(grouped, GemmCurve)
    assert grouped.flops_per_s == pytest.approx((4 * 2 * 16 * 32 * 64 / 1e-6,))


def test_what_the_device_cannot_do_leaves_no_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object, **_more: object) -> None:
        raise RuntimeError("not on this device\nwith details")

    monkeypatch.setattr(torch, "_scaled_mm", broken)
    curves = gemm_curves(CPU, PlainSizes("fp8", (32,), (64,), (16, 32)))
    assert curves == [("GEMM fp8 output", "not on this device")]


def test_a_bug_in_a_part_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(sys.modules["tracelens.calibrate.calibrate"], "memory_bandwidths", broken)
    result = calibrate("cpu")
    assert [failure.name for failure in result.failures] == ["memory"]
    assert result.device.measured.gemms


class Clock:
    """Of a GPU: only what it does takes time."""

    seconds = 0.0

    @classmethod
    def spend(cls, seconds: float) -> None:
        cls.seconds += seconds


class FakeEvent:
    """An event of a GPU that is as fast as the host."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.seconds = 0.0

    def record(self) -> None:
        self.seconds = Clock.seconds

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.seconds - self.seconds) * 1e3


class FakeGraph:
    """Replays what was called while it was captured."""

    def replay(self) -> None:
        Clock.spend(0.002)


class FakeGpu:
    type = "cuda"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    @contextmanager
    def graph(_graph: FakeGraph) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device=None: None)
    return Stopwatch(FakeGpu(), cache_bytes=1 << 20)  # type: ignore[arg-type]


def test_calls_of_a_graph_share_its_time(gpu: Stopwatch) -> None:
    calls = [lambda: Clock.spend(1e-5)] * 4
    # Twelve calls to a graph, which takes two milliseconds.
    assert gpu.seconds(calls, "x") == pytest.approx(0.002 / 12)
    assert gpu.eager == {}


def test_calls_that_cannot_be_captured_run_one_by_one(
    gpu: Stopwatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_graph: FakeGraph) -> None:
        raise RuntimeError("not capturable\nwith details")

    monkeypatch.setattr(torch.cuda, "graph", broken)
    assert gpu.seconds([lambda: Clock.spend(0.001)], "x") == pytest.approx(0.001)
    assert gpu.eager == {"x": "not capturable"}


def test_buffers_exceed_the_cache() -> None:
    watch = Stopwatch(torch.device("cpu"), 1 << 20)
    assert [watch.buffers(size) for size in (1, 1 << 18, 1 << 20, 1 << 30)] == [64, 8, 2, 1]
