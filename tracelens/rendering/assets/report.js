"use strict";
(() => {
  // Figures: drawn one after the other, so that the page stays responsive; colours follow the page.
  const data = document.getElementById("figures");
  const specs = data ? JSON.parse(data.textContent) : [];
  const narrow = matchMedia("(max-width: 860px)");

  function theme() {
    const style = getComputedStyle(document.body);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: color("--grid"), zerolinecolor: color("--line"), linecolor: color("--line") };
    return {
      layout: {
        font: { family: style.fontFamily, size: 12, color: color("--text") },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        modebar: { bgcolor: "rgba(0,0,0,0)", color: color("--soft"), activecolor: color("--text") },
        hoverlabel: { bgcolor: color("--panel"), bordercolor: color("--line"), font: { color: color("--text") }, align: "left" },
        xaxis: { ...axis, automargin: true, title: { font: { color: color("--soft") } } },
        yaxis: { ...axis, automargin: true, title: { font: { color: color("--soft") } } },
      },
    };
  }

  const config = {
    responsive: true,
    ...(narrow.matches && { displayModeBar: false }),
    displaylogo: false,
    // A trace is nobody else's business: nothing is offered that sends a figure anywhere.
    showSendToCloud: false,
    plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };

  // Labels are escaped for plotly, and must not be cut inside of "&lt;".
  const escapes = [["&", "&amp;"], ["<", "&lt;"], [">", "&gt;"], ["%{", "%&#123;"]];

  function shorter(label) {
    let text = escapes.reduceRight((old, [plain, escaped]) => old.replaceAll(escaped, plain), label);
    if (text.length > 20) text = `${text.slice(0, 12)}…${text.slice(-7)}`;
    return escapes.reduce((old, [plain, escaped]) => old.replaceAll(plain, escaped), text);
  }

  // Plotly's own buttons know neither dark pages nor narrow ones: these do the same as elements of the page.
  function buttons(target, menu) {
    const group = document.createElement("div");
    group.className = "views";
    group.setAttribute("role", "group");
    for (const { label, method, args } of menu.buttons) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.setAttribute("aria-pressed", String(!group.children.length));
      button.addEventListener("click", () => {
        for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
        Plotly[method](target, ...structuredClone(args));
      });
      if (narrow.matches && args[1]?.["yaxis.ticktext"]) args[1]["yaxis.ticktext"] = args[1]["yaxis.ticktext"].map(shorter);
      group.append(button);
    }
    target.before(group);
  }

  function draw(index) {
    if (index >= specs.length) return;
    const spec = specs[index];
    const target = document.getElementById(`figure-${index}`);
    for (const menu of spec.layout.updatemenus || []) buttons(target, menu);
    delete spec.layout.updatemenus;
    if (narrow.matches) {
      for (const [name, axis] of Object.entries(spec.layout)) {
        if (name.startsWith("yaxis") && axis.ticktext) {
          axis.ticktext = axis.ticktext.map(shorter);
        }
      }
    }
    Plotly.newPlot(target, spec.data, { ...spec.layout, template: theme() }, config);
    setTimeout(draw, 0, index + 1);
  }
  draw(0);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const plot of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(plot, { template: theme() });
  });

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

  // Contents: mark the section in view.
  const links = new Map([...document.querySelectorAll("nav li a")].map((link) => [decodeURIComponent(link.hash.slice(1)), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "0px 0px -75% 0px" });
  for (const section of document.querySelectorAll("section.result")) seen.observe(section);
})();
