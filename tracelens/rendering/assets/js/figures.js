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

  // Every line of a legend takes room that the plot would lose.
  const LEGEND_LINE = 19;
  const LEGEND_ENTRY = 130;

  function fitted(spec, target) {
    const { layout } = spec;
    if (!narrow.matches) return;
    for (const [name, axis] of Object.entries(layout)) {
      if (name.startsWith("yaxis") && axis.ticktext) axis.ticktext = axis.ticktext.map(shorter);
    }
    const entries = spec.data.filter((trace) => trace.name && trace.showlegend !== false).length;
    if (layout.showlegend === false || entries < 2) return;
    const beside = layout.legend?.orientation === "v";
    if (beside) layout.legend = { ...layout.legend, orientation: "h", x: 0, y: -0.16, yanchor: "top" };
    const lines = Math.ceil((entries * LEGEND_ENTRY) / Math.max(target.clientWidth, LEGEND_ENTRY));
    layout.height += (lines - 1 + beside) * LEGEND_LINE;
    target.style.height = `${layout.height}px`;
  }

  function draw(index) {
    const spec = specs[index];
    const target = document.getElementById(`figure-${index}`);
    for (const menu of spec.layout.updatemenus || []) buttons(target, menu);
    delete spec.layout.updatemenus;
    fitted(spec, target);
    Plotly.newPlot(target, spec.data, { ...spec.layout, template: theme() }, config);
    waiting.delete(index);
  }

  const open = (index) => document.getElementById(`figure-${index}`).checkVisibility();
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
  // A toggle does not bubble.
  document.addEventListener("toggle", () => tracelens.drawFigures(), true);

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const plot of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(plot, { template: theme() });
  });
})();
