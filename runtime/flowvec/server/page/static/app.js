// The page: its tabs, the collection that they share, and the API key.
import { html, render, useCallback, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ask, key, server } from "./api.js";
import { Empty, KeyDialog, Problem } from "./parts.js";
import { Search } from "./search.js";
import { shown } from "./text.js";

// Tabs other than the first are loaded when they are opened.
const TABS = [
  ["search", "Search", async () => Search],
  ["map", "Map", async () => (await import("./map.js")).Map],
  ["live", "Live", async () => (await import("./live.js")).Live],
  ["space", "Space", async () => (await import("./space.js")).Space],
];

const tabOfAddress = () => {
  const name = location.hash.slice(1);
  return TABS.some(([id]) => id === name) ? name : "search";
};

function Tabs({ chosen, onChoose }) {
  const list = useRef(null);
  const move = (event) => {
    const at = TABS.findIndex(([id]) => id === chosen);
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -at, End: TABS.length - 1 - at }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const next = (at + step + TABS.length) % TABS.length;
    onChoose(TABS[next][0]);
    list.current.children[next].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label="Views" ref=${list} onKeyDown=${move}>
    ${TABS.map(([id, name]) => html`<button type="button" role="tab" id=${`tab-${id}`}
      aria-selected=${id === chosen} aria-controls="panel" tabindex=${id === chosen ? 0 : -1}
      onClick=${() => onChoose(id)}>${name}</button>`)}
  </div>`;
}

function App() {
  const [tab, setTab] = useState(tabOfAddress());
  const [loaded, setLoaded] = useState({ tab: "search", View: Search });
  const View = loaded.tab === tab ? loaded.View : null;
  const [state, setState] = useState({ collections: null, models: [], error: null });
  const [name, setName] = useState("");
  const [asksKey, setAsksKey] = useState(server.needsKey && !key.get());
  const [isRefused, setIsRefused] = useState(false);
  const [epoch, setEpoch] = useState(0); // rises with a new key, so that views begin again
  const shared = useRef({ hits: [], query: "" }); // hits that the map lights up

  const load = useCallback(async () => {
    if (server.needsKey && !key.get()) return;
    try {
      const [collections, models] = await Promise.all([ask("v1/collections"), ask("v1/models")]);
      const listed = collections.value.data;
      setState({ collections: listed, models: models.value.data, error: null });
      setName((old) => (listed.some((each) => each.id === old) ? old : listed[0]?.id ?? ""));
    } catch (error) {
      setState((old) => ({ ...old, error }));
    }
  }, []);
  useEffect(() => { load(); }, [epoch]);
  useEffect(() => key.onRefused(() => { setIsRefused(Boolean(key.get())); setAsksKey(true); }), []);
  useEffect(() => {
    const follow = () => setTab(tabOfAddress());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  useEffect(() => {
    let isLeft = false;
    document.title = `${TABS.find(([id]) => id === tab)[1]} · flowvec`;
    TABS.find(([id]) => id === tab)[2]().then(
      (view) => isLeft || setLoaded({ tab, View: view }),
      (error) => isLeft || setState((old) => ({ ...old, error })),
    );
    return () => { isLeft = true; };
  }, [tab]);

  const choose = (id) => { history.replaceState(null, "", `#${id}`); setTab(id); };
  const saveKey = (value) => { key.set(value); setIsRefused(false); setEpoch((n) => n + 1); };
  const collection = state.collections?.find((each) => each.id === name);
  const needsCollection = tab !== "live";

  let body;
  if (server.needsKey && !key.get()) {
    body = html`<${Empty} title="An API key is needed">
      <p>This server answers only callers with a key.</p>
      <button type="button" class="primary" onClick=${() => setAsksKey(true)}>Enter a key</button><//>`;
  } else if (state.error) {
    body = html`<${Problem} error=${state.error} onRetry=${load} />`;
  } else if (!state.collections || !View) {
    body = html`<p class="quiet" role="status">Loading.</p>`;
  } else if (needsCollection && !collection) {
    body = html`<${Empty} title="There is no collection yet">
      <p>This page searches and maps collections. Serve one with:</p>
      <pre><code>flowvec serve mini --collection notes=./notes</code></pre>
      <p>or look at one that comes along:</p>
      <pre><code>flowvec serve --demo</code></pre><//>`;
  } else {
    body = html`<${View} key=${`${tab} ${name} ${epoch}`} collection=${collection}
      models=${state.models} shared=${shared.current} onTab=${choose} />`;
  }
  return html`
    <a class="skip" href="#panel" onClick=${(e) => { e.preventDefault(); document.getElementById("panel").focus(); }}>
      Skip to content</a>
    <header>
      <span class="brand" aria-label="flowvec">flow<b>vec</b></span>
      <${Tabs} chosen=${tab} onChoose=${choose} />
      <div class="aside">
        ${state.collections?.length && needsCollection ? html`<label class="compact"><span>Collection</span>
          <select value=${name} onChange=${(e) => setName(e.target.value)}>
            ${state.collections.map((each) => html`<option value=${each.id}>${shown(each.id, 64)}</option>`)}
          </select></label>` : null}
        ${server.needsKey ? html`<button type="button" onClick=${() => setAsksKey(true)}>API key</button>` : null}
      </div>
    </header>
    <main id="panel" role="tabpanel" tabindex="-1" aria-labelledby=${`tab-${tab}`}>${body}</main>
    ${asksKey ? html`<${KeyDialog} isRefused=${isRefused} onClose=${() => setAsksKey(false)} onSave=${saveKey} />` : null}`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
