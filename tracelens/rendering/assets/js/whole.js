"use strict";
(() => {
  // The whole of a shortened name beside the cell that has the focus; under a pointer the browser shows it.
  const box = tracelens.element("div", { className: "whole", hidden: true, "aria-hidden": "true" });
  document.body.append(box);

  const hide = () => { box.hidden = true; };
  document.addEventListener("focusin", (event) => {
    const cell = event.target.closest?.(".live td.l");
    if (!cell) return hide();
    box.textContent = cell.title;
    box.hidden = false;
    const { left, top, bottom } = cell.getBoundingClientRect();
    box.style.left = `${Math.max(8, Math.min(left, innerWidth - box.offsetWidth - 8))}px`;
    box.style.top = `${bottom + box.offsetHeight + 8 < innerHeight ? bottom + 4 : Math.max(8, top - box.offsetHeight - 4)}px`;
    return undefined;
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, { capture: true, passive: true });
})();
