"""Every dispatcher, on several ranks, computes what one rank computes, and sends no more than it has to."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

import torch.distributed as dist  # noqa: E402

from tests.workload import fake_deep_ep  # noqa: E402
from tests.workload.agree import FLOAT32, moe_config, relative_error  # noqa: E402
from tests.workload.ranks import run_ranks  # noqa: E402
from tracelens.errors import TracelensError  # noqa: E402
from tracelens.planner.config import Config, Layout  # noqa: E402
from tracelens.workload.dispatch import make_dispatcher  # noqa: E402
from tracelens.workload.kernels import reference  # noqa: E402
from tracelens.workload.model.model import MoE  # noqa: E402
from tracelens.workload.parallel import (  # noqa: E402
    Groups,
    collectives,
    initialise,
    make_groups,
)

BFLOAT16 = 1e-2
"""Relative errors up to which results in bfloat16 agree."""


RUNS = 5


class Case(NamedTuple):
    """One way to run the layer; `first` routing sends all tokens to the first experts."""

    dispatch: str
    sync_free: int
    permute: str
    routing: str
    dtype: str = "float32"

    def config(self, layout: Layout, sequences: int = 1) -> Config:
        return moe_config(
            f"dispatch={self.dispatch}", f"sync_free={self.sync_free}", f"permute={self.permute}",
            f"experts={'grouped' if self.sync_free >= 2 else 'loop'}", f"dtype={self.dtype}",
            f"routing={'learned' if self.routing == 'first' else self.routing}", f"ranks={layout.ranks}",
            f"ep={layout.ep}", f"micro_batch={sequences}",
        )  # fmt: skip


ROUTINGS = ("skewed", "first")
CASES = [
    Case(*values)
    for values in product(("alltoall", "allgather", "dedup"), range(4), ("plain", "fused"), ROUTINGS)
]
HALF_CASES = [
    Case(dispatch, sync_free, permute, routing, "bfloat16")
    for dispatch, (sync_free, permute), routing in product(
        ("dedup", "deepep"), zip(range(4), ("plain", "fused", "plain", "fused"), strict=True), ROUTINGS
    )
]
LAYOUTS = [Layout(ranks=2), Layout(ranks=4), Layout(ranks=4, ep=2)]


def make_layer(config: Config, groups: Groups, case: Case, seed: int) -> MoE:
    layer = MoE(config, groups, "L0")
    initialise(layer, seed, std=0.5)
    if case.routing == "first":
        weight_ED = layer.router.weight_ED.data
        weight_ED.abs_()[config.model.top_k :].neg_()
    return layer.to(getattr(torch, case.dtype))


def some_tensors(config: Config, case: Case, seed: int, sequences: int) -> tuple[Any, Any]:
    """Input of the layer for all ranks, and the gradient of its output."""
    generator = torch.Generator().manual_seed(seed)
    shape = (config.training.seq, sequences, config.model.hidden)
    x_SBD, g_SBD = (torch.randn(shape, generator=generator) for _ in range(2))
    return x_SBD.abs() if case.routing == "first" else x_SBD, g_SBD


def run_layer(layer: MoE, x_SBD: Any, g_SBD: Any) -> dict[str, Any]:
    """Output and gradients."""
    dtype = layer.router.weight_ED.dtype
    x_SBD = x_SBD.to(dtype, copy=True).requires_grad_()
    y_SBD = layer(x_SBD)
    y_SBD.backward(g_SBD.to(dtype))
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {"y": y_SBD.detach(), "x": x_SBD.grad} | gradients


def on_rank(rank: int, layouts: list[Layout], seed: int) -> tuple[list[dict[str, Any]], dict[Case, int]]:
    """Outputs and gradients of this rank, of parameters summed over their replicas; and what it sent."""
    sys.modules["deep_ep"] = fake_deep_ep
    found = []
    for layout in layouts:
        groups = make_groups(layout, rank)
        for case in CASES + HALF_CASES:
            fake_deep_ep.calls.clear()
            config = case.config(layout)
            layer = make_layer(config, groups, case, seed)
            tensors = some_tensors(config, case, seed, sequences=layout.ranks)
            chosen: list[Any] = []
            layer.router.register_forward_hook(lambda _m, _i, out, chosen=chosen: chosen.append(out[1]))
            layer.experts.register_forward_hook(lambda _m, args, _o, chosen=chosen: chosen.append(args[1]))
            with sent_to_others() as sent, nothing_in_padded_rows():
                one = run_layer(layer, *(t_SBD[:, rank : rank + 1] for t_SBD in tensors))
            for name, parameter in layer.named_parameters():
                group = getattr(groups, parameter.replicas)
                if group is not None:
                    dist.all_reduce(one[name], group=group)
            one |= {"expert_TK": chosen[0], "rows_e": chosen[1]}
            found.append(one | {"sent": sent, "calls": list(fake_deep_ep.calls)})
    return found, tensors_left(make_groups(layouts[0], rank), layouts[0])


@contextmanager
def sent_to_others() -> Iterator[list[tuple[int, ...]]]:
    """Rows that go to other ranks, and their shape, of each exchange of floats."""
    sent: list[tuple[int, ...]] = []
    real_all_to_all = dist.all_to_all_single
    real_gather, real_scatter = collectives.all_gather_into, collectives.reduce_scatter_into

    def note(x: Any, to_self: int, copies: int = 1) -> None:
        if x.is_floating_point():
            sent.append(((len(x) - to_self) * copies, *x.shape[1:]))

    def all_to_all_single(y: Any, x: Any, receive: Any = None, send: Any = None, **options: Any) -> Any:
        ranks, me = options["group"].size(), options["group"].rank()
        note(x, send[me] if send else len(x) // ranks)
        return real_all_to_all(y, x, receive, send, **options)

    def all_gather(y: Any, x: Any, **options: Any) -> Any:
        note(x, 0, options["group"].size() - 1)
        return real_gather(y, x, **options)

    def reduce_scatter(y: Any, x: Any, **options: Any) -> Any:
        note(x, len(y))
        return real_scatter(y, x, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_to_all_single", all_to_all_single)
        patch.setattr(collectives, "all_gather_into", all_gather)
        patch.setattr(collectives, "reduce_scatter_into", reduce_scatter)
        yield sent


@contextmanager
def nothing_in_padded_rows() -> Iterator[None]:
    """Let the fused permutation leave what is no number in rows without a token, as a kernel may."""
    real_permute = reference.permute

    def permute(x_TD: Any, rows: Any) -> Any:
        return torch.where((rows.token_R >= 0).unsqueeze(1), real_permute(x_TD, rows), float("nan"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "permute", permute)
        yield


class Found(NamedTuple):
    """What the ranks found.

    Attributes:
        seed: of weights and inputs.
        results: of each layout and case, what each rank found.
        left: of each rank, tensors that a run of a case leaves behind.
    """

    seed: int
    results: dict[tuple[Layout, Case], list[dict[str, Any]]]
    left: list[dict[Case, int]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """All cases in all layouts: the ranks are started once for each number of them."""
    everything = Found(int(torch.randint(2**31, ())), {}, [])
    for ranks in (2, 4):
        layouts = [layout for layout in LAYOUTS if layout.ranks == ranks]
        folder: Path = tmp_path_factory.mktemp(f"ranks{ranks}")
        of_ranks = run_ranks(ranks, on_rank, layouts, everything.seed, folder=folder)
        rows = zip(*(results for results, _ in of_ranks), strict=True)
        keys = product(layouts, CASES + HALF_CASES)
        everything.results.update(zip(keys, map(list, rows), strict=True))
        everything.left.extend(left for _, left in of_ranks)
    return everything


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_several_ranks_compute_what_one_does(layout: Layout, found: Found) -> None:
    wrong = []
    for routing in ROUTINGS:
        base = Case("alltoall", 0, "plain", routing)
        config = base.config(Layout(), sequences=layout.ranks)
        layer = make_layer(config, Groups(config.layout), base, found.seed)
        expected = run_layer(layer, *some_tensors(config, base, found.seed, layout.ranks))
        for case in (one for one in CASES if one.routing == routing):
            for rank, of_rank in enumerate(found.results[layout, case]):
                part = layout.coordinates(rank)["ep"]
                for name, whole in expected.items():
                    mine = whole
                    if name in ("x", "y"):
                        mine = whole[:, rank : rank + 1]
                    elif name.startswith("experts."):
                        mine = whole.chunk(layout.experts_over)[part]
                    error = relative_error(of_rank[name], mine)
                    if not error < FLOAT32:
                        wrong.append((case, rank, name, error))
    assert not wrong, f"seed {found.seed}"


def to_others(expert_TK: Any, layout: Layout, rank: int, each: bool) -> int:
    """Copies that a rank's tokens need on other ranks: one for each expert, or for each rank."""
    experts, me = 8 // layout.experts_over, layout.coordinates(rank)["ep"]
    ranks = [[expert // experts for expert in of_token] for of_token in expert_TK.tolist()]
    return sum(len([r for r in (of if each else set(of)) if r != me]) for of in ranks)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_each_choice_is_one_row_of_one_expert(layout: Layout, found: Found) -> None:
    for case in CASES + HALF_CASES:
        of_ranks = found.results[layout, case]
        for edp in range(layout.ranks // layout.experts_over):
            ranks = [rank for rank in range(layout.ranks) if layout.coordinates(rank)["edp"] == edp]
            chosen_C = torch.cat([of_ranks[rank]["expert_TK"].flatten() for rank in ranks])
            rows_E = torch.cat([of_ranks[rank]["rows_e"] for rank in ranks])
            assert rows_E.tolist() == torch.bincount(chosen_C, minlength=8).tolist(), case


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_no_more_is_sent_than_has_to_be(layout: Layout, found: Found) -> None:
    """Of full-width exchanges in order: there, back, and in the backward there and back again."""
    others, T, K, D = layout.experts_over - 1, 8, 2, 16
    for case, rank in product(CASES, range(layout.ranks)):
        of_rank = found.results[layout, case][rank]
        wide = [rows for rows, *width in of_rank["sent"] if width == [D]]
        if case.dispatch == "allgather":
            assert wide == [T * others] * 4, case
        elif case.sync_free == 3:
            room = T * min(K, 8 // layout.experts_over) if case.dispatch == "alltoall" else T
            assert wide == [room * others] * 4, case
        else:
            there = to_others(of_rank["expert_TK"], layout, rank, each=case.dispatch == "alltoall")
            assert [wide[0], wide[2]] == [there, there], (case, rank)
            assert wide[1] == wide[3], (case, rank)
        if case.dispatch == "dedup":
            narrow = [rows for rows, *width in of_rank["sent"] if width == [2 * K]]
            assert narrow == [wide[0], wide[1]], case


def test_a_rank_without_tokens_was_among_the_cases(found: Found) -> None:
    for layout in LAYOUTS:
        of_ranks = found.results[layout, Case("alltoall", 0, "plain", "first")]
        assert all(int(of_rank["expert_TK"].max()) < 2 for of_rank in of_ranks)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_deepep_computes_what_dedup_does(layout: Layout, found: Found) -> None:
    """In bfloat16, the only dtype that the library takes, with a stand-in for it."""
    for case in (one for one in HALF_CASES if one.dispatch == "deepep"):
        both = (found.results[layout, case._replace(dispatch=name)] for name in ("deepep", "dedup"))
        for mine, other in zip(*both, strict=True):
            for name in (key for key, value in other.items() if torch.is_tensor(value)):
                assert relative_error(mine[name], other[name]) < BFLOAT16, (case, name, found.seed)
            room = 8 * layout.experts_over if case.sync_free == 3 else 0
            # Forward there and back, then the backward of the way back, and of the way there.
            assert mine["calls"] == [
                ("get_dispatch_layout", 0), ("dispatch", room), ("combine", 0),
                ("dispatch", 0), ("combine", 0),
            ]  # fmt: skip


class OfSize:
    """As much of a process group as a constructor asks for."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def size(self) -> int:
        return self.ranks


@pytest.mark.parametrize(
    ("ranks", "fields", "message"),
    [
        (2, ["dtype=bfloat16"], "needs the library DeepEP .*install it, or use dispatch=dedup"),
        (2, [], "takes dtype=bfloat16, not float32"),
        (2, ["dtype=bfloat16", "hidden=24"], "needs hidden to be a multiple of 16, not 24"),
        (1, ["dtype=bfloat16"], "needs experts over several ranks"),
        (16, ["dtype=bfloat16", "experts_count=16", "experts=grouped", "sync_free=3"], "ep of at most 8"),
    ],
)
def test_what_deepep_cannot_do_is_refused(ranks: int, fields: list[str], message: str) -> None:
    config = moe_config("dispatch=deepep", f"ranks={ranks}", fields=fields)
    groups = Groups(config.layout, ep=OfSize(ranks) if ranks > 1 else None)
    with pytest.raises(TracelensError, match=message) as error:
        make_dispatcher(config, groups, "L0")
    assert "dispatch=dedup" in str(error.value)


def test_deepep_refuses_a_number_of_ranks_that_the_library_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "deep_ep", fake_deep_ep)
    config = moe_config("dispatch=deepep", "ranks=3", "experts_count=6", "dtype=bfloat16")
    dispatcher = make_dispatcher(config, Groups(config.layout, ep=OfSize(3)), "L0")
    with pytest.raises(TracelensError, match="does not work over ep=3 ranks"):
        dispatcher.send(torch.ones(2, 16).bfloat16(), torch.ones(2, 2), torch.tensor([[0, 1], [2, 3]]))


def tensors_left(groups: Groups, layout: Layout) -> dict[Case, int]:
    """Tensors that some runs of a layer leave behind without garbage collection."""
    found = {}
    for dispatch in ("alltoall", "allgather", "dedup", "deepep"):
        case = Case(dispatch, 0, "plain", "skewed", "bfloat16")
        layer = make_layer(case.config(layout), groups, case, seed=0)
        tensors = some_tensors(case.config(layout), case, 0, sequences=1)
        run_layer(layer, *tensors)  # makes the gradients of the parameters
        gc.collect()
        gc.disable()
        before = living()
        for _ in range(RUNS):
            run_layer(layer, *tensors)
        found[case] = living() - before
        gc.enable()
    return found


def living() -> int:
    """Tensors that there are; by their type, as asking an odd object for its class may warn."""
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


def test_nothing_of_a_step_waits_for_the_garbage_collector(found: Found) -> None:
    """A cycle of references would keep the tokens of every layer until the next collection."""
    for left in found.left:
        # A backend's thread may not have let go of the last ones yet.
        assert {case: count for case, count in left.items() if count >= RUNS} == {}
