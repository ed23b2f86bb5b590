// The head of the panel of a chosen cell: takes the focus when a cell is chosen, and gives it back when it is closed.
export default function ({ data, parentElement, setTriggerValue }) {
  const heading = parentElement.querySelector("h3");
  const panel = (parentElement.host ?? parentElement).closest(".st-key-cell_panel");
  const close = () => {
    document.documentElement.dataset.cellClosed = data.title; // the map looks for it: pages/ui/draw/maps.js
    setTriggerValue("close", data.title);
  };
  parentElement.querySelector("button").onclick = close;
  panel.onkeydown = event => {
    if (event.key === "Escape" && !event.defaultPrevented) close();
  };
  if (heading.textContent === data.title) return; // drawn again, and the reader may be elsewhere
  heading.textContent = data.title;
  heading.focus({ preventScroll: true });
  const { top, bottom } = heading.getBoundingClientRect();
  if (top < 0 || bottom > window.innerHeight) panel.scrollIntoView({ block: "start" });
}
