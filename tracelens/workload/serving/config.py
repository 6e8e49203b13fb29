"""The model of a serving run. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tracelens.errors import TracelensError
from tracelens.planner.config import HELP, Config, Layout, override, preset
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
    texts = list(assignments)
    unknown = HELP.keys() - {*TOGGLES, *TRAINING}
    if wrong := [text.partition("=")[0] for text in texts if text.partition("=")[0] in unknown]:
        raise TracelensError(
            f"{wrong[0]} is a field of training runs: serving knows those of the model, and "
            f"{', '.join((*TOGGLES, *TRAINING))}"
        )
    config = override(preset(name), texts)
    toggles = replace(config.toggles, experts="grouped", sync_free=2)
    training = replace(config.training, seq=serving.context, seed=serving.seed)
    return replace(config, toggles=toggles, training=training, layout=Layout())
