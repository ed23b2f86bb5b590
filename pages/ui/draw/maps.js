// Draws maps of cells as tables (the data: pages/ui/draw/maps.py). Mouse, arrow keys and screen readers reach every cell.
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const ROOMY = 4; // columns whose cells have room for a second line

export default function ({ data, parentElement, setTriggerValue }) {
  const old = parentElement.querySelector(".maps");
  const focused = parentElement.activeElement?.dataset.place;
  const maps = make("div", { className: "maps" });
  const note = make("div", { className: "note", hidden: true, ariaHidden: "true" });
  if (data.legend.length || data.marks.length) maps.append(legend(data.legend, data.marks));
  const facets = data.facets.map(facet => table(facet, data));
  const whole = make("div", { className: data.named ? "facets named" : "facets" }, facets);
  whole.style.setProperty("--columns", data.columns.length);
  maps.append(whole, note);
  if (data.scale) maps.append(scale(data.scale));
  old ? old.replaceWith(maps) : parentElement.append(maps);
  const again = focused && [...maps.querySelectorAll("button")].find(cell => cell.dataset.place === focused);
  again?.focus({ preventScroll: true });
  takeBack(maps, data.selected);

  const point = event => tell(note, maps, event.target.closest("[data-note]"));
  for (const kind of ["mouseover", "focusin"]) maps.addEventListener(kind, point);
  for (const kind of ["mouseleave", "focusout"]) maps.addEventListener(kind, () => tell(note, maps, null));
  maps.addEventListener("keydown", event => move(event));
  maps.addEventListener("click", event => {
    const place = event.target.closest("button")?.dataset.place;
    if (place) setTriggerValue("cell", place);
  });
}

// The panel of a cell was closed: the cell it was about has the focus again.
function takeBack(maps, selected) {
  const closed = document.documentElement.dataset.cellClosed;
  if (!closed || selected) return;
  delete document.documentElement.dataset.cellClosed;
  [...maps.querySelectorAll("button")].find(cell => cell.dataset.place === closed)?.focus();
}

function make(name, properties = {}, children = []) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

function table(facet, { corner, rows, columns, selectable, selected }) {
  const top = [make("th", { className: "corner", scope: "col", textContent: corner })];
  top.push(...columns.map(name => make("th", { scope: "col", textContent: name })));
  const body = facet.cells.map((line, y) => {
    const first = make("th", { scope: "row", textContent: rows[y] });
    return make("tr", {}, [first, ...line.map(one => make("td", {}, [cell(one, selectable, selected)]))]);
  });
  const caption = make("caption", { textContent: facet.title });
  const whole = [caption, make("thead", {}, [make("tr", {}, top)]), make("tbody", {}, body)];
  const drawn = make("table", { ariaLabel: facet.alt, className: columns.length <= ROOMY ? "roomy" : "" }, whole);
  const stop = drawn.querySelector("button[aria-pressed=true]") ?? drawn.querySelector("button");
  if (stop) stop.tabIndex = 0; // one stop of the Tab key a table; arrows lead on from there
  return make("div", { className: "facet" }, [drawn]);
}

function cell({ text, below, known, hatched, colour, ink, note, place }, selectable, selected) {
  const able = selectable && place;
  const className = ["cell", known ? "" : "words", hatched ? "hatched" : ""].join(" ");
  const element = make(able ? "button" : "span", { className, textContent: text, lang: "en" });
  if (below) element.append(make("small", { textContent: below }));
  Object.assign(element.style, { backgroundColor: colour, color: ink });
  element.dataset.note = note.join("\n");
  if (able) {
    Object.assign(element, { type: "button", tabIndex: -1, ariaLabel: `${[text, below].filter(Boolean).join(", ")}; ${note.join("; ")}` });
    element.ariaPressed = String(place === selected);
    element.dataset.place = place;
  }
  return element;
}

function legend(entries, marks) {
  const items = entries.map(([name, colour]) => {
    const square = make("span", { className: "square" });
    square.style.backgroundColor = colour;
    return make("li", {}, [square, name]);
  });
  for (const [mark, meaning] of marks) {
    items.push(make("li", {}, [make("strong", { textContent: mark }), meaning]));
  }
  return make("ul", { className: "legend", ariaLabel: "Colours and marks" }, items);
}

function scale({ colours, ticks, name }) {
  const bar = make("div", { className: "bar" });
  bar.style.background = `linear-gradient(to right, ${colours.join(", ")})`;
  const parts = [bar, make("div", { className: "ticks" }, ticks.map(spanned))];
  return make("div", { className: "scale" }, name ? [make("div", { textContent: name }), ...parts] : parts);
}

function spanned(text) {
  return make("span", { textContent: text });
}

function move(event) {
  const from = event.target.closest("button");
  const step = MOVES[event.key];
  if (!from || !step) return;
  event.preventDefault();
  const row = from.closest("tr"), column = [...row.cells].indexOf(from.parentElement);
  const lines = row.parentElement.rows;
  let [y, x] = [[...lines].indexOf(row) + step[0], column + step[1]];
  while (lines[y]?.cells[x] && !lines[y].cells[x].querySelector("button")) (y += step[0]), (x += step[1]);
  const to = lines[y]?.cells[x]?.querySelector("button");
  if (!to) return;
  from.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}

function tell(note, maps, target) {
  note.hidden = !target;
  if (!target) return;
  note.textContent = target.dataset.note;
  const around = maps.getBoundingClientRect(), at = target.getBoundingClientRect();
  const most = around.width - note.offsetWidth;
  note.style.left = `${Math.max(0, Math.min(at.left - around.left, most))}px`;
  const below = at.bottom + 4 + note.offsetHeight <= window.innerHeight;
  note.style.top = `${(below ? at.bottom + 4 : at.top - 4 - note.offsetHeight) - around.top}px`;
}
