"""Time of a pass of a part: each of its kernels at the rate of its size, or all at the roofline.

By size, a GEMM or attention kernel takes its FLOPs at the rate that the device achieves for its shape, and
other kernels their bytes at the achieved memory bandwidth. Nothing is faster than its bytes at the data-sheet
bandwidth.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property

from tracelens.devices import Device, Rate, attention_rate, gemm_rate, memory_rate
from tracelens.dtypes import known_dtype
from tracelens.planner.config import Config
from tracelens.planner.step_time.machine import Machine
from tracelens.planner.step_time.work import Attention, Gemm, Load


class KernelRates:
    """Rates of the kernels of a run on a device."""

    def __init__(self, config: Config, device: Device, machine: Machine) -> None:
        self.device, self.machine = device, machine
        self.dtype = known_dtype(config.training.dtype)
        self.by_size = machine.matrix == "by-size"
        # One expert after the other: plain GEMMs.
        self.grouped = config.toggles.experts == "grouped"
        self.sources: Counter[str] = Counter()

    @cached_property
    def memory(self) -> float:
        """Bytes per second at most."""
        return self.device.hbm_bytes_per_s * self.machine.hbm_efficiency

    def nanoseconds(self, load: Load) -> float:
        """Time of a pass of a part."""
        if not self.by_size:
            return max(load.flops / self.flat(load.dtype), load.bytes / self.memory) * 1e9
        if not load.flops:
            return self.moved(load.bytes)
        rest = load.flops - sum(kernel.flops for kernel in load.kernels)
        seconds = rest / self.flat(load.dtype)
        seconds += sum(kernel.flops / self.rate(kernel, load.dtype) for kernel in load.kernels)
        return max(seconds, load.bytes / self.memory) * 1e9

    def moved(self, size_bytes: float) -> float:
        """Time of elementwise kernels that move this much, ns."""
        if not self.by_size or not size_bytes:
            return size_bytes / self.memory * 1e9
        rate = memory_rate(self.device, size_bytes).per_s * self.machine.hbm_efficiency
        return size_bytes / rate * 1e9

    def flat(self, dtype: str) -> float:
        """FLOP/s of kernels of unknown shape; of the activations' type by default."""
        return self.machine.matrix_rate(self.device, dtype or self.dtype)

    def rate(self, kernel: Gemm | Attention, dtype: str = "") -> float:
        """FLOP/s of a kernel, including the efficiency that the machine assumes."""
        rate = self._achieved(kernel, dtype or self.dtype)
        if rate is None:
            return self.flat(dtype)
        self.sources[rate.source] += 1
        return rate.per_s * self.machine.matrix_efficiency

    def _achieved(self, kernel: Gemm | Attention, dtype: str) -> Rate | None:
        if isinstance(kernel, Attention):
            sizes = (kernel.seq, kernel.query_dim, kernel.value_dim)
            return attention_rate(self.device, *sizes, dtype, kernel.is_backward)
        matrices = kernel.matrices if self.grouped else 1
        return gemm_rate(
            self.device, max(kernel.m, 1), kernel.k, kernel.n, dtype, matrices, kernel.kind
        )
