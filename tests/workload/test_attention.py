"""Attention on one rank against its definition, written out in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

from torch import Tensor  # noqa: E402

from tests.workload.agree import FLOAT32, relative_error  # noqa: E402
from tracelens.planner.config import Config, override, preset  # noqa: E402
from tracelens.workload.model import Attention  # noqa: E402
from tracelens.workload.model.attention import ROTARY_BASE, make_attention  # noqa: E402
from tracelens.workload.parallel import Groups  # noqa: E402

S, B, D, H = 24, 2, 32, 4
SIZES = (f"seq={S}", f"hidden={D}", f"heads={H}", "kv_lora=12", "qk_dim=6", "rope_dim=10")
KINDS = {
    "mla": ("v_dim=16",),
    "mla_q_lora": ("q_lora=20", "v_dim=8"),
    "gqa": ("attention=gqa", "kv_groups=2", "head_dim=14"),
    "mha": ("attention=gqa", f"kv_groups={H}", "head_dim=14"),
    "mqa": ("attention=gqa", "kv_groups=1", "head_dim=14"),
}


def turned(x_BSnr: Tensor) -> Tensor:
    """Numbers i and i + r / 2 of a head are one complex number, turned by position * base^(-2 i / r)."""
    half = x_BSnr.shape[-1] // 2
    z = torch.complex(x_BSnr[..., :half], x_BSnr[..., half:])
    power = -torch.arange(half, dtype=torch.float64) / half
    angle_Sh = torch.outer(torch.arange(S, dtype=torch.float64), ROTARY_BASE**power)
    z = z * torch.polar(torch.ones_like(angle_Sh), angle_Sh)[:, None]
    return torch.cat([z.real, z.imag], dim=-1)


def normalised(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def softmax_attention(q_BSnq: Tensor, k_BSnq: Tensor, v_BSnv: Tensor, out_DN: Tensor) -> Tensor:
    """One head after the other, one position after the other: no mask, but what lies before."""
    heads = []
    for head in range(H):
        q, k, v = (t[:, :, head * t.shape[2] // H] for t in (q_BSnq, k_BSnq, v_BSnv))
        rows = []
        for at in range(S):
            score = torch.einsum("bq,btq->bt", q[:, at], k[:, : at + 1]) / q.shape[-1] ** 0.5
            share = score.exp() / score.exp().sum(1, keepdim=True)
            rows.append(torch.einsum("bt,btv->bv", share, v[:, : at + 1]))
        heads.append(torch.stack(rows, 1))
    return torch.cat(heads, -1) @ out_DN.T


def plain_latent(p: dict[str, Tensor], x_BSD: Tensor, config: Config) -> Tensor:
    model = config.model
    c, q_, r = model.kv_lora, model.qk_dim, model.rope_dim
    latent = x_BSD if "q_down" not in p else normalised(x_BSD @ p["q_down"].T, p["q_norm.weight"])
    q = (latent @ p["q_up"].T).unflatten(2, (H, q_ + r))
    down = x_BSD @ p["kv_down"].T
    kv = (normalised(down[..., :c], p["kv_norm.weight"]) @ p["kv_up"].T).unflatten(2, (H, -1))
    shared = turned(down[..., None, c:]).expand(-1, -1, H, -1)
    q, k = torch.cat([q[..., :q_], turned(q[..., q_:])], -1), torch.cat([kv[..., :q_], shared], -1)
    return softmax_attention(q, k, kv[..., q_:], p["out"])


def plain_grouped(p: dict[str, Tensor], x_BSD: Tensor, config: Config) -> Tensor:
    q, k, v = ((x_BSD @ p[name].T).unflatten(2, (-1, config.model.head_dim)) for name in "qkv")
    return softmax_attention(turned(q), turned(k), v, p["out"])


PLAIN: dict[str, Callable[[dict[str, Tensor], Tensor, Config], Tensor]] = {
    "mla": plain_latent,
    "gqa": plain_grouped,
}


def made(config: Config, seed: int, dtype: torch.dtype) -> Attention:
    generator = torch.Generator().manual_seed(seed)
    attention = make_attention(config, Groups(config.layout))
    for parameter in attention.parameters():
        with torch.no_grad():
            spread = 0.3 if parameter.dim() == 1 else parameter.shape[1] ** -0.5
            numbers = torch.randn(parameter.shape, generator=generator) * spread
            parameter.copy_(numbers + (parameter.dim() == 1))
    return attention.to(dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_its_definition(kind: str) -> None:
    config = override(preset("tiny"), (*SIZES, *KINDS[kind]))
    seed = int(torch.seed() % 2**31)
    attention, exact = made(config, seed, torch.float32), made(config, seed, torch.float64)
    x_SBD, g_SBD = torch.randn(2, S, B, D).unbind()
    x_SBD.requires_grad_()
    attention(x_SBD).backward(g_SBD)
    x_BSD = x_SBD.detach().transpose(0, 1).double().requires_grad_()
    expected = PLAIN[config.model.attention](dict(exact.named_parameters()), x_BSD, config)
    expected.backward(g_SBD.transpose(0, 1).double())
    assert relative_error(attention(x_SBD), expected.transpose(0, 1)) < FLOAT32, f"seed {seed}"
    assert relative_error(x_SBD.grad, x_BSD.grad.transpose(0, 1)) < FLOAT32, f"seed {seed}"
    wanted = dict(exact.named_parameters())
    for name, parameter in attention.named_parameters():
        error = relative_error(parameter.grad, wanted[name].grad)
        assert error < FLOAT32, f"seed {seed}: gradient of {name} is off by {error}"
