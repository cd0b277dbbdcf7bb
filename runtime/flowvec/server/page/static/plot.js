// The map's canvas: moving, zooming, hovering, lasso and keys.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { Scatter } from "./scatter.js";
import { count, Isolated, marked, shown } from "./text.js";
import { nextPoint, outwards } from "./walk.js";

const HOVER = 70;
const HOVER_TEXT = 600;

const ARROWS = { ArrowLeft: { dx: -1, dy: 0 }, ArrowRight: { dx: 1, dy: 0 }, ArrowUp: { dx: 0, dy: 1 }, ArrowDown: { dx: 0, dy: -1 } };

// A row that is pointed at, or that keys came to.
function Card({ card, frame, lit, query }) {
  const { clientWidth: width, clientHeight: height } = frame;
  const isRight = card.x > width / 2;
  const isLow = card.y > height / 2;
  const isNarrow = width < 480; // then it fills the half without the point
  const beside = { [isRight ? "right" : "left"]: `${isRight ? width - card.x + 12 : card.x + 12}px`,
    [isLow ? "bottom" : "top"]: `${Math.max(4, isLow ? height - card.y - 12 : card.y - 12)}px` };
  const across = { left: "8px", right: "8px", [isLow ? "top" : "bottom"]: "8px" };
  return html`<span class="ring" aria-hidden="true" style=${{ left: `${card.x}px`, top: `${card.y}px` }}></span>
    <div class=${`card ${isNarrow ? "wide" : ""}`} style=${isNarrow ? across : beside}>
      ${card.problem ? card.problem : card.row ? html`
        ${card.number ? html`<span class="quiet">${lit.length ? "hit" : "point"} ${count(card.number)} of ${count(card.of)}, id </span>` : null}
        <bdi class="id">${shown(card.row.id, 60)}</bdi>
        <${Isolated} as="p">${marked(shown(card.row.text ?? "(no text)", 280), query)}<//>
        <dl class="metadata">${Object.entries(card.row.metadata ?? {}).slice(0, 6).map(([name, value]) => html`<div>
          <dt><bdi>${shown(name, 30)}</bdi></dt>
          <dd><bdi>${shown(typeof value === "string" ? value : JSON.stringify(value), 60)}</bdi></dd></div>`)}</dl>` : "This row is gone."}
    </div>`;
}

// What a screen reader says of a row that keys came to.
function said(card, lit) {
  if (!card?.isByKey) return "";
  if (!card.row) return card.problem ?? "This row is gone.";
  const place = card.number ? `${lit.length ? "Hit" : "Point"} ${card.number} of ${card.of}: ` : "";
  return `${place}id ${shown(card.row.id, 60)}. ${shown(card.row.text ?? "No text", 280)}`;
}

