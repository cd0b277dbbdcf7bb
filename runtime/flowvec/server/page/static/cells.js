// Where points are: their bounds, cells to find the nearest in, and an order to draw them in.

// Cells of points, for finding the nearest one to a place.
export class Cells {
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

// Numbers of points in a random order, always the same: the first ones are a fair sample of all.
export function shuffled(points) {
  const order = Uint32Array.from({ length: points }, (_, i) => i);
  let state = 1;
  for (let i = points - 1; i > 0; i -= 1) {
    state = (state * 48271) % 2147483647;
    const other = state % (i + 1);
    [order[i], order[other]] = [order[other], order[i]];
  }
  return order;
}
