"""Who says the rank, and which ranks record."""

from __future__ import annotations

import pytest

from tracelens.errors import TracelensError
from tracelens.recording.sidecar import JobRank, Ranks, find_job_rank

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
OPEN_MPI = {"RANK": "2", "SIZE": "8", "LOCAL_RANK": "2", "LOCAL_SIZE": "4"}
SRUN = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "3", "SLURM_NTASKS": "8"}


@pytest.mark.parametrize(
    ("environ", "job_rank"),
    [
        pytest.param({}, JobRank(), id="alone"),
        pytest.param(TORCHRUN, JobRank(5, 16, 1, 4, "RANK"), id="torchrun"),
        pytest.param(
            {f"OMPI_COMM_WORLD_{name}": value for name, value in OPEN_MPI.items()},
            JobRank(2, 8, 2, 4, "OMPI_COMM_WORLD_RANK"),
            id="mpirun",
        ),
        pytest.param({"PMI_RANK": "1", "PMI_SIZE": "2"}, JobRank(1, 2, None, None, "PMI_RANK"), id="mpiexec"),
        pytest.param(SRUN, JobRank(3, 8, 3, None, "SLURM_PROCID"), id="srun"),
        pytest.param(
            SRUN | {"SLURM_STEP_TASKS_PER_NODE": "8"},
            JobRank(3, 8, 3, 8, "SLURM_PROCID"),
            id="srun, one host",
        ),
        pytest.param(
            SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"},
            JobRank(3, 8, 3, None, "SLURM_PROCID"),
            id="two hosts",
        ),
        # A batch script's own process: of 8 tasks that nobody started.
        pytest.param({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, JobRank(), id="sbatch"),
        pytest.param(TORCHRUN | SRUN, JobRank(5, 16, 1, 4, "RANK"), id="torchrun in srun"),
        pytest.param({"RANK": "1"}, JobRank(), id="half of it"),
    ],
)
def test_launchers(environ: dict[str, str], job_rank: JobRank) -> None:
    assert find_job_rank(environ) == job_rank


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (TORCHRUN | {"RANK": "one"}, "the environment variable RANK must be a number, not 'one'"),
        (TORCHRUN | {"RANK": "16"}, "RANK is 16, but WORLD_SIZE is 16: ranks count from 0"),
    ],
)
def test_launchers_that_are_wrong(environ: dict[str, str], message: str) -> None:
    with pytest.raises(TracelensError) as caught:
        find_job_rank(environ)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("ranks", "recording"),
    [
        ("all", [*range(8)]),
        ("hosts", [0, 4]),
        ([3, 1, 3], [1, 3]),
        ({7}, [7]),
        (range(0, 8, 4), [0, 4]),
        ((), []),
    ],
)
def test_ranks_that_record(ranks: Ranks, recording: list[int]) -> None:
    job_ranks = [JobRank(rank, 8, rank % 4, 4) for rank in range(8)]
    assert [job_rank.rank for job_rank in job_ranks if job_rank.records(ranks)] == recording
    assert all(job_rank.recording(ranks) == recording for job_rank in job_ranks)


def test_first_ranks_of_hosts_of_unknown_size() -> None:
    job_rank = JobRank(5, 8, 0, None)
    assert job_rank.records("hosts")
    assert job_rank.recording("hosts") is None
    with pytest.raises(TracelensError, match="ranks='hosts' needs LOCAL_RANK"):
        JobRank(5, 8, None, None).records("hosts")


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([0, 2], "ranks contains 2, but the job has ranks 0 to 1"),
        ("some", "ranks must be 'all', 'hosts' or numbers, not 'some'"),
    ],
)
def test_ranks_that_are_not_there(ranks: Ranks, message: str) -> None:
    with pytest.raises(TracelensError) as caught:
        JobRank(0, 2, 0, 2).records(ranks)
    assert str(caught.value) == message
