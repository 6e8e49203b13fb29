"""The tables of the serving analyzer."""

from __future__ import annotations

from tracelens.analysis.common import KINDS
from tracelens.table import RANK, Column, Schema

SUMMARY = Schema(
    "Serving steps of all ranks",
    (
        Column("engine", "category", doc="engine, from its frames, labels and ops"),
        Column(
            "steps",
            "int64",
            "count",
            "steps that several ranks ran together; -1, here and below: one rank only",
        ),
        Column("step_ns", "int64", "ns", "time of these steps, slowest rank each"),
        Column(
            "phase_mismatch_fraction",
            "float64",
            "fraction",
            "share of step time with ranks in different phases; -1 if nothing to compare",
        ),
        Column(
            "delay_ns",
            "int64",
            "ns",
            "time beyond `decode_ns` in mismatched steps with a decoding rank; -1 if that is unknown",
        ),
        Column(
            "alignable_ns",
            "int64",
            "ns",
            "part of the delay saved if all ranks prefilled in the same steps: all but the delay by the "
            "rank that prefills longest",
        ),
        Column("padding_fraction", "float64", "fraction", "1 - tokens / slots; -1 if unknown"),
        Column(
            "graph_padding_fraction",
            "float64",
            "fraction",
            "1 - requests / captured batch size of their graphs; -1 if unknown",
        ),
        Column(
            "eager_fraction",
            "float64",
            "fraction",
            "share of the ranks' decode time outside graph replays; -1 if unknown",
        ),
        Column(
            "dummy_fraction",
            "float64",
            "fraction",
            "share of the ranks' step time in steps without a request",
        ),
        Column("tbo_steps", "int64", "count", "steps of a rank run as two overlapped batches"),
        Column(
            "tbo_imbalance", "float64", "ratio", "|a - b| / (a + b) of their tokens, all steps; -1 if unknown"
        ),
        Column(
            "tbo_efficiency", "float64", "ratio", "their hidden / total communication; -1 if there is none"
        ),
        Column("mismatch_steps", "int64", "count", "with ranks in different phases"),
        Column("mismatch_ns", "int64", "ns", "time of these steps"),
        Column("tokens", "int64", "count", "tokens of requests, in steps that all ranks label"),
        Column("slots", "int64", "count", "ranks x most tokens of a rank, summed over those steps"),
        Column("decode_ns", "int64", "ns", "a step in which all ranks decode; -1 if unknown"),
        Column(
            "decode_source",
            "category",
            doc="of decode_ns: `all-decode steps`, their median; without any `least GPU work`, the least "
            "work and transfers of a decoding rank without waiting",
        ),
    ),
    doc="Expert-parallel ranks meet in every layer: all wait for a rank that prefills and are padded to "
    "the rank with the most tokens. Ranks without requests are in no phase.",
)

RANKS = Schema(
    "Kinds of steps",
    (
        RANK,
        Column("kind", "category", doc=", ".join(KINDS)),
        Column("count", "int64", "count", "steps"),
        Column("dur_ns", "int64", "ns", "time of these steps"),
        Column("fraction", "float64", "fraction", "share of the time of all steps of the rank"),
        Column("requests", "int64", "count", "summed over the steps; -1 if a label lacks it"),
        Column("tokens", "int64", "count", "summed over the steps; -1 if a label lacks it"),
        Column(
            "eager_fraction", "float64", "fraction", "share of the time outside graph replays; -1 if unknown"
        ),
        Column("dummy_fraction", "float64", "fraction", "share of the time in steps without a request"),
    ),
    doc="A step runs from its first to its last kernel, including waiting for other ranks; without linked "
    "kernels, as long as its mark. Requests and tokens exclude dummies.",
)

THROUGHPUT = Schema(
    "Throughput",
    (
        RANK,
        Column("steps", "int64", "count", "steps after the first"),
        Column("dur_ns", "int64", "ns", "from the end of the first step to the end of the last"),
        Column("prompt_tokens", "int64", "count", "prefilled in these steps; -1 if a label lacks them"),
        Column("prompt_tokens_per_s", "float64", doc="-1 if unknown"),
        Column("output_tokens", "int64", "count", "one per decoding request and step; -1 if unknown"),
        Column("output_tokens_per_s", "float64", doc="-1 if unknown"),
        Column(
            "tpot_ns",
            "int64",
            "ns",
            "time per output token: mean time between the ends of consecutive decoding steps, weighted by "
            "the requests that decode in both; -1 if unknown",
        ),
        Column("tpot_max_ns", "int64", "ns", "the longest of these times"),
        Column(
            "prefill_ns",
            "int64",
            "ns",
            "median step with prefill: a first token comes no sooner than its prefill step ends; -1 without",
        ),
    ),
    doc="A step yields its tokens when it ends. Output tokens exclude the first of each request, which its "
    "prefill yields. Requests are taken to decode in consecutive decoding steps.",
)

ALIGNMENT = Schema(
    "Steps across ranks",
    (
        Column("step", "int64", "count", "position among the steps that several ranks ran together"),
        Column("kinds", "category", doc="ranks by kind of step"),
        Column("mismatch", "bool", doc="ranks with requests are in different phases"),
        Column("dur_ns", "int64", "ns", "slowest rank"),
        Column("ranks", "int64", "count", "ranks that labeled the step"),
        Column("idle_ranks", "int64", "count", "ranks without a request: dummy or idle"),
        Column("tokens_max", "int64", "count", "of the rank with the most tokens; -1 if unknown"),
        Column("tokens_sum", "int64", "count", "of all requests; -1 if unknown"),
        Column("padding_fraction", "float64", "fraction", "1 - sum / (ranks x max); -1 if unknown"),
        Column("ts_ns", "int64", "ns", "first start, by the clock of the first rank"),
    ),
    doc="Steps are matched by order and overlap in time, on clocks aligned by collectives.",
)

OVERLAP = Schema(
    "Two-batch overlap",
    (
        RANK,
        Column("index", "int64", "count", "position among the steps of the rank"),
        Column("kind", "category", doc="as in `ranks`"),
        Column("tokens", "int64", "count", "-1 if unknown"),
        Column(
            "token_imbalance", "float64", "ratio", "|a - b| / (a + b) of the halves' tokens; -1 if unknown"
        ),
        Column("comm_ns", "int64", "ns", "communication in the step"),
        Column("hidden_ns", "int64", "ns", "overlapped by computation"),
        Column("overlap_efficiency", "float64", "ratio", "hidden / comm; -1 without communication"),
    ),
    doc="Steps split into two batches: one computes while the other communicates.",
    detail=True,
    key=(),
)

STEPS = Schema(
    "Steps",
    (
        RANK,
        Column("index", "int64", "count", "position among the steps of the rank"),
        Column("kind", "category", doc="as in `ranks`"),
        Column("eager", "bool", doc="kernels launched one by one"),
        Column("graph", "bool", doc="a graph was replayed; both false if unknown"),
        Column("dummy", "bool", doc="without a request"),
        Column("tbo", "bool", doc="run as two overlapped batches"),
        Column("requests", "int64", "count", "requests in the step, -1 if unknown"),
        Column("graph_requests", "int64", "count", "captured batch size of the graph, -1 if unknown"),
        Column("tokens", "int64", "count", "tokens that the step computes, -1 if unknown"),
        Column("ts_ns", "int64", "ns", "by the clock of the first rank"),
        Column("dur_ns", "int64", "ns", "first to last kernel of the step"),
    ),
    detail=True,
    key=(),
)
