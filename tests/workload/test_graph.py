"""A step as a graph: what it needs, that nothing in a step is in its way, and that it computes the same."""

from __future__ import annotations

import gc
import gzip
import json
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

import torch.distributed as dist  # noqa: E402
import zstandard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import tracelens  # noqa: E402
from tests.workload.agree import BFLOAT16, relative_error  # noqa: E402
from tests.workload.ranks import run_ranks  # noqa: E402
from tracelens.errors import TracelensError  # noqa: E402
from tracelens.planner.config import Config, override, preset  # noqa: E402
from tracelens.workload import pipeline  # noqa: E402
from tracelens.workload.launch import Job, run_job  # noqa: E402
from tracelens.workload.parallel import Groups, make_groups  # noqa: E402
from tracelens.workload.pipeline import (  # noqa: E402
    MicroBatchSchedule,
    StepGraph,
    require,
)
from tracelens.workload.routing_log import RoutingLog  # noqa: E402
from tracelens.workload.train import Trainer  # noqa: E402

STATIC = ("experts=grouped", "sync_free=3")
FUSED = ("permute=fused", "router=fused", "loss=fused")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["graph=on"], "unknown graph"),
        (["graph=step"], "needs sync_free=3, not 0"),
        (["graph=step", "sync_free=2", "experts=grouped"], "needs sync_free=3, not 2"),
        (["graph=step", *STATIC, "overlap_exchange=1f1b"], "needs overlap_exchange=off, not 1f1b"),
        (["graph=step", *STATIC, "dispatch=deepep"], "alltoall, allgather or dedup, not deepep"),
        (["graph=step", *STATIC, "tp_overlap=symmetric"], "off or chunked, not symmetric"),
        (["graph=step", *STATIC, "ranks=2", "pp=2"], "needs pp=1, not 2"),
    ],
)
def test_what_a_graph_needs_is_told_in_one_line(texts: list[str], message: str) -> None:
    with pytest.raises(TracelensError, match=message) as caught:
        override(preset("tiny"), texts)
    assert "\n" not in str(caught.value)


def graphed(*fields: str) -> Config:
    return override(preset("tiny"), [*STATIC, "graph=step", *fields])


def test_a_cpu_is_refused_before_anything_is_trained() -> None:
    config = graphed()
    with pytest.raises(TracelensError, match="graph=step needs a GPU, and this run is on cpu: use graph=off"):
        Trainer(config, Groups(config.layout), torch.device("cpu"))


def test_a_dtype_whose_grouped_gemm_waits_is_refused() -> None:
    gpu = torch.device("cuda")
    with pytest.raises(TracelensError, match="graph=step needs dtype=bfloat16, not float32"):
        require(graphed(), gpu)
    require(graphed("dtype=bfloat16"), gpu)
    require(graphed("dense_layers=3"), gpu)


def test_no_routing_is_logged_of_steps_that_call_no_router() -> None:
    config = graphed()
    with pytest.raises(TracelensError, match="a routing log needs graph=off"):
        RoutingLog(torch.nn.Module(), config, Groups(config.layout))


class HostTensors(TorchDispatchMode):
    """Notes the ops that have a tensor of the host among what they read or make."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        y = op(*args, **(kwargs or {}))
        tensors = (x for x in tree_leaves((args, kwargs, y)) if isinstance(x, torch.Tensor))
        # Older checkpointing makes an empty tensor of the host to hang its hooks on.
        if any(x.device.type != "meta" and x.numel() for x in tensors):
            self.found.add(str(op))
        return y


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """The first of four ranks, whose exchanges go nowhere."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


def step_without_memory(*fields: str) -> set[str]:
    """A whole step on a device that has no memory, so no value can be read; ops with tensors of the host."""
    config = override(preset("tiny"), ["ranks=4", "dtype=bfloat16", *fields])
    training, device = config.training, torch.device("meta")
    schedule = MicroBatchSchedule(config, make_groups(config.layout, 0), device)
    positions = training.seq // (config.layout.cp * config.layout.tp)
    shape = (training.micro_batches, positions, training.micro_batch)
    token_MSB = torch.zeros(shape, dtype=torch.int64, device=device)
    with HostTensors() as mode:
        loss = schedule.step(token_MSB, token_MSB)
    assert loss.shape == ()
    assert all(one.grad is not None for chunk in schedule.chunks.values() for one in chunk.parameters())
    return mode.found


