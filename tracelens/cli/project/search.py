"""`tracelens project memory --search`: layouts that fit, the fastest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, NamedTuple

from tracelens.cli.common import progress
from tracelens.cli.project.common import tell
from tracelens.errors import TracelensError, UnknownName

if TYPE_CHECKING:
    from tracelens.devices import Device
    from tracelens.planner.memory import Assumptions
    from tracelens.planner.search import Space
    from tracelens.planner.step_time import Machine

# Option to field of a space of layouts.
_AXES = {
    "pp": "pp", "vpp": "vpp", "ep": "ep", "cp": "cp", "tp": "tp", "mbs": "micro_batch",
    "micro_batch": "micro_batch", "recompute": "recompute",
}  # fmt: skip
TOP = 10
"""Layouts that are shown of each device unless it is told."""
_ALONE = {"ranks": 1, "pp": 1, "vpp": 1, "cp": 1, "tp": 1, "ep": 0, "micro_batches": 2}
"""One GPU: what a file says of the layout is what is searched for. So many micro-batches can overlap."""
_SEARCHED = {name: f"give --{name}" for name in ("pp", "vpp", "cp", "tp", "ep")} | {
    "ranks": "give --gpus",
    "micro_batch": "give --mbs",
    "micro_batches": "give --global-batch",
    "recompute_layer_ids": "give --recompute",
    "pp_layout": "chunks are even",
}
"""Fields that --set cannot give, and what can."""


class Asked(NamedTuple):
    """What the command line asks for.

    Attributes:
        model: name or file.
        gpus: of the run.
        global_batch: sequences of a step; None: the file's, or the usual one.
        axes: option to its values, as in 24,48; None: all that make sense.
        layouts: texts of such values, each one a space of its own.
        assignments: other fields of the run, as texts `field=value`.
        assumed: texts `name=value` of what the step time takes for granted.
        top: layouts to show of each device.
    """

    model: str
    gpus: int | None
    global_batch: int | None
    axes: Mapping[str, str | None]
    layouts: Sequence[str]
    assignments: Sequence[str]
    assumed: Sequence[str]
    top: int


def search(
    asked: Asked,
    memory: Assumptions,
    devices: Sequence[Device],
    reserve: int | None,
    output: Sequence[str] | None,
    json_output: bool,
) -> None:
    """Search, and write or print what was found."""
    from tracelens.planner.config import read_config, read_file
    from tracelens.planner.search import BATCH, Question
    from tracelens.planner.search import search as project

    if asked.gpus is None:
        raise TracelensError("--search needs the number of GPUs: give --gpus")
    if not devices:
        raise TracelensError("--search needs a device to fit: give --device; see `tracelens list devices`")
    for text in asked.assignments:
        name, _, _ = text.partition("=")
        if name in _SEARCHED:
            raise TracelensError(f"--set {text}: --search tries values of {name}: {_SEARCHED[name]}")
    alone = [f"{name}={value}" for name, value in _ALONE.items()]
    config = read_config(asked.model, [*alone, *asked.assignments])
    batch = asked.global_batch
    question = Question(
        config.model,
        asked.gpus,
        (read_file(asked.model).global_batch or BATCH) if batch is None else batch,
        config.training,
        config.toggles,
        memory,
        machine(asked.assumed, memory.imbalance),
        reserve,
    )
    spaces = [space(asked.axes, text) for text in asked.layouts] or [space(asked.axes)]
    with progress() as line:
        line("trying layouts")
        result = project(question, devices, spaces, asked.top)
    best = "; ".join(
        f"{device.name}: {result.meta['best'].get(device.name, 'nothing fits')}" for device in devices
    )
    title = f"memory --search: {asked.model} on {asked.gpus:,} GPU{'s' * (asked.gpus > 1)}; {best}"
    if config.toggles.unoptimised:
        title += "; computing as torch's ops do, without --optimised"
    tell(result, title, output, json_output, [asked.model])


def space(axes: Mapping[str, str | None], layout: str = "") -> Space:
    """The layouts of the options, or of one --layout that goes before them.

    Raises:
        TracelensError: a text is not of the form pp=24,48, or a value is no number.
    """
    from tracelens.planner.search import Space

    given = {name: text for name, text in axes.items() if text is not None}
    for text in layout.split():
        name, separator, values = text.partition("=")
        if not separator:
            raise TracelensError(f"--layout: {text!r} is not of the form pp=24,48")
        if name not in _AXES:
            raise UnknownName("field of a layout that is searched for", name, _AXES)
        given[name] = values
    numbers: dict[str, tuple[int, ...]] = {}
    for name, text in given.items():
        if name != "recompute":
            numbers[_AXES[name]] = _numbers(name, text)
    again = tuple(part.strip() for part in given.get("recompute", "").split(",") if part.strip())
    return replace(Space(), **numbers, recompute=again)


def machine(texts: Sequence[str], imbalance: float = 1.0) -> Machine:
    """What the step time takes for granted, with these changed.

    Args:
        texts: as in node=4.
        imbalance: of experts, as the memory projection has it.

    Raises:
        TracelensError: a text is not of the form name=value, or there is no such name or value.
    """
    from tracelens.planner.config import parse_value
    from tracelens.planner.step_time import Machine

    known = {item.name: item.default for item in fields(Machine) if item.name != "imbalance"}
    changes: dict[str, object] = {"imbalance": imbalance}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise TracelensError(f"--assume: {text!r} is not of the form name=value")
        if name not in known:
            raise UnknownName("assumption", name, known)
        changes[name] = parse_value(name, value, known[name])
    return Machine(**changes)  # type: ignore[arg-type]  # of the kinds of its own defaults


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise TracelensError(f"--{name} must be numbers, as in 8,16, not {text!r}") from None
