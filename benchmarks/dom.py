"""The floor: how long pysimdjson's DOM takes to parse the same bytes, in a process of its own.

Run as `python -m benchmarks.dom TRACE... [--parses 6]`; prints one JSON object with seconds and bytes,
of several traces the sums.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import time
from pathlib import Path

import simdjson


def read(trace: Path) -> bytes:
    """The decompressed bytes of a .json or .json.gz trace."""
    data = trace.read_bytes()
    return gzip.decompress(data) if trace.suffix == ".gz" else data


def parse_s(data: bytes) -> float:
    """Seconds of one parse into a DOM, with a new parser that has no buffers yet."""
    began = time.perf_counter()
    simdjson.Parser().parse(data)
    return time.perf_counter() - began


def main() -> None:
    """Parse each trace several times and print the times."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("traces", type=Path, nargs="+")
    arguments.add_argument("--parses", type=int, default=6)
    options = arguments.parse_args()
    total = {"bytes": 0, "first_s": 0.0, "median_s": 0.0}
    for trace in options.traces:
        data = read(trace)
        first_s, *rest = [parse_s(data) for _ in range(max(2, options.parses))]
        total["bytes"] += len(data)
        total["first_s"] += first_s
        total["median_s"] += statistics.median(rest)
    print(json.dumps(total))


if __name__ == "__main__":
    main()
