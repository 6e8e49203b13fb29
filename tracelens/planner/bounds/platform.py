"""The machine of a bound: its rates and latencies, each with its source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.planner.collectives import Rates, Steps
from tracelens.planner.config import at_least_one, one_of
from tracelens.planner.step_time import HELP as STEP_TIME_HELP
from tracelens.planner.step_time import SOURCES as STEP_TIME_SOURCES
from tracelens.planner.step_time import Assumption, LinksName, Machine

RateName = Literal["peak", "achievable"]

HELP = {
    "matrix": "GEMM rate: the data-sheet peak, or achievable (as published by the vendor, else the peak)",
    "links": STEP_TIME_HELP["links"],
    "link_bytes_per_s": "from one GPU to all others of its node, one direction; 0: as in the device file",
    "nic_bytes_per_s": STEP_TIME_HELP["nic_bytes_per_s"],
    "link_step_ns": "latency of one step of a collective inside a node",
    "nic_step_ns": "latency of one step of a collective between nodes",
}
"""Assumptions that can be changed."""

_NCCL = "NCCL 2.28.7, src/graph/tuning.cc, ncclTunerConstantsDefaults.hwLatencies: a ring step with LL128"
_SOURCES = {
    "matrix": "speed of light: no GEMM is faster",
    "links": STEP_TIME_SOURCES["links"],
    "nic_bytes_per_s": STEP_TIME_SOURCES["nic_bytes_per_s"],
    "link_step_ns": f"{_NCCL} over NVLink",
    "nic_step_ns": f"{_NCCL} over the network",
}


@dataclass(frozen=True)
class Platform:
    """Nodes of one kind of GPU; see HELP for the assumptions.

    Attributes:
        device: of all GPUs.
        nodes: of collectives between nodes.
        gpus_per_node: GPUs per node.

    Raises:
        TracelensError: a size or rate out of range.
    """

    device: Device
    nodes: int = 2
    gpus_per_node: int = 8
    matrix: RateName = "peak"
    links: LinksName = "auto"
    link_bytes_per_s: float = 0.0
    nic_bytes_per_s: float = Machine.nic_bytes_per_s
    link_step_ns: int = 1_900
    nic_step_ns: int = 4_000

    def __post_init__(self) -> None:
        one_of(self)
        at_least_one(self, ("nodes", "gpus_per_node"))
        if min(self.link_step_ns, self.nic_step_ns) < 0:
            raise TracelensError("latencies must be 0 ns or more")
        if self.link_bytes_per_s and self.link_bytes_per_s < 1e6:
            raise TracelensError(
                f"link_bytes_per_s is {self.link_bytes_per_s:g} bytes/s: use 448e9 for seven links of 64 GB/s"
            )
        if not (self.link_bytes_per_s or self.device.gpu_link_bytes_per_s):
            raise TracelensError(
                f"the link rate of {self.device.name} is unknown: pass --assume link_bytes_per_s=448e9"
            )

    @property
    def _machine(self) -> Machine:
        return Machine(matrix=self.matrix, links=self.links, nic_bytes_per_s=self.nic_bytes_per_s)

    def rates(self) -> Rates:
        """Bandwidths of one GPU."""
        rate = self.link_bytes_per_s or self.device.gpu_link_bytes_per_s
        return self._machine.rates(replace(self.device, gpu_link_bytes_per_s=rate))

    def steps(self) -> Steps:
        """Latency of one step inside and between nodes."""
        return Steps(self.link_step_ns / 1e9, self.nic_step_ns / 1e9)

    def matrix_rate(self, dtype: str) -> float:
        """FLOP/s of GEMMs; raises TracelensError if the device has no rate for the type."""
        return self._machine.matrix_rate(self.device, dtype)

    def assumptions(self, dtypes: tuple[str, ...]) -> list[Assumption]:
        """The figures of the device for these element types, and what is assumed of the machine."""
        rates = self.rates()
        device = f"device file of {self.device.name}"
        link = "changed" if self.link_bytes_per_s else device
        figures = [
            Assumption("link_bytes_per_s", f"{rates.links:.4g}", HELP["link_bytes_per_s"], link),
            Assumption("hbm_bytes_per_s", f"{self.device.hbm_bytes_per_s:.4g}", "memory bandwidth", device),
        ]
        for dtype in dtypes:
            rate = f"{self.matrix_rate(dtype):.4g}"
            figures.append(Assumption(f"matrix_flops_per_s.{dtype}", rate, "GEMM rate", device))
        defaults = Platform(self.device)
        for name, source in _SOURCES.items():
            value = getattr(self, name)
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            if value == "auto":
                text = f"auto ({'mesh' if rates.is_mesh else 'switch'})"
            is_default = value == getattr(defaults, name)
            figures.append(Assumption(name, text, HELP[name], source if is_default else "changed"))
        return figures
