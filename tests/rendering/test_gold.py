"""The text formats, whole, as files a reviewer can read."""

from __future__ import annotations

import re

from tests.rendering import sample
from tests.rendering.gold import check
from tracelens.rendering import RENDERERS
from tracelens.rendering.formats import console_text, fragment, markdown_text, one_result
from tracelens.table import Report

csv_files = RENDERERS.get("csv").files
html_files = RENDERERS.get("html").files
json_files = RENDERERS.get("json").files


def without_assets(page: str) -> str:
    """The page without its scripts, styles, their hashes and compressed rows, which have other tests."""
    page = re.sub(r"sha256-[\w+/=]+", "sha256-...", page)
    page = re.sub(r"<style>.*?</style>", "<style></style>", page, flags=re.DOTALL)
    page = re.sub(r'(<script type="application/octet-stream" [^>]*>)[^<]*', r"\1", page)
    return re.sub(r"<script>.*?</script>", "<script></script>", page, flags=re.DOTALL)


def test_console() -> None:
    check("report.txt", console_text(sample.small(), width=100))


def test_console_in_color() -> None:
    check("report.ansi", console_text(sample.small(), width=72, color=True))


def test_markdown() -> None:
    check("report.md", markdown_text(sample.small()))


def test_markdown_of_two_runs() -> None:
    result = sample.diff(8, names=("idle: launch overhead", "experts: loop to grouped GEMM", "same kernels"))
    check("diff.md", markdown_text(Report((result,), title="Two runs")))


def test_json() -> None:
    check("report.json", json_files(sample.small())["report.json"].decode())


def test_json_of_one_result() -> None:
    check("one.json", one_result(sample.timeline(1, 1), {"version": "0.1.0", "inputs": ["a.json"]}).decode())


def test_csv() -> None:
    files = csv_files(sample.small())
    check("csv.txt", "".join(f"==> {name}\n{content.decode()}" for name, content in files.items()))


def test_html() -> None:
    check("report.html", without_assets(html_files(sample.small())["report.html"].decode()))


def test_fragment() -> None:
    check("fragment.html", without_assets(fragment(sample.small().results[1])))
