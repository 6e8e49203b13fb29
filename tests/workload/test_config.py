"""Sizes and presets, without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tracelens.errors import TracelensError
from tracelens.workload.config import PRESETS, MoEConfig, override, preset


def test_importing_the_config_does_not_import_torch() -> None:
    code = "import sys, tracelens.workload, tracelens.workload.config; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_a_dense_and_an_moe_layer(name: str) -> None:
    config = preset(name)
    assert config.dense_layers >= 1
    assert config.moe_layers >= 1


def test_unknown_preset_suggests_a_known_one() -> None:
    with pytest.raises(TracelensError, match="did you mean 'sample'"):
        preset("sampel")


def test_derived_sizes() -> None:
    config = preset("tiny")
    assert config.tokens == 2 * 16
    assert config.dense_ffn == 48 * (2 + 1)
    assert config.moe_layers == 1


def test_override_replaces_fields() -> None:
    config = override(preset("tiny"), ["hidden=64", "dtype=bfloat16", "hidden=128"])
    assert (config.hidden, config.dtype, config.heads) == (128, "bfloat16", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hidden", "not of the form field=value"),
        ("hiden=64", "did you mean 'hidden'"),
        ("hidden=wide", "hidden must be a whole number, not 'wide'"),
        ("hidden=30", "hidden .30. must be a multiple of 8"),
        ("heads=3", "must be a multiple of heads"),
        ("top_k=5", "exceeds routed_experts"),
        ("top_k=0", "top_k must be at least 1"),
        ("dense_layers=3", "dense_layers must be 0 to 2"),
        ("dtype=float16", "unknown dtype"),
        ("experts=grouped_gemm", "unknown experts variant"),
    ],
)
def test_a_bad_override_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(TracelensError, match=message):
        override(preset("tiny"), [text])


def test_config_is_frozen() -> None:
    with pytest.raises(AttributeError):
        preset("tiny").hidden = 64  # type: ignore[misc]


def test_shared_experts_are_optional() -> None:
    assert isinstance(override(preset("tiny"), ["shared_experts=0"]), MoEConfig)
