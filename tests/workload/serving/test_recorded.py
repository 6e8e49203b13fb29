"""What analyzers see in recorded serving runs on CPU ranks: phases, padding, halves, and the model's regions.

How much communication the halves hide is for GPUs to say: on a busy machine gloo's threads run when the
others rest.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

from tests.workload.ranks import run_ranks  # noqa: E402
from tracelens import analyze, load  # noqa: E402
from tracelens.table import Result  # noqa: E402
from tracelens.trace import Run  # noqa: E402
from tracelens.workload.serving import model_config, serving_preset  # noqa: E402
from tracelens.workload.serving.engine import ServingEngine, make_ranks  # noqa: E402
from tracelens.workload.serving.serve import ServeJob, measure, recorder  # noqa: E402

RANKS, FIRST, TICKS = 2, 6, 20
BASE = replace(
    serving_preset("tiny"), rate=0.5, slots=8, lengths="uniform", prefill_tokens=192, delay_quorum=1.0
)
RUNS = {
    "off": BASE,
    "on": replace(BASE, prefill_delayer="on"),
    "request": replace(BASE, prefill_delayer="on", rate=2.0, tbo="request"),
    "token": replace(BASE, prefill_delayer="on", rate=2.0, tbo="token"),
    "few": replace(BASE, requests=1, rate=1.0),
}


def job_of(name: str, folder: Path) -> ServeJob:
    config = model_config("tiny", ["layers=2"], RUNS[name])
    first, ticks = (0, 3) if name == "few" else (FIRST, TICKS)
    return ServeJob(config, RUNS[name], RANKS, folder / name, "cpu", ticks, first, ticks)


def record(rank: int, folder: Path) -> list[dict[str, Any] | None]:
    found = []
    for name, serving in RUNS.items():
        job = job_of(name, folder)
        engine = ServingEngine(job.config, serving, make_ranks(rank, RANKS), torch.device("cpu"))
        with recorder(job, folder / name) as recording:
            found.append(measure(engine, job, recording))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a folder of traces for each of RUNS."""
    found: Path = tmp_path_factory.mktemp("serving")
    told, nothing = run_ranks(RANKS, record, found, folder=found)
    assert all(told)
    assert not any(nothing)
    return found


@cache
def run(folder: Path) -> Run:
    return load(folder)


@cache
def analyzed(folder: Path, name: str) -> Result:
    return analyze(run(folder), name)


def row(folder: Path, name: str) -> dict[str, Any]:
    """The summary of the serving analyzer."""
    (only,) = analyzed(folder / name, "serving")["summary"].to_dict("records")
    return only


def facts(folder: Path, name: str) -> list[dict[str, Any]]:
    """The recorded ticks in which something ran, as the run itself tells them."""
    sidecar = json.loads((folder / name / "run.json").read_text())
    return [tick for tick in sidecar["facts"]["ticks"] if "kinds" in tick]


def phases(tick: dict[str, Any]) -> set[str]:
    return {kind for kind in tick["kinds"] if "dummy" not in kind}


@pytest.mark.parametrize("name", ["off", "on", "request", "token"])
def test_steps_phases_and_padding_are_those_that_were_run(folder: Path, name: str) -> None:
    told, found = facts(folder, name), analyzed(folder / name, "serving")
    aligned = found["alignment"]
    assert len(aligned) == len(told) >= TICKS - FIRST - 2
    assert aligned["mismatch"].tolist() == [len(phases(tick)) > 1 for tick in told]
    most = [max(map(sum, tick["tokens"])) for tick in told]
    assert aligned["tokens_max"].tolist() == most
    real = [
        sum(sum(two) for kind, two in zip(tick["kinds"], tick["tokens"], strict=True) if "dummy" not in kind)
        for tick in told
    ]
    assert aligned["tokens_sum"].tolist() == real
    summary = row(folder, name)
    assert summary["engine"] == "ATOM"
    assert summary["padding_fraction"] == pytest.approx(1 - sum(real) / sum(RANKS * one for one in most))
    assert summary["eager_fraction"] == 1
    assert summary["tbo_steps"] == RANKS * sum(len(tick["padded"]) == 2 for tick in told)


