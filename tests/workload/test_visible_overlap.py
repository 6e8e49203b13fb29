"""What toggles lay over communication, as analyzers see it in recorded runs with them off and on.

How much of it is hidden is for GPUs to say: on a busy machine gloo's threads run when the others rest.
"""

from __future__ import annotations

from itertools import product

import pytest

pytest.importorskip("torch", reason="the workload needs torch")

from tests.workload.recorded import Recorded
from tracelens.table import Result
from tracelens.trace import Trace


def stages(trace: Trace, layer: str) -> list[str]:
    """Stages of a layer's first pass in the order in which the host entered them."""
    events = trace.arrays
    named = [
        (int(events.start[row]), events.names[events.name[row]])
        for row in events.where("annotation").nonzero()[0]
        if events.names[events.name[row]].startswith(f"{layer}.")
    ]
    entered = [name.removeprefix(f"{layer}.") for _, name in sorted(named)]
    entered = entered[entered.index("moe") + 1 :]
    first = entered[: entered.index("moe")]
    return [name for name in first if name in ("router", "dispatch", "experts", "combine", "shared")]


def interleaved(found: Result) -> set[tuple[int, int, int]]:
    """(rank, micro-batch, other one) where a forward pass of one runs beside a backward pass of the other."""
    passes = found["passes"]
    begin, end = passes["ts_ns"], passes["ts_ns"] + passes["dur_ns"]
    pairs = set()
    for one, other in product(passes.index, repeat=2):
        beside = begin[one] < end[other] and begin[other] < end[one]
        phases = passes["phase"][one], passes["phase"][other]
        if beside and phases == ("forward", "backward") and passes["rank"][one] == passes["rank"][other]:
            pairs.add((passes["rank"][one], passes["micro_batch"][one], passes["micro_batch"][other]))
    return pairs


def test_one_micro_batch_is_laid_over_the_exchange_of_another(recorded: Recorded) -> None:
    assert interleaved(recorded("large", "moe")) == set()
    expected = {(rank, batch, batch - 1) for rank in range(2) for batch in (1, 2)}
    assert interleaved(recorded("overlap_exchange", "moe")) == expected


def test_the_shared_expert_is_laid_over_the_dispatch(recorded: Recorded) -> None:
    """It comes between the sending of tokens and the waiting for those of others."""
    off = ["router", "dispatch", "dispatch", "experts", "combine", "combine", "shared"]
    on = ["router", "dispatch", "shared", "dispatch", "experts", "combine", "combine"]
    for name, expected in (("large", off), ("overlap_shared", on)):
        for trace in recorded.run(name).traces:
            assert stages(trace, "L1") == expected


def test_chunks_of_tensor_parallel_communication(recorded: Recorded) -> None:
    counts = {}
    for name in ("tp", "tp_chunked"):
        table = recorded(name, "overlap")["overlap"]
        counts[name] = int(table[table["group"].eq("TP") & table["rank"].eq(0)]["count"].sum())
    assert counts["tp_chunked"] > counts["tp"]