export function Plot({ positions, codes, table, lit, rowsOf, onSelect, query, label = `Map of ${count(positions.length / 2)} rows` }) {
  const frame = useRef(null);
  const scatter = useRef(null);
  const [isLasso, setIsLasso] = useState(false);
  const [line, setLine] = useState([]);
  const [card, setCard] = useState(null); // the row under the pointer, or the one that keys came to
  const drag = useRef(null);
  const hover = useRef({ timer: 0, own: null, point: -1 });
  const walk = useRef({ points: [], at: -1, view: null }); // points that n and p step through

  useEffect(() => {
    const made = new Scatter(frame.current.querySelector(".canvas"));
    scatter.current = made;
    made.resize();
    // For tests and for the curious.
    made.canvas.dataset.renderer = made.kind;
    made.canvas.scatter = made;
    return () => { clearTimeout(hover.current.timer); made.close(); };
  }, []);
  useEffect(() => {
    const isFirst = !scatter.current.points.positions.length;
    const before = scatter.current.bounds;
    const isOther = positions.length !== scatter.current.points.positions.length;
    scatter.current.setPositions(positions);
    // A layout that unfolds is followed until somebody moves the map.
    if (isFirst || (before && !drag.current?.hasMoved)) scatter.current.fit();
    if (isOther) show(-1);
    else setCard((old) => old && { ...old, ...scatter.current.placeOf(old.point) });
  }, [positions]);
  useEffect(() => { scatter.current.setCodes(codes ?? new Uint8Array(positions.length / 2).fill(255)); }, [codes, positions.length]);
  useEffect(() => { scatter.current.setPalette(table); }, [table]);
  useEffect(() => { scatter.current.light(lit); walk.current = { points: [], at: -1, view: null }; }, [lit]);
  useEffect(() => {
    // Not passive: the page must not scroll while the map zooms.
    const wheel = (event) => {
      event.preventDefault();
      const { x, y } = place(event);
      scatter.current.zoom(Math.exp(-event.deltaY * 0.0015), x, y);
      touched();
    };
    const element = frame.current;
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, []);

  const place = (event) => {
    const box = frame.current.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  // Somebody moved the map: it stays where it is, and the card with its point.
  const touched = () => {
    drag.current = { ...drag.current, hasMoved: true };
    setCard((old) => old && { ...old, ...scatter.current.placeOf(old.point) });
  };
  const show = async (point, about = {}) => {
    const held = hover.current;
    held.own?.abort();
    held.point = point;
    held.isByKey = about.isByKey;
    if (point < 0) { setCard(null); return; }
    held.own = new AbortController();
    try {
      const [row] = await rowsOf([point], HOVER_TEXT, held.own.signal);
      if (held.point === point) setCard({ point, row, ...scatter.current.placeOf(point), ...about });
    } catch (problem) {
      if (problem.name !== "AbortError") setCard({ point, row: null, problem: problem.title, ...scatter.current.placeOf(point), ...about });
    }
  };
  const select = (polygon) => { if (polygon.length > 2) onSelect(scatter.current.inside(polygon)); };

  const down = (event) => {
    if (event.button) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    const at = place(event);
    const pinch = drag.current?.pointers ?? new globalThis.Map();
    pinch.set(event.pointerId, at);
    drag.current = { ...drag.current, ...at, isDown: true, start: at, isLasso: isLasso || event.shiftKey, pointers: pinch };
    if (drag.current.isLasso) setLine([[at.x, at.y]]);
  };
  const move = (event) => {
    const at = place(event);
    const held = drag.current;
    if (held?.isDown && held.isLasso) { setLine((old) => [...old, [at.x, at.y]]); return; }
    if (held?.isDown) {
      const before = [...held.pointers.values()];
      held.pointers.set(event.pointerId, at);
      const now = [...held.pointers.values()];
      if (now.length === 2) {
        const gap = (two) => Math.hypot(two[0].x - two[1].x, two[0].y - two[1].y) || 1;
        scatter.current.zoom(gap(now) / gap(before), (now[0].x + now[1].x) / 2, (now[0].y + now[1].y) / 2);
      } else scatter.current.pan(at.x - held.x, at.y - held.y);
      touched();
      Object.assign(drag.current, at);
      return;
    }
    const point = scatter.current.pick(at.x, at.y);
    if (point === hover.current.point) return;
    clearTimeout(hover.current.timer);
    hover.current.timer = setTimeout(() => show(point), HOVER);
  };
  const up = (event) => {
    const held = drag.current;
    held?.pointers?.delete(event.pointerId);
    if (held?.isLasso && held.isDown) { select(line); setLine([]); setIsLasso(false); }
    if (held) { held.isDown = held.pointers?.size > 0; held.isLasso = false; }
    const at = place(event);
    // A tap shows a row; a drag does not.
    const isTap = held?.start && Math.hypot(at.x - held.start.x, at.y - held.start.y) < 8;
    if (event.pointerType === "touch" && isTap) show(scatter.current.pick(at.x, at.y));
  };
  const come = (point, about) => {
    scatter.current.reveal(point);
    touched();
    show(point, { isByKey: true, ...about });
  };
  const shownNow = () => {
    const { clientWidth: w, clientHeight: h } = frame.current;
    return scatter.current.inside([[0, 0], [w, 0], [w, h], [0, h]]);
  };
  // Through the lit hits; without any, through the points in view from the middle outwards.
  const step = (by) => {
    const { view, points: { positions: places } } = scatter.current;
    const isOther = JSON.stringify(view) !== walk.current.view;
    if (lit.length && !walk.current.points.length) walk.current = { points: lit, at: -1 };
    if (!lit.length && (isOther || !walk.current.points.length)) walk.current = { points: outwards(places, shownNow(), view), at: -1 };
    const { points, at } = walk.current;
    if (!points.length) return;
    const next = at < 0 && by < 0 ? points.length - 1 : (at + by + points.length) % points.length;
    come(points[next], { number: next + 1, of: points.length });
    Object.assign(walk.current, { at: next, view: JSON.stringify(scatter.current.view) });
  };
  const walkTo = (direction) => {
    const places = scatter.current.points.positions;
    const held = hover.current.isByKey ? hover.current.point : -1;
    const { x, y } = scatter.current.view;
    const point = held < 0 ? outwards(places, shownNow(), { x, y })[0] ?? -1
      : nextPoint(places, { x: places[2 * held], y: places[2 * held + 1] }, direction);
    if (point >= 0) come(point);
  };
  const choose = () => {
    const { point } = hover.current;
    if (point >= 0) onSelect((old) => (old.includes(point) ? old.filter((each) => each !== point) : [...old, point]));
  };
  const inView = () => onSelect(shownNow());
  const zoom = (factor) => { scatter.current.zoom(factor); touched(); };
  const fit = () => { scatter.current.fit(); touched(); };
  const key = (event) => {
    const acts = {
      "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), 0: fit, n: () => step(1), p: () => step(-1), s: inView,
      Enter: choose, Escape: () => { setLine([]); show(-1); },
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const arrow = ARROWS[event.key];
    if (arrow && event.shiftKey) walkTo(arrow);
    else if (arrow) { scatter.current.pan(-60 * arrow.dx, 60 * arrow.dy); touched(); } else if (acts[event.key]) acts[event.key]();
    else return;
    event.preventDefault();
  };

  return html`<div class="plot">
    <div class=${`frame ${isLasso ? "lasso" : ""}`} ref=${frame} tabindex="0" role="application" aria-label=${label}
      aria-describedby="plot-keys" onKeyDown=${key} onPointerDown=${down} onPointerMove=${move} onPointerUp=${up}
      onPointerCancel=${up} onPointerLeave=${() => { clearTimeout(hover.current.timer); if (!card?.isByKey) show(-1); }}>
      <div class="canvas"></div>
      ${line.length > 1 ? html`<svg aria-hidden="true"><polygon points=${line.map((p) => p.join(",")).join(" ")} /></svg>` : null}
      ${card ? html`<${Card} card=${card} frame=${frame.current} lit=${lit} query=${query} />` : null}
    </div>
    <p class="unseen" role="status">${said(card, lit)}</p>
    <div class="row plot-tools">
      <button type="button" class="small" aria-label="Zoom in" onClick=${() => zoom(1.4)}>+</button>
      <button type="button" class="small" aria-label="Zoom out" onClick=${() => zoom(1 / 1.4)}>−</button>
      <button type="button" class="small" onClick=${fit}>Show all</button>
      <button type="button" class="small" aria-pressed=${isLasso} onClick=${() => setIsLasso(!isLasso)}>Lasso</button>
      <button type="button" class="small" onClick=${inView}>Select what is in view</button>
      ${lit.length ? html`<button type="button" class="small" onClick=${() => step(1)}>Next lit hit</button>` : null}
    </div>
    <p class="quiet by-touch">Drag moves the map, two fingers zoom, and a tap on a point shows its row.</p>
    <p class="quiet keys by-keys" id="plot-keys">Arrow keys move the map, <kbd>+</kbd> <kbd>-</kbd> zoom, <kbd>0</kbd> shows all.${" "}
      <kbd>Shift</kbd> and an arrow key go to the next point, <kbd>n</kbd> <kbd>p</kbd> step through ${lit.length ? "lit hits" : "points in view"},${" "}
      <kbd>Enter</kbd> selects a point, <kbd>s</kbd> what is in view. Shift and drag: lasso.</p>
  </div>`;
}
