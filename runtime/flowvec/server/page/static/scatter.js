// Points on a canvas: WebGL2, or a 2D canvas where there is none. Draws when something changes.

const VERTEX = `#version 300 es
in vec2 place; in float code; in float lit;
uniform vec2 centre; uniform vec2 scale; uniform float size; uniform float pass_; uniform sampler2D palette;
out vec4 colour;
void main() {
  bool isLit = lit > 0.5;
  bool isDrawn = pass_ < 0.5 ? !isLit : isLit;
  gl_Position = isDrawn ? vec4((place - centre) * scale, 0.0, 1.0) : vec4(2.0, 2.0, 2.0, 1.0);
  gl_PointSize = pass_ < 0.5 ? size : max(9.0, size * 2.2);
  colour = texture(palette, vec2((code + 0.5) / 256.0, pass_ < 0.5 ? 0.25 : 0.75));
}`;
const FRAGMENT = `#version 300 es
precision highp float;
in vec4 colour; uniform float pass_; out vec4 result;
void main() {
  vec2 away = gl_PointCoord * 2.0 - 1.0;
  float far = dot(away, away);
  if (far > 1.0) discard;
  result = pass_ > 0.5 && far > 0.45 ? vec4(colour.rgb * 0.35, 1.0) : colour;
}`;

function program(gl) {
  const made = gl.createProgram();
  for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(made, shader);
  }
  gl.linkProgram(made);
  return gl.getProgramParameter(made, gl.LINK_STATUS) ? made : null;
}

class WithWebGL {
  constructor(gl) {
    this.gl = gl;
    this.program = program(gl);
    if (!this.program) throw new Error("the shaders do not compile");
    gl.useProgram(this.program);
    this.places = {};
    for (const name of ["centre", "scale", "size", "pass_", "palette"]) {
      this.places[name] = gl.getUniformLocation(this.program, name);
    }
    this.buffers = {};
    for (const [name, size, type] of [["place", 2, gl.FLOAT], ["code", 1, gl.UNSIGNED_BYTE], ["lit", 1, gl.UNSIGNED_BYTE]]) {
      const buffer = gl.createBuffer();
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      const at = gl.getAttribLocation(this.program, name);
      gl.enableVertexAttribArray(at);
      gl.vertexAttribPointer(at, size, type, false, 0, 0);
      this.buffers[name] = buffer;
    }
    gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
    for (const name of ["TEXTURE_MIN_FILTER", "TEXTURE_MAG_FILTER"]) gl.texParameteri(gl.TEXTURE_2D, gl[name], gl.NEAREST);
    gl.enable(gl.BLEND);
    gl.blendFuncSeparate(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA, gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  }

  upload(name, data) {
    const { gl } = this;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name]);
    gl.bufferData(gl.ARRAY_BUFFER, data, gl.DYNAMIC_DRAW);
  }

  setPalette(rgba) {
    const { gl } = this;
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, 256, 2, 0, gl.RGBA, gl.UNSIGNED_BYTE, rgba);
  }

  draw({ positions, anyLit }, view, width, height, size) {
    const { gl, places } = this;
    gl.viewport(0, 0, width, height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform2f(places.centre, view.x, view.y);
    gl.uniform2f(places.scale, (2 * view.zoom) / width, (2 * view.zoom) / height);
    gl.uniform1f(places.size, size);
    for (let pass = 0; pass < (anyLit ? 2 : 1); pass += 1) {
      gl.uniform1f(places.pass_, pass);
      gl.drawArrays(gl.POINTS, 0, positions.length / 2);
    }
  }
}

// Writes pixels: without a graphics card this is much faster than WebGL, which computes each of them.
class WithCanvas {
  constructor(context) {
    this.context = context;
    this.colours = new Uint32Array(256);
    this.lit = [];
  }

  upload() {}

  // Colours are mixed with what is behind the canvas, since pixels are replaced.
  setPalette(rgba) {
    const behind = getComputedStyle(this.context.canvas.closest(".frame") ?? document.body).backgroundColor;
    const ground = (behind.match(/[\d.]+/g) ?? [255, 255, 255]).map(Number);
    for (let code = 0; code < 256; code += 1) {
      const share = rgba[4 * code + 3] / 255;
      const [r, g, b] = [0, 1, 2].map((i) => Math.round(rgba[4 * code + i] * share + ground[i] * (1 - share)));
      this.colours[code] = 0xff000000 + b * 65536 + g * 256 + r;
      this.lit[code] = [...rgba.slice(1024 + 4 * code, 1027 + 4 * code)];
    }
  }

  // Half the width of a disc in each of its lines.
  static disc(side) {
    return Array.from({ length: side }, (_, line) => {
      const away = line + 0.5 - side / 2;
      return Math.max(1, Math.round(Math.sqrt(Math.max(0, (side * side) / 4 - away * away))));
    });
  }

  draw({ positions, codes, lit, anyLit }, view, width, height, size) {
    const { context, colours } = this;
    if (this.image?.width !== width || this.image.height !== height) {
      this.image = context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    } else this.pixels.fill(0);
    const { pixels } = this;
    const side = Math.max(2, Math.round(size));
    const halves = WithCanvas.disc(side);
    for (let i = 0; i < codes.length; i += 1) {
      const x = Math.round((positions[2 * i] - view.x) * view.zoom + width / 2);
      const top = Math.round(height / 2 - (positions[2 * i + 1] - view.y) * view.zoom - side / 2);
      if (x < side || top < 0 || x + side > width || top + side > height) continue;
      const colour = colours[codes[i]];
      for (let line = 0; line < side; line += 1) {
        const from = (top + line) * width + x;
        for (let at = from - halves[line]; at < from + halves[line]; at += 1) pixels[at] = colour;
      }
    }
    context.putImageData(this.image, 0, 0);
    if (!anyLit) return;
    for (let i = 0; i < codes.length; i += 1) {
      if (!lit[i]) continue;
      const colour = this.lit[codes[i]];
      context.beginPath();
      context.arc((positions[2 * i] - view.x) * view.zoom + width / 2,
        height / 2 - (positions[2 * i + 1] - view.y) * view.zoom, Math.max(4.5, size * 0.9), 0, 7);
      context.fillStyle = `rgb(${colour.join(" ")})`;
      context.fill();
      context.lineWidth = 2.5;
      context.strokeStyle = `rgb(${colour.map((c) => Math.round(c * 0.35)).join(" ")})`;
      context.stroke();
    }
  }
}

