// The search tab.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ask, collectionPath, Failure, server } from "./api.js";
import { FilterBuilder, filterOf } from "./filter.js";
import { Hit } from "./hit.js";
import { CopyDialog, Empty, Problem } from "./parts.js";
import { asCurl, asPython } from "./snippets.js";
import { count, duration, shown } from "./text.js";
import { Writing } from "./writing.js";

// Characters of a hit's text that the page asks for.
export const TEXT_LIMIT = 4000;
const TYPING = 250;
const STAGES = {
  queue: "waiting", tokenize: "tokenizing", compute: "embedding", search: "searching", rerank: "reranking",
};

const hitsOf = (found) => `${count(found)} ${found === 1 ? "hit" : "hits"}`;

// Why a search found nothing.
function nothing(body, isBySparse) {
  if (body.filter) return ["No row meets the filter", "Loosen or remove a condition."];
  if (isBySparse) return ["No row shares a term with this", "Use other words, or rank by meaning too."];
  if (body.vector_weight === 0) return ["No row has one of these words", "Move the slider towards meaning, or use other words."];
  return ["No hits", "This collection may have no rows yet."];
}

// What stands where hits will be.
function Start({ collection, info, onTab }) {
  if (info?.rows === 0) return html`<${Empty} title="This collection is empty"><p>A search finds rows as soon as it has some.</p><//>`;
  if (!collection.model) {
    return html`<${Empty} title="This collection has vectors only">
      <p>It has no model that could embed what you type. Programs search it by vector, and the map shows its rows.</p>
      <button type="button" onClick=${() => onTab("map")}>Show the map</button><//>`;
  }
  return html`<${Empty} title="What are you looking for?">
    <p>Type a word, a question or a sentence.<span class="by-keys"> Press <kbd>/</kbd> to come back to the box.</span></p><//>`;
}

function Stages({ stages, total, found }) {
  const shownStages = stages.filter(([name]) => STAGES[name]);
  const whole = shownStages.reduce((sum, [, ms]) => sum + ms, 0) || 1;
  const said = shownStages.map(([name, ms]) => `${STAGES[name]} ${duration(ms)}`).join(", ");
  return html`<div class="stages">
    <p>${hitsOf(found)} in <b>${duration(total)}</b></p>
    <div class="stagebar" aria-hidden="true">
      ${shownStages.map(([name, ms]) => html`<span class=${`stage ${name}`} style=${{ flexGrow: ms / whole }}></span>`)}
    </div>
    <ul class="legend" aria-label=${`Time of each stage: ${said}`}>
      ${shownStages.map(([name, ms]) => html`<li><i class=${`stage ${name}`}></i>${STAGES[name]} ${duration(ms)}</li>`)}
    </ul>
  </div>`;
}

// How hits are ranked where rows have sparse vectors, too.
const RANKINGS = { two: "words and meaning", sparse: "sparse vectors", three: "all three" };

function Options({ options, set, collection, rerankers, fields }) {
  const words = Math.round((1 - options.weight) * 100);
  const mix = options.weight === 1 ? "meaning alone" : options.weight === 0 ? "words alone"
    : `${words} % words, ${100 - words} % meaning`;
  const isAlone = options.ranking === "sparse";
  return html`<div class="options">
    ${collection.sparse_model ? html`<label class="compact"><span>Rank by</span>
      <select value=${options.ranking} onChange=${(e) => set({ ranking: e.target.value })}>
        ${Object.entries(RANKINGS).map(([value, name]) => html`<option value=${value}>${name}</option>`)}
      </select></label>` : null}
    ${collection.model && options.ranking === "two" ? html`<label class="slider"><span>Words or meaning</span> <b>${mix}</b>
      <span class="ends"><span aria-hidden="true">words</span>
      <input type="range" min="0" max="1" step="0.05" value=${options.weight} aria-valuetext=${mix}
        onInput=${(e) => set({ weight: Number(e.target.value) })} />
      <span aria-hidden="true">meaning</span></span></label>` : null}
    <label class="compact"><span>Hits</span>
      <select value=${options.k} onChange=${(e) => set({ k: Number(e.target.value) })}>
        ${[5, 10, 20, 50, 100].map((k) => html`<option value=${k}>${k}</option>`)}</select></label>
    ${isAlone ? null : rerankers.length ? html`<label class="compact"><span>Rerank</span>
      <select value=${options.rerank} onChange=${(e) => set({ rerank: e.target.value })}>
        <option value="">off</option>
        ${rerankers.map((each) => html`<option value=${each.id}>${shown(each.id, 40)}</option>`)}
      </select></label>` : html`<span class="quiet">No reranker is served.</span>`}
    ${isAlone ? null : html`<label class="check"><input type="checkbox" checked=${options.exact}
      onChange=${(e) => set({ exact: e.target.checked })} /> Compare every row (exact)</label>`}
    <${FilterBuilder} known=${fields} conditions=${options.conditions} joinedBy=${options.joinedBy}
      onChange=${(conditions, joinedBy) => set({ conditions, joinedBy })} />
  </div>`;
}

