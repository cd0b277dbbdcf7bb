// Two ways of drawing points: WebGL2, and pixels on a 2D canvas.

const VERTEX = `#version 300 es
in vec2 place; in float code;
uniform vec2 centre; uniform vec2 scale; uniform float size; uniform float pass_; uniform sampler2D palette;
out vec4 colour;
void main() {
  gl_Position = vec4((place - centre) * scale, 0.0, 1.0);
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

export class WithWebGL {
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
    for (const [name, size, type] of [["place", 2, gl.FLOAT], ["code", 1, gl.UNSIGNED_BYTE]]) {
      const buffer = gl.createBuffer();
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      const at = gl.getAttribLocation(this.program, name);
      gl.enableVertexAttribArray(at);
      gl.vertexAttribPointer(at, size, type, false, 0, 0);
      this.buffers[name] = buffer;
    }
    gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
    for (const name of ["TEXTURE_MIN_FILTER", "TEXTURE_MAG_FILTER"]) gl.texParameteri(gl.TEXTURE_2D, gl[name], gl.NEAREST);
    this.order = gl.createBuffer();
    this.lit = gl.createBuffer();
    gl.enable(gl.BLEND);
    gl.blendFuncSeparate(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA, gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  }

  upload(name, data) {
    const { gl } = this;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name]);
    gl.bufferData(gl.ARRAY_BUFFER, data, gl.DYNAMIC_DRAW);
  }

  // Numbers of points in the order in which they are drawn: `order` of all, `lit` of those on top.
  uploadNumbers(name, numbers) {
    const { gl } = this;
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, this[name]);
    gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, numbers, gl.DYNAMIC_DRAW);
  }

  setPalette(rgba) {
    const { gl } = this;
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, 256, 2, 0, gl.RGBA, gl.UNSIGNED_BYTE, rgba);
  }

  draw({ lit }, count, view, width, height, size) {
    const { gl, places } = this;
    gl.viewport(0, 0, width, height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform2f(places.centre, view.x, view.y);
    gl.uniform2f(places.scale, (2 * view.zoom) / width, (2 * view.zoom) / height);
    gl.uniform1f(places.size, size);
    for (const [pass, numbers, most] of [[0, this.order, count], [1, this.lit, lit.length]]) {
      if (!most) continue;
      gl.uniform1f(places.pass_, pass);
      gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, numbers);
      gl.drawElements(gl.POINTS, most, gl.UNSIGNED_INT, 0);
    }
  }
}

// The colour behind an element: that of the first of its parents that has one.
function groundOf(element) {
  for (let at = element; at; at = at.parentElement) {
    const [r, g, b, alpha = 1] = getComputedStyle(at).backgroundColor.match(/[\d.]+/g).map(Number);
    if (alpha > 0.5) return [r, g, b];
  }
  return [255, 255, 255];
}

// Writes pixels: without a graphics card this is much faster than WebGL, which computes each of them.
export class WithCanvas {
  constructor(canvas) {
    // Opaque, which browsers without a graphics card show in half the time.
    this.context = canvas.getContext("2d", { alpha: false });
    this.colours = new Uint32Array(256);
    this.ground = 0xffffffff;
    this.lit = [];
  }

  upload() {}

  uploadNumbers() {}

  // Colours are mixed with the ground's, since pixels are replaced.
  setPalette(rgba) {
    const ground = groundOf(this.context.canvas.parentElement);
    const packed = ([r, g, b]) => 0xff000000 + b * 65536 + g * 256 + r;
    this.ground = packed(ground);
    for (let code = 0; code < 256; code += 1) {
      const share = rgba[4 * code + 3] / 255;
      this.colours[code] = packed([0, 1, 2].map((i) => Math.round(rgba[4 * code + i] * share + ground[i] * (1 - share))));
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

  draw({ positions, codes, order, lit }, count, view, width, height, size) {
    const { context, colours } = this;
    if (this.image?.width !== width || this.image.height !== height) {
      this.image = context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    const { pixels } = this;
    pixels.fill(this.ground);
    const side = Math.max(2, Math.round(size));
    const halves = WithCanvas.disc(side);
    for (let n = 0; n < count; n += 1) {
      const i = order[n];
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
    for (const i of lit) {
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
