"""Files and folders are written whole or not at all, whatever fails, and leave nothing behind."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tracelens.errors import TracelensError
from tracelens.outputs import FolderKind, check_folder, make_folders, whole_file, write_file, write_folder

ROOT = Path(__file__).resolve().parents[2]


def listed(folder: Path) -> list[str]:
    try:
        names: list[str] = json.loads((folder / "index.json").read_text())["mine"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TracelensError(f"{folder}: not ours") from error
    return names


KIND = FolderKind("index.json", "file of a test", listed)


def contents(*names: str, text: str = "new") -> dict[str, bytes]:
    return {"index.json": json.dumps({"mine": names}).encode(), **{name: text.encode() for name in names}}


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder, with what is in it."""
    return {
        path.relative_to(folder).as_posix(): path.read_text() if path.is_file() else "/"
        for path in sorted(folder.rglob("*"))
    }


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "out.txt"
    write_file(path, b"one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask()
    path.chmod(0o640)
    write_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert tree(tmp_path) == {"a": "/", "a/b": "/", "a/b/out.txt": "two"}


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/out.txt")
    for text in (b"one", b"two"):
        write_file(tmp_path / "link", text)
        assert (tmp_path / "real" / "out.txt").read_bytes() == text
    assert (tmp_path / "link").is_symlink()


def test_devices_and_pipes_are_written_to(tmp_path: Path) -> None:
    write_file("/dev/null", b"x")
    assert not stat.S_ISREG(os.stat("/dev/null").st_mode)
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, b"through")
    reader.join(10)
    assert got == [b"through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_standard_output_goes_on_behind_what_was_written(tmp_path: Path) -> None:
    code = (
        "from tracelens.outputs import write_file; print('a', flush=True); "
        "write_file('/dev/stdout', b'b\\n'); print('c')"
    )
    target = tmp_path / "out.txt"
    with target.open("wb") as file:
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=file, check=True)
    assert target.read_text() == "a\nb\nc\n"


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("x")]
)
def test_what_fails_on_the_way_leaves_the_old_file_alone(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    for target in (path, tmp_path / "new" / "out.txt"):
        with pytest.raises(type(error)):
            fail_in(target, error)
    assert tree(tmp_path) == {"out.txt": "old"}


def fail_in(target: Path, error: BaseException) -> None:
    with whole_file(target, parents=True) as file:
        file.write(b"half")
        raise error


def test_a_failing_rename_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out.txt").write_text("old")

    def fail(source: str, target: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(TracelensError, match=r"^cannot write .*out\.txt: Input/output error$"):
        write_file(tmp_path / "out.txt", b"new")
    assert tree(tmp_path) == {"out.txt": "old"}


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may be larger than 4 kB. Not a fixture: pytest itself may be writing to a larger file."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("old")
    with full_disk(), pytest.raises(TracelensError, match=r"^cannot write .*: File too large$"):
        write_file(tmp_path / "out.txt", b"x" * 100_000)
    write_folder(tmp_path / "folder", contents("a"), KIND)
    before = tree(tmp_path)
    for folder in ("folder", "other", "deep/er"):
        with full_disk(), pytest.raises(TracelensError, match=r"^cannot write .*: File too large$"):
            write_folder(tmp_path / folder, contents("a", "b", text="x" * 100_000), KIND)
    assert tree(tmp_path) == before


def test_temporary_names_are_never_the_same_and_follow_no_link(tmp_path: Path) -> None:
    seen = set()
    for _ in range(5):
        with whole_file(tmp_path / "out.txt"):
            (name,) = {path.name for path in tmp_path.iterdir()} - {"out.txt"}
            seen.add(name)
            assert name.startswith(".")
            assert str(os.getpid()) not in name
    assert len(seen) == 5


def test_a_file_in_the_way_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for target in ("file/x.txt", "file/a/x.txt"):
        with pytest.raises(TracelensError, match="Not a directory"):
            write_file(tmp_path / target, b"")
    with pytest.raises(TracelensError, match="Is a directory"):
        write_file(tmp_path, b"")
    with pytest.raises(TracelensError, match="File exists"):
        write_folder(tmp_path / "file", contents(), KIND)
    assert make_folders(str(tmp_path)) == []


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "folder"
    write_folder(folder, contents("x", "y"), KIND)
    folder.chmod(0o750)
    write_folder(folder, contents("y", "z", text="newer"), KIND)
    assert {name: text for name, text in tree(folder).items() if name != "index.json"} == {
        "y": "newer",
        "z": "newer",
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]


@pytest.mark.parametrize("foreign", ["thesis.tex", "y", ".hidden", "index.json"])
def test_what_is_not_ours_stays(tmp_path: Path, foreign: str) -> None:
    folder = tmp_path / "folder"
    if foreign == "index.json":
        folder.mkdir()
    else:
        write_folder(folder, contents("x"), KIND)
    (folder / foreign).write_text("precious")
    before = tree(folder)
    for act in (lambda: check_folder(folder, KIND), lambda: write_folder(folder, contents("y"), KIND)):
        with pytest.raises(TracelensError, match=rf"holds {foreign}|not ours"):
            act()
    assert tree(folder) == before


def test_a_folder_with_the_name_of_a_file_of_ours_stays(tmp_path: Path) -> None:
    write_folder(tmp_path / "f", contents("x"), KIND)
    (tmp_path / "f" / "x").unlink()
    (tmp_path / "f" / "x").mkdir()
    with pytest.raises(TracelensError, match="holds x"):
        write_folder(tmp_path / "f", contents("x"), KIND)


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/x", "..", ".", "", "a\0b"])
def test_names_in_a_folder_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(TracelensError, match="is not a file name"):
        write_folder(tmp_path / "f", contents(name), KIND)
    assert tree(tmp_path) == {}


def failing_at(number: int, real: Callable[..., None], error: BaseException) -> Callable[..., None]:
    """A rename of which the one of this number fails; those that move back do not."""
    left = [number]

    def rename(source: str, target: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise error
        real(source, target)

    return rename


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_a_move_that_fails_moves_all_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException
) -> None:
    folder = tmp_path / "folder"
    write_folder(folder, contents("a", "b", text="old"), KIND)
    before = tree(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing_at(number, os.rename, error))
        expected = TracelensError if isinstance(error, OSError) else KeyboardInterrupt
        moves = 3 + 4  # a, b and the index out; b, c, d and the index in
        with pytest.raises(expected):
            write_folder(folder, contents("b", "c", "d"), KIND)
        assert number <= moves
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "killed_after", [1, 4, 7, *(pytest.param(number, marks=pytest.mark.slow) for number in (2, 3, 5, 6))]
)
def test_leftovers_of_a_killed_command_are_ours(tmp_path: Path, killed_after: int) -> None:
    code = f"""
import os
from tests.outputs.test_files import KIND, contents, write_folder
real, left = os.rename, [{killed_after}]
def rename(source, target):
    real(source, target)
    left[0] -= 1
    if left[0] == 0:
        os._exit(9)
os.rename = rename
write_folder({str(tmp_path / "f")!r}, contents("b", "c", "d"), KIND)
"""
    write_folder(tmp_path / "f", contents("a", "b", text="old"), KIND)
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 9
    write_folder(tmp_path / "f", contents("e"), KIND)
    assert set(tree(tmp_path / "f")) == {"e", "index.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_the_current_folder_can_be_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(".", contents("a"), KIND)
    write_folder(".", contents("b"), KIND)
    assert set(tree(tmp_path)) == {"b", "index.json"}
