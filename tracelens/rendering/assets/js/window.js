"use strict";
(() => {
  // The body of a long table: only rows near what is scrolled to are elements, the others are room above and
  // below. Rows then have one height; short tables are whole, and their sentences wrap.
  const WHOLE = 200;
  const BEYOND = 16;

  class Window {
    // `rowOf(index)` makes the row element; `drawn` is called whenever rows were made.
    constructor(scroller, body, rowOf, drawn) {
      Object.assign(this, { scroller, body, rowOf, drawn, count: 0, first: 0, last: 0, height: 28 });
      scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    }

    get isWhole() {
      return this.count <= WHOLE;
    }

    show(count) {
      this.count = count;
      this.body.closest("table").classList.toggle("even", !this.isWhole);
      this.draw();
      const row = this.body.querySelector("tr:not(.space)");
      const height = row?.getBoundingClientRect().height;
      if (height && !this.isWhole && height !== this.height) {
        this.height = height;
        this.draw();
      }
    }

    range() {
      if (this.isWhole) return [0, this.count];
      const first = Math.floor(this.scroller.scrollTop / this.height);
      const seen = Math.ceil((this.scroller.clientHeight || 520) / this.height) + 1;
      return [Math.max(0, Math.min(first, this.count - seen) - BEYOND), Math.min(this.count, first + seen + BEYOND)];
    }

    draw([first, last] = this.range()) {
      [this.first, this.last] = [first, last];
      const rows = document.createDocumentFragment();
      const room = (count) => {
        const row = document.createElement("tr");
        row.className = "space";
        row.setAttribute("aria-hidden", "true");
        row.style.height = `${count * this.height}px`;
        rows.append(row);
      };
      if (first) room(first);
      for (let index = first; index < last; index += 1) rows.append(this.rowOf(index));
      if (last < this.count) room(this.count - last);
      this.body.replaceChildren(rows);
      this.drawn();
    }

    scrolled() {
      if (this.isWhole || this.waiting) return;
      this.waiting = true;
      requestAnimationFrame(() => {
        this.waiting = false;
        const [first, last] = this.range();
        const needed = BEYOND / 2;
        if (first + needed < this.first || last - needed > this.last || (first === 0 && this.first > 0)) this.draw([first, last]);
      });
    }

    // Scrolls until the row is among the elements.
    reveal(index) {
      if (this.isWhole) return;
      const head = this.body.closest("table").tHead.offsetHeight;
      const top = index * this.height;
      if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
      else if (top + this.height > this.scroller.scrollTop + this.scroller.clientHeight - head) {
        this.scroller.scrollTop = top + this.height - this.scroller.clientHeight + head;
      }
      if (index < this.first || index >= this.last) this.draw();
    }

    // For print: the first rows, and nothing but rows.
    printed() {
      if (!this.isWhole) this.draw([0, Math.min(this.count, WHOLE)]);
    }
  }
  tracelens.Window = Window;
})();
