"""What each command takes on a recording, each measured in a process of its own.

    python -m tests.stress.measure [INPUT[,INPUT] [COMMAND[,COMMAND] [SIZE]]]

prints, for each input at two sizes, CPU seconds and MB above what the loaded run takes.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import tracelens
from tests.stress.inputs import INPUTS, Recording, edited, loaded
from tracelens.trace import Run

LIMIT_S, LIMIT_BYTES = 60, 8 << 30


class Cost(NamedTuple):
    """What one command took."""

    cpu_s: float
    rss_mb: float
    problem: str = ""


class Sides:
    """A recording as a run, and the same after a change."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.run = loaded(recording)

    @cached_property
    def edited(self) -> Run:
        return loaded(edited(self.recording))


def sides(recording: Recording, commands: Sequence[str]) -> Sides:
    """Both runs of a recording, or one where no command compares them."""
    both = Sides(recording)
    if {"diff", "diff_back", "gate"} & set(commands):
        both.edited  # noqa: B018  here, so that no command pays for it
    return both


def _render(suffix: str) -> Callable[[Sides, Path], Any]:
    def render(both: Sides, folder: Path) -> None:
        tracelens.render(_REPORTS[id(both)], folder / f"report{suffix}")

    return render


def _analyze(name: str) -> Callable[[Sides, Path], Any]:
    return lambda both, folder: tracelens.analyze(both.run, name)


def _whatif(scenario: str) -> Callable[[Sides, Path], Any]:
    return lambda both, folder: tracelens.whatif(both.run, [scenario])


def _gate(both: Sides, folder: Path) -> None:
    from tracelens.compare.gate import from_result, gate, read_rule

    samples = [from_result(tracelens.analyze(run, "steps"), "run", "0") for run in (both.run, both.edited)]
    gate(*samples, [read_rule("step.time<=1.03"), read_rule("kernel.count<=1.0")])


def _fuse(both: Sides, folder: Path) -> None:
    from tracelens.analysis.comm import align_run
    from tracelens.merge import fuse

    aligned = align_run(both.run)
    fuse(both.run, folder / "fused.json", offsets=aligned.shift, waits=aligned.waits())


def _replay(both: Sides, folder: Path) -> None:
    from tracelens.reproducers import ReplaySelection, replay

    replay(both.run, folder / "replay", ReplaySelection(), top=10)


def commands() -> dict[str, Callable[[Sides, Path], Any]]:
    """All commands by name."""
    from tracelens.analysis import in_order

    found: dict[str, Callable[[Sides, Path], Any]] = {
        item.name: _analyze(item.name) for item in in_order() if item.name != "findings"
    }
    found["findings"] = _analyze("findings")
    found["diff"] = lambda both, folder: tracelens.diff(both.run, both.edited)
    found["diff_back"] = lambda both, folder: tracelens.diff(both.edited, both.run)
    found["gate"] = _gate
    found["whatif"] = lambda both, folder: tracelens.whatif(both.run)
    for name in ("grouped_gemm", "prefill_delayer", "two_batch_overlap"):
        found[name] = _whatif(name)
    found["fuse"] = _fuse
    found["replay"] = _replay
    for suffix in (".html", ".md", ".json", "", ".xlsx"):
        found[f"render{suffix or '.csv'}"] = _render(suffix)
    return found


_REPORTS: dict[int, Any] = {}


def measure(both: Sides, names: Sequence[str], limit_s: int = LIMIT_S) -> dict[str, Cost]:
    """Run commands on a recording, each in a copy of this process."""
    known = commands()
    rendered = any(name.startswith("render") for name in names)
    if rendered:
        try:
            _REPORTS[id(both)] = tracelens.report(both.run)
        except Exception as error:
            return {"report": Cost(0, 0, repr(error)[:100])}
    return {name: in_child(known[name], both, limit_s) for name in names}


def in_child(command: Callable[[Sides, Path], Any], both: Sides, limit_s: int) -> Cost:
    """CPU seconds of a command in a copy of this process, and how much more memory it takes than before."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        problem = ""
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
        Path("/proc/self/clear_refs").write_text("5")
        before = _peak_kb()
        began = time.process_time()
        try:
            with tempfile.TemporaryDirectory() as folder:
                gc.disable()  # as in the command
                command(both, Path(folder))
        except BaseException as error:
            if os.environ.get("STRESS_TRACEBACK"):
                import traceback

                traceback.print_exc()
            problem = f"{type(error).__name__}: {error}"[:100]
        spent = time.process_time() - began
        text = f"{spent}|{(_peak_kb() - before) / 1024}|{problem}"
        os.write(write_end, text.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    if not text:
        return Cost(limit_s, 0, f"signal {signal.Signals(os.WTERMSIG(status)).name}" if status else "?")
    spent, rss, problem = text.split("|", 2)
    return Cost(float(spent), float(rss), problem)


def _peak_kb() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    sys.setrecursionlimit(1000)
    picked = arguments[0].split(",") if arguments and arguments[0] != "all" else list(INPUTS)
    names = arguments[1].split(",") if len(arguments) > 1 and arguments[1] != "all" else list(commands())
    size = int(arguments[2]) if len(arguments) > 2 else 0
    for name in picked:
        small = size or (500 if name in ("ranks", "wide_group") else 4000)
        if name == "threads" and not size:
            small = 250
        costs: list[Mapping[str, Cost]] = []
        for count in (small, 4 * small):
            costs.append(measure(sides(INPUTS[name](count), names), names))
        for command in costs[0]:
            one, other = costs[0][command], costs[1].get(command, Cost(0, 0, "-"))
            ratio = other.cpu_s / max(one.cpu_s, 1e-9)
            more = other.rss_mb / max(one.rss_mb, 1e-9)
            flag = "SLOW" if ratio > 5 and other.cpu_s > 0.3 else ""
            flag += " MEM" if more > 5 and other.rss_mb > 60 else ""
            flag += f" {one.problem} {other.problem}" if one.problem or other.problem else ""
            print(
                f"{name:24} {command:12} {one.cpu_s:7.2f} {other.cpu_s:7.2f} x{ratio:5.1f}"
                f" {one.rss_mb:7.0f} {other.rss_mb:7.0f} x{more:5.1f} {flag}",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
