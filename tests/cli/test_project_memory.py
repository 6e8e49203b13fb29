"""`tracelens project memory` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracelens.cli import run as run_cli
from tracelens.planner.config import OPTIMISED
from tracelens.workload import bundled

TRILLION = ["project", "memory", "--model", "moe_1t", "--gpus", "768"]


def told(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run_cli([*arguments, "--json"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def test_it_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    layout = ["--pp", "24", "--ep", "8", "--cp", "2", "--vpp", "4", "--device", "mi300x"]
    assert run_cli([*TRILLION, *layout, "--framework", "amd-guide"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith("110.0 GiB on the fullest GPU")
    assert "; fits mi300x (68.8 GiB to spare)" in " ".join(out.split())
    for text in ("Memory by component", "activations.experts", "Pipeline ranks", "Does it fit", "yes"):
        assert text in out
    assert "768 GPUs pp=24" in out


def test_json_has_the_tables(capfd: pytest.CaptureFixture[str]) -> None:
    found = told(
        capfd, *TRILLION, "--pp", "24", "--ep", "8", "--vpp", "4", "--device", "h200", "--device", "b200"
    )
    assert found["analyzer"] == "memory"
    assert list(found["tables"]) == ["fits", "memory", "ranks"]
    rows = found["tables"]["memory"]
    assert {"pp_rank", "component", "bytes"} < set(rows[0])
    assert {"parameters", "gradients", "main_parameters", "optimizer"} < {row["component"] for row in rows}
    assert {row["pp_rank"] for row in rows} == set(range(24))
    # As many micro-batches as fill the pipeline.
    assert found["tables"]["ranks"][0]["in_flight"] == 119
    assert [row["device"] for row in found["tables"]["fits"]] == ["h200", "b200"]
    peaks = [row["peak_bytes"] for row in found["tables"]["ranks"]]
    assert peaks == sorted(peaks, reverse=True)
    assert found["meta"]["worst_bytes"] == peaks[0]


def peak(capfd: pytest.CaptureFixture[str], *arguments: str) -> int:
    options = ["project", "memory", "--model", "small", "--gpus", "8", *arguments]
    return int(told(capfd, *options)["meta"]["worst_bytes"])


@pytest.mark.parametrize(
    ("option", "less"),
    [
        (["--mbs", "8"], False),
        (["--seq", "8192"], False),
        (["--imbalance", "2"], False),
        (["--precision", "fp32"], False),
        (["--precision", "bf16"], True),
        (["--framework", "workload"], False),
        (["--megatron", "states=bfloat16"], True),
        (["--precision", "bf16-no-main"], True),
        (["--optimizer", "sgd"], True),
        (["--recompute", "full"], True),
        (["--recompute", "0,1,2,3,4"], True),
        (["--recompute", "attention"], True),
        (["--optimised"], True),
        (["--tp", "2"], True),
        (["--set", "loss=fused", "--set", "permute=fused"], True),
    ],
)
def test_options_reach_the_projection(
    option: list[str], less: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    base = peak(capfd, "--mbs", "4") if "--mbs" in option else peak(capfd)
    found = peak(capfd, *option)
    assert (found < base) == less
    assert found != base


def test_pipeline_options(capfd: pytest.CaptureFixture[str]) -> None:
    stages = ["--pp", "4", "--vpp", "2", "--set", "layers=8", "--micro-batches", "32"]
    base = peak(capfd, *stages)
    assert peak(capfd, *stages, "--overlap") > base
    assert peak(capfd, *stages, "--stage-buffers", "all") > base


def test_layouts_are_compared_in_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    layouts = ["pp=24 ep=8 vpp=4", "pp=24 ep=8 vpp=4 cp=2", "pp=48 ep=8 vpp=2"]
    options = [part for text in layouts for part in ("--layout", text)]
    page, data = tmp_path / "memory.html", tmp_path / "memory.json"
    devices = ["--device", "mi300x", "--device", "mi355x"]
    written = ["-o", str(page), "-o", str(data)]
    assert run_cli([*TRILLION, "--framework", "amd-guide", *options, *devices, *written]) == 0
    assert capfd.readouterr().err == f"wrote {page}\nwrote {data}\n"
    assert "Memory of the fullest GPU, by layout" in page.read_text()
    fits = json.loads(data.read_text())["results"]["memory"]["tables"]["fits"]
    assert [(row["layout"], row["device"], row["fits"]) for row in fits] == [
        (layouts[0], "mi300x", "no"), (layouts[0], "mi355x", "yes"),
        (layouts[1], "mi300x", "yes"), (layouts[1], "mi355x", "yes"),
        (layouts[2], "mi300x", "no"), (layouts[2], "mi355x", "yes"),
    ]  # fmt: skip


def test_a_reserve_and_a_device_of_ones_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('name = "mine"\nhbm_bytes = 24e9\nhbm_bytes_per_s = 1e12\n[matrix]\nbf16 = 1e14\n')
    found = told(
        capfd, "project", "memory", "--model", "tiny", "--device-file", str(mine), "--reserve", "1.5"
    )
    (row,) = found["tables"]["fits"]
    assert (row["device"], row["memory_bytes"], row["reserve_bytes"]) == ("mine", 24 * 10**9, 3 * 2**29)
    assert "driver-reported memory of mine" in [skip["subject"] for skip in found["skips"]]


def test_a_headline_for_newcomers(capfd: pytest.CaptureFixture[str]) -> None:
    sizes = ["--pp", "24", "--ep", "8", "--vpp", "4"]
    found = []
    for more in ([], ["--optimised"], ["--optimised", "--set", "loss=plain"]):
        assert run_cli([*TRILLION, *sizes, *more]) == 0
        found.append(" ".join(capfd.readouterr().out.partition("\n\n")[0].splitlines()[:-1]))
    plain, optimised, again = found
    fused = f"; {optimised.split()[0]} GiB with fused kernels (--optimised)."
    assert plain == f"220.7 GiB on the fullest GPU (768 GPUs pp=24 vpp=4 ep=8){fused}"
    assert again.endswith(fused)
    devices = ["--device", "h200", "--device", "mi355x", "--optimised"]
    assert run_cli([*TRILLION[:4], "--gpus", "64", *devices, "--set", "layers=24", "--ep", "32"]) == 0
    verdict = " ".join(capfd.readouterr().out.partition("\n\n")[0].split())
    assert "; fits mi355x" in verdict
    assert "; does not fit h200" in verdict


def test_what_optimised_is_stands_in_its_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["project", "memory", "--help"]) == 0
    text = " ".join(capfd.readouterr().out.split())
    assert " ".join(f"{name}={value}" for name, value in OPTIMISED.items()) in text
    # They are what the first two rungs of the workload's ladder add to the baseline.
    first = bundled()[1:3]
    assert {text for rung in first for text in rung.adds} == {f"{a}={b}" for a, b in OPTIMISED.items()}


def test_fields_of_a_layout_have_the_names_of_the_options(capfd: pytest.CaptureFixture[str]) -> None:
    sizes = [peak(capfd, "--layout", text) for text in ("gpus=16 mbs=4", "ranks=16 micro_batch=4")]
    assert sizes[0] == sizes[1] > peak(capfd, "--layout", "gpus=16")


def test_stages_of_a_file_are_filled(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("yaml", reason="YAML model files need PyYAML")
    path = tmp_path / "mine.yaml"
    path.write_text(
        "num_layers: 4\nhidden_size: 1024\nnum_attention_heads: 8\nvocab_size: 32000\nswiglu: true\n"
        "num_experts: 16\nmoe_ffn_hidden_size: 512\nuntie_embeddings_and_output_weights: true\n"
        "normalization: RMSNorm\npipeline_model_parallel_size: 4\n"
    )
    found = told(capfd, "project", "memory", "--model", str(path), "--gpus", "4")
    assert {row["pp_rank"]: row["in_flight"] for row in found["tables"]["ranks"]} == {0: 4, 1: 3, 2: 2, 3: 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nope"], "unknown model (nor is it a file) 'nope'"),
        (
            ["--model", "moe_1t", "--gpus", "10", "--pp", "3"],
            "10 ranks are not a multiple of pp x cp x tp = 3",
        ),
        (["--model", "tiny", "--recompute", "some"], "--recompute is none, attention, full, moe"),
        (["--model", "tiny", "--device", "foo"], "unknown device 'foo'"),
        (["--model", "tiny", "--framework", "amd-guide"], "does not support another precision"),
        (["--model", "tiny", "--imbalance", "0.5"], "imbalance must be at least 1"),
        (["--model", "tiny", "--set", "nothing=3"], "unknown config field 'nothing'"),
        (["--model", "tiny", "--layout", "pp:2"], "'pp:2' is not of the form field=value"),
        (["--model", "tiny", "-o", "memory.doc"], "memory.doc"),
        (["--model", "tiny", "--imbalance", "nan"], "imbalance must be at least 1"),
        (["--model", "tiny", "--reserve", "nan", "--device", "h200"], "--reserve must be GiB, 0 or more"),
        (["--model", "tiny", "--reserve", "-5", "--device", "h200"], "--reserve must be GiB, 0 or more"),
        (["--model", "tiny", "--reserve", "500", "--device", "h200"], "the reserve leaves nothing"),
        (["--model", "tiny", "--reserve", "5"], "--reserve needs --device"),
        (["--model", "tiny", "--layout", ""], "--layout is empty"),
        (["--model", "tiny", "--top", "3"], "--top is for --search"),
        (["--model", "tiny", "--gpus", "0"], "--gpus"),
        (["--model", "tiny", "--set", "aux_loss=nan"], "aux_loss must be a number, not 'nan'"),
        (["--model", "tiny", "--recompute", "none", "--set", "recompute_layer_ids=1"], "exclude each other"),
        (
            ["--model", "moe_1t", "--framework", "amd-guide", "--optimizer", "sgd"],
            "does not support optimizer=sgd",
        ),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], message: str, refused: Callable[..., str]) -> None:
    assert message in refused("project", "memory", *arguments)
