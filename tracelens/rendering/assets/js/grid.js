"use strict";
(() => {
  // One table of the page, alive: header, filters, rows, cells under the keyboard.
  const PAGE = 15;
  const TITLE = 1200;

  function element(name, properties = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(properties)) {
      if (key.includes("-") || key === "role") made.setAttribute(key, value);
      else made[key] = value;
    }
    made.append(...children);
    return made;
  }
  tracelens.element = element;

  // At most so many characters: the middle is cut out.
  function shorten(text, width) {
    if (text.length <= width) return text;
    const characters = [...text];
    if (characters.length <= width) return text;
    const tail = Math.floor(((width - 1) * 2) / 5);
    return `${characters.slice(0, width - 1 - tail).join("")}…${characters.slice(-tail).join("")}`;
  }

  class Grid {
    // `load` unpacks a view by name; `changed` is called after rows changed.
    constructor(spec, table, load, changed) {
      Object.assign(this, { spec, table, load, changed });
      this.views = {};
      this.state = { view: "across" in spec.views ? "across" : "rows", sort: null, filters: {}, query: "", hidden: new Set(), all: false };
      this.toggled = new Set();
      this.active = { index: 0, column: 0 };
      this.scroller = table.closest(".scroll");
      this.table.closest(".grid").classList.add("live");
      this.table.setAttribute("role", spec.tree ? "treegrid" : "grid");
      this.table.setAttribute("aria-label", this.scroller.getAttribute("aria-label") || "");
      this.scroller.tabIndex = -1;
      this.scroller.removeAttribute("role");
      this.window = new tracelens.Window(this.scroller, table.tBodies[0], (index) => this.row(index), () => this.drawn());
      this.table.tHead.addEventListener("click", (event) => this.headClicked(event));
      this.table.tHead.addEventListener("input", (event) => this.filterTyped(event));
      this.table.tBodies[0].addEventListener("click", (event) => this.bodyClicked(event));
      this.table.tBodies[0].addEventListener("focusin", (event) => this.focused(event));
      this.scroller.addEventListener("keydown", (event) => this.pressed(event));
    }

    // The view that is to be shown: a rank or a step is only in rows where the table across ranks does not
    // know it.
    get viewName() {
      const { rank, step } = tracelens.selection;
      const { across, rows } = this.spec.views;
      if (!across || this.state.view !== "across") return "rows";
      return (rank >= 0 && rows.ranks) || (step && !across.steps && rows.steps) ? "rows" : "across";
    }

    // The view that is shown.
    get view() {
      return this.views[this.shown];
    }

    get columns() {
      const single = tracelens.selection.rank >= 0 ? "rank" : "";
      return this.view.spec.columns.filter(({ name }) => name !== single && !this.state.hidden.has(name));
    }

    isOpen(row, depth, filtered) {
      return (filtered || this.state.all || depth < 1) !== this.toggled.has(row);
    }

    // Shows the page's selection and this table's state anew; at once, unless a view is yet to be unpacked.
    refresh() {
      const name = this.viewName;
      if (!this.views[name]) return this.load(name).then((view) => {
        this.views[name] = view;
        return this.refresh();
      });
      this.shown = name;
      const { view, state } = this;
      if (state.sort && !view.columns.has(state.sort.name)) state.sort = null;
      this.seen = view.visible({
        selection: tracelens.selection,
        sort: state.sort,
        filters: state.filters,
        query: state.query,
        isOpen: (row, depth, filtered) => this.isOpen(row, depth, filtered),
      });
      this.head();
      this.active.index = Math.min(this.active.index, Math.max(this.seen.positions.length - 1, 0));
      this.active.column = Math.min(this.active.column, Math.max(this.columns.length - 1, 0));
      this.table.setAttribute("aria-rowcount", this.seen.positions.length + 1);
      this.table.setAttribute("aria-colcount", this.columns.length);
      this.window.show(this.seen.positions.length);
      this.changed(this);
      return undefined;
    }

    // ---- the header

    head() {
      const names = this.columns.map(({ name }) => name).join();
      const [titles] = this.table.tHead.rows;
      if (this.headed !== names) {
        this.headed = names;
        titles.replaceChildren(...this.columns.map((column) => this.heading(column)));
        this.filterRow?.replaceChildren(...this.columns.map((column) => this.filterCell(column)));
      }
      for (const cell of titles.cells) {
        const sorted = this.state.sort?.name === cell.dataset.column;
        cell.setAttribute("aria-sort", !sorted ? "none" : this.state.sort.sign > 0 ? "ascending" : "descending");
      }
      for (const box of this.filterRow?.querySelectorAll("input") || []) {
        const error = this.seen.errors[box.dataset.column] || "";
        box.setAttribute("aria-invalid", String(Boolean(error)));
        box.title = error;
      }
    }

    isNumber(column) {
      return column.kind === "number" || column.kind === "percent";
    }

    heading(column) {
      const cell = element("th", { scope: "col", className: this.isNumber(column) ? "n" : "s", title: column.title, "aria-sort": "none" });
      cell.dataset.column = column.name;
      cell.append(element("button", { type: "button", textContent: column.header }));
      return cell;
    }

    filterCell(column) {
      const box = element("input", {
        type: "text",
        value: this.state.filters[column.name] || "",
        placeholder: this.isNumber(column) ? ">5, 3..7" : "text, /regex/",
        spellcheck: false,
        autocomplete: "off",
        "aria-label": `Filter ${column.label}`,
      });
      box.dataset.column = column.name;
      return element("th", { className: "filter" }, box);
    }

    // Shows or hides the row of filters; hidden ones do not filter.
    showFilters(shown) {
      if (shown && !this.filterRow) {
        this.filterRow = element("tr", { className: "filters" }, ...this.columns.map((column) => this.filterCell(column)));
        this.table.tHead.append(this.filterRow);
        this.filterRow.querySelector("input")?.focus();
      } else if (!shown) {
        this.filterRow?.remove();
        this.filterRow = undefined;
        this.filter({});
      }
    }

    // All filters of columns at once: {column: text}.
    filter(filters) {
      this.state.filters = filters;
      this.toggled.clear();
      if (this.filterRow) for (const box of this.filterRow.querySelectorAll("input")) box.value = filters[box.dataset.column] || "";
      this.toTop();
    }

    search(query) {
      this.state.query = query;
      this.toggled.clear();
      this.toTop();
    }

    toTop() {
      this.scroller.scrollTop = 0;
      this.active.index = 0;
      this.refresh();
    }

    filterTyped(event) {
      const { column } = event.target.dataset;
      this.state.filters = { ...this.state.filters, [column]: event.target.value };
      this.toggled.clear();
      this.toTop();
    }

    headClicked(event) {
      const header = event.target.closest("button")?.closest("th");
      if (!header) return;
      const { column: name } = header.dataset;
      const { sort } = this.state;
      const first = this.isNumber(this.view.columns.get(name)) ? -1 : 1;
      this.state.sort = sort?.name !== name ? { name, sign: first } : sort.sign === first ? { name, sign: -first } : null;
      this.refresh();
    }

    // ---- the rows

    row(index) {
      const position = this.seen.positions[index];
      const { order, parts, filtered } = this.seen;
      const row = order.rows[position];
      const made = element("tr", { "aria-rowindex": index + 2 });
      const cells = this.columns.map((column) => this.cell(column, row));
      if (order.depth) {
        const depth = order.depth[position];
        const isParent = filtered ? parts[position] === 1 : order.end[position] > position + 1;
        const open = this.isOpen(row, depth, filtered);
        made.setAttribute("aria-level", depth + 1);
        if (isParent) made.setAttribute("aria-expanded", String(open));
        if (cells.length) this.nest(cells[0], depth, isParent, open);
      }
      made.append(...cells);
      made.dataset.index = index;
      return made;
    }

    cell(column, row) {
      const text = this.view.short(column.name, row);
      const cell = element("td", { textContent: text, tabIndex: -1 });
      if (this.isNumber(column)) {
        const value = this.view.raw(column.name, row);
        // As Python writes it: of a fraction 12 digits.
        cell.dataset.v = Number.isFinite(value) && !Number.isInteger(value) ? Number(value.toPrecision(12)) : value;
        if (column.kind === "percent") {
          cell.className = text.includes("(") ? "f w" : "f";
          cell.style.setProperty("--f", Math.min(Math.max(value, 0), 1).toFixed(3));
        }
      } else if (column.prose) {
        cell.className = "p";
      } else {
        const whole = this.view.text(column.name, row);
        if (whole !== text) {
          cell.className = "l";
          cell.title = shorten(whole, TITLE);
        }
      }
      return cell;
    }

    nest(cell, depth, isParent, open) {
      const text = element("span", { textContent: cell.textContent });
      cell.style.setProperty("--d", depth);
      cell.replaceChildren(text);
      if (!isParent) return;
      const button = element("button", { type: "button", className: "tw", tabIndex: -1, "aria-label": "children", "aria-expanded": String(open) });
      cell.prepend(button);
    }

    drawn() {
      if (!this.window.isWhole) {
        // Columns never shrink while somebody scrolls.
        for (const cell of this.table.tHead.rows[0].cells) cell.style.minWidth = `${cell.offsetWidth}px`;
      }
      const cell = this.activeCell();
      if (cell) cell.tabIndex = 0;
    }

    activeCell() {
      return this.table.tBodies[0].querySelector(`tr[data-index="${this.active.index}"]`)?.cells[this.active.column];
    }

    // ---- what people do with rows and cells

    at(cell) {
      return { index: Number(cell.parentNode.dataset.index), column: cell.cellIndex };
    }

    toggle(index, focus) {
      const row = this.seen.order.rows[this.seen.positions[index]];
      if (!this.toggled.delete(row)) this.toggled.add(row);
      this.refresh();
      if (focus) this.activeCell()?.focus({ preventScroll: true });
    }

    expandAll(all) {
      this.state.all = all;
      this.toggled.clear();
      this.refresh();
    }

    bodyClicked(event) {
      const cell = event.target.closest("td");
      if (!cell || cell.closest(".space")) return;
      if (event.target.closest(".tw")) {
        this.active = this.at(cell);
        this.toggle(this.active.index, true);
      } else if (!String(getSelection())) {
        cell.focus({ preventScroll: true }); // selecting part of a text is not a click on it
        this.copyCell(cell);
      }
    }

    copyCell(cell) {
      const { index, column } = this.at(cell);
      const { name, label } = this.columns[column];
      tracelens.copyAs(this.view.text(name, this.seen.order.rows[this.seen.positions[index]]), label);
    }

    // The visible rows as lines of tabs: as shown, with the units in the header, or raw in base units.
    copyRows(raw) {
      const { columns, view, seen } = this;
      const clean = (value) => String(value).replace(/[\t\n\r]/g, " ");
      const lines = [columns.map((column) => (raw ? column.name : column.header)).join("\t")];
      for (const position of seen.positions) {
        const row = seen.order.rows[position];
        const indent = raw || !seen.order.depth ? "" : "  ".repeat(seen.order.depth[position]);
        lines.push(indent + columns.map(({ name }) => clean(raw ? view.raw(name, row) : view.text(name, row))).join("\t"));
      }
      return tracelens.copyAs(`${lines.join("\n")}\n`, `${seen.positions.length.toLocaleString("en")} rows`);
    }

    focused(event) {
      const cell = event.target.closest("td");
      if (!cell) return;
      const before = this.activeCell();
      if (before) before.tabIndex = -1;
      this.active = this.at(cell);
      cell.tabIndex = 0;
    }

    focus(index, column) {
      const last = this.seen.positions.length - 1;
      if (last < 0) return;
      const before = this.activeCell();
      if (before) before.tabIndex = -1;
      this.active = { index: Math.min(Math.max(index, 0), last), column: Math.min(Math.max(column, 0), this.columns.length - 1) };
      this.window.reveal(this.active.index);
      const cell = this.activeCell();
      cell.tabIndex = 0;
      cell.focus({ preventScroll: true });
      cell.scrollIntoView({ block: "nearest", inline: "nearest" });
    }

    pressed(event) {
      if (event.target.closest("thead") || event.altKey || event.metaKey) return;
      const { index, column } = this.active;
      const row = this.activeCell()?.parentNode;
      const expanded = column === 0 ? row?.getAttribute("aria-expanded") : null;
      const last = this.seen.positions.length - 1;
      const moves = {
        ArrowDown: [index + 1, column],
        ArrowUp: [index - 1, column],
        ArrowLeft: [index, column - 1],
        ArrowRight: [index, column + 1],
        Home: [event.ctrlKey ? 0 : index, 0],
        End: [event.ctrlKey ? last : index, this.columns.length - 1],
        PageDown: [index + PAGE, column],
        PageUp: [index - PAGE, column],
      };
      if (event.ctrlKey && event.key === "c" && !String(getSelection())) this.copyCell(this.activeCell());
      else if (event.ctrlKey && !["Home", "End"].includes(event.key)) return;
      else if ((event.key === "ArrowRight" && expanded === "false") || (event.key === "ArrowLeft" && expanded === "true")) this.toggle(index, true);
      else if (event.key in moves) this.focus(...moves[event.key]);
      else if (event.key === "Enter" || event.key === " ") {
        if (expanded) this.toggle(index, true);
        else if (this.activeCell()) this.copyCell(this.activeCell());
      } else return;
      event.preventDefault();
    }
  }
  tracelens.Grid = Grid;
})();
