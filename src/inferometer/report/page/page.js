"use strict";
const tip = document.getElementById("tip");
const told = new WeakMap();
// The page says it in place of the browser, at once and also where fingers point; without a script the browser still does.
for (const title of document.querySelectorAll("svg title")) {
  const of = title.closest("g[data-name]");
  told.set(title.parentElement, (of ? of.dataset.name + ", " : "") + title.textContent);
}
// A finger is wider than a mark: the nearest one within reach is meant.
const REACH = 16;
const spots = new WeakMap();
function middle(mark) {
  const of = (name) => Number(mark.getAttribute(name));
  return mark.tagName === "circle" ? [of("cx"), of("cy")] : [of("x") + of("width") / 2, of("y") + of("height") / 2];
}
function spotsOf(svg) {
  if (!spots.has(svg)) spots.set(svg, [...svg.querySelectorAll("circle, .d")].map((mark) => [mark, ...middle(mark)]));
  return spots.get(svg);
}
function nearest(svg, event) {
  const box = svg.getBoundingClientRect();
  const scale = svg.viewBox.baseVal.width / box.width;
  const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  let [found, least] = [null, REACH * scale];
  for (const [mark, cx, cy] of spotsOf(svg)) {
    const away = Math.hypot(cx - x, cy - y);
    if (away < least) [found, least] = [mark, away];
  }
  return found;
}
function marked(event) {
  const svg = event.target instanceof Element ? event.target.closest("figure svg") : null;
  if (!svg) return null;
  let at = event.target;
  while (at !== svg && !told.has(at)) at = at.parentElement;
  return at === svg ? nearest(svg, event) : at;
}
function show(event) {
  const at = marked(event);
  if (!at) { tip.hidden = true; return; }
  const title = at.querySelector(":scope > title");
  if (title) {
    at.setAttribute("aria-label", told.get(at));
    title.remove();
  }
  tip.textContent = told.get(at);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(Math.max(event.clientX - box.width / 2, 6), innerWidth - box.width - 6);
  const above = event.clientY - box.height - 14;
  tip.style.left = left + "px";
  tip.style.top = (above > 4 ? above : event.clientY + 18) + "px";
}
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

const cases = document.getElementById("cases");
function tabular() {
  const body = cases.tBodies[0];
  const rows = [...body.rows];
  const heads = [...cases.tHead.rows[0].cells];
  function value(row, column, numeric) {
    const text = row.cells[column].textContent;
    if (text === "-") return null;
    if (!numeric) return text.toLowerCase();
    const number = parseFloat(text);
    return Number.isNaN(number) ? null : number;
  }
  function sort(column) {
    const numeric = heads[column].classList.contains("n");
    const down = heads[column].getAttribute("aria-sort") === "ascending";
    heads.forEach((head, place) => {
      if (place === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const keyed = rows.map((row, place) => [value(row, column, numeric), place, row]);
    keyed.sort(([a, i], [b, j]) => {
      // What is unknown stands last in both directions.
      if (a === null || b === null) return (a === null) - (b === null) || i - j;
      const order = a < b ? -1 : a > b ? 1 : 0;
      return (down ? -order : order) || i - j;
    });
    body.append(...keyed.map((each) => each[2]));
  }
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => sort(column)));

  const wanted = document.getElementById("filter");
  const status = document.getElementById("status");
  const texts = rows.map((row) => [...row.cells].map((cell) => cell.textContent.toLowerCase()).join(" "));
  function filter() {
    const words = wanted.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      const kept = words.every((word) => texts[place].includes(word)) && (!status.value || row.cells[4].textContent === status.value);
      row.hidden = !kept;
      shown += kept;
    });
    document.getElementById("shown").textContent = shown + " of " + rows.length + " cases";
  }
  wanted.addEventListener("input", filter);
  status.addEventListener("change", filter);
  wanted.form.addEventListener("submit", (event) => event.preventDefault());
}
if (cases) tabular();
