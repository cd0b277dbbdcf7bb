// Colours of points: categories (Okabe and Ito's, with further ones), and a scale for numbers.

const LIGHT = ["#0072b2", "#d55e00", "#008f68", "#b85c90", "#9c6f06", "#5b3fbf", "#00838f", "#a3261b", "#6b7f1c", "#8c5a3c", "#3f6fd1", "#c2185b"];
const DARK = ["#56b4e9", "#ff9a52", "#3ecfa3", "#f0a3cd", "#f0d24a", "#b3a1ff", "#4dd0e1", "#ff8a80", "#c5d86d", "#d7a98c", "#9dbbff", "#ff7fb0"];
// Viridis, without the end that cannot be seen on the background.
const LIGHT_SCALE = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [52, 145, 66], [140, 124, 10]];
const DARK_SCALE = [[134, 110, 214], [90, 140, 220], [50, 180, 172], [110, 210, 110], [253, 231, 60]];

export const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
export const categories = () => (isDark() ? DARK : LIGHT);

const bytes = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

export function scaled(share) {
  const SCALE = isDark() ? DARK_SCALE : LIGHT_SCALE;
  const at = Math.min(SCALE.length - 1.001, Math.max(0, share * (SCALE.length - 1)));
  const low = Math.floor(at);
  return SCALE[low].map((c, i) => Math.round(c + (SCALE[low + 1][i] - c) * (at - low)));
}

// Colours around a circle, of one lightness.
function turned(share) {
  const [light, spread] = isDark() ? [0.7, 0.22] : [0.35, 0.27];
  return [0, 1, 2].map((i) => Math.round(255 * (light + spread * Math.cos(2 * Math.PI * (share - i / 3)))));
}

// Two lines of 256 RGBA colours: of points, and of those that are lit.
export function palette(kind, isDimmed) {
  const made = new Uint8Array(2048);
  const none = isDark() ? [125, 135, 155] : [95, 105, 125];
  const plain = bytes(isDark() ? "#8fadff" : "#2f5bd0");
  for (let code = 0; code < 256; code += 1) {
    let colour = none;
    if (kind === "numbers" && code < 255) colour = scaled(code / 254);
    else if (kind === "texts" && code < categories().length) colour = bytes(categories()[code]);
    else if (kind === "angles") colour = turned(code / 255);
    else if (kind === "none") colour = plain;
    const isGrey = colour === none;
    const alpha = isDimmed ? 90 : isGrey ? 190 : isDark() ? 200 : 235;
    made.set([...colour, alpha], 4 * code);
    // Lit points keep the colour of their value, if they have one.
    const lit = isDark() ? [255, 214, 74] : [232, 89, 12];
    made.set([...(kind === "texts" && code < categories().length ? colour : lit), 255], 1024 + 4 * code);
  }
  return made;
}
