"""Colours of figures: one name has one colour, in every figure of every report.

What runs on GPUs, why they idle, and the stages of a step are known beforehand and have fixed colours, chosen
to differ for people who confuse red and green, too: the largest distances in OKLab, with and without. Other
names have a colour by their letters; no two of them share one in a figure.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

# Mid tones that are legible on white and on near black.
BLUE, ORANGE, TEAL, VIOLET, GREY = "#4a74d8", "#e8923a", "#3fae9e", "#a06cd5", "#98a1ad"
IDLE, WAITING = "rgba(152,161,173,0.35)", "rgba(232,146,58,0.45)"
"""Time in which nothing gets done is pale on light and dark pages: waiting in the hue of communication."""

KINDS = {
    "computation": BLUE,
    "comm": ORANGE,
    "exposed_comm": ORANGE,
    "memcpy": TEAL,
    "exposed_memcpy": TEAL,
    "memset": "#c88c68",
    "exposed_memset": "#c88c68",
    "idle": IDLE,
}
"""Kinds of GPU work; what is exposed has the colour of its kind."""

CATEGORIES = {
    "gemm": BLUE,
    "grouped_gemm": "#35a7dc",
    "attention": "#d95f76",
    "communication": ORANGE,
    "waiting": WAITING,
    "moe_routing": "#dfb32c",
    "elementwise": "#988cbc",
    "normalization": "#985c14",
    "optimizer": "#984498",
    "quantization": "#b08014",
    "activation": "#a4445c",
    "softmax": "#74c8f8",
    "reduction": "#98bc80",
    "indexing": "#688cf8",
    "transpose": "#9868b0",
    "concat": "#748050",
    "copy": TEAL,
    "fill": "#c88c68",
    "loss": "#5c5cbc",
    "rotary": "#208cd4",
    "sort_scan": "#c8d45c",
    "random": "#985c80",
    "convolution": "#2cecb0",
    "pooling": "#80b0f8",
    "fused": "#7d8796",
    "unlinked": "#b4bac3",
    "other": GREY,
    "idle": IDLE,
}
"""Classes of kernels, and the states of a GPU."""

CAUSES = {
    "launch overhead": BLUE,
    "silent host": "#d95f76",
    "Python code": "#f0a0b0",
    "stalled host": "#b0305c",
    "kernel loading": "#5c5cbc",
    "blocking call": ORANGE,
    "CPU ops": "#985c14",
    "queue refill": "#98448c",
    "garbage collection": "#bc8cf8",
    "data loading": "#dfb32c",
    "collective call": "#98d48c",
    "profiler": "#8080b0",
    "other stream": "#b08014",
    "unrecorded work": "#74c8f8",
    "no launch": "#68bc74",
    "dispatch": "#7d8796",
    "window": "#b4bac3",
    "short gaps": IDLE,
}
"""Why a GPU idles."""

STAGES = {
    "router": "#dfb32c",
    "dispatch": ORANGE,
    "permute": TEAL,
    "experts": BLUE,
    "combine": "#b5651d",
    "shared expert": "#8fb0e8",
}
"""Stages of an MoE layer. Its dispatch is not the dispatch that GPUs idle in: see `colors`."""

PASSES = {"forward": BLUE, "backward": TEAL, "input": "#74c8a0", "weight": "#984498"}
"""Phases of a micro-batch."""

BUBBLE = {"ramp": "#7d8796", "p2p_wait": ORANGE, "imbalance": "#d95f76", "other_idle": IDLE}
"""What a pipeline's bubble is made of."""

SERVING = {
    "prefill": ORANGE,
    "decode": BLUE,
    "mixed": "#984498",
    "draft": TEAL,
    "other": "#b07a5a",
    "without a request": GREY,
    "idle": IDLE,
}
"""Kinds of serving steps."""

STEP_PARTS = {
    "forward": BLUE,
    "backward": TEAL,
    "recompute": "#80b0f8",
    "experts_exchange": ORANGE,
    "context_exchange": "#dfb32c",
    "tensor_exchange": "#d95f76",
    "stage_exchange": "#985c14",
    "waiting": WAITING,
    "gradients": "#984498",
    "optimizer": "#98bc80",
    "launch": "#b07a5a",
    "bubble": IDLE,
}
"""Parts of a projected step."""

