// Small parts that several tabs use.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import { isDark } from "./colours.js";
import { visible } from "./text.js";

// A message of the server as a sentence.
const sentence = (text) => (/^[a-z]{2,} /.test(text) ? text[0].toUpperCase() + text.slice(1) : text);

// An error, with a button that counts down to trying again.
export function Problem({ error, onRetry }) {
  const [left, setLeft] = useState(error?.wait ?? 0);
  useEffect(() => {
    setLeft(error?.wait ?? 0);
    if (!error?.wait) return undefined;
    const timer = setInterval(() => setLeft((n) => Math.max(0, n - 1)), 1000);
    return () => clearInterval(timer);
  }, [error]);
  if (!error) return null;
  return html`<div class="problem" role="alert">
    <strong>${error.title ?? "The page failed"}</strong>
    <p>${sentence(visible(error.detail || error.message || "").slice(0, 600))}</p>
    ${onRetry && (error.wait || !error.status) ? html`<button type="button" onClick=${onRetry}>
      Try again${left > 0 ? ` (suggested in ${left} s)` : ""}</button>` : null}
  </div>`;
}

// Whether the colours are the dark ones, also when that changes.
export function useDark() {
  const [dark, setDark] = useState(isDark());
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const follow = () => setDark(query.matches);
    query.addEventListener("change", follow);
    return () => query.removeEventListener("change", follow);
  }, []);
  return dark;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

// A text in a dialog, with a button that copies it.
export function CopyDialog({ title, text, onClose }) {
  const dialog = useRef(null);
  const area = useRef(null);
  const [said, setSaid] = useState("");
  useLayoutEffect(() => {
    dialog.current?.showModal();
    area.current?.select();
  }, []);
  const copy = async () => {
    area.current.select();
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied.");
    } catch {
      setSaid(document.execCommand("copy") ? "Copied." : "Press Ctrl+C to copy what is selected.");
    }
  };
  return html`<dialog ref=${dialog} onClose=${onClose} aria-label=${title}>
    <h2>${title}</h2>
    <textarea ref=${area} readonly rows="14" spellcheck=${false} aria-label=${title}>${text}</textarea>
    <div class="row">
      <button type="button" class="primary" onClick=${copy}>Copy</button>
      <button type="button" onClick=${() => dialog.current.close()}>Close</button>
      <span role="status">${said}</span>
    </div>
  </dialog>`;
}

export function KeyDialog({ isRefused, onClose, onSave }) {
  const dialog = useRef(null);
  const input = useRef(null);
  useLayoutEffect(() => {
    dialog.current?.showModal();
    input.current?.focus();
  }, []);
  const save = (event) => {
    event.preventDefault();
    onSave(input.current.value.trim());
    dialog.current.close();
  };
  return html`<dialog ref=${dialog} onClose=${onClose} aria-labelledby="key-title">
    <h2 id="key-title">API key</h2>
    ${isRefused ? html`<p role="alert" class="warn">The server refused the key.</p>` : null}
    <p>It is kept in this tab only, until you close it, and never put into an address.</p>
    <form onSubmit=${save}>
      <label>Key <input ref=${input} type="password" autocomplete="off" spellcheck=${false} /></label>
      <div class="row">
        <button class="primary">Use this key</button>
        <button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
      </div>
    </form>
  </dialog>`;
}

export const download = (name, kind, text) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};
