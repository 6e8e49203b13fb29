"""The rank of this process in its job, and whether that rank records."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from tracelens.errors import TracelensError

Ranks = Collection[int] | Literal["all", "hosts"]

# Launchers, the most telling first: rank, world size, rank on this host, ranks on this host. Slurm sets
# SLURM_NTASKS in a batch script's own single process too, SLURM_STEP_NUM_TASKS only in what srun starts.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)


@dataclass(frozen=True)
class JobRank:
    """One process of a job.

    Attributes:
        rank: its number.
        world: processes of the job.
        local_rank: its number among those of its host, None if nobody says.
        local_world: processes on its host, None if nobody says.
        source: who says the rank: "torch.distributed", the name of a variable, or "one process".
    """

    rank: int = 0
    world: int = 1
    local_rank: int | None = 0
    local_world: int | None = 1
    source: str = "one process"

    def records(self, ranks: Ranks) -> bool:
        """Whether this rank is among `ranks`.

        Raises:
            TracelensError: a rank that the job does not have, or nothing says which is a host's first.
        """
        if isinstance(ranks, str):
            if ranks not in ("all", "hosts"):
                raise TracelensError(f"ranks must be 'all', 'hosts' or numbers, not {ranks!r}")
            if ranks == "hosts" and self.local_rank is None:
                raise TracelensError(
                    "ranks='hosts' needs LOCAL_RANK to know each host's first rank; start with torchrun, "
                    "or pass the numbers of the ranks"
                )
            return ranks == "all" or self.local_rank == 0
        strange = [rank for rank in ranks if rank not in range(self.world)]
        if strange:
            raise TracelensError(
                f"ranks contains {strange[0]!r}, but the job has ranks 0 to {self.world - 1}"
            )
        return self.rank in ranks

    def recording(self, ranks: Ranks) -> list[int] | None:
        """All ranks of the job that record; None where each host decides for itself."""
        if not isinstance(ranks, str):
            return sorted(set(ranks))
        if ranks == "all":
            return list(range(self.world))
        return list(range(0, self.world, self.local_world)) if self.local_world else None


def find_job_rank(environ: Mapping[str, str] = os.environ) -> JobRank:
    """The rank of this process: from torch.distributed, else the launcher's variables, else it is alone.

    Raises:
        TracelensError: a variable holds no number, or a rank outside of the job.
    """
    local = [(_number(environ, names[2]), _number(environ, names[3])) for names in _LAUNCHERS]
    local_rank, local_world = next((pair for pair in local if pair[0] is not None), (None, None))
    # Only what runs already counts; importing it here would tell nothing.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world = int(distributed.get_rank()), int(distributed.get_world_size())
        return JobRank(rank, world, local_rank, local_world, "torch.distributed")
    for rank_name, world_name, *_ in _LAUNCHERS:
        launched, size = _number(environ, rank_name), _number(environ, world_name)
        if launched is None or size is None:
            continue
        if launched >= size:
            raise TracelensError(f"{rank_name} is {launched}, but {world_name} is {size}: ranks count from 0")
        return JobRank(launched, size, local_rank, local_world, rank_name)
    return JobRank()


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is None or (name == "SLURM_STEP_TASKS_PER_NODE" and not text.isdecimal()):
        return None  # Slurm writes "4(x2),3" where there are several hosts
    if not text.isdecimal():
        raise TracelensError(f"the environment variable {name} must be a number, not {text!r}")
    return int(text)
