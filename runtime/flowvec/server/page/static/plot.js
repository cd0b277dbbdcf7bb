// The map's canvas: moving, zooming, hovering, lasso and keys.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { Scatter } from "./scatter.js";
import { Isolated, marked, shown } from "./text.js";

const HOVER = 70;
const HOVER_TEXT = 600;

export function Plot({ positions, codes, table, lit, rowsOf, onSelect, query, label = "Map of the collection" }) {
  const frame = useRef(null);
  const scatter = useRef(null);
  const [isLasso, setIsLasso] = useState(false);
  const [line, setLine] = useState([]);
  const [card, setCard] = useState(null); // the row under the pointer, or the lit one that keys chose
  const drag = useRef(null);
  const hover = useRef({ timer: 0, own: null, point: -1 });
  const step = useRef(-1);

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
    scatter.current.setPositions(positions);
    // A layout that unfolds is followed until somebody moves the map.
    if (isFirst || (before && !drag.current?.hasMoved)) scatter.current.fit();
  }, [positions]);
  useEffect(() => { scatter.current.setCodes(codes ?? new Uint8Array(positions.length / 2).fill(255)); }, [codes, positions.length]);
  useEffect(() => { scatter.current.setPalette(table); }, [table]);
  useEffect(() => { scatter.current.light(lit); step.current = -1; }, [lit]);
  useEffect(() => {
    // Not passive: the page must not scroll while the map zooms.
    const wheel = (event) => {
      event.preventDefault();
      const { x, y } = place(event);
      touched();
      scatter.current.zoom(Math.exp(-event.deltaY * 0.0015), x, y);
    };
    const element = frame.current;
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, []);

  const place = (event) => {
    const box = frame.current.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const touched = () => { drag.current = { ...drag.current, hasMoved: true }; };
  const show = async (point, where) => {
    const held = hover.current;
    held.own?.abort();
    held.point = point;
    if (point < 0) { setCard(null); return; }
    held.own = new AbortController();
    try {
      const [row] = await rowsOf([point], HOVER_TEXT, held.own.signal);
      if (held.point === point) setCard({ row, ...where });
    } catch (problem) {
      if (problem.name !== "AbortError") setCard({ row: null, problem: problem.title, ...where });
    }
  };
  const select = (polygon) => { if (polygon.length > 2) onSelect(scatter.current.inside(polygon)); };

  const down = (event) => {
    if (event.button) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    const at = place(event);
    const pinch = drag.current?.pointers ?? new globalThis.Map();
    pinch.set(event.pointerId, at);
    drag.current = { ...drag.current, ...at, isDown: true, isLasso: isLasso || event.shiftKey, pointers: pinch };
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
      touched();
      if (now.length === 2) {
        const gap = (two) => Math.hypot(two[0].x - two[1].x, two[0].y - two[1].y) || 1;
        scatter.current.zoom(gap(now) / gap(before), (now[0].x + now[1].x) / 2, (now[0].y + now[1].y) / 2);
      } else scatter.current.pan(at.x - drag.current.x, at.y - drag.current.y);
      Object.assign(drag.current, at);
      return;
    }
    const point = scatter.current.pick(at.x, at.y);
    if (point === hover.current.point) return;
    clearTimeout(hover.current.timer);
    hover.current.timer = setTimeout(() => show(point, at), HOVER);
  };
  const up = (event) => {
    const held = drag.current;
    held?.pointers?.delete(event.pointerId);
    if (held?.isLasso && held.isDown) { select(line); setLine([]); setIsLasso(false); }
    if (held) { held.isDown = held.pointers?.size > 0; held.isLasso = false; }
    const at = place(event);
    if (event.pointerType === "touch") show(scatter.current.pick(at.x, at.y), at);
  };
  const nextLit = (by) => {
    if (!lit.length) return;
    step.current = (step.current + by + lit.length) % lit.length;
    show(lit[step.current], { ...scatter.current.placeOf(lit[step.current]), isByKey: true, number: step.current + 1 });
  };
  const inView = () => {
    const { clientWidth: w, clientHeight: h } = frame.current;
    onSelect(scatter.current.inside([[0, 0], [w, 0], [w, h], [0, h]]));
  };
  const key = (event) => {
    const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    const acts = {
      "+": () => scatter.current.zoom(1.4), "=": () => scatter.current.zoom(1.4), "-": () => scatter.current.zoom(1 / 1.4),
      0: () => scatter.current.fit(), n: () => nextLit(1), p: () => nextLit(-1), s: inView,
      Escape: () => { setLine([]); setCard(null); hover.current.point = -1; },
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) { touched(); scatter.current.pan(...moves[event.key]); } else if (acts[event.key]) acts[event.key]();
    else return;
    event.preventDefault();
  };

  const width = frame.current?.clientWidth ?? 800;
  const height = frame.current?.clientHeight ?? 600;
  const isRight = card && card.x > width / 2;
  const isLow = card && card.y > height / 2;
  return html`<div class="plot">
    <div class=${`frame ${isLasso ? "lasso" : ""}`} ref=${frame} tabindex="0" role="application" aria-label=${label}
      aria-describedby="plot-keys" onKeyDown=${key} onPointerDown=${down} onPointerMove=${move} onPointerUp=${up}
      onPointerCancel=${up} onPointerLeave=${() => { clearTimeout(hover.current.timer); if (!card?.isByKey) show(-1); }}>
      <div class="canvas"></div>
      ${line.length > 1 ? html`<svg aria-hidden="true"><polygon points=${line.map((p) => p.join(",")).join(" ")} /></svg>` : null}
      ${card ? html`<div class="card" style=${{ [isRight ? "right" : "left"]: `${isRight ? width - card.x + 12 : card.x + 12}px`,
        [isLow ? "bottom" : "top"]: `${Math.max(4, isLow ? height - card.y - 12 : card.y - 12)}px` }} role="status">
        ${card.problem ? card.problem : card.row ? html`
          ${card.number ? html`<span class="quiet">hit ${card.number} of ${lit.length}, id </span>` : null}
          <bdi class="id">${shown(card.row.id, 60)}</bdi>
          <${Isolated} as="p">${marked(shown(card.row.text ?? "(no text)", 280), query)}<//>
          <dl class="metadata">${Object.entries(card.row.metadata ?? {}).slice(0, 6).map(([name, value]) => html`<div>
            <dt><bdi>${shown(name, 30)}</bdi></dt>
            <dd><bdi>${shown(typeof value === "string" ? value : JSON.stringify(value), 60)}</bdi></dd></div>`)}</dl>` : "This row is gone."}
      </div>` : null}
    </div>
    <div class="row plot-tools">
      <button type="button" class="small" aria-label="Zoom in" onClick=${() => { touched(); scatter.current.zoom(1.4); }}>+</button>
      <button type="button" class="small" aria-label="Zoom out" onClick=${() => { touched(); scatter.current.zoom(1 / 1.4); }}>−</button>
      <button type="button" class="small" onClick=${() => scatter.current.fit()}>Show all</button>
      <button type="button" class="small" aria-pressed=${isLasso} onClick=${() => setIsLasso(!isLasso)}>Lasso</button>
      <button type="button" class="small" onClick=${inView}>Select what is in view</button>
      ${lit.length ? html`<button type="button" class="small" onClick=${() => nextLit(1)}>Next lit hit</button>` : null}
      <span class="quiet" id="plot-keys">Arrow keys move, <kbd>+</kbd> <kbd>-</kbd> zoom, <kbd>0</kbd> shows all,${" "}
        <kbd>n</kbd> <kbd>p</kbd> step through lit hits, <kbd>s</kbd> selects what is in view. Shift and drag: lasso.</span>
    </div>
  </div>`;
}
