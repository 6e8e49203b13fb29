"use strict";
// How people move in the picture of the step: keyboard, pointer, wheel, and the tables and controls around it.
(() => {
  const { largest } = tracelens.lanes;
  const { clean } = tracelens.card;

  // ---- keyboard

  function keyboard(picture) {
    const { canvas, card } = picture;

    // The piece in hand; without one, the first in view of the chosen lane.
    function current() {
      if (picture.cursor) return picture.cursor;
      const lanes = picture.rows.filter((row) => row.type === "lane");
      const row = lanes.find(({ rank }) => rank === picture.chosen) || lanes[0];
      return { row, at: largest(row.line, picture.view.from, picture.view.from + picture.span / 50) };
    }

    // The next piece in time that is wide enough to be seen.
    function step(sign) {
      const { row, at } = current();
      if (!picture.cursor) return picture.point(row, at);
      const { start, end } = row.line;
      const least = picture.span / picture.width;
      let next = at + sign;
      while (next in start && end[next] - start[next] < least) next += sign;
      if (!(next in start)) return undefined;
      const { from, to } = picture.view;
      const margin = picture.span * 0.02;
      if (start[next] > to - margin || end[next] < from + margin) {
        const middle = start[next] + Math.min(end[next] - start[next], picture.span) / 2;
        picture.go(middle - picture.span / 2, middle + picture.span / 2);
        picture.draw();
      }
      return picture.point(picture.cursor?.row || row, next);
    }

    // The piece of the next lane or stream at about the same time.
    function turn(sign) {
      const { row, at } = current();
      const { from, to } = picture.view;
      const rows = picture.rows.filter((other) => other.type !== "marks");
      const middle = (Math.max(row.line.start[at], from) + Math.min(row.line.end[at], to)) / 2;
      for (let index = rows.indexOf(row) + sign; rows[index]; index += sign) {
        for (const share of [0.002, 0.05, 1]) {
          const near = largest(rows[index].line, middle - picture.span * share, middle + picture.span * share);
          if (near < 0) continue;
          picture.chosen = rows[index].rank;
          picture.point(rows[index], near);
          picture.redraw();
          return;
        }
      }
    }

    function zoom(factor) {
      const { row, at } = picture.cursor || {};
      const middle = row && (row.line.start[at] + row.line.end[at]) / 2;
      picture.zoom(factor, middle > picture.view.from && middle < picture.view.to ? middle : undefined);
    }

    function pin() {
      const { row, at } = current();
      picture.point(row, at, { pinned: true });
      card.box.querySelector("button")?.focus();
    }

    const keys = {
      "+": () => zoom(2),
      "=": () => zoom(2),
      "-": () => zoom(0.5),
      0: () => picture.reset(),
      ArrowLeft: ({ shiftKey }) => (shiftKey ? picture.pan(-0.2) : step(-1)),
      ArrowRight: ({ shiftKey }) => (shiftKey ? picture.pan(0.2) : step(1)),
      ArrowUp: () => turn(-1),
      ArrowDown: () => turn(1),
      Home: () => picture.go(picture.extent.from, picture.extent.from + picture.span),
      End: () => picture.go(picture.extent.to - picture.span, picture.extent.to),
      Enter: pin,
      Escape: () => (picture.cursor ? picture.forget() : picture.reset()),
    };
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
      event.preventDefault();
      keys[event.key](event);
      if (!picture.cursor) return;
      const { title, fields } = picture.piece(picture.cursor);
      const words = fields.filter(([, text]) => text).map(([name, text]) => `${name} ${text}`);
      picture.part("[aria-live]").textContent = clean([title, ...words].join(", "));
    });
    canvas.addEventListener("focus", () => picture.loadKernels());
  }

  // ---- mouse, pen and fingers

  function pointer(picture) {
    const { canvas, card } = picture;
    const down = new Map(); // pointer -> where it is
    let drag = null; // {x, view, touch, moved, pinch}

    const local = ({ clientX, clientY }) => {
      const box = canvas.getBoundingClientRect();
      return { x: clientX - box.left, y: clientY - box.top };
    };
    const inside = (x) => Math.min(Math.max(x, 0), picture.width);
    const across = () => Math.max(Math.abs([...down.values()].reduce((a, b) => a.x - b.x)), 10);

    function choose(y) {
      const row = picture.rowAt(y);
      if (row) picture.chosen = row.rank;
    }

    function hover(spot) {
      if (card.pinned) return;
      const hit = picture.under(spot.x, spot.y);
      if (hit) picture.point(hit.row, hit.at, spot);
      else picture.forget();
    }

    function dragged({ x }) {
      const { from, to } = drag.view;
      const scale = (to - from) / picture.width;
      if (drag.pinch) {
        const factor = across() / drag.pinch.across;
        const { time } = drag.pinch;
        picture.go(time - (time - from) / factor, time + (to - time) / factor);
      } else if (drag.touch) {
        picture.go(from + (drag.x - x) * scale, to + (drag.x - x) * scale);
      } else {
        picture.forget();
        const [left, right] = [inside(Math.min(drag.x, x)), inside(Math.max(drag.x, x))];
        picture.part(".range").hidden = false;
        Object.assign(picture.part(".range").style, { left: `${left}px`, width: `${right - left}px` });
      }
    }

    canvas.addEventListener("pointerenter", () => picture.loadKernels());
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const spot = local(event);
      down.set(event.pointerId, spot);
      if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
      drag = { ...spot, view: picture.view, touch: event.pointerType === "touch", moved: false };
      choose(spot.y);
      if (down.size === 2) {
        const [a, b] = [...down.values()];
        drag.pinch = { across: across(), time: picture.timeAt((a.x + b.x) / 2) };
        picture.loadKernels();
      }
    });
    canvas.addEventListener("pointermove", (event) => {
      const spot = local(event);
      if (!drag) {
        hover(spot);
        return;
      }
      if (down.has(event.pointerId)) down.set(event.pointerId, spot);
      drag.moved ||= Math.abs(spot.x - drag.x) > 4;
      if (drag.moved) dragged(spot);
    });
    function released(event) {
      down.delete(event.pointerId);
      if (!drag) return;
      const { x, touch, moved } = drag;
      const spot = local(event);
      picture.part(".range").hidden = true;
      if (!down.size) drag = null;
      if (event.type === "pointercancel") return;
      if (!moved) {
        const hit = picture.under(spot.x, spot.y);
        if (hit) picture.point(hit.row, hit.at, { pinned: true, ...spot });
        else picture.forget();
        picture.redraw();
      } else if (!touch) {
        picture.loadKernels();
        picture.go(picture.timeAt(inside(Math.min(x, spot.x))), picture.timeAt(inside(Math.max(x, spot.x))));
      }
    }
    canvas.addEventListener("pointerup", released);
    canvas.addEventListener("pointercancel", released);
    canvas.addEventListener("pointerleave", () => {
      if (!drag && !card.pinned) picture.forget();
    });
    canvas.addEventListener("dblclick", () => picture.reset());
    canvas.addEventListener("wheel", (event) => {
      const zooms = event.ctrlKey || event.metaKey;
      const aside = event.shiftKey ? event.deltaY || event.deltaX : Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
      if (!zooms && !aside) return; // the page scrolls
      event.preventDefault();
      const spot = local(event);
      choose(spot.y);
      if (zooms) picture.zoom(Math.exp(-Math.max(Math.min(event.deltaY, 100), -100) * 0.006), picture.timeAt(spot.x));
      else picture.pan(aside / picture.width);
    }, { passive: false });
  }

  // The strip of the whole recording: the view follows the pointer.
  function overview(picture) {
    const strip = picture.part(".overview");
    let held = false;
    const move = ({ clientX }) => {
      const box = strip.getBoundingClientRect();
      const { from, to } = picture.extent;
      const middle = from + ((clientX - box.left) / box.width) * (to - from);
      picture.go(middle - picture.span / 2, middle + picture.span / 2);
    };
    strip.addEventListener("pointerdown", (event) => {
      held = true;
      if (event.isTrusted) strip.setPointerCapture(event.pointerId);
      move(event);
    });
    strip.addEventListener("pointermove", (event) => held && move(event));
    for (const end of ["pointerup", "pointercancel"]) strip.addEventListener(end, () => (held = false));
  }

  // ---- the heat map

  function heat(table) {
    const body = table.tBodies[0];
    table.tHead.addEventListener("click", (event) => {
      const header = event.target.closest("th");
      if (!header) return;
      const sign = header.getAttribute("aria-sort") === "descending" ? 1 : -1;
      for (const other of header.parentNode.cells) other.setAttribute("aria-sort", "none");
      header.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const value = (row) => Number(row.cells[header.cellIndex].dataset.v);
      body.append(...[...body.rows].sort((a, b) => sign * (value(a) - value(b))));
    });
    body.addEventListener("click", (event) => {
      const rank = Number(event.target.closest("tr").dataset.rank);
      tracelens.select({ rank: tracelens.selection.rank === rank ? -1 : rank });
    });
    function mark() {
      for (const row of body.rows) {
        row.querySelector("button").setAttribute("aria-pressed", String(Number(row.dataset.rank) === tracelens.selection.rank));
      }
    }
    document.addEventListener("tracelens:selection", mark);
    mark();
  }

  // ---- the page around it

  function surroundings(picture) {
    const buttons = { in: () => picture.zoom(2), out: () => picture.zoom(0.5), reset: () => picture.reset() };
    for (const button of picture.root.querySelectorAll("[data-zoom]")) button.addEventListener("click", buttons[button.dataset.zoom]);
    document.addEventListener("tracelens:selection", ({ detail }) => picture.select(detail));
    new ResizeObserver(() => {
      picture.redraw();
      picture.drawOverview();
    }).observe(picture.canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => picture.redraw());
    let view = picture.view;
    addEventListener("beforeprint", () => {
      view = picture.view;
      picture.view = picture.home();
      picture.printing = true;
      picture.forget();
      picture.draw();
    });
    addEventListener("afterprint", () => {
      picture.view = view;
      picture.printing = false;
      picture.redraw();
    });
  }

  tracelens.gestures = (picture) => {
    keyboard(picture);
    pointer(picture);
    overview(picture);
    surroundings(picture);
    for (const table of picture.root.querySelectorAll(".heat table")) heat(table);
  };
})();
