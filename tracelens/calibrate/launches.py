"""Host time per kernel: of short kernels back to back, of eager ops, and of a transformer block in training.

Ops that launch nothing (views, splits), modules and Python around them count towards the kernels that are
launched: that is what a kernel of a model costs its host.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from tracelens.calibrate.timing import HOST_REPETITIONS, HOST_WARM_UP, Stopwatch
from tracelens.devices import LaunchCost

_WIDTH, _HEADS, _TOKENS = 64, 4, 32


class LaunchBlock(nn.Module):
    """Attention with rotary positions and a gated MLP, each after a norm and beside a residual stream.

    Tensors are small, so that kernels are shorter than their launches and the queue is never full.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False, device=device, dtype=dtype)

        self.attention_norm = nn.RMSNorm(_WIDTH, device=device, dtype=dtype)
        self.mlp_norm = nn.RMSNorm(_WIDTH, device=device, dtype=dtype)
        self.qkv, self.out = linear(_WIDTH, 3 * _WIDTH), linear(_WIDTH, _WIDTH)
        self.up, self.down = linear(_WIDTH, 4 * _WIDTH), linear(2 * _WIDTH, _WIDTH)
        angles = torch.ones(_TOKENS, 1, _WIDTH // _HEADS, device=device, dtype=dtype)
        self.register_buffer("cos", angles)
        self.register_buffer("sin", angles.clone())

    def rotate(self, x_TNv: Tensor) -> Tensor:
        a, b = x_TNv.chunk(2, dim=-1)
        return torch.addcmul(x_TNv * self.cos, torch.cat([b, a], dim=-1), self.sin)

    def forward(self, x_TD: Tensor) -> Tensor:
        q, k, v = (t.unflatten(1, (_HEADS, -1)) for t in self.qkv(self.attention_norm(x_TD)).chunk(3, dim=-1))
        q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (self.rotate(q), self.rotate(k), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_TD = x_TD + self.out(y.squeeze(0).transpose(0, 1).flatten(1))
        gate, up = self.up(self.mlp_norm(x_TD)).chunk(2, dim=-1)
        return x_TD + self.down(F.silu(gate) * up)


def launch_cost(watch: Stopwatch, ops: int) -> LaunchCost:
    """Per kernel; `ops` are launched in a row."""
    x = torch.ones(_WIDTH, _WIDTH, device=watch.device)

    def eager() -> None:
        for _ in range(ops):
            torch.mul(x, x)

    def in_place() -> None:
        for _ in range(ops):
            x.mul_(1.0)

    with torch.no_grad():
        op_s = _seconds(watch, eager, to_the_end=False)
        kernel_s = _seconds(watch, in_place, to_the_end=True)

    # Some layers of a model in training, whose gradients accumulate.
    dtype = torch.bfloat16
    model = nn.Sequential(*(LaunchBlock(watch.device, dtype) for _ in range(max(1, ops // 40))))
    x_TD = torch.randn(_TOKENS, _WIDTH, device=watch.device, dtype=dtype)
    d_TD = torch.ones_like(x_TD)
    forward_s, backward_s = [], []
    for _ in range(HOST_WARM_UP + HOST_REPETITIONS):
        watch.wait()
        begin = time.perf_counter()
        y_TD = model(x_TD)
        middle = time.perf_counter()
        watch.wait()
        restart = time.perf_counter()
        y_TD.backward(d_TD)
        backward_s.append(time.perf_counter() - restart)
        forward_s.append(middle - begin)
    # Counted last: a profiler that ran once may slow launches down.
    outputs: list[Tensor] = []
    forward_kernels = _kernels(watch, lambda: outputs.append(model(x_TD)))
    backward_kernels = _kernels(watch, lambda: outputs[-1].backward(d_TD))
    return LaunchCost(
        kernel_ns=kernel_s * 1e9 / ops,
        op_ns=op_s * 1e9 / ops,
        forward_ns=median(forward_s[HOST_WARM_UP:]) * 1e9 / forward_kernels,
        backward_ns=median(backward_s[HOST_WARM_UP:]) * 1e9 / backward_kernels,
    )


def _kernels(watch: Stopwatch, run: Callable[[], object]) -> int:
    """Kernels, copies and memsets that a call launches; on a CPU, ops that no other op calls."""
    on_gpu = watch.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as recorded:
        run()
        watch.wait()
    events = recorded.events() or []
    if on_gpu:
        return max(1, len([event for event in events if event.device_type == DeviceType.CUDA]))
    return max(1, len([event for event in events if event.cpu_parent is None]))


def _seconds(watch: Stopwatch, run: Callable[[], object], to_the_end: bool) -> float:
    """Until the host is done, or the device."""
    seconds = []
    for _ in range(HOST_WARM_UP + HOST_REPETITIONS):
        watch.wait()
        begin = time.perf_counter()
        run()
        if to_the_end:
            watch.wait()
        seconds.append(time.perf_counter() - begin)
    return median(seconds[HOST_WARM_UP:])
