"""Assumptions of a step time beyond the device's figures (nodes, network, efficiency), and kernel rates.

By size, a GEMM or attention kernel takes its FLOPs at the rate that the device achieves for its shape, and
other kernels their bytes at the achieved memory bandwidth; at the roofline, all GEMMs have one rate.
Nothing is faster than its bytes at the data-sheet bandwidth.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import inf, isfinite
from typing import Literal, NamedTuple

from tracelens.devices import (
    COLLECTIVES,
    Device,
    Measured,
    attention_rate,
    gemm_rate,
    launch_cost,
    typical_memory_rate,
)
from tracelens.dtypes import known_dtype
from tracelens.errors import TracelensError
from tracelens.planner.block import AttentionPass, Load, Traffic
from tracelens.planner.collectives import LinkRates, measured_time
from tracelens.planner.config import Config, at_least_one, one_of
from tracelens.table import Column, Schema, Table

RateName = Literal["by-size", "achievable", "peak"]
KernelsName = Literal["eager", "fused"]
LaunchesName = Literal["eager", "none"]
LinksName = Literal["auto", "mesh", "switch"]
MessagesName = Literal["by-size", "bandwidth"]
OverlapName = Literal["toggle", "off", "1f1b"]
TrainerName = Literal["none", "primus"]


class TrainerCost(NamedTuple):
    """What a training framework costs beyond its kernels."""

    efficiency: float  # share of the rates of kernels that it reaches
    launch_ns: float  # host time per kernel
    source: str


TRAINERS: dict[TrainerName, TrainerCost] = {
    "none": TrainerCost(1.0, 0.0, "kernels at their rates, launches as in the reference workload"),
    "primus": TrainerCost(
        1.0,
        69_000,
        "fitted by least squares on figure 5 of AMD's MoE training guide, and on nothing else "
        "(tracelens project published)",
    ),
}
HELP = {
    "matrix": "kernel rates: by-size (measured or modeled for each shape), achievable (for all GEMMs as "
    "published by the vendor, else the peak), or peak",
    "matrix_efficiency": "share of that rate that GEMMs reach",
    "hbm_efficiency": "share of the memory bandwidth that kernels reach",
    "kernels": "memory traffic by size: eager, of torch's ops one by one where no toggle fuses them; fused: "
    "each tensor once",
    "launches": "eager: the host has to launch each kernel of a step; none: no such limit",
    "launch_ns": "host time per kernel, with the ops and Python around it; 0: as measured with the device",
    "trainer": "training framework, whose share of kernel rates and host time per launch are fitted: "
    "none or primus",
    "node": "GPUs per node, unless the layout sets it",
    "links": "between GPUs of a node: all-to-all links (mesh) or a switch; auto: by vendor",
    "messages": "inside a node: by-size (as measured on the device, where they were, matrix is by-size and "
    "link_efficiency is 1), or bandwidth (link rate and latency)",
    "link_efficiency": "share of the link rate that messages reach",
    "nic_bytes_per_s": "network bandwidth per GPU, one direction",
    "nic_efficiency": "share of the network bandwidth that messages reach",
    "nic_messages_per_s": "messages that the NIC of a GPU sends per second; 0: no limit",
    "link_latency_ns": "latency of a message inside a node",
    "nic_latency_ns": "latency of a message between nodes",
    "imbalance": "tokens of the fullest rank's experts / mean over ranks",
    "jitter": "spread of the ranks' computation between all-to-alls: standard deviation / mean; all "
    "wait for the last of the group",
    "exchange_overlap": "all-to-alls of a micro-batch overlap with the computation of another: 1f1b, off, "
    "or as the toggle overlap_exchange (toggle)",
    "hide_gradients": "gradient reduction and parameter all-gather are fully overlapped",
    "hide_p2p": "messages between pipeline stages are fully overlapped",
}
SOURCES = {
    "matrix": "tracelens calibrate on the device; else GEMMs of AMD GPUs by macro tiles, other rates as on a "
    "GPU that was measured",
    "matrix_efficiency": "the whole of that rate",
    "hbm_efficiency": "the whole of it",
    "kernels": "as in the reference workload",
    "launches": "eager PyTorch; graphs (graph=step) have no such limit",
    "launch_ns": "tracelens calibrate",
    "trainer": TRAINERS["none"].source,
    "node": "eight GPUs per node in MI300X and MI355X platforms, DGX and HGX",
    "links": "AMD CDNA 3 white paper: a link from each GPU to each of seven others; NVIDIA HGX: NVSwitch",
    "messages": "tracelens calibrate on the ranks of a node; else link rate and latency",
    "link_efficiency": "roofline",
    "nic_bytes_per_s": "one 400 Gb/s NIC per GPU, as in reference clusters of eight-GPU nodes",
    "nic_efficiency": "roofline",
    "nic_messages_per_s": "roofline",
    "link_latency_ns": "assumed: order of a small collective on links",
    "nic_latency_ns": "assumed: order of a small collective between nodes",
    "imbalance": "assumed: routers balance",
    "jitter": "roofline: all ranks arrive at once",
    "exchange_overlap": "the run's own setting",
    "hide_gradients": "as in the reference workload",
    "hide_p2p": "as in the reference workload",
}

LEAST_LINK_BYTES_PER_S = 1e6
"""A lower rate was given in another unit, such as GB/s: links and NICs of GPUs are far faster."""
_EXAMPLE_ROWS, _EXAMPLE, _EXAMPLE_BYTES, _EXAMPLE_MESSAGE = (256, 4096), (4096, 4096), 1 << 28, 64 << 20


class Assumption(NamedTuple):
    """An assumption with its value as text, meaning and source."""

    name: str
    value: str
    meaning: str
    source: str


@dataclass(frozen=True)
class Machine:
    """Assumptions; see HELP for their meaning and SOURCES for the defaults.

    `sources` holds the source of values from a network file, by field.
    """

    matrix: RateName = "by-size"
    matrix_efficiency: float = 1.0
    hbm_efficiency: float = 1.0
    kernels: KernelsName = "eager"
    launches: LaunchesName = "eager"
    launch_ns: float = 0.0
    trainer: TrainerName = "none"
    node: int = 8
    links: LinksName = "auto"
    messages: MessagesName = "by-size"
    link_efficiency: float = 1.0
    nic_bytes_per_s: float = 50e9
    nic_efficiency: float = 1.0
    nic_messages_per_s: float = 0.0
    link_latency_ns: int = 10_000
    nic_latency_ns: int = 20_000
    imbalance: float = 1.0
    jitter: float = 0.0
    exchange_overlap: OverlapName = "toggle"
    hide_gradients: bool = False
    hide_p2p: bool = False
    sources: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        one_of(self)
        at_least_one(self, ("node",))
        for name in ("matrix_efficiency", "hbm_efficiency", "link_efficiency", "nic_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise TracelensError(f"{name} must be above 0 and at most 1, not {getattr(self, name)}")
        if not self.nic_bytes_per_s >= LEAST_LINK_BYTES_PER_S:
            raise TracelensError(
                f"nic_bytes_per_s is {self.nic_bytes_per_s:g} bytes/s: use 50e9 for a 400 Gb/s link"
            )
        if not 0 <= self.nic_messages_per_s < inf:
            raise TracelensError(f"nic_messages_per_s must be 0 or more, not {self.nic_messages_per_s}")
        if not 0 <= self.jitter <= 1:
            raise TracelensError(f"jitter must be between 0 and 1 (as large as the mean), not {self.jitter}")
        if min(self.link_latency_ns, self.nic_latency_ns) < 0:
            raise TracelensError("latencies must be 0 ns or more")
        if not isfinite(self.launch_ns) or self.launch_ns < 0:
            raise TracelensError(f"launch_ns must be 0 ns or more, not {self.launch_ns}")
        if not isfinite(self.imbalance) or self.imbalance < 1:
            raise TracelensError(f"imbalance must be at least 1 (balanced), not {self.imbalance}")

    @property
    def step_times(self) -> str:
        """What step times are: "lower bound", of a roofline without launches, or "projected"."""
        is_roofline = self.matrix != "by-size" and self.launches == "none" and self.trainer == "none"
        return "lower bound" if is_roofline else "projected"

    @property
    def gemm_share(self) -> float:
        """Share of the rate that GEMMs reach."""
        return self.matrix_efficiency * TRAINERS[self.trainer].efficiency

    @property
    def hbm_share(self) -> float:
        """Share of the memory bandwidth that kernels reach."""
        return self.hbm_efficiency * TRAINERS[self.trainer].efficiency

    @property
    def host_ns(self) -> float:
        """Host time per kernel; 0: as measured with the device."""
        return self.launch_ns or TRAINERS[self.trainer].launch_ns

    def matrix_rate(self, device: Device, dtype: str) -> float:
        """FLOP/s of GEMMs of any size; raises TracelensError if the device has no rate for the type."""
        short = known_dtype(dtype)
        published = device.max_achievable(short) if self.matrix != "peak" else None
        rate = published or device.peak("matrix", short)
        if rate is None:
            raise TracelensError(f"{device.name} has no rate for {short} GEMMs: choose another device")
        return rate * self.gemm_share

    def rates(self, device: Device) -> LinkRates:
        """Bandwidths of messages; links are 0 if the device file does not have them."""
        is_mesh = device.vendor == "AMD" if self.links == "auto" else self.links == "mesh"
        return LinkRates(
            device.gpu_link_bytes_per_s * self.link_efficiency,
            self.nic_bytes_per_s * self.nic_efficiency,
            is_mesh,
            self.nic_messages_per_s or inf,
            self.measured(device),
        )

    def measured(self, device: Device) -> Measured:
        """Measurements of messages that are taken; none at the roofline, or where links are as assumed."""
        takes = self.matrix == self.messages == "by-size" and self.link_efficiency == 1
        return device.measured if takes else Measured()

    def overlaps(self, toggle: bool) -> bool:
        """Whether computation of another micro-batch hides all-to-alls; `toggle` is the run's own setting."""
        return toggle if self.exchange_overlap == "toggle" else self.exchange_overlap == "1f1b"

    def assumptions(self) -> list[Assumption]:
        lines, sources = [], dict(self.sources)
        for item in fields(self):
            if item.name not in HELP:
                continue
            value = getattr(self, item.name)
            default = SOURCES[item.name] if value == item.default else "given"
            source = sources.get(item.name, default)
            if item.name == "trainer" and self.trainer != "none":
                cost = TRAINERS[self.trainer]
                source = f"{cost.efficiency:.0%} of rates, {cost.launch_ns:,.0f} ns per launch, {cost.source}"
            text = f"{value:g}" if isinstance(value, float) else str(value)
            if isinstance(value, bool):
                text = "yes" if value else "no"
            lines.append(Assumption(item.name, text, HELP[item.name], source))
        return lines

    def figures(self, device: Device, dtype: str) -> list[Assumption]:
        """The figures of the device that are used."""
        short, source = known_dtype(dtype), f"device file of {device.name}"
        lines = [
            Assumption("hbm_bytes_per_s", f"{device.hbm_bytes_per_s:.4g}", "memory bandwidth", source),
            Assumption(
                "gpu_link_bytes_per_s", f"{device.gpu_link_bytes_per_s:.4g}",
                "from one GPU to all others of its node", source,
            ),
        ]  # fmt: skip
        for name in COLLECTIVES:
            known = measured_time(name, _EXAMPLE_MESSAGE, self.node, self.node, self.rates(device))
            if known is not None:
                lines.append(
                    Assumption(
                        name=f"{name}_bytes_per_s",
                        value=f"{_EXAMPLE_MESSAGE / known.seconds:.4g}",
                        meaning=f"bytes / time of {_EXAMPLE_MESSAGE >> 20} MiB among {self.node} ranks",
                        source=f"measured among {known.ranks} ranks"
                        + ("" if known.ranks == self.node else ", scaled by bus bandwidth"),
                    )
                )
        if self.matrix != "by-size":
            rate = f"{self.matrix_rate(device, dtype):.4g}"
            lines.insert(0, Assumption("matrix_flops_per_s", rate, "GEMM rate, with its efficiency", source))
        else:
            # A GEMM of few and of many rows, as examples of those by size.
            for rows in _EXAMPLE_ROWS:
                example = gemm_rate(device, rows, *_EXAMPLE, short)
                if example is not None:
                    lines.append(
                        Assumption(
                            name=f"gemm_{rows}_flops_per_s",
                            value=f"{example.per_s:.4g}",
                            meaning=f"of a GEMM of {rows:,} rows and {_EXAMPLE[0]} x {_EXAMPLE[1]} weights",
                            source=example.source,
                        )
                    )
            moved = typical_memory_rate(device, _EXAMPLE_BYTES)
            lines.append(
                Assumption(
                    name="memory_bytes_per_s",
                    value=f"{moved.per_s:.4g}",
                    meaning=f"of a kernel that reads and writes {_EXAMPLE_BYTES / 1e6:.0f} MB",
                    source=moved.source,
                )
            )
        if self.launches == "eager":
            cost, origin = launch_cost(device)
            value = f"{self.host_ns or cost.forward_ns:.0f} and {self.host_ns or cost.backward_ns:.0f}"
            meaning = "ns of the host per launch, forward and backward"
            if self.host_ns:
                origin = "as assumed" if self.launch_ns else f"fitted, of {self.trainer}"
            lines.append(Assumption("launch", value, meaning, origin))
        return lines


