// The map tab.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { ask, bytes, collectionPath } from "./api.js";
import { categories, palette, scaled } from "./colours.js";
import { Empty, Problem, useDark } from "./parts.js";
import { Plot } from "./plot.js";
import { Selection } from "./selection.js";
import { count, shown } from "./text.js";

const POLL = 600;
const HITS = 50;
const STAGES = {
  waiting: "waiting for its turn", axes: "on its principal axes", neighbours: "looking for neighbours",
  layout: "moving neighbours together", done: "", failed: "",
};

const decode = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

function Legend({ colours, field }) {
  if (!field || !colours) return null;
  if (colours.kind === "none") return html`<p class="quiet">No row here has one text, number or flag in this field.</p>`;
  if (colours.kind === "numbers") {
    const stops = [0, 0.25, 0.5, 0.75, 1].map((s) => `rgb(${scaled(s).join(" ")})`).join(", ");
    return html`<div class="scale"><span>${colours.least}</span>
      <span class="ramp" style=${{ backgroundImage: `linear-gradient(to right, ${stops})` }}></span>
      <span>${colours.most}</span></div>`;
  }
  return html`<ul class="colours" aria-label="Colours">
    ${colours.values.map((value, i) => html`<li><i style=${{ background: categories()[i] }}></i>
      <bdi>${shown(value, 40) || "(empty)"}</bdi> <span class="quiet">${count(colours.counts[i])}</span></li>`)}
    ${colours.others ? html`<li class="quiet">and ${count(colours.others)} more values, in grey</li>` : null}
  </ul>`;
}

function Stage({ state, onAgain, onStop }) {
  const isRunning = !["done", "failed", "none"].includes(state.stage);
  const part = state.points < state.rows ? `${count(state.points)} of ${count(state.rows)} rows` : `${count(state.points)} ${state.points === 1 ? "row" : "rows"}`;
  const share = state.shares.length ? ` Two axes hold ${Math.round(100 * state.shares.reduce((a, b) => a + b, 0))} % of the variance.` : "";
  return html`<div class="stage-line">
    <p role="status">${part}${STAGES[state.stage] ? `, ${STAGES[state.stage]}` : ""}.
      <span class="quiet">${state.stage === "axes" || state.stage === "neighbours" ? share : ""}</span></p>
    ${isRunning ? html`<progress max="1" value=${state.progress} aria-label="Layout"></progress>
      <button type="button" class="small" onClick=${onStop}>Stop here</button>` : null}
    ${state.is_stale ? html`<span class="warn">The collection has changed since.</span>` : null}
    ${!isRunning ? html`<button type="button" class="small" onClick=${onAgain}>Lay out again</button>` : null}
  </div>`;
}

