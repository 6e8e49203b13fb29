"""Colours of figures: names that many results share keep theirs."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

# Mid tones that are legible on white and on near black.
BLUE, ORANGE, TEAL, VIOLET, GREY = "#4a74d8", "#e8923a", "#3fae9e", "#a06cd5", "#98a1ad"
KINDS = {
    "computation": BLUE,
    "comm": ORANGE,
    "exposed_comm": ORANGE,
    "memcpy": TEAL,
    "exposed_memcpy": TEAL,
    "memset": VIOLET,
    "exposed_memset": VIOLET,
    "idle": "rgba(152,161,173,0.35)",
}
# Names that many results share keep their colour from figure to figure; others get one of _PALETTE.
_KNOWN = KINDS | {
    "gemm": BLUE,
    "grouped_gemm": "#2f9bd6",
    "attention": "#d95f76",
    "communication": ORANGE,
    "copy": TEAL,
    "fill": VIOLET,
    "moe_routing": "#dfb32c",
    "elementwise": "#7ea9a0",
    "normalization": "#6fa845",
    "softmax": "#c06bc0",
    "activation": "#a3b84a",
    "reduction": "#b07a5a",
    "indexing": "#5d9170",
    "concat": "#cf9a6e",
    "transpose": "#8f7fc9",
    "quantization": "#a08a3a",
    "optimizer": "#d477b5",
    "fused": "#7c6bd0",
    "unlinked": "#b4bac3",
    "other": GREY,
    "at the roofline": BLUE,
    "recoverable": ORANGE,
    "waiting": "rgba(152,161,173,0.55)",
}
_PALETTE = ("#58b0c9", "#b0506a", "#c98a2b", "#7d8ba8", "#5a9ea0", "#d58a94", "#93b06b", "#6c8fd9", "#b58fc9")


def colors(names: Iterable[str]) -> dict[str, str]:
    """A colour a name: the same in every figure, unless two names in one figure want the same colour."""
    color_of: dict[str, str] = {}
    for name in sorted(set(names)):
        if name in _KNOWN:
            color_of[name] = _KNOWN[name]
            continue
        start = crc32(name.encode("utf-8", "replace"))
        palette = [_PALETTE[(start + step) % len(_PALETTE)] for step in range(len(_PALETTE))]
        color_of[name] = next((color for color in palette if color not in color_of.values()), palette[0])
    return color_of
