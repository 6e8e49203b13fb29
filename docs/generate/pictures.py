"""Pictures of the documentation: reports on the sample traces, as tracelens writes and Chromium shows them.

`python docs/generate/pictures.py` renews the pictures of the README, which GitHub shows without a build.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build/pictures"
COMMITTED = ROOT / "docs/images"
README_PICTURES = ("first-screen", "kernels")
"""Committed, and beside them the words that they show."""
WORDS = "first-screen.txt"

SCALE, MARGIN, QUALITY, WAIT_S, ATTEMPTS = 2, 10, 75, 60, 10
HEIGHT = 1600
"""Of the window, in CSS pixels: it holds each picture whole."""
SCHEMES = {"light": "", "dark": "-dark"}
"""Color scheme to the end of its pictures' names."""
BASELINE, GROUPED = "sample_traces/ladder/ep4/00_baseline", "sample_traces/ladder/ep4/01_grouped_gemm"
REPORTS = {
    "baseline": ("report", BASELINE),
    "grouped": ("report", GROUPED),
    "diff": ("diff", BASELINE, GROUPED),
    "whatif": ("project", "whatif", BASELINE),
    "delay": ("report", "sample_traces/faults/host_delay"),
    "ladder": ("workload", "ladder", "--from", "sample_traces/ladder_large/ep4"),
}


@dataclass(frozen=True)
class Picture:
    """A part of a report: the smallest rectangle around the elements that the selectors in `show` match."""

    report: str
    show: str
    width: int = 1120
    """Of the window, in CSS pixels."""
    prepare: str = ""
    """JavaScript that brings the page into the state to show; may await."""


CARD, FINDING = "#picture, #picture .card", ".finding:first-child"
PICTURES = {
    "first-screen": Picture("baseline", "header, #picture, #findings > h2, .finding:nth-child(-n+3)", 1180),
    "step": Picture("baseline", "#picture", 1180),
    "kernels": Picture(
        "baseline", "#picture, #picture .card", prepare="await zoom(2, 28e6, 6e6); await pin(0.5)"
    ),
    "finding": Picture("baseline", FINDING, 900, prepare=f"expand('{FINDING}')"),
    "whatif": Picture("whatif", "header, #whatif figure:first-of-type", prepare="await open('whatif')"),
    "diff": Picture("diff", "header, #diff figure:first-of-type", prepare="await open('diff')"),
    "step-grouped": Picture("grouped", "#picture"),
    "step-delay": Picture("delay", CARD, prepare="await zoom(-1, 0, 200e6)"),
    "finding-delay": Picture("delay", FINDING, 900, prepare=f"expand('{FINDING}')"),
    "roofline": Picture("grouped", "#roofline figure:first-of-type", prepare="await open('roofline')"),
    "ladder": Picture("ladder", "header, #ladder figure:nth-of-type(-n+2)", prepare="await open('ladder')"),
    "idle-causes": Picture("baseline", "#idle figure:first-of-type", prepare="await open('idle')"),
}

FLAGS = ("headless", "no-sandbox", "disable-gpu", "hide-scrollbars", "run-all-compositor-stages-before-draw")

