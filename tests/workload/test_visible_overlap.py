"""What toggles hide communication behind, as analyzers see it in recorded runs with them off and on."""

from __future__ import annotations

from itertools import product

import pytest

pytest.importorskip("torch", reason="the workload needs torch")

from tests.workload.recorded import Recorded
from tracelens.schema import Result


def hidden(found: Result, group: str) -> float:
    """Share of a group's communication that runs beside computation, of all ranks: |C n K| / |C|."""
    table = found["overlap"]
    mine = table[table["group"].eq(group)]
    assert mine["comm_ns"].gt(0).all()
    return float(mine["hidden_ns"].sum() / mine["comm_ns"].sum())


def interleaved(found: Result) -> set[tuple[int, int, int]]:
    """(rank, micro-batch, other one) where a forward pass of one runs beside a backward pass of the other."""
    passes = found["passes"]
    begin, end = passes["ts_ns"], passes["ts_ns"] + passes["dur_ns"]
    pairs = set()
    for one, other in product(passes.index, repeat=2):
        beside = begin[one] < end[other] and begin[other] < end[one]
        phases = passes["phase"][one], passes["phase"][other]
        if beside and phases == ("forward", "backward") and passes["rank"][one] == passes["rank"][other]:
            pairs.add((passes["rank"][one], passes["microbatch"][one], passes["microbatch"][other]))
    return pairs


def hides(off: Result, on: Result, group: str) -> bool:
    """Whether more is hidden, and not only what lies between gloo's end and that of its annotation."""
    return hidden(on, group) > max(0.02, 2 * hidden(off, group))


def test_one_micro_batch_hides_the_exchange_of_another(recorded: Recorded) -> None:
    assert hides(recorded("large", "overlap"), recorded("overlap_exchange", "overlap"), "ep")
    assert interleaved(recorded("large", "moe")) == set()
    expected = {(rank, batch, batch - 1) for rank in range(2) for batch in (1, 2)}
    assert interleaved(recorded("overlap_exchange", "moe")) == expected


def test_the_shared_expert_hides_the_dispatch(recorded: Recorded) -> None:
    assert hides(recorded("large", "overlap"), recorded("overlap_shared", "overlap"), "ep")


def test_chunks_hide_tensor_parallel_communication(recorded: Recorded) -> None:
    off, on = recorded("tp", "overlap"), recorded("tp_chunked", "overlap")
    assert hides(off, on, "tp")
    counts = {}
    for name, found in (("off", off), ("on", on)):
        table = found["overlap"]
        counts[name] = int(table[table["group"].eq("tp") & table["rank"].eq(0)]["count"].sum())
    assert counts["on"] > counts["off"]
