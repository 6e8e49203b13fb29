"""Which modules of a model get scopes, and that hooks open and close them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.recording.traces import names, only, profiled
from tracelens.errors import TracelensError
from tracelens.recording.scopes import Hooks, Names, choose


def tree(*paths: str) -> nn.Module:
    """A module with these submodules."""
    root = nn.Module()
    for path in paths:
        module = root
        for part in path.split("."):
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
    return root


# Where modules stand in well-known models, and which of them get a scope.
MODELS = {
    "hugging face mixtral": (
        ("model.embed_tokens", "model.layers.0.input_layernorm", "model.layers.0.self_attn.q_proj",
         "model.layers.0.block_sparse_moe.gate", "model.layers.0.block_sparse_moe.experts.0.w1", "lm_head"),
        ("model.layers.0", "model.layers.0.self_attn", "model.layers.0.block_sparse_moe",
         "model.layers.0.block_sparse_moe.gate", "model.layers.0.block_sparse_moe.experts"),
    ),
    "hugging face deepseek": (
        ("model.layers.0.mlp.gate_proj", "model.layers.3.mlp.gate", "model.layers.3.mlp.experts.7.gate_proj",
         "model.layers.3.mlp.shared_experts.up_proj"),
        ("model.layers.0", "model.layers.0.mlp", "model.layers.3", "model.layers.3.mlp",
         "model.layers.3.mlp.gate", "model.layers.3.mlp.experts", "model.layers.3.mlp.shared_experts"),
    ),
    "megatron": (
        ("module.decoder.layers.1.self_attention.linear_qkv", "module.decoder.layers.1.mlp.router",
         "module.decoder.layers.1.mlp.token_dispatcher", "module.decoder.layers.1.mlp.experts.linear_fc1",
         "module.decoder.layers.1.mlp.shared_experts.linear_fc1", "module.output_layer"),
        ("module.decoder.layers.1", "module.decoder.layers.1.self_attention", "module.decoder.layers.1.mlp",
         "module.decoder.layers.1.mlp.router", "module.decoder.layers.1.mlp.token_dispatcher",
         "module.decoder.layers.1.mlp.experts", "module.decoder.layers.1.mlp.shared_experts"),
    ),
    "torchtitan": (
        ("tok_embeddings", "layers.0.attention.wq", "layers.0.feed_forward.w1", "layers.1.moe.router.gate",
         "layers.1.moe.experts", "layers.1.moe.shared_experts.w1", "layers.1.ffn_norm", "output"),
        ("layers.0", "layers.0.attention", "layers.0.feed_forward", "layers.1", "layers.1.moe",
         "layers.1.moe.router", "layers.1.moe.experts", "layers.1.moe.shared_experts"),
    ),
    "gpt-2": (
        ("transformer.h.0.attn.c_attn", "transformer.h.0.mlp.c_fc", "transformer.wte"),
        ("transformer.h.0", "transformer.h.0.attn", "transformer.h.0.mlp"),
    ),
    "experts that are modules": (
        ("layers.0.moe.experts.3.mlp.w1", "layers.0.moe.experts.layers.0.attention", "layers.0.moe.gate"),
        ("layers.0", "layers.0.moe", "layers.0.moe.experts", "layers.0.moe.gate"),
    ),
    "a gated mlp has no router": (("layers.0.mlp.gate", "layers.0.mlp.up"), ("layers.0", "layers.0.mlp")),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_default_choice(name: str) -> None:
    paths, chosen = MODELS[name]
    assert sorted(choose(tree(*paths))) == sorted(chosen)


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (r"norm$", {"layers.0.norm", "norm"}),
        (r"^layers\.\d+$", {"layers.0"}),
        (lambda name, _: name == "norm", {"norm"}),
        (lambda name, _: "L0" if name == "layers.0" else None, {"L0"}),
    ],
)
def test_other_choices(wanted: Names, chosen: set[str]) -> None:
    assert set(choose(tree("layers.0.norm", "norm", "head"), wanted)) == chosen


@pytest.mark.parametrize(
    ("model", "wanted", "message"),
    [
        (
            nn.Linear(1, 1),
            None,
            "no module of Linear looks like a transformer block; pass names, a regular ",
        ),
        (tree("a"), "b", "no module of Module matches names; pass names, a regular expression"),
        (
            tree("a"),
            "(",
            "names is not a regular expression (missing ), unterminated subpattern at position 0): '('",
        ),
        ("model", None, "model must be a torch.nn.Module, not str"),
    ],
)
def test_nothing_to_choose(model: Any, wanted: Names | None, message: str) -> None:
    with pytest.raises(TracelensError) as caught:
        choose(model, wanted)
    assert str(caught.value).startswith(message)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, *, scale: Tensor | None = None) -> dict[str, Tensor]:
        x = self.mlp(x + self.attn(x).tanh()).tanh()
        return {"x": x if scale is None else x * scale}


class Model(nn.Module):
    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = (checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x))["x"]
        return x


@contextmanager
def hooked(model: nn.Module) -> Iterator[None]:
    hooks = Hooks(choose(model))
    try:
        yield
    finally:
        hooks.remove()


FORWARD = [
    name for layer in "01" for name in (f"layers.{layer}", f"layers.{layer}.attn", f"layers.{layer}.mlp")
]
BACKWARD = [
    f"{name}.B"
    for layer in "10"
    for name in (f"layers.{layer}", f"layers.{layer}.mlp", f"layers.{layer}.attn")
]


def test_forward_and_backward_of_modules() -> None:
    model, x = Model(), torch.ones(2, 4, requires_grad=True)
    with hooked(model):
        found = profiled(lambda: model(x).sum().backward())
    assert names(found) == FORWARD + BACKWARD
    for layer in "01":
        for part in ("attn", "mlp"):
            for suffix in ("", ".B"):
                assert only(found, f"layers.{layer}{suffix}").holds(
                    only(found, f"layers.{layer}.{part}{suffix}")
                )
    assert names(profiled(lambda: model(x).sum().backward())) == []


def test_an_input_without_gradient_gives_the_first_block_no_backward() -> None:
    """Nothing behind it would end the scope; its attention is in the same place."""
    model = Model()
    with hooked(model):
        found = profiled(lambda: model(torch.ones(2, 4)).sum().backward())
    assert set(BACKWARD) - {*names(found)} == {"layers.0.B", "layers.0.attn.B"}


def test_gradients_stay_the_same() -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.ones(2, 4)
    model(x).sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with hooked(model):
        profiled(lambda: model(x).sum().backward())
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=0)


def test_recomputation_stops_early() -> None:
    """It leaves the module by an exception, which must end the scope all the same."""
    model, x = Model(recompute=True), torch.ones(2, 4, requires_grad=True)
    with hooked(model):
        found = profiled(lambda: model(x).sum().backward())
    forward = [name for name in names(found) if not name.endswith(".B")]
    assert sorted(forward) == sorted(FORWARD * 2)
    assert sorted(name for name in names(found) if name.endswith(".B")) == sorted(BACKWARD)
    for place, a in enumerate(found):
        assert all(a.holds(b) or a.beside(b) for b in found[place + 1 :])


def test_tensors_as_keywords_enter() -> None:
    block, x = nn.ModuleDict({"layers": nn.ModuleList([Block()])}), torch.ones(2, 4)
    scale = torch.ones(4, requires_grad=True)
    with hooked(block):
        found = profiled(lambda: block["layers"][0](x, scale=scale)["x"].sum().backward())  # type: ignore[index]
    assert "layers.0.B" in names(found)


def test_a_call_that_began_before_the_recording() -> None:
    model, x = Model(), torch.ones(2, 4)
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with hooked(model):
        model.layers[0].attn.register_forward_hook(lambda *_: profiler.start())
        model(x)
        profiler.stop()
    found = [event.name for event in profiler.events() if event.is_user_annotation]
    assert found == FORWARD[2:]


def test_a_module_that_fails_closes_its_scope() -> None:
    model, x = Model(), torch.ones(2, 4)

    def work() -> None:
        with pytest.raises(RuntimeError, match="shape"):
            model(torch.ones(2, 3))
        model(x)

    with hooked(model):
        found = profiled(work)
    failed, *rest = found
    assert (failed.name, rest[0].name) == ("layers.0", "layers.0.attn")
    assert all(failed.beside(scope) for scope in rest[1:])
    assert names(rest[1:]) == FORWARD
