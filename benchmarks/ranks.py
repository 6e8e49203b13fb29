"""A run of many short ranks, made from a recorded one: copies of its ranks side by side, each cut short.

Run as `python -m benchmarks.ranks RUN OUT [--ranks 64] [--events 3500]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.dom import read

EVENTS = 3500
"""On the host, of each rank: with GPU work some 4,000 that last."""
GROUP = "Process Group Ranks"
ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"}


def many(traces: Sequence[Path], out: Path, ranks: int, events: int) -> None:
    """Write `rank0.json` and so on to the folder `out`.

    Args:
        traces: of all ranks of one run, in order of rank.
        out: made if it is not there.
        ranks: how many to write; a copy of the run has the next ranks and process groups of its own.
        events: on the host, that each of them keeps: the first ones.
    """
    out.mkdir(parents=True, exist_ok=True)
    for rank, trace in enumerate(traces):
        document = cut(orjson.loads(read(trace)), events)
        for number in range(rank, ranks, len(traces)):
            renumbered(document, number - rank, number, ranks)
            (out / f"rank{number}.json").write_bytes(orjson.dumps(document))
            renumbered(document, rank - number, rank, ranks)


def cut(document: dict[str, Any], events: int) -> dict[str, Any]:
    """The trace with its first events on the host, and what they launch; annotations end where these do."""
    host = [event for event in document["traceEvents"] if event.get("cat") not in ON_GPU]
    timed = sorted(event["ts"] for event in host if event.get("ph") == "X" and event.get("cat"))
    end = timed[min(events, len(timed) - 1)]
    host = [event for event in host if event.get("ts", 0) < end]
    for event in host:
        if event.get("cat") == "user_annotation":
            event["dur"] = min(event["dur"], end - event["ts"])
    launched = {correlation(event) for event in host} - {None}
    work = [event for event in document["traceEvents"] if event.get("cat") in ON_GPU]
    return {**document, "traceEvents": host + [event for event in work if correlation(event) in launched]}


def correlation(event: dict[str, Any]) -> object:
    """What joins GPU work and its launch call."""
    return event.get("args", {}).get("correlation")


def renumbered(document: dict[str, Any], shift: int, rank: int, ranks: int) -> None:
    """Make it the trace of this rank, with the ranks of its process groups moved by `shift`."""
    info = document["distributedInfo"]
    info |= {"rank": rank, "world_size": ranks}
    for group in info.get("pg_config", ()):
        if isinstance(group.get("ranks"), list):
            group["ranks"] = [member + shift for member in group["ranks"]]
    for event in document["traceEvents"]:
        arguments = event.get("args")
        if arguments and (members := arguments.get(GROUP)):
            arguments[GROUP] = str([member + shift for member in orjson.loads(members)])


def main() -> None:
    """Make the run from the command line."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("run", type=Path)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--ranks", type=int, default=64)
    arguments.add_argument("--events", type=int, default=EVENTS)
    options = arguments.parse_args()
    many(sorted(options.run.glob("rank*.json*")), options.out, options.ranks, options.events)


if __name__ == "__main__":
    main()
