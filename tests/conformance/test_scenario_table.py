"""docs/scenarios.md: every scenario with the detectors that ask for it and the workload toggle that does it.

UPDATE_GOLD=1 writes it anew, for review in the diff.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tracelens.findings import DETECTORS
from tracelens.planner.config import override, preset
from tracelens.what_if import SCENARIOS, parse_request

GOLD = Path(__file__).resolve().parents[2] / "docs" / "scenarios.md"

TOGGLES = {
    "batch=2": ("", "micro_batch=4"),
    "dispatch=dedup": ("F2", "dispatch=dedup"),
    "dispatch=deepep": ("F2", "dispatch=deepep"),
    "dtype=fp8": ("", ""),
    "fused_loss": ("F7", "loss=fused"),
    "fused_permute": ("F3", "permute=fused"),
    "fused_router": ("F3", "router=fused"),
    "gemm_collective_overlap": ("", "tp_overlap=chunked"),
    "grouped_gemm": ("F1", "experts=grouped"),
    "hierarchical_all_reduce": ("", "grad_reduce=hierarchical"),
    "launch_cost": ("F8", "numa=bind, kernarg_pool=on"),
    "no_garbage_collection": ("F9", "gc=manual"),
    "no_recompute": ("F6", "recompute_layer_ids=0,1"),
    "balanced_stages": ("F5", ""),
    "overlap_1f1b": ("F4", "overlap_exchange=1f1b"),
    "step_graph": ("", "graph=step"),
    "sync_free=1": ("F3", "sync_free=1"),
    "sync_free=2": ("F3", "sync_free=2"),
    "sync_free=3": ("F3", "sync_free=3"),
    "vpp=2": ("F5", "vpp=2"),
}
"""Requests to (feature of AMD's MoE training guide, toggles of `tracelens workload run` that do it)."""

HEAD = """# What-if scenarios

What each scenario changes, which detectors ask for it to size their finding, which toggles of
`tracelens workload run` do the same to a real run, and which feature of AMD's MoE training guide it is. The
test `tests/conformance/test_scenario_table.py` writes this page from the registries (UPDATE_GOLD=1).

| scenario | what changes | detectors | toggles | feature |
|---|---|---|---|---|
"""

BEHIND = """
Each projection says what it assumes. Scenarios combine with "+". None that removes something makes a step
longer; `batch`, `dtype`, `host`, `launch_cost`, `no_graphs`, `ranks`, `scale` and `device` do what their
argument says, `balanced` moves work from rank to rank, `two_batch_overlap` launches twice. Features without a
name of their own: manual garbage collection (F9) is `no_garbage_collection`, since a collection between two
steps costs no step anything; NUMA binding and the pool of kernel arguments (F8) are `launch_cost`.
"""


def detectors_of(name: str) -> list[str]:
    """The detectors that ask for a scenario, with any argument."""
    return [detector for detector, item in DETECTORS.items() if re.split("[:=]", item.scenario)[0] == name]


def table() -> str:
    """The page as the registries have it."""
    rows = []
    for name, item in SCENARIOS.items():
        if name == "identity":
            continue
        own = {request: row for request, row in TOGGLES.items() if re.split("[=:]", request)[0] == name}
        toggles = ", ".join(f"`{part}`" for _, text in own.values() for part in text.split(", ") if part)
        features = ", ".join(dict.fromkeys(feature for feature, _ in own.values() if feature))
        asking = ", ".join(f"`{detector}`" for detector in detectors_of(name))
        grammar = item.grammar.replace("|", "\\|")
        rows.append(f"| `{grammar}` | {item.doc} | {asking} | {toggles} | {features} |")
    return HEAD + "\n".join(rows) + "\n" + BEHIND


def test_the_page_is_what_the_registries_say() -> None:
    text = table()
    if os.environ.get("UPDATE_GOLD"):
        GOLD.write_text(text, encoding="utf-8")
    assert text == GOLD.read_text(encoding="utf-8"), "docs/scenarios.md differs; if meant, UPDATE_GOLD=1"


@pytest.mark.parametrize("request_text", TOGGLES)
def test_requests_and_toggles_exist(request_text: str) -> None:
    parse_request(request_text)
    config = preset("small")
    _, toggles = TOGGLES[request_text]
    for part in filter(None, re.split(r", (?=\w+=)", toggles)):
        needed = {
            "graph=step": ["sync_free=3", "experts=grouped"],
            "overlap_exchange=1f1b": ["micro_batches=2"],
            "tp_overlap=chunked": ["tp=2", "ranks=2"],
            "vpp=2": ["pp=2", "ranks=2", "layers=4", "micro_batches=4"],
            "sync_free=2": ["experts=grouped"],
            "sync_free=3": ["experts=grouped"],
        }
        assert override(config, [*needed.get(part, []), part]) != override(config, needed.get(part, []))


@pytest.mark.parametrize("feature", [f"F{number}" for number in range(1, 10)])
def test_all_features_have_a_scenario(feature: str) -> None:
    assert feature in {known for known, _ in TOGGLES.values()}
