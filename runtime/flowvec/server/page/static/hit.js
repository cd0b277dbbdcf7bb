// One hit of a search.
import { html, useState } from "./vendor/htm-preact.js";
import { ask, server } from "./api.js";
import { Isolated, marked, shown, visible } from "./text.js";

const FIRST = 420;
const MOST_FIELDS = 40;

// A bar of the score: with shares of words, sparse vectors and meaning, unless a reranker gave it.
function Score({ hit, best, isHybrid }) {
  const isReranked = hit.search_rank !== undefined;
  const first = hit.search_score ?? hit.score;
  const span = Math.max(Math.abs(best), Math.abs(hit.score), 1e-9);
  const width = Math.max(0, Math.min(1, hit.score / span));
  const share = (part) => (isHybrid && first > 0 ? Math.max(0, Math.min(1, part / first)) : 0);
  const bySparse = hit.sparse_score ?? 0;
  const words = share(hit.word_score), sparse = Math.min(share(bySparse), 1 - words);
  const before = isReranked ? "before reranking: " : "";
  const percent = (part) => `${Math.round(part * 100)} %`;
  const ofSparse = hit.sparse_score === undefined ? "" : ` and ${percent(sparse)} from sparse vectors`;
  const said = isHybrid ? `score ${hit.score.toFixed(3)}; of the search's score, ${percent(words)} came from words${ofSparse}`
    : `score ${hit.score.toFixed(3)}`;
  return html`<div class="score" title=${said}>
    <b>${hit.score.toFixed(3)}</b>
    <span class="bar" role="img" aria-label=${said}>
      ${isReranked ? html`<span class="rerank" style=${{ width: `${width * 100}%` }}></span>` : html`
        <span class="words" style=${{ width: `${width * words * 100}%` }}></span>
        <span class="sparse" style=${{ width: `${width * sparse * 100}%` }}></span>
        <span class="meaning" style=${{ width: `${width * (1 - words - sparse) * 100}%` }}></span>`}
    </span>
    ${isHybrid ? html`<span class="quiet">${before}words ${hit.word_score.toFixed(2)} ·${
      hit.sparse_score === undefined ? "" : ` sparse ${bySparse.toFixed(2)} ·`} meaning ${(first - hit.word_score - bySparse).toFixed(2)}</span>` : null}
  </div>`;
}

function Moved({ rank, before, score }) {
  if (before === undefined) return null;
  const said = before === rank ? `stayed at ${rank}` : `was ${before}, is ${rank}`;
  const sign = before === rank ? "=" : before > rank ? "▲" : "▼";
  return html`<span class=${`moved ${before > rank ? "up" : before < rank ? "down" : ""}`}
    title=${`Before reranking: place ${before}, score ${score.toFixed(3)}`}>
    <span aria-hidden="true">${sign} </span>${said}</span>`;
}

function Metadata({ metadata }) {
  const entries = Object.entries(metadata ?? {});
  if (!entries.length) return null;
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  return html`<dl class="metadata">${entries.slice(0, MOST_FIELDS).map(([name, value]) => html`<div>
    <dt><bdi>${shown(name, 60)}</bdi></dt><dd><bdi>${shown(text(value), 200)}</bdi></dd></div>`)}
    ${entries.length > MOST_FIELDS ? html`<div class="quiet">and ${entries.length - MOST_FIELDS} more fields</div>` : null}
  </dl>`;
}

export function Hit({ hit, rank, query, best, isHybrid, path, onMore, onDeleted }) {
  const [isOpen, setIsOpen] = useState(false);
  const [isSure, setIsSure] = useState(false);
  const [problem, setProblem] = useState("");
  const text = hit.text ?? "";
  const part = isOpen || text.length <= FIRST ? visible(text) : shown(text, FIRST);
  const remove = async () => {
    if (!isSure) { setIsSure(true); return; }
    try {
      await ask(`${path}/rows/delete`, { ids: [hit.id] });
      onDeleted();
    } catch (error) {
      setProblem(error.detail || error.title);
    }
  };
  return html`<li class="hit">
    <div class="line">
      <span class="rank" aria-label=${`Hit ${rank}`}>${rank}</span>
      <bdi class="id" title="id">${shown(hit.id, 80)}</bdi>
      <${Moved} rank=${rank} before=${hit.search_rank} score=${hit.search_score ?? 0} />
      <${Score} hit=${hit} best=${best} isHybrid=${isHybrid} />
    </div>
    ${hit.text === null ? html`<p class="quiet">This row has no text.</p>`
      : html`<${Isolated} as="p" class="text">${marked(part, query)}<//>`}
    ${isOpen && hit.is_cut ? html`<p class="quiet">The rest is not shown: the row is very long.</p>` : null}
    <${Metadata} metadata=${hit.metadata} />
    <div class="row">
      ${text.length > FIRST ? html`<button type="button" class="small" aria-expanded=${isOpen}
        onClick=${() => setIsOpen(!isOpen)}>${isOpen ? "Show less" : "Show more"}</button>` : null}
      <button type="button" class="small" aria-label=${`More like hit ${rank}`} onClick=${onMore}>More like this</button>
      ${server.mayWrite ? html`<button type="button" class="small danger" aria-label=${isSure
        ? `Really delete hit ${rank}` : `Delete hit ${rank}`} onClick=${remove} onBlur=${() => setIsSure(false)}>
        ${isSure ? "Really delete?" : "Delete"}</button>` : null}
      ${problem ? html`<span role="alert" class="warn">${visible(problem)}</span>` : null}
    </div>
  </li>`;
}
