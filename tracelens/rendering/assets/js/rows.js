"use strict";
// Which rows the picture of the step has: brackets of steps, passes and layers, a lane a rank, and below a lane
// its streams. A row is {type: "marks" | "lane" | "stream", rank, stream, marks | line, y, height}.
(() => {
  const { seen } = tracelens.lanes;
  const AXIS = 20;
  const MARK = 17;
  const STREAM = 16;
  const GAP = 5;
  const ROOM = 24; // px that a mark needs on average for the inner levels to be shown
  const CLOSE = 8; // px
  const MOST_LEVELS = 3;

  // Marks of ranks as levels of brackets: rank -> [{kind, depth, marks: [{name, start, end}]}], outermost first.
  function brackets(table) {
    const ranks = new Map();
    if (!table) return ranks;
    const column = (name) => table.columns[name];
    const text = (name, row) => column(name).texts[column(name).values[row]];
    const number = (name, row) => column(name).values[row];
    for (let row = 0; row < table.rows; row += 1) {
      const rank = number("rank", row);
      if (!ranks.has(rank)) ranks.set(rank, []);
      const levels = ranks.get(rank);
      const [kind, depth] = [text("kind", row), number("depth", row)];
      let level = levels.find((other) => other.kind === kind && other.depth === depth);
      if (!level) levels.push((level = { kind, depth, marks: [] }));
      const start = number("ts_ns", row);
      level.marks.push({ name: text("name", row), start, end: start + number("dur_ns", row) });
    }
    for (const levels of ranks.values()) {
      levels.sort((a, b) => a.depth - b.depth);
      for (const { marks } of levels) marks.sort((a, b) => a.start - b.start);
    }
    return ranks;
  }

  // Whether two ranks pass through a level together: the same marks, nearly all of which start within a
  // quarter of their length of each other, or too close to be told apart at `scale` px a ns.
  function together(level, other, scale) {
    if (!other || level.marks.length !== other.marks.length) return false;
    const apart = level.marks.filter((mark, index) => {
      const twin = other.marks[index];
      return mark.name !== twin.name || Math.abs(mark.start - twin.start) > Math.max((mark.end - mark.start) / 4, CLOSE / scale);
    });
    return apart.length <= level.marks.length / 20;
  }

  // Whether the marks of a level that are in view have room, `scale` px a ns.
  function roomy(level, { from, to }, scale) {
    const shown = level.marks.filter((mark) => mark.end > from && mark.start < to);
    const time = shown.reduce((sum, mark) => sum + Math.min(mark.end, to) - Math.max(mark.start, from), 0);
    return shown.length > 0 && (time * scale) / shown.length >= ROOM;
  }

  // Levels to draw of a rank: steps, what is next inside, and further ones where they have room.
  function levelsOf(levels, view, scale) {
    const inner = levels.filter(({ kind }) => kind !== "step");
    const kept = inner.filter((level, index) => index === 0 || roomy(level, view, scale)).slice(0, MOST_LEVELS);
    return levels.filter((level) => level.kind === "step" || kept.includes(level));
  }

  // Rows of these ranks. A level is drawn above the first lane of those that pass through it together.
  function rowsOf({ ranks, lanes, marks, streams, open, view, width }) {
    const rows = [];
    const drawn = new Map();
    const scale = width / (view.to - view.from);
    const lane = ranks.length === 1 ? 34 : ranks.length > 4 ? 20 : 26;
    let y = AXIS;
    const add = (row) => {
      rows.push({ ...row, y });
      y += row.height;
    };
    for (const rank of ranks) {
      for (const level of levelsOf(marks.get(rank) || [], view, scale)) {
        const key = `${level.kind} ${level.depth}`;
        if (together(level, drawn.get(key), scale)) continue;
        drawn.set(key, level);
        add({ type: "marks", rank, marks: level.marks, height: MARK });
      }
      add({ type: "lane", rank, line: lanes.get(rank), height: lane });
      for (const line of open(rank) ? streams(rank) : []) {
        y += 1;
        add({ type: "stream", rank, stream: line.keys[1], line, height: STREAM });
      }
      y += GAP;
    }
    return { rows, height: y };
  }

  const visible = (streams, { from, to }) => streams.reduce((sum, line) => sum + seen(line, from, to), 0);

  tracelens.rows = { AXIS, GAP, brackets, rowsOf, visible };
})();
