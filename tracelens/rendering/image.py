"""Figures as PNG: what a notebook keeps of them where no script runs, on GitHub and in exports.

kaleido draws them in a Chrome of its own. That takes about two seconds to start and 0.3 s per figure, and
runs for as long as the interpreter. Chrome writes 32 bits per pixel; figures have few colours, and a palette
makes the file a third as large.
"""

from __future__ import annotations

import asyncio
import atexit
import struct
import zlib
from collections.abc import Coroutine, Iterator
from functools import cache
from threading import Thread
from typing import Any, TypeVar

import numpy as np

from tracelens.errors import TracelensError
from tracelens.rendering.figures import Figure

WIDTH = 900
"""Of an image, in CSS pixels: a notebook's column."""
_SCALE = 1.5  # legible on dense screens, half the bytes of 2
_START_S, _DRAW_S, _STOP_S = 30, 60, 5
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_UP = 2  # the filter of rows that Chrome writes: differences from the row above
_COLORS = 256

T = TypeVar("T")


class NoImages(TracelensError):
    """Figures cannot be drawn here; the message says what is missing."""


def png(figure: Figure) -> bytes:
    """A figure on white, `WIDTH` CSS pixels wide, without buttons.

    Raises:
        NoImages: kaleido or a Chrome is missing, or does not start.
    """
    layout = {**figure["layout"], "paper_bgcolor": "#ffffff"}
    layout.pop("updatemenus", None)
    browser = _started()
    if isinstance(browser, NoImages):
        raise browser
    return indexed(browser.draw({"data": figure["data"], "layout": layout}))


class _Browser:
    """A Chrome on an event loop of its own: that of a notebook's kernel is busy running the cell."""

    def __init__(self) -> None:
        try:
            from choreographer.errors import DevtoolsProtocolError
            from kaleido import Kaleido
            from kaleido.errors import KaleidoError
        except ImportError:
            raise NoImages("install kaleido: pip install 'tracelens-moe[notebook]'") from None
        # Chrome is missing, does not start, ends or takes too long; it or kaleido refuses the figure.
        self._errors = (RuntimeError, OSError, DevtoolsProtocolError, KaleidoError)
        self._loop = asyncio.new_event_loop()

        def serve() -> None:
            self._loop.run_forever()
            self._loop.close()

        self._thread = Thread(target=serve, name="figures", daemon=True)
        self._thread.start()

        async def start() -> Any:
            return await Kaleido(n=1, mathjax=False)  # MathJax would be fetched

        try:
            self._kaleido = self._result(start(), _START_S)
        except self._errors as error:
            self._end()
            raise NoImages(f"kaleido needs Chrome or Chromium: {_first_line(error)}") from error

        def stop() -> None:
            try:
                self._result(self._kaleido.close(), _STOP_S)
            finally:
                self._end()

        atexit.register(stop)

    def draw(self, figure: Figure) -> bytes:
        size = {"format": "png", "width": WIDTH, "height": figure["layout"]["height"], "scale": _SCALE}
        try:
            drawn: bytes = self._result(self._kaleido.calc_fig(figure, opts=size), _DRAW_S)
        except self._errors as error:
            raise NoImages(f"Chrome did not draw the figure: {_first_line(error)}") from error
        return drawn

    def _result(self, coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)


@cache
def _started() -> _Browser | NoImages:
    """The browser that runs; what cannot start is not tried again."""
    try:
        return _Browser()
    except NoImages as reason:
        return reason


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def indexed(image: bytes) -> bytes:
    """A PNG of at most 256 colours from one of 24 or 32 opaque bits per pixel.

    Grounds, bars and grid keep their colours; the rare ones, of gradients and the edges of letters, become
    the nearest of the others. An image that Chrome did not write stays as it is.
    """
    chunks = list(_chunks(image))
    width, height, depth, kind, *_ = struct.unpack(">IIBBBBB", chunks[0][1])
    samples = {2: 3, 6: 4}.get(kind)
    raw = np.frombuffer(zlib.decompress(b"".join(data for name, data in chunks if name == b"IDAT")), np.uint8)
    if depth != 8 or samples is None or raw.size != height * (width * samples + 1):
        return image
    rows = raw.reshape(height, -1)
    if (rows[:, 0] != _UP).any():
        return image
    pixels = np.cumsum(rows[:, 1:], axis=0, dtype=np.uint8).reshape(height, width, samples).astype(np.uint32)
    colors = pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2]
    # The 256 most frequent colours, as rows of red, green and blue, and for each pixel the nearest one.
    unique, of_pixel, counts = np.unique(colors.ravel(), return_inverse=True, return_counts=True)
    channels = np.stack((unique >> 16, unique >> 8 & 0xFF, unique & 0xFF), axis=1).astype(np.int64)
    palette = channels[np.argsort(-counts, kind="stable")[:_COLORS]]
    # |a - b|² without |a|², which is the same for all of the palette.
    distance = (palette**2).sum(axis=1) - 2 * channels @ palette.T
    index = distance.argmin(axis=1)[of_pixel]
    filtered = np.zeros((height, width + 1), np.uint8)  # in front of each row: no filter
    filtered[:, 1:] = index.reshape(height, width)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    colored = palette.astype(np.uint8).tobytes()
    data = zlib.compress(filtered.tobytes(), 9)
    parts = ((b"IHDR", header), (b"PLTE", colored), (b"IDAT", data), (b"IEND", b""))
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in parts
    )


def _chunks(image: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and content of the chunks of a PNG."""
    start = len(_SIGNATURE)
    while start < len(image):
        (size,) = struct.unpack_from(">I", image, start)
        yield image[start + 4 : start + 8], image[start + 8 : start + 8 + size]
        start += 12 + size
