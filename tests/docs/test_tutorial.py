"""The tutorial quotes what its commands print, and its figures are theirs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import execute, working_in

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COLUMNS = 80
FIGURE = re.compile(r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?) ?(ms|µs|%|TFLOP/s)")
"""In running text. Bounds of ranges have no unit of their own and are not seen."""
FROM_ELSEWHERE = {
    "35.8 ms": "the report of the run with the fix",
    "20.66 ms": "the card in the picture, drawn by the report's script",
    "14 µs": "the roofline in the script that replay writes",
    "12.62 µs": "the roofline in the script that replay writes",
}


def blocks() -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in BLOCK.finditer(TEXT)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tutorial")
    (folder / "sample_traces").symlink_to(ROOT / "sample_traces")
    return folder


@pytest.fixture(scope="module")
def printed(folder: Path) -> dict[str, str]:
    """Block of commands to what it prints."""
    outputs: dict[str, str] = {}
    with working_in(folder, COLUMNS):
        for language, code in blocks():
            if language != "sh" or code.startswith("# needs GPUs"):
                continue
            outputs[code] = ""
            for line in code.replace("\\\n", " ").splitlines():
                exit_code, output = execute(line)
                assert exit_code == 0, f"{line}\n{output}"
                outputs[code] += output
    return outputs


@pytest.mark.slow
def test_quotes_are_what_the_commands_print(printed: dict[str, str]) -> None:
    quotes = 0
    code = ""
    for language, content in blocks():
        if language != "text":
            code = content
            continue
        quotes += 1
        output = [line.rstrip() for line in printed[code].splitlines()]
        begin = 0
        for part in content.split("…\n"):
            lines = part.rstrip("\n").split("\n")
            starts = range(begin, len(output) - len(lines) + 1)
            start = next((row for row in starts if output[row : row + len(lines)] == lines), None)
            assert start is not None, f"{code}does not print\n{part}but\n{printed[code]}"
            begin = start + len(lines)
    assert quotes >= 8


@pytest.mark.slow
def test_figures_in_the_text_are_printed_by_a_command(printed: dict[str, str], folder: Path) -> None:
    prose = BLOCK.sub("", TEXT)
    output = "\n".join(printed.values())
    known = [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", output)]
    figures = {f"{number} {unit}": number for number, unit in FIGURE.findall(prose)}
    assert len(figures) > 15
    strange = []
    for figure, number in figures.items():
        digits = len(number.partition(".")[2])
        value = float(number.replace(",", ""))
        if figure not in FROM_ELSEWHERE and not any(round(each, digits) == value for each in known):
            strange.append(figure)
    assert not strange
    script = next((folder / "replay").glob("*.py")).read_text(encoding="utf-8")
    assert '"MI300X": 12.62' in script
    assert '"H200": 14,' in script


@pytest.mark.slow
def test_what_the_commands_write(printed: dict[str, str], folder: Path) -> None:
    assert printed
    assert {path.name for path in folder.iterdir()} == {"sample_traces", "report.html", "base.json", "replay"}
