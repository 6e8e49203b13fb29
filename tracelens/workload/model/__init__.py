"""The reference model: attention, routers, experts and the loss, to be read from `model` down."""

from tracelens.workload.model.attention import Attention, GroupedQueryAttention, LatentAttention, RMSNorm
from tracelens.workload.model.experts import GroupedExperts
from tracelens.workload.model.gemm import lacks_fp8
from tracelens.workload.model.model import EMBEDDING_STD, INIT_STD, Layer, Transformer, token_loss
from tracelens.workload.model.router import Router
