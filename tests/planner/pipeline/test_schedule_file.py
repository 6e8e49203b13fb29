"""Schedules as torch.distributed.pipelining writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.errors import TracelensError
from tracelens.planner.pipeline import (
    SCHEDULES,
    Pass,
    Schedule,
    Setting,
    Uniform,
    chunks_of,
    find_schedule,
    make_schedule,
    pipeline,
    read_schedule,
)

LETTERS = {"forward": "F", "backward": "B", "input": "I", "weight": "W"}


def written(schedule: Schedule) -> str:
    """A schedule as text."""

    def cell(pass_: Pass, places: tuple[int, ...]) -> str:
        return f"{places[pass_.chunk]}{LETTERS[pass_.phase]}{pass_.micro_batch}"

    lines = []
    for places, slots in zip(schedule.positions, schedule.orders, strict=True):
        cells = [[cell(one, places) for one in slot] for slot in slots]
        lines.append(
            ",".join(texts[0] if len(texts) == 1 else f"({';'.join(texts)})OVERLAP_F_B" for texts in cells)
        )
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_every_kind_is_read_back(name: str, tmp_path: Path) -> None:
    schedule = make_schedule(name, 3, 6, chunks_of(name, 2))
    path = tmp_path / "orders.csv"
    path.write_text(written(schedule))
    read_back = read_schedule(str(path))
    assert (read_back.positions, read_back.micro_batches, read_back.orders) == (
        schedule.positions,
        schedule.micro_batches,
        schedule.orders,
    )
    both = pipeline(Setting((name, str(path)), 3, 6, 2), Uniform(4_000_000, 8_000_000))["summary"]
    assert both["makespan_ns"][0] == both["makespan_ns"][1]


def test_messages_and_idle_cells_are_no_passes(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text("0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0,0REDUCE_GRAD\n,1RECV_F0,1F0, 1B0 ,1SEND_B0\n")
    assert find_schedule(str(path), 2, 1, 1, 0).orders == make_schedule("1f1b", 2, 1).orders


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0F0,0B0\n1F0,1X0\n", "line 2: '1X0' is not a pass; write 0F0"),
        ("0F0,0B0\n1F0\n", "stage 1 never runs backward of micro-batch 0"),
        ("0F0,0B0\n\n", "every line must list"),
        ("", "every line must list"),
        ("0F0,0B0\n0F0,0B0\n", "lie on one stage"),
        ("(0F1;0X0)OVERLAP_F_B\n", "is not a pass"),
    ],
)
def test_files_that_say_something_else(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text(text)
    with pytest.raises(TracelensError, match=problem):
        read_schedule(str(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TracelensError, match="no such file"):
        read_schedule(str(tmp_path / "none.csv"))
    with pytest.raises(TracelensError, match="cannot be read"):
        read_schedule(str(tmp_path))
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TracelensError, match="not a text file"):
        read_schedule(str(tmp_path / "bytes.csv"))


def test_a_file_has_its_own_numbers(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text(written(make_schedule("1f1b", 2, 3)))
    with pytest.raises(TracelensError, match="2 stages and 3 micro-batches, not 2 and 4"):
        find_schedule(str(path), 2, 4, 1, 0)
