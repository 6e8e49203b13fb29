"""The sharded optimizer is AdamW with summed gradients, on any ranks and by any way of summing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

from torch import Tensor, nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from tests.workload.ranks import run_ranks  # noqa: E402
from tracelens.errors import TracelensError  # noqa: E402
from tracelens.planner.config import (  # noqa: E402
    CHOICES,
    Config,
    Layout,
    preset,
)
from tracelens.workload.model import Transformer  # noqa: E402
from tracelens.workload.parallel import (  # noqa: E402
    Groups,
    ShardedAdamW,
    initialise,
    make_groups,
    shard,
)
from tracelens.workload.parallel.collectives import GROUPS  # noqa: E402
from tracelens.workload.parallel.optimizer import ALIGNMENT_BYTES, REPLICAS, by_node, make_reductions  # noqa: E402

KINDS = CHOICES["grad_reduce"]
STEPS = 3
RATE = 1e-2
# Odd sizes, so that parameters need alignment and the buffers padding.
SHAPES = {"stage": [(5, 7), (33,)], "dense": [(3, 11), (40,)], "edp": [(2, 9, 5)]}
# Folder of traces, and `four_ranks` of each rank.
Found = tuple[Path, list[dict[str, Any]]]

LAYOUTS = {
    "dp4 on two nodes": Layout(4, node=2),
    "dp2 x ep2 on two nodes": Layout(4, ep=2, node=2),
    "dp2 x tp2 on two nodes": Layout(4, tp=2, node=2),
    "pp2 x dp2": Layout(4, pp=2, node=2),
}


def config_of(kind: str = "reduce_scatter", dtype: str = "float32", main: bool = False) -> Config:
    base = preset("tiny")
    return replace(
        base,
        toggles=replace(base.toggles, grad_reduce=kind),
        training=replace(base.training, learning_rate=RATE, dtype=dtype, main_params=main),
    )


def relative_error(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def normal(shape: tuple[int, ...], *seed: object) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(hash(seed) % 2**31))


def parameters_of(layout: Layout, rank: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """As the modules mark them; equal on ranks that hold the same. Marks alternate."""
    found = []
    for number in range(2):
        for replicas, shapes in SHAPES.items():
            if number < len(shapes):
                values = normal(shapes[number], number, replicas_of(layout, rank, replicas))
                found.append(shard(nn.Parameter(values.to(dtype)), replicas))
    return found


def replicas_of(layout: Layout, rank: int, replicas: str) -> tuple[int, ...]:
    return next(tuple(ranks) for ranks in layout.groups(*GROUPS[replicas]) if rank in ranks)


def gradient(rank: int, step: int, part: int, number: int, parameter: Tensor) -> Tensor:
    return normal(tuple(parameter.shape), rank, step, part, number).to(parameter.dtype)


def backward(rank: int, step: int, parameters: list[nn.Parameter]) -> None:
    """Twice, as with two micro-batches."""
    for part in range(2):
        losses = [(p * gradient(rank, step, part, n, p)).sum() for n, p in enumerate(parameters)]
        torch.stack(losses).sum().backward()


def train(
    rank: int, layout: Layout, kinds: list[str], dtype: torch.dtype, main: bool
) -> dict[str, tuple[list[Tensor], dict[str, int], dict[str, int]]]:
    """By kind: parameters in the end, bytes as told and as allocated."""
    groups, found = make_groups(layout, rank), {}
    for kind in kinds:
        parameters = parameters_of(layout, rank, dtype)
        optimizer = ShardedAdamW(parameters, config_of(kind, str(dtype).removeprefix("torch."), main), groups)
        for step in range(STEPS):
            backward(rank, step, parameters)
            optimizer.step()
            optimizer.zero_grad()
        found[kind] = [p.detach().clone() for p in parameters], optimizer.bytes, allocated(optimizer)
    return found


def reference(rank: int, layout: Layout, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """torch's AdamW in float32, of the same values, with the gradients of all ranks that hold the same."""
    parameters = parameters_of(layout, rank, dtype)
    wide = [nn.Parameter(p.detach().float()) for p in parameters]
    adamw = torch.optim.AdamW(wide, lr=RATE)
    for step in range(STEPS):
        for number, (one, like) in enumerate(zip(wide, parameters, strict=True)):
            ranks = replicas_of(layout, rank, like.replicas)
            parts = [gradient(other, step, part, number, like) for other in ranks for part in range(2)]
            one.grad = torch.stack([part.float() for part in parts]).sum(0)
        adamw.step()
    return [p.detach() for p in wide]


