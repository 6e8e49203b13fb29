"""Run the injected losses and print what is missed: `python -m tests.conformance.losses [--json] [PART ...]`.

Arguments are parts of names of recordings or kinds; a case runs if each argument is part of either.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from dataclasses import asdict

from tests.conformance.losses.cases import RECORDINGS, Excluded, Outcome, outcomes
from tests.conformance.losses.few import FEW_LOST, RUNS
from tests.conformance.losses.harmless import HARMLESS
from tests.conformance.losses.kinds import KINDS


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("parts", nargs="*", metavar="PART")
    options.add_argument("--json", action="store_true", help="one JSON object a case")
    options.add_argument("--all", action="store_true", help="print right cases, too")
    options.add_argument("--harmless", action="store_true", help="changes that must raise nothing")
    options.add_argument("--times", type=int, default=1, help="multiply the seeds of each kind")
    options.add_argument("--recording", action="append", help="as corpus/misc/hta_control.json.gz")
    options.add_argument("--few", action="store_true", help="one to five lost records")
    given = options.parse_args()
    recordings = list(RUNS if given.few else RECORDINGS)
    kinds = list(HARMLESS if given.harmless else FEW_LOST if given.few else KINDS)
    for part in given.parts:
        if any(part in name for name in recordings):
            recordings = [name for name in recordings if part in name]
        else:
            kinds = [name for name in kinds if part in name]
    recordings = given.recording or recordings
    start, results = time.perf_counter(), []
    for result in outcomes(tuple(recordings), tuple(kinds), given.times):
        results.append(result)
        if given.json:
            print(json.dumps(asdict(result)))
        elif isinstance(result, Outcome) and (given.all or not result.right):
            print(_line(result))
    if not given.json:
        print(summary(results))
        print(f"{time.perf_counter() - start:.0f} s")


def _line(result: Outcome) -> str:
    verdict = "right" if result.right else "WRONG"
    head = f"{verdict}: {result.kind} | {result.recording} | seed {result.seed}"
    raised = "\n".join(f"      {text}" for text in result.raised) or "      nothing raised"
    ranks = ", ".join(str(rank) for rank in result.ranks)
    return f"{head}\n    rank {ranks}: {result.says}; right: {', '.join(result.reasons)}\n{raised}" + (
        f"\n      error: {result.error}" if result.error else ""
    )


def summary(results: list[Outcome | Excluded]) -> str:
    """A table: by kind and by recording, right of all."""
    cases = [result for result in results if isinstance(result, Outcome)]
    lines = []
    for key in ("kind", "recording"):
        groups: dict[str, list[Outcome]] = defaultdict(list)
        for case in cases:
            groups[getattr(case, key)].append(case)
        lines += [
            f"{sum(case.right for case in group):4} of {len(group):4}  {name}"
            for name, group in sorted(groups.items())
        ]
        lines.append("")
    reasons: dict[str, int] = defaultdict(int)
    for result in results:
        if isinstance(result, Excluded):
            reasons[("undetectable: " if result.undetectable else "absent: ") + result.reason] += 1
    lines += [f"{count:4} left out, {reason}" for reason, count in sorted(reasons.items())]
    right = sum(case.right for case in cases)
    return "\n".join([*lines, f"right: {right} of {len(cases)} ({right / max(1, len(cases)):.1%})"])


if __name__ == "__main__":
    main()
