"use strict";
// Tables in a notebook's output: ranks to choose from and pages to turn, without the kernel. Each table brings a
// list of {label, html, note}: whole tables, one of which is shown. Without this script the first rows stand there.
(() => {
  const PAGE = 20;

  function element(name, properties) {
    return Object.assign(document.createElement(name), properties);
  }

  function enliven(grid, choices) {
    const scroll = grid.querySelector(".scroll");
    const note = grid.querySelector(".note") ?? grid.appendChild(element("p", { className: "note" }));
    const rank = element("select", { ariaLabel: "ranks" });
    const back = element("button", { textContent: "‹", ariaLabel: "previous rows" });
    const range = element("span", {});
    const forward = element("button", { textContent: "›", ariaLabel: "next rows" });
    const bar = element("div", { className: "turn" });
    let first = 0;

    function turn(row) {
      const rows = [...scroll.querySelectorAll("tbody tr")];
      first = row;
      rows.forEach((element, index) => { element.hidden = index < first || index >= first + PAGE; });
      range.textContent = `${first + 1}–${Math.min(first + PAGE, rows.length)} of ${rows.length} rows`;
      back.disabled = first === 0;
      forward.disabled = first + PAGE >= rows.length;
      for (const control of [back, range, forward]) control.hidden = rows.length <= PAGE;
    }

    function choose() {
      const { html, note: text } = choices[rank.selectedIndex];
      scroll.innerHTML = html;
      note.textContent = text;
      turn(0);
    }

    for (const { label } of choices) rank.add(new Option(label));
    rank.hidden = choices.length < 2;
    rank.onchange = choose;
    back.onclick = () => turn(first - PAGE);
    forward.onclick = () => turn(first + PAGE);
    bar.append(rank, back, range, forward);
    scroll.before(bar);
    choose();
  }

  for (const data of document.querySelectorAll(".tracelens.fragment > script.choices:not([data-used])")) {
    data.dataset.used = "";
    const grids = data.parentElement.querySelectorAll(".grid");
    JSON.parse(data.textContent).forEach((choices, index) => {
      if (choices.length) enliven(grids[index], choices);
    });
  }
})();
