// The live tab: figures once a second, as tiles and as charts of the last minutes.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { events, Failure } from "./api.js";
import { isDark } from "./colours.js";
import { Problem } from "./parts.js";
import { count, duration } from "./text.js";

const KEPT = 300;
const AGAIN = 2000;
const HEIGHT = 180;
const CHARTS = [
  ["Texts a second", [["texts", "#2f5bd0", "#8fadff"]]],
  ["Tokens a second", [["tokens", "#c97a10", "#e2a04a"]]],
  ["Latency in milliseconds", [["p50", "#1c8a63", "#5cc79c"], ["p95", "#c97a10", "#e2a04a"], ["p99", "#a3261b", "#ff9a8f"]]],
  ["Waiting texts and running requests", [["waiting", "#5b3fbf", "#b3a1ff"], ["running", "#0072b2", "#56b4e9"]]],
];

// uPlot is a classic script, loaded when it is first needed.
let loading = null;
const plotting = () => {
  loading ??= new Promise((resolve, reject) => {
    const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: "page/vendor/uplot.css" });
    const script = Object.assign(document.createElement("script"), { src: "page/vendor/uplot.js" });
    script.onload = () => resolve(globalThis.uPlot);
    script.onerror = () => reject(new Failure("The charts cannot be loaded", "", 0, 2));
    document.head.append(style, script);
  });
  return loading;
};

function Chart({ title, lines, points }) {
  const place = useRef(null);
  const chart = useRef(null);
  // uPlot takes a single point for years.
  const shown = points.length > 1 ? points : [{ at: (points[0]?.at ?? Date.now() / 1000) - 30 }, ...points, { at: Date.now() / 1000 }];
  const data = [shown.map((p) => p.at), ...lines.map(([name]) => shown.map((p) => p[name] ?? null))];
  useEffect(() => {
    let observer = null;
    let isOver = false;
    const make = (UPlot) => {
      if (isOver) return;
      const dark = isDark();
      const axis = { stroke: dark ? "#a3aab8" : "#565c68", grid: { stroke: dark ? "#363b46" : "#e3e5e9", width: 1 }, ticks: { show: false }, font: "12px system-ui" };
      const size = (values) => values.map((v) => (v >= 10000 ? `${Math.round(v / 1000)}k` : String(Math.round(v * 100) / 100)));
      const range = (_, least, most) => [0, Math.max(1, most ?? 1) * 1.1];
      const span = (_, first, last) => [Math.min(first ?? 0, (last ?? 0) - 30), last ?? 1]; // half a minute at least
      chart.current = new UPlot({
        width: Math.max(200, place.current.clientWidth), height: HEIGHT, cursor: { y: false }, legend: { show: false },
        scales: { x: { time: true, range: span }, y: { range } },
        axes: [{ ...axis, size: 30, space: 90, values: (_, v) => v.map(clock) }, { ...axis, size: 52, values: (_, v) => size(v) }],
        series: [{}, ...lines.map(([name, light, darker]) => ({
          label: name, stroke: dark ? darker : light, width: 2, points: { show: false }, spanGaps: false,
        }))],
      }, data, place.current);
      observer = new ResizeObserver(() => chart.current.setSize({ width: Math.max(200, place.current.clientWidth), height: HEIGHT }));
      observer.observe(place.current);
    };
    plotting().then(make, () => {});
    return () => { isOver = true; observer?.disconnect(); chart.current?.destroy(); };
  }, []);
  useEffect(() => { chart.current?.setData(data); }, [points]);
  const dark = isDark();
  return html`<figure class="chart"><figcaption>${title}
    ${lines.length > 1 ? lines.map(([name, light, darker]) => html`<span class="key"><i style=${{ background: dark ? darker : light }}></i>${name}</span>`) : null}
    </figcaption><div ref=${place} aria-hidden="true"></div></figure>`;
}

function Tile({ name, value, hint, isBad }) {
  return html`<div class=${`tile ${isBad ? "bad" : ""}`}><dt>${name}</dt><dd>${value}</dd>
    ${hint ? html`<dd class="quiet">${hint}</dd>` : null}</div>`;
}

