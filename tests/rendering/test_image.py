"""Figures as PNG: few colours, the same picture; and what happens where no Chrome is."""

from __future__ import annotations

import struct
import sys
import zlib
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.browser.chromium import CHROMIUM
from tests.rendering import sample
from tracelens.rendering import image
from tracelens.rendering.figures import figures
from tracelens.rendering.image import NoImages, indexed, png


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def written(pixels: Any, filter_type: int = 2) -> bytes:
    """A PNG of an array of rows, columns and channels, as Chrome writes it: each row less the one above."""
    height, width, channels = pixels.shape
    rows = pixels.reshape(height, -1)
    less = np.diff(rows, axis=0, prepend=np.zeros((1, rows.shape[1]), np.uint8)).astype(np.uint8)
    lines = np.concatenate((np.full((height, 1), filter_type, np.uint8), less), axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, {3: 2, 4: 6}[channels], 0, 0, 0)
    data = zlib.compress(lines.tobytes())
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def read(content: bytes) -> Any:
    """Red, green and blue of the pixels of an image with a palette."""
    chunks = dict(image._chunks(content))
    width, height, depth, kind = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, kind) == (8, 3)
    palette = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not lines[:, 0].any()
    return palette[lines[:, 1:]]


@pytest.mark.parametrize("channels", [3, 4])
def test_few_colors_stay_as_they_are(channels: int) -> None:
    random = np.random.default_rng(0)
    colors = random.integers(0, 256, (200, channels), np.uint8)
    pixels = colors[random.integers(0, 200, (40, 60))]
    assert (read(indexed(written(pixels))) == pixels[..., :3]).all()


def test_rare_colors_become_near_ones_and_frequent_ones_stay() -> None:
    gradient = np.arange(256, dtype=np.uint8)
    pixels = np.full((64, 256, 4), 255, np.uint8)
    pixels[:8, :, 0] = gradient  # 256 reds and, with white, 256 greens: too many
    pixels[8:10, :, 1] = gradient
    drawn = read(indexed(written(pixels)))
    assert (drawn[10:] == 255).all()
    assert (drawn[:8] == pixels[:8, :, :3]).all()
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) <= 256


def test_other_images_stay_as_they_are() -> None:
    other = written(np.zeros((4, 4, 4), np.uint8), filter_type=4)
    assert indexed(other) == other


@pytest.fixture
def no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new session."""
    monkeypatch.setattr(image, "_started", cache(image._started.__wrapped__))


@pytest.mark.usefixtures("no_browser")
def test_without_kaleido(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kaleido", None)
    for _ in range(2):
        with pytest.raises(NoImages, match=r"pip install 'tracelens-moe\[notebook\]'"):
            png(figures(sample.timeline())[0])


@pytest.mark.usefixtures("no_browser")
def test_without_chrome(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kaleido")
    monkeypatch.setenv("BROWSER_PATH", "/no/chrome/here")
    with pytest.raises(NoImages, match="needs Chrome or Chromium"):
        png(figures(sample.timeline())[0])


@pytest.mark.skipif(not CHROMIUM, reason="no chromium on the PATH")
def test_a_figure_is_drawn_on_white_with_its_colors() -> None:
    pytest.importorskip("kaleido")
    figure = figures(sample.timeline())[-1]
    pixels = read(png(figure))
    assert pixels.shape[:2] == (figure["layout"]["height"] * 1.5, image.WIDTH * 1.5)
    assert (pixels[0, 0] == 255).all()
    colors = {"#" + bytes(color).hex() for color in np.unique(pixels.reshape(-1, 3), axis=0)}
    opaque = [trace["marker"]["color"] for trace in figure["data"] if trace["marker"]["color"][0] == "#"]
    assert opaque
    assert set(opaque) <= colors