export function Map({ collection, shared }) {
  const path = `${collectionPath(collection.id)}/map`;
  const [state, setState] = useState(null);
  const [positions, setPositions] = useState(null);
  const [fields, setFields] = useState([]);
  const [field, setField] = useState("");
  const [colours, setColours] = useState(null);
  const [query, setQuery] = useState(shared.collection === collection.id ? shared.query : "");
  const [lit, setLit] = useState([]);
  const [selected, setSelected] = useState([]);
  const [error, setError] = useState(null);
  const [refusal, setRefusal] = useState(null); // of colours or hits: the map itself goes on
  const [attempt, setAttempt] = useState(0);
  const dark = useDark();
  const timer = useRef(0);
  const version = useRef(-1);
  const isOver = useRef(false);
  const isHeld = useRef(false); // the layout was stopped: what is there stays

  const told = (tell) => (problem) => { if (problem.name !== "AbortError" && !isOver.current) tell(problem); };
  const [failed, refused] = [told(setError), told(setRefusal)];
  const follow = async (body) => {
    clearTimeout(timer.current);
    try {
      const { value } = await ask(path, body);
      if (isOver.current || isHeld.current) return;
      setError(null);
      if (value.version !== version.current && value.points) {
        version.current = value.version;
        setPositions(new Float32Array(await bytes(`${path}/positions`)));
      }
      setState(value);
      if (!["done", "failed", "none"].includes(value.stage)) timer.current = setTimeout(follow, POLL);
    } catch (problem) {
      failed(problem);
      // With the same body: a start that was refused has started nothing.
      if (problem.wait && !isOver.current) timer.current = setTimeout(follow, problem.wait * 1000, body);
    }
  };
  const start = (again) => { isHeld.current = false; version.current = -1; follow({ again }); };
  useEffect(() => {
    isOver.current = false;
    start(false);
    return () => { isOver.current = true; clearTimeout(timer.current); };
  }, []);
  useEffect(() => {
    ask(`${collectionPath(collection.id)}/fields`).then(({ value }) => setFields(value.fields), refused);
  }, [attempt]);

  const hasPoints = Boolean(positions?.length);
  useEffect(() => {
    if (!hasPoints) return undefined;
    if (!field) { setColours(null); return undefined; }
    const own = new AbortController();
    ask(`${path}/values`, { field }, { signal: own.signal }).then(
      ({ value }) => setColours({ ...value, codes: decode(value.codes) }), refused);
    return () => own.abort();
  }, [field, hasPoints, attempt]);

  const light = async (ids, signal) => {
    const { value } = await ask(`${path}/points`, { ids }, { signal });
    setLit(value.points.filter((point) => point !== null));
  };
  useEffect(() => {
    if (!hasPoints) return undefined;
    const own = new AbortController();
    const search = async () => {
      try {
        if (!query.trim() || !collection.model) {
          if (!query.trim() && shared.collection === collection.id && shared.hits.length && !shared.query) {
            await light(shared.hits, own.signal);
          } else setLit([]);
          return;
        }
        const body = { query: query.trim(), k: HITS, text_limit: 0 };
        const { value } = await ask(`${collectionPath(collection.id)}/search`, body, { signal: own.signal });
        await light(value.hits.map((hit) => hit.id), own.signal);
        setRefusal(null);
      } catch (problem) { refused(problem); }
    };
    const wait = setTimeout(search, 250);
    return () => { clearTimeout(wait); own.abort(); };
  }, [query, hasPoints, attempt]);

  const rowsOf = async (points, textLimit, signal) => {
    const { value } = await ask(`${path}/rows`, { points, text_limit: textLimit }, { signal });
    return value.rows;
  };
  const kind = field ? colours?.kind ?? "none" : "none";
  const table = useMemo(() => palette(kind, lit.length > 0), [kind, lit.length > 0, dark]);
  const stop = async () => {
    isHeld.current = true;
    clearTimeout(timer.current);
    try {
      const { value } = await ask(path, { halt: true });
      setPositions(new Float32Array(await bytes(`${path}/positions`)));
      setState(value);
    } catch (problem) { failed(problem); }
  };

  if (error && !state) return html`<${Problem} error=${error} onRetry=${() => start(false)} />`;
  if (!state) return html`<p class="quiet" role="status">Laying out the map.</p>`;
  if (state.stage === "failed") {
    return html`<${Problem} error=${{ title: "The map failed", detail: state.message }} onRetry=${() => start(true)} />`;
  }
  if (state.stage === "done" && !state.points) {
    return html`<${Empty} title="This collection is empty"><p>Rows become points when there are some.</p>
      <button type="button" onClick=${() => start(true)}>Look again</button><//>`;
  }
  return html`<div class="map">
    <div class="toolbar">
      ${collection.model ? html`<input type="search" aria-label="Light up hits" placeholder="Light up hits of a search"
        value=${query} maxlength="20000" onInput=${(e) => setQuery(e.target.value)} />` : null}
      <label class="compact"><span>Colour by</span><select value=${field} onChange=${(e) => setField(e.target.value)}>
        <option value="">nothing</option>
        ${fields.map((each) => html`<option value=${each.name}>${shown(each.name, 40)}</option>`)}
      </select></label>
      <span class="quiet" role="status">${lit.length ? `${count(lit.length)} of the first ${HITS} hits are lit.` : ""}</span>
    </div>
    <${Problem} error=${error} onRetry=${() => { setError(null); follow({}); }} />
    <${Problem} error=${refusal} onRetry=${() => { setRefusal(null); setAttempt((n) => n + 1); }} />
    ${hasPoints ? html`<${Plot} positions=${positions} codes=${field && colours ? colours.codes : null} table=${table}
      lit=${lit} rowsOf=${rowsOf} onSelect=${setSelected} query=${query} />` : html`<p class="quiet">No points yet.</p>`}
    <div class="below"><${Stage} state=${state} onAgain=${() => start(true)} onStop=${stop} />
      <${Legend} colours=${colours} field=${field} /></div>
    <${Selection} points=${selected} rowsOf=${rowsOf} onClear=${() => setSelected([])} name=${collection.id} />
  </div>`;
}
