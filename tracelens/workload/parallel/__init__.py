"""Parallelism: process groups, exchanges, sharded optimizer state, tensor parallelism, overlap."""

from tracelens.workload.parallel.exchange import (
    AllGather,
    AllToAll,
    Group,
    Pending,
    ReduceScatter,
    Waiting,
    all_gather_into,
    all_reduce,
    exchange,
    finish,
    host,
    start,
)
from tracelens.workload.parallel.groups import Groups, initialise, make_groups, normal, shard
from tracelens.workload.parallel.optimizer import ShardedAdamW
from tracelens.workload.parallel.overlap import interleave
from tracelens.workload.parallel.tensor import gather_matmul, matmul_scatter, require

__all__ = [
    "AllGather",
    "AllToAll",
    "Group",
    "Groups",
    "Pending",
    "ReduceScatter",
    "ShardedAdamW",
    "Waiting",
    "all_gather_into",
    "all_reduce",
    "exchange",
    "finish",
    "gather_matmul",
    "host",
    "initialise",
    "interleave",
    "make_groups",
    "matmul_scatter",
    "normal",
    "require",
    "shard",
    "start",
]
