// The map in one file: its data is in the page, and nothing is loaded.
import { categories, palette, scaled } from "./colours.js";
import { Scatter } from "./scatter.js";
import { nextPoint, outwards } from "./walk.js";

const data = JSON.parse(document.getElementById("data").textContent);
const decoded = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const made = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const plain = (text, most) => String(text).slice(0, most).replace(HIDDEN, " ");

const positions = new Float32Array(decoded(data.positions).buffer);
const points = positions.length / 2;
const chooser = made("select", {}, made("option", { value: "", textContent: "one colour" }),
  ...Object.keys(data.fields).map((name) => made("option", { value: name, textContent: plain(name, 60) })));
const box = made("input", { type: "search", placeholder: data.texts ? "Light up ids and texts" : "Light up ids" });
box.setAttribute("aria-label", box.placeholder);
const said = made("span", { className: "quiet" });
said.setAttribute("role", "status");
const canvas = made("div", { className: "canvas" });
const card = made("div", { className: "card", hidden: true });
const ring = made("span", { className: "ring", hidden: true });
const frame = made("div", { className: "frame", tabIndex: 0 }, canvas, ring, card);
frame.setAttribute("role", "application");
frame.setAttribute("aria-label", `Map of ${points} rows. Arrow keys move, + and - zoom, 0 shows all; Shift and an arrow key go to the next point, n and p step through what is lit or in view.`);
const spoken = made("p", { className: "unseen" });
spoken.setAttribute("role", "status");
const colours = made("div", { className: "colours" });
document.getElementById("map").append(
  made("div", { className: "top" }, made("h1", { textContent: plain(data.title, 200), dir: "auto" }),
    made("span", { className: "quiet", textContent: `${points.toLocaleString("en")} of ${data.total.toLocaleString("en")} rows` }),
    ...(chooser.length > 1 ? [made("label", { textContent: "Colour by " }, chooser)] : []), box, said),
  frame, spoken, colours);

const scatter = new Scatter(canvas);
let lit = [];
function paint() {
  const field = data.fields[chooser.value];
  scatter.setCodes(field ? decoded(field.codes) : new Uint8Array(points).fill(255));
  scatter.setPalette(palette(field ? field.kind : "none", lit.length > 0));
  colours.replaceChildren();
  if (!field) return;
  const dot = (colour, text) => {
    const sign = made("i");
    sign.style.background = colour;
    colours.append(made("span", {}, sign, made("bdi", { textContent: plain(text, 60) })));
  };
  if (field.kind === "numbers") [0, 0.5, 1].forEach((s) => dot(`rgb(${scaled(s).join(" ")})`, field.least + s * (field.most - field.least)));
  field.values.forEach((value, i) => dot(categories()[i], `${value} (${field.counts[i]})`));
  if (field.others) colours.append(made("span", { className: "quiet", textContent: `and ${field.others} more values, in grey` }));
}
scatter.setPositions(positions);
paint();
scatter.resize();
scatter.fit();
chooser.addEventListener("change", paint);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);

const folded = (text) => String(text).toLowerCase();
box.addEventListener("input", () => {
  const wanted = folded(box.value.trim());
  lit = [];
  if (wanted) {
    for (let i = 0; i < points; i += 1) {
      if (folded(data.ids[i]).includes(wanted) || (data.texts && folded(data.texts[i]).includes(wanted))) lit.push(i);
    }
  }
  scatter.light(lit);
  paint();
  said.textContent = wanted ? `${lit.length.toLocaleString("en")} lit` : "";
});

