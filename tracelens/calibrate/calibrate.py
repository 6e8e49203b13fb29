"""The benchmark as a whole: what is measured, and the device file that it becomes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import torch
from msgspec.structs import replace

from tracelens.calibrate.kernels import attention_curve, gemm_curves, memory_bandwidths, transfer_bandwidths
from tracelens.calibrate.launches import launch_cost
from tracelens.calibrate.messages import joined_ranks, message_bandwidths, ranks
from tracelens.calibrate.sizes import FULL, TRIAL, GroupedSizes, PlainSizes
from tracelens.calibrate.timing import FailedMeasurement, Stopwatch
from tracelens.devices import AttentionCurve, Bandwidth, Device, GemmCurve, LaunchCost, Measured, match
from tracelens.errors import TracelensError, UnknownName
from tracelens.guard import Failure, guard

PARTS = ("messages", "launches", "memory", "transfers", "attention", "gemms")
"""What can be measured alone."""
_Measurement = GemmCurve | AttentionCurve | Bandwidth | LaunchCost | FailedMeasurement


class Calibration(NamedTuple):
    """A device with what was measured, and what could not be."""

    device: Device  # for `device_toml`
    failures: list[FailedMeasurement]  # measurements that the GPU or this torch cannot do
    # measurements that include the host's launches, since no graph could be captured of them
    eager: dict[str, str]


def calibrate(
    device: str = "cuda",
    progress: Callable[[str], None] | None = None,
    only: Sequence[str] = (),
    base: Device | None = None,
) -> Calibration:
    """Measure the GPU of this process; with torchrun, also messages among its ranks.

    Args:
        device: "cuda"; on "cpu" the same code runs on small sizes.
        progress: told what is measured now.
        only: of PARTS, what to measure; empty: everything.
        base: device whose other measurements are kept; with `only`, by default the bundled one.

    Raises:
        TracelensError: there is no GPU, no such part, or one rank where messages alone are asked for.
    """
    for name in only:
        if name not in PARTS:
            raise UnknownName("part", name, PARTS)
    if device not in ("cuda", "cpu"):
        raise TracelensError(f"--device must be cuda or cpu, not {device}")
    on_gpu = device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        raise TracelensError(
            f"torch {torch.__version__} finds no GPU: run `tracelens calibrate` on a machine with one"
        )
    rank, count, on_node = ranks()
    if set(only) == {"messages"} and count == 1:
        raise TracelensError("messages need ranks: torchrun --nproc-per-node N -m tracelens calibrate ...")
    here = torch.device(f"cuda:{rank % on_node}" if on_gpu else "cpu")
    name, properties, cache_bytes = "CPU", None, 1 << 20
    if on_gpu:
        torch.cuda.set_device(here)
        name, properties = torch.cuda.get_device_name(here), torch.cuda.get_device_properties(here)
    known = match(name)
    base = base or (known if only else None)
    if only and base is None and "gemms" not in only:
        raise TracelensError(f"no device file of {name}: name one with --update, or measure gemms, too")
    if properties:
        reported = int(getattr(properties, "L2_cache_size", 0))
        # ROCm reports the L2 of one die; the Infinity Cache behind it is larger.
        cache_bytes = max(reported, known.cache_bytes if known else 0, 32 << 20)
    watch = Stopwatch(here, cache_bytes, is_quick=not on_gpu)
    sizes = FULL if on_gpu else TRIAL
    before = _state(here)

    # The first rank measures its GPU, all of them their messages.
    def messages() -> Sequence[_Measurement]:
        with joined_ranks(here):
            return message_bandwidths(watch, sizes.message_bytes, sizes.uneven_bytes, sizes.skews)

    parts: dict[str, Callable[[], Sequence[_Measurement]]] = {"messages": messages} if count > 1 else {}
    if rank == 0:
        parts["launches"] = lambda: [launch_cost(watch, sizes.launches)]
        parts["memory"] = lambda: memory_bandwidths(watch, sizes.memory_bytes)
        parts["transfers"] = lambda: transfer_bandwidths(watch, sizes.transfer_bytes)
        parts["attention"] = lambda: [attention_curve(watch, head) for head in sizes.attention]
        gemms: list[PlainSizes | GroupedSizes] = [*sizes.plain, *sizes.grouped]
        for number, gemm in enumerate(gemms, start=1):
            kind = "GEMM" if isinstance(gemm, PlainSizes) else "grouped GEMM"
            parts[f"{kind} {gemm.dtype} {gemm.kind} ({number})"] = partial(gemm_curves, watch, gemm)
    results: list[_Measurement] = []
    for part, measure in parts.items():
        if only and (part if part in PARTS else "gemms") not in only:
            continue
        if progress:
            progress(part)
        outcome = guard(part, measure)
        results += [FailedMeasurement(part, outcome)] if isinstance(outcome, Failure) else outcome

    driver = f"CUDA {torch.version.cuda}" if torch.version.cuda else ""
    if torch.version.hip:
        driver = f"ROCm {torch.version.hip}"
    elif version := getattr(torch._C, "_cuda_getDriverVersion", int)():
        driver += f", driver for CUDA {version // 1000}.{version % 1000 // 10}"
    date = datetime.now(UTC).date().isoformat()
    about = {
        "date": date,
        "gpu": name,
        "torch": torch.__version__,
        "driver": driver,
        "before": before,
        "after": _state(here),
    }
    if base is not None and set(only) == {"messages"}:
        about = {}  # all else is as it was measured then
    if any(isinstance(result, Bandwidth) and result.ranks > 1 for result in results):
        where = f"{count} of {name}, {min(count, on_node)} per node"
        about[f"ranks_{count}"] = f"{date}, {where}, torch {torch.__version__}, {driver}".rstrip(", ")
    measured = Measured(
        gemms=tuple(curve for curve in results if isinstance(curve, GemmCurve)),
        attention=tuple(curve for curve in results if isinstance(curve, AttentionCurve)),
        bandwidths=tuple(curve for curve in results if isinstance(curve, Bandwidth)),
        launch=next((cost for cost in results if isinstance(cost, LaunchCost)), LaunchCost()),
        about={key: text for key, text in about.items() if text},
    )
    failures = [result for result in results if isinstance(result, FailedMeasurement)]
    if base is not None:
        return Calibration(replace(base, measured=base.measured.updated(measured)), failures, watch.eager)
    if known is not None:
        return Calibration(replace(known, measured=measured), failures, watch.eager)

    # A device of measured figures alone.
    source = f"tracelens calibrate on {name}, {date}: the best rate measured, no peak"
    matrix = {
        dtype: max(rate, 1e9)
        for dtype in dict.fromkeys(curve.dtype for curve in measured.gemms)
        if (rate := measured.best_gemm(dtype))
    }
    copy = max((max(b.bytes_per_s) for b in measured.bandwidths if b.name == "copy"), default=1e9)
    unknown = Device(
        name=re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"),
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
        sources={"hbm_bytes_per_s": source, **{f"matrix.{dtype}": source for dtype in matrix}},
        measured=measured,
    )
    return Calibration(unknown, failures, watch.eager)


def _state(here: torch.device) -> str:
    """Clock, power and temperature, as far as torch can read them."""
    if here.type != "cuda":
        return ""
    texts = []
    for reader, unit, scale in (
        ("clock_rate", "MHz", 1),
        ("power_draw", "W", 1000),
        ("temperature", "°C", 1),
    ):
        value = guard(reader, getattr(torch.cuda, reader), here)  # needs a library of the vendor
        if not isinstance(value, Failure):
            texts.append(f"{value / scale:.0f} {unit}")
    return ", ".join(texts)
