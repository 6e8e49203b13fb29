"""Searches the layouts of a model on a number of GPUs for those that fit, and ranks them by step time.

    search(Question(MODELS["moe_1t"], gpus=768), [device("mi300x")], [Space(pp=(24, 48))])

- `space`: the layouts, valid and invalid.
- `footprint`: bytes of the fullest GPU.
- `ranking`: layouts by step time.
- `result`, `tables`: the result.
"""

from tracelens.planner.search.ranking import BATCH, Question
from tracelens.planner.search.result import search
from tracelens.planner.search.space import Space
from tracelens.planner.search.tables import TABLES

__all__ = ["BATCH", "TABLES", "Question", "Space", "search"]
