"""How often the gate raises a false alarm, and which slowdown it finds: the tables of docs/gate.md.

    python -m benchmarks.gate_power            # 2000 trials a cell, an hour
    python -m benchmarks.gate_power --trials 200
    python -m benchmarks.gate_power --same --trials 2084    # 50,000 gates of unchanged programs

Runs are drawn with the noise of repeated recordings of one program: GPU work with 0.03 % and 0.12 % between
runs; without the profiler 0.1 % and twice that; in traces 1.6 % between runs and 1 % between the steps of a
run; and of a program that waits for its host, 10 % between runs and 8 % inside. The rule is the built-in one
of the metric at the default confidence, decided at the resolution of the runs.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.compare.gate import Samples, Side, default_rules, gate


class Noise(NamedTuple):
    """Of a metric in the runs of one program."""

    metric: str
    between: float  # σ of runs
    within: float  # σ inside a run
    values: int  # a run
    waiting: float  # share of the step in which the GPU computes nothing


NOISE = {
    "GPU work, 0.03%": Noise("computation.time", 0.0003, 0.0004, 3, 0.1),
    "GPU work, 0.12%": Noise("computation.time", 0.0012, 0.0004, 3, 0.1),
    "pace, 0.1%": Noise("step.pace", 0.001, 0.0005, 2, 0.1),
    "pace, 0.2%": Noise("step.pace", 0.002, 0.001, 2, 0.1),
    "traces, 1.6%": Noise("step.time", 0.016, 0.01, 4, 0.1),
    "host-bound pace, 10%": Noise("step.pace", 0.1, 0.08, 2, 0.9),
}
RUNS = ((1, 1), (2, 2), (3, 3), (6, 1))
SLOWER = (0.0, 0.01, 0.02, 0.05, 0.08, 0.2)


def side(rng: np.random.Generator, noise: Noise, runs: int, slower: float = 0.0) -> Side:
    """Recordings of one program with this noise."""
    metric, between, within, count, waiting = noise
    recorded = []
    for number in range(runs):
        mean = 80e6 * (1 + slower) * np.exp(rng.normal(0, between))
        values = mean * np.exp(rng.normal(0, within, (1, count)))
        metrics = {"computation.time": np.full((1, count), 80e6 * (1 - waiting)), metric: values}
        units = dict.fromkeys(metrics, "ns")
        numbers = tuple(map(str, range(count)))
        recorded.append(Samples(f"run {number}", (0,), numbers, metrics, units, parts=numbers))
    return Side(tuple(recorded))


def shares(noise: Noise, runs: tuple[int, int], slower: float, trials: int, seed: int = 0) -> Counter[str]:
    """How often each verdict is given."""
    rng = np.random.default_rng(seed)
    rule = [rule for rule in default_rules() if rule.metric == noise.metric]
    verdicts = (
        gate(side(rng, noise, runs[0]), side(rng, noise, runs[1], slower), rule, advise=False).verdict
        for _ in range(trials)
    )
    return Counter(verdicts)


def table(trials: int, slowdowns: Sequence[float]) -> Iterator[str]:
    """Markdown: pass / fail / inconclusive in per cent."""
    yield f"| noise | runs | {' | '.join(f'+{slower:.0%}' if slower else 'same' for slower in slowdowns)} |"
    yield f"|---|---|{'---|' * len(slowdowns)}"
    for name, noise in NOISE.items():
        for runs in RUNS:
            cells = []
            for slower in slowdowns:
                count = shares(noise, runs, slower, trials)
                parts = (count[word] / trials for word in ("pass", "fail", "inconclusive"))
                cells.append(" / ".join(f"{100 * part:.3g}" for part in parts))
            yield f"| {name} | {runs[0]} and {runs[1]} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=2000, help="per cell")
    parser.add_argument("--same", action="store_true", help="only of unchanged programs")
    options = parser.parse_args()
    for line in table(options.trials, SLOWER[:1] if options.same else SLOWER):
        print(line, flush=True)


if __name__ == "__main__":
    main()
