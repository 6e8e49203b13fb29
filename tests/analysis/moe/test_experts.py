"""Rows of single experts: whose they are only where that is recorded, their balance wherever sizes are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.analysis.moe_traces import KERNEL_NS, Model, Recorder, as_trace, masked, recorded
from tests.builders import records
from tracelens import analyze
from tracelens.analysis.moe.layers import GemmSize, rows_in_group, rows_in_loop
from tracelens.analysis.moe.regions import LayerPass
from tracelens.table import Result
from tracelens.trace import make_run

ROWS = {0: [0, 5, 0, 1, 2, 2, 3, 3], 1: [0, 5, 0, 1, 4, 2, 1, 3]}
"""Micro-batch to rows of the eight experts of one GPU."""
LOOP = "a loop does not record which expert each GEMM is of; only their balance is known"
GROUPED = "grouped GEMMs read their sizes from GPU memory"


def analyzed(**changes: Any) -> Result:
    model = Model(layers=1, order="F0 B0 F1 B1", rows=lambda _, micro_batch, __: ROWS[micro_batch], **changes)
    return analyze(recorded(model)[0], "moe")


def skipped(result: Result, subject: str = "tokens by expert") -> list[str]:
    return [skip.reason for skip in result.skips if skip.subject == subject]


BALANCE = [
    (0, 0, 8, 2.0, 2.0, 5.0, 2.5, pytest.approx(np.mean([np.std(rows) / 2 for rows in ROWS.values()])))
]
"""Of both micro-batches, by hand."""


@pytest.mark.parametrize("loop", [True, False], ids=["loop", "grouped"])
@pytest.mark.parametrize("recompute", ["", "hooks"])
def test_rows_that_were_cut_apart_by_recorded_sizes(loop: bool, recompute: Any) -> None:
    result = analyzed(loop=loop, split=True, recompute=recompute)
    mean = np.mean(list(ROWS.values()), axis=0).tolist()
    expected = sorted(enumerate(mean), key=lambda row: -row[1])
    assert records(result["experts"], "expert", "tokens") == expected
    assert records(result["expert_balance"]) == BALANCE
    assert not skipped(result)


def test_the_order_of_launch_is_no_number() -> None:
    result = analyzed()
    assert not len(result["experts"])
    assert records(result["expert_balance"]) == BALANCE
    assert skipped(result) == [LOOP]


def test_nor_is_it_where_all_experts_have_rows() -> None:
    result = analyze(recorded(Model())[0], "moe")
    assert not len(result["experts"])
    assert len(result["expert_balance"]) == 2


def test_grouped_calls_that_record_the_sum_only() -> None:
    result = analyzed(loop=False)
    assert not len(result["experts"])
    assert not len(result["expert_balance"])
    assert skipped(result) == [GROUPED]


def test_without_recorded_arguments() -> None:
    result = analyzed(shapes=False, split=True)
    assert not len(result["experts"])
    assert not len(result["expert_balance"])
    assert skipped(result) == ["shapes of the expert GEMMs not recorded; use record_shapes=True"]


@pytest.mark.parametrize("scattered", [False, True], ids=["itself", "op in it"])
def test_a_choice_that_computes_nothing_is_no_expert(scattered: bool) -> None:
    """The router also chooses from skipping the layer; tokens are sorted by the experts with weights."""

    class Skipping(Recorder):
        def permute(self) -> None:
            arguments = self.arguments([[8, 2], []], ["", "7"])
            with self.part("permute"), self.around("cpu_op", "aten::one_hot", **arguments):
                if scattered:
                    self.op("aten::scatter_", "_scatter_gather_kernel")
                else:
                    self.launch("one_hot_kernel", KERNEL_NS)
            super().permute()

    recorder = Skipping(Model(layers=1, rows=lambda *_: [0, 5, 1, 2, 2, 3, 3]), 0)
    recorder.backward(0, recorder.forward(0))
    result = analyze(make_run([as_trace(recorder)]), "moe")
    assert records(result["expert_balance"], "experts", "unused", "tokens_mean") == [(7, 1.0, 16 / 7)]
    assert result.meta["experts"] == 8


def test_how_many_experts_a_rank_has_may_not_be_known() -> None:
    """DeepEP's kernels do not tell which ranks take part."""
    result = analyze(recorded(Model(ranks=2, exchange="deep_ep"))[0], "moe")
    assert not len(result["expert_balance"])
    subject = "balance of a rank's experts"
    assert skipped(result, subject) == ["number of experts on the rank not recorded"]