def allocated(optimizer: ShardedAdamW) -> dict[str, int]:
    """Sizes of the storages that are there."""
    states = optimizer.adamw.state.values()
    main = [p for group in optimizer.adamw.param_groups for p in group["params"]]
    owned = {buffer.data_N.untyped_storage().data_ptr() for buffer in optimizer.buffers}
    return {
        "parameters": sum(buffer.data_N.untyped_storage().nbytes() for buffer in optimizer.buffers),
        "gradients": sum(buffer.grad_N.untyped_storage().nbytes() for buffer in optimizer.buffers),
        "main_parameters": sum(
            p.untyped_storage().nbytes() for p in main if p.untyped_storage().data_ptr() not in owned
        ),
        "optimizer": sum(
            state[name].untyped_storage().nbytes() for state in states for name in ("exp_avg", "exp_avg_sq")
        ),
    }


def test_one_rank_trains_the_model_as_adamw_does() -> None:
    """The real model, with a grouped GEMM, recomputed layers and an embedding: all add in place."""
    config = config_of()
    config = replace(config, toggles=replace(config.toggles, experts="grouped", recompute_layer_ids=(0, 2)))
    groups = Groups(config.layout)
    model = Transformer(config, groups)
    initialise(model, seed=1, std=0.1)
    plain = deepcopy(model)
    adamw = torch.optim.AdamW(plain.parameters(), lr=RATE)
    optimizer = ShardedAdamW(model.parameters(), config, groups)
    for step in range(STEPS):
        for part in range(2):
            token_SB = torch.randint(256, (32, 2), generator=torch.Generator().manual_seed(step * 2 + part))
            for one in (model, plain):
                one(token_SB).log_softmax(-1).square().mean().backward()
        for buffer in optimizer.buffers:
            buffer.check()
        for one in (optimizer, adamw):
            one.step()
            one.zero_grad()
        for (name, a), b in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert relative_error(a.detach(), b.detach()) < 1e-6, (step, name)
    assert optimizer.messages == []


