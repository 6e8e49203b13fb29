"use strict";
(() => {
  // The library for figures waits compressed, and runs when the first screen is there: its text has a hash in
  // the page's policy.
  if (!document.getElementById("payload-plotly")) return;

  async function load() {
    const script = document.createElement("script");
    script.textContent = await tracelens.inflated("plotly").text();
    document.head.append(script);
    tracelens.drawFigures();
  }
  requestAnimationFrame(() => setTimeout(load));
})();
