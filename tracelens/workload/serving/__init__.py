"""Serving with the reference model: attention is data parallel, experts are cut over the same ranks.

Every rank serves requests of its own with whole attention weights and a cache of its own. Each expert, the
shared one and a dense layer's MLP are cut along their inner width over all ranks, so around each of them the
ranks gather all tokens, and scatter the sums of their results: they go through the layers side by side, and
what one of them runs concerns all.

`settings`, `scheduler`, `plan`, `split` and `measure` need nothing but the standard library; the rest needs
torch. Begin with `engine`.
"""

from tracelens.workload.serving.measure import in_words
from tracelens.workload.serving.settings import HELP, Serving, model_config, override_serving, serving_preset
