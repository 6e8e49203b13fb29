"""Verify: run the scripts of a folder and compare their times with the trace."""

from tracelens.reproducers.verify.verify import COMPARED, TABLES, compare, failed, verify
from tracelens.reproducers.verify.worker import RUNNER
