// Streamlit adds an entry to the history when a page first writes its parameters, and one without parameters when it is
// left, so that Back would need three presses. The first write replaces its entry; clearing waits for the next page.
if (!window.attnbenchHistory) {
  window.attnbenchHistory = true;
  const push = history.pushState.bind(history), replace = history.replaceState.bind(history);
  let clearing;
  history.pushState = (state, title, url) => {
    clearTimeout(clearing);
    const next = new URL(url ?? "", location.href), same = next.pathname === location.pathname;
    if (same && location.search && !next.search) {
      clearing = setTimeout(() => replace(state, title, url), 4000);
      return undefined;
    }
    return (same && !location.search ? replace : push)(state, title, url);
  };
}