MEMORY = {
    "parameters": "#2f5fb3",
    "gradients": "#4f86d9",
    "main_parameters": "#86aee8",
    "optimizer": "#b3cbee",
    "activations.embedding": "#8a6d3b",
    "activations.norms": "#dfb32c",
    "activations.attention": "#d95f76",
    "activations.mlp": "#a06cd5",
    "activations.router": "#7c6bd0",
    "activations.dispatch": "#e8923a",
    "activations.experts": "#3fae9e",
    "activations.shared": "#98e080",
    "activations.recomputed": "#b07a5a",
    "loss": "#c04f9e",
    "buffers.worst_case": "#c9b79c",
    "buffers.pipeline": "#a39a6f",
    "buffers.tokens": "#8f8a78",
    "temporary": GREY,
    "libraries": "#5c6470",
    "allocator": IDLE,
}
"""Components of a GPU's memory: static ones in blues, activations warm and green, all else pale."""

_PARTS = {
    "at the roofline": BLUE,
    "recoverable": ORANGE,
    "hidden": TEAL,
    "passes": BLUE,
    "host": "#d95f76",
    "kernel start": "#7d8796",
    "unexplained": "#b4bac3",
    "rest": GREY,
}
"""Parts of single figures."""

_KNOWN = CAUSES | PASSES | STAGES | KINDS | _PARTS | CATEGORIES

_PALETTE = (
    *("#58b0c9", "#b0506a", "#c98a2b", "#7d8ba8", "#bc8cf8", "#98c898", "#bc6820", "#986898", "#5c9874"),
    *("#e0b0f8", "#50bc68", "#9844a4", "#6c8fd9", "#98e080", "#b04414", "#5cc8c8", "#e05c5c", "#805c74"),
)
"""For names that are not known beforehand."""


def colors(names: Iterable[str], known: Mapping[str, str] = _KNOWN) -> dict[str, str]:
    """A colour a name: the same in every figure, and no two of one figure alike but where both are known.

    `known` has names that mean something else in this figure than in others: "dispatch" of an MoE layer.
    """

    def candidates(name: str) -> Iterable[str]:
        """Colours for a name, the first of which hangs on its letters alone; there is always another one."""
        start = crc32(name.encode("utf-8", "replace"))
        for step in range(len(_PALETTE)):
            yield _PALETTE[(start + step) % len(_PALETTE)]
        step = 0
        while True:
            step += 1
            # Hues by the golden ratio lie far from each other however many there are.
            hue = (start / 2**32 + step * 0.618034) % 1
            red, green, blue = colorsys.hls_to_rgb(hue, 0.45 + 0.07 * (step % 4), 0.45)
            yield f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"

    unique = sorted(set(names))
    color_of = {name: known[name] for name in unique if name in known}
    used = set(color_of.values())
    for name in unique:
        if name not in color_of:
            color_of[name] = next(color for color in candidates(name) if color not in used)
            used.add(color_of[name])
    return color_of


def ink(color: str) -> str:
    """Dark or white, whichever is more legible on an opaque colour (WCAG's relative luminance)."""
    channels = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#10151c" if luminance > _MIDDLE else "#ffffff"


_MIDDLE = 0.19
"""Above this luminance #10151c has more contrast than white."""

_RANK_SCALE = ((61, 111, 209), (53, 167, 160), (201, 185, 60))
"""From the first rank to the last, ever lighter; legible on white and on near black."""


def rank_colors(ranks: Sequence[int]) -> dict[int, str]:
    """A colour a rank, by its place among them on one sequential scale."""
    color_of = {}
    last = max(len(ranks) - 1, 1)
    for index, rank in enumerate(ranks):
        position = index / last * (len(_RANK_SCALE) - 1)
        left = min(int(position), len(_RANK_SCALE) - 2)
        share = position - left
        channels = zip(_RANK_SCALE[left], _RANK_SCALE[left + 1], strict=True)
        mixed = (round(low + share * (high - low)) for low, high in channels)
        color_of[rank] = "#" + "".join(f"{channel:02x}" for channel in mixed)
    return color_of


SEQUENTIAL = [[0, "rgba(74,116,216,0.06)"], [1, BLUE]]
"""A heat map's scale of amounts, from the page's own ground up."""
