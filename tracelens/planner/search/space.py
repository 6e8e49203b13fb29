"""The layouts of a model on a number of GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import isqrt
from typing import NamedTuple

from tracelens.errors import TracelensError
from tracelens.planner.config import Config, Layout, Model, Toggles, Training

NONE, FULL = "none", "full"

SIZES = (1, 2, 4, 8)
"""Default ranks of tensor and of context parallelism."""

CHUNKS = (1, 2, 3, 4, 6, 8)
"""Default model chunks per stage."""

EACH = 4
"""Up to this many layers per chunk, every number of recomputed layers is tried."""

_NUMBER = re.compile(r"\d[\d,.]*")


@dataclass(frozen=True)
class Space:
    """The layouts to try; an empty field means all sensible values.

    Attributes:
        pp: pipeline stages; empty: every divisor of the GPUs up to the number of layers.
        vpp: chunks per stage; empty: CHUNKS that split the layers evenly.
        cp: ranks that share a sequence; empty: SIZES.
        tp: ranks that share each matrix; empty: SIZES.
        ep: ranks that share the experts; empty: every divisor of the experts and of the ranks per stage.
        micro_batch: sequences per micro-batch; empty: that of the training settings.
        recompute: recomputed layers per chunk: "none", "full" or a number; empty: these two, numbers up to
            EACH, and powers of two beyond.
    """

    pp: tuple[int, ...] = ()
    vpp: tuple[int, ...] = ()
    cp: tuple[int, ...] = ()
    tp: tuple[int, ...] = ()
    ep: tuple[int, ...] = ()
    micro_batch: tuple[int, ...] = ()
    recompute: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("pp", "vpp", "cp", "tp", "ep", "micro_batch"):
            if wrong := [value for value in getattr(self, name) if value < 1]:
                raise TracelensError(f"{name} must be at least 1, not {wrong[0]}")
        for text in self.recompute:
            if text not in (NONE, FULL) and not text.isdecimal():
                raise TracelensError(f"recompute must be {NONE}, {FULL} or layers per chunk, not {text!r}")


class Candidate(NamedTuple):
    """A valid layout, with its recomputed layers per chunk as in `Space`."""

    config: Config
    recompute: str


class Refusal(NamedTuple):
    """A layout that is invalid or does not fit.

    Attributes:
        reason: without numbers, so that refusals of one kind are equal.
        example: the layout, with the full reason.
    """

    reason: str
    example: str


def candidates(
    model: Model, gpus: int, global_batch: int, training: Training, toggles: Toggles, space: Space
) -> Iterator[Config | Refusal]:
    """Every layout of the space, without recomputation; a Refusal for each invalid one."""
    pps = space.pp or tuple(pp for pp in divisors(gpus) if pp <= model.layers)
    for pp, cp, tp in product(pps, space.cp or SIZES, space.tp or SIZES):
        if gpus % (pp * cp * tp):
            yield refusal(f"{gpus} GPUs are not a multiple of pp x cp x tp", f"pp={pp} cp={cp} tp={tp}")
            continue
        stage = gpus // pp
        eps = space.ep or tuple(ep for ep in divisors(stage) if model.experts_count % ep == 0)
        vpps = space.vpp or tuple(vpp for vpp in CHUNKS if _even(model, pp, vpp))
        sizes = product(eps if model.moe_layers else (1,), vpps, space.micro_batch or (training.micro_batch,))
        for ep, vpp, micro_batch in sizes:
            name = size_text({"pp": pp, "vpp": vpp, "cp": cp, "tp": tp, "ep": ep, "micro_batch": micro_batch})
            try:
                layout = Layout(ranks=gpus, pp=pp, vpp=vpp, cp=cp, tp=tp, ep=ep)
                batch = _batch(training, micro_batch, global_batch, layout.dp)
                config = Config(model, layout, replace(toggles, recompute_layer_ids=()), batch)
            except TracelensError as error:
                yield refusal(str(error), name)
                continue
            yield config


def size_text(sizes: dict[str, int]) -> str:
    """Sizes of a layout as text."""
    return " ".join(f"{name}={value}" for name, value in sizes.items())


def refusal(reason: str, layout: str) -> Refusal:
    """A refusal of this layout."""
    return Refusal(_NUMBER.sub("N", reason), f"{layout}: {reason}")


def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, ascending."""
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}))


def _even(model: Model, pp: int, vpp: int) -> bool:
    """Whether all chunks have equally many layers."""
    return vpp == 1 or (pp > 1 and model.layers % (pp * vpp) == 0)


def _batch(training: Training, micro_batch: int, global_batch: int, dp: int) -> Training:
    """The settings with the micro-batches that the global batch makes on each data-parallel rank."""
    if global_batch % (dp * micro_batch):
        raise TracelensError(
            f"a global batch of {global_batch} sequences is not a multiple of dp x micro_batch = "
            f"{dp} x {micro_batch}"
        )
    return replace(training, micro_batch=micro_batch, micro_batches=global_batch // (dp * micro_batch))


def variants(config: Config, space: Space) -> Iterator[Candidate]:
    """A layout with increasing recomputation."""
    layers = max(map(len, config.layout.chunks(config.model.layers)))
    powers = [2**exponent for exponent in range((layers - 1).bit_length())]
    numbers = sorted({*range(1, min(layers - 1, EACH) + 1), *powers})
    amounts = space.recompute or (NONE, *map(str, numbers), FULL)
    amount = {text: int(text) for text in amounts if text.isdecimal()} | {NONE: 0, FULL: layers}
    # As many layers as the largest chunk has is the same as full.
    texts = {FULL if text != NONE and amount[text] >= layers else text for text in amounts}
    for text in sorted(texts, key=amount.__getitem__):
        yield _recomputed(config, text)


def _recomputed(config: Config, text: str) -> Candidate:
    """The run with the first layers of each chunk recomputed."""
    if text == NONE:
        return Candidate(config, text)
    chunks = config.layout.chunks(config.model.layers)
    count = config.model.layers if text == FULL else int(text)
    layers = tuple(layer for chunk in chunks for layer in chunk[:count])
    return Candidate(replace(config, toggles=replace(config.toggles, recompute_layer_ids=layers)), text)
