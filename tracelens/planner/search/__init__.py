"""Searches layouts of a model on a number of GPUs: which fit, and which is fastest.

    search(Question(read_model("moe_1t"), gpus=768), [device("mi300x")], [Space(pp=(24, 48))])

- `space`: the layouts, and why some are invalid.
- `footprint`: bytes of the fullest GPU.
- `ranking`: candidates by step time.
- `result`, `tables`: the result.
"""

from tracelens.planner.search.ranking import BATCH, Question
from tracelens.planner.search.result import search
from tracelens.planner.search.space import Space

__all__ = ["BATCH", "Question", "Space", "search"]
