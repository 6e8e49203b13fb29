"""The picture of the step in a browser: drawn, zoomed, read with pointer and keyboard; 4 and 64 ranks."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import chromium, errors, prefer, requests, resize, until
from tests.browser.pages import wait_drawn
from tests.rendering import sample_picture
from tests.rendering.sample import IMAGE, SCRIPT
from tests.rendering.sample_picture import MS, STEP_NS
from tracelens.rendering import write

HOME = [0, 1.01 * STEP_NS]


class Page:
    """The report in a browser, and what its picture shows."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver = driver
        self.folder = folder

    def open(self, ranks: int) -> Page:
        path = self.folder / f"{ranks}.html"
        if not path.exists():
            write(sample_picture.report(ranks), path)
        resize(self.driver, 1400)
        prefer(self.driver, "light")
        self.driver.get(path.as_uri())
        ready = "tracelens.picture.ready.then(arguments[0], error => arguments[0](String(error)))"
        assert self.driver.execute_async_script(ready) is True
        return self

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    @property
    def state(self) -> dict[str, Any]:
        """What is shown after the next frame."""
        self.driver.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(() => arguments[0]()))"
        )
        shown: dict[str, Any] = self.run("return tracelens.picture.state()")
        return shown

    @property
    def range(self) -> list[float]:
        return [self.state["from_ns"], self.state["to_ns"]]

    def row(self, kind: str, rank: int, stream: int | None = None) -> dict[str, Any]:
        rows: list[dict[str, Any]] = self.state["rows"]
        return next(r for r in rows if (r["type"], r["rank"], r["stream"]) == (kind, rank, stream))

    def streams(self) -> list[tuple[int, int]]:
        return [(row["rank"], row["stream"]) for row in self.state["rows"] if row["type"] == "stream"]

    def pointer(self, kind: str, time_ns: float, row: dict[str, Any], **options: Any) -> None:
        """A pointer event at a time in a row."""
        script = """
            const [kind, time, y, options] = arguments;
            const canvas = document.querySelector(".picture .drawing");
            const box = canvas.getBoundingClientRect();
            const {from_ns, to_ns} = tracelens.picture.state();
            const x = box.left + (time - from_ns) / (to_ns - from_ns) * canvas.clientWidth;
            const Kind = kind === "wheel" ? WheelEvent : PointerEvent;
            const spot = {clientX: x, clientY: box.top + y, bubbles: true, cancelable: true};
            canvas.dispatchEvent(new Kind(kind, {pointerId: 1, pointerType: "mouse", ...spot, ...options}));
        """
        self.run(script, kind, time_ns, row["y"] + row["height"] / 2, options)

    def drag(self, start_ns: float, end_ns: float, row: dict[str, Any]) -> None:
        self.pointer("pointerdown", start_ns, row)
        self.pointer("pointermove", end_ns, row)
        self.pointer("pointerup", end_ns, row)

    def key(self, name: str, **options: Any) -> None:
        script = """
            const canvas = document.querySelector(".picture .drawing");
            canvas.focus();
            canvas.dispatchEvent(new KeyboardEvent("keydown", {key: arguments[0], ...arguments[1]}));
        """
        self.run(script, name, options)

    def card(self) -> str:
        script = "return document.querySelector('.picture .card:not([hidden])')?.innerText ?? ''"
        return str(self.run(script))

    def color(self, time_ns: float, row: dict[str, Any]) -> list[int]:
        """Red, green and blue of the drawing at a time in a row."""
        script = """
            const [time, y] = arguments;
            const canvas = document.querySelector(".picture .drawing");
            const {from_ns, to_ns} = tracelens.picture.state();
            const ratio = canvas.width / canvas.clientWidth;
            const x = (time - from_ns) / (to_ns - from_ns) * canvas.width;
            return [...canvas.getContext("2d").getImageData(x, y * ratio, 1, 1).data].slice(0, 3);
        """
        seen: list[int] = self.run(script, time_ns, row["y"] + row["height"] - 3)
        return seen


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("picture")
    with chromium(folder / "profile") as driver:
        yield Page(driver, folder)


