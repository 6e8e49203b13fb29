"""The README: its size, pictures, links, and every number. Its blocks run in tests/docs/test_blocks.py."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

import tracelens
from tests.planner.memory import test_memory_measured as memory
from tracelens.analysis import in_order
from tracelens.cli import run
from tracelens.planner.memory import stages

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_traces"
README = (ROOT / "README.md").read_text()
LINES = 150
LINE = 120
PICTURE_BYTES = 400_000
_NUMBER = re.compile(r"(?<![\w.=-])\d[\d,.]*\d%?|(?<![\w.=-])\d%?")


class Row(NamedTuple):
    """A row of one of the two tables: a command and what the README says about it."""

    folder: Path
    command: str
    text: str


def section(title: str) -> str:
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    return str(text)


def rows(title: str, command: int, text: int, folder: Path) -> list[Row]:
    """The rows with a `tracelens` command, by the columns of command and text."""
    cells = [line.strip("|").split("|") for line in section(title).splitlines() if line.startswith("| ")]
    return [
        Row(folder, match[1], row[text])
        for row in cells
        if (match := re.fullmatch(r" `tracelens (.+)` ", row[command]))
    ]


ANSWERS = rows("What it answers", 1, 2, SAMPLES)
CLAIMS = rows("Why you can trust it", 1, 0, ROOT)


def numbers(text: str) -> list[str]:
    """The numbers of a text, without those in names, code and links' targets."""
    return _NUMBER.findall(re.sub(r"`[^`]+`|\]\([^)]+\)", "", text))


def printed(row: Row, folder: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and output of a row's command; its outputs go below `folder`."""
    words = [str(folder / word[3:]) if word.startswith("../") else word for word in shlex.split(row.command)]
    capfd.readouterr()
    return run(words), capfd.readouterr().out


def shows(output: str, number: str) -> bool:
    return re.search(rf"(?<![\d.]){re.escape(number)}(?![\d%]|\.\d)", output) is not None


def test_it_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= LINES
    assert [line for line in lines if len(line) > LINE and not line.startswith(("|", "!["))] == []


def test_the_first_block_installs_and_reports() -> None:
    first = README.split("```sh\n")[1].split("```")[0]
    assert [line.split()[:2] for line in first.splitlines()] == [["pip", "install"], ["tracelens", "report"]]
    assert "`make demo`" in README.split("## ")[0]


def test_pictures() -> None:
    paths = [ROOT / path for path in re.findall(r"^!\[[^\]]{20,}\]\(([^)]+)\)$", README, re.MULTILINE)]
    assert len(paths) == 2
    for path in paths:
        data = path.read_bytes()
        assert (data[:4], data[8:12]) == (b"RIFF", b"WEBP")
        assert 10_000 < len(data) < PICTURE_BYTES


def test_links_lead_to_files() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    local = [target for target in targets if not target.startswith("https://")]
    assert len(local) > 20
    assert [target for target in local if not (ROOT / target).exists()] == []
    named = re.findall(r"`(?:pytest|python -m) ([^`]+)`", README)
    paths = [word for words in named for word in words.split() if "/" in word]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (sentence,) = re.findall(r"the extras are\s(.*?)\.\n", README, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", sentence)) == set(extras) - {"dev", "docs"}


def test_the_number_of_analyzers() -> None:
    (count,) = re.findall(r"has the (\d+) questions", README)
    assert int(count) == len(in_order())


@pytest.mark.parametrize("row", [*ANSWERS, *CLAIMS], ids=lambda row: row.command)
def test_answers_are_those_of_the_commands(
    row: Row, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number in an answer is printed by its command."""
    monkeypatch.chdir(row.folder)
    monkeypatch.setenv("COLUMNS", "200")
    text = row.text
    expected = 0
    if code := re.search(r"exit code (\d):", text):
        expected, text = int(code[1]), text.replace(code[0], "")
    text = text.split("measured")[0]  # by another command: test_the_measured_step
    actual, output = printed(row, tmp_path, capfd)
    assert actual == expected
    assert [number for number in numbers(text) if not shows(output, number)] == []


def test_every_table_has_numbers() -> None:
    """The test above compares something."""
    assert len(ANSWERS) >= 10
    assert len(CLAIMS) >= 3
    assert sum(len(numbers(row.text)) for row in ANSWERS) >= 20
    assert {row.command.split()[0] for row in ANSWERS} >= {
        "report", "analyze", "diff", "gate", "replay", "fuse", "project", "workload"
    }  # fmt: skip


def test_the_measured_step(capfd: pytest.CaptureFixture[str]) -> None:
    (measured,) = re.findall(r"measured: ([\d.]+) ms", README)
    assert run(["report", str(SAMPLES / "one_gpu" / "grouped")]) == 0
    assert shows(capfd.readouterr().out, measured)


def test_projections_within_ten_percent() -> None:
    """Of the pairs that changed the step by more than 10%; the others test little."""
    page = (ROOT / "docs" / "whatif-truth.md").read_text().split("## Counted\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if "%" in line]
    changed = [row for row in rows if abs(float(row[5]) / float(row[2]) - 1) > 0.1]
    close = sum(abs(float(row[6].rstrip("%"))) <= 10 for row in changed)
    (sentence,) = re.findall(
        r"\[Of (\d+) pairs\]\(docs/whatif-truth.md\) that change the step by more than 10%, (\d+) are", README
    )
    assert tuple(map(int, sentence)) == (len(changed), close)


def test_the_gate_fails_no_unchanged_program() -> None:
    page = (ROOT / "docs" / "gate.md").read_text()
    lines = [line.split("the same |")[1] for line in page.splitlines() if "the same |" in line]
    lines += [re.split(r"\| none \| \d+ \|", line)[1] for line in page.splitlines() if "| none |" in line]
    verdicts = [list(map(int, re.findall(r"\d+", line))) for line in lines]  # pairs, pass, fail, inconclusive
    ((count, undecided),) = re.findall(
        r"\[(\d+) comparisons\]\(docs/gate.md\).* none and leaves (\d+) undecided", README
    )
    assert sum(pairs for pairs, *_ in verdicts) == int(count)
    assert sum(failed for _, _, failed, _ in verdicts) == 0
    assert sum(open_ for *_, open_ in verdicts) == int(undecided)


def test_memory_of_measured_runs() -> None:
    (percent, count) = re.findall(r"within (\d)% of (\d+) measured runs", README)[0]
    cases = [  # and the rungs of the ladder, which that test holds to 0.5%
        (stages(memory.config(case), memory.WORKLOAD)[place].total, stage["peak"])
        for case in memory.MEASURED["case"]
        for place, stage in enumerate(case["stage"])
    ]
    assert len(memory.MEASURED["case"]) + len(memory.rungs()) == int(count)
    assert max(abs(projected / peak - 1) for projected, peak in cases) < int(percent) / 100


@pytest.mark.slow
def test_planted_faults_are_named() -> None:
    causes = {"gc": "garbage_collection", "token_skew": "token_load", "host_delay": "silent_host"}
    folders = sorted(path for path in (SAMPLES / "faults").iterdir() if path.is_dir())
    assert "In five runs with a planted fault" in README
    assert len(folders) == 5 + 1
    for folder in folders:
        table = tracelens.analyze(tracelens.load(folder), "stragglers")["stragglers"]
        named = table[table["significance"] == "significant"][["rank", "cause"]].to_numpy().tolist()
        fault = folder.name
        assert named == ([] if fault == "control" else [[1, causes.get(fault, fault)]])
