"""Reports and baselines that tracelens saved, which a gate reads in the place of traces."""

from __future__ import annotations

import os
import re
import zlib
from typing import Literal

_HEAD = 4096
_BASELINE = b'{"schema":"tracelens.baseline/'
_REPORT = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"(?:schema_version|results|findings|analyzer)"\s*:')
"""Start of a report or of the output of `tracelens analyze steps --json`, never of a trace."""
_GZIP, _WBITS = b"\x1f\x8b", 31


def saved_kind(path: str) -> Literal["report", "baseline", ""]:
    """Whether a file is a baseline or a report, which may be zipped, by its first bytes."""
    if not os.path.isfile(path):  # a pipe can be read only once
        return ""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
        if head.startswith(_BASELINE):
            return "baseline"
        if head.startswith(_GZIP):
            head = zlib.decompressobj(_WBITS).decompress(head, _HEAD)
    except (OSError, zlib.error):
        return ""  # reading it as a trace reports the error
    return "report" if _REPORT.match(head) else ""
