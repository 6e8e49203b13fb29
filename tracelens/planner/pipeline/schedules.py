"""Pipeline schedules as data: the passes of each stage, in order.

Made by name, or read from CSV files in the format of torch.distributed.pipelining: one line per rank, one
cell per pass. `2F0` is the forward of micro-batch 0 in chunk 2 of the model, B a full backward, I and W its
halves for input and weight gradients. `(0F1;0B0)OVERLAP_F_B` overlaps a forward and a backward; empty cells
are idle. Other actions (SEND_F, UNSHARD, ...) follow from these and are skipped.

In the makers of schedules F is a forward, B a backward, p stages, v chunks per stage. Zero-bubble schedules
(arXiv:2401.10241) split B into I and W: other stages wait only for I, and W fills idle time.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, count, zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

from tracelens.config_files import read_text
from tracelens.errors import TracelensError, UnknownName
from tracelens.units import plural

FORWARD, BACKWARD, INPUT, WEIGHT = PHASES = ("forward", "backward", "input", "weight")
"""Phases of a pass; `input` and `weight` are the two halves of a backward, for either gradient."""

SUFFIX = ".csv"
_PASS = re.compile(r"(?P<position>\d+)(?P<kind>[FBIW])(?P<micro_batch>\d+)")
_PAIR = re.compile(r"\((?P<passes>[^()]*)\)OVERLAP_F_B\d*")
_OTHER = re.compile(r"\d+(?:(?:SEND|RECV)_[FB]|UNSHARD|RESHARD|REDUCE_GRAD)\d*")
_PHASES = {"F": FORWARD, "B": BACKWARD, "I": INPUT, "W": WEIGHT}


class Pass(NamedTuple):
    """One micro-batch through one chunk of the model."""

    phase: str  # one of PHASES
    chunk: int  # of the stage's chunks, from 0
    micro_batch: int  # from 0

    def __str__(self) -> str:
        name = {INPUT: "input gradients", WEIGHT: "weight gradients"}.get(self.phase, self.phase)
        return f"{name} of micro-batch {self.micro_batch} in chunk {self.chunk}"


Slot = tuple[Pass, ...]
"""Passes that a stage runs at once: one, or an overlapped pair of a forward and a backward."""


@dataclass(frozen=True)
class Schedule:
    """The passes of each stage of a pipeline."""

    name: str  # of its kind
    positions: tuple[tuple[int, ...], ...]  # position in the model, from 0, of each chunk of each stage
    micro_batches: int  # per step
    orders: tuple[tuple[Slot, ...], ...]  # slots of each stage, in execution order

    @property
    def stages(self) -> int:
        return len(self.positions)

    @property
    def chunks(self) -> int:
        """Chunks per stage."""
        return len(self.positions[0])

    @property
    def count(self) -> int:
        """Chunks of the whole model."""
        return sum(map(len, self.positions))

    @property
    def splits(self) -> bool:
        """Whether backwards are split into two halves."""
        return any(pass_.phase == WEIGHT for slot in self.orders[0] for pass_ in slot)


def make_schedule(name: str, stages: int, micro_batches: int, chunks: int = 1, group: int = 0) -> Schedule:
    """The named schedule.

    Args:
        name: of SCHEDULES.
        stages: PP.
        micro_batches: per step.
        chunks: VPP.
        group: micro-batches per turn with several chunks; 0 for one per stage.

    Raises:
        UnknownName: no such schedule.
        TracelensError: the schedule does not allow these numbers.
    """
    needed = chunks_of(name, chunks)
    if min(stages, micro_batches, chunks) < 1 or group < 0:
        raise TracelensError("stages, micro-batches and chunks must be at least 1")
    if needed != chunks:
        raise TracelensError(f"schedule {name} has {plural(needed, 'chunk')} per stage, not {chunks}")
    return SCHEDULES[name].make(stages, micro_batches, chunks, group or stages)


def chunks_of(name: str, chunks: int) -> int:
    """Chunks per stage of the named schedule, `chunks` if it allows any number; raises UnknownName."""
    if name not in SCHEDULES:
        raise UnknownName("schedule", name, SCHEDULES)
    fixed = SCHEDULES[name].chunks
    return chunks if fixed == "any" else fixed


def find_schedule(name: str, stages: int, micro_batches: int, chunks: int, group: int) -> Schedule:
    """The named schedule as from `make_schedule`, or the one in a .csv file.

    Raises:
        UnknownName: no such schedule.
        TracelensError: the schedule does not allow these numbers, or the file has others.
    """
    if not name.endswith(SUFFIX):
        return make_schedule(name, stages, micro_batches, chunks, group)
    schedule = read_schedule(name)
    if (schedule.stages, schedule.micro_batches) != (stages, micro_batches):
        raise TracelensError(
            f"{name} has {schedule.stages} stages and {schedule.micro_batches} micro-batches, not {stages} "
            f"and {micro_batches}"
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
    text = read_text(Path(path))
    try:
        lines = [[cell.strip() for cell in line if cell.strip()] for line in csv.reader(text.splitlines())]
    except csv.Error as error:
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
    micro_batches = 1 + max(pass_.micro_batch for line in slots for slot in line for _, pass_ in slot)
    schedule = Schedule(path, positions, micro_batches, orders)
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
        passes.append((int(match["position"]), Pass(_PHASES[match["kind"]], 0, int(match["micro_batch"]))))
    return tuple(passes)


def check(schedule: Schedule) -> None:
    """Raise TracelensError unless each chunk lies on one stage and sees each micro-batch once each way."""
    positions = sorted(position for stage_positions in schedule.positions for position in stage_positions)
    if (
        positions != list(range(len(positions)))
        or len({len(stage_positions) for stage_positions in schedule.positions}) != 1
    ):
        raise TracelensError(
            f"schedule {schedule.name}: each chunk of the model must lie on one stage, equally many on each"
        )
    for stage, slots in enumerate(schedule.orders):
        passes = [pass_ for slot in slots for pass_ in slot]
        split = {(pass_.chunk, pass_.micro_batch) for pass_ in passes if pass_.phase in (INPUT, WEIGHT)}
        chunk_batches = [
            (chunk, number) for chunk in range(schedule.chunks) for number in range(schedule.micro_batches)
        ]
        required = {Pass(FORWARD, *chunk_batch) for chunk_batch in chunk_batches}
        for chunk_batch in chunk_batches:
            halves = (INPUT, WEIGHT) if chunk_batch in split else (BACKWARD,)
            required |= {Pass(half, *chunk_batch) for half in halves}
        seen: set[Pass] = set()
        for pass_ in passes:
            if pass_ not in required or pass_ in seen:
                problem = "twice" if pass_ in seen else "which is not one of its passes"
                raise TracelensError(f"schedule {schedule.name}: stage {stage} runs {pass_} {problem}")
            seen.add(pass_)
        if missing := sorted(required - seen):
            raise TracelensError(f"schedule {schedule.name}: stage {stage} never runs {missing[0]}")


def round_robin(stages: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    """Positions where chunk c of the model lies on stage c % stages."""
    return tuple(tuple(range(stage, stages * chunks, stages)) for stage in range(stages))


def singles(passes: Sequence[Pass]) -> tuple[Slot, ...]:
    """Slots of one pass each."""
    return tuple((pass_,) for pass_ in passes)


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards (arXiv:1811.06965)."""
    passes = [Pass(phase, 0, number) for phase in (FORWARD, BACKWARD) for number in range(micro_batches)]
    return Schedule("gpipe", round_robin(stages, 1), micro_batches, (singles(passes),) * stages)


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """First p - stage warm-up forwards, then B and F in turn (PipeDream-Flush, arXiv:2006.09503)."""
    orders = tuple(
        _alternate(*_turns(stages, micro_batches, 1, stages), warm_up=stages - stage)
        for stage in range(stages)
    )
    return Schedule("1f1b", round_robin(stages, 1), micro_batches, orders)


