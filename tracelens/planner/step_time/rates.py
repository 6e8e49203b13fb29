"""Time of a pass of a part: each of its kernels at the rate of its size, or all at the roofline.

By size, a GEMM or attention kernel takes its FLOPs at the rate that the device achieves for its shape, and
other kernels their bytes at the achieved memory bandwidth. Nothing is faster than its bytes at the data-sheet
bandwidth.
"""

from __future__ import annotations

from functools import cached_property

from tracelens.devices import Device, Rate, attention_rate, gemm_rate, memory_rate
from tracelens.dtypes import known_dtype
from tracelens.planner.block import Attention, Gemm, Load, Traffic
from tracelens.planner.config import Config
from tracelens.planner.step_time.machine import Machine


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
        return self.device.hbm_bytes_per_s * self.machine.hbm_efficiency

    def nanoseconds(self, load: Load) -> float:
        """Time of a pass of a part."""
        if not self.by_size:
            return max(load.flops / self.flat(load.dtype), load.bytes / self.memory) * 1e9
        if not load.kernels:
            return max(load.flops / self.flat(load.dtype) * 1e9, self.moved(load.bytes))
        kernels_ns = sum(self._kernel_ns(kernel, load.dtype) for kernel in load.kernels)
        return max(kernels_ns, load.bytes / self.memory * 1e9)

    def flat(self, dtype: str = "") -> float:
        """FLOP/s of GEMMs of unknown shape, by default in the type of the activations."""
        return self.machine.matrix_rate(self.device, dtype or self.dtype)

    def moved(self, size_bytes: float, pattern: str = "triad") -> float:
        """Time of kernels that move this much, ns."""
        if not self.by_size or not size_bytes:
            return size_bytes / self.memory * 1e9
        rate = memory_rate(self.device, size_bytes, pattern).per_s * self.machine.hbm_efficiency
        return size_bytes / rate * 1e9

    def _kernel_ns(self, kernel: Gemm | Attention | Traffic, dtype: str) -> float:
        if isinstance(kernel, Traffic):
            return self.moved(kernel.bytes, kernel.pattern)
        rate = self._achieved(kernel, dtype or self.dtype)
        flops_per_s = self.flat(dtype) if rate is None else rate.per_s * self.machine.matrix_efficiency
        return kernel.flops / flops_per_s * 1e9

    def _achieved(self, kernel: Gemm | Attention, dtype: str) -> Rate | None:
        if isinstance(kernel, Attention):
            sizes = (kernel.seq, kernel.query_dim, kernel.value_dim)
            return attention_rate(self.device, *sizes, dtype, kernel.is_backward)
        matrices = kernel.matrices if self.grouped else 1
        return gemm_rate(self.device, max(kernel.m, 1), kernel.k, kernel.n, dtype, matrices, kernel.kind)
