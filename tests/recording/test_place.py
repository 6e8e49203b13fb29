"""Who says the rank, and which ranks record."""

from __future__ import annotations

import pytest

from tracelens.errors import TracelensError
from tracelens.recording.place import Place, Ranks, find_place

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
OPEN_MPI = {"RANK": "2", "SIZE": "8", "LOCAL_RANK": "2", "LOCAL_SIZE": "4"}
SRUN = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "3", "SLURM_NTASKS": "8"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        pytest.param({}, Place(), id="alone"),
        pytest.param(TORCHRUN, Place(5, 16, 1, 4, "RANK"), id="torchrun"),
        pytest.param(
            {f"OMPI_COMM_WORLD_{name}": value for name, value in OPEN_MPI.items()},
            Place(2, 8, 2, 4, "OMPI_COMM_WORLD_RANK"),
            id="mpirun",
        ),
        pytest.param({"PMI_RANK": "1", "PMI_SIZE": "2"}, Place(1, 2, None, None, "PMI_RANK"), id="mpiexec"),
        pytest.param(SRUN, Place(3, 8, 3, None, "SLURM_PROCID"), id="srun"),
        pytest.param(
            SRUN | {"SLURM_STEP_TASKS_PER_NODE": "8"}, Place(3, 8, 3, 8, "SLURM_PROCID"), id="srun, one host"
        ),
        pytest.param(
            SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"},
            Place(3, 8, 3, None, "SLURM_PROCID"),
            id="two hosts",
        ),
        # A batch script's own process: of 8 tasks that nobody started.
        pytest.param({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Place(), id="sbatch"),
        pytest.param(TORCHRUN | SRUN, Place(5, 16, 1, 4, "RANK"), id="torchrun in srun"),
        pytest.param({"RANK": "1"}, Place(), id="half of it"),
    ],
)
def test_launchers(environ: dict[str, str], place: Place) -> None:
    assert find_place(environ) == place


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (TORCHRUN | {"RANK": "one"}, "the environment variable RANK must be a number, not 'one'"),
        (TORCHRUN | {"RANK": "16"}, "RANK is 16, but WORLD_SIZE is 16: ranks count from 0"),
    ],
)
def test_launchers_that_are_wrong(environ: dict[str, str], message: str) -> None:
    with pytest.raises(TracelensError) as caught:
        find_place(environ)
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
    places = [Place(rank, 8, rank % 4, 4) for rank in range(8)]
    assert [place.rank for place in places if place.records(ranks)] == recording
    assert all(place.recording(ranks) == recording for place in places)


def test_first_ranks_of_hosts_of_unknown_size() -> None:
    place = Place(5, 8, 0, None)
    assert place.records("hosts")
    assert place.recording("hosts") is None
    with pytest.raises(TracelensError, match="ranks='hosts' needs LOCAL_RANK"):
        Place(5, 8, None, None).records("hosts")


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([0, 2], "ranks names 2, but the job has ranks 0 to 1"),
        ("some", "ranks must be 'all', 'hosts' or numbers, not 'some'"),
    ],
)
def test_ranks_that_are_not_there(ranks: Ranks, message: str) -> None:
    with pytest.raises(TracelensError) as caught:
        Place(0, 2, 0, 2).records(ranks)
    assert str(caught.value) == message
