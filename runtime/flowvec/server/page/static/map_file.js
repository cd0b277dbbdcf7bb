// The map in one file: its data is in the page, and nothing is loaded.
import { categories, palette, scaled } from "./colours.js";
import { Scatter } from "./scatter.js";

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
const frame = made("div", { className: "frame", tabIndex: 0 }, canvas, card);
frame.setAttribute("role", "application");
frame.setAttribute("aria-label", `Map of ${points} rows. Arrow keys move, + and - zoom, 0 shows all.`);
const colours = made("div", { className: "colours" });
document.getElementById("map").append(
  made("div", { className: "top" }, made("h1", { textContent: plain(data.title, 200), dir: "auto" }),
    made("span", { className: "quiet", textContent: `${points.toLocaleString("en")} of ${data.total.toLocaleString("en")} rows` }),
    ...(chooser.length > 1 ? [made("label", { textContent: "Colour by " }, chooser)] : []), box, said),
  frame, colours);

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
let held = null;
function show(point, x, y) {
  card.hidden = point < 0;
  if (point < 0) return;
  card.replaceChildren(made("b", { textContent: plain(data.ids[point], 100) }));
  if (data.texts) card.append(made("span", { textContent: plain(data.texts[point], 300), dir: "auto" }));
  const isRight = x > frame.clientWidth / 2;
  Object.assign(card.style, { left: isRight ? "" : `${x + 12}px`, right: isRight ? `${frame.clientWidth - x + 12}px` : "", top: y > frame.clientHeight / 2 ? "" : `${y}px`, bottom: y > frame.clientHeight / 2 ? `${frame.clientHeight - y}px` : "" });
}
frame.addEventListener("pointerdown", (event) => { held = place(event); frame.setPointerCapture(event.pointerId); });
frame.addEventListener("pointerup", () => { held = null; });
frame.addEventListener("pointermove", (event) => {
  const [x, y] = place(event);
  if (held) {
    scatter.pan(x - held[0], y - held[1]);
    held = [x, y];
  } else show(scatter.pick(x, y), x, y);
});
frame.addEventListener("pointerleave", () => show(-1));
frame.addEventListener("wheel", (event) => { event.preventDefault(); scatter.zoom(Math.exp(-event.deltaY * 0.0015), ...place(event)); }, { passive: false });
frame.addEventListener("keydown", (event) => {
  const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
  if (moves[event.key]) scatter.pan(...moves[event.key]);
  else if (event.key === "+" || event.key === "=") scatter.zoom(1.4);
  else if (event.key === "-") scatter.zoom(1 / 1.4);
  else if (event.key === "0") scatter.fit();
  else return;
  event.preventDefault();
});
