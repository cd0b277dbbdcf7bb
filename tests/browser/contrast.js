// Contrast by WCAG 2.2 of what a page shows now: texts below 4.5 (3 if they are large), and what is
// not text below 3: borders of controls, the focus ring, bars, keys, and points of all palettes.
// Backgrounds are opaque or not there.
async () => {
  const { palette } = await import("/page/colours.js");
  const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (one, other) => {
    const [a, b] = [light(one), light(other)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.5) return colour;
    }
    return [255, 255, 255];
  };
  const low = [];
  const check = (name, one, other, least) => {
    if (ratio(one, other) < least) low.push(`${name}: ${ratio(one, other).toFixed(2)}`);
  };

  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join("");
    if (!text || !element.checkVisibility() || element.closest("svg, option, :disabled")) continue;
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    check(text.slice(0, 40), numbers(style.color), behind(element), isLarge ? 3 : 4.5);
  }

  for (const element of document.querySelectorAll("button:not(.plain, [role=tab]), input, select, textarea")) {
    if (!element.checkVisibility() || /range|checkbox/.test(element.type)) continue;
    const style = getComputedStyle(element);
    const ground = behind(element.parentElement);
    const edges = [style.borderTopColor, style.backgroundColor].map((c) => ratio(numbers(c), ground));
    if (Math.max(...edges) < 3) low.push(`border of ${element.outerHTML.slice(0, 60)}`);
  }

  const probe = document.body.appendChild(document.createElement("i"));
  const named = (name) => {
    probe.style.color = `var(--${name})`;
    return numbers(getComputedStyle(probe).color);
  };
  for (const ground of ["panel", "bg"].map(named)) {
    for (const name of ["accent", "quiet", "words", "sparse", "meaning", "s-queue", "s-tokenize", "s-compute", "s-search", "s-rerank"]) {
      check(name, named(name), ground, 3);
    }
  }
  const ground = named("panel");
  for (const kind of ["none", "numbers", "texts", "angles"]) {
    const table = palette(kind, false);
    for (let code = 0; code < 512; code += 1) {
      const [r, g, b, alpha] = table.slice(4 * code, 4 * code + 4);
      const seen = [r, g, b].map((c, i) => (c * alpha + ground[i] * (255 - alpha)) / 255);
      check(`${kind}, colour ${code}`, seen, ground, 3);
    }
  }
  probe.remove();
  return low;
}
