"""Summaries: the verdict and the headline numbers of a report, read from the tables of its results."""

from tracelens.rendering.summary.results import answer, result_summary, result_title
from tracelens.rendering.summary.run import run_summary
from tracelens.rendering.summary.wording import (
    about,
    hardware,
    percent,
    short_device,
    short_reason,
)
