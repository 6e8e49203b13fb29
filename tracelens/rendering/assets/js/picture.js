"use strict";
// The picture of the step: what is shown of it, a range of time and lanes. Times are ns on the picture's clock.
(() => {
  const { lines, largest, sums } = tracelens.lanes;
  const { AXIS, GAP, brackets, rowsOf, visible } = tracelens.rows;
  const { duration, ms, clean } = tracelens.card;
  const MOST_STREAMS = 12;
  const MOST_MESSAGES = 40; // that are drawn at once; of more, those of the chosen rank
  const SHORTEST = 500; // ns that are shown at least
  const PRINTED = { text: "#1c2127", soft: "#5d6773", grid: "#e8eaed", panel: "#ffffff" };

  class Picture {
    constructor(root, info) {
      this.root = root;
      this.info = info; // colors, labels, compared, first_event_offset_ns, hosts, step
      this.canvas = this.part(".drawing");
      this.painter = new tracelens.paint.Painter(this.canvas, info);
      this.card = new tracelens.card.Card(this.part(".card"));
      this.card.onClose = (inside) => inside && this.canvas.focus();
      this.many = root.hasAttribute("data-many");
      this.states = []; // names; lines have indices into them
      this.categories = []; // of kernels
      this.lanes = null; // rank -> line of states
      this.marks = new Map(); // rank -> levels of brackets
      this.messages = [];
      this.steps = []; // {name, from, to, shown}
      this.kernels = null; // {table, of: rank -> lines, one a stream}
      this.view = this.extent = { from: 0, to: 1 };
      this.rows = [];
      this.height = 0;
      this.highlighted = -1; // state
      this.only = -1; // rank of the page's selection
      this.chosen = -1; // rank that unfolds
      this.subject = -1; // of many ranks, the one that is compared with the slowest and the fastest
      this.cursor = null; // {row, at}: the piece whose card is shown
      this.printing = false;
      this.complete = false; // only then drawn, at its full height at once: what is below must not move under a pointer
      this.frameMs = 0;
    }

    part(selector) {
      return this.root.querySelector(selector);
    }

    get width() {
      return this.canvas.clientWidth || 1;
    }

    get span() {
      return this.view.to - this.view.from;
    }

    timeAt(x) {
      return this.view.from + (x / this.width) * this.span;
    }

    label(state) {
      return this.info.labels[state] || state;
    }

    // ---- reading

    async load() {
      const payload = (name) => (document.getElementById(`payload-step-${name}`) ? tracelens.payload(`step-${name}`) : null);
      const [states, steps, marks, messages] = await Promise.all(["states", "steps", "marks", "messages"].map(payload));
      const of = lines(started(states), ["rank"], "state", this.states).values();
      this.lanes = new Map(Array.from(of, (line) => [line.keys[0], line]));
      const { values, texts } = states.columns.detail;
      for (const line of this.lanes.values()) line.detail = (at) => texts[values[line.row[at]]];
      this.marks = brackets(marks);
      this.steps = records(steps).map(({ step, ts_ns, dur_ns, shown }) => ({ name: step, from: ts_ns, to: ts_ns + dur_ns, shown }));
      this.messages = records(messages);
      const all = [...this.lanes.values()];
      this.extent = {
        from: Math.min(...all.map((line) => line.start[0]), ...this.steps.map((step) => step.from)),
        to: Math.max(...all.map((line) => line.end.at(-1)), ...this.steps.map((step) => step.to)),
      };
      this.view = this.home();
    }

    // Kernels are unpacked when somebody looks closer.
    loadKernels() {
      this.loading ||= (async () => {
        if (!document.getElementById("payload-step-kernels")) return;
        const table = await tracelens.payload("step-kernels");
        const of = new Map();
        for (const line of lines(table, ["rank", "stream"], "category", this.categories).values()) {
          const rank = line.keys[0];
          of.set(rank, [...(of.get(rank) || []), line]);
        }
        for (const [rank, streams] of of) {
          const busiest = [...streams].sort((a, b) => b.row.length - a.row.length).slice(0, MOST_STREAMS);
          of.set(rank, streams.filter((line) => busiest.includes(line)));
        }
        this.kernels = { table, of };
        this.redraw();
      })();
      return this.loading;
    }

    kernelText(name, row) {
      const column = this.kernels.table.columns[name];
      return column?.texts ? column.texts[column.values[row]] : "";
    }

    // ---- rows

    // Ranks with a lane: all, the selected one, or of many one, the slowest and the fastest.
    displayed() {
      if (!this.many) return this.lanes.has(this.only) ? [this.only] : [...this.lanes.keys()];
      const { slowest, typical, fastest } = this.info.compared;
      return [...new Set([this.lanes.has(this.subject) ? this.subject : typical, slowest, fastest])];
    }

    unfolds(rank, ranks) {
      const streams = this.kernels?.of.get(rank);
      if (!streams || this.printing) return false;
      if (ranks.length === 1) return true;
      const current = ranks.includes(this.chosen) ? this.chosen : ranks[0];
      return rank === current && visible(streams, this.view) <= Math.max(this.width, 300);
    }

    layout() {
      const ranks = this.displayed();
      const { lanes, marks, view, width } = this;
      const open = (rank) => this.unfolds(rank, ranks);
      const { rows, height } = rowsOf({ ranks, lanes, marks, view, width, open, streams: (rank) => this.kernels.of.get(rank) });
      this.rows = rows;
      this.height = height;
      const shape = `${this.only} ${rows.map((row) => `${row.type} ${row.rank} ${row.stream} ${row.y}`).join()}`;
      if (shape !== this.shape) this.writeLabels();
      this.shape = shape;
      if (!this.cursor) return;
      const same = (row) => ["type", "rank", "stream"].every((key) => row[key] === this.cursor.row[key]);
      const row = rows.find(same);
      if (row) this.cursor.row = row;
      else this.forget();
    }

    // The words at the left of the rows: ranks are buttons that select them in the whole page.
    writeLabels() {
      const gutter = this.part(".gutter");
      const focused = gutter.contains(document.activeElement) ? document.activeElement.dataset.rank : null;
      gutter.replaceChildren();
      for (const row of this.rows) {
        if (row.type === "marks") continue;
        const box = document.createElement("div");
        Object.assign(box.style, { top: `${row.y}px`, height: `${row.height}px` });
        gutter.append(box);
        if (row.type === "stream") {
          box.className = "stream";
          box.textContent = `stream ${row.stream}`;
          continue;
        }
        const button = document.createElement("button");
        button.type = "button";
        button.dataset.rank = row.rank;
        button.textContent = this.rankLabel(row.rank);
        button.title = clean(this.onHost(row.rank));
        button.setAttribute("aria-pressed", String(row.rank === this.only));
        button.addEventListener("click", () => tracelens.select({ rank: this.only === row.rank ? -1 : row.rank }));
        box.append(button);
        if (focused === String(row.rank)) button.focus();
      }
      const longest = Math.max(...Array.from(gutter.children, (box) => box.textContent.length));
      gutter.style.width = `${Math.min(longest, this.width > 500 ? 24 : 8) * 6.4 + 6}px`;
    }

    rankLabel(rank) {
      const role = this.many && Object.keys(this.info.compared).find((name) => this.info.compared[name] === rank);
      const severalHosts = new Set(Object.values(this.info.hosts)).size > 1;
      const host = severalHosts && clean(this.info.hosts[rank] || "");
      return [`rank ${rank}`, role, host].filter(Boolean).join(" ");
    }

    onHost(rank) {
      const host = this.info.hosts[rank];
      return host ? `rank ${rank} on ${host}` : `rank ${rank}`;
    }

    // ---- drawing

    theme() {
      const style = getComputedStyle(document.body);
      const color = (name) => (this.printing ? PRINTED[name] : style.getPropertyValue(`--${name}`).trim());
      return { ...Object.fromEntries(Object.keys(PRINTED).map((name) => [name, color(name)])), family: style.fontFamily };
    }

    redraw() {
      if (this.complete) this.frame ||= requestAnimationFrame(() => this.draw());
    }

    draw() {
      cancelAnimationFrame(this.frame);
      this.frame = 0;
      if (!this.lanes || !this.canvas.clientWidth) return;
      const started = performance.now();
      this.layout();
      const { painter, rows } = this;
      Object.assign(painter, this.view);
      painter.begin(this.width, this.height, this.theme());
      painter.axis(0, AXIS, this.height - GAP);
      const highlighted = this.states[this.highlighted];
      for (const row of rows) {
        if (row.type === "marks") {
          painter.brackets(row.marks, row.y, row.height);
          continue;
        }
        const names = row.type === "lane" ? this.states : this.categories;
        const kind = (at) => names[row.line.kind[at]];
        const name = row.type === "lane" ? (at) => this.label(kind(at)) : (at) => this.kernelText("name", row.line.row[at]);
        painter.line(row.line, names, row.y, row.height, highlighted);
        painter.names(row.line, name, (at) => this.info.colors[kind(at)] || "", row.y, row.height, row.type === "stream");
      }
      this.drawMessages();
      this.outline();
      this.frameMs = performance.now() - started;
      clearTimeout(this.later);
      this.later = setTimeout(() => this.settled(), 100);
    }

    drawMessages() {
      const center = new Map(this.rows.filter((row) => row.type === "lane").map((row) => [row.rank, row.y + row.height / 2]));
      const inView = this.messages.filter((message) => message.to_ts_ns > this.view.from && message.from_ts_ns < this.view.to && center.has(message.from_rank) && center.has(message.to_rank));
      const own = (message) => message.from_rank === this.chosen || message.to_rank === this.chosen;
      const shown = inView.length > MOST_MESSAGES ? inView.filter(own) : inView;
      if (shown.length <= MOST_MESSAGES) this.painter.arrows(shown, center);
    }

    drawOverview() {
      const { clientWidth: width, clientHeight: height } = this.part(".overview");
      if (!width || !this.lanes) return;
      const painter = new tracelens.paint.Painter(this.part(".overview canvas"), this.info);
      Object.assign(painter, this.extent);
      painter.begin(width, height, this.theme());
      const ranks = [...this.lanes.keys()].slice(0, height);
      ranks.forEach((rank, index) => painter.line(this.lanes.get(rank), this.states, (index * height) / ranks.length, height / ranks.length));
    }

    // What stands beside the drawing, and need not follow every frame: shares, and where in the recording this is.
    settled() {
      const times = new Float64Array(this.states.length);
      for (const rank of this.displayed()) sums(this.lanes.get(rank), this.view.from, this.view.to, times);
      const all = times.reduce((sum, time) => sum + time, 0) || 1;
      for (const button of this.part(".legend").children) {
        const share = times[button.dataset.state] / all;
        button.lastChild.textContent = share > 0 && share < 0.001 ? "<0.1%" : `${(100 * share).toFixed(1)}%`;
        button.hidden = share === 0 && this.highlighted !== Number(button.dataset.state);
      }
      const inView = this.steps.filter((step) => step.from < this.view.to && step.to > this.view.from);
      this.part(".missing").hidden = !inView.length || inView.some((step) => step.shown);
      const whole = this.extent.to - this.extent.from;
      Object.assign(this.part(".overview i").style, {
        left: `${(100 * (this.view.from - this.extent.from)) / whole}%`,
        width: `${(100 * this.span) / whole}%`,
      });
      this.part(".overview").style.visibility = this.span > whole * 0.999 ? "hidden" : "";
    }

    // The states as buttons that highlight them.
    writeLegend() {
      const times = new Float64Array(this.states.length);
      for (const line of this.lanes.values()) sums(line, -Infinity, Infinity, times);
      for (const state of [...this.states.keys()].sort((a, b) => times[b] - times[a])) {
        const name = this.states[state];
        const button = document.createElement("button");
        const swatch = document.createElement("i");
        button.type = "button";
        button.dataset.state = state;
        button.setAttribute("aria-pressed", "false");
        swatch.className = name === "waiting" ? "waiting" : "";
        swatch.style.setProperty("--c", this.info.colors[name === "waiting" ? "communication" : name]);
        button.append(swatch, this.label(name), document.createElement("span"));
        button.addEventListener("click", () => this.highlight(this.highlighted === state ? -1 : state));
        this.part(".legend").append(button);
      }
    }

    highlight(state) {
      this.highlighted = state;
      for (const button of this.part(".legend").children) button.setAttribute("aria-pressed", String(Number(button.dataset.state) === state));
      this.redraw();
    }

    // ---- moving

    go(from, to) {
      const span = Math.min(Math.max(to - from, SHORTEST), this.extent.to - this.extent.from);
      const start = Math.min(Math.max((from + to - span) / 2, this.extent.from), this.extent.to - span);
      this.view = { from: start, to: start + span };
      this.redraw();
    }

    zoom(factor, around = (this.view.from + this.view.to) / 2) {
      this.loadKernels();
      this.go(around - (around - this.view.from) / factor, around + (this.view.to - around) / factor);
    }

    pan(share) {
      this.go(this.view.from + share * this.span, this.view.to + share * this.span);
    }

    // The selected step, or the one that stands for the run.
    home() {
      const { from, to } = this.steps.find(({ name }) => name && name === tracelens.selection.step) || this.steps[this.info.step] || this.extent;
      const margin = (to - from) * 0.01;
      return { from: Math.max(from - margin, this.extent.from), to: Math.min(to + margin, this.extent.to) };
    }

    // Back to the step; from there, to the whole recording.
    reset() {
      const step = this.home();
      const isThere = Math.abs(this.view.from - step.from) + Math.abs(this.view.to - step.to) < 1;
      const { from, to } = isThere ? this.extent : step;
      this.forget();
      this.go(from, to);
    }

    // Shows a piece of time of a rank, `ts_ns` since its trace's first event; without a length, the piece that the
    // rank's lane has there. False where it is not in the picture.
    show({ rank, ts_ns, dur_ns }) {
      const first = this.info.first_event_offset_ns[rank];
      if (!this.lanes?.has(rank) || first === undefined) return false;
      if (!this.displayed().includes(rank) && !this.many) tracelens.select({ rank: -1 });
      this.chosen = this.subject = rank;
      const lane = this.lanes.get(rank);
      let start = first + ts_ns;
      let end = start + (dur_ns || 1);
      const at = largest(lane, start, end);
      if (!dur_ns && at >= 0) [start, end] = [lane.start[at], lane.end[at]];
      const margin = Math.max((end - start) * 0.3, 10_000);
      this.go(start - margin, end + margin);
      const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
      this.root.scrollIntoView({ behavior: calm ? "auto" : "smooth", block: "nearest" });
      this.loadKernels().then(() => {
        this.draw();
        const row = this.rows.find((other) => other.type === "lane" && other.rank === rank);
        this.point(row, at, { pinned: true });
      });
      return true;
    }

    // What the whole page selected.
    select({ rank, step }) {
      this.only = this.chosen = this.subject = rank;
      this.forget();
      if (step !== (this.step || "")) {
        this.step = step;
        this.view = this.home();
      }
      if (this.displayed().length === 1) this.loadKernels();
      this.redraw();
    }

    // ---- pieces

    // What a card says of a piece.
    piece({ row, at }) {
      const { line, rank, stream = -1 } = row;
      const { info } = this;
      const ts_ns = line.start[at];
      const dur_ns = line.end[at] - ts_ns;
      const first = info.first_event_offset_ns[rank] ?? 0;
      const where = [["duration", duration(dur_ns)], ["start", ms(ts_ns)], ["rank", this.onHost(rank).slice("rank ".length)]];
      const position = `rank ${rank}${stream < 0 ? "" : `, stream ${stream}`}, ${ms(ts_ns - first)}`;
      const common = { rank, stream, ts_ns, dur_ns };
      if (row.type === "stream") {
        const text = (name) => this.kernelText(name, line.row[at]);
        const category = this.categories[line.kind[at]];
        const fields = ["op", "shapes", "module", "stage", "source"].map((name) => [name, text(name)]);
        return {
          ...common, title: text("name"), color: info.colors[category],
          fields: [...fields, ["category", this.label(category)], ...where, ["stream", String(stream)]],
          copies: [["name", text("name")], ["Perfetto position", position]],
        };
      }
      const state = this.states[line.kind[at]];
      const detail = line.detail(at);
      const kernel = this.kernelOf(row, at, state);
      const caption = { idle: "cause", waiting: "waits", communication: "collective", copy: "kind", fill: "kind" }[state] || "op";
      return {
        ...common, title: this.label(state), color: info.colors[state === "waiting" ? "communication" : state],
        fields: [[caption, detail], ...where, ...kernel],
        copies: [["name", detail ? `${this.label(state)}: ${detail}` : this.label(state)], ["Perfetto position", position]],
      };
    }

    // Fields of the kernel that takes most of a piece of a lane, once kernels are there.
    kernelOf({ line, rank }, at, state) {
      const category = state === "waiting" ? "communication" : state;
      let [most, best] = [0, null];
      for (const stream of this.kernels?.of.get(rank) || []) {
        const kernel = largest(stream, line.start[at], line.end[at]);
        if (kernel < 0 || this.categories[stream.kind[kernel]] !== category) continue;
        const inside = Math.min(stream.end[kernel], line.end[at]) - Math.max(stream.start[kernel], line.start[at]);
        if (inside > most) [most, best] = [inside, stream.row[kernel]];
      }
      if (best === null) return [];
      const label = most > 0.9 * (line.end[at] - line.start[at]) ? "kernel" : "longest kernel";
      return [[label, this.kernelText("name", best)], ["shapes", this.kernelText("shapes", best)]];
    }

    // Shows the card of a piece, where it starts or where the pointer is.
    point(row, at, { pinned = false, x, y } = {}) {
      if (!row || at < 0) return;
      this.cursor = { row, at };
      this.outline();
      const left = Math.min(Math.max(this.painter.x(row.line.start[at]), 0), this.width);
      this.card.show(this.piece(this.cursor), x ?? left, y ?? row.y + row.height - 8, pinned);
    }

    // The frame around the piece whose card is shown.
    outline() {
      const box = this.part(".hit");
      box.hidden = !this.cursor;
      if (!this.cursor) return;
      const { row, at } = this.cursor;
      const x = (time) => Math.min(Math.max(((time - this.view.from) / this.span) * this.width, 0), this.width);
      const [left, right] = [x(row.line.start[at]), x(row.line.end[at])];
      box.hidden = right <= 0 || left >= this.width;
      Object.assign(box.style, { left: `${left - 1}px`, width: `${Math.max(right - left, 1) + 2}px`, top: `${row.y - 1}px`, height: `${row.height + 2}px` });
    }

    forget() {
      this.cursor = null;
      this.part(".hit").hidden = true;
      if (!this.card.box.hidden) this.card.hide();
    }

    // The piece at a point of the canvas, or null: of those that share the pixel, the longest.
    under(x, y) {
      const row = this.rowAt(y);
      if (!row) return null;
      let at = largest(row.line, this.timeAt(x - 0.5), this.timeAt(x + 0.5));
      if (at < 0) at = largest(row.line, this.timeAt(x - 3), this.timeAt(x + 3));
      return at < 0 ? null : { row, at };
    }

    rowAt(y) {
      return this.rows.find((row) => row.type !== "marks" && y >= row.y && y < row.y + row.height);
    }

    // For tests and other scripts of the page.
    state() {
      if (!this.lanes) return null;
      const { title, rank, stream, ts_ns, dur_ns } = this.cursor ? this.piece(this.cursor) : {};
      return {
        from_ns: this.view.from, to_ns: this.view.to, lanes: this.displayed(), heat_map: this.many,
        steps: this.steps.map(({ name }) => name),
        rows: this.rows.map(({ type, rank: of, stream: number, y, height, marks }) => ({ type, rank: of, stream: number, y, height, marks: marks?.length })),
        shown: this.cursor && { title, rank, stream, ts_ns, dur_ns }, pinned: this.card.pinned,
        highlighted: this.states[this.highlighted] || "", kernels: this.kernels?.table.rows || 0, frame_ms: this.frameMs,
      };
    }
  }

  // The states, which are packed end to end for each rank, with their starts.
  function started({ rows, columns }) {
    const [rank, dur] = [columns.rank.values, columns.dur_ns.values];
    const values = new Float64Array(rows);
    let end = 0;
    for (let row = 0; row < rows; row += 1) {
      values[row] = row && rank[row] === rank[row - 1] ? end : 0;
      end = values[row] + dur[row];
    }
    return { rows, columns: { ...columns, ts_ns: { values } } };
  }

  // The rows of a small table as objects.
  function records(table) {
    return Array.from({ length: table?.rows || 0 }, (_, row) =>
      Object.fromEntries(Object.entries(table.columns).map(([name, { values, texts }]) => [name, texts ? texts[values[row]] : values[row]])));
  }

  async function start(picture) {
    await picture.load();
    tracelens.gestures(picture);
    picture.select(tracelens.selection); // an address may have chosen already
    await picture.loading;
    picture.complete = true;
    picture.writeLegend();
    picture.draw();
    picture.settled();
    picture.drawOverview();
    return true;
  }

  const info = JSON.parse(document.getElementById("picture-data").textContent);
  const picture = new Picture(document.getElementById("picture"), info);
  tracelens.picture = { show: (range) => picture.show(range), state: () => picture.state(), ready: start(picture) };
})();
