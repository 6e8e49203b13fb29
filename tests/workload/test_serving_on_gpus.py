"""What the delayer and two-batch overlap do to serving on GPUs, as analyzers see it. No torch needed.

The runs are in sample_traces/serving, recorded on four GPUs by record_samples.py.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.workload.samples import FOLDER, check_files, manifest, needs
from tests.workload.serving_variants import LARGEST_BYTES, RANKS, TOLD, VARIANTS
from tracelens import analyze, load
from tracelens.table import Result

pytestmark = needs("serving")


@cache
def found(variant: str) -> Result:
    return analyze(load(FOLDER / "serving" / variant), "serving")


def row(variant: str) -> dict[str, Any]:
    (only,) = found(variant)["summary"].to_dict("records")
    return only


def ticks(variant: str) -> list[dict[str, Any]]:
    """What the run itself tells of its recorded ticks."""
    told = json.loads((FOLDER / "serving" / variant / "run.json").read_text())
    return [tick for tick in told["facts"]["ticks"] if "kinds" in tick]


def test_the_files_are_those_of_the_manifest() -> None:
    check_files("serving", VARIANTS, LARGEST_BYTES)
    assert manifest("serving")["runs"] == TOLD


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_are_matched_and_read_as_they_were_run(variant: str) -> None:
    told, aligned = ticks(variant), found(variant)["alignment"]
    assert aligned["ranks"].tolist() == [RANKS] * len(told)
    kinds = [{kind for kind in tick["kinds"] if "dummy" not in kind} for tick in told]
    assert aligned["mismatch"].tolist() == [len(some) > 1 for some in kinds]
    assert aligned["tokens_max"].tolist() == [max(map(sum, tick["tokens"])) for tick in told]
    steps = found(variant)["steps"]
    for rank, mine in steps.groupby("rank"):
        assert mine["graph"].tolist() == [tick["graph"] > 0 for tick in told], rank
        assert mine["tbo"].tolist() == [len(tick["padded"]) == 2 for tick in told], rank


def test_the_delayer_makes_phases_match_and_padding_fall() -> None:
    off, on = row("delayer_off"), row("delayer_on")
    assert off["phase_mismatch_fraction"] > 0.3
    assert on["phase_mismatch_fraction"] < 0.2 * off["phase_mismatch_fraction"]
    assert on["padding_fraction"] < 0.6 * off["padding_fraction"]
    assert on["eager_fraction"] < off["eager_fraction"]


def test_decodes_of_all_ranks_are_replayed_from_graphs() -> None:
    steps = found("delayer_on")["steps"]
    decodes = steps[steps["kind"].eq("decode")]
    assert len(decodes)
    assert decodes["graph"].all()
    assert decodes["graph_requests"].ge(decodes["requests"]).all()


def test_halves_by_token_are_even_and_hide_more() -> None:
    request, token = row("tbo_request"), row("tbo_token")
    assert token["tbo_steps"] > 0
    assert token["tbo_imbalance"] < 0.001
    assert request["tbo_imbalance"] > 0.05
    assert token["tbo_efficiency"] > request["tbo_efficiency"] > 0
