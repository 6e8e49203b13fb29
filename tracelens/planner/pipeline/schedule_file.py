"""Schedules from CSV files, as torch.distributed.pipelining writes and reads them.

One line a rank, one cell a pass: `2F0` is the forward of micro-batch 0 in chunk 2 of the model, B a whole
backward, I and W its halves by input and weight. `(0F1;0B0)OVERLAP_F_B` is a forward beside a backward; empty
cells are idle. Messages and whatever else a file says (SEND_F, UNSHARD, ...) follow from these.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from tracelens.errors import TracelensError
from tracelens.planner.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Pass, Schedule, check
from tracelens.planner.pipeline.schedules import chunks_of, make_schedule

SUFFIX = ".csv"
_PASS = re.compile(r"(?P<place>\d+)(?P<kind>[FBIW])(?P<microbatch>\d+)")
_PAIR = re.compile(r"\((?P<passes>[^()]*)\)OVERLAP_F_B\d*")
_OTHER = re.compile(r"\d+(?:(?:SEND|RECV)_[FB]|UNSHARD|RESHARD|REDUCE_GRAD)\d*")
_PHASES = {"F": FORWARD, "B": BACKWARD, "I": INPUT, "W": WEIGHT}


def find_schedule(name: str, stages: int, microbatches: int, chunks: int, group: int) -> Schedule:
    """The schedule of a name, or that in a file.

    Args:
        name: as of `schedules.make_schedule`, or path of a .csv file.
        stages: PP; a file's lines.
        microbatches: in a step; those of a file.
        chunks: VPP; what a file has.
        group: micro-batches of a turn, as of `make_schedule`.

    Raises:
        UnknownName: no such schedule.
        TracelensError: it cannot be made of these numbers, or the file has others.
    """
    if not name.endswith(SUFFIX):
        return make_schedule(name, stages, microbatches, chunks, group)
    schedule = read_schedule(name)
    if (schedule.stages, schedule.microbatches) != (stages, microbatches):
        raise TracelensError(
            f"{name} has {schedule.stages} stages and {schedule.microbatches} micro-batches, not {stages} "
            f"and {microbatches}"
        )
    return schedule


def find_chunks(name: str, chunks: int) -> int:
    """Chunks a stage of a schedule by name or file, when those that can have any number have `chunks`."""
    return read_schedule(name).chunks if name.endswith(SUFFIX) else chunks_of(name, chunks)


def read_schedule(path: str) -> Schedule:
    """The schedule in a file.

    Raises:
        TracelensError: it cannot be read, is no such file, or does not run each pass once.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            lines = [[cell.strip() for cell in line if cell.strip()] for line in csv.reader(file)]
    except FileNotFoundError:
        raise TracelensError(f"{path}: no such file") from None
    except OSError as error:
        raise TracelensError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TracelensError(f"{path}: not a CSV file: {error}") from error
    slots = [[slot for cell in line if (slot := _slot(cell, path, rank))] for rank, line in enumerate(lines)]
    if not slots or not all(slots):
        raise TracelensError(f"{path}: every line must hold the passes of a rank, such as 0F0,0B0")
    positions = tuple(tuple(sorted({position for slot in line for position, _ in slot})) for line in slots)
    orders = tuple(
        tuple(
            tuple(pass_._replace(chunk=stage_positions.index(position)) for position, pass_ in slot)
            for slot in line
        )
        for line, stage_positions in zip(slots, positions, strict=True)
    )
    microbatches = 1 + max(pass_.microbatch for line in slots for slot in line for _, pass_ in slot)
    schedule = Schedule(path, positions, microbatches, orders)
    check(schedule)
    return schedule


def _slot(cell: str, path: str, rank: int) -> tuple[tuple[int, Pass], ...]:
    """What a cell says, with the places of its chunks in the model; empty for what is no pass."""
    pair = _PAIR.fullmatch(cell)
    passes = []
    for text in pair["passes"].split(";") if pair else [cell]:
        match = _PASS.fullmatch(text.strip())
        if match is None:
            if not pair and _OTHER.fullmatch(cell):
                return ()
            raise TracelensError(
                f"{path}: line {rank + 1}: {cell!r} is no pass; write 0F0 for the forward of micro-batch "
                "0 in chunk 0, and B, I or W for a backward or a half of it"
            )
        passes.append((int(match["place"]), Pass(_PHASES[match["kind"]], 0, int(match["microbatch"]))))
    return tuple(passes)
