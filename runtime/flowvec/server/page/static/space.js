// The space tab: the same texts before and after a model's transform.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { ask, collectionPath } from "./api.js";
import { palette } from "./colours.js";
import { Problem, useDark } from "./parts.js";
import { Scatter } from "./scatter.js";
import { Isolated, count, shown } from "./text.js";

const POLL = 500;

const flat = (positions) => Float32Array.from(positions.flat());

// Points of both sides have the same colours: their angle before the transform.
function codesOf(positions) {
  return Uint8Array.from(positions, ([x, y]) => Math.round(((Math.atan2(y, x) / Math.PI + 1) / 2) * 254));
}

function Side({ title, space, codes, texts, chosen, onChoose }) {
  const place = useRef(null);
  const scatter = useRef(null);
  const dark = useDark();
  useEffect(() => {
    const made = new Scatter(place.current.querySelector(".canvas"));
    scatter.current = made;
    made.setPositions(flat(space.positions));
    made.setCodes(codes);
    made.resize();
    made.fit();
    return () => made.close();
  }, []);
  useEffect(() => { scatter.current.setPalette(palette("angles", false)); }, [dark]);
  useEffect(() => { scatter.current.light(chosen < 0 ? [] : [chosen]); }, [chosen]);
  const point = (event) => {
    const box = place.current.getBoundingClientRect();
    onChoose(scatter.current.pick(event.clientX - box.left, event.clientY - box.top));
  };
  const key = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    onChoose((chosen + step + texts.length) % texts.length);
  };
  return html`<section class="side-space" aria-label=${title}>
    <h3>${title}</h3>
    <div class="frame small" ref=${place} tabindex="0" role="application" onPointerMove=${point} onPointerDown=${point} onKeyDown=${key}
      aria-label=${`${title}: ${texts.length} points. Arrow keys step through the texts.`}><div class="canvas"></div></div>
    <dl class="figures">
      <div><dt>Mean cosine</dt><dd>${space.mean_cosine.toFixed(3)}</dd></div>
      <div><dt>IsoScore</dt><dd>${space.isoscore.toFixed(3)}</dd></div>
      <div><dt>On these two axes</dt><dd>${Math.round(100 * space.shares.reduce((a, b) => a + b, 0))} % of the variance</dd></div>
    </dl></section>`;
}

