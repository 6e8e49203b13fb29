"""The model of a serving run. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace

from tracelens.config import Config, override, preset
from tracelens.config.layout import Layout
from tracelens.errors import TracelensError
from tracelens.workload.serving.settings import Serving

TOGGLES = ("permute", "router")
TRAINING = ("dtype", "routing")
"""Fields of a run's toggles and training that serving knows, too."""


def model_config(name: str, assignments: Iterable[str], serving: Serving) -> Config:
    """The model of a preset as one rank's: whole experts, in grouped GEMMs, sizes known without asking.

    Args:
        name: of the preset.
        assignments: texts `field=value` of the model, or of what serving shares with training.
        serving: longest context, and seed.

    Raises:
        TracelensError: a field says nothing about serving, or see `config.override`.
    """
    usual = preset(name)
    config = override(usual, assignments)
    known = {"toggles": TOGGLES, "training": TRAINING, "layout": ()}
    for part, names in known.items():
        before, after = asdict(getattr(usual, part)), asdict(getattr(config, part))
        if wrong := [field for field in after if after[field] != before[field] and field not in names]:
            raise TracelensError(
                f"{wrong[0]} is a field of training runs: serving knows those of the model, and "
                f"{', '.join((*TOGGLES, *TRAINING))}"
            )
    toggles = replace(config.toggles, experts="grouped", sync_free=2)
    training = replace(config.training, seq=serving.context, seed=serving.seed)
    return replace(config, toggles=toggles, training=training, layout=Layout())
