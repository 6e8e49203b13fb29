"""The floor: CPU seconds in which pysimdjson's DOM parses the same bytes, in a process of its own.

Run as `python -m benchmarks.dom TRACE... [--parses 3]`; prints one JSON object with seconds and bytes, of
several traces the sums.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from tracelens.read import open_source


def read(trace: Path) -> bytes:
    """The decompressed bytes of a trace."""
    (source,) = open_source(str(trace))
    return b"".join(source.blocks())


def parse_s(data: bytes) -> float:
    """CPU seconds of one parse into a DOM, with a new parser that has no buffers yet."""
    import simdjson

    began = time.process_time()
    simdjson.Parser().parse(data)
    return time.process_time() - began


def main() -> None:
    """Parse each trace several times and print the shortest time."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("traces", type=Path, nargs="+")
    arguments.add_argument("--parses", type=int, default=3)
    options = arguments.parse_args()
    total = {"bytes": 0, "cpu_s": 0.0}
    for trace in options.traces:
        data = read(trace)
        total["bytes"] += len(data)
        total["cpu_s"] += min(parse_s(data) for _ in range(options.parses))
    print(json.dumps(total))


if __name__ == "__main__":
    main()
