"use strict";
// How the picture of the step looks: fills and words on a canvas, in pixels of the page.
(() => {
  const { columns, long } = tracelens.lanes;
  const LABEL = 11;
  const WIDE = 3; // from here on a stretch is hatched, and kernels stand apart
  const widths = new Map();

  // Black or white, whichever is easier to read on a colour: at least 4.5:1 on any.
  function ink(color) {
    const parts = color.match(/^#(..)(..)(..)$/);
    if (!parts) return null;
    const linear = parts.slice(1).map((part) => {
      const value = parseInt(part, 16) / 255;
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 ? "#000000" : "#ffffff";
  }

  function hatch(context, color, ratio) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6 * ratio;
    const pen = tile.getContext("2d");
    pen.scale(ratio, ratio);
    pen.fillStyle = color;
    pen.globalAlpha = 0.35;
    pen.fillRect(0, 0, 6, 6);
    pen.globalAlpha = 1;
    pen.strokeStyle = color;
    pen.lineWidth = 1.4;
    for (const shift of [-6, 0, 6]) {
      pen.beginPath();
      pen.moveTo(shift - 1, 7);
      pen.lineTo(shift + 7, -1);
      pen.stroke();
    }
    const pattern = context.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / ratio));
    return pattern;
  }

  function measured(context, text) {
    const key = `${context.font} ${text}`;
    if (!widths.has(key)) {
      if (widths.size > 5000) widths.clear();
      widths.set(key, context.measureText(text).width);
    }
    return widths.get(key);
  }

  // The longest of some texts that fits, or "". A long name is cut in the middle when half of it fits.
  function fitting(context, texts, room) {
    for (const text of texts) {
      if (measured(context, text.slice(0, 200)) <= room) return text;
    }
    return "";
  }

  // A kernel's function without what C++ writes around it: result, namespaces, template arguments, parameters.
  function bare(name) {
    const head = name.replaceAll("(anonymous namespace)::", "").replace(/^void /, "").split(/[<(]/)[0];
    return head.split("::").at(-1).trim() || name;
  }

  function shortened(name, room) {
    const most = Math.floor(room / 6.4);
    if (name.length <= most) return name;
    if (most < 5) return "";
    const head = Math.ceil((most - 1) * 0.6);
    return `${name.slice(0, head)}…${name.slice(name.length - (most - 1 - head))}`;
  }

  class Painter {
    constructor(canvas, style) {
      this.canvas = canvas;
      this.style = style; // {colors, labels}
      this.context = canvas.getContext("2d");
    }

    begin(width, height, theme) {
      const ratio = Math.min(devicePixelRatio || 1, 2);
      if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
        this.canvas.width = Math.round(width * ratio);
        this.canvas.height = Math.round(height * ratio);
        this.canvas.style.height = `${height}px`;
      }
      if (this.ratio !== ratio) {
        this.ratio = ratio;
        this.hatched = hatch(this.context, this.style.colors.communication || "#e8923a", ratio);
      }
      this.theme = theme;
      this.width = width;
      this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.context.clearRect(0, 0, width, height);
      this.context.font = `${LABEL}px ${theme.family}`;
      this.context.textBaseline = "middle";
    }

    x(time) {
      return ((time - this.from) / (this.to - this.from)) * this.width;
    }

    // A line as one stretch a run of equal columns; `highlighted` is the one that stays bright, if any.
    line(line, kinds, y, height, highlighted) {
      const { context } = this;
      const { kind, busy } = columns(line, this.from, this.to, Math.round(this.width), kinds.length);
      const level = (column) => (busy[column] > 0.75 ? 1 : 0.25 + Math.round(busy[column] * 4) / 5.4);
      for (let column = 0; column < kind.length;) {
        const start = column;
        const shade = level(start);
        while (column < kind.length && kind[column] === kind[start] && level(column) === shade) column += 1;
        if (kind[start] < 0) continue;
        const name = kinds[kind[start]];
        const dim = highlighted && highlighted !== name ? 0.15 : 1;
        context.globalAlpha = shade * dim;
        if (name === "waiting") {
          // Of the same colour as the communication that waits, but never as solid.
          context.fillStyle = column - start >= WIDE ? this.hatched : this.style.colors.communication || "#e8923a";
          if (column - start < WIDE) context.globalAlpha *= 0.45;
        } else {
          context.fillStyle = this.style.colors[name] || "#98a1ad";
        }
        context.fillRect(start, y, column - start, height);
      }
      context.globalAlpha = 1;
    }

    // Names in the pieces that are wide enough, and gaps between neighbours; `cut` names of kernels, not states.
    names(line, name, color, y, height, cut) {
      const { context } = this;
      const least = ((this.to - this.from) / this.width) * 22;
      const separate = ((this.to - this.from) / this.width) * WIDE;
      long(line, this.from, this.to, separate, (at) => {
        const left = Math.max(this.x(line.start[at]), 0);
        const right = Math.min(this.x(line.end[at]), this.width);
        context.fillStyle = this.theme.panel;
        context.fillRect(right - 0.5, y, 0.5, height);
        if (line.end[at] - line.start[at] < least) return;
        const room = right - left - 6;
        const text = cut ? shortened(bare(name(at)), room) : fitting(context, [name(at)], room);
        const fill = ink(color(at));
        if (!text || !fill) return;
        context.fillStyle = fill;
        context.fillText(text, left + 3, y + height / 2 + 0.5, right - left - 5);
      });
    }

    brackets(marks, y, height) {
      const { context } = this;
      context.strokeStyle = this.theme.soft;
      context.lineWidth = 1;
      for (const { name, start, end } of marks) {
        if (end < this.from || start > this.to) continue;
        const left = this.x(start);
        const right = this.x(end);
        if (right - left < 1.5) continue;
        context.beginPath();
        if (left >= 0) {
          context.moveTo(left + 0.5, y + height - 1);
          context.lineTo(left + 0.5, y + 2);
        } else {
          context.moveTo(0, y + 2);
        }
        context.lineTo(Math.min(right, this.width) - 1, y + 2);
        if (right <= this.width) context.lineTo(right - 1, y + height - 1);
        context.stroke();
        const [from, to] = [Math.max(left, 0), Math.min(right, this.width)];
        const text = fitting(context, briefer(name), to - from - 4);
        if (!text) continue;
        context.fillStyle = this.theme.soft;
        context.fillText(text, (from + to - measured(context, text)) / 2, y + 10);
      }
    }

    axis(y, height, bottom) {
      const { context } = this;
      const ns = this.to - this.from;
      const target = (ns / this.width) * 90;
      const power = 10 ** Math.floor(Math.log10(target));
      const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= target);
      const digits = Math.max(0, Math.ceil(-Math.log10(step / 1e6) - 1e-9));
      const first = Math.ceil(this.from / step) * step;
      for (let tick = first; tick <= this.to; tick += step) {
        const x = Math.round(this.x(tick)) + 0.5;
        context.strokeStyle = this.theme.grid;
        context.beginPath();
        context.moveTo(x, y + height - 4);
        context.lineTo(x, bottom);
        context.stroke();
        const text = (tick / 1e6).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
        const label = tick === first ? `${text} ms` : text;
        const width = measured(context, label);
        context.fillStyle = this.theme.soft;
        context.fillText(label, Math.min(Math.max(x - width / 2, 0), this.width - width), y + height / 2 - 2);
      }
    }

    // Messages from one lane to another; `center` is the height of a rank's lane.
    arrows(messages, center) {
      const { context } = this;
      context.strokeStyle = this.theme.text;
      context.lineWidth = 1;
      context.globalAlpha = 0.55;
      context.beginPath();
      for (const message of messages) {
        context.moveTo(this.x(message.from_ts_ns), center.get(message.from_rank));
        context.lineTo(this.x(message.to_ts_ns), center.get(message.to_rank));
      }
      context.stroke();
      context.globalAlpha = 1;
    }
  }

  // A name, and shorter forms of it: "layer 3 forward", "L3 fwd", "L3", "3"; "F micro-batch 2 chunk 1", "F2.1".
  function briefer(name) {
    const numbers = name.match(/\d+/g);
    if (!numbers) return [name];
    const [letter, digits] = [name[0].toUpperCase(), numbers.join(".")];
    const short = `${letter}${digits}`;
    const way = /forward/.test(name) ? " fwd" : /backward/.test(name) ? " bwd" : "";
    // "0" is no name of F0: forward or backward is what matters of a pass.
    return [name, short + way, short, /^\w\b/.test(name) ? `${letter}${numbers[0]}` : digits];
  }

  tracelens.paint = { Painter, ink };
})();
