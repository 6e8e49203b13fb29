"""Published time breakdowns of the 2T model on 1,024 MI300X."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracelens.planner.config import MODELS, Config
from tracelens.planner.scaling.tables import PARTS

SOURCE = "AMD, MoE training best practices on AMD GPUs (ROCm blog), figure 11: 2T model, 1,024 MI300X"
_MEASURED = {
    ("alltoall", 8): (43.8, 13.2, 2.8, 26.4, 13.7),
    ("deepep", 8): (55.8, 8.9, 5.8, 13.6, 16.0),
    ("alltoall", 64): (4.6, 18.9, 41.5, 23.8, 11.1),
    ("deepep", 64): (49.2, 21.1, 11.1, 1.2, 17.4),
}
"""Dispatch and expert-parallel ranks to the share of each of PARTS in a step, %."""


def is_published(config: Config, device: str) -> bool:
    """Whether the figure is of this model, device and number of GPUs."""
    return (config.model, config.layout.ranks, device) == (MODELS["moe_2t"], 1024, "mi300x")


def published_rows(projected: Mapping[tuple[str, int], Mapping[str, float]]) -> list[dict[str, Any]]:
    """Rows of the table `published`.

    Args:
        projected: dispatch and expert-parallel ranks to the share of each part in the projected step.
    """
    rows = []
    for (dispatch, ep), percents in _MEASURED.items():
        if (dispatch, ep) in projected:
            published = {part: percent / 100 for part, percent in zip(PARTS, percents, strict=True)}
            key = {"dispatch": dispatch, "ep": ep}
            rows.append({**key, "figures": "projected", **projected[dispatch, ep], "source": ""})
            rows.append({**key, "figures": "published", **published, "source": SOURCE})
    return rows
