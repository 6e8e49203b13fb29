"""What the host reads of the device in an MoE layer: less with each step of `sync_free`, at last nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

import torch.distributed as dist  # noqa: E402
from torch._subclasses.fake_tensor import (  # noqa: E402
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tests.workload.agree import moe_config  # noqa: E402
from tracelens.workload.model.model import MoE  # noqa: E402
from tracelens.workload.parallel import Groups, initialise  # noqa: E402

DISPATCHERS = ("alltoall", "allgather", "dedup")
FUSED = list(product(DISPATCHERS, ("plain", "fused"), ("plain", "fused")))
READS = {
    "_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "bincount", "equal", "_unique2",
    "unique_consecutive", "unique_dim",
}  # fmt: skip
"""Ops whose result the host needs before it can go on."""


class Reads(TorchDispatchMode):
    """Counts what the host reads, by op."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = op.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        unknown_size = name == "repeat_interleave" and not (kwargs or {}).get("output_size")
        if name in READS or by_mask or unknown_size:
            self.found.append(name)
        return op(*args, **(kwargs or {}))


def reads(sync_free: int, dispatch: str, *fields: str) -> list[str]:
    """Ops by which the host reads in the forward and backward of a layer, its experts over one rank."""
    experts = "grouped" if sync_free >= 2 else "loop"
    config = moe_config(f"sync_free={sync_free}", f"dispatch={dispatch}", f"experts={experts}", *fields)
    layer = MoE(config, Groups(config.layout, ep=dist.group.WORLD, sequence=dist.group.WORLD), "L0")
    initialise(layer, seed=0, std=0.5)
    x_SBD = torch.randn(8, 1, 16, requires_grad=True)
    # On the CPU tolist is no op: it reads the memory. On a GPU it is one copy to the host.
    tolist = torch.Tensor.tolist
    with pytest.MonkeyPatch.context() as patch, Reads() as mode:
        patch.setattr(torch.Tensor, "tolist", lambda x: mode.found.append("tolist") or tolist(x))
        layer(x_SBD).sum().backward()
    return mode.found


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A group of one rank, so that everything is exchanged as among many."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """The first of two ranks, whose exchanges go nowhere."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


# Of the baseline: `nonzero` for each sort, an `item` for each of 8 experts; sizes of messages by `tolist`,
# with alltoall two of them, with allgather an `item`.
BASELINE = {
    "alltoall": {"nonzero": 2, "tolist": 2, "_local_scalar_dense": 8},
    "allgather": {"nonzero": 1, "_local_scalar_dense": 9},
    "dedup": {"nonzero": 2, "tolist": 1, "_local_scalar_dense": 8},
}


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("dispatch", DISPATCHERS)
def test_each_step_reads_less(dispatch: str) -> None:
    found = [reads(sync_free, dispatch) for sync_free in range(4)]
    assert {name: found[0].count(name) for name in found[0]} == BASELINE[dispatch]
    assert [len(names) for names in found[1:]] == [2, 1, 0]


@pytest.mark.usefixtures("one_rank")
def test_with_grouped_experts_a_step_reads_less_too() -> None:
    assert [len(reads(sync_free, "alltoall", "experts=grouped")) for sync_free in range(4)] == [5, 2, 1, 0]


def run_without_values(sync_free: int, dispatch: str, *fields: str) -> None:
    """Forward and backward on the first of two ranks, on tensors that have a shape but no values."""
    config = moe_config(
        f"sync_free={sync_free}", f"dispatch={dispatch}", "experts=grouped", "ranks=2", "tp=2", *fields
    )
    with FakeTensorMode():
        groups = Groups(config.layout, ep=dist.group.WORLD, tp=dist.group.WORLD, sequence=dist.group.WORLD)
        # A grouped GEMM without values is known for bfloat16 alone.
        torch.set_default_dtype(torch.bfloat16)
        try:
            layer = MoE(config, groups, "L0")
        finally:
            torch.set_default_dtype(torch.float32)
        x_SBD = torch.randn(4, 1, 16, dtype=torch.bfloat16, requires_grad=True)
        layer(x_SBD).sum().backward()
        assert x_SBD.grad.shape == x_SBD.shape


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("routing", ["learned", "balanced", "skewed"])
@pytest.mark.parametrize(("dispatch", "permute", "router"), FUSED)
def test_static_buffers_need_no_value_at_all(dispatch: str, permute: str, router: str, routing: str) -> None:
    """Not a single op or shape depends on what the tensors hold: nothing can be read."""
    run_without_values(3, dispatch, f"permute={permute}", f"router={router}", f"routing={routing}")


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize(("dispatch", "sync_free"), list(product(DISPATCHERS, range(3))))
def test_anything_else_needs_values(dispatch: str, sync_free: int) -> None:
    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        run_without_values(sync_free, dispatch)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dispatch", "permute", "router"), FUSED)
def test_static_buffers_never_block_on_a_gpu(dispatch: str, permute: str, router: str) -> None:
    config = moe_config(
        "sync_free=3", "experts=grouped", f"dispatch={dispatch}", f"permute={permute}", f"router={router}"
    )
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
    try:
        layer = MoE(config, Groups(config.layout, ep=dist.group.WORLD, sequence=dist.group.WORLD), "L0")
        initialise(layer, seed=0, std=0.5)
        layer.to(device, torch.bfloat16)
        x_SBD = torch.randn(8, 1, 16, device=device, dtype=torch.bfloat16, requires_grad=True)
        layer(x_SBD).sum().backward()  # compiles kernels, which may block
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        layer(x_SBD).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        dist.destroy_process_group()
