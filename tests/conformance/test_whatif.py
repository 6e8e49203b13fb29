"""Real runs with nothing changed: the replayed step is the recorded one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.corpus import Case
from tests.what_if.replays import check_explained, check_identity

CORPUS = [
    "nvidia-h200-megatron/ep8",
    "nvidia-h200-megatron/pp2ep4",
    "mi300x/resnet_act_checkpoint.json.gz",
    "mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "misc/hta_control.json.gz",
    "misc/hta_test.json.gz",
    "misc/nccl_data.json.gz",
    "misc/negative_queue.json.gz",
    "misc/ns_resolution.json.gz",
    "misc/backward_thread.json",
    "misc/triton_example.json.gz",
    "nvidia-h100-hf/dsv2_grouped.json.gz",
]


@pytest.mark.parametrize("case", CORPUS, indirect=True)
def test_nothing_changed_gives_back_the_step_of_real_runs(case: Case) -> None:
    check_identity(case.run)
    if len(case.run.traces) > 1:
        check_explained(case.run, 0.01)


def test_every_run_of_several_ranks_is_among_them(corpus: Path) -> None:
    ranks = [str(file.parent.relative_to(corpus)) for file in corpus.rglob("rank*.json*")]
    assert {folder for folder in ranks if ranks.count(folder) > 1} <= set(CORPUS)
