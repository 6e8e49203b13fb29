"use strict";
(() => {
  // Findings: their commands are one click away, and so are the picture and the table that show them.

  // A page from a file may have no clipboard: then a text box is selected and copied.
  tracelens.copy ??= async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const box = document.createElement("textarea");
      box.value = text;
      box.className = "unseen";
      document.body.append(box);
      const focused = document.activeElement;
      box.select();
      const copied = document.execCommand("copy");
      box.remove();
      focused?.focus();
      if (!copied) throw new Error("nothing was copied");
    }
  };

  const SHOWN = 200_000; // ns of the picture around a finding's longest piece of time, whose end is not known

  async function copy(button) {
    const label = (button.dataset.label ??= button.textContent);
    try {
      await tracelens.copy(button.dataset.copy);
      button.textContent = "Copied";
      tracelens.announce(`Copied: ${button.dataset.copy}`);
    } catch {
      button.textContent = "Not copied";
      tracelens.announce("The browser does not allow copying; the text stands under More.");
    }
    setTimeout(() => (button.textContent = label), 1500);
  }

  // The row of a table that has this text as a cell; tables that keep their rows packed show it themselves.
  function showRow(link) {
    const grid = document.getElementById(link.dataset.grid);
    if (!grid) return false;
    tracelens.reveal(grid);
    if (grid.querySelector("table")) {
      tracelens.showRow(link.dataset.grid, link.dataset.row).then(() => grid.scrollIntoView({ block: "center" }));
      return true;
    }
    const plain = (text) => text.trim().toLowerCase();
    const names = (row) => [...row.cells].some((cell) => plain(cell.textContent) === plain(link.dataset.row));
    const rows = [...grid.querySelectorAll("tbody tr")].filter(names);
    for (const old of document.querySelectorAll("tr.shown")) old.classList.remove("shown");
    for (const row of rows) {
      row.hidden = false;
      row.classList.add("shown");
    }
    (rows[0] || grid).scrollIntoView({ block: "center" });
    const region = grid.querySelector(".scroll");
    region?.focus({ preventScroll: true });
    tracelens.announce(`${rows.length} rows of ${link.dataset.row}`);
    return true;
  }

  for (const list of document.querySelectorAll(".findings-list")) {
    list.addEventListener("click", (event) => {
      const target = event.target.closest("button, a");
      if (!target) return;
      if (target.matches(".copy")) copy(target);
      else if (target.matches(".show-picture")) {
        const { rank, ts } = target.dataset;
        tracelens.picture.show({ rank: Number(rank), ts_ns: Number(ts), dur_ns: SHOWN });
      } else if (target.matches(".show-row[data-grid]") && showRow(target)) event.preventDefault();
    });
  }
  // The picture comes after this script; without one there is nothing to show.
  addEventListener("DOMContentLoaded", () => {
    if (!document.getElementById("picture")) return;
    for (const button of document.querySelectorAll(".show-picture")) button.hidden = false;
  });
})();
