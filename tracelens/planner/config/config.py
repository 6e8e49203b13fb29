"""The configuration of a run: model, layout, toggles and training, by field name. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from math import isfinite
from typing import Any, Literal

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

FP8_MULTIPLE = 16
"""Rows of matrices of 1-byte elements begin at multiples of 16 bytes."""

TRAINING_HELP = {
    "seq": "tokens per sequence",
    "micro_batch": "sequences per micro-batch on each data-parallel rank",
    "micro_batches": "micro-batches per step on each data-parallel rank",
    "dtype": "type of parameters and activations: bfloat16 or float32",
    "main_params": "keep float32 main parameters for the optimizer (with bfloat16)",
    "routing": "tokens to experts: learned, or for experiments balanced (all experts equally) or skewed "
    "(most tokens go to the first experts)",
    "learning_rate": "learning rate of AdamW",
    "seed": "seed of weights and data",
}


@dataclass(frozen=True)
class Training:
    """Batch, precision and optimization; fields are described in TRAINING_HELP."""

    seq: int = 4096
    micro_batch: int = 1
    micro_batches: int = 1
    dtype: DtypeName = "bfloat16"
    main_params: bool = True
    routing: RoutingName = "learned"
    learning_rate: float = 1e-5
    seed: int = 0

    def __post_init__(self) -> None:
        one_of(self)
        at_least_one(self, ("seq", "micro_batch", "micro_batches"))

    @property
    def element_bytes(self) -> int:
        """Bytes of a parameter or an element of an activation."""
        return element_bytes(self.dtype)


@dataclass(frozen=True)
class Config:
    """The configuration of a run; raises TracelensError where its parts do not fit together."""

    model: Model
    layout: Layout = field(default_factory=Layout)
    toggles: Toggles = field(default_factory=Toggles)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
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
                "overlap_exchange=1f1b needs pp=1 and at least 2 micro_batches: one's forward overlaps "
                "another's backward"
            )
        if toggles.fp8 != "off":
            _require_fp8_widths(model)
        if toggles.graph != "off" and layout.pp > 1:
            raise TracelensError(
                f"graph=step needs pp=1, not {layout.pp}: torch's pipeline schedules cannot be captured"
            )
        if layout.pp > 1 and training.micro_batches < layout.pp:
            raise TracelensError(f"a pipeline of {layout.pp} stages needs at least {layout.pp} micro_batches")
        if layout.vpp > 1 and training.micro_batches % (rounds := training.micro_batches // layout.pp):
            raise TracelensError(
                f"with vpp={layout.vpp}, micro_batches ({training.micro_batches}) must be a multiple of the "
                f"{rounds} rounds through pp={layout.pp} stages"
            )

    @property
    def tokens(self) -> int:
        """T: tokens of a micro-batch on one rank, between attention layers."""
        return self.training.micro_batch * self.training.seq // (self.layout.cp * self.layout.tp)

    @property
    def global_tokens(self) -> int:
        training = self.training
        return training.micro_batch * training.micro_batches * training.seq * self.layout.dp

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _require_fp8_widths(model: Model) -> None:
    """Raise TracelensError for widths that FP8 matrix instructions cannot take."""
    for name in ("hidden", "expert_ffn"):
        if (width := getattr(model, name)) % FP8_MULTIPLE:
            raise TracelensError(
                f"fp8=experts needs a multiple of {FP8_MULTIPLE} for {name}, not {width}: use fp8=off"
            )


HELP = layout.HELP | TRAINING_HELP | toggles.HELP
"""Field of layout, training or toggles to its help."""

PARTS = {"model": Model, "layout": Layout, "toggles": Toggles, "training": Training}
_TRAINING = {
    "tiny": Training(seq=32, micro_batch=2, micro_batches=2, dtype="float32", main_params=False),
    "small": Training(seq=2048, micro_batch=2),
}


_SWITCH = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
_TYPE_TEXT = {bool: "true or false", int: "a whole number", float: "a number", tuple: "numbers, as in 0,1,2"}


def preset(name: str) -> Config:
    """The named preset on one rank, all toggles at their baseline; raises UnknownName."""
    if name not in MODELS:
        raise UnknownName("preset", name, MODELS)
    return Config(MODELS[name], training=_TRAINING.get(name, Training()))


def override(config: Config, assignments: Iterable[str]) -> Config:
    """The configuration with fields of any part replaced at once, so that their order does not matter.

    Args:
        config: provides the other fields.
        assignments: texts `field=value`; the last one wins for a repeated field.

    Raises:
        TracelensError: malformed text, unknown field, wrong type, or parts that do not fit together.
    """
    part_of = {item.name: part for part, kind in PARTS.items() for item in fields(kind)}
    changes: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    for text in assignments:
        name, separator, value = text.partition("=")
        if not separator:
            raise TracelensError(f"{text!r} is not of the form field=value")
        if name not in part_of:
            raise UnknownName("config field", name, part_of)
        current = getattr(getattr(config, part_of[name]), name)
        changes[part_of[name]][name] = parse_value(name, value, current)
    parts = {part: replace(getattr(config, part), **values) for part, values in changes.items() if values}
    return replace(config, **parts)


def parse_value(name: str, text: str, like: object) -> object:
    """A text as a value of the type of `like`: bool (true, on, 1, ...), int, float, tuple (0,1,2) or str.

    Raises:
        TracelensError: it is not of that type; the message names the field.
    """
    try:
        if isinstance(like, bool):
            return _SWITCH[text.lower()]
        if isinstance(like, int):
            return int(text)
        if isinstance(like, float):
            return _finite(text)
        if isinstance(like, tuple):
            return tuple(int(part) for part in text.split(",") if part)
    except (ValueError, KeyError):
        raise TracelensError(f"{name} must be {_TYPE_TEXT[type(like)]}, not {text!r}") from None
    return text


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(text)
    return number