def test_the_delayer_makes_phases_match_and_padding_fall(folder: Path) -> None:
    off, on = row(folder, "off"), row(folder, "on")
    assert off["mismatch_steps"] > (TICKS - FIRST) / 3
    assert on["mismatch_steps"] < off["mismatch_steps"] / 3
    assert on["phase_mismatch_fraction"] < off["phase_mismatch_fraction"]
    assert on["padding_fraction"] < 0.8 * off["padding_fraction"]


def test_halves_by_token_are_even_and_halves_by_request_are_not(folder: Path) -> None:
    request, token = row(folder, "request"), row(folder, "token")
    assert token["tbo_imbalance"] < 0.02
    assert request["tbo_imbalance"] > token["tbo_imbalance"] + 0.05
    assert min(request["tbo_steps"], token["tbo_steps"]) >= 2 * RANKS
    assert token["tbo_efficiency"] > 0


def test_one_half_computes_while_the_exchange_of_the_other_is_on_its_way(folder: Path) -> None:
    """Between the start of an exchange of one half and its end lies a region of the other."""
    events = run(folder / "token").traces[0].arrays
    names = {row: events.names[events.name[row]] for row in events.where("annotation").nonzero()[0]}
    ordered = sorted(names, key=lambda one: events.start[one])
    regions = [
        (names[events.parent[one]][:3], names[one])
        for one in ordered
        if names[one] in ("L1.dispatch", "L1.experts")
    ]
    start = next(place for place, (half, _) in enumerate(regions) if half == "ub0")
    assert [part for part in regions[start:] if part[0] in ("ub0", "ub1")][:10] == [
        *[("ub0", "L1.dispatch")] * 2, *[("ub1", "L1.dispatch")] * 2,
        *[("ub0", "L1.dispatch")] * 2, ("ub0", "L1.experts"),
        *[("ub1", "L1.dispatch")] * 2, ("ub1", "L1.experts"),
    ]  # fmt: skip


def test_a_rank_without_requests_runs_dummies(folder: Path) -> None:
    found = analyzed(folder / "few", "serving")
    assert found["alignment"]["kinds"].tolist()[0] in (
        "1 dummy prefill, 1 prefill",
        "1 prefill, 1 dummy prefill",
    )
    assert not found["alignment"]["mismatch"].any()
    assert row(folder, "few")["dummy_fraction"] > 0


def test_regions_of_the_model_are_seen(folder: Path) -> None:
    found = analyzed(folder / "on", "moe")
    stages = set(found["stages"]["stage"])
    assert stages == {"router", "dispatch", "permute", "experts", "combine", "shared expert"}
    assert set(found["layers"]["layer"]) == {0}
    assert set(found["layers"]["rank"]) == {0, 1}
    names = {*analyzed(folder / "on", "scopes")["scopes"]["name"]}
    assert names >= {"L0.attention", "L0.mlp", "L1.attention", "L1.router", "L1.experts", "embedding", "head"}


def test_the_sidecar_says_what_was_run(folder: Path) -> None:
    sidecar = json.loads((folder / "token" / "run.json").read_text())
    assert sidecar["config"]["serving"]["tbo"] == "token"
    assert sidecar["config"]["model"]["layers"] == 2
    assert sidecar["mesh"] == {"ranks": 2, "dp": 2, "moe_tp": 2}
    told = sidecar["facts"]["summary"]
    assert told["ticks"] == TICKS
    assert told["tokens_per_s"] is None  # nothing before the recording was timed
    assert [tick["tick"] for tick in sidecar["facts"]["ticks"]] == list(range(FIRST, TICKS))
