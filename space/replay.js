// Replays both answers at the pace they were recorded at: each token carries the second at which it came (data-s).
// Text is only ever hidden and shown; nothing is put into the page.
(() => {
  let run = null;

  const read = (pane) => ({
    pane,
    tokens: [...pane.querySelectorAll(".words .t")].map((node) => (
      { node, s: +node.dataset.s, r: +node.dataset.r, found: node.classList.contains("found") }
    )),
    seconds: +pane.dataset.seconds,
    tiles: [...pane.querySelectorAll("[data-tile]")].map((node) => ({ node, text: node.textContent })),
    bar: pane.querySelector(".bar i"),
    shown: 0,
    found: 0,
  });

  const figures = (part, now) => {
    const rounds = part.shown ? part.tokens[part.shown - 1].r : 0;
    const at = Math.min(now, part.seconds);
    const values = {
      rate: part.shown && at ? (part.shown / at).toFixed(1) : "–",
      seconds: `${at.toFixed(2)} s`,
      rounds: `${rounds}`,
      found: `${part.found}`,
      said: `${part.shown}`,
      tau: rounds ? ((part.shown - 1) / rounds).toFixed(2) : "–",
    };
    for (const { node } of part.tiles) node.textContent = values[node.dataset.tile];
  };

  const restore = (part) => {
    for (const { node } of part.tokens) node.classList.remove("later");
    for (const { node, text } of part.tiles) node.textContent = text;
    part.bar.style.width = part.full;
    part.pane.classList.remove("live");
  };

  const step = (time) => {
    if (!run) return;
    if (!run.parts.every((part) => part.pane.isConnected)) { skip(); return; }  // a new run took the panes' places
    run.began ??= time;
    const now = (time - run.began) / 1000;
    let going = false;
    for (const part of run.parts) {
      while (part.shown < part.tokens.length && part.tokens[part.shown].s <= now) {
        const { node, found } = part.tokens[part.shown++];
        node.classList.remove("later");
        part.found += found;
      }
      part.bar.style.width = `${(100 * part.shown) / run.most}%`;
      const over = now >= part.seconds;
      if (over) restore(part); else { figures(part, now); going = true; }
    }
    if (going) requestAnimationFrame(step); else skip();
  };

  const skip = () => {
    if (!run) return;
    run.parts.forEach(restore);
    document.body.classList.remove("replaying");
    run = null;
  };

  const replay = (asked) => {
    skip();
    const parts = [...document.querySelectorAll(".pane")].map(read);
    const counts = parts.map((part) => part.tokens.length);
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches && !asked;
    if (parts.length < 2 || Math.min(...counts) < 2 || still) return;
    for (const part of parts) {
      part.full = part.bar.style.width;
      part.pane.classList.add("live");
      for (const { node } of part.tokens) node.classList.add("later");
    }
    document.body.classList.add("replaying");
    run = { parts, most: Math.max(...counts), began: null };
    requestAnimationFrame(step);
  };

  // The region must be there before its words change, or screen readers do not read them.
  const announce = () => {
    const region = document.getElementById("verdict");
    if (region) region.setAttribute("aria-live", "polite"); else setTimeout(announce, 200);
  };
  announce();
  // A burst of clicks is one: each would take a place in the line, though only the last is answered.
  let clicked = -Infinity;
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("#run")) return;
    if (event.timeStamp - clicked < 60) event.stopImmediatePropagation();
    clicked = event.timeStamp;
  }, true);

  window.domino = { replay, skip };
})();
