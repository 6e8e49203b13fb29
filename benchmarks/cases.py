"""The commands whose cost is watched, and the traces that they read.

Costs are told as ratios to a yardstick of the same rounds: an interpreter that imports numpy where a command
is mostly that, a DOM parse of the same bytes (`benchmarks.dom`) where the trace is large. A bare interpreter
takes a hundredth of a second, which differs by half from one to the next.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks import ranks, repeat
from benchmarks.measure import run

ROOT = Path(__file__).resolve().parents[1]
MADE = ROOT / "build/bench"
"""Inputs that take long to make, kept until the next `make clean`."""
TRACELENS = Path(sys.executable).with_name("tracelens")
LONGER = 10
RANKS = 64
KERNELS = "import sys, tracelens; tracelens.load(*sys.argv[1:]).kernels()"
UNITS = {"numpy": "imports of numpy", "dom": "DOM parses"}

Word = str | Path


@dataclass(frozen=True)
class Case:
    """One command."""

    name: str
    command: Sequence[Word]  # of tracelens, or -c and what Python runs
    traces: Sequence[Path]  # added to it
    yardstick: Literal["numpy", "dom"]
    quick: bool = False  # small enough for every check
    writes: str = ""  # the output that is asked for, a file name
    make: Callable[[], None] | None = None  # makes its traces
    parsed: Sequence[Path] = ()  # what the DOM parses instead of its traces ...
    times: int = 1  # ... and how often that is in them

    @property
    def missing(self) -> bool:
        """Whether the corpus has not what it reads."""
        return not all(path.exists() for path in (self.traces if self.make is None else self.parsed))

    def words(self, scratch: Path) -> list[Word]:
        """The command with the interpreter's options or the program before it."""
        before: list[Word] = ["-P"] if self.command[0] == "-c" else [TRACELENS]
        output: list[Word] = ["-o", scratch / self.writes] if self.writes else []
        return [*before, *self.command, *self.traces, *output]

    def yardstick_s(self) -> float:
        """CPU seconds of the yardstick, measured now."""
        if self.yardstick == "numpy":
            return run([sys.executable, "-I", "-c", "import numpy"], memory=False).cpu_s
        traces = [
            rank
            for path in self.parsed or self.traces
            for rank in (sorted(path.glob("rank*.json*")) if path.is_dir() else [path])
        ]
        parsed = run([sys.executable, "-m", "benchmarks.dom", *traces], memory=False)
        return float(json.loads(parsed.output)["cpu_s"]) * self.times


def cases() -> list[Case]:
    """All of them, small ones first."""
    samples, real = ROOT / "sample_traces", corpus()
    loop, grouped = samples / "one_gpu/loop", samples / "one_gpu/grouped"
    ep4 = samples / "ladder/ep4/00_baseline"
    eager, after = (real / f"nvidia-h100-hf/dsv2_{name}.json.gz" for name in ("eager", "grouped"))
    ep8 = real / "nvidia-h200-megatron/ep8"
    longer, many = MADE / f"eager_x{LONGER}.json.gz", MADE / f"ranks{RANKS}"

    def make_longer() -> None:
        if not longer.exists():
            MADE.mkdir(parents=True, exist_ok=True)
            part = longer.with_name(f"part_of_{longer.name}")
            repeat.repeat(eager, part, LONGER)
            part.rename(longer)

    def make_many() -> None:
        ranks.many(sorted(ep4.glob("rank*.json.zst")), many, RANKS, ranks.EVENTS)

    html = "report.html"
    return [
        Case("help", ["--help"], [], "numpy", quick=True),
        Case("tiny", ["report"], [grouped], "numpy", quick=True, writes=html),
        Case("roofline", ["analyze", "roofline"], [grouped], "numpy", quick=True),
        Case("kernels", ["-c", KERNELS], [grouped], "numpy", quick=True),
        Case("diff", ["diff"], [loop, grouped], "numpy", quick=True, writes=html),
        # The same on both sides: one recording each leaves a gate in doubt, and that is explained.
        Case("gate", ["gate"], [loop, loop], "numpy", quick=True),
        Case("ranks", ["report"], [ep4], "numpy", quick=True, writes=html),
        Case("eager", ["report"], [eager], "dom", writes=html),
        Case("ep8", ["report"], [ep8], "dom", writes=html),
        Case("eager_roofline", ["analyze", "roofline"], [eager], "dom"),
        Case("eager_kernels", ["-c", KERNELS], [eager], "dom"),
        Case("eager_diff", ["diff"], [eager, after], "dom", writes=html),
        Case("eager_gate", ["gate"], [eager, eager], "dom"),
        Case(
            "many_ranks", ["report"], [many], "dom", writes=html, make=make_many,
            parsed=[ep4 / "rank0.json.zst"], times=RANKS,
        ),
        Case(
            "eager_long", ["report"], [longer], "dom", writes=html, make=make_longer,
            parsed=[eager], times=LONGER,
        ),
    ]  # fmt: skip


def corpus() -> Path:
    """The folder of real traces, which may not be there."""
    return Path(os.environ.get("TRACELENS_CORPUS") or ROOT.parent / "shared" / "corpus")
