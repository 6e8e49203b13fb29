"""Hardware profilers: Nsight Compute and rocprofv3, and what they count while a script makes one call.

Both run the interpreter as `verify` does, isolated. Metric names stand in `NCU_METRICS` and `ROCPROF_PASSES`,
and nowhere else.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from tracelens.devices import match
from tracelens.errors import TracelensError
from tracelens.reproducers.verify.thresholds import CLOCK_NS
from tracelens.reproducers.verify.worker import Ran, TorchMachine, run_together

_LONGEST_OUTPUT = 1 << 24  # bytes: the metrics of an H100 take one million

PLACES = ("/usr/local/cuda/bin", "/opt/rocm/bin")
"""Where profilers are installed that are not on PATH."""


@dataclass(frozen=True, kw_only=True)
class CountedKernel:
    """What was counted of one launch. Shares are 0-1; what is not known is -1, or ""."""

    name: str
    dur_ns: float
    occupancy: float = -1.0  # of the warps that the units can hold; on NVIDIA of those units that have work
    occupancy_limit: float = -1.0  # what registers, shared memory and the size of workgroups allow
    limiter: str = ""  # which of these
    busy: float = -1.0  # of the time, that the mean unit has work
    matrix: float = -1.0  # of the cycles of the matrix units
    l2_hit: float = -1.0
    hbm: float = -1.0  # of the peak; may exceed 1 on AMD, where the Infinity Cache serves a part of it
    hbm_bytes: float = -1.0
    clock_hz: float = -1.0
    boost_hz: float = -1.0
    workgroups: int = -1
    units: int = -1  # SMs or CUs


class NotCounted(TracelensError):
    """A script has no counters; the message says why."""


class Forbidden(NotCounted):
    """No script will have any; the message says what to do."""


class Profiler(ABC):
    """A profiler that is installed."""

    name: ClassVar[str]
    absent: ClassVar[str]  # what to do where it is not installed

    def __init__(self, path: str, machine: TorchMachine) -> None:
        self._path, self._gpu = path, machine.devices[0]

    def kernels(self, command: Sequence[str], timeout_s: float) -> list[CountedKernel]:
        """What a command launches in the call that it marks, as Rounds.count does, in order; at least one.

        Raises:
            NotCounted: nothing was counted.
        """
        try:
            kernels = self._count(command, timeout_s)
        except (csv.Error, KeyError) as error:
            raise NotCounted(f"{self.name} wrote a table that cannot be read: {error}") from None
        timed = [kernel for kernel in kernels if kernel.dur_ns > 0]
        if not timed:
            raise NotCounted(f"{self.name} counted no kernel of the call")
        return timed

    @abstractmethod
    def _count(self, command: Sequence[str], timeout_s: float) -> list[CountedKernel]:
        """As `kernels`, which may be none."""

    def _run(self, command: Sequence[str], timeout_s: float) -> Ran:
        # Without a locale's own separators in numbers.
        ran = run_together(["env", "LC_ALL=C", self._path, *command], timeout_s, _LONGEST_OUTPUT)
        if ran.code is None:
            raise NotCounted(
                f"{self.name} exceeded the time limit of {timeout_s:g} s: raise it with --timeout"
            )
        return ran


def profiler(machine: TorchMachine) -> Profiler:
    """The profiler for the GPU of a machine.

    Raises:
        TracelensError: there is no GPU, or it is not installed.
    """
    if not machine.devices:
        raise TracelensError("--counters needs a GPU: a CPU has none of these hardware counters")
    kind: type[Profiler] = Rocprof if machine.hip else Ncu
    path = shutil.which(kind.name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *PLACES]))
    if path is None:
        raise TracelensError(f"--counters: {kind.name} is not installed; {kind.absent}")
    return kind(os.path.abspath(path), machine)


# ====================
# NVIDIA

NCU_METRICS: Mapping[str, str] = {
    "dur_ns": "gpu__time_duration.sum",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "busy": "sm__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "matrix": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "l2_hit": "lts__t_sector_hit_rate.pct",
    "hbm": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "hbm_bytes": "dram__bytes.sum",
    "clock_hz": "sm__cycles_elapsed.avg.per_second",
}
"""Attribute of CountedKernel to metric; names that GA100, GH100 and GB202 have in common."""

NCU_OF_LAUNCH: Mapping[str, str] = {
    "occupancy_limit": "sm__maximum_warps_per_active_cycle_pct",
    "workgroups": "launch__grid_size",
}
"""The same of what is computed from the launch, so that no GPU lists it among what it counts."""

NCU_LIMITS: Mapping[str, str] = {
    "launch__occupancy_limit_registers": "registers",
    "launch__occupancy_limit_shared_mem": "shared memory",
    "launch__occupancy_limit_warps": "the size of a workgroup",
    "launch__occupancy_limit_blocks": "the number of workgroups",
}
"""Metric, workgroups that fit on a SM, to what allows no more of them."""

_BOOST, _UNITS = "device__attribute_clock_rate", "device__attribute_multiprocessor_count"  # in any raw page
_SCALES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNIT = re.compile(r"(?P<scale>[numkKMGT]?)(?P<base>s|sec|second|hz|Hz|byte|cycle)(?:/(?P<per>[num]?)\w+)?\Z")


class Ncu(Profiler):
    """Nsight Compute, which replays each kernel of the call until all is counted, with cold caches."""

    name = "ncu"
    absent = "Nsight Compute is part of the CUDA toolkit (or apt install nsight-compute)"

    def __init__(self, path: str, machine: TorchMachine) -> None:
        super().__init__(path, machine)
        self._metrics: list[str] | None = None

    def _count(self, command: Sequence[str], timeout_s: float) -> list[CountedKernel]:
        if self._metrics is None:
            self._metrics = self._known(timeout_s)
        with TemporaryDirectory(prefix="tracelens-") as folder:
            log = Path(folder, "counters.csv")
            ran = self._run(
                ["--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log),
                 "--target-processes", "all", "--profile-from-start", "off",
                 # Clocks as they are rather than at the base clock, at which Nsight Compute holds them.
                 "--clock-control", "none", "--cache-control", "all",
                 "--metrics", ",".join(self._metrics), *command], timeout_s,
            )  # fmt: skip
            text = log.read_text(errors="replace") if log.exists() else ""
        kernels = ncu_kernels(text)
        if not kernels or ran.code:
            self._fail(text + ran.output + ran.errors)
            if ran.code:
                raise NotCounted(ran.last_words or f"{self.name} ended with exit status {ran.code}")
        return kernels

    def _known(self, timeout_s: float) -> list[str]:
        """Metrics that this GPU has: asked for one that it has not, Nsight Compute counts nothing."""
        listed = self._run(["--query-metrics"], timeout_s).output.split("\n")
        names = {line.split(" ", 1)[0] for line in listed}
        counted = [metric for metric in NCU_METRICS.values() if metric.split(".")[0] in names]
        # Where there is no list, the first script says why.
        return [*(counted or NCU_METRICS.values()), *NCU_OF_LAUNCH.values(), *NCU_LIMITS]

    def _fail(self, text: str) -> None:
        """Raise NotCounted with the reason that Nsight Compute gives, if it gives one."""
        if "ERR_NVGPUCTRPERM" in text:
            raise Forbidden(
                "ERR_NVGPUCTRPERM: only administrators may read counters: run as root, in a container with "
                "--cap-add SYS_ADMIN, or load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0"
            )
        if errors := re.findall(r"^==ERROR== (.*)", text, re.MULTILINE):
            raise NotCounted(f"{self.name}: {errors[0]}")


def ncu_kernels(text: str) -> list[CountedKernel]:
    """The launches in a raw page as CSV, whose second row has the units; other lines begin with ==."""
    rows = list(csv.reader(line for line in text.splitlines() if not line.startswith("==")))
    begin = next((number for number, row in enumerate(rows) if "Kernel Name" in row), len(rows))
    names, units, *launches = [*rows[begin:], [], []][: max(len(rows) - begin, 2)]
    return [
        _ncu_kernel(dict(zip(names, launch, strict=True)), dict(zip(names, units, strict=False)))
        for launch in launches
        if len(launch) == len(names)
    ]


def _ncu_kernel(values: Mapping[str, str], units: Mapping[str, str]) -> CountedKernel:
    def number(metric: str, scale: float = 1.0) -> float:
        value = _number(values.get(metric, ""))
        return -1.0 if value < 0 else value * scale * _in_base(units.get(metric, ""))

    limits = {what: fit for metric, what in NCU_LIMITS.items() if (fit := number(metric)) >= 0}
    return CountedKernel(
        name=values["Kernel Name"],
        limiter=min(limits, key=lambda what: limits[what]) if limits else "",
        boost_hz=number(_BOOST, 1e3),
        occupancy_limit=number(NCU_OF_LAUNCH["occupancy_limit"]),
        workgroups=int(number(NCU_OF_LAUNCH["workgroups"])),
        units=int(number(_UNITS)),
        **{name: number(metric, 1e9 if name == "dur_ns" else 1) for name, metric in NCU_METRICS.items()},
    )


def _in_base(unit: str) -> float:
    """What a value is multiplied by to be in seconds, Hz, bytes and shares of 1."""
    if unit == "%":
        return 0.01
    known = _UNIT.match(unit)
    return _SCALES[known["scale"]] / _SCALES[known["per"] or ""] if known else 1.0


# ====================
# AMD

ROCPROF_PASSES = (
    ("OccupancyPercent", "GRBM_GUI_ACTIVE"),
    ("MfmaUtil", "FETCH_SIZE"),
    ("L2CacheHit", "WRITE_SIZE"),
)
"""What is counted together, few enough for the counters that there are; each pass runs the script once."""

FENCE = "spin_kernel"
"""In the name of what `torch.cuda._sleep` launches, before and after the call."""


class Rocprof(Profiler):
    """rocprofv3, which counts all launches of a process, in several runs of it."""

    name = "rocprofv3"
    absent = "it is part of ROCm since 6.2 (or apt install rocprofiler-sdk)"

    def _count(self, command: Sequence[str], timeout_s: float) -> list[CountedKernel]:
        passes, agents, why = [], "", ""
        for counters in ROCPROF_PASSES:
            with TemporaryDirectory(prefix="tracelens-") as folder:
                where = ["--output-format", "csv", "-d", folder, "-o", "counters"]
                ran = self._run(["--pmc", *counters, *where, "--", *command], timeout_s)
                tables = {kind: _joined(Path(folder), kind) for kind in ("counter_collection", "agent_info")}
            if ran.code or not tables["counter_collection"]:
                why = why or f"rocprofv3: {ran.last_words or 'it wrote no counters'}"
            else:
                passes.append(tables["counter_collection"])
                agents = tables["agent_info"]
        if not passes:
            raise NotCounted(why)
        return rocprof_kernels(passes, agents, self._gpu)


def _joined(folder: Path, kind: str) -> str:
    """The files of a kind, one below the other."""
    return "\n".join(path.read_text(errors="replace") for path in sorted(folder.rglob(f"*{kind}.csv")))


def rocprof_kernels(passes: Sequence[str], agents: str, gpu: str) -> list[CountedKernel]:
    """The launches of a call that was counted in several runs.

    Args:
        passes: counter_collection.csv of each, with a row for each launch and counter. A run that launched
            other kernels than the first does not count.
        agents: agent_info.csv, which says how many units a GPU has.
        gpu: its name.
    """
    launches, *others = map(_fenced, passes)
    for other in others:
        if [values["Kernel_Name"] for values in other] == [values["Kernel_Name"] for values in launches]:
            launches = [more | values for values, more in zip(launches, other, strict=True)]
    agent = next((row for row in csv.DictReader(agents.splitlines()) if row["Agent_Type"] == "GPU"), {})
    return [_rocprof_kernel(values, agent, gpu) for values in launches]


def _fenced(text: str) -> list[dict[str, str]]:
    """The launches between the last two fences, with a value by column and by counter."""
    launches: dict[float, dict[str, str]] = {}
    for row in csv.DictReader(text.splitlines()):
        launches.setdefault(_number(row["Dispatch_Id"]), row)[row["Counter_Name"]] = row["Counter_Value"]
    ordered = [launches[number] for number in sorted(launches)]
    fences = [number for number, values in enumerate(ordered) if FENCE in values["Kernel_Name"]]
    return ordered[fences[-2] + 1 : fences[-1]] if len(fences) > 1 else []


def _rocprof_kernel(values: Mapping[str, str], agent: Mapping[str, str], gpu: str) -> CountedKernel:
    def number(name: str, scale: float = 1.0) -> float:
        value = _number(values.get(name) or agent.get(name))
        return -1.0 if value < 0 else value * scale

    dur_ns = number("End_Timestamp") - number("Start_Timestamp")
    # FETCH_SIZE and WRITE_SIZE count what passes the L2 cache.
    moved = [number("FETCH_SIZE", 1024), number("WRITE_SIZE", 1024)]
    hbm_bytes = -1.0 if min(moved) < 0 else sum(moved)
    device = match(gpu)
    known = hbm_bytes >= 0 and dur_ns > 0
    cycles = number("GRBM_GUI_ACTIVE") / max(number("Num_Xcc"), 1)  # the sum over dies
    size = number("Workgroup_Size")
    return CountedKernel(
        name=values["Kernel_Name"],
        dur_ns=dur_ns,
        occupancy=number("OccupancyPercent", 0.01),
        matrix=number("MfmaUtil", 0.01),
        l2_hit=number("L2CacheHit", 0.01),
        hbm=hbm_bytes / dur_ns * 1e9 / device.hbm_bytes_per_s if device and known else -1.0,
        hbm_bytes=hbm_bytes,
        clock_hz=1e9 * cycles / dur_ns if cycles > 0 and dur_ns >= CLOCK_NS else -1.0,
        boost_hz=number("Max_Engine_Clk_Fcompute", 1e6),
        workgroups=int(number("Grid_Size") // size) if size > 0 else -1,
        units=int(number("Cu_Count")),
    )


def _number(text: str | None) -> float:
    """A number, with or without separators of thousands; -1 where it is none, or not above 0."""
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return -1.0
    return value if isfinite(value) and value >= 0 else -1.0
