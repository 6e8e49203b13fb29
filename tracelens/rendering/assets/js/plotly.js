"use strict";
(() => {
  // The library for figures waits compressed, and runs when the first screen and its picture are there, since it
  // holds up the page for most of a second: its text has a hash in the page's policy.
  if (!document.getElementById("payload-plotly")) return;

  async function load() {
    const script = document.createElement("script");
    await Promise.allSettled([tracelens.picture?.ready]);
    script.textContent = await tracelens.inflated("plotly").text();
    document.head.append(script);
    tracelens.drawFigures();
  }
  requestAnimationFrame(() => setTimeout(load));
})();
