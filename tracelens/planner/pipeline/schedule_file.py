"""Schedules from CSV files in the format of torch.distributed.pipelining.

One line per rank, one cell per pass: `2F0` is the forward of micro-batch 0 in chunk 2 of the model, B a full
backward, I and W its halves for input and weight gradients. `(0F1;0B0)OVERLAP_F_B` overlaps a forward and a
backward; empty cells are idle. Other actions (SEND_F, UNSHARD, ...) follow from these and are skipped.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from tracelens.errors import TracelensError
from tracelens.planner.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Pass, Schedule, check
from tracelens.planner.pipeline.schedules import chunks_of, make_schedule

SUFFIX = ".csv"
_PASS = re.compile(r"(?P<position>\d+)(?P<kind>[FBIW])(?P<microbatch>\d+)")
_PAIR = re.compile(r"\((?P<passes>[^()]*)\)OVERLAP_F_B\d*")
_OTHER = re.compile(r"\d+(?:(?:SEND|RECV)_[FB]|UNSHARD|RESHARD|REDUCE_GRAD)\d*")
_PHASES = {"F": FORWARD, "B": BACKWARD, "I": INPUT, "W": WEIGHT}


def find_schedule(name: str, stages: int, microbatches: int, chunks: int, group: int) -> Schedule:
    """The named schedule as from `schedules.make_schedule`, or the one in a .csv file.

    Raises:
        UnknownName: no such schedule.
        TracelensError: the schedule does not allow these numbers, or the file has others.
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
    """Chunks per stage of a schedule or file; `chunks` if the schedule allows any number."""
    return read_schedule(name).chunks if name.endswith(SUFFIX) else chunks_of(name, chunks)


def read_schedule(path: str) -> Schedule:
    """The schedule in a file.

    Raises:
        TracelensError: unreadable, malformed, or it does not run each pass once.
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
        raise TracelensError(f"{path}: every line must list the passes of a rank, such as 0F0,0B0")
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
    """The passes of a cell, with the positions of their chunks in the model; empty for other actions."""
    pair = _PAIR.fullmatch(cell)
    passes = []
    for text in pair["passes"].split(";") if pair else [cell]:
        match = _PASS.fullmatch(text.strip())
        if match is None:
            if not pair and _OTHER.fullmatch(cell):
                return ()
            raise TracelensError(
                f"{path}: line {rank + 1}: {cell!r} is not a pass; write 0F0 for the forward of "
                "micro-batch 0 in chunk 0, and B, I or W for a backward or one of its halves"
            )
        passes.append((int(match["position"]), Pass(_PHASES[match["kind"]], 0, int(match["microbatch"]))))
    return tuple(passes)
