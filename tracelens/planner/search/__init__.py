"""Searches the layouts of a model on a number of GPUs for those that fit, and ranks them by step time.

search(Question(MODELS["moe_1t"], gpus=768), [device("mi300x")], [Space(pp=(24, 48))])
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