def test_each_rank_has_a_part_of_the_experts() -> None:
    model = Model(
        ranks=2, layers=1, exchange="all_to_all", rows=lambda rank, *_: [[4, 0, 0, 4], [2] * 4][rank]
    )
    table = analyze(recorded(model)[0], "moe")["expert_balance"]
    columns = ("rank", "experts", "unused", "tokens_mean", "max_mean_ratio", "variation")
    assert records(table, *columns) == [(0, 4, 2.0, 2.0, 2.0, 1.0), (1, 4, 0.0, 2.0, 1.0, 0.0)]


def test_splits_of_other_things_are_none_of_the_experts() -> None:
    # Of messages from ranks, of chunks of both, of an older pass; the last that has these rows counts.
    splits = [(8, 8), (3, 0, 5, 8), (0, 3, 5, 8), (3, 0, 5, 0, 8, 0), (3, 5, 9)]
    assert rows_in_loop(splits, [3, 5, 8], experts=8) == (3, 0, 5, 8)
    assert rows_in_loop(splits, [3, 5, 8], experts=6) == (3, 0, 5, 0, 8, 0)
    assert rows_in_loop(splits, [3, 5, 8], experts=-1) == (3, 0, 5, 8)
    assert rows_in_loop(splits, [5, 3, 8], experts=8) == ()


@pytest.mark.parametrize(
    ("numbers", "rows"),
    [
        ([3, 0, 5], (3, 0, 5)),
        ([3, 3, 8], (3, 0, 5)),
        ([0, 3, 3, 8], (3, 0, 5)),
        ([3, 0, 4], ()),
        ([8, 3, 8], ()),
        ([4, 4], ()),
        ([], ()),
        ([1, 2, 3, 1, 1], ()),
        ([-1, 4, 5], ()),
    ],
    ids=str,
)
def test_lengths_and_offsets_of_groups(numbers: list[int], rows: tuple[int, ...]) -> None:
    assert rows_in_group([[7], numbers], groups=3, rows=8) == rows


@pytest.mark.parametrize("up", [1, 2], ids=["gate and up in one", "each by itself"])
def test_gate_and_up_projection_have_the_same_rows(up: int) -> None:
    expert = [GemmSize(rows, 64, 64 // up) for rows in (3, 5, 7, 9) for _ in range(up)]
    down = [GemmSize(rows, 64 // up, 64) for rows in (3, 5, 7, 9)]
    gemms = (*expert, *down) if up == 2 else (*expert, *(gemm._replace(depth=32) for gemm in down))
    layer_pass = LayerPass(0, 0, 0, False, 4, 2, 12, 64, 2, False, gemms)
    assert layer_pass.rows == [3, 5, 7, 9]


def test_ranks_that_leave_out_the_rows_of_other_ranks_experts() -> None:
    """Grouped GEMMs have all chosen rows; how many are behind the last group is in GPU memory."""
    result = analyze(make_run([masked(rank, 10_000 * (1 + 2 * rank)) for rank in range(2)]), "moe")
    assert set(result["layers"]["tokens"].isna()) == {True}
    assert set(result["balance"]["ranks"]) == {"0-1"}
    assert skipped(result, "tokens of some passes") == [
        "grouped GEMMs leave out rows of other ranks' experts; the GPU alone knows how many"
    ]
    # Two GEMMs forward and two backward in each of two layers.
    assert result["waits"]["dur_ns"].sum() == 2 * 4 * 20_000


@pytest.mark.parametrize(("rows", "is_known"), [(8, False), (4, True)])
def test_buffers_for_the_worst_case_do_not_tell_the_tokens(
    monkeypatch: pytest.MonkeyPatch, rows: int, is_known: bool
) -> None:
    """Equal parts that no split sizes ask for: 32 rows where 16 were chosen, and just the 16."""
    collective = Recorder.collective

    def in_equal_parts(self: Recorder, name: str, group: str, args: dict[str, Any]) -> None:
        collective(self, name, group, args | {"In split size": "[]", "Out split size": "[]"})

    monkeypatch.setattr(Recorder, "collective", in_equal_parts)
    model = Model(ranks=2, exchange="all_to_all", loop=False, rows=lambda *_: [rows] * 4)
    result = analyze(recorded(model)[0], "moe")
    assert set(result["layers"]["tokens"].isna()) == {not is_known}
    assert skipped(result, "tokens of some passes") == [
        "experts compute buffers for the worst case, of which the GPU alone knows the tokens' rows"
    ] * (not is_known)
