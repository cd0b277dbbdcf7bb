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

// As flowvec/texts/folding.py, which says why.
const IGNORED = new RegExp("[\\u00ad\\u034f\\u061c\\u0640\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f"
  + "\\u202a-\\u202e\\u2060-\\u206f\\ufe00-\\ufe0f\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e0fff}]", "gu");
const ACCENTS = new RegExp("[\\u0300-\\u036f\\u0483-\\u0489\\u1ab0-\\u1aff\\u1dc0-\\u1dff\\u20d0-\\u20ff\\ufe20-\\ufe2f"
  + "\\u0591-\\u05bd\\u05bf\\u05c1\\u05c2\\u05c4\\u05c5\\u05c7\\ufb1e\\u0610-\\u061a\\u064b-\\u065f\\u0670\\u06d6-\\u06dc"
  + "\\u06df-\\u06e4\\u06e7\\u06e8\\u06ea-\\u06ed\\u0711\\u0730-\\u074a\\u0898-\\u089f\\u08ca-\\u08e1\\u08e3-\\u08ff]"
  + "(?<![гкГК]\\u0301)(?<![\\u0400-\\u0414\\u0416-\\u0434\\u0436-\\u052f]\\u0308)"
  + "(?<![\\u0400-\\u052f][\\u0304\\u0306\\u030b])", "gu");
const PLAIN = { ø: "o", ł: "l", đ: "d", ħ: "h", ŧ: "t", ı: "i", æ: "ae", œ: "oe", ð: "d", þ: "th", ς: "σ" };

export function folded(text) {
  const bare = text.normalize("NFKD").replace(IGNORED, "").replace(ACCENTS, "");
  return bare.toUpperCase().toLowerCase().replace(/[øłđħŧıæœðþς]/g, (letter) => PLAIN[letter]).normalize("NFC");
}

const ENDING = /(?:ings?|ers?|ed|es|ies|ly|s)$/;
const stem = (word) => {
  const short = word.replace(ENDING, "");
  return short.length >= 3 ? short : word;
};
// Marked only where no other word of the query is.
const STOP = new Set(("a an and are as at be but by for if in into is it no not of on or such that the their "
  + "then there these they this to was what which who will with").split(" "));
const WITHOUT_SPACES = /[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]/;

// Where a part is in a word, whose characters and their marks are folded each.
function placeOf(part, word) {
  let all = "";
  const ends = [[0, 0]];
  for (const one of word.matchAll(/\P{M}[\p{M}\uff9e\uff9f]*/gu)) {
    all += folded(one[0]);
    ends.push([all.length, one.index + one[0].length]);
  }
  const at = all.indexOf(part);
  if (at < 0) return null;
  const start = ends.findLast(([length]) => length <= at);
  return [start[1], ends.find(([length]) => length >= at + part.length)[1]];
}

// Parts of a text: those that share a word with the query are marked.
export function marked(text, query) {
  const words = [...new Set(folded(query).match(/[\p{L}\p{N}\p{M}_]+/gu) ?? [])].slice(0, 256);
  const telling = words.filter((word) => !STOP.has(word));
  const parts = telling.length ? markedBy(telling, text) : [text];
  return parts.length > 1 || typeof parts[0] !== "string" ? parts : markedBy(words, text);
}

function markedBy(words, text) {
  const stems = [...new Set(words.map(stem))];
  const parts = words.filter((word) => WITHOUT_SPACES.test(word)).slice(0, 8);
  const found = [];
  let plain = 0;
  const mark = (start, end) => {
    if (start > plain) found.push(text.slice(plain, start));
    found.push(html`<mark>${text.slice(start, end)}</mark>`);
    plain = end;
  };
  for (const match of text.matchAll(/[\p{L}\p{N}\p{M}\p{Cf}_]+/gu)) {
    const word = folded(match[0]);
    if (stems.some((s) => word === s || (s.length >= 3 && word.startsWith(s) && word.length <= s.length + 6))) {
      mark(match.index, match.index + match[0].length);
      continue;
    }
    for (const part of parts) {
      const place = placeOf(part, match[0]);
      if (place) {
        mark(match.index + place[0], match.index + place[1]);
        break;
      }
    }
  }
  if (plain < text.length || !found.length) found.push(text.slice(plain));
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