// Cells of points, for finding the nearest one to a place.
class Cells {
  constructor(positions, bounds) {
    const points = positions.length / 2;
    this.positions = positions;
    this.side = Math.max(1, Math.min(512, Math.floor(Math.sqrt(points / 2))));
    this.left = bounds.left;
    this.bottom = bounds.bottom;
    this.step = Math.max(bounds.width, bounds.height, 1e-9) / this.side;
    this.starts = new Uint32Array(this.side * this.side + 1);
    this.points = new Uint32Array(points);
    const cells = new Uint32Array(points);
    for (let i = 0; i < points; i += 1) {
      cells[i] = this.cell(positions[2 * i], positions[2 * i + 1]);
      this.starts[cells[i] + 1] += 1;
    }
    for (let i = 0; i < this.side * this.side; i += 1) this.starts[i + 1] += this.starts[i];
    const next = this.starts.slice();
    for (let i = 0; i < points; i += 1) this.points[next[cells[i]]++] = i;
  }

  column(value, start) { return Math.min(this.side - 1, Math.max(0, Math.floor((value - start) / this.step))); }

  cell(x, y) { return this.column(y, this.bottom) * this.side + this.column(x, this.left); }

  // The nearest point within a distance; -1 if there is none.
  nearest(x, y, within) {
    let best = -1;
    let least = within * within;
    const [left, right] = [this.column(x - within, this.left), this.column(x + within, this.left)];
    const [bottom, top] = [this.column(y - within, this.bottom), this.column(y + within, this.bottom)];
    for (let row = bottom; row <= top; row += 1) {
      for (let i = this.starts[row * this.side + left]; i < this.starts[row * this.side + right + 1]; i += 1) {
        const point = this.points[i];
        const distance = (this.positions[2 * point] - x) ** 2 + (this.positions[2 * point + 1] - y) ** 2;
        if (distance < least) [best, least] = [point, distance];
      }
    }
    return best;
  }
}

export function boundsOf(positions) {
  let [left, right, bottom, top] = [Infinity, -Infinity, Infinity, -Infinity];
  for (let i = 0; i < positions.length; i += 2) {
    left = Math.min(left, positions[i]);
    right = Math.max(right, positions[i]);
    bottom = Math.min(bottom, positions[i + 1]);
    top = Math.max(top, positions[i + 1]);
  }
  if (!positions.length) return { left: -1, bottom: -1, width: 2, height: 2 };
  return { left, bottom, width: right - left, height: top - bottom };
}

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

export class Scatter {
  // Puts a canvas of its own into an element.
  constructor(parent, { withoutWebGL = false } = {}) {
    const canvas = document.createElement("canvas");
    parent.append(canvas);
    this.canvas = canvas;
    this.view = { x: 0, y: 0, zoom: 1 };
    this.points = { positions: new Float32Array(), codes: new Uint8Array(), lit: new Uint8Array(), anyLit: false };
    this.isAsked = false;
    this.onDrawn = null;
    const gl = withoutWebGL || isSoftware() ? null
      : canvas.getContext("webgl2", { antialias: false, premultipliedAlpha: false });
    try {
      this.renderer = gl ? new WithWebGL(gl) : new WithCanvas(canvas.getContext("2d"));
    } catch {
      const other = canvas.cloneNode();
      canvas.replaceWith(other);
      this.canvas = other;
      this.renderer = new WithCanvas(other.getContext("2d"));
    }
    this.kind = this.renderer instanceof WithWebGL ? "WebGL2" : "2D canvas";
    this.resizing = new ResizeObserver(() => this.resize());
    this.resizing.observe(this.canvas);
  }

  close() {
    this.resizing.disconnect();
    cancelAnimationFrame(this.frame);
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

  light(points) {
    const lit = new Uint8Array(this.points.positions.length / 2);
    for (const point of points) lit[point] = 1;
    Object.assign(this.points, { lit, anyLit: points.length > 0 });
    this.renderer.upload("lit", lit);
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
    this.ask();
  }

  // Zooms around a place of the canvas, in CSS pixels.
  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const before = this.at(x, y);
    this.view.zoom = Math.min(1e7, Math.max(1e-3, this.view.zoom * factor));
    const after = this.at(x, y);
    this.view.x += before.x - after.x;
    this.view.y += before.y - after.y;
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

  ask() {
    if (this.isAsked) return;
    this.isAsked = true;
    this.frame = requestAnimationFrame(() => { this.isAsked = false; this.draw(); });
  }

  draw() {
    const { width, height } = this.canvas;
    const points = this.points.positions.length / 2;
    const size = Math.max(2, Math.min(9, (0.9 * Math.sqrt((width * height) / Math.max(1, points))) ** 0.62)) * Math.max(1, this.ratio * 0.75);
    this.renderer.draw(this.points, this.view, width, height, size);
    this.onDrawn?.();
  }
}
