// Adds a row, on servers that run with --page-may-write.
import { html, useState } from "./vendor/htm-preact.js";
import { ask } from "./api.js";
import { Problem } from "./parts.js";

export function Writing({ path, onAdded }) {
  const [said, setSaid] = useState("");
  const [error, setError] = useState(null);
  const add = async (event) => {
    event.preventDefault();
    const form = event.target;
    const id = form.elements.id.value.trim();
    setSaid("");
    try {
      const metadata = form.elements.metadata.value.trim();
      const row = { id, text: form.elements.text.value, metadata: metadata ? JSON.parse(metadata) : null };
      const { value } = await ask(`${path}/rows`, { rows: [row] });
      setError(null);
      setSaid(value.replaced ? "The row was replaced." : "The row was added.");
      form.reset();
      onAdded();
    } catch (problem) {
      setError(problem instanceof SyntaxError ? { title: "The metadata is not JSON", detail: problem.message } : problem);
    }
  };
  return html`<details class="writing">
    <summary>Add a row</summary>
    <form onSubmit=${add}>
      <label>Id <input name="id" required maxlength="500" autocomplete="off" /></label>
      <label>Text <textarea name="text" rows="4" required></textarea></label>
      <label>Metadata, as JSON <textarea name="metadata" rows="2" placeholder='{"year": 2024}'></textarea></label>
      <div class="row"><button class="primary">Add</button> <span role="status">${said}</span></div>
      <${Problem} error=${error} />
    </form>
  </details>`;
}
