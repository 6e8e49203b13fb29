"""Takes what names the recording machine out of a trace; every other byte stays as the profiler wrote it.

Works on text rather than on parsed JSON: timestamps have more digits than a float holds, and must survive.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from tracelens.errors import TracelensError

# A Python frame is named "/where/torch/nn/modules/module.py(1775): _call_impl".
FRAME = re.compile(r'("name": ")(/[^"\n]*?)(\(\d+\): )')
TRACE_NAME = re.compile(r'("traceName": )"[^"\n]*"')
HOST_NAME = re.compile(r'("host_name": )"[^"\n]*"')
# Longest first: a virtual environment's packages, the standard library, this package's own checkout.
IMPORT_ROOTS = (
    re.compile(r"^/.*/(?:site|dist)-packages/"),
    re.compile(r"^/.*/lib(?:64)?/python3\.\d+/"),
    re.compile(r"^/.*/(?=tracelens/)"),
)
ABSOLUTE = re.compile(r'"(/[^"\n/]+/[^"\n]*)"')


def scrub(text: str, name: str) -> str:
    """Text of a trace, or some of its lines, without paths of the machine that recorded it.

    - A Python frame keeps its path from the import root on, `torch/nn/modules/module.py(1775): _call_impl`; a
      file outside any import root keeps its name alone.
    - `traceName` becomes `name`, `host_name` becomes `host`.

    Args:
        text: Chrome JSON as torch's profiler writes it; no string in it goes over a line's end.
        name: the file's own name, without folders.

    Raises:
        TracelensError: a string is still an absolute path.
    """
    text = FRAME.sub(lambda match: match[1] + import_path(match[2]) + match[3], text)
    text = TRACE_NAME.sub(lambda match: f'{match[1]}"{name}"', text)
    text = HOST_NAME.sub(r'\1"host"', text)
    absolute_path = ABSOLUTE.search(text)
    if absolute_path is not None:
        raise TracelensError(f"{name}: still contains a path of this machine: {absolute_path[1][:200]!r}")
    return text


def import_path(path: str) -> str:
    """The part of a source file's path that follows its import root, or its file name."""
    for root in IMPORT_ROOTS:
        short, replaced = root.subn("", path)
        if replaced:
            return short
    return PurePath(path).name
