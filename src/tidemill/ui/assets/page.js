// Keeps the sections of a screen fresh, and moves between the cells of the lot grid with the arrow keys.
"use strict";

const note = document.getElementById("updated");
const waitMs = 1000 * Number(note.dataset.wait || 5);
let failures = 0;

function isBusy(section) {
  const active = document.activeElement;
  return section.contains(active) && active !== section && active.matches("input, select, textarea, button, summary");
}

function keepOpen(from, to) {
  const wasOpen = Array.from(from.querySelectorAll("details"), (each) => each.open);
  to.querySelectorAll("details").forEach((each, number) => { each.open = Boolean(wasOpen[number]); });
}

function focusAgain(section, lot, row) {
  const rows = section.querySelectorAll("[data-cells]");
  const cell = rows[row] && rows[row].querySelector(`[data-lot="${CSS.escape(lot)}"]`);
  if (cell) cell.focus({ preventScroll: true });
}

async function refresh() {
  if (document.hidden || !document.querySelector("[data-live]")) return;
  try {
    const response = await fetch(location.href, { headers: { "x-refresh": "1" } });
    if (!response.ok) throw new Error(String(response.status));
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const section of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(section.id);
      if (!other || isBusy(section) || section.innerHTML === other.innerHTML) continue;
      const active = document.activeElement;
      const lot = section.contains(active) ? active.dataset.lot : undefined;
      const row = lot ? Array.from(section.querySelectorAll("[data-cells]")).indexOf(active.parentElement) : -1;
      keepOpen(section, other);
      const left = section.scrollLeft;
      section.replaceChildren(...other.childNodes);
      section.scrollLeft = left;
      prepare(section);
      if (lot) focusAgain(section, lot, row);
    }
    failures = 0;
    document.body.classList.remove("lost");
    note.textContent = `updated ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    failures += 1;
    document.body.classList.add("lost");
    note.textContent = "no connection to the server; trying again";
  }
}

function prepare(root) {
  for (const cells of root.querySelectorAll("[data-cells]")) {
    const last = cells.lastElementChild;
    if (last && last.matches("a")) last.tabIndex = 0;
    cells.scrollLeft = cells.scrollWidth;
  }
}

document.addEventListener("keydown", (event) => {
  const cell = event.target.closest && event.target.closest("a.cell");
  if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
  const moves = {
    ArrowLeft: cell.previousElementSibling,
    ArrowRight: cell.nextElementSibling,
    Home: cell.parentElement.firstElementChild,
    End: cell.parentElement.lastElementChild,
  };
  if (!(event.key in moves)) return;
  event.preventDefault();
  if (moves[event.key]) moves[event.key].focus();
});

document.addEventListener("click", (event) => {
  const anchor = event.target.closest && event.target.closest("a[href]");
  if (anchor && !event.defaultPrevented && !event.ctrlKey && !event.metaKey && anchor.target !== "_blank") {
    document.body.classList.add("loading");
  }
});
document.addEventListener("submit", () => document.body.classList.add("loading"));
window.addEventListener("pageshow", () => document.body.classList.remove("loading"));

prepare(document);
document.addEventListener("visibilitychange", refresh);
(function again() {
  setTimeout(async () => { await refresh(); again(); }, waitMs * Math.min(8, 1 + failures));
})();
