"use strict";
// Tells an open page what has changed. Without this script, loading the page again does.
(() => {
  const page = document.body;
  const news = document.getElementById("news");
  const lost = document.getElementById("lost");
  const main = document.getElementById("content");
  const title = document.title.replace(/^\(\d+\) /, "");
  const wanted = page.dataset.live.split(" ");
  let serial = Number(page.dataset.serial);
  let source = null;

  // A page that somebody is about to act on must not move under the hand.
  const inUse = () =>
    main.querySelector("form[method=post]") !== null ||
    (document.activeElement !== main && main.contains(document.activeElement)) ||
    !document.getSelection().isCollapsed;

  const count = (kind, number) => {
    for (const shown of document.querySelectorAll(`[data-count=${kind}]`)) {
      shown.textContent = number || "";
      shown.hidden = !number;
    }
  };

  const changed = (event) => {
    const told = JSON.parse(event.data);
    serial = Number(event.lastEventId);
    count("pending", told.pending);
    count("unread", told.unread);
    document.title = (told.pending ? `(${told.pending}) ` : "") + title;
    if (!told.kinds.some((kind) => wanted.includes(kind))) return;
    if (inUse()) news.hidden = false;
    else location.reload();
  };

  const say = (text) => {
    lost.textContent = text;
    lost.hidden = text === "";
  };

  const connect = () => {
    source = new EventSource(`/events?since=${serial}`);
    source.onopen = () => say("");
    source.onmessage = changed;
    source.onerror = () => {
      const ended = source.readyState === EventSource.CLOSED;
      say(ended ? "This page is not told of changes: load it again." : "agent-bus ui does not answer.");
    };
    // Too many pages are open: this one rests until somebody looks at it.
    source.addEventListener("dismissed", () => {
      source.close();
      source = null;
    });
  };

  document.addEventListener("visibilitychange", () => {
    if (source === null && document.visibilityState === "visible") connect();
  });
  window.addEventListener("pagehide", () => source && source.close());
  window.addEventListener("pageshow", (event) => event.persisted && location.reload());
  connect();
})();
