"""The router against loops in plain Python: who is chosen, with which weight, and the balance loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

from tests.workload.agree import FLOAT32, moe_config, relative_error  # noqa: E402
from tests.workload.ranks import run_ranks  # noqa: E402
from tracelens.planner.config import Config, Layout  # noqa: E402
from tracelens.workload.model import Router  # noqa: E402
from tracelens.workload.parallel import Groups, make_groups  # noqa: E402

GROUPED = ["experts_count=16", "expert_groups=4", "top_groups=2", "top_k=3"]
KINDS = [
    pytest.param([f"score={score}", *groups], id=f"{score}-{name}")
    for score in ("softmax", "sigmoid")
    for name, groups in (("all", ["top_k=3"]), ("groups", GROUPED))
]


def make_router(config: Config, seed: int, groups: Groups | None = None) -> Router:
    router = Router(config, groups or Groups(config.layout))
    generator = torch.Generator().manual_seed(seed)
    torch.nn.init.normal_(router.weight_ED, std=1.0, generator=generator)
    return router


def some_input(config: Config, seed: int, sequences: int | None = None) -> Any:
    training, generator = config.training, torch.Generator().manual_seed(seed + 1)
    return torch.randn(
        training.seq, sequences or training.micro_batch, config.model.hidden, generator=generator
    )


def by_hand(logits: list[float], config: Config) -> dict[int, float]:
    """Weights of the experts that a token chooses."""
    model, logits_E = config.model, torch.tensor(logits, dtype=torch.float64)
    score = (logits_E.sigmoid() if model.score == "sigmoid" else logits_E.softmax(0)).tolist()
    size = model.experts_count // model.expert_groups
    groups = [range(first, first + size) for first in range(0, model.experts_count, size)]
    best = 2 if model.score == "sigmoid" else 1
    groups.sort(key=lambda group: -sum(sorted(score[e] for e in group)[-best:]))
    reachable = [expert for group in groups[: model.top_groups] for expert in group]
    chosen = sorted(reachable, key=lambda e: -score[e])[: model.top_k]
    total = sum(score[e] for e in chosen) if model.score == "sigmoid" else 1.0
    return {e: score[e] / total for e in chosen}


@pytest.mark.parametrize("fusion", ["plain", "fused"])
@pytest.mark.parametrize("kind", KINDS)
def test_choice_and_weights_agree_with_a_loop(kind: list[str], fusion: str) -> None:
    seed = int(torch.randint(2**31, ()))
    config = moe_config(f"router={fusion}", fields=kind)
    router, x_SBD = make_router(config, seed), some_input(config, seed)
    weight_TK, expert_TK = router(x_SBD)
    assert weight_TK.dtype == torch.float32
    assert expert_TK.dtype == torch.int64
    logits_TE = (x_SBD.double() @ router.weight_ED.double().T).flatten(0, 1)
    for logits, weights, experts in zip(logits_TE.tolist(), weight_TK, expert_TK.tolist(), strict=True):
        expected = by_hand(logits, config)
        assert set(experts) == set(expected), seed
        assert weights.tolist() == pytest.approx([expected[e] for e in experts], rel=1e-5), seed


@pytest.mark.parametrize("kind", KINDS)
def test_the_fused_router_has_the_same_gradients(kind: list[str]) -> None:
    seed, gradients = int(torch.randint(2**31, ())), []
    for fusion in ("plain", "fused"):
        config = moe_config(f"router={fusion}", fields=kind)
        router = make_router(config, seed)
        x_SBD = some_input(config, seed).requires_grad_()
        weight_TK, _ = router(x_SBD)
        generator = torch.Generator().manual_seed(seed + 2)
        (weight_TK * torch.randn(weight_TK.shape, generator=generator)).sum().backward()
        gradients.append((x_SBD.grad, router.weight_ED.grad))
    for fused, plain in zip(*reversed(gradients), strict=True):
        assert relative_error(fused, plain) < FLOAT32, seed


@pytest.mark.parametrize("fields", [[], ["experts_count=16", "top_k=4"], ["experts_count=24", "top_k=3"]])
def test_balanced_routing_is_exactly_even(fields: list[str]) -> None:
    config = moe_config("routing=balanced", fields=fields)
    model = config.model
    _, expert_TK = make_router(config, 0)(some_input(config, 0))
    counts = torch.bincount(expert_TK.flatten(), minlength=model.experts_count)
    assert set(counts.tolist()) == {expert_TK.numel() // model.experts_count}
    assert all(len(set(of_token)) == model.top_k for of_token in expert_TK.tolist())


def test_balanced_routing_spreads_a_token_over_ranks() -> None:
    """As many ranks as a random choice would reach, so that de-duplication saves what it saves in earnest."""
    config = moe_config("routing=balanced", "experts_count=64", "top_k=6", "seq=64")
    _, expert_TK = make_router(config, 0)(some_input(config, 0))
    ranks = [len({expert // 8 for expert in of_token}) for of_token in expert_TK.tolist()]
    by_chance = 8 * (1 - (7 / 8) ** 6)
    assert sum(ranks) / len(ranks) == pytest.approx(by_chance, rel=0.1)


def test_skewed_routing_prefers_the_first_experts() -> None:
    share = {}
    for routing in ("learned", "skewed"):
        config = moe_config(f"routing={routing}", "experts_count=16", "seq=256")
        _, expert_TK = make_router(config, 3)(some_input(config, 3) / 4)
        counts = torch.bincount(expert_TK.flatten(), minlength=16)
        share[routing] = float(counts[:4].sum() / counts.sum())
    assert share["learned"] < 0.4
    assert share["skewed"] > 0.5


def balance_loss(weight_ED: Any, x_SBD: Any, expert_TK: Any, config: Config) -> float:
    """alpha times the mean over sequences of the sum over experts of f * P, in loops, in float64."""
    model, (S, B, _) = config.model, x_SBD.shape
    E, K, loss = model.experts_count, model.top_k, 0.0
    for b in range(B):
        logits_SE = x_SBD[:, b].double() @ weight_ED.double().T
        score_SE = logits_SE.sigmoid() if model.score == "sigmoid" else logits_SE.softmax(1)
        share_SE = score_SE / score_SE.sum(1, keepdim=True)
        chosen_SK = expert_TK.view(S, B, K)[:, b]
        for e in range(E):
            f = E / (K * S) * int((chosen_SK == e).sum())
            loss += f * float(share_SE[:, e].mean())
    return model.aux_loss * loss / B


@pytest.mark.parametrize("fusion", ["plain", "fused"])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_balance_loss_has_the_gradient_of_its_formula(score: str, fusion: str) -> None:
    seed = int(torch.randint(2**31, ()))
    config = moe_config(f"score={score}", f"router={fusion}", "micro_batch=2", "aux_loss=0.5")
    router, x_SBD = make_router(config, seed), some_input(config, seed)
    weight_TK, expert_TK = router(x_SBD)
    (weight_TK * 0).sum().backward()
    weight_ED = router.weight_ED.detach().double()
    expected_ED, step = torch.zeros_like(weight_ED), 1e-6
    for index in range(weight_ED.numel()):
        ends = []
        for sign in (1, -1):
            moved_ED = weight_ED.clone()
            moved_ED.view(-1)[index] += sign * step
            ends.append(balance_loss(moved_ED, x_SBD, expert_TK, config))
        expected_ED.view(-1)[index] = (ends[0] - ends[1]) / (2 * step)
    assert relative_error(router.weight_ED.grad, expected_ED) < 1e-4, seed


def test_without_training_there_is_no_balance_loss() -> None:
    config = moe_config()
    router = make_router(config, 0).eval()
    (router(some_input(config, 0))[0] * 0).sum().backward()
    assert not router.weight_ED.grad.any()


LAYOUTS = {
    "dp": Layout(ranks=2),
    "cp": Layout(ranks=2, cp=2),
    "tp": Layout(ranks=2, tp=2),
}


def gradients_of_layouts(rank: int, seed: int) -> dict[str, Any]:
    """What this rank adds in each layout to the balance loss's gradient by the router's weights."""
    found = {}
    for name, layout in LAYOUTS.items():
        sequences = 1 if name == "dp" else 2
        config = moe_config(f"micro_batch={sequences}", "ranks=2", f"cp={layout.cp}", f"tp={layout.tp}")
        router = make_router(config, seed, make_groups(layout, rank))
        whole_SBD = some_input(config, seed, sequences=2)
        x_SBD = whole_SBD.chunk(2, dim=1 if name == "dp" else 0)[rank]
        (router(x_SBD)[0] * 0).sum().backward()
        found[name] = router.weight_ED.grad
    return found


def test_balance_loss_does_not_depend_on_the_layout(tmp_path: Path) -> None:
    seed = int(torch.randint(2**31, ()))
    config = moe_config("micro_batch=2")
    alone = make_router(config, seed)
    (alone(some_input(config, seed))[0] * 0).sum().backward()
    first, second = run_ranks(2, gradients_of_layouts, seed, folder=tmp_path)
    for name in LAYOUTS:
        assert relative_error(first[name] + second[name], alone.weight_ED.grad) < FLOAT32, (name, seed)
