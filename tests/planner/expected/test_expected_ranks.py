"""Closed forms against what profiled steps of several ranks did: FLOPs and messages of each scope.

A trace is read here by hand, so that neither tracelens' analyzers nor the workload say what it holds.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tracelens.planner.config import Config, override, preset
from tracelens.planner.expected import Routing, attention_kernel, flops, messages

torch = pytest.importorskip("torch", reason="the workload needs torch")

from tests.workload.ranks import run_ranks  # noqa: E402

# Name of an op to the collective, and the places of what it is given and of what it fills.
COLLECTIVES = {
    "c10d::alltoall_base_": ("all_to_all", 1, 0),
    "c10d::_allgather_base_": ("all_gather", 1, 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1, 0),
    "c10d::allreduce_": ("all_reduce", 0, 0),
    "c10d::broadcast_": ("broadcast", 0, 0),
    "c10d::send": ("send", 0, None),
    "c10d::recv_": ("recv", None, 0),
}
# Lists of tensors have no type in a trace; here they are float32.
BYTES = {"float": 4, "long int": 8, "c10::BFloat16": 2, "TensorList": 4}
FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"

Counted = tuple[Counter[tuple[str, str]], Counter[tuple[str, str, str, int, int]]]


CASES = [
    "baseline",
    "dtype=bfloat16 main_params=off aux_loss=0 experts=grouped sync_free=2",
    "dispatch=dedup sync_free=1 permute=fused routing=balanced",
    "dispatch=dedup experts=grouped sync_free=3 recompute_layer_ids=0,1,2",
    "experts=grouped sync_free=3 permute=fused router=fused overlap_exchange=1f1b",
    "dispatch=allgather overlap_shared=on recompute_layer_ids=1 routing=skewed",
    "ep=1 grad_reduce=all_reduce",
    "shared_ffn=0 dispatch=allgather recompute_layer_ids=1,2 permute=fused",
    "dispatch=allgather tp_overlap=symmetric recompute_layer_ids=1,2",
    "cp=2 recompute_layer_ids=2",
    "cp=2 attention=gqa kv_groups=2 head_dim=16",
    "tp=2 recompute_layer_ids=0,1 q_lora=16",
    "tp=2 tp_overlap=chunked recompute_layer_ids=0,1",
    "pp=2 pp_layout=2,1 micro_batches=3",
    "pp=2 vpp=2 layers=5 micro_batches=4 recompute_layer_ids=3",
    "ranks=4 tp=2 ep=2 node=2 grad_reduce=hierarchical dispatch=dedup",
    "ranks=4 cp=2 tp=2 attention=gqa kv_groups=2 head_dim=16 overlap_shared=on",
]


def build(case: str) -> Config:
    return override(preset("tiny"), ["ranks=2", *(text for text in case.split() if text != "baseline")])


def cases(world: int) -> list[str]:
    return [case for case in CASES if build(case).layout.ranks == world]


def train(rank: int, world: int, folder: Path) -> list[dict[str, Any]]:
    """Routing of a profiled step of each case, and traces in the folder."""
    from tracelens.workload.parallel import make_groups
    from tracelens.workload.routing_log import RoutingLog
    from tracelens.workload.train import Trainer

    told = []
    for case in cases(world):
        config = build(case)
        groups = make_groups(config.layout, rank)
        trainer = Trainer(config, groups, torch.device("cpu"))
        trainer.step()
        log = RoutingLog(trainer.model, config, groups)
        # With overlap_exchange a thread of its own runs the backward.
        all_threads = torch.profiler._ExperimentalConfig(profile_all_threads=True)
        with log, torch.profiler.profile(record_shapes=True, experimental_config=all_threads) as profiler:
            trainer.step()
        profiler.export_chrome_trace(str(folder / f"{CASES.index(case)}.{rank}.json"))
        steps = log.read()
        assert log.read() == []
        told.append(steps[0] if steps else Routing({}))
    return told


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[tuple[str, int], Any]:
    """Routing by case and rank: cases share processes, since starting these takes longer than the steps."""
    found = {}
    for world in (2, 4):
        for rank, routings in enumerate(run_ranks(world, train, world, folder, folder=folder)):
            found |= {(case, rank): routing for case, routing in zip(cases(world), routings, strict=True)}
    return found


RUNS = [(case, rank) for case in CASES for rank in range(build(case).layout.ranks)]


@pytest.mark.parametrize(("case", "rank"), RUNS)
def test_a_step_does_what_is_expected(
    told: dict[tuple[str, int], Any], folder: Path, case: str, rank: int
) -> None:
    config, trace = build(case), folder / f"{CASES.index(case)}.{rank}.json"
    routing = told[case, rank]
    work, sent = read(json.loads(trace.read_text())["traceEvents"])
    kernel = attention_kernel(config, rank, "cpu")
    by_scope = flops(config, rank, routing, kernel, config.toggles.sync_free == 3, broken_off=True)
    expected = {
        (f"{scope}.B" if phase == "backward" else scope, phase): count
        for scope, done in by_scope.items()
        for phase, count in zip(("forward", "backward", "recompute"), done, strict=True)
        if count
    }
    assert work == expected
    assert sent == expected_messages(config, rank, routing)


def expected_messages(config: Config, rank: int, routing: Routing) -> Counter[Any]:
    return Counter(
        (scope, phase, exchange.collective, exchange.sent, exchange.received)
        if exchange.collective not in ("send", "recv")
        else ("", "step", exchange.collective, exchange.sent, exchange.received)
        for scope, phase, _, _, exchange in messages(config, rank, routing)
    )


def read(events: list[dict[str, Any]]) -> Counted:
    """FLOPs by scope and phase, and messages."""
    kinds = ("cpu_op", "user_annotation")
    spans = [event for event in events if event.get("cat") in kinds and not event["name"].startswith("gloo:")]
    spans.sort(key=lambda event: (event["tid"], event["ts"], -event["dur"]))
    work: Counter[tuple[str, str]] = Counter()
    sent: Counter[tuple[str, str, str, int, int]] = Counter()
    around: list[dict[str, Any]] = []
    for event in spans:
        while around and (around[-1]["tid"] != event["tid"] or end(around[-1]) <= event["ts"]):
            around.pop()
        scopes = [event_["name"] for event_ in around if event_["cat"] == "user_annotation"]
        inside = any(event_["name"] == "aten::_grouped_mm" for event_ in around)
        if count := 0 if inside else flops_of(event):
            work[place(scopes)] += count
        if event["name"] in COLLECTIVES:
            collective, sent_from, received_in = COLLECTIVES[event["name"]]
            sizes = [
                0 if argument is None else bytes_of(event, argument) for argument in (sent_from, received_in)
            ]
            where = ("", "step") if None in (sent_from, received_in) else place(scopes)
            sent[*where, collective, *sizes] += 1
        if event["cat"] == "user_annotation" or event["name"] == "aten::_grouped_mm":
            around.append(event)
    return work, sent


def end(event: dict[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def place(scopes: list[str]) -> tuple[str, str]:
    """The innermost scope, as the closed forms name it, and the phase."""
    scope = scopes[-1] if scopes else ""
    passes = [name for name in scopes if name.startswith("mb")]
    if not passes:
        return scope, "step"
    if passes[-1].endswith(".F"):
        return scope, "forward"
    return scope, "backward" if scope.endswith(".B") else "recompute"


def bytes_of(event: dict[str, Any], argument: int) -> int:
    dims, kind = event["args"]["Input Dims"][argument], event["args"]["Input type"][argument]
    shapes = dims if kind == "TensorList" else [dims]
    total = 0
    for shape in shapes:
        size = BYTES[kind]
        for length in shape:
            size *= length
        total += size
    return total


def flops_of(event: dict[str, Any]) -> int:
    """Products of matrices and attention, from shapes."""
    name, dims = event["name"], event.get("args", {}).get("Input Dims")
    if name in ("aten::mm", "aten::_grouped_mm"):
        (m, k), n = dims[0], dims[1][-1]
        return int(2 * m * k * n)
    if name == "aten::addmm_":
        (m, k), n = dims[1], dims[2][-1]
        return int(2 * m * k * n)
    if name == "aten::bmm":
        (b, m, k), n = dims[0], dims[1][-1]
        return int(2 * b * m * k * n)
    if name in (FLASH, f"{FLASH}_backward"):
        first = int(name != FLASH)
        (b, h, nq, q), v, nk = dims[first], dims[first + 2][3], dims[first + 1][2]
        causal = event["args"]["Concrete Inputs"][4 if name == FLASH else 7] == "True"
        widths = 2 * (q + v) if name == FLASH else 2 * (3 * q + 2 * v)
        return int(b * h * nq * nk * widths) // (2 if causal else 1)
    return 0
