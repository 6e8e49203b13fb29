"use strict";
(() => {
  // Numbers as the report writes them everywhere: as format(value, ",.2f") of Python, digit for digit.
  const THOUSANDS = /\B(?=(\d{3})+(?!\d))/g;

  function digits(size, decimals) {
    if (size >= 1e21) return BigInt(size) + (decimals ? `.${"0".repeat(decimals)}` : "");
    const text = size.toFixed(decimals);
    // Of two digits equally near, toFixed takes the larger one, Python the even one.
    const isTie = (size * 2 ** (decimals + 1)) % 2 === 1;
    const last = Number(text.at(-1));
    return isTie && last % 2 ? text.slice(0, -1) + (last - 1) : text;
  }

  function fixed(value, decimals) {
    const sign = value < 0 || Object.is(value, -0) ? "-" : "";
    if (!Number.isFinite(value)) return `${sign}inf`;
    const [whole, ...rest] = digits(Math.abs(value), decimals).split(".");
    return [sign + whole.replace(THOUSANDS, ","), ...rest].join(".");
  }

  const ABSENT = "–";

  // A cell of a number or bool column, without reason.
  tracelens.shown = (column, value) => {
    if (column.kind === "bool") return value ? "yes" : "no";
    if (tracelens.isAbsent(column, value)) return ABSENT;
    if (column.kind === "percent") return `${fixed(value * 100, column.decimals)}%`;
    return fixed(value / column.divisor, column.decimals);
  };
  // Columns of numbers that can be unknown say what stands for one.
  tracelens.isAbsent = (column, value) => value === column.absent;
})();
