"""What tracelens costs: wall seconds and peak memory of whole process trees, beside the floor.

Parts: `report` (the whole report of a large trace against pysimdjson's DOM parse of the same bytes), `ranks`
(the same for the eight ranks of a run),
`startup` (importing the package, showing the help) and `linearity` (the same trace four times as long).
Commands take turns within a round, so that a slow spell of the machine meets all of them; every command
runs once before anything counts. Run as `make bench` or `python -m benchmarks.bench [PART...] [--runs N]`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import measure, repeat

ROOT = Path(__file__).resolve().parents[1]
TRACELENS = Path(sys.executable).with_name("tracelens")
LARGE = Path("nvidia-h100-hf/dsv2_eager.json.gz")
RANKS = Path("nvidia-h200-megatron/ep8")
PAIR = ("nvidia-h100-hf/dsv2_eager.json.gz", "nvidia-h100-hf/dsv2_grouped.json.gz")
TIMES = 4

Command = Sequence[str | Path]


def corpus() -> Path:
    """The folder of real traces, which may not be there."""
    return Path(os.environ.get("TRACELENS_CORPUS") or ROOT.parent / "shared" / "corpus")


def large_trace() -> Path:
    """The corpus trace, or the sample trace where there is no corpus."""
    for trace in (corpus() / LARGE, ROOT / "sample_traces" / "one_gpu/loop/rank0.json.gz"):
        if trace.exists():
            return trace
    raise FileNotFoundError("no trace to measure: set TRACELENS_CORPUS or give --trace")


def rounds(commands: Mapping[str, Command], runs: int, *, memory: bool) -> dict[str, list[measure.Usage]]:
    """Run all commands in turn, `runs` times after one round that does not count."""
    usages: dict[str, list[measure.Usage]] = {name: [] for name in commands}
    for turn in range(runs + 1):
        for name, command in commands.items():
            usage = measure.run(command, memory=memory)
            if turn:
                usages[name].append(usage)
    return usages


def seconds(usages: Sequence[measure.Usage]) -> float:
    """The median wall time."""
    return statistics.median(usage.wall_s for usage in usages)


def table(usages: Mapping[str, Sequence[measure.Usage]]) -> None:
    """Print one line per command: times in seconds, the largest memory of all runs in MB (10**6 bytes).

    The smallest maxrss is this program's own: the kernel counts what a process had before its exec.
    """
    print(
        f"  {'':<22}{'median s':>9}{'min':>8}{'max':>8}{'sum PSS':>9}{'sum RSS':>9}{'maxrss':>8}{'procs':>7}"
    )
    for name, runs in usages.items():
        walls = [usage.wall_s for usage in runs]
        sizes = [
            max(usage.pss_bytes for usage in runs),
            max(usage.rss_bytes for usage in runs),
            max(usage.maxrss_bytes for usage in runs),
        ]
        cells = "".join(
            f"{size / 1e6:>{width}.0f}" if size else f"{'-':>{width}}"
            for size, width in zip(sizes, (9, 9, 8), strict=True)
        )
        processes = max(usage.processes for usage in runs) or "-"
        times = f"{seconds(runs):>9.3f}{min(walls):>8.3f}{max(walls):>8.3f}"
        print(f"  {name:<22}{times}{cells}{processes:>7}")


def bench_report(trace: Path, runs: int, scratch: Path) -> dict[str, float]:
    """The report of `trace` against the DOM parse of its bytes; returns the ratios."""
    return against_dom([trace], runs, scratch)


def bench_ranks(_trace: Path, runs: int, scratch: Path) -> dict[str, float]:
    """The report of the ranks of a run against the DOM parse of them all; returns the ratios."""
    ranks = sorted((corpus() / RANKS).glob("rank*.json.gz"))
    if not ranks:
        print("  no run of several ranks: set TRACELENS_CORPUS")
        return {}
    return against_dom(ranks, runs, scratch)


def against_dom(traces: Sequence[Path], runs: int, scratch: Path) -> dict[str, float]:
    """One report of all traces against the DOM parses of all of them."""
    commands: dict[str, Command] = {
        "report": [TRACELENS, "report", *traces, "-o", scratch / "report.html"],
        "simdjson DOM process": [sys.executable, "-m", "benchmarks.dom", *traces],
    }
    usages = rounds(commands, runs, memory=True)
    table(usages)
    parses = [json.loads(usage.output) for usage in usages["simdjson DOM process"]]
    cold_s = statistics.median(parse["first_s"] for parse in parses)
    warm_s = statistics.median(parse["median_s"] for parse in parses)
    wall_s = seconds(usages["report"])
    size = parses[0]["bytes"]
    print(f"  {size / 1e6:.1f} MB decompressed; DOM parse alone: first {cold_s:.3f} s, later {warm_s:.3f} s")
    print(f"  report / DOM parse: {wall_s / cold_s:.2f} (first), {wall_s / warm_s:.2f} (later)")
    pss = max(usage.pss_bytes for usage in usages["report"])
    print(f"  report memory (sum PSS) / decompressed bytes: {pss / size:.2f}")
    return {"cold": wall_s / cold_s, "warm": wall_s / warm_s, "pss_per_byte": pss / size}


def bench_diff(_trace: Path, runs: int, scratch: Path) -> dict[str, float]:
    """The comparison of a before/after pair against loading both; returns the ratio."""
    pair = [corpus() / name for name in PAIR]
    if not all(path.is_file() for path in pair):
        print("  no pair of traces: set TRACELENS_CORPUS")
        return {}
    usages = rounds(
        {
            "load and compare": [sys.executable, "-m", "benchmarks.compare", *pair],
            "tracelens diff": [TRACELENS, "diff", *pair, "-o", scratch / "diff.html"],
        },
        runs,
        memory=True,
    )
    table(usages)
    parts = [json.loads(usage.output) for usage in usages["load and compare"]]
    load_s, diff_s = (statistics.median(part[name] for part in parts) for name in ("load_s", "diff_s"))
    print(f"  load both {load_s:.3f} s, compare {diff_s:.3f} s: {1 + diff_s / load_s:.2f} x loading both")
    return {"of_loading": 1 + diff_s / load_s}


def bench_startup(_trace: Path, runs: int, _scratch: Path) -> dict[str, float]:
    """What one pays before any trace is read; returns milliseconds."""
    # -P: the installed package, whatever the current folder holds.
    usages = rounds(
        {
            "python -c pass": [sys.executable, "-P", "-c", "pass"],
            "import tracelens": [sys.executable, "-P", "-c", "import tracelens"],
            "tracelens --help": [TRACELENS, "--help"],
        },
        runs,
        memory=False,
    )
    table(usages)
    bare, package, shown = (1000 * seconds(runs) for runs in usages.values())
    print(f"  above a bare interpreter: import {package - bare:.0f} ms, --help {shown - bare:.0f} ms")
    return {"import_ms": package - bare, "help_ms": shown - bare}


def bench_linearity(trace: Path, runs: int, scratch: Path) -> dict[str, float]:
    """The report of the trace and of the same trace four times as long; returns the ratio of times."""
    # Both are written by the same compressor: inflating depends on how the text was deflated.
    traces = {f"{times} x": scratch / f"times{times}.json.gz" for times in (1, TIMES)}
    for times, path in zip((1, TIMES), traces.values(), strict=True):
        repeat.repeat(trace, path, times)
    commands: dict[str, Command] = {
        name: [TRACELENS, "report", path, "-o", scratch / "report.html"] for name, path in traces.items()
    }
    usages = rounds(commands, runs, memory=True)
    table(usages)
    once, more = usages.values()
    time_ratio = seconds(more) / seconds(once)
    pss_ratio = max(u.pss_bytes for u in more) / max(u.pss_bytes for u in once)
    print(f"  {TIMES} x the events: {time_ratio:.2f} x the time, {pss_ratio:.2f} x the memory (sum PSS)")
    return {"time_ratio": time_ratio, "pss_ratio": pss_ratio}


PARTS: dict[str, Callable[[Path, int, Path], dict[str, float]]] = {
    "report": bench_report,
    "ranks": bench_ranks,
    "diff": bench_diff,
    "startup": bench_startup,
    "linearity": bench_linearity,
}


def options() -> argparse.Namespace:
    """The command line."""
    arguments = argparse.ArgumentParser(prog="benchmarks.bench", description=__doc__)
    arguments.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default all")
    arguments.add_argument("--runs", type=int, default=5, help="measured rounds (default 5)")
    arguments.add_argument("--trace", type=Path, help="a Kineto trace, .json or .json.gz (default: corpus)")
    arguments.add_argument("--json", type=Path, help="also write the ratios to this file")
    parsed = arguments.parse_args()
    if unknown := sorted(set(parsed.parts) - set(PARTS)):
        arguments.error(f"unknown part {', '.join(unknown)}; parts are {', '.join(PARTS)}")
    if parsed.runs < 1:
        arguments.error("--runs must be at least 1")
    if parsed.trace and not parsed.trace.is_file():
        arguments.error(f"{parsed.trace} is not a file")
    if not TRACELENS.exists():
        arguments.error("tracelens is not installed beside this interpreter: make bench")
    return parsed


def main() -> int:
    """Run the chosen parts and print their tables."""
    chosen = options()
    try:
        trace: Path = chosen.trace or large_trace()
        print(f"Python {platform.python_version()}, {os.cpu_count()} cores; trace {trace.name}")
        found = {}
        with tempfile.TemporaryDirectory() as scratch:
            for name in chosen.parts or PARTS:
                print(f"\n{name}, {chosen.runs} runs; memory in MB")
                found[name] = PARTS[name](trace, chosen.runs, Path(scratch))
    except (OSError, ValueError, measure.CommandFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
