"""`tracelens list`: what is registered, and the known devices."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tracelens.devices import Device


class Listing(StrEnum):
    """What can be listed."""

    analyzers = "analyzers"
    parsers = "parsers"
    renderers = "renderers"
    devices = "devices"
    costs = "costs"
    detectors = "detectors"
    models = "models"
    scenarios = "scenarios"


def listing(
    kind: Annotated[
        Listing, typer.Argument(help=f"{', '.join(Listing)}.", metavar="KIND", show_default=False)
    ],
) -> None:
    """List analyzers, devices, models, scenarios and more.

    Examples:
        tracelens list analyzers
        tracelens list devices
    """
    if kind is Listing.models:
        _table(_models())
    elif kind is Listing.devices:
        _table(_devices())
        typer.echo(_about_devices())
    else:
        _table(_costs() if kind is Listing.costs else _rows(kind))


def _table(rows: list[tuple[str, ...]]) -> None:
    """Print rows in columns, numbers right-aligned."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(cell == "-" or cell.replace(".", "").isdigit() for cell in column[1:]) for column in columns]
    for row in rows:
        cells = zip(row, widths, right, strict=True)
        line = "  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in cells)
        typer.echo(line.rstrip())


def _rows(kind: Listing) -> list[tuple[str, ...]]:
    if kind is Listing.analyzers:
        from tracelens.analysis import in_order

        return [(plugin.name, plugin.doc) for plugin in in_order()]
    if kind is Listing.detectors:
        from tracelens.findings.detectors import DETECTORS

        rows = [(name, plugin.scenario or "-", plugin.doc) for name, plugin in DETECTORS.items()]
        return [("name", "replayed as", "signature"), *rows]
    if kind is Listing.parsers:
        from tracelens.read import PARSERS

        return [(name, plugin.doc) for name, plugin in PARSERS.items()]
    if kind is Listing.scenarios:
        from tracelens.what_if import SCENARIOS

        return [(plugin.grammar, plugin.doc) for _, plugin in SCENARIOS.items()]
    from tracelens.rendering import RENDERERS

    return [(name, plugin.doc) for name, plugin in RENDERERS.items()]


def _costs() -> list[tuple[str, ...]]:
    from tracelens.costs import COSTS

    return [
        (name, model.function.__module__.removeprefix("tracelens.costs."), model.doc)
        for name, model in COSTS.items()
    ]


def _models() -> list[tuple[str, ...]]:
    from tracelens.planner.config import MODELS

    fields = (
        "layers", "dense_layers", "hidden", "heads", "attention", "experts_count", "top_k", "expert_ffn",
        "vocab",
    )  # fmt: skip
    header = (
        "name", "layers", "dense", "hidden", "heads", "attention", "experts", "top k", "expert ffn", "vocab"
    )  # fmt: skip
    rows = ((name, *(str(getattr(model, field)) for field in fields)) for name, model in MODELS.items())
    return [header, *rows]


_DEVICE_COLUMNS = (
    "name", "title", "units", "HBM GB", "TB/s", "bf16", "fp8", "fp32", "MAF bf16", "link GB/s", "sources",
)  # fmt: skip


def _devices() -> list[tuple[str, ...]]:
    from tracelens.devices import devices

    return [_DEVICE_COLUMNS, *map(_device, devices())]


def _device(device: Device) -> tuple[str, ...]:
    from tracelens.devices import SECONDARY

    secondary = sum(text.endswith(SECONDARY) for text in device.sources.values())
    return (
        device.name,
        device.title,
        str(device.units),
        _scaled(device.hbm_bytes, 1e9),
        _scaled(device.hbm_bytes_per_s, 1e12),
        _scaled(device.matrix.get("bf16"), 1e12),
        _scaled(device.matrix.get("fp8"), 1e12),
        _scaled(device.vector.get("fp32"), 1e12),
        _scaled(device.maf.get("bf16"), 1e12),
        _scaled(device.gpu_link_bytes_per_s, 1e9),
        f"{secondary} of {len(device.sources)} secondary" if secondary else device.vendor,
    )


def _scaled(value: float | None, unit: float) -> str:
    """A number in a larger unit with four digits; "-" if unknown."""
    return f"{value / unit:.4g}" if value else "-"


def _about_devices() -> str:
    from pathlib import Path

    import tracelens.devices

    return (
        "Dense TFLOP/s: bf16 and fp8 of the matrix units, fp32 of the vector units; MAF: max-achievable, as "
        "published by the vendor; link: out of one GPU, one direction; -: not published or no such unit.\n"
        f"Numbers with their sources, and a template for --device-file: "
        f"{Path(tracelens.devices.__file__).with_name('NAME.toml')}"
    )