@pytest.fixture
def page(shared: Page) -> Iterator[Page]:
    """Four ranks, freshly opened; no test may leave an error, nor ask for anything but the page."""
    yield shared.open(4)
    assert errors(shared.driver) == []
    assert {
        url for url in requests(shared.driver) if not url.startswith(("file:", "data:", "blob:"))
    } == set()
    assert shared.run("return typeof window.__pwned") == "undefined"


def test_every_rank_has_a_lane_and_passes_that_differ_have_their_own_brackets(page: Page) -> None:
    state = page.state
    assert state["lanes"] == [0, 1, 2, 3]
    assert [state["from_ns"], state["to_ns"]] == HOME
    assert not state["heat_map"]
    rows = [(row["type"], row["rank"], row["marks"]) for row in state["rows"]]
    assert rows[:3] == [("marks", 0, 6), ("marks", 0, 1), ("lane", 0, None)]
    assert rows[3:5] == [("marks", 1, 1), ("lane", 1, None)]
    labels = "return [...document.querySelectorAll('.picture .gutter button')].map(b => b.textContent)"
    assert page.run(labels) == ["rank 0 node0", "rank 1 node0", "rank 2 node1", "rank 3 node1"]


def test_lanes_have_the_colors_of_their_states(page: Page) -> None:
    lane = page.row("lane", 0)
    assert page.color(20 * MS, lane) == [0x4A, 0x74, 0xD8]  # GEMM
    assert page.color(65 * MS, lane) == [0xE8, 0x92, 0x3A]  # communication
    # Waiting is hatched: of several colors where moving and idle, between two lines of the grid, are of one.
    colors = [{tuple(page.color((ms + tenth / 5) * MS, lane)) for tenth in range(10)} for ms in (65, 75, 94)]
    assert [len(seen) for seen in colors][::2] == [1, 1]
    assert len(colors[1]) > 1
    assert len(colors[0] | colors[1] | colors[2]) > len(colors[1])


def test_the_legend_has_shares_of_the_time_in_view_and_highlights(page: Page) -> None:
    shares = """
        const buttons = [...document.querySelectorAll(".picture .legend button")];
        return buttons.filter(button => !button.hidden).map(button => button.innerText.trim());
    """
    page.driver.execute_script("tracelens.select({step: 'ProfilerStep#4'})")
    page.drag(100 * MS, 160 * MS, page.row("lane", 0))
    assert until(lambda: page.run(shares) == ["GEMM\n66.7%", "grouped GEMM\n33.3%"]), page.run(shares)
    page.run("document.querySelector('.picture .legend button').click()")
    assert page.state["highlighted"] == "gemm"
    assert page.color(150 * MS, page.row("lane", 0)) != [0x2F, 0x9B, 0xD6]
    page.run("document.querySelector('.picture .legend button').click()")
    assert page.state["highlighted"] == ""


def test_dragging_zooms_and_a_double_click_resets(page: Page) -> None:
    page.drag(30 * MS, 50 * MS, page.row("lane", 1))
    assert page.range == pytest.approx([30 * MS, 50 * MS], rel=1e-3)
    page.pointer("dblclick", 40 * MS, page.row("lane", 1))
    assert page.range == HOME
    page.pointer("dblclick", 40 * MS, page.row("lane", 1))
    assert page.range == [0, 2 * STEP_NS]


def test_ctrl_and_wheel_zoom_around_the_pointer(page: Page) -> None:
    page.pointer("wheel", 40 * MS, page.row("lane", 1), deltaY=-100, ctrlKey=True)
    start, end = page.range
    assert end - start == pytest.approx((HOME[1] - HOME[0]) / 1.822, rel=1e-3)
    assert (40 * MS - start) / (end - start) == pytest.approx(40 * MS / HOME[1], rel=1e-2)
    page.pointer("wheel", 40 * MS, page.row("lane", 1), deltaY=100)
    assert page.range == [start, end]  # the page scrolls


