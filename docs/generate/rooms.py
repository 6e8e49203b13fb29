"""The rooms of the package and who imports whom, drawn from the imports themselves.

Layered as Sugiyama, Tagawa and Toda do (1981, doi 10.1109/TSMC.1981.4308636): rows by who imports whom, an
order in each row with few crossings, then places. Arrows that pass a row hold a place in it, so that they
lead around its rooms.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import combinations, pairwise
from pathlib import Path
from random import Random

PACKAGE = Path(__file__).resolve().parents[2] / "tracelens"
BASICS = "basics"
"""Modules of no room, which all rooms may import; drawn as one box without arrows."""

SUBJECTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Interface": ("#757de8", ("cli", "session")),
    "Answers": (
        "#dd7747",
        ("analysis", "findings", "opportunities", "compare", "what_if", "planner", "reproducers"),
    ),
    "Traces and tables": (
        "#2b9db3",
        ("read", "trace", "table", "workers", "costs", "devices", "native", BASICS),
    ),
    "Outputs": ("#55a457", ("rendering", "outputs", "merge")),
    "Recording": ("#ad70c9", ("recording", "workload", "calibrate")),
}
"""What rooms are about, with the color of each subject."""

WIDTH, MARGIN, ROW, BOX, HIGH, LEGEND = 960.0, 14.0, 74.0, 118.0, 36.0, 40.0
SLOT, LANE = BOX + 18.0, 26.0
"""Widths that a room and a passing arrow take in a row."""
PULL = (1, 2, 50)
"""How strongly an arrow pulls its ends together: two rooms, a room and a passed row, two passed rows."""
STARTS, SWEEPS, SETTLING = 30, 12, 3000

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
        for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            parts = (name.split(".") for name in names)
            edges[room] |= {part[1] for part in parts if part[0] == PACKAGE.name and len(part) > 1}
    return {room: (targets & edges.keys()) - {room} for room, targets in edges.items()}


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node; expressions, most of a tree, hold none."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from _statements(child)


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
    shuffle = Random(0).shuffle
    found = [layers]
    for _ in range(STARTS):
        for row in layers:
            shuffle(row)
        swept = layers
        for sweep in range(SWEEPS):
            swept = _swept(swept, links, down=sweep % 2 == 0)
            found.append(swept)
    return min(found, key=lambda each: (crossings(each, links), _spread(each, links))), links


def _spread(layers: Sequence[Sequence[Node]], links: Sequence[tuple[Node, Node]]) -> float:
    """How far links lead sideways, by positions in rows."""
    place = {node: index - len(row) / 2 for row in layers for index, node in enumerate(row)}
    return sum(abs(place[upper] - place[lower]) for upper, lower in links)


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
    """The middle of each node: near its neighbors, in the order of its row, and arrows upright."""
    pulls: dict[Node, list[tuple[Node, int]]] = {}
    for upper, lower in links:
        weight = PULL[(len(upper) > 1) + (len(lower) > 1)]
        pulls.setdefault(upper, []).append((lower, weight))
        pulls.setdefault(lower, []).append((upper, weight))
    gap = {node: (LANE if len(node) > 1 else SLOT) / 2 for row in layers for node in row}
    x: dict[Node, float] = {}
    for row in layers:
        for before, node in pairwise((None, *row)):
            x[node] = 0.0 if before is None else x[before] + gap[before] + gap[node]
        middle = (x[row[0]] + x[row[-1]]) / 2
        x |= {node: x[node] - middle for node in row}
    for _ in range(SETTLING):
        for row in layers:
            for before, node, after in zip((None, *row), row, (*row[1:], None), strict=False):
                wanted = sum(x[near] * weight for near, weight in pulls[node])
                wanted /= sum(weight for _, weight in pulls[node])
                low = x[before] + gap[before] + gap[node] if before else -WIDTH
                high = x[after] - gap[after] - gap[node] if after else WIDTH
                x[node] = min(max(wanted, low), high)
    left, right = (pick(x[node] for node in x) for pick in (min, max))
    stretch = (WIDTH - 2 * MARGIN - BOX) / (right - left)
    return {node: MARGIN + BOX / 2 + (value - left) * stretch for node, value in x.items()}


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
        f"{subjects}.rooms rect{{fill-opacity:.2;stroke-width:1.5}}"
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
    middle = [x[node] for node in passed]
    if middle and max(middle) - min(middle) < LANE:
        middle = [sum(middle) / len(middle)] * len(middle)  # upright
    points = [(x[room,], y[room,] + HIGH / 2)]
    for node, value in zip(passed, middle, strict=True):
        points += [(value, y[node] - HIGH / 2), (value, y[node] + HIGH / 2)]
    points.append((x[target,], y[target,] - HIGH / 2))
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x1, y1), (x2, y2) in pairwise(points):
        half = (y1 + y2) / 2
        path += f" C{x1:.1f} {half:.1f} {x2:.1f} {half:.1f} {x2:.1f} {y2:.1f}"
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
