"""The collectives of a run against the bounds of their links, and the run's own latency and bandwidth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from tracelens.analysis.comm import AlignedRun, MatchedCollective, fit
from tracelens.planner.bounds.pairs import above
from tracelens.planner.bounds.placement import LinkBound, link_bound, place
from tracelens.planner.bounds.platform import Platform
from tracelens.table import Skip


class Limited(NamedTuple):
    """A collective with its bound."""

    collective: MatchedCollective
    bound: LinkBound


def limited(
    aligned: AlignedRun, node_of: Mapping[int, int], platform: Platform
) -> tuple[list[Limited], list[Skip]]:
    """The collectives with a bound, and why others have none."""
    known, unknown = [], dict[tuple[str, str], int]()
    for collective in aligned.collectives:
        bound = link_bound(collective, node_of, platform)
        if bound is None:
            key = (collective.collective, collective.group)
            unknown[key] = unknown.get(key, 0) + 1
        else:
            known.append(Limited(collective, bound))
    reason = "no message size is recorded, or nothing crosses a link"
    skips = [Skip(f"bound of {count} {name} in {group}", reason) for (name, group), count in unknown.items()]
    return known, skips


def transfer_rows(known: Sequence[Limited], node_of: Mapping[int, int]) -> list[dict[str, Any]]:
    """Rows of TRANSFERS, most time above the bound first."""
    same: dict[tuple[str, str, int], list[Limited]] = {}
    for item in known:
        size = item.collective.bytes
        key = (item.collective.collective, item.collective.group, 1 << size.bit_length() - 1)
        same.setdefault(key, []).append(item)
    rows = [_row(key, of_key, node_of) for key, of_key in same.items()]
    return sorted(rows, key=lambda row: -row["excess_ns"])


def _row(key: tuple[str, str, int], same: list[Limited], node_of: Mapping[int, int]) -> dict[str, Any]:
    name, group, bucket = key
    where = place(same[0].collective, node_of)
    latencies = [item.collective.latency_ns for item in same]
    bounds_ns = [item.bound.transfer_s * 1e9 for item in same]
    achieved = sum(bounds_ns) / max(sum(latencies), 1)
    return {
        "collective": name,
        "group": group,
        "from_bytes": bucket,
        "count": len(same),
        "ranks": where.ranks,
        "nodes": where.nodes,
        "latency_ns": float(median(latencies)),
        "bound_ns": median(bounds_ns),
        "achieved": achieved,
        "excess_ns": sum(latencies) - sum(bounds_ns),
        "limited_by": max(same, key=lambda item: item.collective.bytes).bound.limit,
        "note": above(achieved),
    }


def fit_rows(known: Sequence[Limited]) -> tuple[list[dict[str, Any]], list[Skip]]:
    """Rows of FITTED, and why a collective has none."""
    lines, skips = fit([item.collective for item in known])
    largest: dict[tuple[str, str], Limited] = {}
    for item in known:
        key = (item.collective.collective, item.collective.group)
        if key not in largest or item.collective.bytes > largest[key].collective.bytes:
            largest[key] = item
    rows = []
    for line in lines:
        name, group, beta = (line[column][0] for column in ("collective", "group", "beta_bytes_per_s"))
        item = largest[name, group]
        allowed = item.collective.bytes / item.bound.transfer_s
        rows.append(
            {
                "collective": name,
                "group": group,
                "collectives": line["collectives"][0],
                "alpha_ns": line["alpha_ns"][0],
                "beta_bytes_per_s": beta,
                "link_bytes_per_s": allowed,
                "achieved": beta / allowed,
                "note": above(beta / allowed),
            }
        )
    return rows, skips