def interleaved(stages: int, micro_batches: int, chunks: int, group: int) -> Schedule:
    """Several chunks per stage, with turns of `group` micro-batches through each (arXiv:2104.04473).

    The first B follows 2 (p - stage - 1) + (v - 1) group + 1 forwards, as in Megatron-LM; with one chunk per
    stage it is 1F1B.
    """
    if chunks == 1:
        return one_f_one_b(stages, micro_batches)
    _check_group(stages, micro_batches, chunks, group)
    turns = _turns(stages, micro_batches, chunks, group)
    orders = tuple(_alternate(*turns, warm_up=ahead(stages, stage, chunks, group)) for stage in range(stages))
    return Schedule("interleaved", round_robin(stages, chunks), micro_batches, orders)


def overlapped(stages: int, micro_batches: int, chunks: int, group: int) -> Schedule:
    """Interleaved 1F1B with one more warm-up forward, and each B overlapped with the next F.

    A pair starts when both of its inputs have arrived, as in Megatron-LM (`combined_1f1b.py`). The F of a
    pair needs the F that the previous stage ran in its previous pair. So even with one chunk
    2 (p - stage) - 1 forwards go ahead; with as few as in 1F1B each stage would idle every other time.
    """
    _check_group(stages, micro_batches, chunks, group)
    forwards, backwards = _turns(stages, micro_batches, chunks, group)
    orders = []
    for stage in range(stages):
        warm_up = ahead(stages, stage, chunks, group)
        rest = forwards[warm_up:]
        pairs = zip(rest, backwards, strict=False)
        orders.append((*singles(forwards[:warm_up]), *pairs, *singles(backwards[len(rest) :])))
    name = "1f1b-overlap" if chunks == 1 else "interleaved-overlap"
    return Schedule(name, round_robin(stages, chunks), micro_batches, tuple(orders))


