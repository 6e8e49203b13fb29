"use strict";
(() => {
  // Figures: drawn when their section is open, one after the other, so that the page stays responsive; colours
  // follow the page.
  const data = document.getElementById("figures");
  const specs = data ? JSON.parse(data.textContent) : [];
  const waiting = new Set(specs.keys());
  const narrow = matchMedia("(max-width: 860px)");

  function theme() {
    const style = getComputedStyle(document.body);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: color("--grid"), zerolinecolor: color("--line"), linecolor: color("--line") };
    return {
      data: { bar: [{ error_x: { color: color("--text") } }] },
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

  const LEGEND_LINE = 19;
  const LABELS = 120; // of an axis, beside which the legend begins
  const legendEntry = (names) => 46 + 6.6 * Math.max(...names.map((name) => name.length));

  // On a narrow page labels are shorter, and a legend gets height of its own: the plot keeps its.
  function fitted(spec, target) {
    const { layout } = spec;
    if (!narrow.matches) return;
    for (const [name, axis] of Object.entries(layout)) {
      if (name.startsWith("yaxis") && axis.ticktext) axis.ticktext = axis.ticktext.map(shorter);
    }
    const names = spec.data.filter((trace) => trace.name && trace.showlegend !== false).map((trace) => trace.name);
    if (layout.showlegend === false || names.length < 2) return;
    const titles = new Set(spec.data.map((trace) => trace.legendgrouptitle?.text).filter(Boolean));
    const perLine = titles.size ? 1 : Math.max(Math.floor((target.clientWidth - LABELS) / legendEntry(names)), 1);
    const lines = Math.ceil(names.length / perLine) + 1.5 * titles.size;
    if (layout.legend.orientation === "v") {
      layout.legend = { ...layout.legend, orientation: "h", x: 0, yref: "container", y: 0, yanchor: "bottom" };
      layout.margin = { ...layout.margin, b: lines * LEGEND_LINE + 60 };
      layout.height += lines * LEGEND_LINE - 120;
    } else layout.height += (lines - 1) * LEGEND_LINE;
    target.style.height = `${layout.height}px`;
  }

  function draw(index) {
    const spec = specs[index];
    const target = document.getElementById(`figure-${index}`);
    waiting.delete(index);
    try {
      for (const menu of spec.layout.updatemenus || []) buttons(target, menu);
      delete spec.layout.updatemenus;
      fitted(spec, target);
      Plotly.newPlot(target, spec.data, { ...spec.layout, template: theme() }, config);
    } catch (error) {
      // One that plotly cannot draw must not take the others with it.
      target.textContent = "This figure cannot be drawn in this window.";
      console.error(error);
    }
  }

  function open(index) {
    const target = document.getElementById(`figure-${index}`);
    return target.checkVisibility() && target.clientWidth > 0;
  }
  const next = () => [...waiting].find(open);
  let drawing = false;

  function drawNext() {
    const index = next();
    drawing = index !== undefined;
    if (!drawing) return;
    draw(index);
    setTimeout(drawNext, 0);
  }

  // Draws what is open, now and whenever more is opened; called once plotly is there. `at_once`: for print.
  tracelens.drawFigures = (at_once = false) => {
    if (typeof Plotly === "undefined") return;
    if (at_once) for (let index = next(); index !== undefined; index = next()) draw(index);
    else if (!drawing) drawNext();
  };
  // Plotly fails on figures in closed sections, which have no size: one that gets a size is drawn, and one that
  // gets another follows it.
  let resized;
  function fit() {
    for (const plot of document.querySelectorAll(".js-plotly-plot")) {
      const drawn = plot.querySelector(".main-svg")?.clientWidth;
      if (plot.checkVisibility() && drawn && drawn !== plot.clientWidth) Plotly.Plots.resize(plot);
    }
  }
  const sizes = new ResizeObserver(() => {
    tracelens.drawFigures();
    clearTimeout(resized);
    resized = setTimeout(fit, 120);
  });
  for (const target of document.querySelectorAll(".figure")) sizes.observe(target);

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const plot of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(plot, { template: theme() });
  });
})();
