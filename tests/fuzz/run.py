"""`python -m tests.fuzz --mutants N --seed S --jobs 2 --keep DIR`: look for mutants that break something."""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz.check import STAGES, Failure, check, read, rotated
from tests.fuzz.minimise import minimise
from tests.fuzz.mutate import mutant
from tests.fuzz.sources import SOURCES

Found = list[tuple[int, Failure]]
_BATCH = 25
_MEMORY = 6 << 30


def main() -> None:
    """Check mutants, print a table of failures, and keep the least of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--mutants", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--source", action="append", help="only mutants of this source; repeat it for more")
    parser.add_argument(
        "--stage", action="append", choices=STAGES, help="only these stages behind the analyzers"
    )
    parser.add_argument("--rotate", action="store_true", help="take each mutant through some stages only")
    parser.add_argument("--keep", type=Path, help="where to write a case of each failure, made small")
    parser.add_argument(
        "--log", type=Path, help="append each failure to this file at once, one JSON line each"
    )
    parser.add_argument("--show", type=int, default=0, help="print so many lines of each failure")
    chosen = parser.parse_args()
    names = [name for name in chosen.source or SOURCES if not SOURCES[name].missing]
    for name in set(chosen.source or SOURCES) - set(names):
        print(f"left out: {name}: {SOURCES[name].missing}")
    begin = time.monotonic()
    numbers = range(chosen.first, chosen.first + chosen.mutants)
    batches = [numbers[start : start + _BATCH] for start in range(0, len(numbers), _BATCH)]
    found: Found = []
    refused: Counter[str] = Counter()
    for name in names:
        read(name)  # once, in what the workers are copies of
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("fork"), initializer=_bound) as pool:
        stages = () if chosen.rotate else tuple(chosen.stage or STAGES)
        jobs = [pool.submit(_batch, list(batch), chosen.seed, names, stages) for batch in batches]
        for job in as_completed(jobs):
            failures, refusals = job.result()
            found += failures
            refused += refusals
            if chosen.log:
                with chosen.log.open("a") as log:
                    for number, failure in failures:
                        log.write(json.dumps([chosen.seed, number, *failure.key, failure.detail]) + "\n")
    print(
        f"{len(numbers)} mutants of {len(names)} traces, seed {chosen.seed}, {time.monotonic() - begin:.0f} s"
    )
    print("refused: " + ", ".join(f"{stage} {count}" for stage, count in refused.most_common()))
    groups: dict[tuple[str, str, str], list[tuple[int, Failure]]] = defaultdict(list)
    for number, failure in found:
        groups[failure.key].append((number, failure))
    for key, some in sorted(groups.items(), key=lambda item: -len(item[1])):
        print(f"{len(some):6}  {' | '.join(key)}   e.g. {', '.join(str(number) for number, _ in some[:4])}")
        if chosen.show:
            print("\n".join(some[0][1].detail.splitlines()[-chosen.show :]))
        if chosen.keep:
            _keep(chosen.keep, chosen.seed, some[0][0], names, key)
    raise SystemExit(bool(groups))


def _bound() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


def _batch(
    numbers: Sequence[int], seed: int, names: Sequence[str], stages: Sequence[str]
) -> tuple[Found, Counter[str]]:
    found: Found = []
    refused: Counter[str] = Counter()
    for number in numbers:
        one = mutant(seed, number, names)
        chosen = stages or rotated(random.Random(seed * 7_368_787 + number))
        checker = check(one.documents(), one.source, chosen)
        found += [(number, failure) for failure in checker.failures]
        refused.update(text.partition(":")[0] for text in checker.refused)
    return found, refused


def _keep(folder: Path, seed: int, number: int, names: Sequence[str], key: tuple[str, str, str]) -> None:
    smaller, traces = minimise(mutant(seed, number, names), key)
    folder.mkdir(parents=True, exist_ok=True)
    stem = "_".join("".join(c if c.isalnum() else "-" for c in part)[:40] for part in key)
    case = {
        "seed": seed,
        "number": number,
        "source": smaller.source,
        "steps": smaller.steps,
        "key": key,
        "traces": traces,
    }
    (folder / f"{stem}.json").write_text(json.dumps(case, indent=1))