const place = (event) => { const at = frame.getBoundingClientRect(); return [event.clientX - at.left, event.clientY - at.top]; };
const pointers = new Map(); // those that are down, with their places
let start = null; // where the first came down
let current = -1; // the point that the card shows
let isByKey = false;
function show(point, x, y) {
  current = point;
  isByKey = false;
  card.hidden = ring.hidden = point < 0;
  if (point < 0) return;
  card.replaceChildren(made("b", { textContent: plain(data.ids[point], 100) }));
  if (data.texts) card.append(made("span", { textContent: plain(data.texts[point], 300), dir: "auto" }));
  const dot = scatter.placeOf(point);
  Object.assign(ring.style, { left: `${dot.x}px`, top: `${dot.y}px` });
  const isNarrow = frame.clientWidth < 480; // then it fills the half without the point
  card.classList.toggle("wide", isNarrow);
  if (isNarrow) {
    const isLow = y > frame.clientHeight / 2;
    Object.assign(card.style, { left: "8px", right: "8px", top: isLow ? "8px" : "", bottom: isLow ? "" : "8px" });
    return;
  }
  const isRight = x > frame.clientWidth / 2;
  Object.assign(card.style, { left: isRight ? "" : `${x + 12}px`, right: isRight ? `${frame.clientWidth - x + 12}px` : "", top: y > frame.clientHeight / 2 ? "" : `${y}px`, bottom: y > frame.clientHeight / 2 ? `${frame.clientHeight - y}px` : "" });
}
let walk = { points: [], at: -1, from: null }; // points that n and p step through
function showByKey(point) {
  const { x, y } = scatter.placeOf(point);
  show(point, x, y);
  isByKey = true;
}
// Shows a point that keys came to, and has a screen reader say it.
function come(point) {
  scatter.reveal(point);
  showByKey(point);
  spoken.textContent = `${plain(data.ids[point], 100)}. ${data.texts ? plain(data.texts[point], 300) : ""}`;
}
function step(by) {
  const from = lit.length ? lit : JSON.stringify(scatter.view);
  if (walk.from !== from) walk = { points: lit.length ? lit : outwards(positions, inView(), scatter.view), at: by > 0 ? -1 : 0 };
  if (!walk.points.length) return;
  walk.at = (walk.at + by + walk.points.length) % walk.points.length;
  come(walk.points[walk.at]);
  walk.from = lit.length ? lit : JSON.stringify(scatter.view);
}
function inView() {
  const { clientWidth: w, clientHeight: h } = frame;
  return scatter.inside([[0, 0], [w, 0], [w, h], [0, h]]);
}
function walkTo(dx, dy) {
  const point = isByKey ? nextPoint(positions, { x: positions[2 * current], y: positions[2 * current + 1] }, { dx, dy })
    : outwards(positions, inView(), scatter.view)[0] ?? -1;
  if (point >= 0) come(point);
}
frame.addEventListener("pointerdown", (event) => {
  const at = place(event);
  if (!pointers.size) start = at;
  pointers.set(event.pointerId, at);
  frame.setPointerCapture(event.pointerId);
});
function lifted(event) {
  pointers.delete(event.pointerId);
  const [x, y] = place(event);
  // A tap shows a row; a drag does not.
  const isTap = event.type === "pointerup" && event.pointerType === "touch" && Math.hypot(x - start[0], y - start[1]) < 8;
  if (isTap && !pointers.size) show(scatter.pick(x, y), x, y);
}
frame.addEventListener("pointerup", lifted);
frame.addEventListener("pointercancel", lifted);
frame.addEventListener("pointermove", (event) => {
  const [x, y] = place(event);
  if (!pointers.has(event.pointerId)) { show(scatter.pick(x, y), x, y); return; }
  const before = [...pointers.values()];
  pointers.set(event.pointerId, [x, y]);
  const now = [...pointers.values()];
  if (now.length === 2) {
    const gap = ([one, two]) => Math.hypot(one[0] - two[0], one[1] - two[1]) || 1;
    scatter.zoom(gap(now) / gap(before), (now[0][0] + now[1][0]) / 2, (now[0][1] + now[1][1]) / 2);
  } else if (now.length === 1) scatter.pan(now[0][0] - before[0][0], now[0][1] - before[0][1]);
  if (event.pointerType === "touch" && Math.hypot(x - start[0], y - start[1]) >= 8) show(-1);
});
frame.addEventListener("pointerleave", (event) => isByKey || event.pointerType === "touch" || show(-1));
frame.addEventListener("wheel", (event) => { event.preventDefault(); scatter.zoom(Math.exp(-event.deltaY * 0.0015), ...place(event)); }, { passive: false });
frame.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
  const steps = { n: 1, p: -1 }[event.key];
  if (arrow && event.shiftKey) walkTo(...arrow);
  else if (steps) step(steps);
  else if (event.key === "Escape") show(-1);
  else if (arrow) scatter.pan(-60 * arrow[0], 60 * arrow[1]);
  else if (event.key === "+" || event.key === "=") scatter.zoom(1.4);
  else if (event.key === "-") scatter.zoom(1 / 1.4);
  else if (event.key === "0") scatter.fit();
  else return;
  if (isByKey) showByKey(current); // the card stays with its point
  event.preventDefault();
});
