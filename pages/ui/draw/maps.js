// Draws maps of cells as tables from the data of pages/ui/draw/maps.py, and saves them as PNG.
// The mouse, the arrow keys and screen readers reach every cell.
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const ROOMY = 4; // a map of up to so many columns has room for a second line in its cells
const PAINTED = ".legend li, .square, caption, th, .cell, .scale > div, .ticks span";
const LINE = 18; // pixels of a line of a picture's title

export default function draw(component) {
  const { data, parentElement, setTriggerValue } = component;
  const hidden = (parentElement.hiddenNames ??= new Set());
  const old = parentElement.querySelector(".maps");
  const { place: at, name: of } = parentElement.activeElement?.dataset ?? {};
  const maps = make("div", { className: "maps" });
  const note = make("div", { className: "note", hidden: true, ariaHidden: "true" });
  const shown = data.facets.map(facet => ({ ...facet, cells: facet.cells.map(line => line.map(one => ranked(one, data.ranked, hidden))) }));
  const facets = shown.map(facet => table(facet, data));
  const firsts = new Set(shown.flatMap(facet => facet.cells.flat().map(one => one.first)));
  const press = name => (hidden.delete(name) || hidden.add(name), draw(component));
  if (data.legend.length || data.marks.length) maps.append(legend(data, hidden, firsts, press));
  const whole = make("div", { className: data.named ? "facets named" : "facets" }, facets);
  whole.classList.toggle("words", data.rows.some(row => row.length > 8));
  whole.style.setProperty("--columns", data.columns.length);
  maps.append(whole, note);
  if (data.scale) maps.append(scale(data.scale));
  if (data.picture) maps.append(pictureButton(maps, data.picture));
  old ? old.replaceWith(maps) : parentElement.append(maps);
  const again = ({ dataset: { place, name } }) => (at && place === at) || (of && name === of);
  [...maps.querySelectorAll("button")].find(again)?.focus({ preventScroll: true });
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
    const first = make("th", { scope: "row" }, rows[y].split(/(?<=_)/).flatMap(part => [part, make("wbr")]));
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

// Ranks a cell again by the medians of the implementations that are not hidden.
function ranked(one, known, hidden) {
  if (!one.order || !hidden.size) return one;
  const left = one.order.filter(([name]) => !hidden.has(name)), [first, next] = left;
  if ([0, 1].every(at => left[at] === one.order[at])) return one;
  const note = [one.note[0], "Order of the medians of what is shown, without a test of certainty"];
  if (!first) return { ...one, note, text: "hidden", below: "", hatched: false, colour: "transparent", ink: "inherit" };
  const lead = next ? next[1] / first[1] : 1;
  const share = known.palest + (1 - known.palest) * Math.min(1, Math.log(lead) / Math.log(known.full_margin));
  const colour = `color-mix(in srgb, ${known.names[first[0]][1]} ${100 * share}%, var(--st-background-color))`;
  const digits = lead < 9.995 ? 2 : lead < 99.95 ? 1 : 0;
  const below = next ? `${lead.toFixed(digits)}× ${known.names[next[0]][0]}` : "";
  return { ...one, note, colour, below, text: known.names[first[0]][0], first: first[0], hatched: false };
}

function legend({ legend: entries, marks, ranked: known }, hidden, firsts, press) {
  const more = Object.entries(known.names).filter(([name]) => hidden.has(name) || firsts.has(name));
  const all = new Map([...entries, ...more.map(([name, [, colour]]) => [name, colour])]);
  const items = [...all].map(([name, colour]) => {
    const square = make("span", { className: "square" });
    square.style.backgroundColor = colour;
    if (!(name in known.names)) return make("li", {}, [square, name]);
    const ariaPressed = String(!hidden.has(name)), title = "Show or hide; the others are ranked again";
    const button = make("button", { type: "button", ariaPressed, title, onclick: () => press(name) }, [square, name]);
    button.dataset.name = name;
    return make("li", {}, [button]);
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