const rate = (value) => (value >= 100 ? count(Math.round(value)) : String(Math.round(value * 10) / 10));
const clock = (seconds) => new Date(1000 * seconds).toTimeString().slice(0, 8);
const uptime = (seconds) => (seconds < 120 ? `${Math.floor(seconds)} seconds` : seconds < 7200 ? `${Math.floor(seconds / 60)} minutes`
  : `${count(Math.floor(seconds / 3600))} hours`);
const time = (ms) => (ms === null ? "–" : duration(ms));

function pointOf(now, before) {
  const seconds = Math.max(0.2, now.seconds - before.seconds);
  const per = (name) => Math.max(0, now[name] - before[name]) / seconds;
  const [tokens, padding] = [per("tokens"), per("padding")];
  return {
    at: Date.now() / 1000, texts: per("texts"), tokens, requests: per("requests"), refusals: Math.max(0, now.refused - before.refused),
    padding: tokens + padding > 0 ? padding / (tokens + padding) : null,
    p50: now.p50, p95: now.p95, p99: now.p99, waiting: now.waiting_texts, running: now.running,
  };
}

export function Live() {
  const [points, setPoints] = useState([]);
  const [last, setLast] = useState(null);
  const [error, setError] = useState(null);
  const [isPaused, setIsPaused] = useState(false);
  useEffect(() => {
    if (isPaused) return undefined;
    const own = new AbortController();
    let before = null;
    const follow = async () => {
      while (!own.signal.aborted) {
        try {
          for await (const now of events("v1/live", own.signal)) {
            setError(null);
            setLast(now);
            if (before) { const point = pointOf(now, before); setPoints((old) => [...old.slice(1 - KEPT), point]); }
            before = now;
          }
        } catch (problem) {
          if (own.signal.aborted) return;
          setError(problem instanceof Failure ? problem : new Failure("The connection to the server was lost", "", 0, 2));
          if (problem.status === 401) return;
        }
        await new Promise((resolve) => setTimeout(resolve, AGAIN));
      }
    };
    follow();
    return () => own.abort();
  }, [isPaused]);

  const now = points.at(-1);
  if (!last) return error ? html`<${Problem} error=${error} />` : html`<p class="quiet" role="status">Waiting for the first figures.</p>`;
  const busy = last.waiting_texts > 0;
  return html`<div class="live" data-points=${points.length}>
    <${Problem} error=${error} />
    <div class="row head"><h2>The server now</h2>
      <button type="button" class="small" onClick=${() => setIsPaused(!isPaused)}>${isPaused ? "Continue" : "Pause"}</button>
      <span class="quiet">up for ${uptime(last.seconds)}, ${count(last.requests)} requests</span></div>
    <dl class="tiles">
      <${Tile} name="Texts / s" value=${now ? rate(now.texts) : "–"} hint=${`${count(last.texts)} in all`} />
      <${Tile} name="Tokens / s" value=${now ? rate(now.tokens) : "–"} hint=${`${count(last.tokens)} in all`} />
      <${Tile} name="p50" value=${time(last.p50)} hint="of the last 10 s" />
      <${Tile} name="p95" value=${time(last.p95)} hint="of the last 10 s" />
      <${Tile} name="p99" value=${time(last.p99)} hint="of the last 10 s" />
      <${Tile} name="Waiting" value=${`${count(last.waiting_texts)} texts`} hint=${`${count(last.waiting_tokens)} tokens`} isBad=${busy && last.waiting_tokens > 200000} />
      <${Tile} name="Padding" value=${now?.padding == null ? "–" : `${Math.round(100 * now.padding)} %`} hint="of tokens" />
      <${Tile} name="Refused" value=${count(last.refused)} hint="429, 503, 504" isBad=${now?.refusals > 0} />
      <${Tile} name="Memory" value=${last.memory === null ? "–" : `${(last.memory / 2 ** 20).toFixed(0)} MiB`} hint="of the process" />
    </dl>
    <div class="charts">${CHARTS.map(([title, lines]) => html`<${Chart} title=${title} lines=${lines} points=${points} />`)}</div>
    <p class="quiet">Charts show at most the last five minutes that this page has seen.</p>
  </div>`;
}
