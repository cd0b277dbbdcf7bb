// Walking from point to point by keys.

// The nearest point in a direction, within a right angle around it; -1 without one. Places are in
// the map's own units, and y points up.
export function nextPoint(positions, from, { dx, dy }) {
  let best = -1;
  let least = Infinity;
  for (let i = 0; i < positions.length / 2; i += 1) {
    const [x, y] = [positions[2 * i] - from.x, positions[2 * i + 1] - from.y];
    const along = x * dx + y * dy;
    const aside = Math.abs(x * dy - y * dx);
    if (along <= 0 || aside > along) continue;
    const cost = along + 2 * aside;
    if (cost < least) [best, least] = [i, cost];
  }
  return best;
}

// Some points from the nearest to a place to the farthest.
export function outwards(positions, points, from) {
  const away = (i) => (positions[2 * i] - from.x) ** 2 + (positions[2 * i + 1] - from.y) ** 2;
  return Uint32Array.from(points).sort((a, b) => away(a) - away(b) || a - b);
}
