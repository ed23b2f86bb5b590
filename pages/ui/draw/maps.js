// Draws maps of cells as tables from the data of pages/ui/draw/maps.py, and saves them as PNG.
// The mouse, the arrow keys and screen readers reach every cell.
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const ROOMY = 4; // a map of up to so many columns has room for a second line in its cells
const PAINTED = ".legend li, .square, caption, th, .cell, .scale > div, .ticks span";
const LINE = 18; // pixels of a line of a picture's title

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
  if (data.picture) maps.append(pictureButton(maps, data.picture));
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

// When the panel of a cell is closed, the cell gets the focus back.
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
  bar.dataset.colours = colours.join(",");
  bar.style.background = `linear-gradient(to right, ${colours.join(", ")})`;
  const parts = [bar, make("div", { className: "ticks" }, ticks.map(spanned))];
  return make("div", { className: "scale" }, name ? [make("div", { textContent: name }), ...parts] : parts);
}

function spanned(text) {
  return make("span", { textContent: text });
}

function move(event) {
  const from = event.target.closest("td button");
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

function pictureButton(maps, picture) {
  const button = make("button", { type: "button", className: "save", textContent: "Save as PNG" });
  button.addEventListener("click", () => {
    paint(maps, picture).toBlob(blob => {
      const link = make("a", { href: URL.createObjectURL(blob), download: `${picture.file}.png` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  });
  return button;
}

// Paints the title, then every drawn box and word of the maps at its place.
function paint(maps, { lines, bold }) {
  const around = maps.getBoundingClientRect(), top = LINE * (lines.length + 1), margin = 12;
  const boxes = [...maps.querySelectorAll(PAINTED)].map(element => [element, element.getBoundingClientRect()]);
  const right = Math.max(...boxes.map(([, box]) => box.right)) - around.left;
  const bottom = Math.max(...boxes.map(([, box]) => box.bottom)) - around.top;
  const canvas = make("canvas", { width: 2 * (Math.max(right, 480) + 2 * margin), height: 2 * (bottom + top + margin) });
  const paper = canvas.getContext("2d"), style = getComputedStyle(maps);
  paper.scale(2, 2);
  paper.fillStyle = style.getPropertyValue("--st-background-color") || "white";
  paper.fillRect(0, 0, canvas.width, canvas.height);
  paper.fillStyle = style.color;
  lines.forEach((line, at) => {
    paper.font = `${at < bold ? "600 14px" : "11px"} ${style.fontFamily}`;
    paper.fillText(line, margin, LINE * (at + 1));
  });
  paper.translate(margin - around.left, top - around.top);
  for (const [element, box] of boxes) paintBox(paper, element, box);
  return canvas;
}

function paintBox(paper, element, box) {
  const style = getComputedStyle(element);
  paper.fillStyle = style.backgroundColor;
  if (element.matches(".bar")) {
    paper.fillStyle = paper.createLinearGradient(box.left, 0, box.right, 0);
    const colours = element.dataset.colours.split(",");
    colours.forEach((colour, at) => paper.fillStyle.addColorStop(at / (colours.length - 1), colour));
  }
  paper.fillRect(box.left, box.top, box.width, box.height);
  if (element.matches(".ticks")) return; // its parts are painted one by one
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), range = document.createRange();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const own = getComputedStyle(node.parentElement);
    paper.fillStyle = own.color;
    paper.font = `${own.fontWeight} ${own.fontSize} ${own.fontFamily}`;
    paper.textBaseline = "middle";
    for (const word of node.data.matchAll(/\S+/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const [at] = range.getClientRects();
      if (at) paper.fillText(word[0], at.left, at.top + at.height / 2, at.width);
    }
  }
}
