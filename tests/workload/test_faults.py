"""Runs on CPU ranks with a known fault: rank and cause are found from the traces alone, and none without."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("torch", reason="the workload needs torch")

import torch

from tests.builders import records
from tests.workload.fault_variants import CONTROL, FIRST, NAMES, STEPS, config_of, faults_of
from tests.workload.ranks import run_ranks
from tracelens import analyze, load
from tracelens.errors import TracelensError
from tracelens.planner.config import override, preset
from tracelens.trace import Run
from tracelens.workload.faults import Fault, inject_faults
from tracelens.workload.faults.fault_injection import sleeping
from tracelens.workload.faults.faults import KINDS
from tracelens.workload.launch import Job, measure
from tracelens.workload.parallel import Groups, make_groups
from tracelens.workload.train import Trainer

RANKS = 2
# Another program on one rank's core makes that rank late, too, but hardly in each of so many runs.
TRIES = 5

live = pytest.mark.rare
"""Ranks are made late while they run; recordings of GPUs with these faults are tested in every build."""


def job_of(name: str, folder: Path, ranks: int = RANKS) -> Job:
    """A run as record_samples.py records it."""
    faults = faults_of(name, ranks, "cpu")
    config, steps = config_of(name, ranks, "cpu"), STEPS["cpu"]
    return Job(config, folder, "cpu", steps, FIRST["cpu"], steps, inject=faults)


def train(rank: int, jobs: list[Job]) -> None:
    """What a rank of these runs does, one after the other."""
    for job in jobs:
        trainer = Trainer(job.config, make_groups(job.config.layout, rank), torch.device("cpu"))
        with inject_faults(trainer, job.inject):
            measure(trainer, job)


class Recorded(NamedTuple):
    folder: Path
    run: Run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    """Of each kind the first run in which nothing else was worse, or the last."""
    found: dict[str, Recorded] = {}
    # The priority of a process that was slowed down by others stays low.
    left = [*(kind for kind in KINDS if kind != "slow_kernels"), "slow_kernels"]
    for _ in range(TRIES):
        root = tmp_path_factory.mktemp("faults")
        run_ranks(RANKS, train, [job_of(kind, root / kind) for kind in left], folder=root)
        found |= {kind: Recorded(root / kind, load(root / kind)) for kind in left}
        if not (left := [kind for kind in left if not is_named(kind, found[kind].run)]):
            break
    return found


def is_named(kind: str, run: Run) -> bool:
    """Whether the rank with the fault comes first, beyond noise, and for the cause that it has."""
    rank, cause, beyond, of_rank, of_all = worst(run)
    named = (rank, cause, beyond) == (RANKS - 1, KINDS[kind].cause, True)
    return named and of_rank > 0.5 and of_all > 0.6


def worst(run: Run) -> tuple[object, ...]:
    """Rank, cause, whether beyond noise, share of that cause and share of all waiting."""
    columns = ("rank", "cause", "significant", "fraction_of_others_wait", "fraction_of_all_wait")
    return records(analyze(run, "stragglers")["stragglers"], *columns)[0]


@live
@pytest.mark.parametrize("kind", KINDS)
def test_the_late_rank_is_named_with_its_cause(kind: str, recorded: dict[str, Recorded]) -> None:
    run = recorded[kind].run
    assert is_named(kind, run), worst(run)


@live
@pytest.mark.parametrize("kind", KINDS)
def test_the_finding_names_rank_and_cause(kind: str, recorded: dict[str, Recorded]) -> None:
    detector = "stragglers_load" if KINDS[kind].cause == "token_load" else "stragglers"
    table = analyze(recorded[kind].run, "findings")["findings"]
    (evidence,) = table[table["detector"].eq(detector)]["evidence"]
    assert f"most for rank {RANKS - 1} " in evidence
    assert KINDS[kind].cause.replace("_", " ") in evidence


@live
def test_the_first_of_four_ranks(tmp_path: Path) -> None:
    config = config_of("host_delay", 4, "cpu")
    named = []
    for attempt in range(TRIES):
        where = tmp_path / str(attempt)
        job = Job(config, where, "cpu", 6, 2, 6, inject=(Fault(0, "host_delay", 80),))
        run_ranks(4, train, [job], folder=tmp_path)
        named.append(worst(load(where))[:3])
        if named[-1] == (0, "silent_host", True):
            return
    pytest.fail(f"in each of {TRIES} runs another rank or cause came first: {named}")


@live
def test_without_a_fault_no_rank_is_named(tmp_path: Path) -> None:
    named = []
    for attempt in range(TRIES):
        where = tmp_path / str(attempt)
        run_ranks(RANKS, train, [job_of(CONTROL, where)], folder=tmp_path)
        assert "inject" not in json.loads((where / "run.json").read_text())["config"]
        run = load(where)
        table = analyze(run, "findings")["findings"]
        said = table[table["detector"].isin(["stragglers", "stragglers_load", "stragglers_unexplained"])]
        if not len(said) and not worst(run)[2]:
            return
        named.append(said["evidence"].tolist())
    pytest.fail(f"in each of {TRIES} runs without a fault a straggler was named: {named}")


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("name", NAMES)
def test_runs_for_gpus_are_possible(name: str, ranks: int) -> None:
    """They can be recorded on GPUs alone; here at least their settings fit together."""
    job = Job(config_of(name, ranks, "cuda"), None, "cuda", inject=faults_of(name, ranks, "cuda"))
    assert [fault.rank for fault in job.inject] == ([] if name == CONTROL else [ranks - 1])


@live
def test_the_truth_is_beside_the_traces(recorded: dict[str, Recorded]) -> None:
    files = {kind: one.folder / "run.json" for kind, one in recorded.items()}
    told = {kind: json.loads(file.read_text())["config"] for kind, file in files.items()}
    assert told["gc"]["inject"] == [{"rank": 1, "kind": "gc", "ms": 40}]
    assert told["token_skew"]["inject"] == [{"rank": 1, "kind": "token_skew", "factor": 2}]


@pytest.mark.parametrize("kind", KINDS)
def test_the_usual_amount(kind: str) -> None:
    fault = Fault.parse(f"rank=1,kind={kind}")
    assert fault == Fault(1, kind, KINDS[kind].usual)
    assert Fault.parse(str(fault)) == fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank=1", "kind is missing, as in rank=1,kind=host_delay,ms=4"),
        ("kind=gc", "rank is missing"),
        ("rank=1,kind", "'kind' is not key=value"),
        ("rank=1,kind=gcc", "unknown kind of fault 'gcc'; did you mean 'gc'?"),
        ("rank=one,kind=gc", "rank must be a whole number, not 'one'"),
        ("rank=1,rank=2,kind=gc", "rank appears twice"),
        ("rank=1,kind=gc,factor=2", "kind=gc takes rank and ms, not factor"),
        ("rank=1,kind=token_skew,ms=2", "kind=token_skew takes rank and factor, not ms"),
        ("rank=1,kind=gc,ms=soon", "ms must be a number, not 'soon'"),
        ("rank=1,kind=gc,ms=inf", "ms must be a number, not 'inf'"),
        ("rank=1,kind=gc,ms=0", "ms must be above 0"),
        ("rank=1,kind=token_skew,factor=1", "factor must be above 1"),
        ("rank=1,kind=slow_kernels,processes=0", "processes must be above 0"),
        ("rank=1,kind=slow_kernels,processes=1.5", "processes must be a whole number"),
    ],
)
def test_a_text_that_is_no_fault(text: str, message: str) -> None:
    with pytest.raises(TracelensError) as caught:
        Fault.parse(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("rank=2,kind=gc", "ranks=2", "no rank 2 in a run of 2"),
        ("rank=-1,kind=gc", "ranks=2", "no rank -1 in a run of 2"),
        ("rank=0,kind=token_skew", "ranks=1", "needs experts on several ranks"),
        ("rank=0,kind=token_skew", "ranks=2 ep=1", "needs experts on several ranks"),
        ("rank=0,kind=token_skew", "ranks=2 layers=1", "needs experts on several ranks"),
        ("rank=0,kind=token_skew,factor=3", "ranks=2", "factor must be at most 2"),
        ("rank=0,kind=token_skew", "ranks=4 top_k=4", "needs top_k (4) experts on a rank, not 2"),
        ("rank=0,kind=gc", "experts=grouped sync_free=3 graph=step", "needs graph=off"),
    ],
)
def test_a_fault_that_a_run_cannot_have(text: str, settings: str, message: str) -> None:
    config = override(preset("tiny"), settings.split())
    with pytest.raises(TracelensError) as caught:
        Job(config, None, "cpu", inject=(Fault.parse(text),))
    assert message in str(caught.value)


FACTORS = (1.25, 2.0, 4.0)


def test_a_rank_is_sent_its_factor_of_the_tokens(tmp_path: Path) -> None:
    """Of 4 ranks; even routing would send each a quarter. Every token still goes to distinct experts."""
    of_ranks = run_ranks(4, choices, folder=tmp_path)
    for factor, *chosen in zip(FACTORS, *of_ranks, strict=True):
        every = torch.cat(chosen)
        assert all(len(set(row)) == len(row) for row in every.tolist())
        held = 8 // 4
        share = ((every // held) == 2).float().mean().item()
        assert share == pytest.approx(factor / 4, abs=0.02)


def choices(rank: int) -> list[torch.Tensor]:
    """What the router of one layer on one rank chooses, experts_TK for each factor."""
    config = override(preset("tiny"), ["ranks=4", "routing=balanced", "micro_batches=1", "seq=64"])
    trainer = Trainer(config, make_groups(config.layout, rank), torch.device("cpu"))
    router = trainer.model["0"].layers["1"].ffn.router
    x_SBD = torch.randn(64, 2, 64)
    plain_TK = router(x_SBD)[1]
    found = []
    for factor in FACTORS:
        with inject_faults(trainer, [Fault(2, "token_skew", factor)]):
            found.append(router(x_SBD)[1])
    assert torch.equal(router(x_SBD)[1], plain_TK)
    return found


def test_other_ranks_get_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    config = override(preset("tiny"), ["ranks=2", "layers=2"])
    trainer = Trainer(override(config, ["ranks=1"]), Groups(config.layout, rank=0), torch.device("cpu"))
    hooks = [len(part._forward_pre_hooks) for part in trainer.model.modules()]
    with inject_faults(trainer, [Fault(1, "host_delay", 7)]):
        assert [len(part._forward_pre_hooks) for part in trainer.model.modules()] == hooks
    with inject_faults(trainer, [Fault(0, "host_delay", 7)]):
        assert sum(len(part._forward_pre_hooks) for part in trainer.model.modules()) == sum(hooks) + 2
    assert [len(part._forward_pre_hooks) for part in trainer.model.modules()] == hooks
    sleeping(0.007)(trainer.model, (torch.zeros(1),))
    assert slept == [0.007]


def test_a_neighbour_shares_the_core_and_ends(tmp_path: Path) -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("needs Linux")
    (found,) = run_ranks(1, beside, folder=tmp_path)
    cores, others, left, back = found
    assert len(cores) == 1
    assert others == [cores, cores]
    assert left == 0
    assert back


def beside(_: int) -> tuple[set[int], list[set[int]], int, bool]:
    """Cores of this thread and of its children inside of the fault; children left, and whether it is free."""
    before = os.sched_getaffinity(0)
    trainer = Trainer(preset("tiny"), Groups(preset("tiny").layout), torch.device("cpu"))
    with inject_faults(trainer, [Fault(0, "slow_kernels", 2)]):
        cores = os.sched_getaffinity(0)
        others = [os.sched_getaffinity(child) for child in children()]
    return cores, others, len(children()), os.sched_getaffinity(0) == before


def children() -> list[int]:
    """Processes that this thread started."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(one) for one in text.split()]
