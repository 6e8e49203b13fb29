"""`tracelens list`: what is registered, and the known devices."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tracelens.cli.command import command
from tracelens.cli.output import write_stdout
from tracelens.session import OptionGroup, option

if TYPE_CHECKING:
    from tracelens.devices import Device


REGISTRIES = {
    "parsers": ("read", "PARSERS"),
    "renderers": ("rendering", "RENDERERS"),
    "costs": ("costs", "COSTS"),
    "detectors": ("findings", "DETECTORS"),
    "models": ("planner.config", "MODELS"),
    "scenarios": ("what_if", "SCENARIOS"),
}
KINDS = ("analyzers", "parsers", "renderers", "devices", "costs", "detectors", "models", "scenarios")
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
    columns = list(zip(*_rows(what.kind), strict=True))
    widths = [max(map(len, column)) for column in columns]
    # Numbers stand to the right.
    right = [all(cell == "-" or cell.replace(".", "").isdigit() for cell in column[1:]) for column in columns]
    lines = []
    for row in zip(*columns, strict=True):
        cells = zip(row, widths, right, strict=True)
        line = "  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in cells)
        lines.append(line.rstrip())
    if what.kind == "devices":
        import tracelens.devices

        template = Path(tracelens.devices.__file__).with_name("NAME.toml")
        lines.append(
            "Dense TFLOP/s: bf16 and fp8 of the matrix units, fp32 of the vector units; MAF: max-achievable, "
            "as published by the vendor; link: out of one GPU, one direction; -: not published or no such "
            "unit.\n"
            f"Numbers with their sources, and a template for --device-file: {template}"
        )
    write_stdout("".join(f"{line}\n" for line in lines).encode())


def _rows(kind: str) -> list[tuple[str, ...]]:
    """What is registered of a kind."""
    if kind == "analyzers":
        from tracelens.analysis import in_order

        return [(plugin.name, plugin.doc) for plugin in in_order()]
    if kind == "devices":
        from tracelens.devices import devices

        listed = [_device(device) for device in devices()]
        return [tuple(listed[0]), *(tuple(cells.values()) for cells in listed)]
    module, name = REGISTRIES[kind]
    items = list(getattr(import_module(f"tracelens.{module}"), name).items())
    if kind == "detectors":
        rows = [(name, plugin.scenario or "-", plugin.doc) for name, plugin in items]
        return [("name", "replayed as", "signature"), *rows]
    if kind == "scenarios":
        return [(plugin.grammar, plugin.doc) for _, plugin in items]
    if kind == "costs":
        modules = [cost.function.__module__.removeprefix("tracelens.costs.") for _, cost in items]
        return [(name, module, cost.doc) for (name, cost), module in zip(items, modules, strict=True)]
    if kind == "models":
        models = [
            [name, *(getattr(model, field) for field in _MODEL_COLUMNS.values())] for name, model in items
        ]
        return [("name", *_MODEL_COLUMNS), *(tuple(map(str, cells)) for cells in models)]
    return [(name, plugin.doc) for name, plugin in items]


def _device(device: Device) -> dict[str, str]:
    """A device by column; numbers have four digits, "-" if unknown."""
    from tracelens.devices import SECONDARY

    numbers = {
        "HBM GB": (device.hbm_bytes, 1e9),
        "TB/s": (device.hbm_bytes_per_s, 1e12),
        "bf16": (device.matrix.get("bf16"), 1e12),
        "fp8": (device.matrix.get("fp8"), 1e12),
        "fp32": (device.vector.get("fp32"), 1e12),
        "MAF bf16": (device.maf.get("bf16"), 1e12),
        "link GB/s": (device.gpu_link_bytes_per_s, 1e9),
    }
    secondary = sum(text.endswith(SECONDARY) for text in device.sources.values())
    return {
        "name": device.name,
        "title": device.title,
        "units": str(device.units or "-"),
        **{name: f"{value / unit:.4g}" if value else "-" for name, (value, unit) in numbers.items()},
        "sources": f"{secondary} of {len(device.sources)} secondary" if secondary else device.vendor,
    }