def _check_group(stages: int, micro_batches: int, chunks: int, group: int) -> None:
    """Raise TracelensError if turns are too short for the pipeline, as Megatron-LM does."""
    if chunks == 1 or micro_batches < 1:
        return
    rest = micro_batches % group
    if group < stages or micro_batches < stages or 0 < rest < stages:
        rounds = max(micro_batches // stages, 1)
        suggestion = (
            f"a turn of {micro_batches // rounds} would"
            if micro_batches >= stages and not micro_batches % rounds
            else f"{-(-micro_batches // stages) * stages} micro-batches would"
        )
        raise TracelensError(
            f"interleaving {micro_batches} micro-batches in turns of {group} does not fit {stages} stages: "
            f"each turn needs {stages} or more; {suggestion}"
        )


def ahead(stages: int, stage: int, chunks: int, group: int) -> int:
    """Forwards before the first backward of interleaved 1F1B."""
    return 2 * (stages - stage - 1) + (chunks - 1) * group + 1


def _turns(stages: int, micro_batches: int, chunks: int, group: int) -> tuple[list[Pass], list[Pass]]:
    """Forwards and backwards of a stage, each in execution order."""
    forward = [
        (chunk, number)
        for begin in range(0, micro_batches, group)
        for chunk in range(chunks)
        for number in range(begin, min(begin + group, micro_batches))
    ]
    return (
        [Pass(FORWARD, *chunk_batch) for chunk_batch in forward],
        [Pass(BACKWARD, chunks - 1 - chunk, number) for chunk, number in forward],
    )


def _alternate(forwards: list[Pass], backwards: list[Pass], warm_up: int) -> tuple[Slot, ...]:
    """Warm-up forwards, then B and F in turn."""
    first, rest = forwards[:warm_up], forwards[warm_up:]
    mixed = chain.from_iterable(zip_longest(backwards, rest))
    return singles([*first, *(pass_ for pass_ in mixed if pass_ is not None)])


def zb_h1(stages: int, micro_batches: int) -> Schedule:
    """ZB-H1: warm-up as in 1F1B; the W of a micro-batch follows the I of the micro-batch `stage` later.

    No stage holds more than p micro-batches, like the first stage of 1F1B. Each idles (p - 1) (F + I - W) if
    the three take about equally long.
    """
    orders = [_with_delayed_weights(stages - stage, stage, micro_batches) for stage in range(stages)]
    return Schedule("zb-h1", round_robin(stages, 1), micro_batches, tuple(map(singles, orders)))


def zb_h2(stages: int, micro_batches: int) -> Schedule:
    """ZB-H2: 2 (p - stage) - 1 warm-up forwards, W delayed by 2 `stage`; no stage holds more than 2 p - 1.

    With F = I = W no stage idles between its first and last pass, but steps must not start on all stages at
    the same time.
    """
    orders = [
        _with_delayed_weights(2 * (stages - stage) - 1, 2 * stage, micro_batches) for stage in range(stages)
    ]
    return Schedule("zb-h2", round_robin(stages, 1), micro_batches, tuple(map(singles, orders)))


def _with_delayed_weights(warm_up: int, delay: int, micro_batches: int) -> list[Pass]:
    """Warm-up forwards; then I, the W of `delay` micro-batches before, and F in turn; then remaining W."""
    passes = [Pass(FORWARD, 0, number) for number in range(min(warm_up, micro_batches))]
    for number in range(micro_batches):
        passes.append(Pass(INPUT, 0, number))
        if number >= delay:
            passes.append(Pass(WEIGHT, 0, number - delay))
        if number + warm_up < micro_batches:
            passes.append(Pass(FORWARD, 0, number + warm_up))
    remaining = range(max(micro_batches - delay, 0), micro_batches)
    return [*passes, *(Pass(WEIGHT, 0, number) for number in remaining)]


def zb_v(stages: int, micro_batches: int) -> Schedule:
    """ZB-V: two chunks per stage, the second in reverse order, so that the first stage has both ends.

    Memory as in 1F1B; with F = I = W no stage idles between its first and last pass.
    """
    positions = tuple((stage, 2 * stages - 1 - stage) for stage in range(stages))
    orders = tuple(singles(_v_order(stages, stage, micro_batches)) for stage in range(stages))
    return Schedule("zb-v", positions, micro_batches, orders)


def _v_order(stages: int, stage: int, micro_batches: int) -> list[Pass]:
    """Passes of one stage; below 2 p - 1 micro-batches as if the missing ones took no time."""
    total = max(micro_batches, 2 * stages - 1)
    down = stages - stage
    numbers = {(phase, chunk): count() for phase in (FORWARD, INPUT, WEIGHT) for chunk in (0, 1)}
    passes: list[Pass] = []

    def run(text: str, times: int) -> None:
        """Append passes as in "F0 I1", each with its next micro-batch, this many times."""
        for _ in range(times):
            for word in text.split():
                phase, chunk = _PHASES[word[0]], int(word[1])
                passes.append(Pass(phase, chunk, next(numbers[phase, chunk])))

    run("F0", 2 * down - 1)
    run("F1 F0", stage)
    run("F1 I1 W1", down)
    # So far 2 p - 1 - stage forwards of chunk 0.
    remaining = total - (2 * down - 1 + stage)
    run("F0 I0 W0 F1 I1 W1", remaining)
    run("I0 W0 F1 I1 W1", total - stages - remaining)
    run("I0 I1", stage)
    run("I0 W0", down)
    for chunk in (1, 0):
        done = sum(pass_.phase == WEIGHT and pass_.chunk == chunk for pass_ in passes)
        run(f"W{chunk}", total - done)
    return [pass_ for pass_ in passes if pass_.micro_batch < micro_batches]


class ScheduleKind(NamedTuple):
    """A kind of schedule: description, chunks per stage, and maker (stages, micro-batches, chunks, group)."""

    doc: str
    chunks: int | Literal["any"]
    make: Callable[[int, int, int, int], Schedule]


SCHEDULES = {
    "gpipe": ScheduleKind("all forwards, then all backwards", 1, lambda p, m, v, g: gpipe(p, m)),
    "1f1b": ScheduleKind("one forward, one backward", 1, lambda p, m, v, g: one_f_one_b(p, m)),
    "interleaved": ScheduleKind("1F1B over several chunks per stage", "any", interleaved),
    "1f1b-overlap": ScheduleKind(
        "overlaps each backward with a forward to hide its all-to-alls; twice the memory", 1, overlapped
    ),
    "interleaved-overlap": ScheduleKind("1f1b-overlap over several chunks per stage", "any", overlapped),
    "zb-h1": ScheduleKind(
        "splits off weight gradients; memory as in 1F1B", 1, lambda p, m, v, g: zb_h1(p, m)
    ),
    "zb-h2": ScheduleKind("splits off weight gradients; twice the memory", 1, lambda p, m, v, g: zb_h2(p, m)),
    "zb-v": ScheduleKind(
        "splits off weight gradients; two chunks per stage in a V", 2, lambda p, m, v, g: zb_v(p, m)
    ),
}
