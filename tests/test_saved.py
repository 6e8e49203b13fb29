"""What tracelens saved is told from traces by its first bytes."""

import gzip
from pathlib import Path

import pytest

from tracelens.saved import saved_kind

REPORT = b'\xef\xbb\xbf {"schema_version":2,"results":[]}'
BASELINE = b'{"schema":"tracelens.baseline/1","runs":[]}'


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (REPORT, "report"),
        (gzip.compress(REPORT, mtime=0), "report"),
        (gzip.compress(REPORT * 1000, mtime=0)[:200], "report"),  # cut off, which reading it tells
        (BASELINE, "baseline"),
        (gzip.compress(BASELINE, mtime=0), ""),  # none is written so
        (b'{"traceEvents":[]}', ""),
        (b"\x1f\x8b is no gzip", ""),
        (b"", ""),
    ],
)
def test_kinds(tmp_path: Path, content: bytes, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert saved_kind(str(path)) == kind


def test_what_is_no_file(tmp_path: Path) -> None:
    assert [saved_kind(path) for path in (str(tmp_path), str(tmp_path / "missing"), "-", "a\0b")] == [""] * 4
