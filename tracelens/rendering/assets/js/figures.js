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
})();
