"""All-to-alls of recorded runs against the model of a node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tracelens
from tracelens.devices import device
from tracelens.planner.config import Layout
from tracelens.planner.step_time import Machine, Network, read_network


@pytest.mark.parametrize(("folder", "ranks"), [("ep8", 8), ("pp2ep4", 4)])
def test_dispatches_of_megatron_take_what_the_network_file_says(
    corpus: Path, folder: str, ranks: int
) -> None:
    """Megatron-core on one node of H200; `link_efficiency` is from the first of these runs."""
    path = corpus / "nvidia-h200-megatron" / folder
    if not path.is_dir():
        pytest.skip(f"no {path}")
    result = tracelens.analyze(tracelens.load(path), "collectives")
    rows = result["collectives"]
    large = rows[
        (rows["collective"] == "all_to_allv") & (rows["group_size"] == ranks) & (rows["bytes"] >= 2**24)
    ]
    assert len(large) >= 8
    network = Network(Layout(ranks=ranks), device("h200"), read_network("h200-8x400g").applied(Machine()))
    projected = [network.nanoseconds("all_to_all", "ep", ranks, size, size) for size in large["bytes"]]
    ratio = large["latency_ns"].to_numpy() / np.array(projected)
    assert float(np.median(ratio)) == pytest.approx(1, abs=0.15)
