"""The tables of the serving analyzer."""

from __future__ import annotations

from tracelens.analysis.serving.labels import KINDS
from tracelens.table import Column, Schema

SUMMARY = Schema(
    "Serving steps of all ranks",
    (
        Column("engine", "category", doc="whose step labels the trace has"),
        Column("steps", "int64", "count", "that several ranks ran together"),
        Column("step_ns", "int64", "ns", "their time, of each the rank that took longest"),
        Column(
            "phase_mismatch_fraction",
            "float64",
            "fraction",
            "time of steps with ranks in different phases; -1 if nothing to compare",
        ),
        Column(
            "delay_ns",
            "int64",
            "ns",
            "what mismatched steps in which a rank decodes take longer than the median step in which all "
            "decode; -1 if there is no such step",
        ),
        Column(
            "alignable_ns",
            "int64",
            "ns",
            "of the delay, what prefilling in the same steps would save: all but that by the rank that "
            "prefills longest",
        ),
        Column("padding_fraction", "float64", "fraction", "1 - tokens / slots; -1 if no step tells"),
        Column(
            "graph_padding_fraction",
            "float64",
            "fraction",
            "1 - requests / what their graphs are made for; -1 if no label tells",
        ),
        Column(
            "eager_fraction",
            "float64",
            "fraction",
            "of the ranks' decode time, not a graph replay; -1 unknown",
        ),
        Column(
            "dummy_fraction", "float64", "fraction", "of the ranks' step time, in steps without a request"
        ),
        Column("tbo_steps", "int64", "count", "steps of a rank run as two overlapped batches"),
        Column(
            "tbo_imbalance", "float64", "ratio", "|a - b| / (a + b) of their tokens, all steps; -1 unknown"
        ),
        Column("tbo_efficiency", "float64", "ratio", "their hidden / all communication; -1 if there is none"),
        Column("mismatch_steps", "int64", "count", "with ranks in different phases"),
        Column("mismatch_ns", "int64", "ns", "time of those"),
        Column("tokens", "int64", "count", "of requests, in the steps in which all ranks tell them"),
        Column("slots", "int64", "count", "ranks x tokens of the rank with most, summed over those steps"),
    ),
    doc="Ranks that share their experts meet in every layer: all wait for the one that prefills, and all are "
    "padded to the one with most tokens. Ranks without requests are in no phase.",
)

RANKS = Schema(
    "Kinds of steps",
    (
        Column("rank", "int64"),
        Column("kind", "category", doc=", ".join(KINDS)),
        Column("count", "int64", "count", "steps"),
        Column("dur_ns", "int64", "ns", "their time"),
        Column("fraction", "float64", "fraction", "of the time of all steps of the rank"),
        Column("requests", "int64", "count", "summed over the steps; -1 if a label does not tell"),
        Column("tokens", "int64", "count", "summed over the steps; -1 if a label does not tell"),
        Column("eager_fraction", "float64", "fraction", "of the time, not a graph replay; -1 if unknown"),
        Column("dummy_fraction", "float64", "fraction", "of the time, in steps without a request"),
    ),
    doc="A step lasts from its first to its last kernel, waiting for other ranks included; where no kernel "
    "is linked to it, as long as its mark. Requests and tokens are without those of dummies.",
)

ALIGNMENT = Schema(
    "Steps across ranks",
    (
        Column("step", "int64", "count", "position among the steps that several ranks ran together"),
        Column("kinds", "category", doc="how many ranks ran what"),
        Column("mismatch", "bool", doc="ranks with requests are in different phases"),
        Column("dur_ns", "int64", "ns", "the longest of a rank"),
        Column("ranks", "int64", "count", "with a label there"),
        Column("idle_ranks", "int64", "count", "of them without a request: dummies and idle ones"),
        Column("tokens_max", "int64", "count", "of the rank with most tokens; -1 where ranks do not tell"),
        Column("tokens_sum", "int64", "count", "of all requests; -1 where ranks do not tell"),
        Column("padding_fraction", "float64", "fraction", "1 - sum / (ranks x max); -1 where not told"),
        Column("ts_ns", "int64", "ns", "first start, by the clock of the first rank"),
    ),
    doc="Steps are matched by their order and the time that they overlap, on clocks aligned by collectives.",
)

OVERLAP = Schema(
    "Two-batch overlap",
    (
        Column("rank", "int64"),
        Column("index", "int64", "count", "position among the steps of the rank"),
        Column("kind", "category"),
        Column("tokens", "int64", "count", "-1 if not told"),
        Column(
            "token_imbalance", "float64", "ratio", "|a - b| / (a + b) of the halves' tokens; -1 if not told"
        ),
        Column("comm_ns", "int64", "ns", "communication in the step"),
        Column("hidden_ns", "int64", "ns", "of it, beside computation"),
        Column("overlap_efficiency", "float64", "ratio", "hidden / comm; -1 without communication"),
    ),
    doc="Steps that were split into two batches, one of which computes while the other communicates.",
    detail=True,
)

STEPS = Schema(
    "Steps",
    (
        Column("rank", "int64"),
        Column("index", "int64", "count", "position among the steps of the rank"),
        Column("kind", "category"),
        Column("eager", "bool", doc="its kernels were launched one by one"),
        Column("graph", "bool", doc="a graph was replayed; neither where nothing tells"),
        Column("dummy", "bool", doc="without a request"),
        Column("tbo", "bool", doc="run as two overlapped batches"),
        Column("requests", "int64", "count", "-1 if not told, as the next two"),
        Column("graph_requests", "int64", "count", "what the graph is made for"),
        Column("tokens", "int64", "count"),
        Column("ts_ns", "int64", "ns", "by the clock of the first rank"),
        Column("dur_ns", "int64", "ns"),
    ),
    detail=True,
)
