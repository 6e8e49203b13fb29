"""What files are that hold no trace, told by their first bytes or their name, and what to do with them."""

from __future__ import annotations

import re

_SAMPLE_BYTES = 4096
_ITSELF = "pass the trace itself"
_RECORD = "record the run with torch.profiler or tracelens.record"
_UNPACK = "unpack it first"
_BINARY = (
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
_TAR_AT = 257
"""Where the first member of a tar archive says what it is."""
_NAMES = (
    (re.compile(r"\.(?:nsys-rep|qdrep|qdstrm|ncu-rep)$"), "a report of NVIDIA Nsight", _RECORD),
    (re.compile(r"\.py$"), "a Python script", f"{_RECORD}, and pass what that writes"),
    (re.compile(r"tfevents"), "a log of TensorBoard", "pass the .pt.trace.json beside it"),
    (re.compile(r"\.safetensors$"), "a checkpoint", _ITSELF),
)
"""Kinds that the name of a file tells."""
_OF_MEMORY, _MEMORY_VIZ = "a CUDA memory snapshot of torch", "open it at pytorch.org/memory_viz"
_ROCPD = "`rocpd convert -i FILE --output-format pftrace` makes it one for Perfetto; to report on it"
_FIRST_PATTERNS = (
    (
        re.compile(rb"SQLite format 3.*rocpd_", re.DOTALL),
        "a rocpd database of rocprofv3",
        f"{_ROCPD}, {_RECORD}",
    ),
    (
        re.compile(rb"SQLite format 3.*(?:CUPTI_|NSYS)", re.DOTALL),
        "an SQLite database of NVIDIA Nsight Systems",
        _RECORD,
    ),
    (re.compile(rb"SQLite format 3"), "an SQLite database, as nsys and rocprofv3 write", _RECORD),
    (
        re.compile(rb"\x0a.{1,64}/(?:host|device):", re.DOTALL),
        "an XPlane profile of JAX or TensorFlow (.xplane.pb)",
        "open it in XProf",
    ),
    (
        re.compile(rb"\x80[\x02-\x05].*(?:pg_config|pg_status|record_id|collective_seq_id)", re.DOTALL),
        "a dump of the NCCL flight recorder",
        "read it with torchfrtrace",
    ),
    (
        re.compile(rb"\x80[\x02-\x05].*(?:segments|device_traces)", re.DOTALL),
        _OF_MEMORY,
        _MEMORY_VIZ,
    ),
)
"""Kinds that only what stands further on in a file tells from others."""
_PATTERNS = (
    (
        re.compile(rb"\x0a.{0,64}[\x00-\x08\x0e-\x1f\x80-\xff]", re.DOTALL),
        "perhaps a Perfetto protobuf",
        "convert it with Perfetto's traceconv json",
    ),
    (re.compile(rb"\x80[\x02-\x05]"), "a Python pickle", _ITSELF),
    (
        re.compile(rb"<.*<title>tracelens ", re.DOTALL),
        "a report of tracelens",
        "pass the traces it is made from",
    ),
    (re.compile(rb"<"), "HTML or XML, perhaps a web page saved by mistake", "download it again"),
    (
        re.compile(rb"[\x20-\x7e\t\x80-\xff]*(?:,[\x20-\x7e\t\x80-\xff]*){2,}\r?\n"),
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
_EXECUTION = re.compile(rb'"schema"\s*:\s*"(?:[\d.]+-chakra|[\d.]+"\s*,\s*"pid"\s*:)')
_SNAPSHOT = re.compile(rb'\A\s*\{.*"(?:device_traces|segments)"\s*:\s*\[', re.DOTALL)
_NSYS_LINES = re.compile(rb'\A\s*\{\s*"(?:Nvtx|Cuda|Trace|Thread)\w*Event"')
_TORCH_HEADER = re.compile(rb'\A\s*\{\s*"(?:schemaVersion|deviceProperties)"')
# Kineto's header, which may be cut off before its events, has a pg_config as well.
_FLIGHT = re.compile(rb'(?s)(?!.{0,64}"schemaVersion").*"(?:pg_config|pg_status|collective_seq_id)"\s*:')
_LINES = re.compile(rb"\A\s*\{[^\n]*\}[ \t\r]*\n\s*\{")
_EVENT_LINES = re.compile(rb'\A\s*\{[^\n]*"ph"\s*:')
_NOTEBOOK = re.compile(rb'"nbformat"\s*:|\A\s*\{\s*"cells"\s*:')
_SPEEDSCOPE = re.compile(rb'"[^"]*speedscope[^"]*"')
_ROCPROF = re.compile(rb'\A\s*\{\s*"rocprofiler-sdk-tool"')


def not_json(text: bytes | bytearray, path: str) -> str:
    """What is wrong with a file that is not JSON, and what to do; `text` is its first block."""
    known = not_json_but(text, path)
    return known or "not a JSON trace: it starts with neither { nor [; pass what torch.profiler wrote"


def not_json_but(text: bytes | bytearray, path: str) -> str:
    """As `not_json`; "" where it is not known what the file is."""
    deep = [kind for pattern, *kind in _FIRST_PATTERNS if pattern.match(text)]
    text = text[:_SAMPLE_BYTES]
    first = text.lstrip()
    kinds = deep + [kind for magic, *kind in _BINARY if first.startswith(magic)]
    kinds = [kind for pattern, *kind in _NAMES if pattern.search(path.lower())] + kinds
    if text[_TAR_AT:].startswith(b"ustar"):
        kinds.insert(0, ["a tar archive", "unpack it, and pass the folder"])
    kinds += [kind for pattern, *kind in _PATTERNS if pattern.match(text) or pattern.match(first)]
    if not kinds:
        return ""
    what, advice = kinds[0]
    return f"not a trace but {what}; {advice}"


def no_events(text: bytes | bytearray) -> str:
    """What is wrong with JSON that has no list of events, and what to do; `text` is all that was read."""
    if match := _SCHEMA.match(text):
        kind = match[1].decode()
        return _OF_OURS.get(kind, f"is a {kind} file of tracelens; {_ITSELF}")
    if _SCRIPTS.match(text):
        return _OF_OURS["replay"]
    if _REPORT.match(text):
        return (
            "is a JSON report of tracelens, which only tracelens gate reads; pass the traces it is made from"
        )
    if _EXECUTION.search(text[:_SAMPLE_BYTES]):
        return f"is an execution trace (Chakra), which has no times; {_RECORD}"
    if _FLIGHT.match(text[:_SAMPLE_BYTES]):
        return "is a dump of the NCCL flight recorder; read it with torchfrtrace"
    if _SNAPSHOT.match(text[:_SAMPLE_BYTES]):
        return f"is {_OF_MEMORY}; {_MEMORY_VIZ}"
    if _TORCH_HEADER.match(text):
        return "is a torch trace that is cut off before its first event; record or copy it again"
    if _NSYS_LINES.match(text):
        return f"is JSON of NVIDIA Nsight Systems; {_RECORD}"
    if _ROCPROF.match(text):
        return f"is JSON of rocprofv3; {_RECORD}"
    if _EVENT_LINES.match(text) and _LINES.match(text):
        return "is JSON Lines, an event a line; make a list of it: jq -s . OLD > NEW"
    if _LINES.match(text):
        return "is JSON Lines, as logs of metrics; pass what export_chrome_trace wrote"
    if _NOTEBOOK.search(text[:_SAMPLE_BYTES]):
        return "is a notebook; pass the traces that it reads"
    if _SPEEDSCOPE.search(text[:_SAMPLE_BYTES]):
        return f"is a profile of speedscope, which has no GPU work; {_RECORD}"
    return 'JSON without a "traceEvents" list is not a profiler trace; pass what export_chrome_trace wrote'
