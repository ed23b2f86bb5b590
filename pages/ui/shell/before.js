// Runs before Streamlit's scripts. The page connects without asking for the server's settings first, and obeys no page of
// another origin; otherwise it compares each of its own messages with sixteen hosts of Streamlit's cloud.
window.__streamlit = { BACKEND_BASE_URL: new URL(".", location).href,
  HOST_CONFIG: { allowedOrigins: ["https://nobody.invalid"], useExternalAuthToken: false } };
// One entry of the history for each act of the user. Streamlit adds several: when a page first writes its parameters,
// when it is left (without parameters), and in a busy browser for the parameters of the next page before its path.
// After Back or Forward the address stays until the user acts, because the run of the page that was left may write on.
{
  const push = history.pushState.bind(history), replace = history.replaceState.bind(history);
  let restored = false, added = true;  // by Back or Forward; by a page. Both since the user last acted
  const acted = () => { restored = added = false; };
  for (const act of ["pointerdown", "keydown", "click"]) addEventListener(act, acted, true);
  addEventListener("popstate", () => { restored = true; }, true);
  history.replaceState = (...entry) => restored || replace(...entry);
  history.pushState = (state, title, url) => {
    const next = new URL(url ?? "", location.href);
    if (restored || (next.pathname === location.pathname && location.search && !next.search)) return;
    (added ? replace : push)(state, title, url);
    added = true;
  };
}
// Streamlit draws an open popover at the end of the document; the Tab key goes there from the button that opened it.
addEventListener("keydown", (event) => {
  const opened = event.target.matches?.('[data-testid="stPopoverButton"][aria-expanded="true"]');
  if (!opened || event.key !== "Tab" || event.shiftKey) return;
  const inside = document.querySelector('[data-testid="stPopoverBody"]');
  const first = inside?.querySelector("input:checked") ?? inside?.querySelector("input, button, textarea");
  if (!first) return;
  first.focus();
  event.preventDefault();
}, true);
