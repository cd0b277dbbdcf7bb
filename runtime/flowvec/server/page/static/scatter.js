// Points on a canvas: WebGL2 on a graphics card, pixels without one. Draws when something changes.
import { boundsOf, Cells, shuffled } from "./cells.js";
import { WithCanvas, WithWebGL } from "./drawing.js";

// Whether WebGL is computed by the processor, where writing pixels is many times faster.
let software = null;
function isSoftware() {
  if (software === null) {
    const gl = document.createElement("canvas").getContext("webgl2");
    const about = gl?.getExtension("WEBGL_debug_renderer_info");
    const name = about ? String(gl.getParameter(about.UNMASKED_RENDERER_WEBGL)) : "";
    software = !gl || /swiftshader|llvmpipe|software|basic render/i.test(name);
    gl?.getExtension("WEBGL_lose_context")?.loseContext();
  }
  return software;
}

// A pause of this many milliseconds ends a movement.
const STILL = 150;
const SLOW = 28; // milliseconds of a frame; 30 frames a second are 33
const QUICK = 19;
const LEAST = 2000;

// How many points to draw in the next frame of a movement, when the last one took so long.
export function sampleSize(most, points, milliseconds) {
  const now = Math.min(most, points);
  if (milliseconds > SLOW) return Math.max(Math.min(LEAST, points), Math.floor(now * Math.max(0.25, 0.75 * SLOW / milliseconds)));
  return milliseconds < QUICK ? Math.min(points, Math.ceil(now * 1.1)) : now;
}

export class Scatter {
  // Puts a canvas of its own into an element.
  constructor(parent, { withoutWebGL = false } = {}) {
    const canvas = document.createElement("canvas");
    parent.append(canvas);
    this.canvas = canvas;
    this.view = { x: 0, y: 0, zoom: 1 };
    this.points = { positions: new Float32Array(), codes: new Uint8Array(), order: new Uint32Array(), lit: [] };
    this.isAsked = false;
    this.drawn = 0; // points of the last frame
    this.moving = { most: Infinity, timer: 0 }; // points of a frame while it moves
    const gl = withoutWebGL || isSoftware() ? null
      : canvas.getContext("webgl2", { antialias: false, premultipliedAlpha: false });
    try {
      this.renderer = gl ? new WithWebGL(gl) : new WithCanvas(canvas);
    } catch {
      const other = canvas.cloneNode();
      canvas.replaceWith(other);
      this.canvas = other;
      this.renderer = new WithCanvas(other);
    }
    this.kind = this.renderer instanceof WithWebGL ? "WebGL2" : "2D canvas";
    this.resizing = new ResizeObserver(() => this.resize());
    this.resizing.observe(this.canvas);
  }