def test_two_fingers_zoom(page: Page) -> None:
    lane = page.row("lane", 0)
    for pointer, at in ((1, 40), (2, 60)):
        page.pointer("pointerdown", at * MS, lane, pointerId=pointer, pointerType="touch")
    page.pointer("pointermove", 80 * MS, lane, pointerId=2, pointerType="touch")
    start, end = page.range
    assert end - start == pytest.approx((HOME[1] - HOME[0]) / 2, rel=0.02)


def test_zoomed_in_a_lane_unfolds_into_the_kernels_of_its_streams(page: Page) -> None:
    assert page.streams() == []
    page.drag(10 * MS, 11 * MS, page.row("lane", 2))
    assert until(lambda: page.streams() == [(2, 7), (2, 20)])
    stream = page.row("stream", 2, 7)
    page.pointer("pointermove", 10_110_000, stream)
    # Kernels start every 25 us: this is number 404, the third kind of three.
    assert page.state["shown"] == {
        "title": "elementwise_kernel", "rank": 2, "stream": 7, "ts_ns": 10_100_000, "dur_ns": 20_000,
    }  # fmt: skip
    for text in ("aten::mm", "[[4096, 4096]]", "layers.4.mlp", "experts", "model.py:12 forward", "20.00 µs"):
        assert text in page.card()
    page.pointer("pointermove", 10_085_000, stream)
    assert SCRIPT in page.card()


def test_a_lane_says_why_it_idles_and_for_whom_it_waits(page: Page) -> None:
    page.pointer("pointermove", 90 * MS, page.row("lane", 1))
    assert "idle" in page.card()
    assert IMAGE in page.card()
    page.pointer("pointermove", 72 * MS, page.row("lane", 1))
    assert "rank 3" in page.card()
    page.pointer("pointerleave", 72 * MS, page.row("lane", 1))
    assert page.card() == ""


def test_a_click_pins_the_card_with_what_can_be_copied(page: Page) -> None:
    page.pointer("pointerdown", 90 * MS, page.row("lane", 3))
    page.pointer("pointerup", 90 * MS, page.row("lane", 3))
    assert page.state["pinned"]
    page.pointer("pointermove", 10 * MS, page.row("lane", 0))
    assert page.state["shown"]["rank"] == 3
    copied = "return [...document.querySelectorAll('.picture .card .copy button')].map(b => b.title)"
    # Idle from 72.5 ms on; rank 3's trace begins 3 ms before the picture.
    assert page.run(copied)[:2] == [f"idle: {IMAGE}", "rank 3, 75.500 ms"]
    page.run("document.querySelector('.picture .card .copy button:last-child').click()")
    assert page.card() == ""


def test_the_keyboard_zooms_walks_and_pins(page: Page) -> None:
    page.key("+")
    start, end = page.range
    assert end - start == pytest.approx((HOME[1] - HOME[0]) / 2)
    page.key("0")
    assert page.range == HOME
    page.key("ArrowRight")
    assert page.state["shown"]["title"] == "GEMM"
    page.key("ArrowRight")
    page.key("ArrowRight")
    page.key("ArrowDown")
    assert page.state["shown"] == {
        "title": "communication", "rank": 1, "stream": -1, "ts_ns": 60 * MS, "dur_ns": 10 * MS,
    }  # fmt: skip
    heard = "return document.querySelector('.picture [aria-live]').textContent"
    assert page.run(heard).startswith("communication, collective all-to-all, EP 0-3, duration 10.00 ms")
    page.key("Enter")
    assert page.state["pinned"]
    assert page.run("return document.activeElement.textContent") == "Copy name"
    page.run(
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}))"
    )
    assert not page.state["pinned"]
    assert page.run("return document.activeElement.className") == "drawing"


