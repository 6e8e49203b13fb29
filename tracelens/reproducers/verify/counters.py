"""What hardware counters say of the calls of scripts, and the cause that they suggest, if they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracelens.reproducers.verify.profilers import CountedKernel
from tracelens.reproducers.verify.thresholds import (
    BUSY,
    CAUSE_SHARE,
    FILLED,
    HBM_BOUND,
    LOW_OCCUPANCY,
    MATRIX_BOUND,
    MATRIX_IDLE,
    MATRIX_USED,
    MEMORY_BUSY,
    NEAR_BOOST,
    RAMP_NS,
)
from tracelens.table import Column, Schema, Table

CAUSES = {
    "HBM-bound": f"HBM at {HBM_BOUND:.0%} of peak or more, only fewer bytes help",
    "matrix-bound": f"matrix units at {MATRIX_BOUND:.0%} of peak or more, only fewer FLOPs help",
    "unfilled": f"fewer than {FILLED:.1f} workgroups per SM or CU, split the work further",
    "uneven": f"enough workgroups, but the mean SM has work under {BUSY:.0%} of the time, as in a last wave",
    "short": f"the same of a kernel under {RAMP_NS / 1e3:.0f} µs, most of which is its start and end",
    "memory waits": f"matrix units used, but under {MATRIX_IDLE:.0%}, with HBM at {MEMORY_BUSY:.0%} or more",
    "low occupancy": f"under {LOW_OCCUPANCY:.0%} of the warps that fit, matrix units unused, HBM under "
        f"{MEMORY_BUSY:.0%}, too few warps to keep it busy",
    "low clock": f"under {NEAR_BOOST:.0%} of the highest clock, by power or temperature",
}  # fmt: skip
"""Each cause: where it holds, and what it means. All but the last exclude each other: the first counts."""

_FIGURES = (
    Column(
        "occupancy",
        "float64",
        "fraction",
        "warps in flight / warps that fit; NVIDIA counts SMs that have work, AMD all CUs",
        absent=-1,
    ),
    Column("matrix", "float64", "fraction", "use of the matrix units (tensor cores, MFMA)", absent=-1),
    Column("l2_hit", "float64", "fraction", "hit rate of the L2 cache", absent=-1),
    Column(
        "hbm",
        "float64",
        "ratio",
        "HBM throughput / peak; AMD counts what passes the L2 cache, also where the Infinity Cache serves it",
        absent=-1,
    ),
    Column("hbm_bytes", "float64", "bytes", "moved to and from HBM, counted likewise", absent=-1),
    Column("clock_mhz", "int64", "", "of the SMs or CUs; AMD: of kernels from 20 µs on", absent=-1),
)

_MEANS = ("occupancy", "busy", "matrix", "l2_hit", "hbm", "clock_hz", "boost_hz")

COUNTERS = Schema(
    "Hardware counters",
    (
        Column("file", "str", doc="the script"),
        Column("roofline", "float64", "efficiency", "as in `scripts`", absent=-1),
        Column("cause", "str", doc="; ".join(f"{name}: {why}" for name, why in CAUSES.items())),
        *_FIGURES,
        Column("kernels_ns", "float64", "ns", "time of the call's kernels while they were counted"),
        Column("kernels", "int64", "count", "of the call"),
        Column("evidence", "str", doc="the figures that suggest the cause", prose=True),
    ),
    doc="One call with cold caches, counted after it was timed; its kernels are averaged by time. A cause is "
        "named where it holds for at least half of that time, and none where counters suggest none.",
)  # fmt: skip
KERNELS = Schema(
    "Counters by kernel",
    (
        Column("file", "str", doc="the script"),
        Column("kernel", "str", doc="name"),
        Column("cause", "str", doc="as in `counters`"),
        Column("dur_ns", "float64", "ns", "while it was counted"),
        *_FIGURES,
        Column("boost_mhz", "int64", "", "highest clock", absent=-1),
        Column(
            "busy", "float64", "fraction", "share of the time that the mean SM has work; NVIDIA", absent=-1
        ),
        Column(
            "occupancy_limit", "float64", "fraction", "occupancy that the launch allows; NVIDIA", absent=-1
        ),
        Column("limiter", "str", doc="what allows no more of it; NVIDIA"),
        Column("workgroups", "int64", "count", "launched", absent=-1),
        Column("units", "int64", "count", "SMs or CUs", absent=-1),
    ),
    doc="In order of launch.",
    detail=True,
)


def counter_tables(counted: Mapping[str, tuple[float, Sequence[CountedKernel]]]) -> dict[str, Table]:
    """The tables of what was counted: by a script's file, share of the roofline and kernels of its call."""
    scripts, launches = [], []
    for file, (roofline, kernels) in counted.items():
        mean = averaged(kernels)
        by_cause = _explained(kernels)
        scripts.append(
            {
                "file": file,
                "roofline": roofline,
                "cause": ", ".join(by_cause),
                **_figures(mean),
                "kernels_ns": mean.dur_ns,
                "kernels": len(kernels),
                "evidence": "; ".join(_evidence(cause, averaged(some)) for cause, some in by_cause.items()),
            }
        )
        launches += [
            {
                "file": file,
                "kernel": kernel.name,
                "cause": ", ".join(causes(kernel)),
                "dur_ns": kernel.dur_ns,
                **_figures(kernel),
                "boost_mhz": _mhz(kernel.boost_hz),
                "busy": min(kernel.busy, 1.0),
                "occupancy_limit": min(kernel.occupancy_limit, 1.0),
                "limiter": kernel.limiter,
                "workgroups": kernel.workgroups,
                "units": kernel.units,
            }
            for kernel in kernels
        ]
    return {"counters": COUNTERS.from_rows(scripts), "counter_kernels": KERNELS.from_rows(launches)}


