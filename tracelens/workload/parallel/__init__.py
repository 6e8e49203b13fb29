"""Parallelism: process groups, collectives, sharded optimizer state, tensor parallelism, overlap."""

from tracelens.workload.parallel.collectives import (
    AllGather,
    AllToAll,
    Group,
    Groups,
    Pending,
    ReduceScatter,
    Waiting,
    all_gather_into,
    all_reduce,
    finish,
    host,
    initialise,
    make_groups,
    normal,
    run_collective,
    shard,
    start,
)
from tracelens.workload.parallel.optimizer import ShardedAdamW
from tracelens.workload.parallel.overlap import interleave
from tracelens.workload.parallel.tensor import gather_matmul, matmul_scatter, require
