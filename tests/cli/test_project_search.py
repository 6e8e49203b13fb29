"""`tracelens project memory --search` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracelens.cli import run as run_cli

SEARCH = ["project", "memory", "--search"]
SMALL = [*SEARCH, "--model", "deepseek_v2_lite", "--gpus", "16", "--device", "h200", "--global-batch", "64"]
SIX = [
    "--layout", "pp=24 ep=8,16 vpp=4 cp=1,2 tp=1 recompute=none",
    "--layout", "pp=48 ep=8 vpp=2 cp=1,2 tp=1 recompute=none",
]  # fmt: skip


def test_the_published_choices_come_out(capfd: pytest.CaptureFixture[str]) -> None:
    best = {
        "moe_1t": {"mi300x": "pp=24 vpp=4 ep=8 cp=2", "mi355x": "pp=24 vpp=4 ep=8"},
        "moe_2t": {"mi300x": "pp=24 vpp=4 ep=16 cp=2", "mi355x": "pp=24 vpp=4 ep=8 cp=2"},
    }
    for model, expected in best.items():
        asked = ["--model", model, "--gpus", "768", "--device", "mi300x", "--device", "mi355x"]
        assert run_cli([*SEARCH, *asked, "--framework", "amd-guide", *SIX, "--json"]) == 0
        out, err = capfd.readouterr()
        assert err == ""
        assert json.loads(out)["meta"]["best"] == expected


def test_options_restrict_what_is_tried(capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--pp", "1,2", "--cp", "1", "--tp", "2", "--ep", "8", "--mbs", "1,2", "--recompute", "none,4"]
    assert run_cli([*SMALL, *options, "--vpp", "1", "--seq", "2048", "--top", "2", "--json"]) == 0
    value = json.loads(capfd.readouterr().out)
    assert value["analyzer"] == "search"
    assert value["meta"]["possible"] == 4
    assert value["meta"]["seq"] == 2048
    assert list(value["tables"]) == ["layouts", "parts", "refused", "assumptions"]
    rows = value["tables"]["layouts"]
    assert len(rows) == 2
    assert {(row["tp"], row["ep"]) for row in rows} == {(2, 8)}


def test_it_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli([*SMALL, "--pp", "1", "--ep", "16", "--tp", "1", "--cp", "1"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert "tracelens project memory --search of deepseek_v2_lite; without --optimised" in lines
    for text in ("Layouts that fit, fastest first", "global batch: 64", "Assumptions of the step time"):
        assert text in out


def test_every_format_is_written(written: Callable[..., Path]) -> None:
    folder = written(*SMALL, "--pp", "1", "--ep", "8,16", "--tp", "1")
    assert "Lower bound of the step time on h200, by layout" in (folder / "report.html").read_text()


def test_assumptions_can_be_changed(capfd: pytest.CaptureFixture[str]) -> None:
    narrow = ["--pp", "1", "--ep", "16", "--tp", "1", "--cp", "1", "--json"]
    steps = []
    for assumed in ([], ["--assume", "nic_bytes_per_s=12.5e9", "--assume", "hide_gradients=on"]):
        assert run_cli([*SMALL, *narrow, *assumed]) == 0
        value = json.loads(capfd.readouterr().out)
        steps.append({row["part"]: row["ns"] for row in value["tables"]["parts"]})
    assert steps[1]["experts_exchange"] > 3 * steps[0]["experts_exchange"]
    assert "gradients" not in steps[1]


def test_network_and_overlap_count_in_the_step_time(capfd: pytest.CaptureFixture[str]) -> None:
    layout = ["--pp", "1", "--ep", "16", "--tp", "1", "--cp", "1", "--set", "dispatch=deepep", "--json"]
    exchanges, notes = [], []
    for more in ([], ["--network", "h200-8x400g"], ["--network", "h200-8x400g", "--overlap"]):
        assert run_cli([*SMALL, *layout, *more]) == 0
        value = json.loads(capfd.readouterr().out)
        notes.append({row["name"]: row["note"] for row in value["tables"]["assumptions"]})
        exchanges.append({row["part"]: row["ns"] for row in value["tables"]["parts"]}["experts_exchange"])
    assert exchanges[0] <= exchanges[1]
    assert exchanges[2] < 0.7 * exchanges[1]
    assert "Megatron-core" in notes[1]["link_efficiency"]
    assert run_cli([*SMALL[:2], *SMALL[3:7], "--network", "h200-8x400g"]) == 2
    assert "--network is for --search" in capfd.readouterr().err


def test_fields_of_the_run_count(capfd: pytest.CaptureFixture[str]) -> None:
    narrow = ["--pp", "1", "--ep", "8", "--tp", "1", "--cp", "1", "--assume", "launches=none", "--json"]
    found = []
    for more in ([], ["--set", "dispatch=deepep", "--set", "loss=fused", "--precision", "bf16-no-main"]):
        assert run_cli([*SMALL, *narrow, *more]) == 0
        found.append(json.loads(capfd.readouterr().out)["tables"]["layouts"][0])
    assert found[1]["step_ns"] < found[0]["step_ns"]
    assert found[1]["bytes"] < found[0]["bytes"]


def test_a_busy_rank_counts_in_memory_and_time(capfd: pytest.CaptureFixture[str]) -> None:
    narrow = ["--pp", "1", "--ep", "8", "--tp", "1", "--cp", "1", "--json"]
    found = []
    for more in ([], ["--imbalance", "1.5"]):
        assert run_cli([*SMALL, *narrow, *more]) == 0
        found.append(json.loads(capfd.readouterr().out)["tables"]["layouts"][0])
    assert found[1]["step_ns"] > found[0]["step_ns"]
    assert found[1]["bytes"] > found[0]["bytes"]


def test_exchanges_that_overlap_can_be_searched_for(capfd: pytest.CaptureFixture[str]) -> None:
    options = [
        "--set",
        "overlap_exchange=1f1b",
        "--pp",
        "1,2",
        "--ep",
        "16",
        "--tp",
        "1",
        "--cp",
        "1",
        "--json",
    ]
    assert run_cli([*SMALL, *options]) == 0
    found = json.loads(capfd.readouterr().out)
    assert {row["pp"] for row in found["tables"]["layouts"]} == {1}


def test_a_file_says_the_batch_and_what_it_leaves_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("yaml", reason="YAML model files need PyYAML")
    path = tmp_path / "mine.yaml"
    path.write_text(
        "num_layers: 4\nhidden_size: 1024\nnum_attention_heads: 8\nvocab_size: 32000\nswiglu: true\n"
        "num_experts: 16\nmoe_ffn_hidden_size: 512\nuntie_embeddings_and_output_weights: true\n"
        "normalization: RMSNorm\nmtp_num_layers: 1\nglobal_batch_size: 32\nmicro_batch_size: 2\n"
        "pipeline_model_parallel_size: 2\nseq_length: 1024\n"
    )
    asked = ["--model", str(path), "--gpus", "8", "--device", "mi300x", "--pp", "1,2", "--tp", "1"]
    assert run_cli([*SEARCH, *asked, "--json"]) == 0
    out, err = capfd.readouterr()
    assert err == f"{path}: not counted: 1 multi-token prediction layers (mtp_num_layers)\n"
    value = json.loads(out)
    assert (value["meta"]["global_batch"], value["meta"]["seq"]) == (32, 1024)
    assert {row["micro_batch_size"] for row in value["tables"]["layouts"]} == {2}
    assert {row["pp"] for row in value["tables"]["layouts"]} == {1, 2}


def test_one_list_of_assumptions(capfd: pytest.CaptureFixture[str]) -> None:
    """Imbalance matters to memory and to the step time; a command takes what matters to it."""

    def answered(*words: str) -> Any:
        assert run_cli(["project", *words, "--json"]) == 0
        return json.loads(capfd.readouterr().out)

    memory = ["memory", "--model", "deepseek_v2_lite", "--gpus", "8", "--ep", "8"]
    skewed, option = ([*memory, *more] for more in (["--assume", "imbalance=1.5"], ["--imbalance", "1.5"]))
    assert answered(*skewed)["meta"] == answered(*option)["meta"] != answered(*memory)["meta"]
    search = ["memory", *SMALL[2:], "--pp", "1", "--ep", "8", "--tp", "1", "--cp", "1"]
    skewed, option = ([*search, *more] for more in (["--assume", "imbalance=1.5"], ["--imbalance", "1.5"]))
    found = [answered(*words)["tables"]["layouts"] for words in (skewed, option, search)]
    assert found[0] == found[1] != found[2]
    scaling = ["scaling", "--model", "deepseek_v2_lite", "--gpus", "8", "--ep", "8", "--device", "mi300x"]
    balanced, skewed_run = answered(*scaling), answered(*scaling, "--assume", "imbalance=1.5")
    steps = [run["tables"]["scaling"][0]["step_ns"] for run in (balanced, skewed_run)]
    assert steps[1] > 1.1 * steps[0]
    pipeline = ["pipeline", "--model", "deepseek_v2_lite", "--device", "mi300x", "--pp", "2"]
    pipeline += ["--micro-batches", "4"]
    spans = [
        answered(*pipeline, *more)["tables"]["summary"][0]["makespan_ns"]
        for more in ([], ["--assume", "matrix=by-size"])
    ]
    assert spans[1] > 1.1 * spans[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--search", "--model", "moe_1t", "--device", "mi300x"], "--search needs the number of GPUs"),
        (["--search", "--model", "moe_1t", "--gpus", "8"], "--search needs a device to fit"),
        ([*SMALL[2:], "--pp", "x"], "--pp must be numbers, as in 8,16, not 'x'"),
        ([*SMALL[2:], "--pp", ""], "--pp must be numbers, as in 8,16, not ''"),
        ([*SMALL[2:], "--layout", "pp"], "--layout: 'pp' is not of the form pp=24,48"),
        ([*SMALL[2:], "--layout", "ppp=2"], "did you mean 'pp'?"),
        ([*SMALL[2:], "--assume", "node"], "--assume: 'node' is not of the form name=value"),
        ([*SMALL[2:], "--assume", "nod=8"], "unknown assumption 'nod'; did you mean 'node'?"),
        ([*SMALL[2:], "--assume", "node=x"], "node must be a whole number, not 'x'"),
        ([*SMALL[2:], "--recompute", "most"], "recompute must be none, full or layers per chunk"),
        ([*SMALL[2:], "--assume", "imbalance=0.5"], "imbalance must be at least 1 (balanced), not 0.5"),
        ([*SMALL[2:], "--assume", "nic_bytes_per_s=nan"], "nic_bytes_per_s must be a number, not 'nan'"),
        ([*SMALL[2:], "--micro-batches", "4"], "--micro-batches is not for --search"),
        ([*SMALL[2:], "--set", "ranks=5"], "--set ranks=5: --search tries values of ranks: give --gpus"),
        ([*SMALL[2:], "--set", "pp_layout=3,4"], "--set pp_layout=3,4"),
        ([*SMALL[2:], "--set", "recompute_layer_ids=1"], "give --recompute"),
        ([*SMALL[2:], "--global-batch", "0"], "--global-batch"),
        ([*SMALL[2:], "--top", "0"], "--top"),
        ([*SMALL[2:], "--pp", "5"], "16 as in pp=5 cp=1 tp=1"),
        (["--model", "tiny", "--assume", "node=8"], "--assume node=8 is of the step time: add --search"),
        (["--model", "tiny", "--pp", "1,2"], "pp must be a whole number, not '1,2'"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    options: list[str], message: str, refused: Callable[..., str]
) -> None:
    assert message in refused("project", "memory", *options)
