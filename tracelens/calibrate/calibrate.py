"""The benchmark as a whole: what is measured, and the device file that it becomes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import torch

from tracelens.calibrate.bandwidth import link_bandwidths, memory_bandwidths, ranks, transfer_bandwidths
from tracelens.calibrate.gemms import FailedMeasurement, GemmBench, attention_curve
from tracelens.calibrate.launches import launch_cost
from tracelens.calibrate.sizes import FULL, TRIAL, BenchmarkSizes, GroupedSizes, PlainSizes
from tracelens.calibrate.timing import Stopwatch
from tracelens.devices import AttentionCurve, Bandwidth, Device, GemmCurve, LaunchCost, Measured, match
from tracelens.errors import TracelensError
from tracelens.guard import Failure, guard

Progress = Callable[[str], None]


class Calibration(NamedTuple):
    """A device with what was measured, and what could not be."""

    device: Device  # for `device_toml`
    failures: list[FailedMeasurement]  # measurements that the GPU or this torch cannot do
    # measurements that include the host's launches, since no graph could be captured of them
    eager: dict[str, str]


def calibrate(device: str = "cuda", progress: Progress | None = None) -> Calibration:
    """Measure the GPU of this process; with torchrun, also messages among its ranks.

    On "cpu" the same code runs on small sizes.

    Raises:
        TracelensError: there is no GPU.
    """
    if device not in ("cuda", "cpu"):
        raise TracelensError(f"--device must be cuda or cpu, not {device}")
    on_gpu = device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        raise TracelensError(
            f"torch {torch.__version__} finds no GPU: run `tracelens calibrate` on a machine with one"
        )
    rank, count, on_node = ranks()
    here = torch.device(f"cuda:{rank % on_node}" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(here)
    name, cache_bytes = _name(here), _cache_bytes(here)
    watch = Stopwatch(here, cache_bytes, is_quick=not on_gpu)
    sizes = FULL if on_gpu else TRIAL
    say = progress or (lambda _text: None)
    if count > 1:
        _join(here)
    began = _state(here)
    results = _measure(watch, sizes, say, rank == 0, count)
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": name,
        "torch": torch.__version__,
        "driver": _driver(),
        "before": began,
        "after": _state(here),
    }
    measured = replace(results.measured(), about={key: text for key, text in about.items() if text})
    return Calibration(_device(name, here, cache_bytes, measured), results.failures, watch.eager)


class _Results(NamedTuple):
    """What the parts of the benchmark add to."""

    gemms: list[GemmCurve]
    heads: list[AttentionCurve]
    bandwidths: list[Bandwidth]
    launches: list[LaunchCost]
    failures: list[FailedMeasurement]

    def measured(self) -> Measured:
        launch = self.launches[0] if self.launches else LaunchCost()
        return Measured(tuple(self.gemms), tuple(self.heads), tuple(self.bandwidths), launch)


def _measure(watch: Stopwatch, sizes: BenchmarkSizes, say: Progress, is_first: bool, count: int) -> _Results:
    """Everything; the first rank measures its GPU, all of them the links."""
    results = _Results([], [], [], [], [])
    parts: dict[str, Callable[[], None]] = {}
    if count > 1:
        parts["messages"] = lambda: _links(watch, sizes, results)
    if is_first:
        parts["launches"] = lambda: results.launches.append(launch_cost(watch, sizes.launches))
        parts["memory"] = lambda: results.bandwidths.extend(memory_bandwidths(watch, sizes.memory_bytes))
        parts["transfers"] = lambda: results.bandwidths.extend(
            transfer_bandwidths(watch, sizes.transfer_bytes)
        )
        parts["attention"] = lambda: _attention(watch, sizes, results)
        gemms: list[PlainSizes | GroupedSizes] = [*sizes.plain, *sizes.grouped]
        for number, gemm in enumerate(gemms):
            name = f"{'GEMM' if isinstance(gemm, PlainSizes) else 'grouped GEMM'} {gemm.dtype} {gemm.kind}"
            parts[f"{name} ({number + 1})"] = partial(_gemms, watch, gemm, results)
    for name, part in parts.items():
        say(name)
        failure = guard(name, part)
        if isinstance(failure, Failure):
            results.failures.append(FailedMeasurement(name, failure))
    return results


def _links(watch: Stopwatch, sizes: BenchmarkSizes, results: _Results) -> None:
    curves, failures = link_bandwidths(watch, sizes.message_bytes)
    results.bandwidths.extend(curves)
    results.failures.extend(failures)


def _attention(watch: Stopwatch, sizes: BenchmarkSizes, results: _Results) -> None:
    for head in sizes.attention:
        curve = attention_curve(watch, head)
        if isinstance(curve, FailedMeasurement):
            results.failures.append(curve)
        else:
            results.heads.append(curve)


def _gemms(watch: Stopwatch, sizes: PlainSizes | GroupedSizes, results: _Results) -> None:
    bench = GemmBench(watch)
    results.gemms.extend(bench.plain(sizes) if isinstance(sizes, PlainSizes) else bench.grouped(sizes))
    results.failures.extend(bench.failures)


def _join(here: torch.device) -> None:
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("nccl" if here.type == "cuda" else "gloo")


def _name(here: torch.device) -> str:
    return torch.cuda.get_device_name(here) if here.type == "cuda" else "CPU"


def _cache_bytes(here: torch.device) -> int:
    if here.type != "cuda":
        return 1 << 20
    reported = int(getattr(torch.cuda.get_device_properties(here), "L2_cache_size", 0))
    known = match(_name(here))
    # ROCm reports the L2 of one die; the Infinity Cache behind it is larger.
    return max(reported, known.cache_bytes if known else 0, 32 << 20)


def _driver() -> str:
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    version = getattr(torch._C, "_cuda_getDriverVersion", int)()
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else ""
    return f"{cuda}, driver for CUDA {version // 1000}.{version % 1000 // 10}" if version else cuda


def _state(here: torch.device) -> str:
    """Clock, power and temperature, as far as torch can read them."""
    if here.type != "cuda":
        return ""
    texts = []
    readers = (("clock_rate", "MHz", 1), ("power_draw", "W", 1000), ("temperature", "°C", 1))
    for reader, unit, scale in readers:
        value = guard(reader, getattr(torch.cuda, reader), here)  # needs a library of the vendor
        if isinstance(value, Failure):
            continue
        texts.append(f"{value / scale:.0f} {unit}")
    return ", ".join(texts)


def _device(name: str, here: torch.device, cache_bytes: int, measured: Measured) -> Device:
    """The bundled device of this name, or one of measured figures alone."""
    known = match(name)
    if known is not None:
        return replace(known, measured=measured)
    source = f"tracelens calibrate on {name}, {measured.about['date']}: the best rate measured, no peak"
    matrix = {
        dtype: max(rate, 1e9)
        for dtype in dict.fromkeys(curve.dtype for curve in measured.gemms)
        if (rate := measured.best_gemm(dtype))
    }
    copy = max((max(b.bytes_per_s) for b in measured.bandwidths if b.name == "copy"), default=1e9)
    properties = torch.cuda.get_device_properties(here) if here.type == "cuda" else None
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    figures = {"hbm_bytes_per_s": source, **{f"matrix.{dtype}": source for dtype in matrix}}
    return Device(
        name=slug,
        title=name,
        vendor="AMD" if torch.version.hip else "NVIDIA" if properties else "",
        aliases=(name,),
        units=properties.multi_processor_count if properties else 0,
        hbm_bytes=properties.total_memory if properties else 0,
        hbm_bytes_per_s=max(copy, 1e9),
        cache_bytes=cache_bytes,
        matrix=matrix,
        vector={},
        maf={},
        gpu_link_bytes_per_s=0.0,
        host_link_bytes_per_s=0.0,
        sources=figures,
        measured=measured,
    )
