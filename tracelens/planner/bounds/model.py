"""The speed of light of a platform, as a result."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import Any

from tracelens.planner.bounds import challenge
from tracelens.planner.bounds.all_reduce import SIZES, algorithms, fastest
from tracelens.planner.bounds.operations import Bound, Operation, bound
from tracelens.planner.bounds.platform import Platform
from tracelens.planner.bounds.tables import TABLES
from tracelens.registry import purpose
from tracelens.table import Result, Skip
from tracelens.units import size_text


def bounds(platform: Platform, operations: Sequence[Operation] = ()) -> Result:
    """How fast can collectives, and the GEMMs next to them, be at most on this machine?

    Args:
        platform: nodes and GPUs.
        operations: of one node; by default those of the AMD Developer Challenge 2025.

    Returns:
        tables `all_to_all`, `gemms` and `geometric_means` of the operations, `published` times of the
        challenge, `all_reduce`, `algorithms` and `crossovers` of all-reduces on one node and on all, and
        `assumptions`.

    Raises:
        TracelensError: a shape that the GPUs cannot share, or an element type without a GEMM rate.
    """
    is_challenge = not operations
    skips = []
    if is_challenge and platform.gpus_per_node != challenge.RANKS:
        reason = f"its problems are for {challenge.RANKS} GPUs of a node, not {platform.gpus_per_node}"
        skips.append(Skip("AMD Developer Challenge 2025", f"{reason}: pass shapes"))
    else:
        operations = operations or challenge.operations()
    limits = [(operation, bound(operation, platform)) for operation in operations]
    means = _means(limits)
    rows = {
        "all_to_all": [_row(*limit) for limit in limits if not limit[0].flops],
        "gemms": [_row(*limit) for limit in limits if limit[0].flops],
        "geometric_means": means,
        "published": _published(means) if is_challenge and platform.device.name == challenge.DEVICE else [],
        **_all_reduce(platform),
        "assumptions": _assumed(platform, operations),
    }
    tables = {
        name: schema.from_rows({column: row[column] for column in schema.names} for row in rows[name])
        for name, schema in TABLES.items()
        if rows.get(name)
    }
    return Result(
        "bounds",
        "Speed of light",
        tables,
        doc=purpose(bounds),
        skips=tuple(skips),
        meta={
            "device": platform.device.name,
            "nodes": platform.nodes,
            "gpus_per_node": platform.gpus_per_node,
        },
        command="tracelens project bounds",
    )


def _nanoseconds(limit: Bound) -> dict[str, Any]:
    """The columns of a bound."""
    return {
        "gemm_ns": limit.gemm * 1e9,
        "memory_ns": limit.memory * 1e9,
        "link_ns": limit.links * 1e9,
        "overlapped_ns": limit.overlapped * 1e9,
        "serial_ns": limit.serial * 1e9,
        "limited_by": limit.limit,
    }


def _row(operation: Operation, limit: Bound) -> dict[str, Any]:
    return {
        "operation": operation.name,
        **operation.sizes,
        "dtype": operation.dtype,
        **_nanoseconds(limit),
        "flops": float(operation.flops),
        "memory_bytes": float(operation.memory_bytes),
        "message_bytes": float(max(message.size for message in operation.messages)),
    }


def _means(limits: Sequence[tuple[Operation, Bound]]) -> list[dict[str, Any]]:
    """Geometric means over the shapes of each operation."""
    of_name: dict[str, list[Bound]] = {}
    for operation, limit in limits:
        of_name.setdefault(operation.name, []).append(limit)
    return [
        {
            "operation": name,
            "shapes": len(same),
            "overlapped_ns": _geometric_mean([limit.overlapped for limit in same]) * 1e9,
            "serial_ns": _geometric_mean([limit.serial for limit in same]) * 1e9,
        }
        for name, same in of_name.items()
    ]


def _geometric_mean(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def _published(means: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    of_name = {row["operation"]: row["overlapped_ns"] for row in means}
    return [
        {
            "operation": line.operation,
            "implementation": line.implementation,
            "dur_ns": line.dur_ns,
            "bound_ns": of_name[line.operation],
            "achieved": of_name[line.operation] / line.dur_ns,
            "note": line.source,
        }
        for line in challenge.PUBLISHED
        if line.operation in of_name
    ]


def _all_reduce(platform: Platform) -> dict[str, list[dict[str, Any]]]:
    """Rows of the three tables of all-reduces, on one node and on all."""
    by_size, lines, ranges = [], [], []
    for nodes in sorted({1, platform.nodes}):
        times = algorithms(platform, nodes)
        if not times:
            continue
        for name, line in times.items():
            lines.append(
                {
                    "nodes": nodes,
                    "algorithm": name,
                    "link_steps": line.link_steps,
                    "nic_steps": line.nic_steps,
                    "alpha_ns": line.alpha_s * 1e9,
                    "beta_bytes_per_s": 1 / line.beta_s,
                }
            )
        for size in SIZES:
            ns = {name: line.seconds(size) * 1e9 for name, line in times.items()}
            best = min(ns, key=lambda name: ns[name])
            by_size.append(
                {
                    "nodes": nodes,
                    "gpus": nodes * platform.gpus_per_node,
                    "size": size_text(size),
                    "bytes": size,
                    "ring_ns": ns["ring"],
                    "one_shot_ns": ns["one-shot"],
                    "two_shot_ns": ns["two-shot"],
                    "hierarchical_ns": ns.get("hierarchical", -1.0),
                    "fastest": best,
                    "speedup": ns["ring"] / ns[best],
                }
            )
        for span in fastest(times):
            is_last = span.to_bytes == float("inf")
            sizes = f"from {size_text(span.from_bytes)}" if is_last else f"up to {size_text(span.to_bytes)}"
            ranges.append(
                {
                    "nodes": nodes,
                    "algorithm": span.algorithm,
                    "sizes": sizes if span.from_bytes or not is_last else "all",
                    "from_bytes": round(span.from_bytes),
                    "to_bytes": -1 if is_last else round(span.to_bytes),
                }
            )
    return {"all_reduce": by_size, "algorithms": lines, "crossovers": ranges}


def _assumed(platform: Platform, operations: Sequence[Operation]) -> list[dict[str, Any]]:
    dtypes = tuple(dict.fromkeys(operation.dtype for operation in operations if operation.flops))
    return assumed(platform, dtypes)


def assumed(platform: Platform, dtypes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Rows of the assumptions."""
    return [
        {"name": line.name, "value": line.value, "note": f"{line.meaning}; {line.source}"}
        for line in platform.assumptions(dtypes)
    ]
