"""The rooms of the package and who imports whom, drawn from the imports themselves.

Layered as Sugiyama, Tagawa and Toda do (1981, doi 10.1109/TSMC.1981.4308636): rows by who imports whom, an
order in each row with few crossings, then places. Arrows that pass a row hold a place in it, so that they
lead around its rooms.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median

PACKAGE = Path(__file__).resolve().parents[2] / "tracelens"
BASICS = "basics"
"""Modules of no room, which all rooms may import; drawn as one box without arrows."""

SUBJECTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Interface": ("#5b5fc7", ("cli", "session")),
    "Answers": (
        "#b4532a",
        ("analysis", "findings", "compare", "summary", "what_if", "planner", "reproducers"),
    ),
    "Traces and tables": ("#1f7a8c", ("read", "trace", "table", "workers", "costs", "devices", BASICS)),
    "Outputs": ("#3c7a3e", ("rendering", "outputs", "merge")),
    "Recording": ("#8a4fa3", ("recording", "workload")),
}
"""What rooms are about, with the color of each subject."""

WIDTH, MARGIN, ROW, BOX, HIGH, LEGEND = 960.0, 14.0, 74.0, 118.0, 36.0, 40.0
SLOT, LANE = BOX + 18.0, 26.0
"""Widths that a room and a passing arrow take in a row."""
SWEEPS = 24

Edges = Mapping[str, set[str]]
Node = tuple[str, ...]
"""(room,), or (importing room, imported room, row) where an arrow passes a row."""


def imports() -> dict[str, set[str]]:
    """Room to the rooms that it imports, whether at the top of a module or in a function."""
    edges: dict[str, set[str]] = {path.parent.name: set() for path in PACKAGE.glob("*/__init__.py")}
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0]
        if room not in edges:
            continue  # modules of no room
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            parts = (name.split(".") for name in names)
            edges[room] |= {part[1] for part in parts if part[0] == PACKAGE.name and len(part) > 1}
    return {room: (targets & edges.keys()) - {room} for room, targets in edges.items()}


def below(edges: Edges, room: str) -> set[str]:
    """All rooms that a room imports, directly or not."""
    reached: set[str] = set()
    waiting = [room]
    while waiting:
        new = edges[waiting.pop()] - reached
        reached |= new
        waiting.extend(new)
    return reached


def direct(edges: Edges) -> dict[str, set[str]]:
    """The arrows without those that a longer way implies."""
    return {
        room: {target for target in targets if not any(target in below(edges, other) for other in targets)}
        for room, targets in edges.items()
    }


def rows(arrows: Edges) -> dict[str, int]:
    """Room to its row, 0 at the bottom: above all that it imports, and near those that import it."""
    height: dict[str, int] = {}
    while len(height) < len(arrows):
        ready = [room for room in arrows if room not in height and arrows[room] <= height.keys()]
        if not ready:
            raise ValueError("rooms import each other in a circle")
        height |= {room: 1 + max((height[target] for target in arrows[room]), default=-1) for room in ready}
    users = {room: [user for user in arrows if room in arrows[user]] for room in arrows}
    for room in sorted(arrows, key=lambda room: -height[room]):
        if users[room] and len(users[room]) >= len(arrows[room]):
            height[room] = min(height[user] for user in users[room]) - 1
    return height


def layered(arrows: Edges, height: Mapping[str, int]) -> tuple[list[list[Node]], list[tuple[Node, Node]]]:
    """The nodes of each row from the top, in an order with few crossings, and the links between rows."""
    layers: list[list[Node]] = [[] for _ in range(max(height.values()) + 1)]
    for room in sorted(arrows):
        layers[-1 - height[room]].append((room,))
    links = []
    for room, targets in sorted(arrows.items()):
        for target in sorted(targets):
            passed: list[Node] = [
                (room, target, str(row)) for row in range(height[room] - 1, height[target], -1)
            ]
            for node in passed:
                layers[-1 - int(node[2])].append(node)
            links += pairwise([(room,), *passed, (target,)])
    best, fewest = layers, crossings(layers, links)
    for sweep in range(SWEEPS):
        layers = _swept(layers, links, down=sweep % 2 == 0)
        if (count := crossings(layers, links)) < fewest:
            best, fewest = layers, count
    return best, links


def _swept(layers: list[list[Node]], links: Sequence[tuple[Node, Node]], *, down: bool) -> list[list[Node]]:
    """Each row in the order of the mean position of its neighbors in the row before."""
    order = list(layers) if down else list(reversed(layers))
    neighbors: dict[Node, list[Node]] = {}
    for upper, lower in links:
        near, far = (upper, lower) if down else (lower, upper)
        neighbors.setdefault(far, []).append(near)
    swept = [order[0]]
    for row in order[1:]:
        place = {node: (index + 0.5) / len(swept[-1]) for index, node in enumerate(swept[-1])}
        own = {node: (index + 0.5) / len(row) for index, node in enumerate(row)}
        mean = {node: _mean([place[near] for near in neighbors.get(node, ())], own[node]) for node in row}
        swept.append(sorted(row, key=lambda node: mean[node]))
    return swept if down else swept[::-1]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def crossings(layers: Iterable[Sequence[Node]], links: Iterable[tuple[Node, Node]]) -> int:
    """How often links cross each other."""
    place = {node: (row, index) for row, nodes in enumerate(layers) for index, node in enumerate(nodes)}
    ends = [(*place[upper], place[lower][1]) for upper, lower in links]
    return sum(
        row == other_row and (upper - other_upper) * (lower - other_lower) < 0
        for (row, upper, lower), (other_row, other_upper, other_lower) in combinations(ends, 2)
    )


def places(layers: Sequence[Sequence[Node]], links: Sequence[tuple[Node, Node]]) -> dict[Node, float]:
    """The middle of each node, near the median of its neighbors, in the order of its row."""
    neighbors: dict[Node, list[Node]] = {}
    for upper, lower in links:
        neighbors.setdefault(upper, []).append(lower)
        neighbors.setdefault(lower, []).append(upper)
    x = {node: WIDTH * (index + 0.5) / len(row) for row in layers for index, node in enumerate(row)}
    for sweep in range(SWEEPS * 4):
        for row in layers if sweep % 2 else reversed(layers):
            wanted = [median([x[near] for near in neighbors[node]]) for node in row]
            for node, middle in zip(row, _apart(row, wanted), strict=True):
                x[node] = middle
    return x


def _apart(row: Sequence[Node], wanted: Sequence[float]) -> list[float]:
    """Middles as close to the wanted ones as the widths of the nodes allow: mean of the two greedy ways."""
    half = [(SLOT if len(node) == 1 else LANE) / 2 for node in row]
    from_left, from_right = [], []
    edge = MARGIN
    for index, middle in enumerate(wanted):
        last = WIDTH - MARGIN - 2 * sum(half[index + 1 :]) - half[index]
        from_left.append(min(max(middle, edge + half[index]), last))
        edge = from_left[-1] + half[index]
    edge = WIDTH - MARGIN
    for index in reversed(range(len(wanted))):
        first = MARGIN + 2 * sum(half[:index]) + half[index]
        from_right.append(max(min(wanted[index], edge - half[index]), first))
        edge = from_right[-1] - half[index]
    return [(a + b) / 2 for a, b in zip(from_left, reversed(from_right), strict=True)]


def svg() -> str:
    """The picture: importing rooms above imported ones."""
    arrows = direct(imports())
    subject_of = {room: name for name, (_, rooms) in SUBJECTS.items() for room in rooms}
    if subject_of.keys() != {*arrows, BASICS}:
        raise ValueError(
            f"SUBJECTS of {__file__} lacks or has in excess: {subject_of.keys() ^ {*arrows, BASICS}}"
        )
    layers, links = layered(arrows, rows(arrows))
    x = places(layers, links)
    y = {node: LEGEND + ROW * (index + 0.5) for index, row in enumerate(layers) for node in row}
    base = LEGEND + ROW * len(layers) + HIGH / 2 + 6
    height = base + HIGH / 2 + 8
    boxes = [_box(node[0], x[node], y[node], subject_of[node[0]]) for node in sorted(x) if len(node) == 1]
    label = "Rooms of the package. Arrows lead to the rooms that a room imports."
    return "".join(
        [
            f'<svg class="rooms" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" '
            f'role="img" aria-label="{label}">',
            f"<style>{_style()}</style>",
            '<defs><marker id="rooms-tip" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path class="tip" d="M0 .5 8 4 0 7.5z"/></marker></defs>',
            *_legend(),
            *(_arrow(room, target, x, y) for room in sorted(arrows) for target in sorted(arrows[room])),
            *boxes,
            f'<rect class="{_class(subject_of[BASICS])}" x="{MARGIN}" y="{base - HIGH / 2:.0f}" '
            f'width="{WIDTH - 2 * MARGIN}" height="{HIGH}" rx="7"/><text x="{WIDTH / 2}" y="{base + 5:.0f}">'
            f"{BASICS}: {escape(', '.join(basics()))}</text>",
            "</svg>",
        ]
    )


def basics() -> list[str]:
    """The modules of no room that rooms import."""
    public = ("__init__", "__main__", "version")
    return sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem not in public)


def _style() -> str:
    """Colors that fit light and dark pages: those of the theme where the picture is part of a page."""
    subjects = "".join(
        f".rooms .{_class(name)}{{fill:{color};stroke:{color}}}" for name, (color, _) in SUBJECTS.items()
    )
    return (
        ".rooms text{font:500 14.5px system-ui,sans-serif;text-anchor:middle;"
        "fill:var(--md-default-fg-color,#1f2430)}"
        f"{subjects}.rooms rect{{fill-opacity:.16;stroke-width:1.5}}"
        ".rooms .back{fill:var(--md-default-bg-color,#fff);fill-opacity:1;stroke:none}"
        ".rooms .line{fill:none;stroke:var(--md-default-fg-color--light,#5d6472);stroke-width:1.4}"
        ".rooms .tip{fill:var(--md-default-fg-color--light,#5d6472)}"
    )


def _class(subject: str) -> str:
    return subject.partition(" ")[0].lower()


def _legend() -> list[str]:
    parts, left = [], MARGIN
    for name in SUBJECTS:
        parts.append(
            f'<rect class="{_class(name)}" x="{left:.0f}" y="4" width="16" height="16" rx="4"/>'
            f'<text x="{left + 23:.0f}" y="17" style="text-anchor:start">{name}</text>'
        )
        left += 54 + 8.2 * len(name)
    return parts


def _box(room: str, x: float, y: float, subject: str) -> str:
    place = f'x="{x - BOX / 2:.1f}" y="{y - HIGH / 2:.1f}" width="{BOX}" height="{HIGH}" rx="7"'
    return (
        f'<rect class="back" {place}/><rect class="{_class(subject)}" {place}/>'
        f'<text x="{x:.1f}" y="{y + 5:.1f}">{escape(room)}</text>'
    )


def _arrow(room: str, target: str, x: Mapping[Node, float], y: Mapping[Node, float]) -> str:
    """A smooth line from the bottom of a room through the rows that it passes to the top of another."""
    passed = sorted(
        (node for node in x if node[:2] == (room, target) and len(node) == 3), key=lambda node: y[node]
    )
    points = [(x[room,], y[room,] + HIGH / 2)]
    for node in passed:
        points += [(x[node], y[node] - HIGH / 2), (x[node], y[node] + HIGH / 2)]
    points.append((x[target,], y[target,] - HIGH / 2))
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x1, y1), (x2, y2) in pairwise(points):
        middle = (y1 + y2) / 2
        path += f" C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"
    return f'<path class="line" d="{path}" marker-end="url(#rooms-tip)"/>'


def table() -> str:
    """The rooms from the top in a Markdown table: what each is, by its docstring, and what it imports."""
    arrows = direct(imports())
    height = rows(arrows)
    lines = ["| room | what it is | imports |", "|---|---|---|"]
    for room in sorted(arrows, key=lambda room: (-height[room], room)):
        imported = ", ".join(f"`{target}`" for target in sorted(arrows[room]))
        lines.append(f"| `{room}` | {purpose(room)} | {imported} |")
    return "\n".join(lines)


def purpose(room: str) -> str:
    """The first line of a room's docstring."""
    tree = ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0].replace("|", "\\|")
