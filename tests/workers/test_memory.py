"""Memory that was freed: kept for what comes next, or given back."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told what to do")

FAULTS = """
import resource
from tracelens.workers.memory import give_back, keep_freed
if {keep}:
    keep_freed()
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(2 << 20)
    if {give}:
        give_back()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults_of_an_array(*, keep: bool, give: bool = False) -> int:
    """New pages for an array of 512 pages, when 19 like it have been freed."""
    program = FAULTS.format(keep=keep, give=give)
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)


def test_a_freed_array_is_kept_for_the_next_one() -> None:
    assert faults_of_an_array(keep=True) < 10


def test_freed_memory_is_given_back() -> None:
    assert faults_of_an_array(keep=True, give=True) > 450
