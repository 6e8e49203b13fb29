"""Colours: one name has one colour, no two names of a figure share one, text is legible."""

from __future__ import annotations

import re
from importlib import import_module
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import tracelens.rendering
from tests.rendering.sample import ranking
from tracelens.analysis.host import CAUSES as IDLE_CAUSES
from tracelens.analysis.moe import STAGES as MOE_STAGES
from tracelens.rendering.figures import figures
from tracelens.trace import classes

palette = import_module("tracelens.rendering.figures.colors")  # the room exports a function of that name

ASSETS = Path(tracelens.rendering.__file__).parent / "assets"
GROUPS = ("CATEGORIES", "CAUSES", "STAGES", "PASSES", "BUBBLE", "SERVING", "STEP_PARTS", "MEMORY")
# Machado et al. 2009, severity 1: what people without green or red cones see of linear RGB.
SIGHTS = {
    "all cones": np.eye(3),
    "deuteranopia": np.array(
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    ),
    "protanopia": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
}
LMS = np.array([[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]])
OKLAB = np.array([[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]])


def linear(color: str, ground: tuple[int, int, int] = (255, 255, 255)) -> np.ndarray:
    """Linear RGB, 0-1, of #rrggbb or rgba(...) on a ground."""
    if color.startswith("#"):
        srgb = np.array([int(color[start : start + 2], 16) for start in (1, 3, 5)], float)
    else:
        *channels, alpha = (float(part) for part in re.findall(r"[\d.]+", color))
        srgb = alpha * np.array(channels) + (1 - alpha) * np.array(ground)
    part = srgb / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def distance(first: str, second: str, sight: str) -> float:
    """How far apart two colours look, in OKLab; 0.02 is just noticeable side by side."""
    ends = [
        np.cbrt(np.clip(SIGHTS[sight] @ linear(color), 0, 1) @ LMS.T) @ OKLAB.T for color in (first, second)
    ]
    return float(np.linalg.norm(ends[0] - ends[1]))


def contrast(first: str, second: str) -> float:
    """Of WCAG 2.2: 1 to 21."""
    light, dark = sorted(float(linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (first, second))[::-1]
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("sight", SIGHTS)
def test_colors_of_a_group_can_be_told_apart(group: str, sight: str) -> None:
    of_name = getattr(palette, group)
    least = 0.05 if sight == "all cones" else 0.02
    alike = {
        (first, second): round(distance(of_name[first], of_name[second], sight), 3)
        for first, second in combinations(of_name, 2)
        if distance(of_name[first], of_name[second], sight) < least
    }
    assert not alike


def test_what_is_known_beforehand_has_a_fixed_color() -> None:
    assert set(palette.CATEGORIES) >= {known.name for known in classes()}
    assert set(palette.CAUSES) == set(IDLE_CAUSES)
    assert set(palette.STAGES) == set(MOE_STAGES)
    assert palette.colors(["gemm", "zebra"])["gemm"] == palette.colors(["attention", "gemm"])["gemm"]


@pytest.mark.parametrize("count", [2, 18, 19, 60])
def test_no_two_unknown_names_share_a_color(count: int) -> None:
    names = [f"name {number}" for number in range(count)]
    color_of = palette.colors([*names, "gemm", "communication"])
    assert len(set(color_of.values())) == count + 2


def test_an_unknown_name_keeps_its_color_beside_others_that_want_another() -> None:
    alone = palette.colors(["zebra"])["zebra"]
    assert palette.colors(["zebra", "gemm", "communication"])["zebra"] == alone


def test_ranks_have_one_sequential_scale() -> None:
    shades = [linear(color) @ [0.2126, 0.7152, 0.0722] for color in palette.rank_colors(range(64)).values()]
    assert len(shades) == 64
    assert np.all(np.diff(shades) > -0.01)
    assert shades[-1] > 2 * shades[0]
    assert palette.rank_colors([5]).keys() == {5}


def test_categories_of_a_figure_have_the_colors_of_all_figures() -> None:
    for trace in figures(ranking("ops", "dur_ns"))[0]["data"]:
        if trace["name"] in palette.CATEGORIES:
            assert trace["marker"]["color"] == palette.CATEGORIES[trace["name"]]


@pytest.mark.parametrize("group", ["CATEGORIES", "MEMORY", "STEP_PARTS"])
def test_labels_are_legible_on_every_color(group: str) -> None:
    opaque = [color for color in getattr(palette, group).values() if color.startswith("#")]
    assert len(opaque) > 8
    for color in opaque:
        assert contrast(palette.ink(color), color) >= 4.2
        assert contrast(palette.ink(color), color) >= 0.95 * max(
            contrast(text, color) for text in ("#ffffff", "#10151c")
        )


def variables(scheme: str) -> dict[str, str]:
    """The colours of the page in a scheme."""
    light, dark = re.findall(r"\.tracelens \{(\s*--.*?)\}", (ASSETS / "table.css").read_text(), re.DOTALL)[:2]
    named = dict(re.findall(r"--([a-z]+): ([^;]+);", light))
    return named if scheme == "light" else named | dict(re.findall(r"--([a-z]+): ([^;]+);", dark))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("text", ["text", "soft", "accent"])
@pytest.mark.parametrize("ground", ["page", "panel", "hover", "calm"])
def test_text_is_legible(scheme: str, text: str, ground: str) -> None:
    of_name = variables(scheme)
    assert contrast(of_name[text], of_name[ground]) >= 4.5
