"""From where on something is worth a word, first of all in a summary, the first thing that a reader is told.

None of these is measured. Each is as large as it can be without hiding what a reader would act on: a verdict
that names every small part says nothing.
"""

# Summaries

CAUSE_SHARE = 0.5
"""Share of a time (0-1) that a cause must exceed to be named as most of it: no other can be as large."""

EXPLAINED_SHARE = 0.5
"""Share of a difference (0-1) that changes beyond the noise must exceed together to be its explanation."""

CHANGE_SHARE = 0.05
"""Share of a difference (0-1) below which one change is not named, though it is beyond the noise."""

SAME_STEP_SHARE = 0.005
"""Relative difference of two step times up to which they are the same: it would be shown as "0.4% faster"."""

REPLAYED_STEP_SHARE = 0.02
"""Relative difference of the measured step and the one that a projection starts from, up to which they are
the same. Beyond it a projected step time does not compare with the measured one: only the saving is told."""

PART_SHARE = 0.1
"""Share of the step (0-1) from which the part after the largest is named beside it."""

SAVING_SHARE = 0.02
"""Share of the step (0-1) that a saving exceeds to be told as a step time: smaller ones are lost in it."""

ALONE_SHARE = 0.05
"""Share of the step (0-1) that the first finding saves more by itself than on top of others, from which the
headline tells both: projections are hardly nearer."""

COVERED_SHARE = 0.5
"""Share of the GPU time (0-1) that cost models count, from which they speak for a run's kernels: most."""

BANDWIDTH_SHARE = 0.2
"""Share of the memory's bandwidth (0-1) above which it is told: below it, memory limits nothing."""

ONCE_SHARE = 0.02
"""Share of a step (0-1), mean of the ranks, from which the headline tells idle time that happened once."""

NAMED = 3
"""Changes, scenarios, devices or dispatches that one sentence names; more of them are not read."""

BOUND_TILES, SCHEDULE_TILES = 4, 6
"""Tiles of operations or collectives, and of schedules: what fits in about one row of the page."""

# Headlines of sections, and figures

DIVIDING_NAMES = 16
"""Names up to which a table divides a whole, and its largest parts are told; a longer one is a ranking, and
told is how many take half of it. A trade-off: of many parts, the largest say little about the whole."""

PART_LEAST_SHARE = 0.005
"""Share (0-1) of a whole below which a part is not named: it would be shown as 0%."""

JOINED_SHARE = 0.01
"""Share (0-1) of the largest difference below which a waterfall joins differences as one. A trade-off: fewer
bars are read sooner, and each of the joined ones is told by the table alone."""

EVEN_SPAN, UNEVEN_SPAN = 0.1, 1.0
"""Distance from the mean load, as a share of it, that colours span at least, or noise would look like
imbalance, and at most."""
