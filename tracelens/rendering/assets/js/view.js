"use strict";
(() => {
  // The rows of one table: which ones are visible, in which order, and what their cells say.
  class View {
    constructor(spec, payload, isTree) {
      this.spec = spec;
      this.rows = payload.rows;
      this.data = payload.columns;
      this.columns = new Map(spec.columns.map((column) => [column.name, column]));
      this.isTree = isTree;
      this.orders = new Map();
      this.ranks = new Map();
    }

    // The whole text of a cell, as shown but for shortening.
    text(name, row) {
      const column = this.columns.get(name);
      const { values, texts } = this.data[name];
      if (texts) return texts[values[row]];
      const shown = tracelens.shown(column, values[row]);
      const { explained } = column;
      if (!explained || !(values[row] > explained.above)) return shown;
      const note = explained.note && this.data[explained.note];
      const reason = note ? note.texts[note.values[row]].split("; ")[0] : "";
      return `${shown} (${reason || explained.otherwise})`;
    }

    // What stands in the cell: a long name shortened.
    short(name, row) {
      const { values, texts, short } = this.data[name];
      return (texts && short[values[row]]) ?? this.text(name, row);
    }

    raw(name, row) {
      const { values, texts } = this.data[name];
      if (texts) return texts[values[row]];
      const column = this.columns.get(name);
      if (tracelens.isAbsent(column, values[row])) return "";
      return column.kind === "bool" ? Boolean(values[row]) : values[row];
    }

    // Numbers that sort like the column; texts get their place in the sorted dictionary.
    keys(name) {
      const { values, texts } = this.data[name];
      if (!texts) return values;
      if (!this.ranks.has(name)) {
        const collator = new Intl.Collator(undefined, { numeric: true });
        const sorted = texts.map((_, index) => index).sort((a, b) => collator.compare(texts[a], texts[b]));
        const place = new Int32Array(texts.length);
        sorted.forEach((index, position) => { place[index] = position; });
        this.ranks.set(name, Int32Array.from(values, (index) => place[index]));
      }
      return this.ranks.get(name);
    }

    // Rows of the page's rank and step.
    candidates({ rank, step }) {
      const ranks = rank >= 0 && this.spec.ranks ? this.data.rank.values : null;
      const steps = step && this.spec.steps ? this.data.step : null;
      const code = steps ? steps.texts.indexOf(step) : -1;
      const rows = new Int32Array(this.rows);
      let count = 0;
      for (let row = 0; row < this.rows; row += 1) {
        if (ranks && ranks[row] !== rank) continue;
        if (steps && steps.values[row] !== code) continue;
        rows[count] = row;
        count += 1;
      }
      return rows.subarray(0, count);
    }

    // Candidates in order; absent numbers stand last whichever way the rest is sorted.
    sorted(rows, name, sign) {
      const keys = this.keys(name);
      const column = this.columns.get(name);
      const lost = (row) => tracelens.isAbsent(column, keys[row]);
      return rows.slice().sort((a, b) => lost(a) - lost(b) || (keys[a] < keys[b] ? -sign : keys[a] > keys[b] ? sign : a - b));
    }

    // {rows, and of a tree: depth, parent and end (both positions in rows)}, depth first; made once for a
    // selection and a sort.
    order(selection, sort) {
      const key = JSON.stringify([selection.rank, selection.step, sort]);
      if (!this.orders.has(key)) {
        if (this.orders.size > 8) this.orders.clear();
        const rows = this.candidates(selection);
        const sorted = sort ? this.sorted(rows, sort.name, sort.sign) : rows;
        this.orders.set(key, this.isTree ? this.nested(rows, sorted, Boolean(sort)) : { rows: sorted });
      }
      return this.orders.get(key);
    }

    parents() {
      if (this.parentOf) return this.parentOf;
      const node = this.data.node.values;
      const parent = this.data.parent.values;
      const rank = this.data.rank?.values;
      let width = 1;
      for (let row = 0; row < this.rows; row += 1) width = Math.max(width, node[row] + 1, parent[row] + 1);
      const place = new Map();
      const offset = (row) => (rank ? rank[row] * width : 0);
      for (let row = 0; row < this.rows; row += 1) place.set(offset(row) + node[row], row);
      this.parentOf = Int32Array.from(parent, (number, row) => (number < 0 ? -1 : place.get(offset(row) + number) ?? -1));
      return this.parentOf;
    }

    nested(candidates, sorted, isSorted) {
      const parents = this.parents();
      const isCandidate = new Uint8Array(this.rows);
      for (const row of candidates) isCandidate[row] = 1;
      const above = (row) => (parents[row] >= 0 && isCandidate[parents[row]] ? parents[row] : -1);
      // Unless sorted, the roots stand as they are, and what is below them by size.
      const inside = isSorted || !this.spec.size ? sorted : this.sorted(candidates, this.spec.size, -1);
      const first = new Int32Array(this.rows + 1).fill(-1);
      const next = new Int32Array(this.rows).fill(-1);
      const roots = [];
      for (const row of isSorted ? sorted : candidates) if (above(row) < 0) roots.push(row);
      for (let index = inside.length - 1; index >= 0; index -= 1) {
        const row = inside[index];
        const parent = above(row);
        if (parent < 0) continue;
        next[row] = first[parent];
        first[parent] = row;
      }
      const count = candidates.length;
      const out = { rows: new Int32Array(count), depth: new Int16Array(count), parent: new Int32Array(count), end: new Int32Array(count) };
      let position = 0;
      for (const root of roots) {
        const path = []; // positions of the open nodes above
        let row = root;
        while (row >= 0) {
          out.rows[position] = row;
          out.depth[position] = path.length;
          out.parent[position] = path.length ? path[path.length - 1] : -1;
          path.push(position);
          position += 1;
          if (first[row] >= 0) {
            row = first[row];
            continue;
          }
          row = -1;
          while (path.length && row < 0) {
            const done = path.pop();
            out.end[done] = position;
            if (path.length) row = next[out.rows[done]];
          }
        }
      }
      if (position < count) {
        // What no root reaches, such as a cycle, follows as roots, so that no row is lost.
        const reached = new Set(out.rows.subarray(0, position));
        for (const row of candidates) {
          if (reached.has(row)) continue;
          out.rows[position] = row;
          out.parent[position] = -1;
          position += 1;
          out.end[position - 1] = position;
        }
      }
      return out;
    }

    // A function of a row for each filter: {column name: text} and a text that any name may contain.
    // Returns {tests, errors: {column name: message}}.
    tests(filters, query) {
      const tests = [];
      const errors = {};
      for (const [name, typed] of Object.entries(filters)) {
        const column = this.columns.get(name);
        const parsed = column && tracelens.filter(column, typed);
        if (!parsed) continue;
        if (parsed.error) {
          errors[name] = parsed.error;
          continue;
        }
        const { values, texts } = this.data[name];
        if (parsed.texts) {
          const hits = texts.map((text) => parsed.texts(text));
          tests.push((row) => hits[values[row]]);
        } else {
          tests.push((row) => parsed.numbers(values[row], () => this.text(name, row)));
        }
      }
      const words = query.trim();
      const named = [...this.columns.values()].filter((column) => this.data[column.name].texts);
      if (words) {
        const test = tracelens.filter({ kind: "text" }, words);
        if (test?.error) errors[""] = test.error;
        else if (test) {
          const hits = named.map(({ name }) => [this.data[name].values, this.data[name].texts.map((text) => test.texts(text))]);
          const every = words.startsWith("!"); // no name may contain it
          tests.push((row) => (every ? hits.every(([values, hit]) => hit[values[row]]) : hits.some(([values, hit]) => hit[values[row]])));
        }
      }
      return { tests, errors };
    }

    // What is seen: {positions in the order, matched, count of candidates, errors}.
    // `isOpen(row, depth, filtered)` says whether the children of a row of a tree are.
    visible({ selection, sort, filters, query, isOpen }) {
      const order = this.order(selection, sort);
      const { tests, errors } = this.tests(filters, query);
      const count = order.rows.length;
      const hit = new Uint8Array(count).fill(tests.length ? 0 : 1);
      const parts = new Uint8Array(count); // has visible children
      let matched = count;
      if (tests.length) {
        matched = 0;
        for (let index = 0; index < count; index += 1) {
          if (!tests.every((test) => test(order.rows[index]))) continue;
          hit[index] = 1;
          matched += 1;
        }
      }
      if (order.parent) {
        for (let index = count - 1; index >= 0; index -= 1) {
          if (!hit[index] || order.parent[index] < 0) continue;
          hit[order.parent[index]] = 1;
          parts[order.parent[index]] = 1;
        }
      }
      const positions = new Int32Array(count);
      let length = 0;
      for (let index = 0; index < count;) {
        if (hit[index]) {
          positions[length] = index;
          length += 1;
        }
        const closed = order.end && (!hit[index] || !isOpen(order.rows[index], order.depth[index], tests.length > 0));
        index = closed ? order.end[index] : index + 1;
      }
      return { order, positions: positions.subarray(0, length), parts, matched, count, errors, filtered: tests.length > 0 };
    }
  }
  tracelens.View = View;
})();
