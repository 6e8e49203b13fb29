"""Drawings of timelines for the concept pages, made from text: a lane a line, a letter a stretch of time."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from textwrap import dedent

CELL, LANE, GAP, LEFT, TOP = 13, 28, 12, 92, 14

STATES = {
    "c": ("#4a74d8", "computing"),
    "d": ("#35a7dc", "computing"),
    "m": ("#e8923a", "moving"),
    "w": ("hatch", "waiting"),
    "l": ("#3fae9e", "launching"),
    "b": ("#d95f76", "blocked"),
    "o": ("#985c14", "CPU op"),
}
"""Letter to the color of its box and what it stands for; a space or a dot is idle time."""

INK = {"": ("#1c2127", "#5d6773", "#e8eaed"), "-dark": ("#e4e7eb", "#9aa4b0", "#262c34")}
"""End of the name to the colors of text, of lines and of lanes."""


@dataclass(frozen=True)
class Timeline:
    """A drawing: lanes with boxes, and brackets under them."""

    about: str
    lanes: str
    """A name and its boxes a line, or, in a line that begins with a bar, brackets: words between two bars."""
    words: str = ""
    """Letter to the words in its boxes or brackets, `c=step 1`, separated by commas; if not as in STATES."""


TIMELINES = {
    "steps": Timeline(
        "The host launches two steps, the GPU runs each later: a step begins when the one before has ended",
        """
        |         |host: step 1       |host: step 2       |
        host       llllllllllllllllllllLLLLLLLLLLLLLLLLLLLL
        GPU        .....cccc.ccccccccccccccdddddddddd.ddddddddd
        |         |step 1                 |step 2             |
        """,
        "l=launches of step 1,L=launches of step 2,c=work of step 1,d=work of step 2",
    ),
    "waiting": Timeline(
        "Three ranks enter an all-to-all: until the last one arrives they wait, then all move data",
        """
        rank 0     ccccccccccccccwwwwwwwwwwwwwwwmmmmmmmmmccccc
        rank 1     ccccccccccccccccccccccwwwwwwwmmmmmmmmmccccc
        rank 2     cccccccccccccccccccccccccccccmmmmmmmmmccccc
        |                                      |A       |
        """,
        "A=everyone is there",
    ),
    "overlap": Timeline(
        "Communication on a stream of its own: hidden while the rank computes, exposed while it does not",
        """
        stream 7   cccccccccccccccccccccc............cccccccc
        stream 20  ..........mmmmmmmmmmmmmmmmmmmmmmmm........
        |                   |hidden     |exposed    |
        """,
        "m=communication",
    ),
    "idle": Timeline(
        "The GPU idles while the host leaves a blocking call, refills the launch queue, or is in a CPU op",
        """
        host       lllllllbbbbbbbbbbbbbbbbbbbblllllllllllllloooooollll
        GPU        ..cccccccccccccccccc.............cccccccccc.....ccc
        |                             |B     |R    |         |O   |
        """,
        "b=blocked: .item(),B=blocking call,R=queue refill,O=CPU ops",
    ),
}


def drawings() -> dict[str, str]:
    """File name to SVG, for light and dark pages."""
    return {
        f"{name}{end}.svg": svg(drawn, *ink) for name, drawn in TIMELINES.items() for end, ink in INK.items()
    }


def svg(drawn: Timeline, text: str, line: str, lane: str) -> str:
    """One timeline."""
    words = dict(part.split("=") for part in drawn.words.split(",") if part)
    rows = dedent(drawn.lanes).strip().splitlines()
    cells = max(len(row) for row in rows) - 11
    width, y, parts = LEFT + cells * CELL + 12, TOP, []
    for row in rows:
        if row.startswith("|"):
            parts.append(_brackets(row[10:], y, words, (line, text)))
            y += 26
            continue
        name, spans = row[:11].strip(), row[11:]
        end = LEFT + len(spans) * CELL
        parts.append(
            f'<text x="{LEFT - 12}" y="{y + 19}" text-anchor="end" fill="{text}">{escape(name)}</text>'
        )
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{end - LEFT}" height="{LANE}" rx="3" fill="{lane}"/>')
        parts += _boxes(spans, y, words, text)
        y += LANE + GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" role="img" '
        f'aria-label="{escape(drawn.about)}" font-family="system-ui, sans-serif" font-size="14">'
        '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)">'
        '<rect width="7" height="7" fill="#e8923a" fill-opacity=".22"/>'
        '<rect width="3" height="7" fill="#e8923a" fill-opacity=".75"/></pattern></defs>'
        f"{''.join(parts)}</svg>"
    )


def _boxes(spans: str, y: int, words: dict[str, str], text: str) -> list[str]:
    parts, x = [], LEFT
    for letter, cells in groupby(spans):
        wide = len(list(cells)) * CELL
        if letter not in " .":
            color, meaning = STATES[letter.lower()]
            fill = "url(#hatch)" if color == "hatch" else color
            faded = ' fill-opacity=".65"' if letter.isupper() else ""
            parts.append(
                f'<rect x="{x}" y="{y}" width="{wide - 1}" height="{LANE}" rx="3" fill="{fill}"{faded}/>'
            )
            word = words.get(letter, meaning)
            if word and len(word) * 7.6 < wide:
                ink = text if color == "hatch" else "#ffffff"
                parts.append(
                    f'<text x="{x + wide / 2:g}" y="{y + 19}" text-anchor="middle" fill="{ink}">'
                    f"{escape(word)}</text>"
                )
        x += wide
    return parts


def _brackets(row: str, y: int, words: dict[str, str], ink: tuple[str, str]) -> str:
    """A bracket for each word between two bars, which stand left of their cells."""
    line, text = ink
    bars = [index for index, letter in enumerate(row) if letter == "|"]
    parts = []
    for start, end in pairwise(bars):
        if word := row[start + 1 : end].strip():
            x1, x2 = LEFT + start * CELL, LEFT + end * CELL - 1
            parts.append(
                f'<path d="M{x1} {y - 6}v6H{x2}v-6" fill="none" stroke="{line}" stroke-width="1.3"/>'
                f'<text x="{(x1 + x2) / 2:g}" y="{y + 15}" text-anchor="middle" font-size="13" '
                f'fill="{text}">{escape(words.get(word, word))}</text>'
            )
    return "".join(parts)