ROOFLINE = Machine(matrix="achievable", launches="none")
"""Assumptions under which a step time is a lower bound: one rate for all GEMMs, and a host that keeps up."""

ASSUMED = Schema(
    "Assumptions of the step time",
    (
        Column("name", "str", doc="what is assumed"),
        Column("value", "str", doc="its value, with the unit"),
        Column("device", "category", doc="device that it holds for; '': all"),
        Column("note", "str", doc="meaning and source", prose=True),
    ),
)


class KernelRates:
    """Rates of the kernels of a run on a device."""

    def __init__(self, config: Config, device: Device, machine: Machine) -> None:
        self.device, self.machine = device, machine
        self.dtype = known_dtype(config.training.dtype)
        self.by_size = machine.matrix == "by-size"
        # One expert after the other: plain GEMMs.
        self.grouped = config.toggles.experts == "grouped"

    @cached_property
    def memory(self) -> float:
        """Bytes per second at most."""
        return self.device.hbm_bytes_per_s * self.machine.hbm_share

    def nanoseconds(self, load: Load) -> float:
        """Time of a pass of a part."""
        if not self.by_size:
            return max(load.flops / self.flat(load.dtype), load.bytes / self.memory) * 1e9
        if not load.kernels:
            return max(load.flops / self.flat(load.dtype) * 1e9, self.moved(load.bytes))
        dtype = load.dtype or self.dtype
        kernel_ns: list[float] = []
        for kernel in load.kernels:
            if isinstance(kernel, Traffic):
                kernel_ns.append(self.moved(kernel.bytes, kernel.pattern))
                continue
            if isinstance(kernel, AttentionPass):
                sizes = (kernel.seq, kernel.query_dim, kernel.value_dim)
                rate = attention_rate(self.device, *sizes, dtype, kernel.is_backward)
            else:
                matrices = kernel.matrices if self.grouped else 1
                rows = max(kernel.m, 1)
                rate = gemm_rate(self.device, rows, kernel.k, kernel.n, dtype, matrices, kernel.kind)
            flops_per_s = self.flat(dtype) if rate is None else rate.per_s * self.machine.gemm_share
            kernel_ns.append(kernel.flops / flops_per_s * 1e9)
        return max(sum(kernel_ns), load.bytes / self.memory * 1e9)

    def flat(self, dtype: str = "") -> float:
        """FLOP/s of GEMMs of unknown shape, by default in the type of the activations."""
        return self.machine.matrix_rate(self.device, dtype or self.dtype)

    def moved(self, size_bytes: float, pattern: str = "triad") -> float:
        """Time of kernels that move this much, ns."""
        if not self.by_size or not size_bytes:
            return size_bytes / self.memory * 1e9
        rate = typical_memory_rate(self.device, size_bytes, pattern).per_s * self.machine.hbm_share
        return size_bytes / rate * 1e9


def assumed(machine: Machine, devices: Sequence[Device], dtype: str, without: Collection[str] = ()) -> Table:
    """ASSUMED: the assumptions, and the figures of each device; `without` those of these names."""
    lines = [("", line) for line in machine.assumptions() if line.name not in without]
    for device in devices:
        lines += [(device.name, line) for line in machine.figures(device, dtype)]
    return ASSUMED.from_rows(
        [
            {"name": name, "value": value, "device": device, "note": f"{meaning}; {source}"}
            for device, (name, value, meaning, source) in lines
        ]
    )
