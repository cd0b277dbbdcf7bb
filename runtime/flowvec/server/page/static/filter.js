// The filter builder: conditions that are joined by "and" or "or".
import { html } from "./vendor/htm-preact.js";
import { shown } from "./text.js";

const SPECIAL = [
  { name: "$text", types: ["text"], values: [], operators: ["contains", "starts with", "=", "!=", "exists", "empty"] },
  { name: "$id", types: ["text", "number"], values: [], operators: ["=", "!=", "in", "starts with", "<", ">"] },
];
const LISTS = new Set(["in", "not in"]);
const FLAGS = new Set(["exists", "empty"]);

export const fieldsFor = (known) => [...known, ...SPECIAL];

function scalar(text, types) {
  const trimmed = text.trim();
  const isNumber = trimmed !== "" && Number.isFinite(Number(trimmed));
  if (types.includes("number") && isNumber) return Number(trimmed);
  if (types.includes("flag") && (trimmed === "true" || trimmed === "false")) return trimmed === "true";
  return text;
}

function valueOf(condition, field) {
  if (FLAGS.has(condition.operator)) return condition.value !== "false";
  if (LISTS.has(condition.operator)) {
    return condition.value.split(",").map((part) => scalar(part.trim(), field.types));
  }
  return scalar(condition.value, field.types);
}

// The filter of a request; null without a complete condition.
export function filterOf(conditions, joinedBy, known) {
  const parts = [];
  for (const condition of conditions) {
    const field = fieldsFor(known).find((each) => each.name === condition.field);
    const isComplete = FLAGS.has(condition.operator) || condition.value !== "";
    if (field && isComplete) parts.push({ [condition.field]: { [condition.operator]: valueOf(condition, field) } });
  }
  if (!parts.length) return null;
  return parts.length === 1 ? parts[0] : { [joinedBy]: parts };
}

function Condition({ condition, known, onChange, onRemove, number }) {
  const all = fieldsFor(known);
  const field = all.find((each) => each.name === condition.field) ?? all[0];
  const isFlag = FLAGS.has(condition.operator) || (field.types.length === 1 && field.types[0] === "flag");
  const rename = (event) => {
    const next = all.find((each) => each.name === event.target.value);
    onChange({ field: next.name, operator: next.operators[0], value: next.types[0] === "flag" ? "true" : "" });
  };
  const operate = (event) => {
    const value = FLAGS.has(event.target.value) ? "true" : FLAGS.has(condition.operator) ? "" : condition.value;
    onChange({ ...condition, operator: event.target.value, value });
  };
  const list = `values-${number}`;
  return html`<div class="condition">
    <select aria-label=${`Field ${number}`} value=${condition.field} onChange=${rename}>
      ${all.map((each) => html`<option value=${each.name}>${shown(each.name, 40)}</option>`)}
    </select>
    <select aria-label=${`Operator ${number}`} value=${condition.operator} onChange=${operate}>
      ${field.operators.map((each) => html`<option value=${each}>${each}</option>`)}
    </select>
    ${isFlag ? html`<select aria-label=${`Value ${number}`} value=${condition.value}
        onChange=${(e) => onChange({ ...condition, value: e.target.value })}>
        <option value="true">true</option><option value="false">false</option></select>`
      : html`<input aria-label=${`Value ${number}`} value=${condition.value} list=${list} autocomplete="off"
        placeholder=${LISTS.has(condition.operator) ? "a, b, c" : "value"} maxlength="2000"
        onInput=${(e) => onChange({ ...condition, value: e.target.value })} />
        <datalist id=${list}>${field.values.map((v) => html`<option value=${String(v)} />`)}</datalist>`}
    <button type="button" class="plain" aria-label=${`Remove condition ${number}`} onClick=${onRemove}>✕</button>
  </div>`;
}

export function FilterBuilder({ known, conditions, joinedBy, onChange }) {
  const change = (index, next) => onChange(conditions.map((c, i) => (i === index ? next : c)), joinedBy);
  const remove = (index) => onChange(conditions.filter((_, i) => i !== index), joinedBy);
  const add = () => {
    const first = fieldsFor(known)[0];
    const value = first.types[0] === "flag" ? "true" : "";
    onChange([...conditions, { field: first.name, operator: first.operators[0], value }], joinedBy);
  };
  return html`<fieldset class="filter">
    <legend>Filter</legend>
    ${conditions.length > 1 ? html`<label class="compact"><span>Rows meet</span>
      <select value=${joinedBy} onChange=${(e) => onChange(conditions, e.target.value)}>
        <option value="and">all conditions</option><option value="or">any condition</option>
      </select></label>` : null}
    ${conditions.map((condition, i) => html`<${Condition} key=${i} number=${i + 1} known=${known}
      condition=${condition} onChange=${(next) => change(i, next)} onRemove=${() => remove(i)} />`)}
    <button type="button" class="small" onClick=${add}>Add a condition</button>
  </fieldset>`;
}
