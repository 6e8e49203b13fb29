"""What is served, and how: requests, cache, and the two optimizations. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from tracelens.errors import TracelensError
from tracelens.planner.config import HELP as TRAINING_HELP
from tracelens.planner.config import Config, Layout, at_least_one, one_of, override, preset

SwitchName = Literal["off", "on"]
SplitName = Literal["off", "request", "token"]
LengthsName = Literal["lognormal", "uniform"]

HELP = {
    "rate": "mean arrival rate, in requests per rank per tick",
    "requests": "total requests; 0: no limit",
    "lengths": "distribution of prompt and output lengths between their bounds: lognormal or uniform",
    "prompt_min": "minimum prompt length in tokens",
    "prompt_max": "maximum prompt length in tokens",
    "output_min": "minimum output length in tokens",
    "output_max": "maximum output length in tokens",
    "slots": "KV cache slots (requests) per rank",
    "prefill_tokens": "maximum tokens of a rank's prefill in one tick",
    "prefill_delayer": "on: delay a prefill until most ranks have one",
    "delay_ticks": "maximum ticks to delay a prefill",
    "delay_quorum": "fraction of busy ranks that must have a prefill",
    "delay_watermark": "cache utilization below which a rank's prefill is not delayed",
    "tbo": "two-batch overlap of prefill ticks: split between requests (request), or at half of the tokens, "
    "through a request (token)",
    "graph": "on: replay decodes from graphs, one per batch size, when all ranks decode; needs a GPU, "
    "and --profile-start 3 or later to record their ops",
    "seed": "random seed of weights, arrivals and prompts",
}


@dataclass(frozen=True)
class Serving:
    """One field a setting, told in HELP. A tick is one forward pass of all ranks; time is counted in them."""

    rate: float = 0.5
    requests: int = 0
    lengths: LengthsName = "lognormal"
    prompt_min: int = 256
    prompt_max: int = 4096
    output_min: int = 16
    output_max: int = 128
    slots: int = 32
    prefill_tokens: int = 8192
    prefill_delayer: SwitchName = "off"
    delay_ticks: int = 8
    delay_quorum: float = 0.75
    delay_watermark: float = 0.25
    tbo: SplitName = "off"
    graph: SwitchName = "off"
    seed: int = 0

    def __post_init__(self) -> None:
        switch = get_args(SwitchName)
        known: dict[str, Any] = {"prefill_delayer": switch, "graph": switch, "tbo": get_args(SplitName)}
        one_of(self, known | {"lengths": get_args(LengthsName)})
        at_least_one(self, ("prompt_min", "output_min", "slots"))
        for low, high in (("prompt_min", "prompt_max"), ("output_min", "output_max")):
            if getattr(self, high) < getattr(self, low):
                raise TracelensError(f"{high} ({getattr(self, high)}) is below {low} ({getattr(self, low)})")
        if self.prefill_tokens < self.prompt_max:
            raise TracelensError(
                f"prefill_tokens ({self.prefill_tokens}) must be at least prompt_max ({self.prompt_max}): "
                "prompts are not chunked across ticks"
            )
        for name in ("rate", "requests", "delay_ticks"):
            if not getattr(self, name) >= 0:  # nan, too
                raise TracelensError(f"{name} must be 0 or more, not {getattr(self, name)}")
        for name in ("delay_quorum", "delay_watermark"):
            if not 0 <= getattr(self, name) <= 1:
                raise TracelensError(f"{name} must be a fraction from 0 to 1, not {getattr(self, name)}")

    @property
    def context(self) -> int:
        """Most tokens of a request: rows of a slot of the cache."""
        return self.prompt_max + self.output_max

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Batch sizes that graphs are captured for, ascending: powers of two, and all slots; none without."""
        if self.graph == "off":
            return ()
        powers = (1 << power for power in range(self.slots.bit_length()))
        return tuple(sorted({*(size for size in powers if size <= self.slots), self.slots}))

    def changed(self) -> dict[str, object]:
        """The optimizations that are not off."""
        values = {name: getattr(self, name) for name in ("prefill_delayer", "tbo", "graph")}
        return {name: value for name, value in values.items() if value != "off"}


_TINY = Serving(
    rate=0.25, prompt_min=8, prompt_max=48, output_min=4, output_max=12, slots=4, prefill_tokens=96,
    delay_ticks=6,
)  # fmt: skip


def serving_preset(name: str) -> Serving:
    """Settings that go with a preset of the model."""
    return _TINY if name == "tiny" else Serving()


def override_serving(serving: Serving, values: dict[str, str]) -> Serving:
    """Settings with fields replaced, from texts.

    Raises:
        TracelensError: a text is no number where one is needed, or the values do not fit together.
    """
    changed: dict[str, Any] = {}
    for item in fields(Serving):
        if item.name not in values:
            continue
        text, kind = values[item.name], type(getattr(serving, item.name))
        try:
            changed[item.name] = kind(text)
        except ValueError:
            noun = "a whole number" if kind is int else "a number"
            raise TracelensError(f"{item.name} must be {noun}, not {text!r}") from None
    return replace(serving, **changed)


TOGGLES = ("permute", "router")
TRAINING = ("dtype", "routing")
"""Fields of a run's toggles and training that serving knows, too."""


def model_config(name: str, assignments: Iterable[str], serving: Serving) -> Config:
    """The model of a preset as one rank's: whole experts, in grouped GEMMs, sizes known without asking.

    Raises:
        TracelensError: a field says nothing about serving, or see `config.override`.
    """
    texts = list(assignments)
    unknown = TRAINING_HELP.keys() - {*TOGGLES, *TRAINING}
    if wrong := [text.partition("=")[0] for text in texts if text.partition("=")[0] in unknown]:
        raise TracelensError(
            f"{wrong[0]} is a field of training runs: serving takes those of the model, and "
            f"{', '.join((*TOGGLES, *TRAINING))}"
        )
    config = override(preset(name), texts)
    toggles = replace(config.toggles, experts="grouped", sync_free=2)
    training = replace(config.training, seq=serving.context, seed=serving.seed)
    return replace(config, toggles=toggles, training=training, layout=Layout())
