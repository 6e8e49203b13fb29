"""The directory of scripts: the files, and `replay.json`, which lists them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import orjson
from msgspec import Meta, Struct
from msgspec.structs import asdict

from tracelens.errors import TracelensError
from tracelens.outputs import FolderKind, Output, TraceFiles, check_folder, check_outputs, write_folder
from tracelens.table import Skip
from tracelens.version import __version__

LIST = "replay.json"
GENERATED = "generated_{}.py"
"""File of generated code."""
CANDIDATES, README = "candidates.json", "README.md"
"""What stands beside the scripts of a hand-over."""
Kind = Literal["op", "collective", "sequence", "generated"]


class Script(NamedTuple):
    """A reproducer."""

    name: str  # of its file, without a number and an ending: aten_mm
    kind: Kind  # one op, one collective, a sequence of ops, or a kernel that torch.compile generated
    subject: str  # op, collective, or what the sequence is of
    shapes: str  # its arguments as short text
    text: str  # the source
    # calls in the trace that it stands for
    count: int  # type: ignore[assignment]  # tuple.count is not used
    traced_us: float  # median time of one in the trace; 0 where it is another one's (scaled down)
    total_us: float  # time of all of them
    processes: int = 1  # how many run it together, 1 or the ranks of a collective
    # by argument of an op: bits of the number of bytes that other calls touched since it was touched; None
    # for more than caches hold, and where that is not known
    ages: tuple[int | None, ...] = ()
    source: str = ""  # name, without its ending, of the file of a generated kernel, which lies beside it


_Us = Annotated[float, Meta(ge=0, le=1e15)]


class Entry(Struct, frozen=True):
    """A script in a directory; attributes as in Script."""

    # in the directory itself: nothing else is ever run
    file: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,120}\.py\Z")]
    kind: Kind
    subject: str
    shapes: str
    count: Annotated[int, Meta(ge=0, le=1 << 53)]
    traced_us: _Us
    total_us: _Us
    processes: Annotated[int, Meta(ge=0, le=1 << 20)]
    # of the file's bytes, in hexadecimal; "" in lists of an older version
    sha256: Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{64})?\Z")] = ""
    ages: Annotated[tuple[Annotated[int, Meta(ge=0, le=63)] | None, ...], Meta(max_length=64)] = ()
    source: Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{16})?\Z")] = ""  # its SHA-256 begins so

    def __post_init__(self) -> None:
        if self.processes > 1 and self.kind != "collective":
            raise ValueError("only a collective has several processes")


_BESIDE = r"\A(?:candidates\.json|README\.md|generated_[0-9a-f]{16}\.py)\Z"


class _List(Struct):
    scripts: list[Entry]
    beside: list[Annotated[str, Meta(pattern=_BESIDE)]] = []


def write(
    folder: Path,
    scripts: Sequence[Script],
    skips: Sequence[Skip],
    beside: Callable[[list[Entry]], Mapping[str, bytes]] | None = None,
) -> list[Entry]:
    """Write scripts, numbered in their order, the list of them, and the files of a hand-over `beside` them.

    Raises:
        TracelensError: the directory cannot be written, or holds files that are no replay.
    """
    digits = max(2, len(str(len(scripts))))
    entries = [
        Entry(
            file=f"{number:0{digits}d}_{script.name}.py",
            sha256=hashlib.sha256(script.text.encode()).hexdigest(),
            **{name: getattr(script, name) for name in Entry.__struct_fields__ if hasattr(script, name)},
        )
        for number, script in enumerate(scripts, start=1)
    ]
    listed: dict[str, object] = {
        "tracelens": __version__,
        "scripts": [asdict(entry) for entry in entries],
        "skips": [{"subject": skip.subject, "reason": skip.reason} for skip in skips],
    }
    contents = {entry.file: script.text.encode() for entry, script in zip(entries, scripts, strict=True)}
    more = beside(entries) if beside else {}
    listed["beside"] = sorted(more)
    contents |= {**more, LIST: orjson.dumps(listed, option=orjson.OPT_INDENT_2)}
    write_folder(folder, contents, FOLDER)
    return entries


def check(folder: str, inputs: Iterable[str], traces: TraceFiles | None = None) -> None:
    """Refuse, before the work, a directory that cannot or must not be written; arguments as `check_outputs`.

    Raises:
        TracelensError: it is or holds an input, holds files that are no replay, or cannot be written.
    """
    check_outputs([Output(folder, LIST)], inputs, traces)
    check_folder(folder, FOLDER)


def read(folder: Path) -> list[Entry]:
    """The scripts of a directory.

    Raises:
        TracelensError: it is no directory of scripts, or one of an older version.
    """
    entries = _listed(folder).scripts
    if not all(entry.sha256 for entry in entries):
        raise TracelensError(
            f"{folder / LIST}: written by an older tracelens, without script hashes; regenerate: "
            "tracelens replay TRACE -o DIR"
        )
    return entries


def _listed(folder: Path) -> _List:
    """The files of a directory; scripts that an older version wrote have no hash."""
    path = folder / LIST
    try:
        return msgspec.json.decode(path.read_bytes(), type=_List)
    except OSError:
        raise TracelensError(f"{folder}: no {LIST}; make one with tracelens replay TRACE -o DIR") from None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise TracelensError(f"{path}: not a script list that tracelens wrote") from None


def _files(folder: Path) -> list[str]:
    listed = _listed(folder)
    return [*(entry.file for entry in listed.scripts), *listed.beside]


FOLDER = FolderKind(LIST, "script of a replay", _files)
