"""Which layout of a model on so many GPUs fits, and of those which is fastest.

    search(Question(read_model("moe_1t"), gpus=768), [device("mi300x")], [Space(pp=(24, 48))])

- `space`: the layouts, and why some cannot be.
- `footprint`: bytes of the fullest GPU.
- `ranking`: candidates in the order of their step time.
- `result`, `tables`: what comes out.
"""

from tracelens.planner.search.ranking import BATCH, Question
from tracelens.planner.search.result import search
from tracelens.planner.search.space import Space

__all__ = ["BATCH", "Question", "Space", "search"]
