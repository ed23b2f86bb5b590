() => {
  const app = document.querySelector('[data-testid=stApp]');
  window.took = new Promise((done, fail) => {
    setTimeout(() => fail('The page did not run.'), 60000);
    let start = null, quiet = null;
    const begin = () => { start ??= performance.now() };
    const look = () => {  // the end is the paint after the last change, once nothing follows for a while
      clearTimeout(quiet);
      if (start === null || app.getAttribute('data-test-script-state') !== 'notRunning') return;
      let painted = null;
      requestAnimationFrame(() => requestAnimationFrame(() => { painted = performance.now() }));
      quiet = setTimeout(() => {
        watcher.disconnect();
        done((painted ?? performance.now()) - start);
      }, 400);
    };
    const watcher = new MutationObserver(look);
    // A page may be through before its state can be seen; there what changed in it says so, in maps of cells too.
    const page = document.querySelector('[data-testid=stMain]');
    const shadows = [...page.querySelectorAll('.stBidiComponent *')].map(one => one.shadowRoot).filter(Boolean);
    for (const root of [page, ...shadows])
      watcher.observe(root, {childList: true, subtree: true, characterData: true});
    watcher.observe(app, {attributes: true, attributeFilter: ['data-test-script-state']});
    for (const text of document.querySelectorAll('[data-testid=stText] *'))
      watcher.observe(text, {characterData: true, subtree: true, childList: true});
    document.addEventListener('click', begin, {capture: true, once: true});
  });
}
