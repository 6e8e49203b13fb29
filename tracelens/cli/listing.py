"""`tracelens list`: what is registered, and the known devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from tracelens.cli.command import command
from tracelens.session import OptionGroup, option

if TYPE_CHECKING:
    from tracelens.devices import Device


KINDS = ("analyzers", "parsers", "renderers", "devices", "costs", "detectors", "models", "scenarios")
_DEVICE_COLUMNS = (
    *("name", "title", "units", "HBM GB", "TB/s", "bf16", "fp8", "fp32", "MAF bf16", "link GB/s"),
    "sources",
)
# Column to field of a model.
_MODEL_COLUMNS = {
    "layers": "layers",
    "dense": "dense_layers",
    "hidden": "hidden",
    "heads": "heads",
    "attention": "attention",
    "experts": "experts_count",
    "top k": "top_k",
    "expert ffn": "expert_ffn",
    "vocab": "vocab",
}


class Listed(OptionGroup):
    """What is listed."""

    kind: Literal[KINDS] = option(f"{', '.join(KINDS)}.", metavar="KIND", argument=True)  # type: ignore[valid-type]


@command
def listing(what: Listed) -> None:
    """List analyzers, devices, models, scenarios and more.

    Examples:
        tracelens list analyzers
        tracelens list devices
    """
    kind = what.kind
    _table(_rows(kind))
    if kind == "devices":
        import tracelens.devices

        template = Path(tracelens.devices.__file__).with_name("NAME.toml")
        typer.echo(
            "Dense TFLOP/s: bf16 and fp8 of the matrix units, fp32 of the vector units; MAF: max-achievable, "
            "as published by the vendor; link: out of one GPU, one direction; -: not published or no such "
            "unit.\n"
            f"Numbers with their sources, and a template for --device-file: {template}"
        )


def _table(rows: list[tuple[str, ...]]) -> None:
    """Print rows in columns, numbers right-aligned."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(cell == "-" or cell.replace(".", "").isdigit() for cell in column[1:]) for column in columns]
    for row in rows:
        cells = zip(row, widths, right, strict=True)
        line = "  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in cells)
        typer.echo(line.rstrip())


def _rows(kind: str) -> list[tuple[str, ...]]:
    """What is registered of a kind."""
    if kind == "analyzers":
        from tracelens.analysis import in_order

        return [(plugin.name, plugin.doc) for plugin in in_order()]
    if kind == "detectors":
        from tracelens.findings.detectors import DETECTORS

        rows = [(name, plugin.scenario or "-", plugin.doc) for name, plugin in DETECTORS.items()]
        return [("name", "replayed as", "signature"), *rows]
    if kind == "parsers":
        from tracelens.read import PARSERS

        return [(name, plugin.doc) for name, plugin in PARSERS.items()]
    if kind == "scenarios":
        from tracelens.what_if import SCENARIOS

        return [(plugin.grammar, plugin.doc) for _, plugin in SCENARIOS.items()]
    if kind == "costs":
        from tracelens.costs import COSTS

        homes = {
            name: cost.function.__module__.removeprefix("tracelens.costs.") for name, cost in COSTS.items()
        }
        return [(name, homes[name], cost.doc) for name, cost in COSTS.items()]
    if kind == "models":
        from tracelens.planner.config import MODELS

        models = [
            (name, *(str(getattr(model, field)) for field in _MODEL_COLUMNS.values()))
            for name, model in MODELS.items()
        ]
        return [("name", *_MODEL_COLUMNS), *models]
    if kind == "devices":
        from tracelens.devices import devices

        return [_DEVICE_COLUMNS, *map(_device, devices())]
    from tracelens.rendering import RENDERERS

    return [(name, plugin.doc) for name, plugin in RENDERERS.items()]


def _device(device: Device) -> tuple[str, ...]:
    from tracelens.devices import SECONDARY

    def scaled(value: float | None, unit: float) -> str:
        """A number in a larger unit with four digits; "-" if unknown."""
        return f"{value / unit:.4g}" if value else "-"

    secondary = sum(text.endswith(SECONDARY) for text in device.sources.values())
    return (
        device.name,
        device.title,
        str(device.units),
        scaled(device.hbm_bytes, 1e9),
        scaled(device.hbm_bytes_per_s, 1e12),
        scaled(device.matrix.get("bf16"), 1e12),
        scaled(device.matrix.get("fp8"), 1e12),
        scaled(device.vector.get("fp32"), 1e12),
        scaled(device.maf.get("bf16"), 1e12),
        scaled(device.gpu_link_bytes_per_s, 1e9),
        f"{secondary} of {len(device.sources)} secondary" if secondary else device.vendor,
    )
