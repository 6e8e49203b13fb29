"use strict";
// Time lines of pieces: a lane a rank, made of states; a row a stream, made of kernels. A line is {start, end,
// kind, row}: arrays in order of start, in ns; `kind` indexes `kinds` of its set, `row` is that of its table.
(() => {
  const LEVELS = 4; // merged lines that are kept of each
  const BLOCK = 256; // pieces whose longest is known
  const numbers = (table, name) => table.columns[name].values;

  // Rows in order of keys; rows that are in order already are not sorted.
  function ordered(count, before) {
    const order = Uint32Array.from({ length: count }, (_, row) => row);
    for (let row = 1; row < count; row += 1) {
      if (before(row - 1, row) > 0) return order.sort(before);
    }
    return order;
  }

  // Lines of a table: Map of the values of `keys`, joined, to line. `kind` names the text column that gives
  // kinds, which are added to `kinds`; pieces of kind "" are left out.
  function lines(table, keys, kind, kinds) {
    const start = numbers(table, "ts_ns");
    const dur = numbers(table, "dur_ns");
    const texts = table.columns[kind].texts;
    const kindOf = texts.map((text) => {
      if (text && !kinds.includes(text)) kinds.push(text);
      return kinds.indexOf(text);
    });
    const codes = numbers(table, kind);
    const of = keys.map((key) => numbers(table, key));
    const order = ordered(table.rows, (a, b) => {
      for (const key of of) if (key[a] !== key[b]) return key[a] - key[b];
      return start[a] - start[b];
    });
    const nothing = texts.indexOf("");
    const found = new Map();
    for (let first = 0; first < order.length;) {
      const same = (row) => of.every((key) => key[row] === key[order[first]]);
      let last = first;
      while (last < order.length && same(order[last])) last += 1;
      const row = order.subarray(first, last).filter((at) => codes[at] !== nothing);
      const values = of.map((key) => key[order[first]]);
      found.set(values.join(" "), {
        keys: values,
        row,
        start: Float64Array.from(row, (at) => start[at]),
        end: Float64Array.from(row, (at) => start[at] + dur[at]),
        kind: Uint8Array.from(row, (at) => kindOf[codes[at]]),
      });
      first = last;
    }
    return found;
  }

  // The first piece that ends after `time`. Pieces of a line may overlap a little; ends grow all the same.
  function firstAfter(line, time) {
    let low = 0;
    let high = line.end.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (line.end[middle] > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // A line of fewer pieces that looks the same where `bin` ns are a fraction of a pixel: the pieces inside of one
  // bin become one of each kind, with the same time in it. Longer pieces stay.
  function merged(line, bin, count) {
    const [start, end, kind] = [[], [], []];
    const times = new Float64Array(count);
    let inside = -1; // bin of the pieces that are being merged
    let from = 0;
    function close() {
      for (let index = 0; inside >= 0 && index < count; index += 1) {
        if (!times[index]) continue;
        start.push(from);
        end.push((from += times[index]));
        kind.push(index);
      }
      times.fill(0);
      inside = -1;
    }
    for (let at = 0; at < line.start.length; at += 1) {
      const first = Math.floor(line.start[at] / bin);
      if (first !== inside) close();
      if (line.end[at] <= (first + 1) * bin) {
        if (inside < 0) [inside, from] = [first, line.start[at]];
        times[line.kind[at]] += line.end[at] - line.start[at];
      } else {
        close();
        start.push(line.start[at]);
        end.push(line.end[at]);
        kind.push(line.kind[at]);
      }
    }
    close();
    return { start: Float64Array.from(start), end: Float64Array.from(end), kind: Uint8Array.from(kind) };
  }

  // The line itself or, where many pieces share a column, one that is merged to quarters of it.
  function detailed(line, from, to, width, count) {
    if (seen(line, from, to) < 6 * width) return line;
    const level = Math.floor(Math.log2((to - from) / width / 4));
    line.levels ||= new Map();
    if (line.levels.size > LEVELS) line.levels.clear();
    if (!line.levels.has(level)) line.levels.set(level, merged(line, 2 ** level, count));
    return line.levels.get(level);
  }

  // What each of `width` columns between two times shows: the kind with most time in it (-1: none) and the
  // share of the column that is not empty.
  function columns(whole, from, to, width, count) {
    const line = detailed(whole, from, to, width, count);
    const kind = new Int16Array(width).fill(-1);
    const busy = new Float32Array(width);
    const times = new Float64Array(count);
    const scale = width / (to - from);
    let column = -1;
    function close() {
      if (column < 0) return;
      let most = 0;
      let sum = 0;
      for (let index = 0; index < count; index += 1) {
        sum += times[index];
        if (times[index] > times[most]) most = index;
      }
      if (sum > 0) {
        kind[column] = most;
        busy[column] = Math.min(sum, 1);
      }
      times.fill(0);
    }
    for (let at = firstAfter(line, from); at < line.start.length && line.start[at] < to; at += 1) {
      const left = Math.max((line.start[at] - from) * scale, 0);
      const right = Math.min((line.end[at] - from) * scale, width);
      const first = Math.max(Math.min(Math.floor(left), width - 1), column);
      const last = Math.min(Math.floor(right), width - 1);
      if (first !== column) {
        close();
        column = first;
      }
      if (last <= first) {
        times[line.kind[at]] += right - left;
        continue;
      }
      times[line.kind[at]] += first + 1 - left;
      close();
      kind.fill(line.kind[at], first + 1, last);
      busy.fill(1, first + 1, last);
      column = last;
      times[line.kind[at]] += right - last;
    }
    close();
    return { kind, busy };
  }

  // The piece with most time between two times, or -1.
  function largest(line, from, to) {
    let best = -1;
    let most = -1;
    for (let at = firstAfter(line, from); at < line.start.length && line.start[at] < to; at += 1) {
      const inside = Math.min(line.end[at], to) - Math.max(line.start[at], from);
      if (inside > most) [best, most] = [at, inside];
    }
    return best;
  }

  // Pieces that are seen between two times.
  function seen(line, from, to) {
    return Math.max(0, firstAfter({ end: line.start }, to) - firstAfter(line, from));
  }

  // Calls `visit` with each piece between two times that lasts at least `least`.
  function long(line, from, to, least, visit) {
    if (!line.longest) {
      line.longest = new Float64Array(Math.ceil(line.start.length / BLOCK));
      for (let at = 0; at < line.start.length; at += 1) {
        const block = Math.floor(at / BLOCK);
        line.longest[block] = Math.max(line.longest[block], line.end[at] - line.start[at]);
      }
    }
    for (let at = firstAfter(line, from); at < line.start.length && line.start[at] < to; at += 1) {
      if (at % BLOCK === 0 && line.longest[at / BLOCK] < least) at += BLOCK - 1;
      else if (line.end[at] - line.start[at] >= least) visit(at);
    }
  }

  // Time of each kind between two times.
  function sums(line, from, to, out) {
    for (let at = firstAfter(line, from); at < line.start.length && line.start[at] < to; at += 1) {
      out[line.kind[at]] += Math.min(line.end[at], to) - Math.max(line.start[at], from);
    }
  }

  tracelens.lanes = { lines, columns, merged, largest, long, firstAfter, seen, sums };
})();
