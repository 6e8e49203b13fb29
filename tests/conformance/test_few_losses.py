"""One to five lost records are told, of the right rank; see losses/few.py for what cannot be seen."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.conformance.losses.__main__ import summary
from tests.conformance.losses.cases import Excluded, Outcome, outcomes
from tests.conformance.losses.damage import RankDamage
from tests.conformance.losses.few import FEW_LOST, RUNS
from tests.conformance.losses.recordings import RankRecording, located
from tests.effort import effort

TOLD = 0.99
OF_EACH_KIND = (
    "sample_traces/one_gpu/grouped",
    "sample_traces/pipeline/plain",
    "sample_traces/serving/delayer_on",
    "sample_traces/ladder/ep4/05_sync_free_3",
)
TRIED, DRAWS = effort((OF_EACH_KIND, 70), (RUNS, 500))


@pytest.mark.rare
def test_one_to_five_lost_records_are_told() -> None:
    missing = [name for name in TRIED if not located(name).exists()]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: set TRACELENS_CORPUS, _FOREIGN and _RECORDINGS")
    results: list[Outcome | Excluded] = list(outcomes(TRIED, tuple(FEW_LOST)))
    cases = [result for result in results if isinstance(result, Outcome)]
    print(summary(results))
    assert len(cases) >= DRAWS
    assert {case.kind for case in cases} == set(FEW_LOST)
    wrong = [case for case in cases if not case.right or any(_accused(case))]
    assert len(wrong) <= (1 - TOLD) * len(cases), wrong


def _accused(case: Outcome) -> Iterator[int]:
    """Ranks of which a doubt was raised, though nothing was taken from them."""
    for raised in case.raised:
        rank = int(raised.partition(":")[0])
        if rank not in (-1, *case.ranks):
            yield rank


def test_links_go_with_their_arrows_and_leave_the_work() -> None:
    rank = RankRecording(located("sample_traces/pipeline/plain/rank0.json.zst"))
    edits = RankDamage(rank)
    edits.unlink(rank.gpu & (np.cumsum(rank.gpu) == 1))
    assert not (edits.drop & rank.gpu).any()
    assert edits.drop.sum() == edits.unlinked.sum() == 1
    (row,) = np.flatnonzero(edits.drop)
    assert rank.events[row]["ph"] == "f"
