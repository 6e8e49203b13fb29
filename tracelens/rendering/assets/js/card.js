"use strict";
// The card of what is under the pointer in the picture of the step; pinned, with buttons that copy.
(() => {
  // Characters that cannot be seen, or turn text around.
  const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
  const clean = (text) => String(text).replace(UNSEEN, " ");

  function duration(ns) {
    const [unit, size] = ns >= 1e6 ? ["ms", 1e6] : ns >= 1e3 ? ["µs", 1e3] : ["ns", 1];
    const digits = size === 1 ? 0 : ns / size >= 100 ? 1 : ns / size >= 10 ? 2 : 3;
    return `${(ns / size).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`;
  }

  const ms = (ns) => `${(ns / 1e6).toLocaleString("en-US", { minimumFractionDigits: 3, maximumFractionDigits: 3 })} ms`;

  function element(tag, text, parent, className) {
    const made = document.createElement(tag);
    if (text) made.textContent = clean(text);
    if (className) made.className = className;
    parent?.append(made);
    return made;
  }

  // `piece`: {title, color, fields: [[label, text]], copies: [[label, text]]}.
  class Card {
    constructor(box) {
      this.box = box;
      this.pinned = false;
      this.onClose = () => {};
    }

    show(piece, x, y, pinned) {
      const { box } = this;
      this.pinned = pinned;
      box.replaceChildren();
      box.hidden = false;
      box.classList.toggle("pinned", pinned);
      const head = element("div", "", box, "head");
      element("i", "", head).style.background = piece.color;
      element("b", piece.title, head);
      const list = element("dl", "", box);
      for (const [label, text] of piece.fields) {
        if (!text) continue;
        element("dt", label, list);
        element("dd", text, list);
      }
      if (pinned) this.buttons(piece);
      const room = box.parentElement;
      const left = x + 14 + box.offsetWidth > room.clientWidth ? x - 14 - box.offsetWidth : x + 14;
      box.style.left = `${Math.max(0, Math.min(left, room.clientWidth - box.offsetWidth))}px`;
      box.style.top = `${y + 16}px`;
    }

    buttons(piece) {
      const bar = element("div", "", this.box, "copy");
      for (const [label, text] of piece.copies) {
        const button = element("button", `Copy ${label}`, bar);
        button.type = "button";
        button.title = clean(text);
        button.addEventListener("click", () => tracelens.copyAs(text, label));
      }
      const close = element("button", "Close", bar);
      close.type = "button";
      close.addEventListener("click", () => this.hide());
      this.box.onkeydown = (event) => {
        if (event.key === "Escape") this.hide();
      };
    }

    hide() {
      const inside = this.box.contains(document.activeElement);
      this.pinned = false;
      this.box.hidden = true;
      this.onClose(inside);
    }
  }

  tracelens.card = { Card, duration, ms, clean };
})();
