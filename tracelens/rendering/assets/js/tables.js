"use strict";
(() => {
  // The tables of the page: each comes to life when somebody is about to see or use it.
  const { element } = tracelens;
  const content = JSON.parse(document.getElementById("tables")?.textContent || "{}");
  const FEW = 5;
  tracelens.ranks = content.ranks || [];
  tracelens.steps = content.steps || [];

  const count = (number) => number.toLocaleString("en");
  const grids = new Map(); // id -> promise of a Grid
  const alive = new Map(); // id -> Grid

  function menu(title, ...items) {
    const content = element("div", {}, ...items);
    const made = element("details", { className: "menu" }, element("summary", { textContent: title }), content);
    // A menu at the right edge of the window opens to its left.
    made.addEventListener("toggle", () => content.classList.toggle("end", made.open && made.getBoundingClientRect().left > innerWidth / 2));
    return made;
  }

  function button(text, click, properties = {}) {
    const made = element("button", { type: "button", className: "all", textContent: text, ...properties });
    made.addEventListener("click", () => click(made));
    return made;
  }

  function press(made, pressed, text) {
    if (!made) return;
    made.setAttribute("aria-pressed", String(pressed));
    if (text) made.textContent = text;
  }

  const isPressed = (made) => made.getAttribute("aria-pressed") === "true";

  // The boxes that show and hide the columns of the view that is seen.
  function columnBoxes(grid) {
    return grid.view.spec.columns.map(({ name, header, title }) => {
      const box = element("input", { type: "checkbox", checked: !grid.state.hidden.has(name) });
      box.addEventListener("change", () => {
        grid.state.hidden[box.checked ? "delete" : "add"](name);
        grid.refresh();
      });
      return element("label", { title }, box, ` ${header}`);
    });
  }

  function columnsMenu(id) {
    const made = menu("Columns");
    made.addEventListener("toggle", async () => {
      if (made.open) made.lastChild.replaceChildren(...columnBoxes(await tracelens.table(id)));
    });
    return made;
  }

  // The line of a table's title and tools; a title that the section has already is not seen, but heard.
  function barOf(holder) {
    const bar = holder.querySelector(".bar") || element("div", { className: "bar" });
    if (bar.isConnected) return bar;
    const title = holder.querySelector("h3");
    title.before(bar);
    bar.append(title);
    return bar;
  }

  function tools(id, spec, holder) {
    const use = (act) => async (made) => act(await tracelens.table(id), made);
    const views = Object.values(spec.views);
    if (Math.max(...views.map((view) => view.rows)) <= FEW) return;
    const bar = barOf(holder);
    const title = bar.querySelector("h3").textContent;
    const search = element("input", { type: "search", placeholder: "Filter names", "aria-label": `Filter names of ${title}` });
    search.addEventListener("input", use((grid) => grid.search(search.value)));
    bar.append(search);
    bar.append(button("Column filters", use((grid, made) => {
      press(made, !isPressed(made));
      grid.showFilters(isPressed(made));
    }), { "aria-pressed": "false", className: "all column-filters", title: "text, /regex/, !text; >5, <=1.5ms, 3..7, =0" }));
    if (spec.tree) {
      bar.append(button("Expand all", use((grid, made) => {
        press(made, !isPressed(made), isPressed(made) ? "Expand all" : "Collapse");
        grid.expandAll(isPressed(made));
      }), { "aria-pressed": "false" }));
    }
    if (spec.views.across) {
      bar.append(button("Every rank", use((grid, made) => {
        press(made, !isPressed(made));
        grid.state.view = isPressed(made) ? "rows" : "across";
        grid.refresh();
      }), { "aria-pressed": "false", className: "all each", title: "One row for each rank" }));
    }
    bar.append(columnsMenu(id));
    bar.append(menu(
      "Copy",
      button("as shown", use((grid) => grid.copyRows(false)), { title: "The visible rows, tab-separated" }),
      button("raw values", use((grid) => grid.copyRows(true)), { title: "The visible rows, tab-separated, in base units" }),
    ));
  }

  // What the selection of the page cannot narrow in this table.
  function badges(spec, holder) {
    const { rank, step } = tracelens.selection;
    const { ranks, steps } = spec.views.rows;
    const command = `${spec.command} --step ${/^[\w#.:-]+$/.test(step) ? step : `'${step.replaceAll("'", "'\\''")}'`}`;
    const texts = [];
    if (step && !steps) texts.push(["all steps", `This table is of all steps. Of one: ${command}`, command]);
    if (rank >= 0 && !ranks) texts.push(["all ranks", "This table covers the whole run, not single ranks"]);
    holder.querySelectorAll(".badge").forEach((badge) => badge.remove());
    if (!texts.length) return;
    const shown = texts.map(([text, title, copied]) => (
      copied ? button(text, () => tracelens.copyAs(copied, "the command"), { className: "badge", title }) : element("span", { className: "badge", textContent: text, title })
    ));
    barOf(holder).querySelector("h3").after(...shown);
  }

  function say(holder, spec, grid) {
    const note = holder.querySelector(".found");
    const { view, seen } = grid;
    const { held, rows } = view.spec;
    const all = held < rows ? ` This page holds ${count(held)} of ${count(rows)}, the ${spec.tree ? "largest" : "first"} of each rank; all of them: ${spec.command} --json or -o DIR for CSV` : "";
    const errors = Object.values(seen.errors).map((error) => ` ${error}`).join("");
    note.textContent = (seen.filtered ? `${count(seen.matched)} of ${count(seen.count)} rows` : `${count(seen.count)} rows`) + errors + all;
    note.hidden = seen.count <= FEW && !seen.filtered && !all;
    const each = holder.querySelector(".each");
    if (each) each.disabled = tracelens.selection.rank >= 0;
    const doc = holder.querySelector(":scope > .doc");
    if (doc) doc.textContent = view.spec.doc;
  }

  async function live(id) {
    const spec = content.tables[id];
    const holder = document.getElementById(id);
    const load = async (name) => new tracelens.View(spec.views[name], await tracelens.payload(spec.views[name].payload), spec.tree);
    const grid = new tracelens.Grid(spec, holder.querySelector("table"), load, (changed) => say(holder, spec, changed));
    await grid.refresh();
    holder.querySelector(".cut")?.remove();
    alive.set(id, grid);
    return grid;
  }

  // The table of that id, alive: filter({column: text}), search(text), focus(row, column), seen.
  tracelens.table = (id) => {
    if (!content.tables?.[id]) throw new Error(`no table ${id}`);
    if (!grids.has(id)) grids.set(id, live(id));
    return grids.get(id);
  };

  // Leads to the rows that have this text as a cell, which the table across ranks may have or not.
  tracelens.showRow = async (id, text) => {
    const grid = await tracelens.table(id);
    const named = [...grid.view.columns.values()].find(({ name }) => grid.view.data[name].texts?.includes(text));
    if (!named) return grid.search(text);
    grid.showFilters(true);
    press(document.getElementById(id).querySelector(".column-filters"), true);
    grid.filter({ [named.name]: `=${text}` });
    return grid.focus(0, 0);
  };

  // ---- rows that are read one by one

  function entriesSearch(holder) {
    const entries = [...holder.querySelectorAll(".entries > li")];
    const bar = holder.querySelector(".bar");
    if (entries.length <= FEW || !bar) return;
    const search = element("input", { type: "search", placeholder: "Filter", "aria-label": `Filter ${bar.textContent.trim()}` });
    search.addEventListener("input", () => {
      const query = search.value.trim().toLowerCase();
      let found = 0;
      for (const entry of entries) {
        entry.hidden = !entry.textContent.toLowerCase().includes(query);
        found += !entry.hidden;
      }
      const note = holder.querySelector(".found");
      note.hidden = !query;
      note.textContent = `${found} of ${entries.length} match`;
    });
    bar.append(search);
  }

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      near.unobserve(entry.target);
      tracelens.table(entry.target.id);
    }
  }, { rootMargin: "400px 0px" });

  const holders = [...document.querySelectorAll(".grid")];
  for (const holder of holders) {
    const spec = content.tables?.[holder.id];
    if (!spec) {
      entriesSearch(holder);
      continue;
    }
    tools(holder.id, spec, holder);
    near.observe(holder);
    // A click on a header or a toggle that comes before the rows do.
    holder.addEventListener("click", (event) => {
      if (alive.has(holder.id) || !event.target.closest("table button")) return;
      const { cellIndex } = event.target.closest("th") || {};
      tracelens.table(holder.id).then(() => cellIndex >= 0 && holder.querySelectorAll("thead th")[cellIndex].querySelector("button").click());
    });
  }

  document.addEventListener("tracelens:selection", () => {
    for (const holder of holders) {
      const spec = content.tables?.[holder.id];
      if (spec) badges(spec, holder);
    }
    for (const grid of alive.values()) {
      grid.toggled.clear();
      grid.toTop();
    }
  });

  // Menus close when somebody turns to something else.
  const close = (except) => {
    for (const open of document.querySelectorAll(".menu[open]")) if (open !== except) open.open = false;
  };
  document.addEventListener("click", (event) => close(event.target.closest(".menu")));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    document.activeElement.closest(".menu")?.querySelector("summary").focus();
    close();
  });

  addEventListener("beforeprint", () => { for (const grid of alive.values()) grid.window.printed(); });
  addEventListener("afterprint", () => { for (const grid of alive.values()) grid.refresh(); });
})();
