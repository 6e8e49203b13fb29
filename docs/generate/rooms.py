"""The rooms of the package and who imports whom, drawn from the imports themselves."""

from __future__ import annotations

import ast
from collections import defaultdict
from html import escape
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "tracelens"
WIDTH, ROW, BOX, HIGH = 960, 84, 118, 38
BASICS = {
    "arrays", "dtypes", "errors", "filenames", "guard", "lazy", "limits", "plugins", "printable", "registry",
    "symbols", "units", "version",
}  # fmt: skip
"""Modules of no room, which all rooms may import; drawn as one box."""


def imports() -> dict[str, set[str]]:
    """Room to the rooms that it imports, whether at the top of a module or in a function."""
    edges: dict[str, set[str]] = {"basics": set()} | {
        path.parent.name: set() for path in PACKAGE.glob("*/__init__.py")
    }
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent == PACKAGE and path.stem not in BASICS:
            continue  # the public names, which are lazy, and `python -m`
        room = _room(path.relative_to(PACKAGE.parent).with_suffix("").parts[1])
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
                if node.module == "tracelens":
                    names = [f"tracelens.{alias.name}" for alias in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == "tracelens" and len(parts) > 1 and (target := _room(parts[1])) != room:
                    edges[room] |= {target} & edges.keys()
    return edges


def _room(name: str) -> str:
    return "basics" if name in BASICS else name


def direct(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows without those that a longer way implies."""
    below = {room: _below(edges, room) for room in edges}
    return {
        room: {
            target
            for target in targets
            if not any(target in below[other] for other in targets if other != target)
        }
        for room, targets in edges.items()
    }


def _below(edges: dict[str, set[str]], room: str) -> set[str]:
    reached: set[str] = set()
    open_rooms = [room]
    while open_rooms:
        for target in edges.get(open_rooms.pop(), ()):
            if target not in reached:
                reached.add(target)
                open_rooms.append(target)
    return reached - {room}


def heights(edges: dict[str, set[str]]) -> dict[str, int]:
    """Room to its row: one above the highest of what it imports."""
    height: dict[str, int] = {}

    def of(room: str) -> int:
        if room not in height:
            height[room] = 0  # a cycle would end here; the architecture tests allow none
            height[room] = 1 + max(map(of, edges[room]), default=-1)
        return height[room]

    for room in edges:
        of(room)
    return height


def svg() -> str:
    """The picture: importing rooms above imported ones."""
    edges = imports()
    arrows, height = direct(edges), heights(edges)
    rows: dict[int, list[str]] = defaultdict(list)
    for room, row in height.items():
        rows[row].append(room)
    top = max(rows)
    where: dict[str, tuple[float, float]] = {}
    for row in range(top + 1):
        # Rooms stand above the middle of what they import, as far as there is room.
        rooms = sorted(rows[row], key=lambda room: _middle(room, arrows, where))
        step = WIDTH / len(rooms)
        for index, room in enumerate(rooms):
            where[room] = (step * (index + 0.5), (top - row) * ROW + 40)
    high = top * ROW + 80
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" role="img" '
        'aria-label="Rooms of the package; arrows point to what a room imports" font-family="sans-serif">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="#7d8ba8"/></marker></defs>',
    ]
    for room, targets in sorted(arrows.items()):
        for target in sorted(targets):
            (x1, y1), (x2, y2) = where[room], where[target]
            bend = (y1 + y2) / 2
            parts.append(
                f'<path d="M{x1:.0f} {y1 + HIGH / 2:.0f} C{x1:.0f} {bend:.0f} {x2:.0f} {bend:.0f} '
                f'{x2:.0f} {y2 - HIGH / 2:.0f}" fill="none" stroke="#7d8ba8" marker-end="url(#tip)"/>'
            )
    for room, (x, y) in sorted(where.items()):
        parts.append(
            f'<rect x="{x - BOX / 2:.0f}" y="{y - HIGH / 2:.0f}" width="{BOX}" height="{HIGH}" rx="7" '
            f'fill="#eaf0fd" stroke="#4a74d8"/><text x="{x:.0f}" y="{y + 5:.0f}" font-size="14" '
            f'text-anchor="middle" fill="#1f2a44">{escape(room)}</text>'
        )
    return "".join([*parts, "</svg>"])


def _middle(room: str, arrows: dict[str, set[str]], where: dict[str, tuple[float, float]]) -> float:
    known = [where[target][0] for target in arrows[room] if target in where]
    return sum(known) / len(known) if known else WIDTH / 2