STYLE = """
nav, .modebar, .views, .help, .overview, #picture .numbers, .skip { display: none !important; }
body { grid-template-columns: minmax(0, 1fr); }
main { max-width: none; padding: 22px 24px 40px; }
* { transition: none !important; animation: none !important; }
"""
PREPARE = """
const done = arguments[0];
const sheet = new CSSStyleSheet();
sheet.replaceSync(`STYLE`);
document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
dispatchEvent(new Event("resize"));
const frame = () => new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)));
const until = async (holds) => { while (!holds()) await frame(); };
// A finding in the whole width, with its details.
const expand = (selector) => {
  const finding = document.querySelector(selector);
  finding.parentElement.style.gridTemplateColumns = "1fr";
  finding.querySelector(".rest").open = true;
};
// A section with its first figure, and nothing above it but the header.
const open = async (id) => {
  const section = document.getElementById(id);
  for (const other of section.parentElement.children) {
    if (other !== section && other.tagName !== "HEADER") other.style.display = "none";
  }
  section.querySelector("details.section").open = true;
  await until(() => section.querySelector(".figure .main-svg"));
  await frame();
};
const zoom = async (rank, ts_ns, dur_ns) => {
  if (rank >= 0) tracelens.select({ rank });
  tracelens.picture.show({ rank: Math.max(rank, 0), ts_ns, dur_ns });
  document.querySelector("#findings").style.visibility = "hidden"; // below a card
  await frame();
};
// The card of what the last lane shows at this fraction of its width.
const pin = async (fraction) => {
  const canvas = document.querySelector(".picture .drawing");
  const box = canvas.getBoundingClientRect();
  const row = tracelens.picture.state().rows.filter((each) => each.type !== "marks").at(-1);
  const [x, y] = [fraction * canvas.clientWidth, row.y + row.height / 2];
  const where = { clientX: box.left + x, clientY: box.top + y };
  const mouse = { pointerId: 1, pointerType: "mouse", bubbles: true, ...where };
  for (const kind of ["pointerdown", "pointerup"]) canvas.dispatchEvent(new PointerEvent(kind, mouse));
  await frame();
};
(async () => {
  await tracelens.picture?.ready;
  await until(() => !tracelens.picture || /%/.test(document.querySelector(".picture .legend").textContent));
  await frame();
  STEPS
  await frame();
})().then(() => done(""), (error) => done(`${error}`));
"""
# Pictures and figures of a report follow the color scheme in the next frame or two.
REPAINTED = "setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(arguments[0])), 60)"
BOX = """
const shown = [...document.querySelectorAll(arguments[0])].filter((each) => each.checkVisibility());
const boxes = shown.map((each) => each.getBoundingClientRect());
return boxes.length && [
  Math.min(...boxes.map((box) => box.left)) + scrollX, Math.min(...boxes.map((box) => box.top)) + scrollY,
  Math.max(...boxes.map((box) => box.right)) + scrollX, Math.max(...boxes.map((box) => box.bottom)) + scrollY,
];
"""
LOADED = "return typeof tracelens !== 'undefined' && document.readyState === 'complete'"
LOOK = repr((SCALE, MARGIN, QUALITY, HEIGHT, STYLE, PREPARE, REPAINTED, BOX))
"""What all pictures depend on, beside their reports."""


class NoPictures(Exception):
    """Why pictures cannot be made, in one line."""


def pictures(names: Sequence[str] = tuple(PICTURES)) -> dict[str, bytes]:
    """File name to WebP of each picture: NAME.webp and, for dark pages, NAME-dark.webp.

    Kept below build/: a report is remade when its traces or the package change, a picture when its
    report does.
    """
    needed = sorted({PICTURES[name].report for name in names})
    with ThreadPoolExecutor(2) as pool:
        reports = dict(zip(needed, pool.map(report, needed), strict=True))
    files: dict[str, Path] = {}
    missing = []
    for name in names:
        page = reports[PICTURES[name].report]
        key = _key(repr(PICTURES[name]), LOOK, page.read_text(encoding="utf-8"))
        shots = [CACHE / f"{name}{suffix}.{key}.webp" for suffix in SCHEMES.values()]
        files |= {f"{file.name.split('.')[0]}.webp": file for file in shots}
        if not all(file.exists() for file in shots):
            missing.append((PICTURES[name], page, shots))
    if missing:
        with _chromium() as driver:
            for picture, page, shots in missing:
                for file, content in zip(shots, _shots(driver, picture, page), strict=True):
                    _replace(file, content)
    return {name: file.read_bytes() for name, file in files.items()}


def report(name: str) -> Path:
    """A report of REPORTS as a page."""
    command = REPORTS[name]
    traces = [path for part in command if "/" in part for path in (ROOT / part).iterdir()]
    key = _key(_package(), _digest(traces))
    file = CACHE / f"{name}.{key}.html"
    if not file.exists():
        _replace(file, _output(command))
    return file


def _key(*inputs: str) -> str:
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]


@cache
def _package() -> str:
    return _digest(path for path in (ROOT / "tracelens").rglob("*") if "__pycache__" not in path.parts)