const isBySparse = (like, options) => !like && options.ranking === "sparse";

function bodyOf(query, like, options, fields, collection) {
  const body = like ? { vector: like.vector } : { query };
  body.k = options.k + (like ? 1 : 0);
  const filter = filterOf(options.conditions, options.joinedBy, fields);
  if (filter) body.filter = filter;
  if (isBySparse(like, options)) return body;
  if (!like && options.ranking === "three") body.hybrid = true;
  else if (!like && options.weight < 1) {
    Object.assign(body, { hybrid: true, vector_weight: options.weight });
    if (collection.sparse_model) body.sparse = false; // the words have the rest of the score
  }
  if (!like && options.rerank) Object.assign(body, { rerank: options.rerank, rerank_from: 50 });
  if (options.exact) body.exact = true;
  return body;
}

export function Search({ collection, models, shared, onTab }) {
  const path = collectionPath(collection.id);
  const [query, setQuery] = useState(shared.collection === collection.id ? shared.query : "");
  const [like, setLike] = useState(null);
  const [fields, setFields] = useState([]);
  const [info, setInfo] = useState(null);
  const [result, setResult] = useState(null);
  const [error, setError] = useState(null);
  const [isBusy, setIsBusy] = useState(false);
  const [copied, setCopied] = useState(null);
  const [options, setOptions] = useState({
    weight: collection.model ? 0.5 : 1, ranking: "two", k: 10, rerank: "", exact: false, conditions: [], joinedBy: "and",
  });
  const box = useRef(null);
  const likeLine = useRef(null);
  const running = useRef(null);
  const rerankers = models.filter((each) => ["reranker", "multi_vector"].includes(each.kind));

  useEffect(() => {
    ask(`${path}/fields`).then(({ value }) => setFields(value.fields), () => {});
    ask(path).then(({ value }) => setInfo(value), () => {});
    // Not from a tab that somebody chose by its key.
    if (document.activeElement === document.body && matchMedia("(pointer: fine)").matches) box.current?.focus();
    const slash = (event) => {
      if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
        event.preventDefault();
        box.current?.focus();
      }
    };
    addEventListener("keydown", slash);
    return () => { removeEventListener("keydown", slash); running.current?.abort(); };
  }, []);

  const body = bodyOf(query.trim(), like, options, fields, collection);
  const route = `${path}/${isBySparse(like, options) ? "search_sparse" : "search"}`;
  const isAsked = like || query.trim();
  const search = async () => {
    running.current?.abort();
    if (!isAsked) { setResult(null); setError(null); setIsBusy(false); return; }
    const own = new AbortController();
    running.current = own;
    setIsBusy(true);
    const began = performance.now();
    try {
      const { value, stages } = await ask(route, { ...body, text_limit: TEXT_LIMIT }, { signal: own.signal });
      const hits = like ? value.hits.filter((hit) => hit.id !== like.id).slice(0, options.k) : value.hits;
      setResult({ hits, stages, total: performance.now() - began, query: like ? "" : query });
      Object.assign(shared, { collection: collection.id, hits: hits.map((hit) => hit.id), query });
      setError(null);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      setError(problem);
    }
    if (running.current === own) setIsBusy(false);
  };
  const asked = route + JSON.stringify(body);
  useEffect(() => {
    const timer = setTimeout(search, TYPING);
    return () => clearTimeout(timer);
  }, [asked]);

  const more = async (hit) => {
    try {
      const { value } = await ask(`${path}/rows/get`, { ids: [hit.id], with_vectors: true, text_limit: 0 });
      if (!value.rows[0]) throw new Failure("This row is gone", "It was deleted since the search.");
      setLike({ id: hit.id, vector: value.rows[0].vector, title: hit.text ?? String(hit.id) });
      scrollTo({ top: 0 });
    } catch (problem) {
      setError(problem);
    }
  };
  // Keys go on from there, and a screen reader says whose likes these are.
  useEffect(() => { likeLine.current?.focus({ preventScroll: true }); }, [like]);
  const copy = (kind, made) => setCopied({ title: `This search, as ${kind}`, text: made(route, body, server.needsKey) });

  return html`<div class="search">
    <form class="searchbar" role="search" onSubmit=${(e) => { e.preventDefault(); search(); }}>
      <input ref=${box} type="search" value=${query} aria-label="Search" disabled=${!collection.model} maxlength="20000" autocomplete="off"
        placeholder=${collection.model ? "Search the texts" : "Vectors only"}
        onInput=${(e) => { setLike(null); setQuery(e.target.value); }} />
      <button class="primary" disabled=${!collection.model}>Search</button>
    </form>
    <p class="unseen" role="status">${isBusy ? "Searching" : result && !error ? hitsOf(result.hits.length) : ""}</p>
    <div class="columns">
      <details class="side" open=${matchMedia("(min-width: 60rem)").matches}>
        <summary>Options</summary>
        <${Options} options=${options} set=${(some) => setOptions((old) => ({ ...old, ...some }))}
          collection=${collection} rerankers=${rerankers} fields=${fields} />
        ${info ? html`<p class="quiet">${count(info.rows)} ${info.rows === 1 ? "row" : "rows"} of ${info.dim} dimensions${collection.model
          ? html`, embedded by <bdi>${shown(collection.model, 60)}</bdi>` : ""},
          ${` searched ${{exact: "exactly", scan: "by a scan of codes", graph: "by a graph"}[info.search]}.`}</p>` : null}
      </details>
      <section class="results" aria-label="Hits" aria-busy=${isBusy}>
        ${like ? html`<p class="like" ref=${likeLine} tabindex="-1">Rows like <bdi class="chip">${shown(like.title, 80)}</bdi>
          <button type="button" class="small" onClick=${() => setLike(null)}>Back to the search</button></p>` : null}
        <${Problem} error=${error} onRetry=${search} />
        ${result && !error ? html`<div class="head">
          <${Stages} stages=${result.stages} total=${result.total} found=${result.hits.length} />
          <div class="row end">
            <button type="button" class="small" onClick=${() => onTab("map")}>Show on the map</button>
            <button type="button" class="small" onClick=${() => copy("a curl command", asCurl)}>Copy as curl</button>
            <button type="button" class="small" onClick=${() => copy("a Python program", asPython)}>Copy as Python</button>
          </div></div>` : null}
        ${result && !result.hits.length && !error ? html`<${Empty} title=${nothing(body, isBySparse(like, options))[0]}>
          <p>${nothing(body, isBySparse(like, options))[1]}</p><//>` : null}
        ${!result && !error ? isBusy ? html`<${Empty} title="Searching" />`
          : html`<${Start} collection=${collection} info=${info} onTab=${onTab} />` : null}
        ${result && !error ? html`<ol class="hits">${result.hits.map((hit, i) => html`<${Hit} key=${typeof hit.id + hit.id}
          hit=${hit} rank=${i + 1} query=${result.query} isHybrid=${hit.word_score !== undefined}
          best=${result.hits[0].score} path=${path} onMore=${() => more(hit)} onDeleted=${search} />`)}</ol>` : null}
      </section>
    </div>
    ${server.mayWrite && collection.model ? html`<${Writing} path=${path} onAdded=${search} />` : null}
    ${copied ? html`<${CopyDialog} ...${copied} onClose=${() => setCopied(null)} />` : null}
  </div>`;
}
