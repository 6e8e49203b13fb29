"use strict";
(() => {
  // Contents: mark the section in view.
  const links = new Map([...document.querySelectorAll("nav li a")].map((link) => [decodeURIComponent(link.hash.slice(1)), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "0px 0px -75% 0px" });
  for (const section of document.querySelectorAll("section.result")) seen.observe(section);
})();
