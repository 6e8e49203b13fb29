"""What the pages show works as shown: every command, every piece of Python, every output."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import Reader, blocks, check_options, inline_commands, make_sandbox, pages, parse


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sandbox(tmp_path_factory.mktemp("sandbox"))


@pytest.fixture
def reader(template: Path, tmp_path: Path) -> Reader:
    folder = tmp_path / "page"
    shutil.copytree(template, folder, symlinks=True)
    return Reader(folder)


def marked(page: str) -> Any:
    marks = []
    if any(block.need == "torch" for block in blocks(page)):
        marks.append(pytest.mark.more_with_torch)
    if page == "docs/how-to/workload.md":  # trains and serves, where other pages show recorded samples
        marks.append(pytest.mark.rare)
    return pytest.param(page, marks=marks)


@pytest.mark.parametrize("page", [marked(page) for page in pages() if blocks(page)])
def test_blocks_do_what_the_page_says(page: str, reader: Reader) -> None:
    reader.follow(blocks(page))


@pytest.mark.parametrize("page", [page for page in pages() if inline_commands(page)])
def test_commands_in_sentences_exist(page: str) -> None:
    for command in inline_commands(page):
        check_options(command)


@pytest.mark.parametrize(
    "page",
    [
        "```sh\ntracelens list devices --no-such\n```",
        "```sh\n# needs GPUs\ntracelens replay --no-such\n```",
        "```sh\n# needs a miracle\ntracelens list devices\n```",
        "```sh\ntracelens list devices # exit code 1\n```",
        "```sh\nmake no-such\n```",
        "```sh\npip install 'tracelens-moe[no-such]'\n```",
        "```sh\ntracelens list devices\n```\n\n```text\nnot a device\n```",
        "```python\nprint(1)\n```\n\n```text\n2\n```",
        "Output:\n\n```text\nof no command\n```",
        "```python\n1 / 0\n```",
        "```toml\nname =\n```",
        "```perl\nprint 1\n```",
    ],
)
def test_a_page_that_is_wrong_fails(page: str, reader: Reader) -> None:
    with pytest.raises((AssertionError, ZeroDivisionError)):
        reader.follow(parse(page, "page.md"))


def test_a_page_that_is_right_passes(reader: Reader) -> None:
    page = """\
        === "A tab"

            ```toml title="mychip.toml"
            name = "mychip"
            hbm_bytes_per_s = 4e12
            [matrix]
            bf16 = 800e12
            ```

            ```sh
            tracelens analyze roofline trace.json.gz --device-file mychip.toml | grep mychip
            tracelens gate base.json no-such/  # exit code 2
            ```

        ```python
        print("one")
        names = ["a", "b"]
        len(names)
        ```

        ```text
        one
        2
        ```
        """
    read = parse(textwrap.dedent(page), "page.md")
    assert [block.language for block in read] == ["toml", "sh", "python", "text"]
    reader.follow(read)
    assert (reader.folder / "mychip.toml").read_text().startswith('name = "mychip"\n')
