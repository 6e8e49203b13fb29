"use strict";
(() => {
  // Pages from a file may have no clipboard of their own: an element of text and the old command do it too.
  function byCommand(text) {
    const area = document.createElement("textarea");
    const focused = document.activeElement;
    area.value = text;
    area.className = "unseen";
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    focused?.focus({ preventScroll: true });
    return copied;
  }

  let timer;
  function toast(text) {
    let box = document.querySelector(".toast");
    if (!box) {
      box = document.createElement("div");
      box.className = "toast";
      box.setAttribute("aria-hidden", "true"); // what is heard is said by announce()
      document.body.append(box);
    }
    box.textContent = text;
    box.classList.add("shown");
    clearTimeout(timer);
    timer = setTimeout(() => box.classList.remove("shown"), 2500);
  }

  // Copies text; an Error where the browser refuses.
  tracelens.copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      if (!byCommand(text)) throw new Error("nothing was copied");
    }
  };

  // Copies text, and says that it did, as `what`.
  tracelens.copyAs = async (text, what) => {
    const said = await tracelens.copy(text).then(() => `Copied ${what}`, () => "The browser does not allow copying");
    toast(said);
    tracelens.announce?.(said);
  };
})();
