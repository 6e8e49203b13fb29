"""Timeline, breakdown and ops against naive Python loops that share no code with them."""

from collections import Counter

import numpy as np
import pandas as pd

from tests.conformance import naive
from tests.conformance.corpus import Case
from tracelens.trace import Trace, Work, gpu_work, steps_of


def test_timeline_from_the_file_itself(small: Case) -> None:
    """The JSON read by the standard library in exact decimals, classified by the corpus's rules."""
    # One rank of a run is enough: the standard library takes seconds for each.
    file = min(small.path.iterdir()) if small.path.is_dir() else small.path
    trace = small.run.traces[0]
    assert not trace.meta.repaired  # the sweep would see the events as they were
    found = small.metrics(trace.meta.rank)
    found.pop("unlinked")  # not in the file, but a matter of matching ids
    assert found == naive.timeline(naive.read_work(file))


def step_of(nodes: pd.DataFrame) -> pd.Series:
    """Name of the step that each node of a breakdown lies in; index and `parent` are node numbers."""
    top = nodes.index.to_numpy().copy()
    parent = nodes["parent"].fillna(-1).to_numpy(int)
    while (parent[top] >= 0).any():
        top = np.where(parent[top] >= 0, parent[top], top)
    return nodes["name"].astype(str).iloc[top].set_axis(nodes.index)


def sweep(trace: Trace, work: Work) -> tuple[Counter[tuple[str, ...]], Counter[tuple[str, ...]]]:
    """Exclusive ns by (step, category) and by (step, kernel name)."""
    steps = steps_of(trace)
    pieces = list(zip(work.start.tolist(), work.end.tolist(), work.kind.tolist(), strict=True))
    categories: Counter[tuple[str, ...]] = Counter()
    kernels: Counter[tuple[str, ...]] = Counter()
    for (row, window), time in naive.owners(pieces, steps.edges.tolist()).items():
        unlinked = work.launch[row] < 0 and work.op[row] < 0
        category = "unlinked" if unlinked else work.categories[work.category[row]]
        categories[steps.labels[window], category] += time
        kernels[steps.labels[window], work.names[work.name[row]]] += time
    return categories, kernels


def test_breakdown_by_a_sweep_over_time(small: Case) -> None:
    for rank, trace, work in small.each():
        table = small.table("breakdown")
        nodes = table[table["rank"] == rank].set_index("node")
        nodes["step"] = step_of(nodes)
        for level, expected in zip(("category", "kernel"), sweep(trace, work), strict=True):
            rows = nodes[(nodes["level"] == level) & (nodes["name"] != "idle")]
            found = rows.groupby(["step", rows["name"].astype(str)])["exclusive_ns"].sum()
            assert found[found > 0].to_dict() == dict(expected)


def test_ops_call_by_call(small: Case) -> None:
    for rank, trace, _ in small.each():
        table = small.table("ops")
        mine = table[table["rank"] == rank]
        expected: dict[str, list[int]] = {}
        for (name, _), times in naive.op_times(trace, gpu_work(trace).event.tolist()).items():
            sums = expected.setdefault(name, [0, 0, 0])
            for place, value in enumerate(times[:3]):
                sums[place] += value
        columns = mine[["count", "dur_ns", "subtree_dur_ns"]].to_numpy().tolist()
        assert dict(zip(mine["name"].astype(str), columns, strict=True)) == expected
