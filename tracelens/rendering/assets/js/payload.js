"use strict";
// Tables in the page: `await tracelens.payload(id)` is {rows, columns: {name: {values, texts, short}}}; `values`
// is an array of numbers, for text of indices into `texts` and, of those that have a short form, `short`.
// Unpacked once, when first asked for.
const tracelens = {};
(() => {
  const readers = { i1: Int8Array, i2: Int16Array, i4: Int32Array, f8: Float64Array };
  const unpacked = new Map();

  function bytes(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const raw = atob(text);
    const out = new Uint8Array(raw.length);
    for (let index = 0; index < raw.length; index += 1) out[index] = raw.charCodeAt(index);
    return out;
  }

  // The content of a compressed element, as a Response.
  tracelens.inflated = (id) => {
    const element = document.getElementById(`payload-${id}`);
    if (!element) throw new Error(`no payload ${id}`);
    return new Response(new Blob([bytes(element.textContent.trim())]).stream().pipeThrough(new DecompressionStream("gzip")));
  };

  async function unpack(id) {
    const buffer = await tracelens.inflated(id).arrayBuffer();
    const length = new DataView(buffer).getUint32(0, true);
    const { rows, columns } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    const read = {};
    for (const [name, { type, first, at, texts, short }] of Object.entries(columns)) {
      let values = new readers[type](buffer, 4 + length + at, rows);
      if (first !== undefined) {
        const sums = new Float64Array(rows);
        let sum = first;
        for (let row = 0; row < rows; row += 1) sums[row] = sum += values[row];
        values = sums;
      }
      read[name] = { values, texts, short: short || {} };
    }
    return { rows, columns: read };
  }

  tracelens.payload = (id) => {
    if (!unpacked.has(id)) unpacked.set(id, unpack(id));
    return unpacked.get(id);
  };

  // What the whole page shows: one rank or all (-1), one step or all (""). `select` tells who listens to
  // "tracelens:selection".
  tracelens.selection = { rank: -1, step: "" };
  tracelens.select = (change) => {
    Object.assign(tracelens.selection, change);
    document.dispatchEvent(new CustomEvent("tracelens:selection", { detail: tracelens.selection }));
  };
})();
