"""Searches the layouts of a model on a number of GPUs for those that fit, and ranks them by step time.

    search(Question(MODELS["moe_1t"], gpus=768), [device("mi300x")], [Space(pp=(24, 48))])

- `space`: the layouts, valid and invalid.
- `footprint`: bytes of the fullest GPU.
- `ranking`: layouts by step time.
- `result`, `tables`: the result.
"""

from tracelens.planner.search.search import (
    BATCH,
    TABLES,
    Question,
    Refusal,
    Space,
    at_least,
    candidates,
    divisors,
    footprint,
    search,
    variants,
)

__all__ = [
    "BATCH",
    "TABLES",
    "Question",
    "Refusal",
    "Space",
    "at_least",
    "candidates",
    "divisors",
    "footprint",
    "search",
    "variants",
]
