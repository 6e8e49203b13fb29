"use strict";
(() => {
  // Tables.
  const full = (cell) => (cell.matches(".l:not(.open)") ? cell.title : cell.textContent);

  function compare(column, sign) {
    const key = (row) => {
      const cell = row.cells[column];
      return cell.dataset.v === undefined ? full(cell) : Number(cell.dataset.v === "inf" ? Infinity : cell.dataset.v);
    };
    return (a, b) => {
      const x = key(a);
      const y = key(b);
      return sign * (typeof x === "number" ? (x < y ? -1 : x > y ? 1 : 0) : x.localeCompare(y));
    };
  }

  // A tree is a list in depth-first order; families() finds the children of every row from the depths.
  const depth = (row) => Number(row.dataset.d || 0);

  function families(rows) {
    const children = new Map([[null, []]]);
    const parents = new Map();
    const path = [];
    for (const row of rows) {
      path.length = Math.min(path.length, depth(row));
      const parent = path.length ? path[path.length - 1] : null;
      children.get(parent).push(row);
      children.set(row, []);
      parents.set(row, parent);
      path.push(row);
    }
    return { children, parents };
  }

  function sort(body, column, sign) {
    const { children } = families(body.rows);
    const order = compare(column, sign);
    const out = document.createDocumentFragment();
    (function append(parent) {
      for (const row of children.get(parent).sort(order)) {
        out.append(row);
        append(row);
      }
    })(null);
    body.append(out);
  }

  const toggleOf = (row) => row.querySelector(".tw");
  const isOpen = (row) => toggleOf(row)?.getAttribute("aria-expanded") === "true";

  function say(grid, query, found, all) {
    const note = grid.querySelector(".found");
    note.hidden = !query;
    note.textContent = `${found} of ${all} rows match`;
  }

  function refresh(grid) {
    const body = grid.querySelector("tbody");
    const query = (grid.querySelector("input")?.value || "").trim().toLowerCase();
    if (!body) {
      const entries = [...grid.querySelectorAll(".entries > li")];
      for (const entry of entries) entry.hidden = !entry.textContent.toLowerCase().includes(query);
      say(grid, query, entries.filter((entry) => !entry.hidden).length, entries.length);
      return;
    }
    const { children, parents } = families(body.rows);
    const hits = new Set();
    let found = 0;
    if (query) {
      for (const row of body.rows) {
        if (![...row.cells].some((cell) => full(cell).toLowerCase().includes(query))) continue;
        found += 1;
        for (let at = row; at && !hits.has(at); at = parents.get(at)) hits.add(at);
      }
    }
    (function show(parent, visible) {
      for (const row of children.get(parent)) {
        row.hidden = query ? !hits.has(row) : !visible;
        show(row, visible && isOpen(row));
      }
    })(null, true);
    say(grid, query, found, body.rows.length);
  }

  function sortBy(header) {
    const sign = header.getAttribute("aria-sort") === "descending" ? 1 : header.getAttribute("aria-sort") === "ascending" ? -1 : header.classList.contains("n") ? -1 : 1;
    for (const other of header.parentNode.cells) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    sort(header.closest("table").tBodies[0], header.cellIndex, sign);
  }

  function expandAll(grid, button) {
    const open = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(open));
    button.textContent = open ? "Collapse" : "Expand all";
    for (const row of grid.querySelectorAll("tbody tr")) toggleOf(row)?.setAttribute("aria-expanded", String(open || depth(row) < 1));
    refresh(grid);
  }

  function swap(cell) {
    if (String(getSelection())) return; // selecting part of a name is not a click on it
    const text = cell.querySelector("span") || cell;
    [cell.title, text.textContent] = [text.textContent, cell.title];
    cell.classList.toggle("open");
  }

  for (const grid of document.querySelectorAll(".grid")) {
    grid.addEventListener("input", () => refresh(grid));
    grid.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) {
        const cell = event.target.closest("td.l");
        if (cell) swap(cell);
      } else if (button.closest("th")) {
        sortBy(button.closest("th"));
      } else if (button.classList.contains("tw")) {
        button.setAttribute("aria-expanded", String(button.getAttribute("aria-expanded") !== "true"));
        refresh(grid);
      } else {
        expandAll(grid, button);
      }
    });
  }
})();