function Spectrum({ before, after }) {
  const [width, height, left, bottom] = [innerWidth < 640 ? 350 : 600, 220, 44, 28];
  const most = Math.max(after.spectrum.length, before?.spectrum.length ?? 0);
  const path = (values) => values.map((v, i) => {
    const x = left + (i / Math.max(1, most - 1)) * (width - left - 8);
    const y = 8 + (1 - v) * (height - bottom - 8);
    return `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
  }).join("");
  const half = (values) => values.filter((v) => v >= 0.5).length;
  const said = `${before ? `Before, ${half(before.spectrum)} of ${before.spectrum.length} directions have at least half the spread of the first; after, ` : ""}${half(after.spectrum)} of ${after.spectrum.length} directions have at least half the spread of the first.`;
  return html`<figure class="spectrum"><figcaption>Spectrum: spread in each direction, relative to the first
      ${before ? html`<span class="key"><i class="before"></i>before</span>` : null}
      <span class="key"><i class="after"></i>${before ? "after" : "vectors"}</span></figcaption>
    <svg viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${said}>
      ${[0, 0.5, 1].map((v) => html`<g><line x1=${left} x2=${width - 8} y1=${8 + (1 - v) * (height - bottom - 8)} y2=${8 + (1 - v) * (height - bottom - 8)} />
        <text x=${left - 8} y=${12 + (1 - v) * (height - bottom - 8)} text-anchor="end">${v}</text></g>`)}
      <text x=${left} y=${height - 6}>1</text><text x=${width - 8} y=${height - 6} text-anchor="end">${most}</text>
      <text x=${(width + left) / 2} y=${height - 6} text-anchor="middle">direction</text>
      ${before ? html`<path class="before" d=${path(before.spectrum)} />` : null}
      <path class="after" d=${path(after.spectrum)} />
    </svg><p>${said}</p></figure>`;
}

function reading({ before, after, transform }) {
  if (before) {
    return html`<p>A <b>mean cosine</b> near 0 means that texts point in all directions; near 1, that all are crowded into a
      narrow cone. <b>IsoScore</b> is 1 if the vectors vary alike in all directions, and 0 if in one only. Both sides show the same
      texts, each on its own two principal axes; a colour is a direction before the transform.</p>`;
  }
  if (transform.length) return html`<p>The mean cosine of two texts is ${after.mean_cosine.toFixed(3)}.</p>`;
  const crowd = after.mean_cosine > 0.3 ? "They are crowded into a cone: a transform (see docs/transforms.md) spreads them."
    : "They point in many directions already, so a transform has little to do.";
  return html`<p>The mean cosine of two texts is ${after.mean_cosine.toFixed(3)}. ${crowd}</p>`;
}

// Why there is no before and after.
function why({ model, transform }) {
  if (!model) return "This collection has no model.";
  if (transform.length) return "The model's graph does not show what its transform takes, so only the vectors after it can be shown.";
  return "This model has no transform, so there is no before and after.";
}

export function Space({ collection }) {
  const path = `${collectionPath(collection.id)}/space`;
  const [state, setState] = useState(null);
  const [error, setError] = useState(null);
  const [chosen, setChosen] = useState(-1);
  const timer = useRef(0);
  const isOver = useRef(false);
  const follow = async (body) => {
    clearTimeout(timer.current);
    try {
      const { value } = await ask(path, body);
      if (isOver.current) return;
      setState(value);
      setError(null);
      if (value.stage === "waiting" || value.stage === "embedding") timer.current = setTimeout(follow, POLL);
    } catch (problem) {
      if (isOver.current) return;
      setError(problem);
      if (problem.wait) timer.current = setTimeout(follow, problem.wait * 1000, body);
    }
  };
  useEffect(() => {
    isOver.current = false;
    follow({ again: false });
    return () => { isOver.current = true; clearTimeout(timer.current); };
  }, []);
  const codes = useMemo(() => (state?.after ? codesOf((state.before ?? state.after).positions) : null), [state?.after]);
  if (error) return html`<${Problem} error=${error} onRetry=${() => follow({})} />`;
  if (state?.stage === "failed") {
    return html`<${Problem} error=${{ title: "The space cannot be measured", detail: state.message }} onRetry=${() => follow({ again: true })} />`;
  }
  if (!state?.after) {
    return html`<div class="quiet" role="status"><p>Embedding a sample of the collection's texts.</p>
      <progress max="1" value=${state?.progress ?? 0} aria-label="Embedding"></progress></div>`;
  }
  const side = { codes, texts: state.texts, chosen, onChoose: setChosen };
  const text = chosen >= 0 ? state.texts[chosen] : "";
  const hint = state.before ? "Point at a text to see it on both sides." : "Point at one of them to read its text.";
  const reader = html`<${Isolated} as="p" class="reader" role="status">${text ? shown(text, 200) : chosen >= 0 ? "(no text)" : hint}<//>`;
  return html`<div class="space">
    <div class="row head"><h2>${state.model ? html`The space of <bdi>${shown(state.model, 60)}</bdi>` : "The space of these vectors"}</h2>
      <button type="button" class="small" onClick=${() => { setState(null); follow({ again: true }); }}>Measure again</button></div>
    ${state.transform.length ? html`<p>Its transform: ${state.transform.map((step) => html`<code class="chip">${shown(step, 80)}</code> `)}</p>` : null}
    ${state.before ? null : html`<p class="note">${why(state)} These are the vectors as they are, of ${count(state.texts.length)} rows.</p>`}
    ${state.before ? html`<div class="sides"><${Side} title="Before the transform" space=${state.before} ...${side} />
        <${Side} title="After the transform" space=${state.after} ...${side} /></div>
      ${reader}<div class="sides"><${Spectrum} before=${state.before} after=${state.after} /><div>${reading(state)}</div></div>`
    : html`<div class="sides"><div><${Side} title="Vectors" space=${state.after} ...${side} />${reader}</div>
        <div><${Spectrum} after=${state.after} />${reading(state)}</div></div>`}
  </div>`;
}
