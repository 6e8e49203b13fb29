"""FLOPs by scope and module add up to what the roofline counts on matrix units."""

import numpy as np

from tests.conformance.corpus import Case
from tracelens.analysis.roofline import costing
from tracelens.trace import Trace, Work


def counted(trace: Trace, work: Work) -> int:
    """FLOPs of all calls that the roofline counts on matrix units."""
    found = costing(trace, work)
    known = np.flatnonzero(found.item >= 0)
    _, first = np.unique(found.call[known], return_index=True)
    costs = [found.items[item].cost for item in found.item[known[first]].tolist()]
    return sum(cost.flops for cost in costs if cost.engine == "matrix")


def test_scopes_add_up_to_the_roofline(case: Case) -> None:
    found = case.result("scopes")
    for rank, trace, work in case.each():
        expected = counted(trace, work)
        for name in found.data:
            table = found[name]
            mine = table[table["rank"] == rank]
            if mine.empty:
                continue
            tops = mine.loc[mine["parent"].isna(), ["matrix_flops", "backward_matrix_flops"]].fillna(0)
            assert tops["matrix_flops"].sum() == expected
            assert (tops["backward_matrix_flops"] <= tops["matrix_flops"]).all()
