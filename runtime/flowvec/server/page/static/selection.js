// Rows that were selected on the map, as a list and as JSON.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { CopyDialog, download, Problem } from "./parts.js";
import { count, shown } from "./text.js";

const LISTED = 100;
const MOST = 10000; // rows of an answer of the server
const LONGEST = 10000;
const COPIED = 200;

export function Selection({ points, rowsOf, onClear, name }) {
  const [rows, setRows] = useState([]);
  const [error, setError] = useState(null);
  const [json, setJson] = useState(null);
  const [isBusy, setIsBusy] = useState(false);
  useEffect(() => {
    if (!points.length) { setRows([]); return undefined; }
    const own = new AbortController();
    rowsOf(points.slice(0, LISTED), 160, own.signal).then(
      (found) => { setRows(found); setError(null); },
      (problem) => problem.name === "AbortError" || setError(problem));
    return () => own.abort();
  }, [points]);
  const asJson = async (most, use) => {
    setIsBusy(true);
    try {
      const found = await rowsOf(points.slice(0, most), LONGEST);
      use(JSON.stringify(found.filter(Boolean).map(({ id, text, metadata }) => ({ id, text, metadata })), null, 1));
      setError(null);
    } catch (problem) { setError(problem); }
    setIsBusy(false);
  };
  if (!points.length) {
    return html`<section class="selection" aria-label="Selected rows"><div class="row"><div role="status">
      <p class="quiet">Rows that you select are listed here, and can be had as JSON: use the lasso, or select what is in view.</p></div></div></section>`;
  }
  return html`<section class="selection" aria-label="Selected rows">
    <div class="row"><div role="status"><h2>${count(points.length)} ${points.length === 1 ? "row" : "rows"} selected</h2></div>
      <button type="button" class="small" disabled=${isBusy} onClick=${() => asJson(COPIED, setJson)}>
        Copy as JSON${points.length > COPIED ? ` (the first ${COPIED})` : ""}</button>
      <button type="button" class="small" disabled=${isBusy} onClick=${() => asJson(MOST, (text) => download(`${name}.json`, "application/json", text))}>
        Download JSON${points.length > MOST ? ` (the first ${count(MOST)})` : ""}</button>
      <button type="button" class="small" onClick=${onClear}>Clear</button></div>
    <${Problem} error=${error} />
    <ul>${rows.filter(Boolean).map((row) => html`<li><bdi class="id">${shown(row.id, 40)}</bdi>
      <bdi>${shown(row.text ?? "(no text)", 150)}</bdi></li>`)}</ul>
    ${points.length > LISTED ? html`<p class="quiet">The first ${LISTED} are listed.</p>` : null}
    ${json !== null ? html`<${CopyDialog} title="Selected rows, as JSON" text=${json} onClose=${() => setJson(null)} />` : null}
  </section>`;
}
