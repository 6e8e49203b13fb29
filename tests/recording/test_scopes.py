"""Scopes: where the forward and the backward of a part of a program stand in a trace, and what they cost."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.recording.traces import Scope, events_of, names, only, profiled
from tracelens.recording import region, scoped, span
from tracelens.recording.scopes import Region, _BackwardScope, _Open, recording


def leaf(*shape: int) -> Tensor:
    return torch.ones(*(shape or (2, 2)), requires_grad=True)


def nested_rightly(found: list[Scope]) -> bool:
    """Whether any two scopes of a thread lie one in the other or apart."""
    return all(
        a.tid != b.tid or a.holds(b) or b.holds(a) or a.beside(b)
        for place, a in enumerate(found)
        for b in found[place + 1 :]
    )


def test_a_span_is_a_scope_without_a_backward() -> None:
    def work() -> None:
        with span("data"):
            y = leaf() * 2
        y.sum().backward()

    assert names(profiled(work)) == ["data"]


def test_forward_and_backward_hold_their_ops() -> None:
    w = leaf()

    def work() -> None:
        x = leaf().exp()
        y = scoped("part", lambda x: (x @ w).tanh(), x)
        (y * 3).sum().backward()

    events = events_of(work)
    inside: dict[str, set[str]] = {}
    for scope in ("part", "part.B"):
        (outer,) = (event for event in events if event["name"] == scope)
        inside[scope] = {
            event["name"]
            for event in events
            if event.get("cat") == "cpu_op"
            and event["tid"] == outer["tid"]
            and outer["ts"] <= event["ts"] <= outer["ts"] + outer["dur"]
        }
    assert {"aten::mm", "aten::tanh"} <= inside["part"]
    assert not {"aten::exp", "aten::mul", "TanhBackward0"} & inside["part"]
    assert {"TanhBackward0", "MmBackward0"} <= inside["part.B"]
    assert not {"MulBackward0", "ExpBackward0", "SumBackward0"} & inside["part.B"]


def test_values_and_gradients_stay_the_same() -> None:
    x, w = leaf(3, 3), leaf(3, 3)

    def run() -> tuple[Tensor, ...]:
        y = scoped("a", lambda x, w: (x @ w).relu(), x.cos(), w=w)
        return (y, *torch.autograd.grad((y * y).sum(), (x, w)))

    plain = run()
    recorded: list[tuple[Tensor, ...]] = []
    profiled(lambda: recorded.append(run()))
    for expected, found in zip(plain, recorded[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_regions_nest_and_share_their_last_op() -> None:
    def work() -> None:
        with region("outer") as outer:
            y = outer.enter(leaf().exp())
            y = scoped("first", torch.tanh, y)
            y = outer.leave(scoped("second", torch.cos, y))
        y.sum().backward()

    found = profiled(work)
    assert names(found) == ["outer", "first", "second", "outer.B", "second.B", "first.B"]
    assert only(found, "outer.B").holds(only(found, "first.B"))
    assert only(found, "outer.B").holds(only(found, "second.B"))
    assert only(found, "first.B").beside(only(found, "second.B"))


def test_a_region_around_a_region() -> None:
    """Both begin at the same node and neither adds one behind it."""
    found = profiled(
        lambda: (
            scoped("a", lambda x: scoped("b", lambda x: scoped("c", torch.exp, x), x), leaf())
            .sum()
            .backward()
        )
    )
    assert names(found) == ["a", "b", "c", "a.B", "b.B", "c.B"]
    assert nested_rightly(found)


def test_several_tensors_and_structures() -> None:
    @dataclass
    class Out:
        y: Tensor
        rest: dict[str, Any]

    def part(x: Tensor, more: list[Tensor], *, scale: Tensor) -> Out:
        assert isinstance(more, list)
        return Out(x * scale, {"z": (more[0] + more[1], "text")})

    def work() -> None:
        out = scoped("part", part, leaf(), [leaf(), leaf()], scale=leaf())
        (out.y + out.rest["z"][0]).sum().backward()

    assert names(profiled(work)) == ["part", "part.B"]


def test_an_unused_output_and_an_unused_input() -> None:
    """The backward that uses one of two outputs never reaches the other, nor the input that only it needs."""
    a, b = leaf(), leaf()

    def work() -> None:
        y, _ = scoped("part", lambda a, b: (a * 2, b * 3), a, b)
        y.sum().backward()
        scoped("next", torch.exp, leaf()).sum().backward()

    found = profiled(work)
    assert names(found) == ["part", "part.B", "next", "next.B"]
    assert only(found, "part.B").beside(only(found, "next.B"))
    assert b.grad is None


def test_no_backward_no_scope() -> None:
    def work() -> None:
        scoped("dropped", torch.exp, leaf())
        scoped("no gradient enters", lambda x: x * leaf(), torch.ones(2, 2)).sum().backward()
        with torch.no_grad():
            scoped("no_grad", torch.exp, leaf())
        scoped("detached", lambda x: x.detach() * leaf(), leaf()).sum().backward()
        scoped("no tensor", len, "text")

    assert names(profiled(work)) == ["dropped", "no gradient enters", "no_grad", "detached", "no tensor"]


def test_a_parameter_that_enters_gives_a_backward() -> None:
    embedding = nn.Embedding(4, 2)

    def work() -> None:
        with region("embedding") as r:
            x = r.leave(nn.functional.embedding(torch.tensor([1, 3]), r.enter(embedding.weight)))
        x.sum().backward()

    assert names(profiled(work)) == ["embedding", "embedding.B"]
    assert embedding.weight.grad is not None
    assert embedding.weight.grad.sum() == 4


def test_an_input_that_is_also_used_elsewhere() -> None:
    """The gradient of a residual stream goes on past a region, whose backward ends with its own share."""

    def work() -> None:
        x = leaf().exp()
        y = x + scoped("early", torch.tanh, x)
        (y + scoped("late", torch.cos, x)).sum().backward()

    found = profiled(work)
    assert names(found) == ["early", "late", "late.B", "early.B"]
    assert only(found, "late.B").beside(only(found, "early.B"))


def test_backward_twice() -> None:
    def work() -> None:
        loss = scoped("part", torch.exp, leaf()).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    found = profiled(work)
    assert names(found) == ["part", "part.B", "part.B"]
    assert nested_rightly(found)


def test_changes_in_place_on_what_leaves_and_on_what_entered() -> None:
    x = leaf()

    def work() -> None:
        y = scoped("part", lambda x: x.mul_(2).sin(), x * 1)
        y += 1
        y.sum().backward()

    found = profiled(work)
    assert names(found)[0] == "part"
    torch.testing.assert_close(x.grad, 2 * torch.full((2, 2), 2.0).cos())


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation(reentrant: bool) -> None:
    """The forward again, inside of the backward of what is around; each part has one backward."""
    w = leaf()
    x = leaf()

    def layer(x: Tensor) -> Tensor:
        y = scoped("a", lambda x: (x @ w).tanh(), x)
        return scoped("b", lambda y: (y @ w).tanh(), y)

    def work() -> None:
        with region("layer") as r:
            y = r.leave(checkpoint(layer, r.enter(x.exp()), use_reentrant=reentrant))
        y.sum().backward()

    found = profiled(work)
    assert nested_rightly(found)
    assert names(found)[:4] == ["layer", "a", "b", "layer.B"]
    again = [scope for scope in found[4:] if not scope.name.endswith(".B")]
    assert names(again) == ["a", "b"]
    assert only(found, "a.B").beside(only(found, "b.B"))
    assert all(only(found, "layer.B").holds(scope) for scope in found[4:])
    gradient = x.grad
    x.grad = None
    layer(x.exp()).sum().backward()
    torch.testing.assert_close(gradient, x.grad)


def test_each_thread_has_its_own_scopes() -> None:
    barrier = threading.Barrier(2)

    def work() -> None:
        def one(name: str) -> None:
            y = scoped(name, torch.exp, leaf())
            barrier.wait()
            (y * 2).sum().backward()

        threads = [threading.Thread(target=one, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True),
    ) as profiler:
        work()
    found = [event for event in profiler.events() if event.is_user_annotation]
    threads = {
        name: {event.thread for event in found if event.name == name} for name in ("one", "one.B", "two")
    }
    assert sorted(event.name for event in found) == ["one", "one.B", "two", "two.B"]
    assert threads["one"] == threads["one.B"] != threads["two"]


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Tensor:
        raise ArithmeticError("backward fails")


def test_a_backward_that_fails_leaves_no_scope_open() -> None:
    def fails() -> None:
        y = scoped("fails", lambda x: _Fails.apply(x).exp(), leaf())
        with pytest.raises(ArithmeticError, match="backward fails"):
            y.sum().backward()

    def work() -> None:
        fails()
        gc.collect()  # the exception's traceback holds the graph
        scoped("next", torch.exp, leaf()).sum().backward()

    found = profiled(work)
    assert names(found) == ["fails", "fails.B", "next", "next.B"]
    assert only(found, "fails.B").beside(only(found, "next.B"))


def test_a_backward_that_fails_and_is_run_again() -> None:
    failing = True

    class FailsOnce(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            if failing:
                raise ArithmeticError("backward fails")
            return gradient

    def work() -> None:
        nonlocal failing
        loss = scoped("part", lambda x: FailsOnce.apply(x).exp(), leaf()).sum()
        with pytest.raises(ArithmeticError, match="backward fails"):
            loss.backward(retain_graph=True)
        failing = False
        loss.backward()
        scoped("next", torch.exp, leaf()).sum().backward()

    found = profiled(work)
    assert names(found) == ["part", "part.B", "part.B", "next", "next.B"]
    assert all(a.beside(b) for place, a in enumerate(found) for b in found[place + 1 :])


def test_an_outer_scope_does_not_end_before_an_inner_one() -> None:
    """Should autograd run their ends in the wrong order, the inner scope ends early."""

    def work() -> None:
        owners = [_BackwardScope(name) for name in ("outer", "inner")]
        outer, inner = (_Open(owner, task=0) for owner in owners)
        outer.end()
        with span("next"):
            inner.end()

    found = profiled(work)
    assert only(found, "outer").holds(only(found, "inner"))
    assert only(found, "outer").beside(only(found, "next"))


def test_an_exception_ends_the_forward_scope() -> None:
    def work() -> None:
        with pytest.raises(ZeroDivisionError):
            scoped("fails", lambda x: x / (1 // 0), leaf())
        scoped("next", torch.exp, leaf())

    found = profiled(work)
    assert only(found, "fails").beside(only(found, "next"))


@pytest.mark.parametrize("passes", [False, True])
def test_the_graph_is_freed_without_the_garbage_collector(passes: bool) -> None:
    """No ring of references: it would go through C++, and hold all activations before the region."""
    kept: list[weakref.ref[Tensor]] = []

    def inner(x: Tensor) -> tuple[Tensor, Tensor]:
        y = scoped("inner", torch.tanh, x)
        return y, x if passes else y

    def work() -> None:
        x = leaf()
        saved = x.exp()
        kept.append(weakref.ref(saved))
        y, other = scoped("outer", inner, saved * saved)
        del saved
        (y + other).sum().backward(retain_graph=True)

    gc.collect()
    gc.disable()
    try:
        profiled(work)
        assert kept[0]() is None
    finally:
        gc.enable()


def test_recomputed_activations_are_freed() -> None:
    """No gradient runs through a graph that is made again, and nothing else frees what it saved."""
    kept: list[weakref.ref[Any]] = []

    def layer(x: Tensor) -> Tensor:
        y = x.exp()
        kept.append(weakref.ref(y.untyped_storage()))
        z, same = scoped("part", lambda y: (y.tanh(), y), y * y)
        return (z * same).sin()

    def work() -> None:
        checkpoint(layer, leaf().exp(), use_reentrant=False).sum().backward()

    gc.collect()
    gc.disable()
    try:
        profiled(work)
        assert [one() for one in kept] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("used", [True, False])
def test_without_a_profiler_nothing_happens(used: bool) -> None:
    x = leaf()
    assert not recording()
    assert span("a") is span("b")
    assert region("a") is region("b")
    with region("a") as r:
        assert r.enter(x) is x
        assert r.leave(x) is x
    y: Tensor = scoped("a", torch.exp, x)
    assert y.grad_fn is not None
    assert not y.grad_fn.metadata
    if used:
        y.sum().backward()


def test_a_graph_outlives_the_profiler() -> None:
    kept: list[Tensor] = []
    profiled(lambda: kept.append(scoped("part", torch.exp, leaf()).sum()))
    kept[0].backward()
    assert names(profiled(lambda: scoped("next", torch.exp, leaf()).sum().backward())) == ["next", "next.B"]


def test_compiled_code_runs_without_scopes() -> None:
    compiles = 0

    def backend(graph: Any, _: Any) -> Any:
        nonlocal compiles
        compiles += 1
        return graph.forward

    @torch.compile(backend=backend, fullgraph=True)
    def part(x: Tensor) -> Tensor:
        with span("span"), region("region") as r:
            return r.leave(scoped("scoped", torch.exp, r.enter(x)))

    x = leaf()
    expected = part(x)
    assert compiles == 1
    found: list[Tensor] = []
    scopes = profiled(lambda: found.append(part(x)))
    assert compiles == 1, "compiled anew because a profiler runs"
    assert not {"span", "region", "scoped"} & {*names(scopes)}
    torch.testing.assert_close(found[0], expected)


def test_region_is_one_type() -> None:
    kinds: list[type] = []
    profiled(lambda: kinds.append(type(region("a"))))
    assert all(issubclass(kind, Region) for kind in (*kinds, type(region("a"))))


def test_a_model_of_regions_and_hooks_of_others() -> None:
    """Hooks that others register on the same tensors and nodes still run."""
    seen: list[str] = []

    def work() -> None:
        x = leaf()
        y = scoped("part", torch.exp, x)
        y.register_hook(lambda grad: seen.append("tensor"))
        assert y.grad_fn is not None
        y.grad_fn.register_hook(lambda *_: seen.append("node"))
        y.sum().backward()

    assert names(profiled(work)) == ["part", "part.B"]
    assert seen == ["tensor", "node"]
