"""What a file is that is no trace, and what to pass instead."""

from __future__ import annotations

import re

_ITSELF = "pass the trace itself"
_RECORD = "record the run with torch.profiler or tracelens.record"
_UNPACK = "unpack it first"

_BINARY = (
    (b"SQLite format 3", "an SQLite database, as nsys and rocprofv3 write", _RECORD),
    (b"PAR1", "a Parquet file", _ITSELF),
    (b"\x93NUMPY", "a NumPy array", _ITSELF),
    (b"\x7fELF", "a program", "pass what it recorded"),
    (b"%PDF", "a PDF document", _ITSELF),
    (b"\x89PNG", "an image", _ITSELF),
    (b"PK\x03\x04", "a zip archive inside another", _UNPACK),
    (b"\xfd7zXZ", "compressed with xz", _UNPACK),
    (b"BZh", "compressed with bzip2", _UNPACK),
    (b"\x1f\x8b", "gzip inside another compression", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "zstd inside another compression", _UNPACK),
    (b"\x04\x22\x4d\x18", "compressed with lz4", _UNPACK),
    (b"7z\xbc\xaf", "a 7z archive", _UNPACK),
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file with git lfs pull"),
)
_NSIGHT = (".nsys-rep", ".qdrep", ".qdstrm", ".ncu-rep")
_PATTERNS = (
    (
        re.compile(rb"\x0a.{0,64}[\x00-\x08\x0e-\x1f\x80-\xff]", re.DOTALL),
        "perhaps a Perfetto protobuf",
        "convert it with Perfetto's traceconv json",
    ),
    (re.compile(rb"\x80[\x02-\x05]"), "a Python pickle, as torch's memory snapshots are", _RECORD),
    (
        re.compile(rb"<.*<title>tracelens ", re.DOTALL),
        "a report of tracelens",
        "pass the traces it is made from",
    ),
    (re.compile(rb"<"), "HTML or XML, perhaps a web page saved by mistake", "download it again"),
    (
        re.compile(rb"[\x20-\x7e\t]*(?:,[\x20-\x7e\t]*){2,}\r?\n"),
        "a text table, as nsys stats and rocprof write",
        _RECORD,
    ),
)

_OF_OURS = {
    "run": "describes the recording next to it; pass its directory",
    "pace": "holds step times of the recording next to it; pass its directory",
    "ladder": "is the index of a ladder; pass one of its runs, or use tracelens workload ladder --from DIR",
    "baseline": "is a baseline of tracelens gate; pass traces",
    "replay": "is a list of replay scripts; use tracelens replay verify DIR",
}
_SCHEMA = re.compile(rb'\A\s*\{\s*"schema"\s*:\s*"tracelens\.(\w+)/')
_SCRIPTS = re.compile(rb'\A\s*\{\s*"tracelens"\s*:\s*"[^"]*"\s*,\s*"scripts"')
_REPORT = re.compile(rb'\A\s*\{\s*"schema_version"\s*:\s*\d+\s*,\s*"(?:results|analyzer)"')
_CHAKRA = re.compile(rb'"schema"\s*:\s*"[\d.]+-chakra')
_ROCPROF = re.compile(rb'\A\s*\{\s*"rocprofiler-sdk-tool"')


def not_json(text: bytes | bytearray, path: str) -> str:
    """What is wrong with a file that is not JSON, and what to do.

    Args:
        text: its first bytes, with the blanks before them.
        path: its name.
    """
    first = text.lstrip()
    kinds = [kind for magic, *kind in _BINARY if first.startswith(magic)]
    if path.lower().endswith(_NSIGHT):
        kinds.insert(0, ["a report of NVIDIA Nsight", _RECORD])
    kinds += [kind for pattern, *kind in _PATTERNS if pattern.match(text) or pattern.match(first)]
    if not kinds:
        return "not a JSON trace: it starts with neither { nor [; pass what torch.profiler wrote"
    what, advice = kinds[0]
    return f"not a trace but {what}; {advice}"


def no_events(text: bytes | bytearray) -> str:
    """What is wrong with JSON that has no list of events, and what to do.

    Args:
        text: all that was read of it.
    """
    if match := _SCHEMA.match(text):
        kind = match[1].decode()
        return _OF_OURS.get(kind, f"is a {kind} file of tracelens; {_ITSELF}")
    if _SCRIPTS.match(text):
        return _OF_OURS["replay"]
    if _REPORT.match(text):
        return (
            "is a JSON report of tracelens, which only tracelens gate reads; pass the traces it is made from"
        )
    if _CHAKRA.search(text[:4096]):
        return f"is an execution trace (Chakra), which has no times; {_RECORD}"
    if _ROCPROF.match(text):
        return f"is JSON of rocprofv3; {_RECORD}"
    return 'JSON without a "traceEvents" list is not a profiler trace; pass what export_chrome_trace wrote'
