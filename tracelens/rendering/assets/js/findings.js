"use strict";
(() => {
  // Findings: their commands are one click away, and so are the picture and the table that show them.

  async function copy(button) {
    const label = (button.dataset.label ??= button.textContent);
    try {
      await tracelens.copy(button.dataset.copy);
      button.textContent = "Copied";
      tracelens.announce(`Copied: ${button.dataset.copy}`);
    } catch {
      button.textContent = "Not copied";
      tracelens.announce("The browser does not allow copying; find the text under More.");
    }
    setTimeout(() => (button.textContent = label), 1500);
  }

  // Opens the table that a finding names, filtered to its row; false where the page has no such table.
  function showRow({ dataset }) {
    const grid = document.getElementById(dataset.grid);
    if (!grid) return false;
    tracelens.reveal(grid);
    grid.scrollIntoView({ block: "center" });
    if (!grid.querySelector("table")) return true;
    tracelens.showRow(dataset.grid, dataset.row).then(() => {
      grid.scrollIntoView({ block: "center" });
      tracelens.announce(`Rows of ${dataset.row}`);
    });
    return true;
  }

  for (const list of document.querySelectorAll(".findings-list")) {
    list.addEventListener("click", (event) => {
      const target = event.target.closest("button, a");
      if (!target) return;
      if (target.matches(".copy")) copy(target);
      else if (target.matches(".show-picture")) {
        const { rank, ts } = target.dataset;
        tracelens.picture.show({ rank: Number(rank), ts_ns: Number(ts) });
      } else if (target.matches(".show-row[data-grid]") && showRow(target)) event.preventDefault();
    });
  }
  // The picture comes after this script; without one there is nothing to show.
  addEventListener("DOMContentLoaded", () => {
    if (!document.getElementById("picture")) return;
    for (const button of document.querySelectorAll(".show-picture")) button.hidden = false;
  });
})();
