"""One run of the workload: model, layout, toggles and training, by name. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from math import isfinite
from typing import Any, Literal, get_args

from tracelens.dtypes import element_bytes
from tracelens.errors import TracelensError, UnknownName
from tracelens.planner.config import layout, toggles
from tracelens.planner.config.checks import at_least_one, one_of
from tracelens.planner.config.layout import Layout
from tracelens.planner.config.model import Model
from tracelens.planner.config.model_file import MODELS
from tracelens.planner.config.toggles import Toggles

DtypeName = Literal["bfloat16", "float32"]
RoutingName = Literal["learned", "balanced", "skewed"]

TRAINING_HELP = {
    "seq": "tokens of a sequence",
    "micro_batch": "sequences of a micro-batch on one data-parallel rank",
    "micro_batches": "micro-batches of a step on one data-parallel rank",
    "dtype": "of parameters and activations: bfloat16 or float32",
    "main_params": "float32 copies of bfloat16 parameters for the optimizer",
    "routing": "of tokens to experts: learned, or for experiments balanced (all equal) or skewed (the first "
    "experts get most)",
    "learning_rate": "of AdamW",
    "seed": "of weights and data",
}


@dataclass(frozen=True)
class Training:
    """The batch and how it is trained on; see TRAINING_HELP."""

    seq: int = 4096
    micro_batch: int = 1
    micro_batches: int = 1
    dtype: DtypeName = "bfloat16"
    main_params: bool = True
    routing: RoutingName = "learned"
    learning_rate: float = 1e-5
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise TracelensError for what cannot be."""
        one_of(self, {"dtype": get_args(DtypeName), "routing": get_args(RoutingName)})
        at_least_one(self, ("seq", "micro_batch", "micro_batches"))

    @property
    def element_bytes(self) -> int:
        """Bytes of a parameter or an element of an activation."""
        return element_bytes(self.dtype)


@dataclass(frozen=True)
class Config:
    """Everything a run is made of."""

    model: Model
    layout: Layout = field(default_factory=Layout)
    toggles: Toggles = field(default_factory=Toggles)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        """Raise TracelensError where the parts do not fit together."""
        model, layout, training, toggles = self.model, self.layout, self.training, self.toggles
        layout.chunks(model.layers)
        shards = layout.cp * layout.tp
        if training.seq % shards:
            raise TracelensError(f"seq ({training.seq}) must be a multiple of cp x tp = {shards}")
        if model.moe_layers and model.experts_count % layout.experts_over:
            raise TracelensError(
                f"experts_count ({model.experts_count}) must be a multiple of ep = {layout.experts_over}"
            )
        for name in ("heads", "kv_groups", "dense_ffn", "shared_ffn"):
            if getattr(model, name) % layout.tp:
                raise TracelensError(
                    f"{name} ({getattr(model, name)}) must be a multiple of tp = {layout.tp}"
                )
        if wrong := [layer for layer in toggles.recompute_layer_ids if not 0 <= layer < model.layers]:
            raise TracelensError(f"recompute_layer_ids: there is no layer {wrong[0]} of {model.layers}")
        if toggles.overlap_exchange != "off" and (layout.pp > 1 or training.micro_batches < 2):
            raise TracelensError(
                "overlap_exchange=1f1b needs at least two micro_batches, and no pipeline (pp=1): it overlaps "
                "the forward of one with the backward of another"
            )
        if toggles.graph != "off" and layout.pp > 1:
            raise TracelensError(
                f"graph=step needs pp=1, not {layout.pp}: torch's pipeline schedules cannot be captured"
            )
        if layout.pp > 1 and training.micro_batches < layout.pp:
            raise TracelensError(f"a pipeline of {layout.pp} stages needs as many micro_batches at least")
        if layout.vpp > 1 and training.micro_batches % (rounds := training.micro_batches // layout.pp):
            raise TracelensError(
                f"with vpp={layout.vpp}, micro_batches ({training.micro_batches}) must be a multiple of the "
                f"{rounds} rounds that pp={layout.pp} makes of them"
            )

    @property
    def tokens(self) -> int:
        """Tokens T of a micro-batch on one rank, between attention layers."""
        return self.training.micro_batch * self.training.seq // (self.layout.cp * self.layout.tp)

    @property
    def global_tokens(self) -> int:
        """Tokens of a step on all ranks."""
        training = self.training
        return training.micro_batch * training.micro_batches * training.seq * self.layout.dp

    def as_dict(self) -> dict[str, Any]:
        """Plain values, one table a part."""
        return asdict(self)


HELP = layout.HELP | TRAINING_HELP | toggles.HELP
"""Help of every field of layout, training and toggles."""

PARTS = {"model": Model, "layout": Layout, "toggles": Toggles, "training": Training}
_TRAINING = {
    "tiny": Training(seq=32, micro_batch=2, micro_batches=2, dtype="float32", main_params=False),
    "small": Training(seq=2048, micro_batch=2),
}


def preset(name: str) -> Config:
    """The named preset on one rank, everything at its baseline; raises UnknownName."""
    if name not in MODELS:
        raise UnknownName("preset", name, MODELS)
    return Config(MODELS[name], training=_TRAINING.get(name, Training()))


def override(config: Config, assignments: Iterable[str]) -> Config:
    """Config with fields of any part replaced; all together, so that their order does not matter.

    Args:
        config: where the other fields come from.
        assignments: texts `field=value`, the later of two for one field wins.

    Raises:
        TracelensError: not of that form, no such field, a value of another kind, or parts that do not fit.
    """
    home = {item.name: part for part, kind in PARTS.items() for item in fields(kind)}
    changes: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    for text in assignments:
        name, separator, value = text.partition("=")
        if not separator:
            raise TracelensError(f"{text!r} is not of the form field=value")
        if name not in home:
            raise UnknownName("config field", name, home)
        changes[home[name]][name] = parse_value(name, value, getattr(getattr(config, home[name]), name))
    parts = {part: replace(getattr(config, part), **values) for part, values in changes.items() if values}
    return replace(config, **parts)


def parse_value(name: str, text: str, like: object) -> object:
    """A text as a value of the kind of another.

    Args:
        name: of the field, for the message.
        text: true or false (on, off, 1, 0), a number, numbers as in 0,1,2, or any text.
        like: a bool, int, float, tuple or str.

    Raises:
        TracelensError: the text is none of that kind.
    """
    try:
        if isinstance(like, bool):
            return {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}[
                text.lower()
            ]
        if isinstance(like, int):
            return int(text)
        if isinstance(like, float):
            return _finite(text)
        if isinstance(like, tuple):
            return tuple(int(part) for part in text.split(",") if part)
    except (ValueError, KeyError):
        kinds = {
            bool: "true or false",
            int: "a whole number",
            float: "a number",
            tuple: "numbers, as in 0,1,2",
        }
        raise TracelensError(f"{name} must be {kinds[type(like)]}, not {text!r}") from None
    return text


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(text)
    return number