  close() {
    this.resizing.disconnect();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.moving.timer);
    this.renderer.gl?.getExtension("WEBGL_lose_context")?.loseContext();
  }

  resize() {
    const ratio = Math.min(2, devicePixelRatio || 1);
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight].map((n) => Math.max(1, Math.round(n * ratio)));
    if (width === this.canvas.width && height === this.canvas.height) return;
    this.view.zoom *= Math.min(width, height) / Math.min(this.canvas.width, this.canvas.height);
    [this.canvas.width, this.canvas.height] = [width, height];
    this.ask();
  }

  setPositions(positions) {
    const isOther = positions.length !== this.points.positions.length;
    this.points.positions = positions;
    this.bounds = boundsOf(positions);
    this.cells = null;
    this.renderer.upload("place", positions);
    if (isOther) {
      this.points.order = shuffled(positions.length / 2);
      this.renderer.uploadNumbers("order", this.points.order);
      this.setCodes(new Uint8Array(positions.length / 2).fill(255));
      this.light([]);
    }
    this.ask();
  }

  setCodes(codes) {
    this.points.codes = codes;
    this.renderer.upload("code", codes);
    this.ask();
  }

  // Draws points larger and on top of others.
  light(points) {
    this.points.lit = points;
    this.renderer.uploadNumbers("lit", Uint32Array.from(points));
    this.ask();
  }

  setPalette(rgba) { this.renderer.setPalette(rgba); this.ask(); }

  // Shows all points.
  fit() {
    const { left, bottom, width, height } = this.bounds ?? boundsOf([]);
    const zoom = 0.92 * Math.min(this.canvas.width / (width || 1), this.canvas.height / (height || 1));
    this.view = { x: left + width / 2, y: bottom + height / 2, zoom };
    this.ask();
  }

  pan(dx, dy) {
    const ratio = this.ratio;
    this.view.x -= (dx * ratio) / this.view.zoom;
    this.view.y += (dy * ratio) / this.view.zoom;
    this.move();
  }

  // Zooms around a place of the canvas, in CSS pixels.
  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const before = this.at(x, y);
    this.view.zoom = Math.min(1e7, Math.max(1e-3, this.view.zoom * factor));
    const after = this.at(x, y);
    this.view.x += before.x - after.x;
    this.view.y += before.y - after.y;
    this.move();
  }

  // Moves a point that cannot be seen into the middle.
  reveal(point) {
    const { x, y } = this.placeOf(point);
    const edge = 24;
    if (x >= edge && y >= edge && x <= this.canvas.clientWidth - edge && y <= this.canvas.clientHeight - edge) return;
    Object.assign(this.view, { x: this.points.positions[2 * point], y: this.points.positions[2 * point + 1] });
    this.ask();
  }

  get ratio() { return this.canvas.width / Math.max(1, this.canvas.clientWidth); }

  at(x, y) {
    return {
      x: this.view.x + (x * this.ratio - this.canvas.width / 2) / this.view.zoom,
      y: this.view.y - (y * this.ratio - this.canvas.height / 2) / this.view.zoom,
    };
  }

  placeOf(point) {
    return {
      x: ((this.points.positions[2 * point] - this.view.x) * this.view.zoom + this.canvas.width / 2) / this.ratio,
      y: (this.canvas.height / 2 - (this.points.positions[2 * point + 1] - this.view.y) * this.view.zoom) / this.ratio,
    };
  }

  pick(x, y) {
    this.cells ??= new Cells(this.points.positions, this.bounds ?? boundsOf([]));
    const place = this.at(x, y);
    return this.points.positions.length ? this.cells.nearest(place.x, place.y, (10 * this.ratio) / this.view.zoom) : -1;
  }

  // Points inside a polygon of places of the canvas.
  inside(polygon) {
    const corners = polygon.map(([x, y]) => this.at(x, y));
    const { positions } = this.points;
    const found = [];
    for (let i = 0; i < positions.length / 2; i += 1) {
      const [x, y] = [positions[2 * i], positions[2 * i + 1]];
      let isInside = false;
      for (let a = 0, b = corners.length - 1; a < corners.length; b = a, a += 1) {
        const [p, q] = [corners[a], corners[b]];
        if ((p.y > y) !== (q.y > y) && x < ((q.x - p.x) * (y - p.y)) / (q.y - p.y) + p.x) isInside = !isInside;
      }
      if (isInside) found.push(i);
    }
    return found;
  }

  // Draws a sample of the points while it moves, if all take too long, and all of them afterwards.
  move() {
    clearTimeout(this.moving.timer);
    this.moving.timer = setTimeout(() => { this.moving.timer = 0; this.ask(); }, STILL);
    this.ask();
  }

  ask() {
    if (this.isAsked) return;
    this.isAsked = true;
    this.frame = requestAnimationFrame((now) => {
      this.isAsked = false;
      this.draw();
      if (!this.moving.timer) return;
      requestAnimationFrame((next) => {
        this.moving.most = sampleSize(this.moving.most, this.points.codes.length, next - now);
      });
    });
  }

  draw() {
    const { width, height } = this.canvas;
    const points = this.points.positions.length / 2;
    const size = Math.max(2, Math.min(9, (0.9 * Math.sqrt((width * height) / Math.max(1, points))) ** 0.62)) * Math.max(1, this.ratio * 0.75);
    this.drawn = this.moving.timer ? Math.min(points, this.moving.most) : points;
    this.renderer.draw(this.points, this.drawn, this.view, width, height, size);
  }
}
