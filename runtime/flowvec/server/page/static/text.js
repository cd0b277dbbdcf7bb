// Texts of rows, which may hold anything: cut, made harmless to look at, and marked.
import { html } from "./vendor/htm-preact.js";

// Controls, and marks that turn the direction of what follows, become visible signs.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

export function visible(text) {
  return String(text).replace(HIDDEN, (c) => {
    const code = c.charCodeAt(0);
    return code < 32 ? String.fromCharCode(0x2400 + code) : `⟨${code.toString(16).toUpperCase()}⟩`;
  });
}

// At most so many characters; a pair of surrogates is not cut in two.
export function clipped(text, most) {
  if (text.length <= most) return text;
  const end = /[\ud800-\udbff]/.test(text[most - 1]) ? most - 1 : most;
  return `${text.slice(0, end)}…`;
}

export const shown = (text, most) => visible(clipped(String(text), most));

const folded = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
const ENDING = /(?:ings?|ers?|ed|es|ies|ly|s)$/;
const stem = (word) => {
  const short = word.replace(ENDING, "");
  return short.length >= 3 ? short : word;
};
const STOP = new Set(("a an and are as at be but by for if in into is it no not of on or such that the their "
  + "then there these they this to was what which who will with").split(" "));
const WITHOUT_SPACES = /[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]/;

// Parts of a text: those that share a word with the query are marked.
export function marked(text, query) {
  const words = folded(query).match(/[\p{L}\p{N}_]+/gu) ?? [];
  const telling = words.filter((word) => !STOP.has(word)).slice(0, 64);
  const stems = [...new Set(telling.map(stem))];
  const parts = WITHOUT_SPACES.test(query)
    ? telling.filter((word) => WITHOUT_SPACES.test(word)).slice(0, 8) : [];
  if (!stems.length) return [text];
  const found = [];
  let plain = 0;
  const mark = (start, end) => {
    if (start > plain) found.push(text.slice(plain, start));
    found.push(html`<mark>${text.slice(start, end)}</mark>`);
    plain = end;
  };
  for (const match of text.matchAll(/[\p{L}\p{N}\p{M}_]+/gu)) {
    const word = folded(match[0]);
    if (stems.some((s) => word === s || (s.length >= 3 && word.startsWith(s) && word.length <= s.length + 6))) {
      mark(match.index, match.index + match[0].length);
      continue;
    }
    for (const part of parts) {
      const at = match[0].indexOf(part);
      if (at >= 0) {
        mark(match.index + at, match.index + at + part.length);
        break;
      }
    }
  }
  if (plain < text.length) found.push(text.slice(plain));
  return found;
}

// Text of a row: what is in it cannot turn what is around it.
export const Isolated = ({ children, as = "bdi", ...rest }) => html`<${as} dir="auto" ...${rest}>${children}<//>`;

export const count = (number) => number.toLocaleString("en");

export function duration(ms) {
  if (ms < 10) return `${ms.toFixed(2)} ms`;
  if (ms < 1000) return `${ms.toFixed(0)} ms`;
  return `${(ms / 1000).toFixed(1)} s`;
}
