"""What somebody new wants to know of a report in a browser: at most two clicks away, with its number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.browser.chromium import becomes, chromium, until
from tests.browser.pages import column, wait_alive, wait_drawn
from tracelens.units import duration

SAMPLES = Path(__file__).parents[2] / "sample_traces"
BASELINE = SAMPLES / "ladder" / "ep4" / "00_baseline"
MOST_CLICKS = 2
REPORTS = {
    "ep4": lambda: tracelens.report_files(BASELINE),
    "token_skew": lambda: tracelens.report_files(SAMPLES / "faults" / "token_skew"),
    "one_gpu": lambda: tracelens.report_files(SAMPLES / "one_gpu" / "loop"),
    "diff": lambda: tracelens.diff(SAMPLES / "one_gpu" / "loop", SAMPLES / "one_gpu" / "grouped"),
    "launch_free": lambda: tracelens.whatif(tracelens.load(BASELINE), ["launch_free"]),
    "memory": lambda: tracelens.project_memory(
        "deepseek_v3", gpus=256, pp=16, ep=8, devices=["h200", "mi355x"]
    ),
}


class Reader:
    """Somebody who opens a page and clicks."""

    def __init__(self, driver: Any, address: str, results: Any) -> None:
        self.driver, self.results, self.clicks = driver, results, 0
        driver.get("about:blank")  # forgets what the address chose
        driver.get(address)
        wait_drawn(driver)

    def click(self, selector: str) -> None:
        """Click an element, which has to be in sight."""
        self.clicks += 1
        assert self.clicks <= MOST_CLICKS
        element = self.driver.find_element("css selector", selector)
        script = "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})"
        self.driver.execute_script(script, element)
        element.click()

    def open(self, section: str) -> None:
        """Click a section in the contents."""
        self.click(f"nav a[href='#{section}']")

    def read(self, selector: str) -> str:
        """The text of the first element that matches; it has to be shown, and something to be read."""
        (element, *_) = self.driver.find_elements("css selector", selector)
        assert until(element.is_displayed)
        text = until(lambda: element.text)
        return str(text)

    def column(self, grid: str, name: str) -> list[str]:
        """The visible cells of a column."""
        wait_alive(self.driver, grid)
        script = (
            "return [...document.querySelectorAll(`#${arguments[0]} thead th`)].map(th => th.dataset.column)"
        )
        heads = self.driver.execute_script(script, grid)
        return column(self.driver.execute_script, grid, heads.index(name))

    def numbers(self, grid: str, name: str) -> list[float]:
        return [float(text.replace(",", "").rstrip("%")) for text in self.column(grid, name)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    folder = tmp_path_factory.mktemp("tasks")
    with chromium(folder) as driver:
        yield driver, folder


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return {}


@pytest.fixture
def page(browser: tuple[Any, Path], results: dict[str, Any]) -> Callable[[str], Reader]:
    """Opens a page by its name in REPORTS."""
    driver, folder = browser

    def opened(name: str) -> Reader:
        path = folder / f"{name}.html"
        if name not in results:
            results[name] = REPORTS[name]()
            tracelens.render(results[name], path)
        return Reader(driver, path.as_uri(), results[name])

    return opened


Page = Callable[[str], Reader]


@pytest.mark.parametrize("name", ["ep4", "token_skew"])
def test_the_longest_gap_of_the_worst_rank_and_its_cause(page: Page, name: str) -> None:
    reader = page(name)
    gaps = reader.results["idle"]["gaps"]
    worst_rank = reader.results["idle"]["causes"].groupby("rank")["dur_ns"].sum().idxmax()
    worst = gaps[gaps["rank"] == worst_rank].sort_values("dur_ns").iloc[-1]
    reader.open("idle")
    reader.click(f".selection label:has(input[name='tracelens-rank'][value='{worst_rank}'])")
    assert reader.numbers("idle-gaps", "dur_ns")[0] == pytest.approx(worst["dur_ns"] / 1e3, abs=0.01)
    assert reader.column("idle-gaps", "cause")[0] == worst["cause"]


@pytest.mark.parametrize("name", ["ep4", "one_gpu"])
def test_the_gemm_that_loses_most_and_how_far_it_is_from_its_roofline(page: Page, name: str) -> None:
    reader = page(name)
    table = reader.results["roofline"]["roofline"]
    gemms = table[table["dims"].str.startswith("M=") & table["efficiency"].notna()]
    worst = gemms.loc[gemms["recoverable_ns"].idxmax()]
    reader.open("roofline")
    answer = reader.read("#roofline .answer")
    assert f"{worst['name']} {worst['shapes']}" in answer
    assert duration(worst["recoverable_ns"]) in answer
    assert f"{worst['efficiency']:.0%}" in answer


def test_the_bytes_between_two_ranks(page: Page) -> None:
    reader = page("ep4")
    traffic = reader.results["collectives"]["traffic"]
    reader.open("collectives")
    cells = "#collectives .figure .heatmap-label text"
    until(lambda: reader.driver.find_elements("css selector", cells))
    shown = [float(cell.text.replace(",", "")) for cell in reader.driver.find_elements("css selector", cells)]
    sent = traffic.sort_values(["from_rank", "to_rank"])["sent_bytes"] / 2**20
    assert sorted(shown) == pytest.approx(sorted(sent), abs=0.01)


@pytest.mark.parametrize("name", ["ep4", "one_gpu"])
def test_the_expert_with_most_tokens(page: Page, name: str) -> None:
    reader = page(name)
    experts = reader.results["moe"]["experts"]
    hottest = experts.loc[experts["tokens"].idxmax()]
    reader.open("moe")
    row = [int(reader.numbers("moe-experts", name)[0]) for name in ("rank", "layer", "expert")]
    assert row == [int(hottest[name]) for name in ("rank", "layer", "expert")]
    answer = reader.read("#moe .answer")
    assert (
        f"{int(hottest['expert'])} of rank {int(hottest['rank'])} in layer {int(hottest['layer'])}" in answer
    )


def test_what_changed_between_two_runs(page: Page) -> None:
    reader = page("diff")
    base_ns, cand_ns = (reader.results["diff"].meta[side] for side in ("base_ns", "cand_ns"))
    verdict = reader.read(".verdict")
    assert duration(base_ns) in verdict
    assert duration(cand_ns) in verdict
    assert f"{1 - cand_ns / base_ns:.0%}" in verdict


def test_the_headroom_of_the_memory(page: Page) -> None:
    reader = page("memory")
    fits = reader.results["fits"]
    verdict = reader.read(".verdict")
    for free_bytes in fits["free_bytes"]:
        assert f"{abs(free_bytes) / 2**30:.1f} GiB {'to spare' if free_bytes >= 0 else 'too much'}" in verdict
    assert f"{fits['needed_bytes'].max() / 2**30:.1f} GiB" in verdict


def test_what_launch_free_would_give(page: Page) -> None:
    reader = page("launch_free")
    (row,) = reader.results["whatif"].to_dict("records")
    verdict = reader.read(".verdict")
    assert duration(row["base_ns"]) in verdict
    assert duration(row["projected_ns"]) in verdict


@pytest.mark.parametrize("name", ["ep4", "one_gpu"])
def test_what_is_below_the_picture_moves_once_when_it_is_drawn(page: Page, name: str) -> None:
    reader = page(name)
    until(lambda: reader.driver.execute_script("return !!window.Plotly"))
    shifts = """
        const done = arguments[0];
        const observer = new PerformanceObserver((list) => done(list.getEntries().length));
        observer.observe({type: "layout-shift", buffered: true});
        setTimeout(() => done(0), 500);
    """
    assert reader.driver.execute_async_script(shifts) <= 1


@pytest.mark.parametrize("name", ["ep4", "token_skew", "one_gpu"])
def test_where_a_finding_is_in_perfetto(page: Page, name: str) -> None:
    reader = page(name)
    first = reader.results["findings"]["findings"].iloc[0]
    reader.driver.execute_script(
        "window.copied = []; tracelens.copy = async (text) => { copied.push(text); }"
    )
    reader.click(".finding:first-child [aria-label='Copy Perfetto position']")
    becomes(lambda: reader.driver.execute_script("return copied.length"), 1)
    (copied,) = reader.driver.execute_script("return copied")
    assert first["location"].endswith(f"Pan to timestamp, {copied}")
    reader.click(".finding:first-child .show-picture")  # the same place
    card = until(lambda: re.search(r"start\n([\d.,]+) ms", reader.read(".picture .card")))
    state = reader.driver.execute_script("return tracelens.picture.state()")
    assert state["shown"]["rank"] == first["worst_rank"]
    traces = reader.results["step_timeline"]["traces"].set_index("rank")["first_event_offset_ns"]
    at_ns = first["ts_ns"] + traces[first["worst_rank"]]
    shown = state["shown"]
    assert shown["ts_ns"] <= at_ns < shown["ts_ns"] + shown["dur_ns"]
    assert float(card[1].replace(",", "")) == pytest.approx(shown["ts_ns"] / 1e6, abs=0.001)


@pytest.mark.parametrize("name", ["ep4", "one_gpu"])
def test_what_was_not_recorded(page: Page, name: str) -> None:
    reader = page(name)
    reader.open("not_in_these_traces")
    listed = reader.read("#not_in_these_traces .skips")
    skips = [skip for result in reader.results.results for skip in result.skips]
    assert skips
    assert not [skip.reason for skip in skips if skip.reason not in listed]


def test_the_shapes_of_a_kernel(page: Page) -> None:
    reader = page("ep4")
    kernels = reader.results["step_timeline"]["kernels"]
    reader.click(".finding:first-child .show-picture")
    card = until(lambda: "\nshapes\n" in (text := reader.read(".picture .card")) and text)
    fields = dict(zip(*[iter(card.splitlines()[1:])] * 2, strict=False))
    state = reader.driver.execute_script("return tracelens.picture.state()")["shown"]
    inside = kernels[(kernels["rank"] == state["rank"]) & (kernels["ts_ns"] >= state["ts_ns"] - 1_000)]
    kernel = inside[inside["ts_ns"] < state["ts_ns"] + state["dur_ns"]].sort_values("dur_ns").iloc[-1]
    assert fields["kernel"] == kernel["name"]
    assert fields["shapes"] == kernel["shapes"]


@pytest.mark.parametrize("name", ["ep4", "token_skew"])
def test_the_share_of_waiting_in_each_collective(page: Page, name: str) -> None:
    reader = page(name)
    summary = reader.results["collectives"]["summary"]
    reader.open("collectives")
    shares = summary["wait_ns"] / summary["kernel_ns"]
    assert reader.numbers("collectives-summary", "wait_fraction") == pytest.approx(shares * 100, abs=0.051)
    assert reader.column("collectives-summary", "collective") == [*summary["collective"]]


@pytest.mark.parametrize("name", ["ep4", "token_skew", "one_gpu"])
def test_the_remedy_of_the_first_finding(page: Page, name: str) -> None:
    reader = page(name)
    remedy = reader.results["findings"]["findings"].iloc[0]["remedy"].replace("`", "")
    shown = reader.read(".finding:first-child .remedy").removeprefix("Fix").strip()
    assert shown
    assert remedy.startswith(shown)
