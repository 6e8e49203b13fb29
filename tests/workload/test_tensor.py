"""Tensor and context parallelism: products across ranks, and whole models against one rank."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

import torch.distributed as dist  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from tests.workload.agree import FLOAT32, relative_error  # noqa: E402
from tests.workload.ranks import run_ranks  # noqa: E402
from tests.workload.whole import Result, assert_same, clear_seed, one_rank, train_once  # noqa: E402
from tracelens.errors import TracelensError  # noqa: E402
from tracelens.planner.config import Config, override, preset  # noqa: E402
from tracelens.workload.parallel import (  # noqa: E402  # noqa: E402
    Groups,
    all_gather_into,
    gather_matmul,
    make_groups,
    matmul_scatter,
    require,
    tensor_symmetric,
)
from tracelens.workload.parallel.collectives import reduce_scatter_into  # noqa: E402
from tracelens.workload.parallel.tensor_chunked import CHUNKS, pieces  # noqa: E402

SIZES = (
    "layers=2", "hidden=32", "dense_ffn=48", "kv_lora=16", "expert_ffn=16", "shared_ffn=24", "vocab=64",
    "seq=16", "aux_loss=0.01",
)  # fmt: skip
MODELS = {
    "mla": (),
    "mla_q_lora_sigmoid": ("q_lora=12", "v_dim=12", "score=sigmoid", "expert_groups=4", "top_groups=2"),
    "gqa": ("attention=gqa", "kv_groups=2", "head_dim=8", "expert_groups=4", "top_groups=2"),
}
LAYOUTS = {
    "tp2": ("ranks=2", "tp=2"),
    "tp2_ep1": ("ranks=2", "tp=2", "ep=1"),
    "cp2": ("ranks=2", "cp=2"),
    "tp2_cp2": ("ranks=4", "tp=2", "cp=2"),
    "tp2_cp2_ep2": ("ranks=4", "tp=2", "cp=2", "ep=2"),
    "tp2_dp2": ("ranks=4", "tp=2"),
    "cp2_dp2": ("ranks=4", "cp=2"),
}
ON_CPU = ("off", "chunked")


def config_of(model: str, layout: str, overlap: str) -> Config:
    return override(preset("tiny"), (*SIZES, *MODELS[model], *LAYOUTS[layout], f"tp_overlap={overlap}"))


CASES = [
    pytest.param(model, layout, overlap, id=f"{model}-{layout}-{overlap}")
    for model, layout, overlap in itertools.product(MODELS, LAYOUTS, ON_CPU)
    if overlap == "off" or layout in ("tp2", "tp2_cp2_ep2")
]


@dataclass
class Found:
    """On one rank.

    Attributes:
        seed: of the numbers in products; `trained` has seeds of its own.
        trained: results by model, layout and overlap.
        errors: of products and their gradients against `off`, by variant and then by tensor.
        calls: order of calls by variant and kind of product, forward and backward.
        refused: messages of tp_overlap=symmetric.
    """

    seed: int
    trained: dict[tuple[str, ...], Result]
    errors: dict[str, dict[str, float]]
    calls: dict[tuple[str, str], tuple[list[str], list[str]]]
    refused: list[str]


@pytest.fixture(scope="module")
def seeds() -> dict[str, int]:
    """By model."""
    return {model: clear_seed(config_of(model, "tp2_dp2", "off")) for model in MODELS}


@pytest.fixture(scope="module")
def found(seeds: dict[str, int], tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Found]]:
    """Of all ranks, by how many there are: a process takes longer to start than all of this takes."""
    keys: list[tuple[str, ...]] = [tuple(map(str, case.values)) for case in CASES]
    by_world = {}
    for world in (2, 4):
        cases = {key: seeds[key[0]] for key in keys if config_of(*key).layout.ranks == world}
        folder = tmp_path_factory.mktemp("ranks")
        by_world[world] = run_ranks(world, everything, cases, int(torch.seed() % 2**31), folder=folder)
    return by_world


def everything(rank: int, cases: dict[tuple[str, ...], int], seed: int) -> Found:
    configs = {key: config_of(*key) for key in cases}
    groups = {config.layout: make_groups(config.layout, rank) for config in configs.values()}
    trained = {key: train_once(config, groups[config.layout], cases[key]) for key, config in configs.items()}
    calls, refused = order_of_calls(), ask_for_symmetric()
    errors = {f"chunked {rows}": compare_gemms(rank, "chunked", rows, seed) for rows in (1, 5)}
    symmetric_ops_on_cpu()
    errors["symmetric 4"] = compare_gemms(rank, "symmetric", 4, seed)
    return Found(seed, trained, errors, calls, refused)


@pytest.mark.parametrize(("model", "layout", "overlap"), CASES)
def test_a_layout_computes_what_one_rank_does(
    found: dict[int, list[Found]], seeds: dict[str, int], model: str, layout: str, overlap: str
) -> None:
    config = config_of(model, layout, overlap)
    alone = one_rank(config)
    expected = train_once(alone, Groups(alone.layout), seeds[model])
    assert all(gradient.any() for gradient in expected.gradients.values())
    for rank in found[config.layout.ranks]:
        assert_same(rank.trained[model, layout, overlap], expected, seeds[model])


def products(rank: int, overlap: str, rows: int, seed: int) -> dict[str, Tensor]:
    """Outputs and gradients of both kinds of product, all ranks with numbers of their own."""
    torch.manual_seed(seed + rank)
    group, ranks = dist.group.WORLD, dist.get_world_size()
    x_SBD = torch.randn(rows, 3, 8, requires_grad=True)
    weights = [torch.randn(width, 8, requires_grad=True) for width in (5, 1, 6)]
    h_SBN = torch.randn(rows * ranks, 3, 5, requires_grad=True)
    weight_DN = torch.randn(8, 5, requires_grad=True)
    outputs = [
        *gather_matmul(x_SBD, weights, group, overlap),
        matmul_scatter(h_SBN, weight_DN, group, overlap),
    ]
    # Gradients that lie in memory in another order than the outputs.
    torch.autograd.backward(outputs, [torch.randn(y.mT.shape).mT for y in outputs])
    leaves = {"x": x_SBD, "h": h_SBN, "down": weight_DN} | {f"w{n}": w for n, w in enumerate(weights)}
    gradients = {f"gradient of {name}": leaf.grad for name, leaf in leaves.items()}
    return {f"output {n}": y.detach() for n, y in enumerate(outputs)} | gradients


def compare_gemms(rank: int, overlap: str, rows: int, seed: int) -> dict[str, float]:
    """Relative errors of a variant against `off`."""
    one, other = products(rank, "off", rows, seed), products(rank, overlap, rows, seed)
    assert all(one[name].shape == other[name].shape and one[name].any() for name in one)
    return {name: relative_error(other[name], one[name]) for name in one}


def symmetric_ops_on_cpu() -> None:
    """Give this process torch's two fused ops on a CPU, by their definition."""
    importlib.import_module("torch.distributed._symmetric_memory")
    tensor_symmetric.require = lambda group, device: None

    def gather(
        a: Tensor, bs: list[Tensor], gather_dim: int, group_name: str, *, return_A: bool = True
    ) -> tuple[Tensor, list[Tensor]]:
        assert (gather_dim, return_A, group_name) == (0, True, dist.group.WORLD.group_name)
        assert a.is_contiguous()
        whole = a.new_empty(len(a) * dist.get_world_size(), a.shape[1])
        all_gather_into(whole, a)
        return whole, [whole @ b for b in bs]

    def scatter(a: Tensor, b: Tensor, reduce_op: str, scatter_dim: int, group_name: str) -> Tensor:
        assert (reduce_op, scatter_dim, group_name) == ("sum", 0, dist.group.WORLD.group_name)
        part = a.new_empty(len(a) // dist.get_world_size(), b.shape[1])
        reduce_scatter_into(part, a @ b)
        return part

    KEPT.append(library := torch.library.Library("symm_mem", "IMPL"))
    library.impl("fused_all_gather_matmul", gather, "CPU")
    library.impl("fused_matmul_reduce_scatter", scatter, "CPU")


KEPT: list[object] = []
"""A library's ops go with it."""


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("variant", ["chunked 1", "chunked 5", "symmetric 4"])
def test_products_of_a_variant_are_those_of_off(
    found: dict[int, list[Found]], variant: str, world: int
) -> None:
    for rank in found[world]:
        assert max(rank.errors[variant].values()) < FLOAT32, f"seed {rank.seed}: {rank.errors[variant]}"


@pytest.mark.parametrize("rows", [*range(1, 2 * CHUNKS + 2), 1000])
def test_pieces_are_all_rows_once_and_alike(rows: int) -> None:
    found = list(pieces(rows))
    sizes = [piece.stop - piece.start for piece in found]
    assert [row for piece in found for row in range(rows)[piece]] == list(range(rows))
    assert len(found) == min(rows, CHUNKS)
    assert max(sizes) - min(sizes) <= 1


CALLS = {
    "c10d::broadcast_": "broadcast", "c10d::_allgather_base_": "gather",
    "c10d::_reduce_scatter_base_": "scatter", "aten::mm": "mm", "aten::addmm_": "mm", "aten::bmm": "mm",
}  # fmt: skip


def launches(run: Callable[[], Any]) -> tuple[Any, list[str]]:
    """A result, and the collectives and products of it in the order in which the host launched them."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        result = run()
    events = sorted(profiler.events(), key=lambda event: event.time_range.start)
    return result, [CALLS[event.name] for event in events if event.name in CALLS]


def order_of_calls() -> dict[tuple[str, str], tuple[list[str], list[str]]]:
    """Of each variant and kind of product, forward and backward."""
    group, found = dist.group.WORLD, {}
    for overlap in ON_CPU:
        x_SBD, weights = torch.randn(4, 1, 8), [torch.randn(6, 8, requires_grad=True) for _ in range(2)]
        h_SBN, weight_DN = torch.randn(8, 1, 6), torch.randn(8, 6, requires_grad=True)
        calls = {
            "gather": partial(gather_matmul, x_SBD.requires_grad_(), weights, group, overlap),
            "scatter": partial(matmul_scatter, h_SBN.requires_grad_(), weight_DN, group, overlap),
        }
        for name, call in calls.items():
            y, forward = launches(call)
            total = y.sum() if isinstance(y, Tensor) else sum(one.sum() for one in y)
            found[overlap, name] = (forward, launches(total.backward)[1])
    return found


def test_collectives_are_on_their_way_while_products_run(found: dict[int, list[Found]]) -> None:
    for rank in found[2]:
        assert rank.calls == {
            ("off", "gather"): (["gather", "mm", "mm"], [*["mm"] * 4, "scatter"]),
            ("off", "scatter"): (["mm", "scatter"], ["gather", "mm", "mm"]),
            # Both sends before the four products: of own rows and of the other's, by two weights.
            ("chunked", "gather"): ([*["broadcast"] * 2, *["mm"] * 4], ["mm", "mm", "scatter", "mm", "mm"]),
            ("chunked", "scatter"): (["mm", "scatter"] * CHUNKS, [*["broadcast"] * 2, *["mm"] * 3]),
        }


def ask_for_symmetric() -> list[str]:
    """Messages of a check, of a run, and of a check by a group of one rank, which has nothing to overlap."""
    messages = []
    x_SBD, weight_ND = torch.ones(2, 1, 8), torch.ones(4, 8)
    for call in (
        lambda: require("symmetric", dist.group.WORLD, torch.device("cpu")),
        lambda: gather_matmul(x_SBD, [weight_ND], dist.group.WORLD, "symmetric"),
        lambda: matmul_scatter(x_SBD, weight_ND, dist.group.WORLD, "symmetric"),
    ):
        with pytest.raises(TracelensError) as caught:
            call()
        messages.append(str(caught.value))
    require("symmetric", None, torch.device("cpu"))
    require("chunked", dist.group.WORLD, torch.device("cpu"))
    return messages


def test_symmetric_is_refused_without_a_gpu(found: dict[int, list[Found]]) -> None:
    message = "tp_overlap=symmetric needs GPUs, and the tensors are on cpu: use tp_overlap=chunked"
    assert all(rank.refused == [message] * 3 for rank in found[2])
