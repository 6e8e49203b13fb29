"""The directory of scripts: what is written there, replaced, and refused."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.reproducers.calls import script_of
from tracelens.errors import TracelensError
from tracelens.reproducers import LIST
from tracelens.reproducers.folder import Script, read, write
from tracelens.table import Skip
from tracelens.version import __version__


def one(name: str = "aten_mm", text: str = "x = 1\n", **options: Any) -> Script:
    values = {"kind": "op", "subject": "aten::mm", "shapes": "bf16[4]", "count": 3, "traced_us": 1.5}
    return Script(name=name, text=text, **{**values, "total_us": 4.5, **options})  # type: ignore[arg-type]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_scripts_are_numbered_in_their_order(tmp_path: Path) -> None:
    entries = write(tmp_path, [one("b"), one("a", "é\n", kind="collective", processes=8)], [Skip("x", "why")])
    assert names(tmp_path) == ["01_b.py", "02_a.py", LIST]
    assert (tmp_path / "02_a.py").read_text(encoding="utf-8") == "é\n"
    assert read(tmp_path) == entries
    assert [entry.file for entry in entries] == ["01_b.py", "02_a.py"]
    listed = json.loads((tmp_path / LIST).read_text())
    assert listed["tracelens"] == __version__
    assert listed["skips"] == [{"subject": "x", "reason": "why"}]
    assert listed["scripts"][1] == {
        "file": "02_a.py",
        "kind": "collective",
        "subject": "aten::mm",
        "shapes": "bf16[4]",
        "count": 3,
        "traced_us": 1.5,
        "total_us": 4.5,
        "processes": 8,
        "sha256": hashlib.sha256("é\n".encode()).hexdigest(),
        "ages": [],
        "source": "",
    }


def test_numbers_sort_as_text(tmp_path: Path) -> None:
    entries = write(tmp_path, [one(f"n{place}") for place in range(101)], [])
    assert [entries[0].file, entries[99].file] == ["001_n0.py", "100_n99.py"]
    assert names(tmp_path)[:-1] == [entry.file for entry in entries]


def test_an_earlier_replay_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, [one("a"), one("b"), one("c")], [])
    write(tmp_path, [one("d")], [])
    assert names(tmp_path) == ["01_d.py", LIST]
    (tmp_path / "01_d.py").unlink()  # nobody misses it
    write(tmp_path, [], [])
    assert names(tmp_path) == [LIST]
    assert read(tmp_path) == []


def test_files_that_are_none_of_ours_are_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.py").write_text("precious")
    with pytest.raises(
        TracelensError, match=r"holds thesis.py, which is not a script of a replay; choose another -o"
    ):
        write(tmp_path, [one()], [])
    assert names(tmp_path) == ["thesis.py"]
    (tmp_path / "thesis.py").unlink()
    write(tmp_path, [one()], [])
    (tmp_path / "thesis.py").write_text("precious")
    with pytest.raises(TracelensError, match=r"holds thesis.py"):
        write(tmp_path, [one("other")], [])
    assert names(tmp_path) == ["01_aten_mm.py", LIST, "thesis.py"]


def test_a_list_that_is_not_ours_is_kept(tmp_path: Path) -> None:
    (tmp_path / LIST).write_text('{"mine": 1}')
    with pytest.raises(TracelensError, match="not a script list that tracelens wrote"):
        write(tmp_path, [one()], [])
    assert (tmp_path / LIST).read_text() == '{"mine": 1}'


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TracelensError, match=r"file: File exists"):
        write(tmp_path / "file", [one()], [])
    with pytest.raises(TracelensError, match=r"Not a directory"):
        write(tmp_path / "file" / "below", [one()], [])
    if os.getuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(TracelensError, match="Permission denied"):
            write(tmp_path / "closed" / "below", [one()], [])


def test_no_directory_of_scripts(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(
            TracelensError, match=r"no replay.json; make one with tracelens replay TRACE -o DIR"
        ):
            read(folder)


@pytest.mark.parametrize(
    "file",
    [
        "../01_a.py",
        "/etc/01_a.py",
        "sub/01_a.py",
        "..\\01_a.py",
        "..",
        ".01_a.py",
        "-01_a.py",
        "01_a",
        "01_a.sh",
        "01_a.py\n",
        "01 a.py",
        "01_a.py; rm x.py",
        "",
        "é.py",
        "a" * 200 + ".py",
        7,
        None,
        ["01_a.py"],
    ],
)
def test_only_files_of_the_directory_itself(file: Any, tmp_path: Path) -> None:
    write(tmp_path, [one()], [])
    listed = json.loads((tmp_path / LIST).read_text())
    listed["scripts"][0]["file"] = file
    (tmp_path / LIST).write_text(json.dumps(listed))
    with pytest.raises(TracelensError, match="not a script list that tracelens wrote"):
        read(tmp_path)
    # Nor is anything removed.
    with pytest.raises(TracelensError):
        write(tmp_path, [one("new")], [])
    assert names(tmp_path) == ["01_aten_mm.py", LIST]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"scripts": {}}',
        '{"scripts": [{}]}',
        '{"scripts": [7]}',
        '{"scripts": null}',
        "[" * 100_000,
        "\x00",
        '{"scripts": "01_a.py"}',
    ],
)
def test_other_lists_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / LIST).write_text(text)
    with pytest.raises(TracelensError, match="not a script list that tracelens wrote"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", "3"),
        ("count", -1),
        ("count", (1 << 63) - 1),
        ("traced_us", "1"),
        ("traced_us", -1.0),
        ("total_us", 1e300),
        ("processes", 1.5),
        ("processes", -1),
        ("processes", 2),
        ("processes", 1 << 62),
        ("kind", 3),
        ("kind", "shell"),
        ("subject", None),
        ("shapes", []),
        ("sha256", None),
        ("sha256", "f" * 63),
        ("sha256", "F" * 64),
    ],
)
def test_fields_have_their_types_and_bounds(name: str, value: Any, tmp_path: Path) -> None:
    write(tmp_path, [one()], [])
    listed = json.loads((tmp_path / LIST).read_text())
    listed["scripts"][0][name] = value
    (tmp_path / LIST).write_text(json.dumps(listed))
    with pytest.raises(TracelensError):
        read(tmp_path)


def test_a_list_without_hashes_is_of_an_older_version(tmp_path: Path) -> None:
    write(tmp_path, [one(), one()], [])
    listed = json.loads((tmp_path / LIST).read_text())
    del listed["scripts"][1]["sha256"]
    (tmp_path / LIST).write_text(json.dumps(listed))
    with pytest.raises(TracelensError, match="without script hashes; regenerate"):
        read(tmp_path)
    write(tmp_path, [one()], [])  # which replaces it
    assert len(read(tmp_path)) == 1


def test_times_may_be_whole(tmp_path: Path) -> None:
    write(tmp_path, [one(traced_us=2, total_us=6)], [])
    assert (read(tmp_path)[0].traced_us, read(tmp_path)[0].total_us) == (2, 6)


def test_a_list_of_a_later_version_may_say_more(tmp_path: Path) -> None:
    entries = write(tmp_path, [one()], [])
    listed = json.loads((tmp_path / LIST).read_text())
    listed["more"] = listed["scripts"][0]["more"] = 1
    (tmp_path / LIST).write_text(json.dumps(listed))
    assert read(tmp_path) == entries


def test_a_script_of_an_op_with_a_long_name_is_found_again(tmp_path: Path) -> None:
    made = script_of("n" * 64 + "::" + "m" * 128, "fp32 4")
    entries = write(tmp_path, [made], [])
    assert read(tmp_path) == entries
    assert (tmp_path / entries[0].file).exists()
