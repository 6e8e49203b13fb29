"""Models, layouts, toggles and the settings of a run, without torch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from tracelens.errors import TracelensError
from tracelens.planner.config import CHOICES, HELP, MODELS, PARTS, Config, Toggles, override, preset


def test_importing_the_config_does_not_import_torch() -> None:
    code = "import sys, tracelens.planner.config; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", MODELS)
def test_presets_start_from_the_baseline_on_one_rank(name: str) -> None:
    config = preset(name)
    assert config.layout.ranks == 1
    assert config.toggles.changed() == {}
    assert config.model.moe_layers > 0


def test_unknown_preset_suggests_a_known_one() -> None:
    with pytest.raises(TracelensError, match="did you mean 'small'"):
        preset("smal")


def test_every_setting_has_a_help_text_and_only_those() -> None:
    named = {item.name for part in ("layout", "training", "toggles") for item in fields(PARTS[part])}
    assert set(HELP) == named


def test_names_of_fields_are_unique_over_all_parts() -> None:
    names = [item.name for kind in PARTS.values() for item in fields(kind)]
    assert len(names) == len(set(names))


def test_choices_are_those_of_every_toggle_that_has_names_or_stages() -> None:
    assert CHOICES["sync_free"] == (0, 1, 2, 3)
    assert CHOICES["dispatch"] == ("alltoall", "allgather", "dedup", "deepep")
    kinds = {item.name: getattr(Toggles(), item.name) for item in fields(Toggles)}
    assert set(CHOICES) == {
        name for name, value in kinds.items() if isinstance(value, str) or name == "sync_free"
    }


def test_override_replaces_fields_of_any_part_in_any_order() -> None:
    config = override(preset("tiny"), ["sync_free=2", "ranks=4", "pp=2", "experts=grouped", "hidden=128"])
    assert (config.layout.ranks, config.layout.dp, config.layout.experts_over) == (4, 2, 2)
    assert config.toggles.changed() == {"sync_free": 2, "experts": "grouped"}
    assert config.model.hidden == 128


def test_override_reads_values_of_all_kinds() -> None:
    config = override(
        preset("tiny"), ["overlap_shared=on", "learning_rate=1e-3", "recompute_layer_ids=0,2", "seed=7"]
    )
    assert config.toggles.overlap_shared is True
    assert config.toggles.recompute_layer_ids == (0, 2)
    assert (config.training.learning_rate, config.training.seed) == (1e-3, 7)
    assert override(config, ["recompute_layer_ids=", "overlap_shared=false"]).toggles.changed() == {}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["hidden"], "not of the form field=value"),
        (["hiden=64"], "did you mean 'hidden'"),
        (["hidden=wide"], "hidden must be a whole number, not 'wide'"),
        (["hidden=30"], "hidden .30. must be a multiple of 8"),
        (["top_k=9"], "exceeds experts_count"),
        (["top_k=0"], "top_k must be at least 1"),
        (["dense_layers=4"], "dense_layers must be 0 to 3"),
        (["dense_ffn=0"], "dense_layers needs dense_ffn"),
        (["attention=mqa"], "unknown attention"),
        (["attention=gqa"], "multiple of kv_groups"),
        (["expert_groups=3"], "multiple of expert_groups"),
        (["expert_groups=8", "top_k=2"], "top_k .2. exceeds the 1 experts"),
        (["rope_dim=7"], "must be even"),
        (["dtype=float16"], "unknown dtype"),
        (["routing=random"], "unknown routing"),
        (["experts=grouped_gemm"], "unknown experts"),
        (["sync_free=4"], "unknown sync_free"),
        (["sync_free=2"], "needs experts=grouped"),
        (["overlap_shared=maybe"], "overlap_shared must be true or false"),
        (["recompute_layer_ids=3"], "there is no layer 3 of 3"),
        (["recompute_layer_ids=a"], "must be numbers, as in 0,1,2"),
        (["ranks=3", "tp=2"], "not a multiple of pp x cp x tp = 2"),
        (["ranks=4", "ep=3"], "must divide the 4 ranks"),
        (["ranks=3"], "experts_count .8. must be a multiple of ep = 3"),
        (["ranks=4", "node=3"], "node .3. must divide"),
        (["vpp=2"], "needs a pipeline"),
        (["ranks=4", "pp=4"], "3 layers are too few for 4 chunks"),
        (["ranks=2", "pp=2", "micro_batches=1"], "at least 2 micro_batches"),
        (["ranks=2", "pp=2", "pp_layout=1,1"], "must have 2 chunks .pp x vpp., 3 layers"),
        (["ranks=2", "pp=2", "pp_layout=a"], "must list the layers per chunk"),
        (["ranks=2", "tp=2", "seq=31"], "seq .31. must be a multiple of cp x tp = 2"),
        (["ranks=8", "tp=8"], "heads .4. must be a multiple of tp = 8"),
        (["overlap_exchange=1f1b", "micro_batches=1"], "at least 2 micro_batches"),
        (["overlap_exchange=1f1b", "ranks=2", "pp=2"], "needs pp=1"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(texts: list[str], message: str) -> None:
    with pytest.raises(TracelensError, match=message) as caught:
        override(preset("tiny"), texts)
    assert "\n" not in str(caught.value)


def test_derived_sizes() -> None:
    config = override(preset("tiny"), ["ranks=8", "tp=2", "cp=2"])
    assert config.tokens == 2 * 32 // 4
    assert config.global_tokens == 2 * 2 * 32 * 2
    assert isinstance(config, Config)


def test_config_is_frozen() -> None:
    with pytest.raises(AttributeError):
        preset("tiny").model = None  # type: ignore[assignment, misc]
