"""What commands cost, against budgets: CPU seconds, peak memory and imported modules of process trees.

    python -m benchmarks.bench [check] [CASE...]     measure, and fail where a budget is exceeded
    python -m benchmarks.bench budgets --write       make what is measured now the budgets

CPU seconds are told in those of a yardstick (see cases.py) that runs right before and after, so that a slow
spell of the machine meets both; of several runs the median counts, of memory the median of the peaks. What is
over its budget (see budgets.py) is measured once more before it fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from benchmarks import budgets, measure
from benchmarks.budgets import Figure
from benchmarks.cases import TRACELENS, UNITS, Case, cases

RUNS = 5
ROUND_S = 0.5
"""CPU seconds that a round takes of a command at least: a short one needs more runs."""
MB = 1e6


class Bench:
    """Measures cases in rounds.

    Attributes:
        cpu_s: of each case, the least of all its runs.
    """

    def __init__(self, scratch: Path, runs: int) -> None:
        self.scratch, self.runs = scratch, runs
        self.cpu_s: dict[str, float] = {}

    def figures(self, chosen: Sequence[Case]) -> list[Figure]:
        """All measures of these cases."""
        commands: dict[str, list[str | Path]] = {}
        modules: dict[str, measure.Modules] = {}
        for case in chosen:
            if case.make is not None:
                case.make()
            words = case.words(self.scratch)
            # Also the round that does not count: files are in the cache and modules compiled afterwards.
            modules[case.name] = measure.modules(words)
            commands[case.name] = [sys.executable, *words]
        usages: dict[str, list[measure.Usage]] = {case.name: [] for case in chosen}
        ratios: dict[str, list[float]] = {case.name: [] for case in chosen}
        for _ in range(self.runs):
            for case in chosen:
                before_s = case.yardstick_s()
                runs: list[measure.Usage] = []
                while sum(usage.cpu_s for usage in runs) < ROUND_S:
                    runs.append(measure.run(commands[case.name]))
                mean_s = statistics.fmean(usage.cpu_s for usage in runs)
                ratios[case.name].append(2 * mean_s / (before_s + case.yardstick_s()))
                usages[case.name] += runs
        found = []
        for case in chosen:
            cpu_s = min(usage.cpu_s for usage in usages[case.name])
            self.cpu_s[case.name] = min(cpu_s, self.cpu_s.get(case.name, cpu_s))
            pss_bytes = statistics.median(usage.pss_bytes for usage in usages[case.name])
            found += [
                Figure(case.name, "cpu", statistics.median(ratios[case.name]), UNITS[case.yardstick]),
                Figure(case.name, "memory", pss_bytes / MB, "MB"),
                Figure(case.name, "modules", modules[case.name].all, "modules"),
                Figure(case.name, "own", modules[case.name].own, "modules"),
            ]
        return found


def check(bench: Bench, chosen: Sequence[Case], known: Collection[str]) -> tuple[bool, list[Figure]]:
    """Print all figures next to their budgets; returns whether all keep to them, and the figures."""
    limits = budgets.read()

    def again(names: Collection[str]) -> list[Figure]:
        print(f"over budget, measured once more: {', '.join(sorted(names))}", flush=True)
        return bench.figures([case for case in chosen if case.name in names])

    judgements = budgets.settled(bench.figures(chosen), limits, again)
    print(budgets.table(judgements, bench.cpu_s))
    print(
        "cpu: in imports of numpy, of large traces in DOM parses of the same bytes. memory: MB. "
        "modules: imported by the first process; own: of tracelens.\n"
        f"! more than {budgets.TOLERANCE:.0%} over its budget  v as much below  ? no budget"
    )
    gone = [f"{name} is no case any more" for name in budgets.unmeasured(limits, known)]
    for line in (*budgets.told(judgements), *gone):
        print(line)
    return not gone and not any(item.fails for item in judgements), [item.figure for item in judgements]


def options(known: Sequence[Case]) -> argparse.Namespace:
    """The command line."""
    arguments = argparse.ArgumentParser(
        prog="benchmarks.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [case.name for case in known]
    arguments.add_argument(
        "words", nargs="*", metavar="check|budgets|CASE", help=f"cases: {', '.join(names)}"
    )
    arguments.add_argument(
        "--quick", action="store_true", help="only the cases of sample traces that take a minute"
    )
    arguments.add_argument("--runs", type=int, default=RUNS, help=f"measured rounds (default {RUNS})")
    arguments.add_argument("--write", action="store_true", help="with budgets: write them")
    arguments.add_argument("--json", type=Path, help="also write the figures to this file")
    parsed = arguments.parse_intermixed_args()
    parsed.verb = parsed.words.pop(0) if parsed.words[:1] in (["check"], ["budgets"]) else "check"
    if unknown := sorted(set(parsed.words) - {*names}):
        arguments.error(f"unknown case {', '.join(unknown)}; cases are {', '.join(names)}")
    if parsed.runs < 1:
        arguments.error("--runs must be at least 1")
    if parsed.write and parsed.verb != "budgets":
        arguments.error("--write is for budgets")
    if not TRACELENS.exists():
        arguments.error("tracelens is not installed beside this interpreter: make bench")
    return parsed


def main() -> int:
    """Measure the chosen cases; 1 where a budget is exceeded or a command fails."""
    known = cases()
    parsed = options(known)
    chosen = [
        case
        for case in known
        if (case.name in parsed.words or not parsed.words) and (case.quick or not parsed.quick)
    ]
    left_out = [case.name for case in chosen if case.missing]
    chosen = [case for case in chosen if not case.missing]
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {parsed.runs} runs", flush=True)
    if left_out:
        print(f"left out without the corpus (TRACELENS_CORPUS): {', '.join(left_out)}", flush=True)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            bench, kept = Bench(Path(scratch), parsed.runs), True
            if parsed.verb == "check":
                kept, figures = check(bench, chosen, [case.name for case in known])
            else:
                figures = bench.figures(chosen)
                print(budgets.table(budgets.judged(figures, budgets.read()), bench.cpu_s))
    except (OSError, ValueError, measure.CommandFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if parsed.write:
        budgets.write(figures, [case.name for case in known])
        print(f"wrote {budgets.FILE}")
    if parsed.json:
        entries = [vars(figure) for figure in figures]
        parsed.json.write_text(json.dumps({"figures": entries, "cpu_s": bench.cpu_s}, indent=2) + "\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
