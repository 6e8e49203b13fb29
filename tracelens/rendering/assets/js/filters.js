"use strict";
(() => {
  // What people type into the filter of a column. `tracelens.filter(column, text)` is null (no filter),
  // {error}, {texts: test of a text} or {numbers: test of a value and its shown text}.
  const COMPARE = {
    ">": (value, limit) => value > limit,
    "<": (value, limit) => value < limit,
    ">=": (value, limit) => value >= limit,
    "<=": (value, limit) => value <= limit,
  };
  const ALIASES = { us: "µs", μs: "µs" };
  const NUMBER = /^([-+]?(?:[\d,]*\.?\d+|\d[\d,]*\.)(?:e[-+]?\d+)?|[-+]?inf)\s*(\S*)$/i;

  function scale(column, unit) {
    if (!unit) return column.kind === "percent" ? 0.01 : column.divisor;
    if (column.kind === "percent") return unit === "%" ? 0.01 : undefined;
    const names = Object.entries({ ...(column.scales?.["µs"] && { ns: 1 }), ...column.scales });
    const name = (ALIASES[unit] || unit).toLowerCase();
    return names.find(([known]) => known.toLowerCase() === name)?.[1];
  }

  // A number in the column's raw unit; NaN where the text is none. Without unit it is in the unit shown.
  function number(column, text) {
    const [, digits, unit] = NUMBER.exec(text.trim()) || [];
    if (digits === undefined) return NaN;
    if (/inf/i.test(digits)) return digits.startsWith("-") ? -Infinity : Infinity;
    return Number(digits.replaceAll(",", "")) * (scale(column, unit) ?? NaN);
  }

  const known = (column, test) => ({ numbers: (value, shown) => !tracelens.isAbsent(column, value) && test(value, shown) });

  function ofNumbers(column, text) {
    const [, sign, rest] = /^(>=|<=|≥|≤|>|<|=)(.*)$/.exec(text) || [];
    const range = /^(.+?)\.\.(.+)$/.exec(text);
    if (range) {
      const [low, high] = [number(column, range[1]), number(column, range[2])];
      if (Number.isNaN(low + high)) return { error: `not a range of numbers: ${text}` };
      return known(column, (value) => value >= low && value <= high);
    }
    if (!sign) return { numbers: (value, shown) => shown().includes(text) };
    if (sign === "=" && /^[-–]$/.test(rest.trim())) return { numbers: (value) => tracelens.isAbsent(column, value) };
    const limit = number(column, rest);
    if (Number.isNaN(limit)) return { error: `not a number: ${rest || text}` };
    if (sign !== "=") return known(column, (value) => COMPARE[sign.replace("≥", ">=").replace("≤", "<=")](value, limit));
    // Equal as far as is shown, or exactly.
    const half = (scale(column, "") * 10 ** -column.decimals) / 2;
    return known(column, (value) => value === limit || Math.abs(value - limit) < half);
  }

  function ofTexts(text) {
    const regex = /^\/(.+)\/([a-z]*)$/s.exec(text);
    if (regex) {
      try {
        const pattern = new RegExp(regex[1], regex[2].replace(/[gy]/g, "") || "i");
        return { texts: (value) => pattern.test(value) };
      } catch (error) {
        return { error: error.message };
      }
    }
    const query = text.toLowerCase();
    if (query.startsWith("=")) return { texts: (value) => value.toLowerCase() === query.slice(1).trim() };
    return { texts: (value) => value.toLowerCase().includes(query) };
  }

  tracelens.filter = (column, typed) => {
    const text = typed.trim();
    if (!text || text === "!") return null;
    if (text.startsWith("!")) {
      const inner = tracelens.filter(column, text.slice(1));
      if (!inner || inner.error) return inner;
      if (inner.texts) return { texts: (value) => !inner.texts(value) };
      return { numbers: (value, shown) => !inner.numbers(value, shown) };
    }
    if (column.kind === "number" || column.kind === "percent") return ofNumbers(column, text);
    if (column.kind === "bool") return { numbers: (value, shown) => shown().includes(text.toLowerCase()) };
    return ofTexts(text);
  };
})();
