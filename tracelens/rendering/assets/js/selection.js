"use strict";
(() => {
  // The rank and the step that the whole page shows, chosen in a bar, and kept in the page's address:
  // #kernels&rank=5&step=ProfilerStep%231, so that a link to it can be shared.
  const { element, ranks, steps } = tracelens;
  const MANY = 16;
  const SETTLE_MS = 2000;

  function choice(name, title, options, current) {
    const group = element("fieldset", {}, element("legend", { textContent: title }));
    for (const [value, text] of options) {
      const radio = element("input", { type: "radio", name: `tracelens-${name}`, value, checked: value === current });
      radio.addEventListener("change", () => choose(name, value));
      group.append(element("label", {}, radio, element("span", { textContent: text })));
    }
    return group;
  }

  function search(name, title, options) {
    const list = element("datalist", { id: `tracelens-${name}s` }, ...options.map(([value, text]) => element("option", { value: text })));
    const box = element("input", { type: "search", placeholder: `all ${options.length - 1}`, "aria-label": title, autocomplete: "off", name: `tracelens-${name}` });
    box.setAttribute("list", list.id);
    box.addEventListener("input", () => {
      const typed = box.value.trim();
      const option = options.find(([, text]) => text === typed) || (typed === "" ? options[0] : undefined);
      box.setAttribute("aria-invalid", String(!option));
      if (option) choose(name, option[0]);
    });
    return element("fieldset", {}, element("legend", { textContent: title }), box, list);
  }

  const control = (name, title, options, current) => (options.length > MANY + 1 ? search : choice)(name, title, options, current);

  function choose(name, value) {
    tracelens.select({ [name]: name === "rank" ? Number(value) : value });
  }

  const parts = () => location.hash.slice(1).split("&").filter(Boolean);
  const anchor = () => parts().find((part) => !part.includes("=")) || "";

  // The selection of an address; null where it has none.
  function addressed() {
    const chosen = new URLSearchParams(parts().filter((part) => part.includes("=")).join("&"));
    if (!chosen.has("rank") && !chosen.has("step")) return null;
    const rank = Number(chosen.get("rank") ?? -1);
    const step = chosen.get("step") || "";
    return { rank: ranks.includes(rank) ? rank : -1, step: steps.includes(step) ? step : "" };
  }

  function address() {
    const { rank, step } = tracelens.selection;
    const chosen = [...(rank >= 0 ? [`rank=${rank}`] : []), ...(step ? [`step=${encodeURIComponent(step)}`] : [])];
    const hash = [anchor(), ...chosen].filter(Boolean).join("&");
    if (hash !== location.hash.slice(1)) history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  }

  // Leads to an element, and keeps it in view while tables and pictures above it still change their height.
  function follow(target) {
    const element = target && document.getElementById(decodeURIComponent(target));
    if (!element) return;
    tracelens.reveal(element);
    const lead = () => element.scrollIntoView({ behavior: "instant" });
    const settled = new AbortController();
    const observer = new ResizeObserver(lead);
    settled.signal.addEventListener("abort", () => observer.disconnect());
    for (const event of ["wheel", "pointerdown", "keydown"]) {
      addEventListener(event, () => settled.abort(), { signal: settled.signal, passive: true });
    }
    setTimeout(() => settled.abort(), SETTLE_MS);
    observer.observe(document.querySelector("main"));
    lead();
  }

  function show() {
    const { rank, step } = tracelens.selection;
    for (const [name, value] of [["rank", String(rank)], ["step", step]]) {
      for (const input of document.querySelectorAll(`input[name="tracelens-${name}"]`)) {
        if (input.type === "radio") input.checked = input.value === value;
        else if (document.activeElement !== input) input.value = rank >= 0 && name === "rank" ? value : name === "step" ? value : "";
      }
    }
  }

  document.addEventListener("tracelens:selection", () => {
    show();
    address();
  });
  addEventListener("hashchange", () => setTimeout(() => {
    const chosen = addressed();
    if (!chosen) {
      address(); // a link inside the page: what is selected stays
      return;
    }
    const target = anchor();
    tracelens.select(chosen);
    follow(target);
  }));

  const bar = element("div", { className: "selection", role: "group", "aria-label": "What the page shows" });
  if (ranks.length > 1) bar.append(control("rank", "Ranks", [["-1", "all"], ...ranks.map((rank) => [String(rank), String(rank)])], "-1"));
  if (steps.length > 1) bar.append(control("step", "Steps", [["", "all"], ...steps.map((step) => [step, step])], ""));
  if (steps.length > 1) bar.append(element("span", { className: "base", textContent: "Sections cover all recorded steps, unless one is chosen." }));
  const first = document.querySelector("section.result");
  if (bar.children.length && first) {
    first.before(bar);
    const room = () => { document.documentElement.style.scrollPaddingTop = `${bar.offsetHeight + 16 + (parseFloat(getComputedStyle(bar).top) || 0)}px`; };
    new ResizeObserver(room).observe(bar);
  }
  const chosen = addressed();
  if (chosen) {
    tracelens.select(chosen);
    follow(anchor());
  }
})();