def four_ranks(rank: int, folder: Path) -> dict[str, Any]:
    """What the tests below look at, of one start of four processes."""
    layout = LAYOUTS["dp2 x ep2 on two nodes"]
    return {
        "float32": {name: train(rank, one, KINDS, torch.float32, False) for name, one in LAYOUTS.items()},
        "bfloat16": train(rank, layout, KINDS, torch.bfloat16, True),
        "moves": [moves(rank, one) for one in ONE_LEVEL],
        "messages": record(rank, layout, folder),
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("ranks")
    return folder, run_ranks(4, four_ranks, folder, folder=folder)


def check_float32(layout: Layout, results: list[dict[str, Any]]) -> None:
    for rank, by_kind in enumerate(results):
        expected = reference(rank, layout)
        for kind in KINDS:
            parameters, told, there = by_kind[kind]
            for one, other in zip(parameters, expected, strict=True):
                assert relative_error(one, other) < 1e-6, (rank, kind)
            assert told == there, (rank, kind)
            assert told["main_parameters"] == 0


def test_two_ranks_equal_one_with_the_summed_gradients(tmp_path: Path) -> None:
    layout = Layout(2)
    check_float32(layout, run_ranks(2, train, layout, KINDS, torch.float32, False, folder=tmp_path))


@pytest.mark.parametrize("name", LAYOUTS)
def test_four_ranks_equal_one_with_the_summed_gradients(name: str, found: Found) -> None:
    check_float32(LAYOUTS[name], [one["float32"][name] for one in found[1]])


def test_main_copies_follow_float32(found: Found) -> None:
    layout = LAYOUTS["dp2 x ep2 on two nodes"]
    for rank, one in enumerate(found[1]):
        for kind in KINDS:
            parameters, told, there = one["bfloat16"][kind]
            for got, other in zip(parameters, reference(rank, layout, torch.bfloat16), strict=True):
                # Half a step of bfloat16 is 2**-9 of a number; sums of gradients are rounded like this too.
                assert relative_error(got, other) < 2**-8, (rank, kind)
            assert told == there, (rank, kind)
            # Stage and dense are on all four ranks here, experts on two.
            whole = {"stage": 4, "dense": 4, "edp": 2}
            elements = {mark: size // 2 for mark, size in padded(SHAPES, 2, whole).items()}
            assert told["main_parameters"] == sum(4 * n // whole[mark] for mark, n in elements.items())
            assert told["optimizer"] == 2 * told["main_parameters"]
            assert told["parameters"] == told["gradients"] == 2 * sum(elements.values())


def padded(shapes: dict[str, list[tuple[int, ...]]], itemsize: int, ranks: dict[str, int]) -> dict[str, int]:
    """Bytes of the buffers, worked out the slow way."""
    found = {}
    for mark, all_shapes in shapes.items():
        size = 0
        for shape in all_shapes:
            size += torch.Size(shape).numel() * itemsize
            while size % ALIGNMENT_BYTES:
                size += 1
        while size % (ALIGNMENT_BYTES * ranks[mark]):
            size += 1
        found[mark] = size
    return found


def test_small_updates_survive_in_main_copies_alone() -> None:
    """A bfloat16 of 1 has steps of 2**-8 below and 2**-7 above: updates of 1e-4 are rounded away."""
    ends = {}
    for main in (False, True):
        config = config_of(dtype="bfloat16", main=main)
        config = replace(config, training=replace(config.training, learning_rate=1e-4))
        parameter = shard(nn.Parameter(torch.ones(64, dtype=torch.bfloat16)), "stage")
        optimizer = ShardedAdamW([parameter], config, Groups(Layout()))
        for _ in range(100):
            parameter.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        ends[main] = parameter.detach().float()
    assert torch.equal(ends[False], torch.ones(64))
    # 100 steps of 1e-4 for a constant gradient, and decay of 1e-2 x 1e-4 each.
    assert float((ends[True] - (1 - 100 * (1e-4 + 1e-6))).abs().max()) < 2**-9


def test_parameters_may_be_initialised_after_the_optimizer() -> None:
    parameter = shard(nn.Parameter(torch.zeros(8, dtype=torch.bfloat16)), "stage")
    optimizer = ShardedAdamW([parameter], config_of(dtype="bfloat16", main=True), Groups(Layout()))
    with torch.no_grad():
        parameter.fill_(2)
    parameter.sum().backward()
    optimizer.step()
    assert torch.allclose(parameter.detach().float(), torch.full((8,), 2 - RATE), atol=2**-7)


def test_parameters_are_aligned_views() -> None:
    parameters = parameters_of(Layout(), 0)
    before = [p.detach().clone() for p in parameters]
    optimizer = ShardedAdamW(parameters, config_of(), Groups(Layout()))
    for buffer in optimizer.buffers:
        for parameter in buffer.parameters:
            for tensor, flat in ((parameter, buffer.data_N), (parameter.grad, buffer.grad_N)):
                assert tensor.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
                assert tensor.storage_offset() * tensor.element_size() % ALIGNMENT_BYTES == 0
    assert all(torch.equal(a, b) for a, b in zip(parameters, before, strict=True))
    backward(0, 0, parameters)
    optimizer.zero_grad()
    assert all(not p.grad.any() for p in parameters)


def other_dtype() -> list[nn.Parameter]:
    return [shard(nn.Parameter(torch.ones(2, dtype=t)), "stage") for t in (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [], "no parameters"),
        (lambda: [nn.Parameter(torch.ones(2))], "marked None"),
        (lambda: [shard(nn.Parameter(torch.ones(2)), "tp")], "marked 'tp'"),
        (lambda: [shard(nn.Parameter(torch.ones(2)), "edp")] * 2, "was passed before"),
        (other_dtype, "one dtype and device"),
    ],
)
def test_what_cannot_be_optimized_is_refused(make: Any, message: str) -> None:
    with pytest.raises(TracelensError, match=message):
        ShardedAdamW(make(), config_of(), Groups(Layout()))


def test_a_gradient_that_left_the_buffer_is_refused() -> None:
    parameters = parameters_of(Layout(), 0)
    optimizer = ShardedAdamW(parameters, config_of(), Groups(Layout()))
    parameters[1].grad = None
    with pytest.raises(TracelensError, match=r"\(3, 11\): its grad was dropped"):
        optimizer.step()
    backward(0, 0, parameters)  # makes a gradient of its own
    with pytest.raises(TracelensError, match="its grad was replaced"):
        optimizer.step()
    parameters = parameters_of(Layout(), 0)
    optimizer = ShardedAdamW(parameters, config_of(), Groups(Layout()))
    parameters[0].data = parameters[0].data.clone()
    with pytest.raises(TracelensError, match="its data was replaced"):
        optimizer.step()


def test_sums_are_not_summed_again() -> None:
    optimizer = ShardedAdamW(parameters_of(Layout(), 0), config_of(), Groups(Layout()))
    optimizer.step()
    with pytest.raises(TracelensError, match="zero_grad"):
        optimizer.step()
    optimizer.zero_grad()
    optimizer.step()


def test_nodes_of_a_group() -> None:
    assert by_node(range(4), 2) == [(0, 1), (2, 3)]
    assert by_node([1, 3, 5, 7], 4) == [(1, 3), (5, 7)]
    assert by_node([0, 4], 4) == [(0,), (4,)]
    with pytest.raises(TracelensError, match="some nodes of 4 have 2 of them, others 4"):
        by_node(range(6), 4)


def test_hierarchical_needs_even_nodes() -> None:
    layout = Layout(12, pp=2, node=4)  # a stage of 6 ranks has 4 on one node and 2 on another
    with pytest.raises(TracelensError, match="another grad_reduce"):
        make_reductions("hierarchical", Groups(layout))


ONE_LEVEL = [Layout(4), Layout(4, node=1), Layout(4, node=2, ep=2), Layout(4, pp=2, node=2)]


def moves(rank: int, layout: Layout) -> dict[str, list[str]]:
    by_mark = make_reductions("hierarchical", make_groups(layout, rank))
    return {mark: [f"{move.collective} {move.team.name}" for move in by_mark[mark]] for mark in REPLICAS}


def test_hierarchical_with_one_level_is_all_reduce(found: Found) -> None:
    levels = ["reduce_scatter dp_node", "all_reduce dp_across", "all_gather dp_node"]
    for rank in found[1]:
        one_node, one_a_node, both, stages = rank["moves"]
        assert one_node == {"stage": ["all_reduce dp_cp_tp"], "dense": ["all_reduce dp_cp"], "edp": []}
        assert one_a_node == one_node
        assert both == {"stage": levels, "dense": levels, "edp": ["all_reduce edp"]}
        assert stages == one_node


OPS = {
    "c10d::_reduce_scatter_base_": ("reduce_scatter", lambda dims: dims[1]),
    "c10d::allreduce_": ("all_reduce", lambda dims: dims[0][0]),
    "c10d::_allgather_base_": ("all_gather", lambda dims: dims[0]),
}


def record(rank: int, layout: Layout, folder: Path) -> dict[str, Any]:
    groups, found = make_groups(layout, rank), {}
    for kind in KINDS:
        parameters = parameters_of(layout, rank)
        optimizer = ShardedAdamW(parameters, config_of(kind), groups)
        backward(rank, 0, parameters)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
            optimizer.step()
        recorded.export_chrome_trace(str(folder / f"{kind}{rank}.json"))
        found[kind] = optimizer.messages
    return found


def collectives(events: list[dict[str, Any]]) -> Iterator[tuple[str, str, int]]:
    """Scope, collective and bytes of each in the trace, in their order."""
    scopes = [event for event in events if event.get("name") in ("grad_reduce", "opt", "param_gather")]
    for event in sorted((event for event in events if event.get("name") in OPS), key=lambda one: one["ts"]):
        name, size = OPS[event["name"]]
        inside = [s["name"] for s in scopes if s["ts"] <= event["ts"] < s["ts"] + s["dur"]]
        yield inside[0], name, 4 * size(event["args"]["Input Dims"])[0]


def test_trace_shows_the_messages(found: Found) -> None:
    folder, results = found
    for rank, messages in enumerate(one["messages"] for one in results):
        size = padded(SHAPES, 4, {"stage": 4, "dense": 4, "edp": 2})
        edp = (rank % 2, rank % 2 + 2)
        inside, across = ((0, 1) if rank < 2 else (2, 3)), edp
        expected = [(m.collective, m.group, m.ranks, m.bytes) for m in messages["hierarchical"]]
        levels = [
            [
                ("reduce_scatter", "dp_node", inside, size[mark]),
                ("all_reduce", "dp_across", across, size[mark] // 2),
                ("all_gather", "dp_node", inside, size[mark]),
            ]
            for mark in ("stage", "dense")
        ]
        names = {"stage": "dp_cp_tp", "dense": "dp_cp"}
        gathers = [("all_gather", name, (0, 1, 2, 3), size[mark]) for mark, name in names.items()]
        last = [("all_reduce", "edp", edp, size["edp"]), *gathers, ("all_gather", "edp", edp, size["edp"])]
        assert expected == [*levels[0], *levels[1], *last]
        for kind, told in messages.items():
            trace = json.loads((folder / f"{kind}{rank}.json").read_text())
            assert list(collectives(trace["traceEvents"])) == [
                (message.scope, message.collective, message.bytes) for message in told
            ], (rank, kind)
            known = {(g["pg_desc"], tuple(g["ranks"])) for g in trace["distributedInfo"]["pg_config"]}
            assert {(message.group, message.ranks) for message in told} <= known, (rank, kind)
