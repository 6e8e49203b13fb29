"""Headline numbers as text."""

from __future__ import annotations

from tracelens.rendering.tables.values import ABSENT
from tracelens.table import Tile
from tracelens.units import PERCENT, amount


def tile_value(tile: Tile) -> str:
    """The value with its unit: '58.4 ms'; a dash where it is not known."""
    if tile.text:
        return tile.text
    return ABSENT if tile.value is None else _amount(tile.value, tile.unit)


def tile_range(tile: Tile) -> str:
    """The range with its unit, '57.1 to 60.2 ms'; empty where there is none."""
    if tile.low is None or tile.high is None:
        return ""
    low, high = _amount(tile.low, tile.unit), _amount(tile.high, tile.unit)
    if low == high:
        return low
    number, unit = _split(low)
    return f"{number if unit == _split(high)[1] else low} to {high}"


def _split(text: str) -> tuple[str, str]:
    """A number and its unit."""
    number = text.rstrip("%").partition(" ")[0]
    return number, text[len(number) :]


def _amount(value: float, unit: str) -> str:
    return f"{value:.1%}" if unit in PERCENT else amount(value, unit)
