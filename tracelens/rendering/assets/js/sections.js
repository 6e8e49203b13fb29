"use strict";
(() => {
  // Sections: folded at first; an anchor opens what it leads to, print opens all.
  const all = () => [...document.querySelectorAll("details")];
  const sections = () => [...document.querySelectorAll("details.section")];

  // What the user hears and sees of an action that leaves no other trace.
  tracelens.announce = (text) => {
    document.getElementById("announcer").textContent = text;
  };

  // Opens everything around an element, and the section that it is.
  tracelens.reveal = (target) => {
    for (let around = target; around; around = around.parentElement) if (around.matches("details")) around.open = true;
    if (target.matches("section")) {
      const own = target.querySelector(":scope > details.section");
      if (own) own.open = true;
    }
  };

  // An address that somebody typed need not be well formed.
  function plain(text) {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  }

  function follow(hash) {
    const target = hash.length > 1 && document.getElementById(plain(hash.slice(1)));
    if (!target) return;
    tracelens.reveal(target);
    target.scrollIntoView();
  }

  addEventListener("hashchange", () => follow(location.hash));
  // The hash of the page may be the link's already: then nothing changes, and still something has to open.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#"]');
    if (link && link.hash === location.hash) follow(link.hash);
  });
  follow(location.hash);

  const button = document.getElementById("fold-all");
  button?.addEventListener("click", () => {
    const open = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(open));
    button.textContent = open ? "Close all sections" : "Open all sections";
    for (const section of sections()) section.open = open;
  });

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all().filter((details) => !details.open);
    for (const details of closed) details.open = true;
    tracelens.drawFigures?.(true);
  });
  addEventListener("afterprint", () => {
    for (const details of closed) details.open = false;
    closed = [];
  });
})();