def test_rank_and_step_of_the_page_choose_what_is_shown(page: Page) -> None:
    page.run("tracelens.select({rank: 2})")
    assert page.state["lanes"] == [2]
    assert until(lambda: page.streams() == [(2, 7), (2, 20)])  # alone, it always has room for its streams
    page.run("tracelens.select({step: 'ProfilerStep#4'})")
    assert page.range == [0.99 * STEP_NS, 2 * STEP_NS]
    note = "return document.querySelector('.picture .missing').checkVisibility()"
    page.drag(1.2 * STEP_NS, 1.3 * STEP_NS, page.row("lane", 2))
    assert until(lambda: page.run(note))  # the sample has no kernels of this step
    page.run("document.querySelector('.picture .gutter button').click()")
    assert page.run("return tracelens.selection.rank") == -1
    page.run("document.querySelector('.picture .gutter button[data-rank=\"1\"]').click()")
    assert page.run("return tracelens.selection.rank") == 1
    assert page.state["lanes"] == [1]


def test_an_address_chooses_rank_and_step(page: Page) -> None:
    url = page.driver.current_url.split("#")[0]
    page.driver.get("about:blank")
    page.driver.get(f"{url}#rank=2&step=ProfilerStep%234")
    wait_drawn(page.driver)
    assert page.state["lanes"] == [2]
    assert page.range == [0.99 * STEP_NS, 2 * STEP_NS]


def test_findings_can_show_a_place(page: Page) -> None:
    page.run("tracelens.select({rank: 0})")
    # Rank 3's trace begins 3 ms before the picture.
    assert page.run("return tracelens.picture.show({rank: 3, ts_ns: 45 * 1e6, dur_ns: 1e6})")
    start, end = page.range
    assert (start, end) == pytest.approx((41.7 * MS, 43.3 * MS))
    assert until(lambda: page.state["pinned"])
    shown = page.state["shown"]
    assert (shown["rank"], shown["title"]) == (3, "grouped GEMM")
    # Without a length, the whole piece: communication from 60 to 70 ms.
    page.run("tracelens.picture.show({rank: 0, ts_ns: 65 * 1e6})")
    assert page.range == pytest.approx([57 * MS, 73 * MS])
    assert not page.run("return tracelens.picture.show({rank: 99, ts_ns: 0, dur_ns: 1})")


def test_a_page_without_the_data_has_no_picture(shared: Page) -> None:
    path = shared.folder / "none.html"
    empty = sample_picture.report(0)
    write(empty, path)
    shared.driver.get(path.as_uri())
    assert shared.run("return document.querySelector('.picture')") is None
    assert shared.run("return tracelens.picture") is None
    assert errors(shared.driver) == []


def test_dark_pages_have_light_words(page: Page) -> None:
    words = """
        const context = document.querySelector(".picture .drawing").getContext("2d");
        const reds = context.getImageData(0, 0, 400, 14).data.filter((_, index) => index % 4 === 0);
        return Math.max(...reds);
    """
    assert page.run(words) < 0xA0
    prefer(page.driver, "dark")
    assert until(lambda: page.run(words) > 0x90)


def test_a_narrow_page_has_room(page: Page) -> None:
    resize(page.driver, 420)
    assert until(lambda: page.run("return document.querySelector('.picture .drawing').clientWidth") < 360)
    assert page.run("return document.documentElement.scrollWidth") <= 420
    assert page.run("return document.querySelector('.picture .drawing').clientWidth") > 240
    assert page.row("lane", 3)["height"] > 15
    page.pointer("pointermove", 90 * MS, page.row("lane", 1))
    assert page.run("return document.documentElement.scrollWidth") <= 420


