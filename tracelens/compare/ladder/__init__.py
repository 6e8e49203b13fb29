"""Ladder: an ablation study, each rung compared with the one before."""

from tracelens.compare.ladder.ladder import TABLES, ladder, read
