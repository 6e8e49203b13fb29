"""Tables of the page: cells as Python writes them; sorted, filtered, folded, narrowed to a rank, copied."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser.chromium import becomes, chromium, errors, until
from tests.browser.pages import Run, click, column, fill, open_sections, sort_by, wait_alive
from tests.rendering import sample
from tracelens.rendering import write
from tracelens.rendering.tables import cut
from tracelens.table import Coded, Column, Report, Result, Schema

BIG = 50_000
MOST_MS = 3_000
"""Longer than this a table of so many rows keeps no reader waiting."""
RANKS = 8


def numbers() -> Result:
    """Values of every unit at the edges of rounding: ties, absent ones, infinities, negative zeros."""
    random = np.random.default_rng(7)
    rows = 400
    ties = (random.integers(-4000, 4000, rows) + 0.5) / 2.0 ** random.integers(0, 12, rows)
    size = 10.0 ** random.uniform(-4, 18, rows)
    odd = np.array([-1, -0.0, 0.0, np.inf, 0.5, 1.5, 2.5, 0.125, 1e22, 1e15 + 0.3] + [1.0] * (rows - 10))
    whole = np.array([-1, 0, 2**53, 999, 1000, 12_345] + [1_125] * (rows - 6), np.int64)
    columns, data = [], {}
    for unit in (
        "",
        "ns",
        "bytes",
        "flops",
        "flops/s",
        "bytes/s",
        "flops/byte",
        "fraction",
        "ratio",
        "efficiency",
    ):
        stem = unit.replace("/", "_")
        for kind, values in (("ties", ties), ("size", size), ("odd", odd), ("whole", whole)):
            if kind == "odd" or values is whole or unit or kind == "ties":
                dtype = "int64" if values is whole else "float64"
                absent = -1 if kind in ("odd", "whole") else None
                columns.append(Column(f"{stem}_{kind}", dtype, unit, absent=absent))  # type: ignore[arg-type]
                data[f"{stem}_{kind}"] = values
    # A loss can be -1 ns, and unknown.
    columns.append(Column("lost_ns", "int64", "ns", absent=np.iinfo(np.int64).min))
    data["lost_ns"] = np.array([np.iinfo(np.int64).min, -1] + [-12_345_678] * (rows - 2), np.int64)
    columns += [Column("flag", "bool"), Column("note", "str"), Column("name", "category")]
    data["flag"] = random.integers(0, 2, rows).astype(bool)
    data["note"] = ["cached input; and more", "", "a\tb; c", "; d"] * (rows // 4)
    data["name"] = [sample.NASTY[row % len(sample.NASTY)] for row in range(rows)]
    table = Schema("Numbers", tuple(columns)).table(data)
    return sample.result("numbers", "Numbers", {"numbers": table})


def many_ranks() -> Result:
    """50,000 kernels of eight ranks, in steps."""
    random = np.random.default_rng(1)
    names = [f"void at::native::kernel_{number}<{'float, ' * 20}{number}>" for number in range(900)]
    steps = ["ProfilerStep#1", "it's #2"]
    columns = (
        sample.RANK,
        Column("name", "category", doc="Kernel."),
        Column("step", "category"),
        Column("count", "int64", "count"),
        Column("dur_ns", "int64", "ns"),
        Column("mean_ns", "float64", "ns"),
        Column("fraction", "float64", "fraction"),
    )
    data = {
        "rank": np.arange(BIG) * RANKS // BIG,
        "name": Coded(random.integers(0, 900, BIG), names),
        "step": Coded(random.integers(0, 2, BIG), steps),
        "count": random.integers(1, 5000, BIG),
        "dur_ns": random.integers(10**3, 10**8, BIG),
        "mean_ns": random.uniform(0, 10**6, BIG),
        "fraction": random.uniform(0, 1, BIG),
    }
    small = Schema("Job", (Column("name", "str"), Column("dur_ns", "int64", "ns")))
    job = small.table({"name": [f"thing {n}" for n in range(8)], "dur_ns": np.arange(8) * 10**6})
    return sample.result(
        "many", "Many", {"kernels": Schema("Kernels", columns, key=()).table(data), "job": job}
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    write(sample.report(), folder / "report.html")
    write(Report((numbers(), many_ranks())), folder / "numbers.html")
    return folder


@pytest.fixture(scope="module")
def driver(pages: Path) -> Iterator[Any]:
    with chromium(pages) as browser:
        yield browser


@pytest.fixture
def browser(driver: Any) -> Iterator[Any]:
    yield driver
    assert errors(driver) == []


def opened(browser: Any, path: Path, *grids: str, address: str = "") -> Run:
    """The page, loaded anew, with these tables alive."""
    browser.get("about:blank")
    browser.get(path.as_uri() + address)
    open_sections(browser)
    for grid in grids:
        wait_alive(browser, grid)
    # What is copied is kept where a test can read it.
    browser.execute_script(
        "window.copied = []; navigator.clipboard.writeText = async (text) => { copied.push(text); }"
    )
    run: Run = browser.execute_script
    return run


def count(run: Run, grid: str) -> str:
    return str(run("return document.getElementById(arguments[0]).querySelector('.found').textContent", grid))


def test_cells_are_those_of_python(browser: Any, pages: Path) -> None:
    run = opened(browser, pages / "numbers.html", "numbers-numbers")
    script = """
        const done = arguments[0];
        tracelens.table("numbers-numbers").then(({ view }) => done(Object.fromEntries(view.spec.columns.map(
            ({ name }) => [name, Array.from({ length: view.rows }, (_, row) => view.text(name, row))]))));
    """
    shown = browser.execute_async_script(script)
    part = cut(numbers().data["numbers"], 10_000)
    for expected in part.columns:
        texts = [
            text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in expected.texts
        ]
        assert shown[expected.column.name] == texts, expected.column
    headers = run("return [...document.querySelectorAll('#numbers-numbers th')].map(th => th.innerText)")
    assert headers == [expected.format.header for expected in part.columns]


@pytest.mark.rare
def test_the_script_takes_over_without_a_change(browser: Any, pages: Path) -> None:
    """Each cell that stands in the page as HTML is there again when the script has made it."""
    rows = """
        const value = (cell) => Number(cell.dataset.v?.replace("inf", "Infinity") ?? -2);
        const cell = (td) => [td.innerText, value(td), td.className, td.title, td.style.cssText];
        const rows = (grid) => [...grid.querySelectorAll("tbody tr:not([hidden])")];
        const cells = (grid) => rows(grid).map((row) => [...row.cells].map(cell));
        const head = (grid) => [...grid.querySelectorAll("thead th")].map((th) => [th.innerText, th.title]);
        const grids = [...document.querySelectorAll(".grid:has(table)")];
        return grids.map((grid) => [grid.id, head(grid), cells(grid)]);
    """
    static = pages / "static.html"
    static.write_text((pages / "report.html").read_text().replace("<script>", '<script type="text/plain">'))
    browser.get(static.as_uri())
    open_sections(browser)
    before = browser.execute_script(rows)
    run = opened(browser, pages / "report.html", *(grid for grid, *_ in before))
    after = run(rows)
    assert len(before) > 5
    for (grid, old_head, old_rows), (_, new_head, new_rows) in zip(before, after, strict=True):
        assert new_head == old_head, grid
        for old, new in zip(old_rows, new_rows, strict=False):
            # The page's numbers are floats: beyond 2**53 the last digits are lost.
            exact = [index for index, cell in enumerate(old) if abs(cell[1] or 0) < 2**53]
            assert [new[index] for index in exact] == [old[index] for index in exact], grid


def test_numbers_are_filtered_by_value_and_unit(browser: Any, pages: Path) -> None:
    run = opened(browser, pages / "numbers.html", "many-kernels")
    table = many_ranks().data["kernels"]
    dur, fraction = table.array("dur_ns"), table.array("fraction")
    click(run, "#many-kernels .column-filters")
    for name, text, expected in [
        ("dur_ns", ">50", (dur > 50e6).sum()),
        ("dur_ns", "<= 1.5ms", (dur <= 1.5e6).sum()),
        ("dur_ns", "3..7", ((dur >= 3e6) & (dur <= 7e6)).sum()),
        ("dur_ns", "900us..2 ms", ((dur >= 9e5) & (dur <= 2e6)).sum()),
        ("dur_ns", "!>50", (dur <= 50e6).sum()),
        ("count", "=17", (table.array("count") == 17).sum()),
        ("fraction", ">=99.5", (fraction >= 0.995).sum()),
        ("fraction", "<1%", (fraction < 0.01).sum()),
    ]:
        fill(
            run,
            f'#many-kernels [data-column="{name}"] input, #many-kernels input[data-column="{name}"]',
            text,
        )
        assert count(run, "many-kernels") == f"{expected:,} of {BIG:,} rows", text
        fill(run, f'#many-kernels input[data-column="{name}"]', "")
    fill(run, '#many-kernels input[data-column="dur_ns"]', ">much")
    invalid = "return document.querySelector('#many-kernels input[data-column=dur_ns]').ariaInvalid"
    assert run(invalid) == "true"
    assert "not a number: much" in count(run, "many-kernels")


@pytest.mark.rare
def test_filters_of_columns_work_together(browser: Any, pages: Path) -> None:
    run = opened(browser, pages / "numbers.html", "many-kernels")
    table = many_ranks().data["kernels"]
    names = np.array(table.texts("name"))
    click(run, "#many-kernels .column-filters")
    fill(run, '#many-kernels input[data-column="name"]', "/kernel_1\\d\\d</")
    fill(run, '#many-kernels input[data-column="count"]', ">4000")
    matches = np.char.find(names, "kernel_1") >= 0
    matches &= np.array([len(name.partition("kernel_")[2].partition("<")[0]) == 3 for name in names])
    expected = int((matches & (table.array("count") > 4000)).sum())
    assert count(run, "many-kernels") == f"{expected:,} of {BIG:,} rows"
    fill(run, '#many-kernels input[data-column="name"]', "!kernel_1")
    expected = int((~(np.char.find(names, "kernel_1") >= 0) & (table.array("count") > 4000)).sum())
    assert count(run, "many-kernels") == f"{expected:,} of {BIG:,} rows"
    fill(run, '#many-kernels input[data-column="name"]', "/(/")
    assert "Invalid regular expression" in count(run, "many-kernels")


@pytest.mark.rare
def test_a_long_table_is_fast_and_small(browser: Any, pages: Path) -> None:
    run = opened(browser, pages / "numbers.html", "many-kernels")
    assert len(column(run, "many-kernels", 0)) < 100

    def filter_ms(text: str) -> float:
        script = """
            const box = document.querySelector('#many-kernels input[type=search]');
            box.value = arguments[0];
            const start = performance.now();
            box.dispatchEvent(new Event('input', {bubbles: true}));
            const laid_out = () => document.body.offsetHeight && performance.now() - start;
            return tracelens.table('many-kernels').then(laid_out);
        """
        return float(run(script, text))

    def sort_ms() -> float:
        script = """
            const start = performance.now();
            document.querySelector('#many-kernels th:nth-child(5) button').click();
            return document.body.offsetHeight && performance.now() - start;
        """
        return float(run(script))

    # Each is slow while other programs compute.
    assert until(lambda: filter_ms("kernel_7") < MOST_MS)
    assert until(lambda: filter_ms("") < MOST_MS)
    header = "return document.querySelector('#many-kernels th:nth-child(5)').ariaSort"
    assert until(lambda: sort_ms() < MOST_MS and run(header) == "descending")
    largest = np.sort(many_ranks().data["kernels"].array("dur_ns"))[::-1]
    assert column(run, "many-kernels", 4)[0] == f"{largest[0] / 1e6:,.3f}"
    run("document.querySelector('#many-kernels .scroll').scrollTop = 1e9")
    becomes(lambda: column(run, "many-kernels", 4)[-1], f"{largest[-1] / 1e6:,.3f}")


@pytest.mark.rare
def test_a_rank_and_a_step_narrow_every_table(browser: Any, pages: Path) -> None:
    run = opened(browser, pages / "numbers.html", "many-kernels", "many-job")
    table = many_ranks().data["kernels"]
    badges = "return [...document.querySelectorAll('#many-job .badge')].map(badge => badge.textContent)"
    assert run(badges) == []
    click(run, '.selection input[value="5"]')
    of_rank = table.array("rank") == 5
    assert count(run, "many-kernels") == f"{of_rank.sum():,} rows"
    assert run("return location.hash") == "#rank=5"
    assert run("return document.querySelector('#many-kernels th').textContent") == "name"
    click(run, '.selection input[value="it\'s #2"]')
    both = of_rank & (np.array(table.texts("step")) == "it's #2")
    assert count(run, "many-kernels") == f"{both.sum():,} rows"
    assert run(badges) == ["all steps", "all ranks"]
    click(run, "#many-job button.badge")
    assert run("return copied") == ["tracelens analyze many PATH --step 'it'\\''s #2'"]
    address = run("return location.hash")
    # A link inside the page keeps what is selected; a link with both can be shared.
    run("location.hash = '#many'")
    becomes(lambda: run("return location.hash"), "#many&" + address[1:])
    run = opened(browser, pages / "numbers.html", "many-kernels", address="#many&" + address[1:])
    assert count(run, "many-kernels") == f"{both.sum():,} rows"
    assert run("return tracelens.selection") == {"rank": 5, "step": "it's #2"}
    click(run, '.selection input[value="-1"]')
    click(run, '.selection input[value=""]')
    assert count(run, "many-kernels") == f"{BIG:,} rows"
    assert run("return location.hash") == "#many"


def across() -> Result:
    """Ops of three ranks, of which one has an op alone."""
    columns = (sample.RANK, Column("name", "str"), Column("dur_ns", "int64", "ns"))
    data = {
        "rank": np.array([0, 0, 1, 1, 2, 2, 2]),
        "name": ["mm", "add", "mm", "add", "mm", "add", "odd"],
        "dur_ns": np.array([30, 5, 40, 5, 80, 5, 1]) * 10**6,
    }
    return sample.result("ops", "Ops", {"ops": Schema("Ops", columns).table(data)})


@pytest.mark.rare
def test_ranks_are_compared_until_one_is_selected(browser: Any, tmp_path: Path) -> None:
    write(Report((across(),)), tmp_path / "across.html")
    run = opened(browser, tmp_path / "across.html", "ops-ops")
    heads = "return [...document.querySelectorAll('#ops-ops th')].map(th => th.dataset.column)"
    compared = run(heads)
    assert {"name", "worst_rank", "spread"} <= set(compared)
    assert column(run, "ops-ops", 0) == ["mm", "add", "odd"]
    run("tracelens.select({rank: 2})")
    becomes(lambda: run(heads), ["name", "dur_ns"])  # the rows are unpacked when they are asked for
    becomes(lambda: column(run, "ops-ops", 0), ["mm", "add", "odd"])
    assert column(run, "ops-ops", 1) == ["80.000", "5.000", "1.000"]
    run("tracelens.select({rank: 1})")
    assert column(run, "ops-ops", 0) == ["mm", "add"]
    run("tracelens.select({rank: -1})")
    assert run(heads) == compared
    click(run, "#ops-ops .each")
    becomes(lambda: run(heads), ["rank", "name", "dur_ns"])
    assert count(run, "ops-ops") == "7 rows"


def test_an_address_with_an_unknown_rank_selects_nothing(browser: Any, pages: Path) -> None:
    run = opened(browser, pages / "numbers.html", address="#rank=99&step=none")
    assert run("return tracelens.selection") == {"rank": -1, "step": ""}


def test_visible_rows_are_copied_as_shown_and_raw(browser: Any, pages: Path) -> None:
    run = opened(browser, pages / "numbers.html", "many-job")
    fill(run, "#many-job input[type=search]", "thing 3")
    becomes(lambda: column(run, "many-job", 0), ["thing 3"])
    click(run, "#many-job .menu:last-child button:first-child")
    click(run, "#many-job .menu:last-child button:last-child")
    copied = ["name\ttime (µs)\nthing 3\t3,000.00\n", "name\tdur_ns\nthing 3\t3000000\n"]
    becomes(lambda: run("return copied"), copied)
    click(run, "#many-job tbody td:nth-child(2)")
    assert run("return copied").pop() == "3,000.00"


@pytest.mark.rare
def test_hidden_columns_are_not_copied(browser: Any, pages: Path) -> None:
    run = opened(browser, pages / "numbers.html", "many-job")
    click(run, "#many-job .menu summary")
    assert until(lambda: run("return document.querySelector('#many-job .menu label:first-child input')"))
    click(run, "#many-job .menu label:first-child input")
    heads = "return [...document.querySelectorAll('#many-job th')].map(th => th.innerText)"
    becomes(lambda: run(heads), ["time (µs)"])
    click(run, "#many-job .menu:last-child button:first-child")
    (text,) = until(lambda: run("return copied"))
    assert text.splitlines()[:2] == ["time (µs)", "0.00"]


@pytest.mark.rare
def test_a_page_without_clipboard_still_copies(browser: Any, pages: Path) -> None:
    run = opened(browser, pages / "numbers.html", "many-job")
    run("""
        Object.defineProperty(navigator, "clipboard", { value: undefined });
        document.execCommand = (command) => copied.push([command, document.activeElement.value]) > 0;
    """)
    click(run, "#many-job tbody td")
    becomes(lambda: run("return copied"), [["copy", "thing 0"]])
    assert run("return document.querySelectorAll('textarea').length") == 0


@pytest.mark.rare
def test_everything_is_reached_by_keyboard(browser: Any, pages: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    def press(*keys: str) -> None:
        browser.switch_to.active_element.send_keys(*keys)

    run = opened(browser, pages / "numbers.html", "many-kernels")
    at = "return [document.activeElement.parentNode.ariaRowIndex, document.activeElement.cellIndex]"
    run("document.querySelector('#many-kernels tbody td[tabindex=\"0\"]').focus()")
    assert run(at) == ["2", 0]
    press(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert run(at) == ["3", 1]
    press(Keys.CONTROL + Keys.END)
    assert run(at) == [str(BIG + 1), 6]
    press(Keys.ENTER)
    last = many_ranks().data["kernels"].array("fraction")[-1]
    assert run("return copied") == [f"{last:.1%}"]
    press(Keys.CONTROL + Keys.HOME)
    assert run(at) == ["2", 0]
    # One stop of the tab key in the cells, one each in the header.
    run("document.querySelector('#many-kernels th:last-child button').focus()")
    press(Keys.TAB)
    assert run(at) == ["2", 0]
    run("document.querySelector('#many-kernels th:nth-child(4) button').focus()")
    press(Keys.ENTER)
    assert run("return document.querySelector('#many-kernels th:nth-child(4)').ariaSort") == "descending"
    run("document.querySelector('.selection input').focus()")
    press(Keys.ARROW_RIGHT)
    assert run("return tracelens.selection.rank") == 0


@pytest.mark.rare
def test_a_tree_is_folded_by_keyboard(browser: Any, pages: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    run = opened(browser, pages / "report.html", "breakdown-breakdown")
    focused = "const row = document.activeElement.parentNode; return [row.ariaLevel, row.ariaExpanded]"
    run("document.querySelector('#breakdown-breakdown tbody td[tabindex=\"0\"]').focus()")
    rows = len(column(run, "breakdown-breakdown", 0))
    assert run(focused) == ["1", "true"]
    browser.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert run(focused) == ["1", "false"]
    assert len(column(run, "breakdown-breakdown", 0)) < rows
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert run(focused) == ["1", "true"]
    assert len(column(run, "breakdown-breakdown", 0)) == rows


@pytest.mark.rare
def test_long_names_are_whole_where_they_are_copied(browser: Any, pages: Path) -> None:
    run = opened(browser, pages / "report.html", "kernels-kernels")
    cell = "#kernels-kernels td.l"
    assert len(run("return document.querySelector(arguments[0]).innerText", cell)) <= 72
    assert len(run("return document.querySelector(arguments[0]).title", cell)) > 1000
    click(run, cell)
    assert run("return copied") == [sample.LONG]
    title = run("return document.querySelector(arguments[0]).title", cell)
    becomes(lambda: run("return document.querySelector('.whole').innerText"), title)
    run("document.activeElement.blur()")
    assert run("return document.querySelector('.whole').hidden")


@pytest.mark.rare
def test_nothing_is_lost_of_a_tree(browser: Any, pages: Path) -> None:
    run = opened(browser, pages / "report.html", "breakdown-breakdown")
    click(run, "#breakdown-breakdown .all[aria-pressed]:nth-of-type(2)")
    every = len(sample.breakdown().data["breakdown"])
    becomes(lambda: len(column(run, "breakdown-breakdown", 0)), every)


@pytest.mark.rare
def test_what_does_not_fit_is_said(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens.rendering.formats.html._LEAST_BYTES", 200_000)
    monkeypatch.setattr("tracelens.rendering.formats.html.page_bytes", lambda ranks: 0)
    path = tmp_path / "cut.html"
    write(Report((many_ranks(),)), path)
    run = opened(browser, path, "many-kernels")
    held = json.loads(run("return document.getElementById('tables').textContent"))["tables"]["many-kernels"]
    number = held["views"]["rows"]["held"]
    assert 1000 < number < BIG
    assert number % RANKS == 0
    assert f"This page holds {number:,} of {BIG:,}" in count(run, "many-kernels")
    assert "tracelens analyze many PATH --json" in count(run, "many-kernels")
    for rank in (0, 7):
        run("tracelens.select({rank: arguments[0]})", rank)
        assert count(run, "many-kernels").startswith(f"{number // RANKS:,} rows")
    run("tracelens.select({rank: -1})")


def test_a_click_on_a_header_sorts(browser: Any, pages: Path) -> None:
    run = opened(browser, pages / "report.html", "ops-ops", "kernels-kernels")
    counts = [f"{24 * number:,}" for number in range(1, 31)]
    assert sort_by(run, "ops-ops", "count") == "descending"
    assert column(run, "ops-ops", 3) == counts[::-1]
    assert sort_by(run, "ops-ops", "count") == "ascending"
    assert column(run, "ops-ops", 3) == counts
    assert sort_by(run, "ops-ops", "count") == "none"
    assert sort_by(run, "kernels-kernels", "category") == "ascending"
    shown = column(run, "kernels-kernels", 2)
    assert shown == sorted(shown)
    assert len(shown) == 30


@pytest.mark.parametrize("name", ["ns_odd", "lost_ns"])
def test_absent_numbers_stand_last(browser: Any, pages: Path, name: str) -> None:
    run = opened(browser, pages / "numbers.html", "numbers-numbers")
    column_number = f"return document.querySelector('#numbers-numbers th[data-column={name}]').cellIndex"
    for _ in range(2):
        sort_by(run, "numbers-numbers", name)
        run("document.querySelector('#numbers-numbers .scroll').scrollTop = 1e9")
        becomes(lambda: column(run, "numbers-numbers", run(column_number))[-1], "–")


def test_filters_tell_unknown_numbers_from_small_ones(browser: Any, pages: Path) -> None:
    run = opened(browser, pages / "numbers.html", "numbers-numbers")
    script = """
        const view = await tracelens.table("numbers-numbers").then((grid) => grid.view);
        const rows = (text) => view.visible({ selection: { rank: -1, step: "" }, sort: null,
            filters: { lost_ns: text }, query: "", isOpen: () => true }).positions.length;
        return [rows("<0"), rows(">-1e6 ns"), rows("= -"), view.raw("lost_ns", 0), view.raw("lost_ns", 1)];
    """
    assert run(script) == [399, 1, 1, "", -1]


@pytest.mark.rare
def test_the_filter_looks_into_whole_names(browser: Any, pages: Path) -> None:
    run = opened(browser, pages / "report.html", "kernels-kernels")
    fill(run, "#kernels-kernels input", "cute::c<3>")
    becomes(lambda: count(run, "kernels-kernels"), "1 of 30 rows")
    (shown,) = column(run, "kernels-kernels", 1)
    assert shown.startswith("Kernel<tuple<C<0>")
    fill(run, "#kernels-kernels input", "")
    becomes(lambda: len(column(run, "kernels-kernels", 1)), 30)


def test_a_tree_opens_and_closes(browser: Any, pages: Path) -> None:
    grid = "breakdown-breakdown"
    run = opened(browser, pages / "report.html", grid)
    top = ["ProfilerStep#3", "collective", "attention", "gemm", "moe"]
    assert column(run, grid, 0) == top
    toggle = f'[id="{grid}"] tbody tr:nth-child(2) .tw'
    click(run, toggle)
    shown = column(run, grid, 0)
    assert shown[:3] == [*top[:2], "aten::collective_3"]
    assert len(shown) == 9
    click(run, toggle)
    assert column(run, grid, 0) == top


@pytest.mark.rare
def test_a_tree_keeps_its_shape_when_sorted_and_filtered(browser: Any, pages: Path) -> None:
    grid = "breakdown-breakdown"
    run = opened(browser, pages / "report.html", grid)
    sort_by(run, grid, "name")
    assert column(run, grid, 0) == ["ProfilerStep#3", "attention", "collective", "gemm", "moe"]
    fill(run, f"#{grid} input", "aten::moe_2")
    becomes(lambda: column(run, grid, 0), ["ProfilerStep#3", "moe", "aten::moe_2"])
    fill(run, f"#{grid} input", "")
    becomes(lambda: len(column(run, grid, 0)), 5)
