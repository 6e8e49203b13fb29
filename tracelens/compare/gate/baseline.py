"""Stored baselines: the metrics of the last runs of a program, in one JSON file without any trace.

    schema   "tracelens.baseline/1"
    runs     oldest first, each: commit, added (UTC, ISO 8601), name, version (of tracelens), scope,
             setup, trust, lacking, ranks, steps, parts, and metrics: name to unit and values (a row a rank)

The runs of the newest commit are the base; older ones tell how much runs differ. Runs of another setup
than the newest one's tell nothing about it and are left out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from tracelens.analysis.common import Setup
from tracelens.compare.gate.runs import Side
from tracelens.compare.gate.samples import Doubt, Samples
from tracelens.errors import TracelensError

SCHEMA = "tracelens.baseline/1"
KEEP = 20
"""Runs that a baseline keeps by default."""

_MARK = b'{"schema":"tracelens.baseline/'
_ALIKE = ("device", "ranks", "model", "layout", "dtype", "tokens", "software")


class StoredRun(NamedTuple):
    """A run of a baseline."""

    samples: Samples
    commit: str  # "" if unknown
    added: str


def add_to_baseline(path: str, runs: Sequence[Samples], commit: str, keep: int = KEEP) -> tuple[bytes, int]:
    """A baseline with these runs as its newest.

    Args:
        path: of the baseline so far, if there is one.
        runs: to add.
        commit: their version of the program, "" if unknown.
        keep: the most runs to keep.

    Returns:
        the new content of the file, and how many runs it has.

    Raises:
        TracelensError: the file is no baseline, or `keep` is no number of runs.
    """
    if keep < 1:
        raise TracelensError(f"--keep {keep}: a baseline keeps at least one run")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    stored = list(read_baseline(path) or ()) if os.path.exists(path) else []
    if os.path.exists(path) and not stored:
        raise TracelensError(f"{path}: exists and is not a baseline; name another file, or remove it")
    stored = [*stored, *(StoredRun(run, commit, now) for run in runs)][-keep:]
    content = {"schema": SCHEMA, "runs": [_document(run) for run in stored]}
    return orjson.dumps(content) + b"\n", len(stored)


def _document(run: StoredRun) -> dict[str, Any]:
    samples = run.samples
    doubts: dict[str, list[dict[str, str]]] = {}
    for doubt in samples.doubts:
        doubts.setdefault(str(doubt.rank), []).append({"doubt": doubt.name, "evidence": doubt.evidence})
    return {
        "commit": run.commit,
        "added": run.added,
        "name": samples.name,
        "version": samples.version,
        "scope": samples.scope,
        "setup": samples.setup.document(),
        "trust": {"complete": not doubts, "doubts": doubts},
        "lacking": [list(pair) for pair in samples.lacking],
        "ranks": list(samples.ranks),
        "steps": list(samples.steps),
        "parts": list(samples.parts),
        "metrics": {
            name: {
                "unit": samples.units[name],
                "values": [[None if np.isnan(value) else value for value in row] for row in rows.tolist()],
            }
            for name, rows in samples.values.items()
        },
    }


def read_baseline(path: str) -> tuple[StoredRun, ...] | None:
    """The runs of a baseline, oldest first; None if the file is something else.

    Raises:
        TracelensError: a baseline that is damaged.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(len(_MARK))
            if head != _MARK:
                return None
            document = orjson.loads(head + file.read())
        return tuple(_read_run(run, path) for run in document["runs"]) or None
    except OSError:
        return None  # reading it as a trace reports the error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "create it again: tracelens gate baseline add RUN... -o FILE"
        raise TracelensError(f"{path}: a damaged baseline ({error}); {hint}") from None


def _read_run(run: Any, path: str) -> StoredRun:
    metrics = run["metrics"]
    shape = len(run["ranks"])
    values = {name: np.array(metric["values"], dtype=float) for name, metric in metrics.items()}
    if not values or any(rows.ndim != 2 or len(rows) != shape for rows in values.values()):
        raise ValueError("a metric must have one row per rank")
    doubts = tuple(
        Doubt(int(rank), str(row["doubt"]), str(row["evidence"]))
        for rank, rows in run["trust"]["doubts"].items()
        for row in rows
    )
    samples = Samples(
        f"{path}: {run['name']}",
        tuple(map(int, run["ranks"])),
        tuple(map(str, run["steps"])),
        values,
        {name: str(metric["unit"]) for name, metric in metrics.items()},
        str(run["version"]),
        str(run["scope"]),
        tuple((str(subject), str(reason)) for subject, reason in run["lacking"]),
        doubts,
        Setup.read(run["setup"]),
        tuple(map(str, run["parts"])),
    )
    return StoredRun(samples, str(run["commit"]), str(run["added"]))


def baseline_side(runs: Sequence[StoredRun], path: str) -> Side:
    """A baseline as a side: the runs of the newest commit, those of older commits as their history."""
    newest = runs[-1].samples.setup
    alike = [run for run in runs if _alike(run.samples.setup, newest)]
    groups = [tuple(run.samples for run in group) for _, group in groupby(alike, key=lambda run: run.commit)]
    name = Path(path).name if len(groups[-1]) == 1 else f"{Path(path).name} ({len(groups[-1])} runs)"
    return Side(groups[-1], tuple(groups[:-1]), name)


def _alike(first: Setup, second: Setup) -> bool:
    return all(getattr(first, aspect) == getattr(second, aspect) for aspect in _ALIKE)