def causes(kernel: CountedKernel) -> Iterator[str]:
    """The causes that the counters of a kernel suggest; what is not known suggests none."""
    multiplies = kernel.matrix >= MATRIX_USED
    filled = kernel.workgroups >= FILLED * kernel.units
    if kernel.hbm >= HBM_BOUND:
        yield "HBM-bound"
    elif kernel.matrix >= MATRIX_BOUND:
        yield "matrix-bound"
    elif kernel.workgroups > 0 and not filled:
        yield "unfilled"
    elif 0 <= kernel.busy < BUSY and filled:
        yield "uneven" if kernel.dur_ns >= RAMP_NS else "short"
    elif multiplies and kernel.matrix < MATRIX_IDLE and kernel.hbm >= MEMORY_BUSY:
        yield "memory waits"
    # Kernels that multiply hide latency with what each warp has in flight: few warps are no fault of theirs.
    elif (
        0 <= kernel.matrix < MATRIX_USED
        and 0 <= kernel.hbm < MEMORY_BUSY
        and 0 <= kernel.occupancy < LOW_OCCUPANCY
    ):
        yield "low occupancy"
    if 0 < kernel.clock_hz < NEAR_BOOST * kernel.boost_hz:
        yield "low clock"


def averaged(kernels: Sequence[CountedKernel]) -> CountedKernel:
    """The mean by time; duration and bytes are sums, and the launch is that of the longest kernel."""

    def mean(name: str) -> float:
        known = [(getattr(kernel, name), kernel.dur_ns) for kernel in kernels if getattr(kernel, name) >= 0]
        total_ns = sum(dur_ns for _, dur_ns in known)
        return sum(value * dur_ns for value, dur_ns in known) / total_ns if total_ns > 0 else -1.0

    moved = [kernel.hbm_bytes for kernel in kernels]
    means: dict[str, Any] = {name: mean(name) for name in _MEANS}
    return replace(
        max(kernels, key=lambda kernel: kernel.dur_ns),
        dur_ns=sum(kernel.dur_ns for kernel in kernels),
        hbm_bytes=sum(moved) if min(moved) >= 0 else -1.0,
        **means,
    )


def _explained(kernels: Sequence[CountedKernel]) -> dict[str, list[CountedKernel]]:
    """Causes that hold for enough of the time of a call's kernels, and the kernels that they hold for."""
    least_ns = CAUSE_SHARE * sum(kernel.dur_ns for kernel in kernels)
    by_cause = {cause: [kernel for kernel in kernels if cause in causes(kernel)] for cause in CAUSES}
    return {
        cause: some
        for cause, some in by_cause.items()
        if some and sum(kernel.dur_ns for kernel in some) >= least_ns
    }


def _evidence(cause: str, kernel: CountedKernel) -> str:
    """The figures that suggest a cause."""
    match cause:
        case "HBM-bound":
            idle = MATRIX_USED <= kernel.matrix < MATRIX_IDLE
            return f"HBM at {kernel.hbm:.0%} of peak" + (
                f", matrix units at {kernel.matrix:.0%}" if idle else ""
            )
        case "matrix-bound":
            return f"matrix units at {kernel.matrix:.0%} of peak"
        case "unfilled":
            return f"{kernel.workgroups} workgroups for {kernel.units} units"
        case "uneven":
            return f"the mean SM has work {kernel.busy:.0%} of the time, {kernel.workgroups} workgroups"
        case "short":
            return (
                f"{kernel.dur_ns / 1e3:.1f} µs, in which the mean SM has work {kernel.busy:.0%} of the time"
            )
        case "memory waits":
            return f"matrix units at {kernel.matrix:.0%} of peak, HBM at {kernel.hbm:.0%}"
        case "low occupancy":
            limited = 0 <= kernel.occupancy_limit < LOW_OCCUPANCY and kernel.limiter
            why = f", limited by {kernel.limiter}" if limited else ""
            return f"{kernel.occupancy:.0%} of the warps that fit{why}, HBM at {kernel.hbm:.0%} of peak"
        case _:
            return f"{kernel.clock_hz / 1e9:.2f} of {kernel.boost_hz / 1e9:.2f} GHz"


def _figures(kernel: CountedKernel) -> dict[str, float]:
    """The columns of _FIGURES."""
    shares = {name: min(getattr(kernel, name), 1.0) for name in ("occupancy", "matrix", "l2_hit")}
    return {**shares, "hbm": kernel.hbm, "hbm_bytes": kernel.hbm_bytes, "clock_mhz": _mhz(kernel.clock_hz)}


def _mhz(clock_hz: float) -> int:
    return round(clock_hz / 1e6) if clock_hz > 0 else -1
