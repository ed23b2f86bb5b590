// One entry of the history for each view. Streamlit adds one when a page first writes its parameters, and one without
// parameters when it is left; a busy browser writes the parameters of the next page before its path. After Back or
// Forward the address stays until the user acts, because the run of the page that was left may still write its own.
if (!window.attnbenchHistory) {
  window.attnbenchHistory = true;
  const push = history.pushState.bind(history), replace = history.replaceState.bind(history);
  let restored = false, added = false;  // since the user last acted: by Back or Forward; an entry with the same path
  const acted = () => { restored = added = false; };
  for (const act of ["pointerdown", "keydown", "click"]) addEventListener(act, acted, true);
  addEventListener("popstate", () => { restored = true; }, true);
  history.replaceState = (...entry) => restored || replace(...entry);
  history.pushState = (state, title, url) => {
    const next = new URL(url ?? "", location.href), same = next.pathname === location.pathname;
    if (restored || (same && location.search && !next.search)) return;
    const instead = same ? !location.search : added;
    (instead ? replace : push)(state, title, url);
    added = same && !instead;
  };
}