@pytest.mark.usefixtures("four_ranks")
@pytest.mark.parametrize(
    "fields",
    [
        (), FUSED, ("dispatch=allgather",), ("dispatch=dedup", *FUSED), ("routing=skewed",),
        ("routing=balanced",), ("recompute_layer_ids=0,1,2",), ("overlap_shared=on",), ("tp=2",), ("cp=2",),
        ("tp=2", "tp_overlap=chunked"), ("attention=gqa", "kv_groups=2"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_nothing_in_a_step_reads_the_device_or_copies_from_the_host(fields: Sequence[str]) -> None:
    assert step_without_memory(*STATIC, *fields) == set()


@pytest.mark.usefixtures("four_ranks")
def test_with_messages_of_the_right_size_the_host_reads() -> None:
    with pytest.raises(NotImplementedError, match="no data"):
        step_without_memory("experts=grouped", "sync_free=2")


@pytest.mark.usefixtures("four_ranks")
def test_a_tensor_of_the_host_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = MicroBatchSchedule.backward

    def careless(self: MicroBatchSchedule, number: int, of_batch: torch.Tensor) -> None:
        loss(self, number, of_batch * torch.tensor([1.0]).to(of_batch.device).sum())

    monkeypatch.setattr(MicroBatchSchedule, "backward", careless)
    assert any("_to_copy" in name for name in step_without_memory(*STATIC))


class Device:
    """Stands in for a GPU and its graphs: work launched in a capture is kept, and done by each replay."""

    def __init__(self) -> None:
        self.capturing: list[Callable[[], object]] | None = None
        self.graphs: list[Device.Graph] = []
        self.fails = False

    class Graph:
        """What was captured."""

        def __init__(self) -> None:
            self.work: list[Callable[[], object]] = []

        def replay(self) -> None:
            for one in self.work:
                one()

        def reset(self) -> None:
            self.work.clear()

    class Stream:
        """One of any."""

        def __init__(self, device: object = None) -> None:
            pass

        def wait_stream(self, other: object) -> None:
            pass

    def launch(self, work: Callable[[], object]) -> None:
        if self.capturing is None:
            work()
        else:
            self.capturing.append(work)

    def graph(self, graph: Graph, stream: object, capture_error_mode: str, pool: object) -> Any:
        device = self

        class Capture:
            def __enter__(self) -> None:
                assert capture_error_mode == "thread_local"
                device.capturing = graph.work
                device.graphs.append(graph)

            def __exit__(self, *_: object) -> None:
                device.capturing = None
                if device.fails:
                    raise RuntimeError("the capture was broken\nby something")

        return Capture()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """In place of torch.cuda's."""
    stand_in = Device()
    for name, part in {
        "CUDAGraph": Device.Graph,
        "Stream": Device.Stream,
        "graph": stand_in.graph,
        "stream": lambda _: nullcontext(),
        "current_stream": Device.Stream,
        "synchronize": lambda _: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, part)
    return stand_in


class Steps:
    """Owns a graph, and counts what is done for it.

    Attributes:
        gradient: to which a step adds the sum of its tokens and targets.
        collecting: of each call on the host, whether Python collected garbage.
    """

    def __init__(self, device: Device) -> None:
        self.device, self.graph = device, StepGraph(torch.device("cpu"))
        self.gradient = torch.zeros(())
        self.collecting: list[bool] = []

    def step(self, token_MSB: torch.Tensor, target_MSB: torch.Tensor) -> torch.Tensor:
        self.collecting.append(gc.isenabled())
        loss = torch.zeros(())
        self.device.launch(lambda: loss.copy_(token_MSB.sum()))
        self.device.launch(lambda: self.gradient.add_(token_MSB.sum() + target_MSB.sum()))
        return loss

    def run(self, *tokens: float) -> torch.Tensor:
        token_MSB = torch.tensor(tokens)
        return self.graph.run(self.step, token_MSB, token_MSB * 10)


def test_each_step_counts_once_and_the_host_does_the_first_two(device: Device) -> None:
    steps, losses = Steps(device), []
    for number in range(4):
        losses.append(steps.run(number, 1))
        assert float(steps.gradient) == 11 * (number + 1)
        steps.gradient.zero_()
    assert [float(loss) for loss in losses] == [1, 2, 3, 4], "a later step must not change an earlier loss"
    assert steps.collecting == [True, False]
    assert gc.isenabled()
    assert len(device.graphs) == 1


def test_a_closed_graph_is_gone_and_captured_anew(device: Device) -> None:
    steps = Steps(device)
    steps.graph.close()
    for _ in range(2):
        steps.run(1)
    steps.graph.close()
    assert device.graphs[0].work == []
    assert float(steps.run(5)) == 5
    assert len(device.graphs) == 2


def test_a_graph_goes_with_its_trainer_at_once(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a ring of references it would wait for a collection, and a process group waits for it."""
    monkeypatch.setattr(pipeline, "require", lambda *_: None)
    config = graphed("micro_batches=1", "layers=2")
    trainer = Trainer(config, Groups(config.layout), torch.device("cpu"))
    for _ in range(2):
        trainer.step()
    assert len(device.graphs) == 1
    graph = weakref.ref(trainer.schedule.graph)
    trainer.close()
    assert graph().graph is None
    gc.disable()
    try:
        del trainer
        assert graph() is None
    finally:
        gc.enable()


def test_another_shape_is_refused(device: Device) -> None:
    steps = Steps(device)
    steps.run(1, 2)
    with pytest.raises(TracelensError, match=r"got \(1,\) tokens after \(2,\)"):
        steps.run(1)


def test_a_capture_that_fails_says_why_in_one_line(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, device.fails = Steps(device), True
    steps.run(1)
    with pytest.raises(TracelensError, match=r"failed \(the capture was broken\): use graph=off") as caught:
        steps.run(1)
    assert "\n" not in str(caught.value)

    def waits(*_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(steps, "step", waits)
    with pytest.raises(TracelensError, match=r"failed \(operation not permitted when stream is capturing\):"):
        steps.run(1)
    assert gc.isenabled()
    assert steps.graph.graph is None


STEPS = 4
# The experts are given, as rounding may choose others; hidden is what the kernels of a GPU ask for.
BASE = override(
    preset("tiny"),
    ["dtype=bfloat16", "routing=balanced", "hidden=256", "learning_rate=1e-4", *STATIC],
)
ONE_RANK: dict[str, tuple[str, ...]] = {
    "torch's ops": (),
    "fused": FUSED,
    "learned": ("routing=learned", *FUSED),
    "recomputed": ("recompute_layer_ids=0,2", *FUSED),
    "shared": ("overlap_shared=on", "gc=manual"),
    "grouped queries": ("attention=gqa", "kv_groups=2"),
}
TWO_RANKS = ONE_RANK | {
    "allgather": ("dispatch=allgather",),
    "dedup": ("dispatch=dedup", *FUSED),
    "experts of one rank": ("ep=1",),
    "tensor parallel": ("tp=2", "recompute_layer_ids=1"),
    "tensor parallel in chunks": ("tp=2", "tp_overlap=chunked"),
    "context parallel": ("cp=2",),
    "all-reduce": ("grad_reduce=all_reduce",),
}
# Sums by atomics come in any order on a GPU, so that two runs of one configuration differ as it is: by the
# rounding of bfloat16, and where experts are learned by those of a few tokens. What a graph could get wrong
# (a step twice, none, or the batch before) is an error of 1.
TOLERANCE = {"learned": 0.2}
LOSS = 2e-3

Step = tuple[float, torch.Tensor]


def steps_of(config: Config, groups: Groups) -> list[Step]:
    """Loss and gradients of each step on this rank, every batch another."""
    found = []
    with closing(Trainer(config, groups, torch.device("cuda", torch.cuda.current_device()))) as trainer:
        for _ in range(STEPS):
            batch = (part.to(trainer.device) for part in trainer.batches.next_step())
            loss = trainer.schedule.step(*batch)
            buffers = [buffer.grad_N.float().cpu() for buffer in trainer.optimizer.buffers]
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
            found.append((float(loss), torch.cat(buffers)))
    gc.unfreeze()
    gc.enable()
    return found


def both(rank: int, variants: dict[str, Config]) -> dict[str, tuple[list[Step], list[Step]]]:
    """Of each variant the steps without a graph and with one."""
    found = {}
    for name, config in variants.items():
        groups = make_groups(config.layout, rank)
        found[name] = (steps_of(config, groups), steps_of(override(config, ["graph=step"]), groups))
    return found


def compare(found: dict[str, tuple[list[Step], list[Step]]]) -> None:
    for name, (plain, replayed) in found.items():
        assert relative_error(plain[1][1], plain[0][1]) > 0.5, "steps too much alike to tell them apart"
        for number, ((loss, gradient), (other, of_graph)) in enumerate(zip(plain, replayed, strict=True)):
            assert other == pytest.approx(loss, rel=LOSS), (name, number)
            error = relative_error(of_graph, gradient)
            assert error <= TOLERANCE.get(name, BFLOAT16), (name, number, error)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_graph_trains_like_its_steps_one_by_one() -> None:
    compare(both(0, {name: override(BASE, fields) for name, fields in ONE_RANK.items()}))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs")
def test_graphs_of_two_ranks_do_so_and_let_their_communicators_go(tmp_path: Path) -> None:
    variants = {name: override(BASE, ["ranks=2", *fields]) for name, fields in TWO_RANKS.items()}
    for found in run_ranks(2, both, variants, folder=tmp_path, device="cuda"):
        compare(found)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recorded_step_is_one_launch(tmp_path: Path) -> None:
    config = override(BASE, ["graph=step", *FUSED])
    (measured,) = run_job(Job(config, tmp_path, "cuda", steps=6, start=4, end=6))
    assert len(measured.loss) == 6
    (path,) = tmp_path.glob("rank0*.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    launches = [event for event in events if "GraphLaunch" in event["name"] and event.get("ph") == "X"]
    assert len(launches) == 2
    started = {event["args"]["correlation"] for event in launches}
    kernels = [event for event in events if event.get("cat") == "kernel"]
    by_graph = [event for event in kernels if event["args"].get("correlation") in started]
    # Left to be launched one by one: the optimizer and the copies of a step.
    assert len(by_graph) > 3 * (len(kernels) - len(by_graph))
    assert "expected" not in json.loads((tmp_path / "run.json").read_text())
    table = tracelens.load(tmp_path).kernels()
    replayed = table["op_source"].isin(["capture", "twin"])
    assert table.loc[replayed, "dur_ns"].sum() > 0.99 * sum(event["dur"] * 1e3 for event in by_graph)
    assert "experts" in set(table.loc[replayed, "stage"])


def test_group_sizes_of_the_workload_are_those_of_its_routers(tmp_path: Path) -> None:
    config = override(preset("tiny"), ["experts=grouped"])
    trainer = Trainer(config, Groups(config.layout), torch.device("cpu"))
    log = RoutingLog(trainer.model, config, trainer.groups)
    experts = config.model.experts_count
    expected: Counter[tuple[int, ...]] = Counter()
    with tracelens.record(tmp_path, wait=1, warmup=1, steps=1) as r:
        for step in range(3):
            with log:
                trainer.step()
            for choices in log.choices.values():
                sizes = [tuple(chosen.flatten().bincount(minlength=experts).tolist()) for chosen in choices]
                expected.update(sizes if step == 0 else [])
                choices.clear()
            r.step()
    packed = (tmp_path / "rank0.values.json.zst").read_bytes()
    document = json.loads(zstandard.decompress(packed, max_output_size=1 << 26))
    assert (document["step"], document["cut"]) == (0, "")
    found: Counter[tuple[int, ...]] = Counter()
    for call in document["calls"]:
        if call["op"] == "aten::_grouped_mm":
            found[tuple(call["arguments"][2]["sizes"])] += call["count"]
    assert expected
    assert found.keys() == expected.keys()
    # Two products forward, four backward.
    assert found == Counter({sizes: 6 * count for sizes, count in expected.items()})
    assert r.notes == []
