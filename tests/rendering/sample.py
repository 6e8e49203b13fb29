"""Hand-built results with nasty names: what renderers are tested on, with no trace and no analyzer."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.table import Coded, Column, Report, Result, Schema, Skip, Summary, Table, Tile

SCRIPT = "<script>window.__pwned=1;alert(1)</script>"
IMAGE = "</script><img src=x onerror=window.__pwned=1>"
FORMULA = "=cmd|' /C calc'!A0"
LONG = (
    "void cutlass::Kernel<" + ", ".join(f"cute::tuple<cute::C<{n}>, int>" for n in range(280)) + ">(Params)"
)
NASTY = (
    SCRIPT,
    IMAGE,
    FORMULA,
    LONG,
    "two\nlines\tand | pipe and `tick` and *star* <b>bold</b> __all__",
    "line\u2028separator & paragraph\u2029 ünïcödé 核心 \u202eright to left",
    '"quoted" \'single\' <a href="https://example.org">link</a> %{x}',
    "\x1b[31mred\x07 bell \ud800 surrogate",
    "",
    "@sum(1)",
)
RANK = Column("rank", "int64", doc="Rank of the process.")
NS = "ns"


def table(title: str, columns: tuple[Column, ...], data: dict[str, Any], **rest: Any) -> Table:
    """A table under a schema of its own."""
    return Schema(title, columns, **rest).table(data)


def result(analyzer: str, title: str, tables: dict[str, Table], **rest: Any) -> Result:
    """A result of tables."""
    return Result(analyzer, title, tables, **rest)


def coded(texts: list[str]) -> Coded:
    """A text column by dictionary."""
    values = list(dict.fromkeys(texts))
    return Coded(np.array([values.index(text) for text in texts], np.int64), values)


def timeline(ranks: int = 2, bins: int = 120) -> Result:
    """One total, computation, exposed and idle row a rank; two streams a rank in the strip."""
    metrics = ("total", "computation", "comm", "exposed_comm", "exposed_memcpy", "idle")
    share = np.array([1, 0.62, 0.21, 0.13, 0.01, 0.24])
    total = 412_345_678 + 1_234_567 * np.arange(ranks)
    fraction = np.tile(share, ranks)
    columns = (
        RANK,
        Column("metric", "category", doc="What the time was spent on."),
        Column("dur_ns", "int64", NS, "Time in all steps."),
        Column("fraction_of_total", "float64", "fraction", "Share of the rank's total."),
    )
    data = {
        "rank": np.repeat(np.arange(ranks), len(metrics)),
        "metric": list(metrics) * ranks,
        "dur_ns": (np.repeat(total, len(metrics)) * fraction).astype(np.int64),
        "fraction_of_total": fraction,
    }
    tables = {
        "timeline": table("GPU time", columns, data, doc="Exposed is what computation does not hide."),
        "strip": strip(ranks, bins),
    }
    skip = Skip("steps", "the trace has no ProfilerStep annotation; call prof.step() in the training loop")
    meta = {"scope": "all", "step_ns": 103_086_419}
    doc = "What the GPUs of each rank were doing."
    return result("timeline", "Timeline", tables, doc=doc, skips=(skip,), meta=meta)


def strip(ranks: int, bins: int) -> Table:
    """Two streams a rank: computation on 7, comm on 20, with copies in between."""
    width = 412_000_000 // max(bins, 1)
    lanes = [(7, "computation"), (20, "comm"), (7, "memcpy"), (20, "memset")]
    rows = [(rank, stream, kind, at) for rank in range(ranks) for stream, kind in lanes for at in range(bins)]
    busy = [0.5 + 0.5 * np.sin(at / 7 + rank + 2 * lanes.index((s, k))) for rank, s, k, at in rows]
    columns = (
        RANK,
        Column("device", "int64"),
        Column("stream", "int64"),
        Column("kind", "category"),
        Column("ts_ns", "int64", NS),
        Column("dur_ns", "int64", NS),
        Column("busy_fraction", "float64", "fraction"),
    )
    data = {
        "rank": np.array([row[0] for row in rows], np.int64),
        "device": np.zeros(len(rows), np.int64),
        "stream": np.array([row[1] for row in rows], np.int64),
        "kind": coded([row[2] for row in rows]),
        "ts_ns": np.array([row[3] * width for row in rows], np.int64),
        "dur_ns": np.full(len(rows), width),
        "busy_fraction": np.array(busy, np.float64),
    }
    return table("Strip", columns, data, detail=True)


def breakdown(kernels: int = 3, names: tuple[str, ...] = NASTY, ranks: int = 1) -> Result:
    """step > category > op > kernel; children add up to their parent exactly."""
    rows: list[list[Any]] = []
    for rank in range(ranks):
        node = len(rows)
        step = [rank, node, -1, "step", "ProfilerStep#3", "", 0]
        rows.append(step)
        for category in ("gemm", "attention", "moe", "collective"):
            top = [rank, len(rows), node, "category", category, "", 0]
            rows.append(top)
            for op in range(4):
                name = f"aten::{category}_{op}" if op else names[len(category) % len(names)]
                parent = [rank, len(rows), top[1], "op", name, "MoEBlock", 0]
                rows.append(parent)
                for index in range(kernels):
                    size = 4_000_000 * (op + 1) // (index + 1) + 1_001 * len(category)
                    leaf = names[(index + op) % len(names)]
                    rows.append([rank, len(rows), parent[1], "kernel", leaf, "", size])
                    for ancestor in (parent, top, step):
                        ancestor[6] += size
    sizes = np.array([row[6] for row in rows], np.int64)
    count = np.array([1 + row[6] // 2_000_000 for row in rows], np.int64)
    columns = (
        RANK,
        Column("node", "int64"),
        Column("parent", "int64"),
        Column("level", "category"),
        Column("name", "str", doc="Name of the step, category, operator or kernel."),
        Column("forward_op", "category"),
        Column("exclusive_ns", "int64", NS, "Time that no other node has."),
        Column("count", "int64", "count"),
        Column("mean_ns", "float64", NS),
        Column("fraction_of_step", "float64", "fraction", "Share of the step."),
    )
    data: dict[str, Any] = {
        name: np.array([row[index] for row in rows], np.int64)
        for index, name in enumerate(("rank", "node", "parent"))
    }
    data |= {
        name: [row[index] for row in rows] for index, name in ((3, "level"), (4, "name"), (5, "forward_op"))
    }
    data |= {
        "exclusive_ns": sizes,
        "count": count,
        "mean_ns": sizes / count,
        "fraction_of_step": sizes / sizes.max(),
    }
    return result(
        "breakdown", "Breakdown", {"breakdown": table("GPU time by cause", columns, data, kind="tree")}
    )


def ranking(analyzer: str, value: str, rows: int = 30, names: tuple[str, ...] = NASTY) -> Result:
    """A flat table of names: what `ops` and `kernels` give."""
    size = 90_000_000 // (np.arange(rows, dtype=np.int64) + 1)
    count = np.arange(1, rows + 1, dtype=np.int64) * 24
    columns = (
        RANK,
        Column("name", "category"),
        Column("category", "category", doc="Kind of work."),
        Column("count", "int64", "count", "Calls."),
        Column(value, "int64", NS, "Time of all calls."),
        Column("mean_ns", "float64", NS),
        Column("read_bytes", "int64", "bytes", "Bytes read.", absent=-1),
        Column("achieved_flops_per_s", "float64", "flops/s"),
        Column("fraction_of_gpu_time", "float64", "fraction"),
        Column("tensor_core", "bool"),
    )
    data = {
        "rank": np.zeros(rows, np.int64),
        "name": [names[i] if i < len(names) else f"aten::op_{i:04d}" for i in range(rows)],
        "category": coded([("gemm", "attention", "elementwise", "moe")[i % 4] for i in range(rows)]),
        "count": count,
        value: size,
        "mean_ns": size / count,
        "read_bytes": np.where(np.arange(rows) % 3 == 0, -1, size * 17),
        "achieved_flops_per_s": size * 7.1e6,
        "fraction_of_gpu_time": size / size.sum(),
        "tensor_core": np.arange(rows) % 2 == 0,
    }
    return result(analyzer, analyzer.capitalize(), {analyzer: table(f"All {analyzer}", columns, data)})


def idle(ranks: int = 2) -> Result:
    """Two causes a rank."""
    columns = (
        RANK,
        Column("cause", "category"),
        Column("count", "int64", "count"),
        Column("dur_ns", "int64", NS),
        Column("fraction_of_idle", "float64", "fraction"),
    )
    data = {
        "rank": np.repeat(np.arange(ranks), 2),
        "cause": ["waits for launch", "waits for sync"] * ranks,
        "count": np.full(2 * ranks, 12_345),
        "dur_ns": np.tile([61_000_000, 37_000_000], ranks),
        "fraction_of_idle": np.tile([0.62, 0.38], ranks),
    }
    return result("idle", "Idle time", {"causes": table("Causes", columns, data)})


def overlap(ranks: int = 2, rows: int = 12) -> Result:
    """Collectives of several groups, and kernels with nasty names that are slower or faster beside them."""
    hidden = np.arange(rows) * 1_000_000
    comm = 1_000_000 * (rows * rows - np.arange(rows))
    columns = (
        RANK,
        Column("group", "category"),
        Column("collective", "category"),
        *(Column(f"{name}_ns", "int64", NS) for name in ("comm", "hidden", "exposed")),
    )
    data = {
        "rank": np.repeat(np.arange(ranks), rows),
        "group": [NASTY[place % len(NASTY)] for place in range(rows)] * ranks,
        "collective": [("all_to_allv", IMAGE)[place % 2] for place in range(rows)] * ranks,
        "comm_ns": np.tile(comm, ranks),
        "hidden_ns": np.tile(hidden, ranks),
        "exposed_ns": np.tile(comm - hidden, ranks),
    }
    slower = (
        RANK,
        Column("name", "category"),
        Column("shapes", "category"),
        Column("overlapped_count", "int64", "count"),
        Column("alone_mean_ns", "float64", NS),
        Column("extra_ns", "int64", NS),
    )
    at = np.arange(rows)
    kernels = {
        "rank": 0 * at,
        "name": ["(all)"] + [NASTY[place % len(NASTY)] for place in range(rows - 1)],
        "shapes": [f"bf16[{place},{SCRIPT}]" for place in range(rows)],
        "overlapped_count": 3 + at,
        "alone_mean_ns": 1e6 + at,
        "extra_ns": 10_000_000 - 1_500_000 * at,
    }
    tables = {
        "overlap": table("Hidden", columns, data),
        "slowdown": table("Slower", slower, kernels),
    }
    return result("overlap", "Overlap", tables)


def launches(points: int = 400) -> Result:
    """A queue that fills and drains."""
    at = np.arange(points)
    queue = (
        RANK,
        Column("ts_ns", "int64", NS),
        Column("depth_max", "int64"),
        Column("depth_mean", "float64"),
    )
    depth = (300 * (1 + np.sin(at / 25))).astype(np.int64)
    histogram = (RANK, Column("bucket", "str"), Column("count", "int64", "count"))
    buckets = ["< 10 µs", "10-100 µs", "0.1-1 ms", "> 1 ms"]
    tables = {
        "latency_histogram": table(
            "Latency",
            histogram,
            {"rank": np.zeros(4, np.int64), "bucket": buckets, "count": [9, 1234, 567, 8]},
        ),
        "queue": table(
            "Queue",
            queue,
            {"rank": 0 * at, "ts_ns": at * 1_000_000, "depth_max": depth, "depth_mean": depth * 0.8},
            detail=True,
        ),
    }
    return result("launches", "Launches", tables)


def roofline(rows: int = 40) -> Result:
    """Ops from memory- to compute-bound with nasty names, a copy over a link, and roofs of two devices."""
    at = np.arange(rows)
    linked = at == 1
    flops = np.where(linked, 0, 10 ** (6 + 6 * at // rows) * (1 + at % 7))
    moved = 10_000_000 + 1000 * at
    dur = 10_000 + 3_000 * (at % 11)
    least = np.where(at % 9 == 8, -1, dur // 3)
    known = least >= 0
    amounts = {
        "count": (Column("count", "int64", "count"), 1 + at % 5),
        "dur_ns": (Column("dur_ns", "int64", NS), dur),
        "efficiency": (
            Column("efficiency", "float64", "ratio", absent=-1),
            np.where(known, least / dur, -1.0),
        ),
        "recoverable_ns": (
            Column("recoverable_ns", "int64", NS, absent=-1),
            np.where(known, dur - least, -1),
        ),
        "flops": (Column("flops", "int64", "flops"), flops),
        "flops_per_s": (Column("flops_per_s", "float64", "flops/s"), flops / dur * 1e9),
        "bytes_per_s": (Column("bytes_per_s", "float64", "bytes/s"), moved / dur * 1e9),
        "intensity": (Column("intensity", "float64", "flops/byte"), flops / moved),
    }
    texts = {
        "name": [NASTY[place % len(NASTY)] for place in range(rows)],
        "shapes": [f"bf16[{place},{SCRIPT}]" for place in range(rows)],
        "dtype": ["bf16" if place % 3 else "fp32" for place in range(rows)],
        "bound": ["host link" if linked[place] else "memory" for place in range(rows)],
        "note": [IMAGE if place % 4 == 0 else "" for place in range(rows)],
    }
    columns = (
        RANK,
        *(Column(name, "category") for name in texts),
        *(column for column, _ in amounts.values()),
    )
    data = {"rank": 0 * at, **texts, **{name: values for name, (_, values) in amounts.items()}}
    roofs = (
        Column("device", "category"),
        Column("role", "category"),
        Column("kind", "category"),
        Column("dtype", "category"),
        Column("flops_per_s", "float64", "flops/s"),
        Column("bytes_per_s", "float64", "bytes/s"),
    )
    peaks = {
        "device": [f"Own {SCRIPT}"] * 3 + ["Other"],
        "role": ["chosen", "chosen", "chosen", "measured"],
        "kind": ["matrix", "vector", "maf", "matrix"],
        "dtype": ["bf16", "fp32", "bf16", "bf16"],
        "flops_per_s": [1e15, 1e14, 7e14, 2e15],
        "bytes_per_s": [4e12, 4e12, 4e12, 8e12],
    }
    tables = {
        "roofline": table("Roofline", columns, data),
        "roofs": table("Roofs", roofs, peaks, detail=True),
    }
    return result("roofline", "Roofline", tables)


def collectives(ranks: int = 4) -> Result:
    """Communication of some ranks, and what they send each other in two groups."""
    rank = np.arange(ranks)
    sync = 1_000_000 * (1 + rank)
    comm = np.full(ranks, 500_000)
    amounts = ("kernel_ns", "comm_ns", "wait_ns")
    columns = (RANK, *(Column(name, "int64", NS) for name in amounts))
    data = {"rank": rank, "kernel_ns": comm + sync, "comm_ns": comm, "wait_ns": sync}
    sender, receiver = (part.ravel() for part in np.meshgrid(rank, rank, indexing="ij"))
    traffic = (
        Column("group", "category"),
        Column("from_rank", "int64"),
        Column("to_rank", "int64"),
        Column("sent_bytes", "int64", "bytes"),
    )
    exchanged = {
        "group": [SCRIPT] * len(sender) + ["small"] * len(sender),
        "from_rank": [*sender, *sender],
        "to_rank": [*receiver, *receiver],
        "sent_bytes": [*((1 + sender) * 2**20), *(0 * sender)],
    }
    tables = {
        "ranks": table("Ranks", columns, data),
        "traffic": table("Traffic", traffic, exchanged, detail=True),
    }
    return result("collectives", "Collectives", tables)


def pipeline(ranks: int = 4, micro_batches: int = 8, chunks: int = 1) -> Result:
    """A stage a rank; forward and backward of each micro-batch and chunk in turn, with a gap behind each."""
    work = micro_batches * chunks
    count = 2 * work
    place = np.tile(np.arange(count), ranks)
    rank = np.repeat(np.arange(ranks), count)
    columns = (
        RANK,
        Column("step", "category"),
        Column("stage", "int64"),
        Column("chunk", "int64"),
        Column("micro_batch", "int64"),
        Column("phase", "category"),
        Column("ts_ns", "int64", NS),
        Column("dur_ns", "int64", NS),
    )
    start = 10**18 + place * 1_000_000 + rank * 400_000
    data = {
        "rank": rank,
        "step": [SCRIPT] * len(rank),
        "stage": rank,
        "chunk": place // 2 % chunks,
        "micro_batch": place // 2 // chunks,
        "phase": ["forward", "backward"] * (len(rank) // 2),
        "ts_ns": start,
        "dur_ns": np.full(len(rank), 700_000),
    }
    waits = {
        "rank": rank,
        "step": [SCRIPT] * len(rank),
        "part": ["ramp", "p2p_wait", "imbalance", "other_idle"] * (len(rank) // 4),
        "ts_ns": start + 700_000,
        "dur_ns": 100_000 + place * 100,
    }
    idle = (*columns[:2], Column("part", "category"), *columns[-2:])
    tables = {
        "spans": table("Spans", columns, data, detail=True),
        "waits": table("Waits", idle, waits, detail=True),
    }
    return result("pipeline", "Pipeline", tables)


def serving(ranks: int = 4, steps: int = 5) -> Result:
    """Ranks of which one prefills while the others decode, some without a request; and an unknown kind."""
    columns = (
        RANK,
        Column("index", "int64", "count"),
        Column("kind", "category"),
        Column("dummy", "bool"),
        Column("tokens", "int64", "count", absent=-1),
        Column("ts_ns", "int64", NS),
        Column("dur_ns", "int64", NS),
    )
    rank, index = np.repeat(np.arange(ranks), steps), np.tile(np.arange(steps), ranks)
    names = ["prefill" if one == at else "decode" for one, at in zip(rank, index, strict=True)]
    names[-1] = SCRIPT
    data = {
        "rank": rank,
        "index": index,
        "kind": names,
        "dummy": (rank + index) % 5 == 4,
        "tokens": np.where(index == 1, -1, 16),
        "ts_ns": 10**18 + 2_000_000 * index,
        "dur_ns": np.full(len(rank), 1_500_000),
    }
    kinds = (
        RANK,
        Column("kind", "category"),
        Column("dur_ns", "int64", NS),
        Column("fraction_of_step_time", "float64", "fraction"),
    )
    shares = {
        "rank": [*range(ranks), 0],
        "kind": ["decode"] * ranks + ["prefill"],
        "dur_ns": [1_000_000] * ranks + [3_000_000],
        "fraction_of_step_time": [0.25] + [1.0] * (ranks - 1) + [0.75],
    }
    tables = {
        "ranks": table("Kinds", kinds, shares),
        "steps": table("Steps", columns, data, detail=True),
    }
    return result("serving", "Serving", tables)


def findings(rows: int = 4, names: tuple[str, ...] = NASTY) -> Result:
    """A ranked table with two columns of sentences, which is read as entries; some cells are not known."""
    at = np.arange(rows)
    saving = 30_000_000 // (at + 1)
    added = saving // np.where(at % 3, 3, 1)
    told = [names[place % len(names)] for place in range(rows)]
    columns = (
        Column("place", "int64", "count"),
        Column("finding", "str"),
        Column("saving_ns", "int64", NS, f"of a step {SCRIPT}"),
        Column("fraction_of_step", "float64", "fraction", "of the step"),
        Column("additional_ns", "int64", NS, "of it, what those above would not save"),
        Column("confidence", "category"),
        Column("evidence", "str", prose=True),
        Column("remedy", "str", prose=True),
        Column("worst_rank", "int64", absent=-1),
        Column("at_ns", "int64", NS, absent=-1),
        Column("show_command", "str", folded=True),
    )
    data = {
        "place": at + 1,
        "finding": told,
        "saving_ns": saving,
        "fraction_of_step": added / 100_000_000,
        "additional_ns": added,
        "confidence": ["high" if place % 2 else "" for place in range(rows)],
        "evidence": [f"rank {place}: {name} " + "again and again " * 12 for place, name in enumerate(told)],
        "remedy": ["" if place == 1 else f"Do without {name}." for place, name in enumerate(told)],
        "worst_rank": np.where(at == 0, -1, at),
        "at_ns": np.where(at == 2, -1, 1_000_000 * (at + 20)),
        "show_command": [
            "" if place == 2 else f"show '{name}' {'x' * 90}" for place, name in enumerate(told)
        ],
    }
    doc = f"Where two are about the same time, it counts once. {SCRIPT}"
    return result(
        "findings", "What to fix", {"findings": table("What to fix", columns, data, doc=doc, kind="entries")}
    )


def moe(ranks: int = 4, layers: int = 3) -> Result:
    """Rank 0 has twice the tokens in layer 1 and rank 1 has not told; two stages, one with a nasty name."""
    layer, rank = (part.ravel() for part in np.meshgrid(np.arange(layers), np.arange(ranks), indexing="ij"))
    ratio = np.where((rank == 0) & (layer == 1), 2.0, np.where(rank == 1, -1.0, 1.0 + 0.001 * layer))
    spread = (
        RANK,
        Column("layer", "int64"),
        Column("tokens", "float64", "count", absent=-1),
        Column("ratio", "float64", "ratio", absent=-1),
    )
    loads = {"rank": rank, "layer": layer, "tokens": np.where(ratio < 0, -1, 512 * ratio), "ratio": ratio}
    phases = ("forward_ns", "backward_ns", "recompute_ns")
    columns = (
        RANK,
        Column("stage", "category"),
        *(Column(phase, "int64", NS) for phase in phases),
        Column("fraction_of_step", "float64", "fraction"),
    )
    number = np.repeat(np.arange(ranks), 2)
    data = {
        "rank": number,
        "stage": ["experts", SCRIPT] * ranks,
        "forward_ns": 1_000_000 * (1 + number),
        "backward_ns": np.full(2 * ranks, 2_000_000),
        "recompute_ns": np.full(2 * ranks, 500_000),
        "fraction_of_step": np.full(2 * ranks, 0.1),
    }
    tables = {
        "stages": table("Stages", columns, data),
        "tokens": table("Tokens", spread, loads, detail=True),
    }
    return result("moe", "MoE", tables)


def diff(rows: int = 5, names: tuple[str, ...] = NASTY, kept: int = 100_000) -> Result:
    """Two runs in three levels: `rows` causes that gain ever less, the last of which loses; stages; a rank.

    Args:
        rows: number of causes.
        names: theirs, and the kernels'.
        kept: ns of each cause in both runs.

    Of the icicle, "gone" is in the base only and "new" in the candidate only; the levels of both add up.
    """
    told = [names[at % len(names)] + (f" {at}" if at >= len(names) else "") for at in range(rows)]
    gained = [-8_000_000 // (at + 1) for at in range(rows - 1)] + [2_000_000]
    base = [abs(ns) + kept for ns in gained]
    cand = [before + ns for before, ns in zip(base, gained, strict=True)]
    whole = sum(base), sum(cand)
    rows_ = [("cause", *row) for row in zip(told, base, cand, strict=True)]
    rows_ += [("stage", "experts", base[0], cand[0]), ("stage", "outside", sum(base[1:]), sum(cand[1:]))]
    rows_ += [("rank", "rank 0", *whole)]
    delta = [row[3] - row[2] for row in rows_]
    columns = (
        Column("level", "category", doc="cause, stage, rank"),
        Column("name", "category"),
        Column("base_ns", "int64", NS, "of a step"),
        Column("cand_ns", "int64", NS, "of a step"),
        Column("delta_ns", "int64", NS),
        Column("fraction_of_difference", "float64", "ratio", "of the whole difference"),
        Column("cause", "category"),
        Column("noise", "category"),
    )
    data = {
        **{columns[at].name: [row[at] for row in rows_] for at in range(4)},
        "delta_ns": delta,
        "fraction_of_difference": [ns / (whole[1] - whole[0]) for ns in delta],
        "cause": ["idle"] * len(rows_),
        "noise": [("beyond", "within", "unknown")[at % 3] for at in range(len(rows_))],
    }
    tables = {
        "waterfall": table("Waterfall", columns, data, doc="Rows of each level add up.", kind="levels"),
        "changes": _changes(rows, names),
        "icicle": _icicle(base, cand),
    }
    meta = {"base_ns": whole[0], "cand_ns": whole[1], "delta_ns": whole[1] - whole[0]}
    rest = {"doc": "What changed?", "meta": meta, "command": "tracelens diff BASE CAND"}
    return result("diff", "What changed", tables, **rest)


def _changes(rows: int, names: tuple[str, ...]) -> Table:
    """Edits as entries, each second one with no place in the candidate."""
    at = np.arange(rows)
    columns = (
        Column("kind", "category"),
        Column("base", "str", prose=True),
        Column("cand", "str", prose=True),
        Column("delta_ns", "int64", NS),
        Column("base_rank", "int64"),
        Column("base_ts_ns", "int64", NS, "of one of them"),
        Column("cand_rank", "int64", absent=-1),
        Column("cand_ts_ns", "int64", NS, "the same in the candidate", absent=-1),
    )
    data = {
        "kind": [("exchanged", "removed")[place % 2] for place in range(rows)],
        "base": [names[place % len(names)] for place in range(rows)],
        "cand": ["" if place % 2 else "aten::_grouped_mm" for place in range(rows)],
        "delta_ns": -90_000 // (at + 1),
        "base_rank": at % 4,
        "base_ts_ns": 551_890_123 + at,
        "cand_rank": np.where(at % 2, -1, 0),
        "cand_ts_ns": np.where(at % 2, -1, 57_000_000),
    }
    return table("What changed", columns, data, doc="Calls are matched by names.", kind="entries")


def _icicle(base: list[int], cand: list[int]) -> Table:
    """Category > op > kernel: a category with many kernels, one of either side only."""
    whole = sum(base), sum(cand)
    rows: list[tuple[int, int, str, str, int, int]] = []

    def add(parent: int, level: str, name: str, before: int, after: int) -> int:
        rows.append((len(rows), parent, level, name, before, after))
        return len(rows) - 1

    ends = (0, whole[0] // 5, whole[0]), (0, whole[1] // 4, whole[1])
    for name, before, after in (
        ("gone", ends[0][1], 0),
        ("new", 0, ends[1][1]),
        (SCRIPT, whole[0] - ends[0][1], whole[1] - ends[1][1]),
    ):
        op = add(add(-1, "category", name, before, after), "op", f"aten::{name}", before, after)
        for kernel in range(len(base)):
            parts = [ns * (kernel + 1) // len(base) - ns * kernel // len(base) for ns in (before, after)]
            add(op, "kernel", NASTY[kernel % len(NASTY)], *parts)
    columns = (
        Column("node", "int64"),
        Column("parent", "int64"),
        Column("level", "category"),
        Column("name", "category"),
        Column("base_ns", "int64", NS),
        Column("cand_ns", "int64", NS),
    )
    data = {column.name: [row[at] for row in rows] for at, column in enumerate(columns)}
    return table("Both as boxes", columns, data, kind="tree", detail=True)


def unknown() -> Result:
    """An analyzer that no renderer has heard of, with every dtype, extreme values and an empty table."""
    columns = (
        Column("what", "str", doc=f"Nasty doc {SCRIPT}"),
        Column("big", "int64"),
        Column("ratio", "float64"),
        Column("delta_count", "int64", "count"),
        Column("ok", "bool"),
    )
    data = {
        "what": list(NASTY),
        "big": [2**63 - 1, -(2**63), 2**53 + 1, 0, -1, 1, 2, 3, 4, 5],
        "ratio": [1e-9, 1.5, float("inf"), -2.25, 0.0, 1e12, 3.0, 4.0, 5.0, 6.0],
        "delta_count": [-1, 1, 0, 2, 3, 4, 5, 6, 7, 8],
        "ok": [True, False] * 5,
    }
    empty = {
        "what": [],
        "big": np.zeros(0, np.int64),
        "ratio": [],
        "delta_count": np.zeros(0, np.int64),
        "ok": [],
    }
    tables = {
        "a_table_with_a_name_longer_than_31": table(
            "Everything " + SCRIPT, columns, data, doc=f"Doc {IMAGE}"
        ),
        "a_table_with_a_name_longer_than_31_too": table("Nothing", columns, empty),
    }
    skips = (Skip(IMAGE, "no | pipe\nno trace " + SCRIPT), Skip(FORMULA, "=1+1"))
    return result("brand_new", "Brand new " + SCRIPT, tables, doc=IMAGE, skips=skips, meta={"option": SCRIPT})


def summary() -> Summary:
    """Tiles with a range, without a value and of text; nasty names in all texts."""
    tiles = (
        Tile(
            "step_time",
            "Step time",
            58_416_732.0,
            "ns",
            57_100_000.0,
            60_200_000.0,
            "median of 3 steps",
            "timeline",
        ),
        Tile("idle", "Idle", 0.363, "fraction", note="of the step; mostly " + SCRIPT, section="idle"),
        Tile("peak_memory", "Peak | memory", None, "bytes", note="no memory events"),
        Tile("trust", SCRIPT, None, "", text="complete"),
    )
    return Summary("58.4 ms a step on 2 x MI300X; 36% of the time is idle " + SCRIPT, tiles)


def report() -> Report:
    """Every known figure, every nasty name, an unknown analyzer; small enough to read as a gold file."""
    results = (
        timeline(bins=6),
        breakdown(),
        ranking("ops", "dur_ns"),
        ranking("kernels", "sum_ns"),
        idle(),
        launches(20),
        unknown(),
        findings(len(NASTY)),
        diff(8),
    )
    meta = {
        "version": "0.1.0",
        "inputs": ["rank0.json.gz", SCRIPT],
        "ranks": 2,
        "devices": ["AMD Instinct MI300X"],
    }
    return Report(results, "Report of " + SCRIPT, meta, summary())


def small() -> Report:
    """What the gold files show: a flat table, a tree, an unknown analyzer, entries."""
    flat = ranking("ops", "dur_ns", rows=4, names=("aten::mm", SCRIPT, "a|b `c`", "aten::copy_"))
    tree = breakdown(1, names=("Cijk_Ailk_Bljk", "nccl<all_to_all>"))
    return Report(
        (timeline(bins=3), tree, flat, unknown(), findings(3)),
        title="Small report",
        meta={"version": "0.1.0", "inputs": []},
        summary=summary(),
    )


def empty() -> Report:
    """No result at all."""
    return Report(())