def _digest(paths: Any) -> str:
    digest = hashlib.sha256()
    for path in sorted(filter(Path.is_file, paths)):
        digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _output(command: Sequence[str]) -> bytes:
    """What `tracelens COMMAND -o report.html` writes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        line = [sys.executable, "-m", "tracelens", *command, "-o", str(file)]
        env = os.environ | {"PYTHONPATH": str(ROOT), "TRACELENS_JOBS": "1"}
        done = subprocess.run(line, check=False, cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode:
            raise NoPictures(f"tracelens {' '.join(command)}: {done.stderr.strip()}")
        return file.read_bytes()


def _replace(file: Path, content: bytes) -> None:
    """Write a file of the cache, in place of what other inputs gave."""
    CACHE.mkdir(parents=True, exist_ok=True)
    name, _, suffix = file.name.split(".")
    for old in CACHE.glob(f"{name}.*.{suffix}"):
        old.unlink()
    file.write_bytes(content)


@contextmanager
def _chromium() -> Iterator[Any]:
    try:
        from selenium import webdriver
    except ImportError:
        raise NoPictures("pictures need selenium: pip install '.[docs]'") from None
    browsers = ("chromium", "chromium-browser", "google-chrome")
    browser, driver = next(filter(None, map(shutil.which, browsers)), None), shutil.which("chromedriver")
    if not browser or not driver:
        raise NoPictures("pictures need chromium and chromedriver on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"user-data-dir={profile}"):
            options.add_argument(f"--{flag}")
        session = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        session.set_script_timeout(WAIT_S)
        try:
            yield session
        finally:
            session.quit()


def _shots(driver: Any, picture: Picture, page: Path) -> Iterator[bytes]:
    """The picture as WebP on a light and on a dark page, at twice the size that it is shown in."""
    size = {"width": picture.width, "height": HEIGHT, "deviceScaleFactor": SCALE, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.as_uri())
    # A busy machine may still show the blank page before it.
    for _ in range(ATTEMPTS * WAIT_S):
        if driver.execute_script(LOADED):
            break
        time.sleep(1 / ATTEMPTS)
    if error := driver.execute_async_script(
        PREPARE.replace("STYLE", STYLE).replace("STEPS", picture.prepare)
    ):
        raise NoPictures(f"{page.name}: {error}")
    for scheme in SCHEMES:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        driver.execute_async_script(REPAINTED)
        if not (box := driver.execute_script(BOX, picture.show)):
            raise NoPictures(f"{page.name} has no {picture.show}")
        left, top, right, bottom = box
        if bottom + MARGIN > HEIGHT:
            raise NoPictures(f"{page.name}: {picture.show} ends below the window, at {bottom:.0f} px")
        clip = {"x": left - MARGIN, "y": top - MARGIN, "scale": 1}
        clip |= {"width": right - left + 2 * MARGIN, "height": bottom - top + 2 * MARGIN}
        yield _painted(driver, {"format": "webp", "quality": QUALITY, "clip": clip})


def _painted(driver: Any, options: dict[str, Any]) -> bytes:
    """The shot when all of it is there: a busy machine paints the page in pieces."""
    last = ""
    for _ in range(ATTEMPTS):
        shot = str(driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"])
        if shot == last:
            return base64.b64decode(shot)
        last = shot
        driver.execute_async_script(REPAINTED)
    raise NoPictures(f"the page still changes after {ATTEMPTS} shots")


def words(page: str) -> str:
    """What the first screen of a report says, line by line: verdict, key figures, findings."""
    parts = r'<header>.*?</header>|<h2 id="picture-title">.*?</h2>|<ol class="findings-list".*?</ol>'
    text = unescape(re.sub(r"<[^>]+>", "\n", "".join(re.findall(parts, page, re.DOTALL))))
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip()) + "\n"


def renew() -> None:
    """Write the pictures of the README, and the words that they show."""
    made = pictures(README_PICTURES)
    COMMITTED.mkdir(exist_ok=True)
    for name in README_PICTURES:
        (COMMITTED / f"{name}.webp").write_bytes(made[f"{name}.webp"])
    (COMMITTED / WORDS).write_text(words(report("baseline").read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    try:
        renew()
    except NoPictures as error:
        sys.exit(str(error))