def test_prints_the_whole_step(page: Page) -> None:
    page.drag(30 * MS, 50 * MS, page.row("lane", 1))
    zoomed = page.range
    page.run(
        "addEventListener('beforeprint', () => { window.printed = tracelens.picture.state() }, {once: true})"
    )
    pdf = base64.b64decode(page.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert pdf.startswith(b"%PDF")
    assert page.run("return [printed.from_ns, printed.to_ns]") == HOME
    assert page.range == zoomed


def test_what_is_drawn_has_words_too(page: Page) -> None:
    roles = """
        const parts = [".drawing", ".scroll.heat"].map(name => document.querySelector(`.picture ${name}`));
        return parts.map(part => [part.tabIndex, part.role, Boolean(part.ariaLabel)]);
    """
    assert page.run(roles) == [[0, "application", True], [0, "region", True]]
    cells = """
        const rows = [...document.querySelector(".picture .heat tbody").rows];
        return rows.map(row => [...row.cells].map(cell => cell.textContent));
    """
    assert page.run(cells)[0] == ["rank 0", "60.00", "10.00", "10.00", "0.00", "20.00", "20.00"]


def test_many_ranks_are_a_heat_map_and_the_lanes_of_three(page: Page) -> None:
    page.open(64)
    state = page.state
    assert state["heat_map"]
    assert state["lanes"] == [31, 63, 0]
    labels = "return [...document.querySelectorAll('.picture .gutter button')].map(b => b.textContent)"
    assert page.run(labels) == ["rank 31 typical node15", "rank 63 slowest node31", "rank 0 fastest node0"]
    ranks = (
        "return [...document.querySelectorAll('.picture .heat tbody tr')].map(r => Number(r.dataset.rank))"
    )
    assert page.run(ranks) == list(range(64))
    header = "document.querySelectorAll('.picture .heat thead button')[3].click()"
    page.run(header)  # waiting, most first
    assert page.run(ranks) == list(range(64))
    page.run(header)
    assert page.run(ranks) == list(range(63, -1, -1))
    page.run("document.querySelector('.picture .heat tr[data-rank=\"5\"]').click()")
    assert page.run("return tracelens.selection.rank") == 5
    assert page.state["lanes"] == [5, 63, 0]
    pressed = "return document.querySelector('.picture .heat tr[data-rank=\"5\"] button').ariaPressed"
    assert page.run(pressed) == "true"
    assert page.run("return document.querySelector('.picture').offsetHeight") < 900


def test_a_frame_is_quick(page: Page) -> None:
    page.run("tracelens.picture.state()")

    def frame_ms() -> float:
        page.key("ArrowRight", shiftKey=True)
        return float(page.state["frame_ms"])

    assert until(lambda: frame_ms() < 16)  # each is slow while other programs compute


def test_merged_pieces_keep_the_time_of_each_kind_in_each_bin(page: Page) -> None:
    script = """
        const line = {start: [], end: [], kind: []};
        let [time, seed] = [0, 7];
        const random = (limit) => (seed = (seed * 16807) % 2147483647) % limit;
        for (let piece = 0; piece < 5000; piece += 1) {
            line.start.push(time);
            line.end.push((time += 1 + (piece % 50 ? random(40) : random(4000))));
            line.kind.push(random(5));
            if (piece % 7 === 0) time += random(30);
        }
        const [bin, count] = [256, 5];
        const merged = tracelens.lanes.merged(line, bin, count);
        let apart = 0;
        for (let from = 0; from < time; from += bin) {
            const times = [line, merged].map((one) => {
                const out = new Float64Array(count);
                tracelens.lanes.sums(one, from, from + bin, out);
                return out;
            });
            apart += times[0].reduce((sum, ns, kind) => sum + Math.abs(ns - times[1][kind]), 0);
        }
        const inOrder = merged.start.every((start, at) => at === 0 || start >= merged.end[at - 1]);
        return {apart, inOrder, pieces: merged.start.length, of: line.start.length};
    """
    merged = page.run(script)
    assert merged["apart"] == 0
    assert merged["inOrder"]
    assert merged["pieces"] < merged["of"] / 1.5
