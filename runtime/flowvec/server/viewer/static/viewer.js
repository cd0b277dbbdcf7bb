// Renders openapi.json: routes, their fields, and a form that calls them.
// Text from the server is only ever set as text, never as markup.

const MOST_SHOWN = 200_000; // characters of an answer
const key = document.getElementById("key");
const filter = document.getElementById("filter");
const status = document.getElementById("status");
const routes = document.getElementById("routes");

/** An element with attributes and children; texts become text nodes. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    if (attribute.startsWith("on")) made.addEventListener(attribute.slice(2), value);
    else made.setAttribute(attribute, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function headers(more = {}) {
  return key.value ? { ...more, authorization: `Bearer ${key.value}` } : more;
}

// --- schemas -----------------------------------------------------------------------------------

function resolved(schema, document) {
  const name = schema.$ref?.split("/").pop();
  return name ? document.components.schemas[name] : schema;
}

/** A type in few words: `string`, `list of number`, `TeiPair or null`. */
function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${typeOf(schema.items ?? {})}`;
  return schema.type ?? "any";
}

function fields(schema, document, depth = 0) {
  const rows = [];
  const required = new Set(schema.required ?? []);
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    const inner = resolved(field.items ?? field, document);
    const preset = "default" in field ? ` = ${JSON.stringify(field.default)}` : "";
    rows.push(
      element(
        "tr", {},
        element("td", {}, element("code", {}, "\u00a0\u00a0".repeat(depth) + name)),
        element("td", {}, typeOf(field) + preset),
        element("td", {}, required.has(name) ? "required" : ""),
      ),
    );
    if (inner !== field && inner.properties && depth < 3) rows.push(...fields(inner, document, depth + 1));
  }
  return rows;
}

/** A schema, or each of several, as a table of its fields. */
function schemaView(schema, document) {
  const kinds = schema.anyOf ?? [schema];
  const views = kinds.map((kind) => {
    const shape = resolved(kind, document);
    const about = element("p", {}, element("code", {}, typeOf(kind)), ` ${shape.description ?? ""}`);
    const inner = shape.properties ? shape : resolved(shape.items ?? {}, document);
    if (!inner.properties) return about;
    return element("div", {}, about, element("table", {}, ...fields(inner, document)));
  });
  return element("div", {}, ...views);
}

/** A value that a schema takes, with its required fields only. */
function example(schema, document, depth = 0) {
  const shape = resolved(schema, document);
  if (depth > 5) return null;
  if ("default" in shape) return shape.default;
  if (shape.anyOf) return example(shape.anyOf[0], document, depth + 1);
  if (shape.enum) return shape.enum[0];
  if (shape.type === "array") return [example(shape.items ?? {}, document, depth + 1)];
  if (shape.type === "object") {
    const made = {};
    for (const name of shape.required ?? []) {
      made[name] = example(shape.properties[name], document, depth + 1);
    }
    return made;
  }
  return { string: "The cat sleeps.", integer: 1, number: 1, boolean: true }[shape.type] ?? null;
}

// --- routes ------------------------------------------------------------------------------------

async function send(method, path, operation, inputs, body, output) {
  const query = new URLSearchParams();
  let filled = path;
  for (const [parameter, input] of inputs) {
    if (parameter.in === "path") {
      filled = filled.replace(`{${parameter.name}}`, input.value.split("/").map(encodeURIComponent).join("/"));
    } else if (parameter.in === "query" && input.value) query.set(parameter.name, input.value);
  }
  const sent = headers();
  for (const [parameter, input] of inputs) {
    if (parameter.in === "header" && input.value) sent[parameter.name] = input.value;
  }
  if (body) sent["content-type"] = Object.keys(operation.requestBody.content)[0];
  const search = String(query) && `?${query}`;
  output.textContent = "…";
  const began = performance.now();
  try {
    // Relative, so that an application mounted below a prefix is called there.
    const answer = await fetch(`.${filled}${search}`, { method, headers: sent, body: body?.value });
    const text = await answer.text();
    const milliseconds = (performance.now() - began).toFixed(1);
    const lines = [`${answer.status} ${answer.statusText}, ${milliseconds} ms`];
    for (const [name, value] of answer.headers) lines.push(`${name}: ${value}`);
    output.textContent = `${lines.join("\n")}\n\n${indented(text)}`;
  } catch (error) {
    output.textContent = String(error);
  }
}

function indented(text) {
  let shown = text;
  try {
    shown = JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    // It is not JSON, or several lines of it.
  }
  return shown.length > MOST_SHOWN ? `${shown.slice(0, MOST_SHOWN)}\n…` : shown;
}

function form(method, path, operation, document) {
  const inputs = (operation.parameters ?? []).map((parameter) => [parameter, element("input", {})]);
  const content = operation.requestBody?.content;
  let body = null;
  if (content) {
    const { schema } = Object.values(content)[0];
    body = element("textarea", { spellcheck: "false", "aria-label": "body" });
    const isLines = Object.keys(content)[0].includes("ndjson");
    body.value = JSON.stringify(example(schema, document), null, isLines ? 0 : 1);
  }
  const output = element("pre", { hidden: "" });
  const button = element("button", {
    type: "button",
    onclick: () => {
      output.hidden = false;
      send(method, path, operation, inputs, body, output);
    },
  }, "Send");
  const rows = inputs.map(([parameter, input]) =>
    element("label", { class: "row" }, `${parameter.name} (${parameter.in})`, input,
      element("span", { class: "soft" }, typeOf(parameter.schema ?? {}))));
  return element("div", {}, element("h3", {}, "Try it"), ...rows, body, element("div", { class: "row" }, button), output);
}

function contentView(title, content, document) {
  const parts = Object.entries(content).map(([kind, { schema }]) =>
    element("div", {}, element("h3", {}, title, " ", element("small", {}, kind)), schemaView(schema, document)));
  return element("div", {}, ...parts);
}

function routeView(method, path, operation, document) {
  const inside = element("div", {});
  const view = element("details", { "data-search": `${method} ${path} ${operation.summary}`.toLowerCase() },
    element("summary", {}, element("span", { class: `method ${method}` }, method), element("code", {}, path),
      element("span", { class: "soft" }, operation.summary)), inside);
  view.addEventListener("toggle", () => {
    if (inside.childElementCount) return; // it was opened before
    inside.append(form(method, path, operation, document));
    if (operation.requestBody) inside.append(contentView("Body", operation.requestBody.content, document));
    for (const [code, answer] of Object.entries(operation.responses)) {
      const title = code === "default" ? "Errors" : `Answer ${code}`;
      inside.append(contentView(title, answer.content ?? {}, document));
    }
  });
  return view;
}

const TITLES = { openai: "OpenAI's, and flowvec's own", tei: "Text Embeddings Inference's", cohere: "Cohere's", jina: "Jina's", ollama: "Ollama's" };

function render(document) {
  globalThis.document.getElementById("version").textContent = document.info.version;
  const groups = new Map();
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const [tag] = operation.tags;
      if (!groups.has(tag)) groups.set(tag, element("section", {}, element("h2", {}, TITLES[tag] ?? tag)));
      groups.get(tag).append(routeView(method.toUpperCase(), path, operation, document));
    }
  }
  routes.replaceChildren(...groups.values());
}

function search() {
  const wanted = filter.value.trim().toLowerCase();
  for (const view of routes.querySelectorAll("details")) view.hidden = !view.dataset.search.includes(wanted);
}

async function load() {
  status.textContent = "Loading…";
  try {
    const answer = await fetch("openapi.json", { headers: headers() });
    if (answer.status === 401) {
      status.textContent = "This server needs an API key: enter it above.";
      return;
    }
    if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
    render(await answer.json());
    search();
    status.textContent = "";
  } catch (error) {
    status.textContent = `The routes could not be loaded: ${error.message ?? error}`;
  }
}

key.addEventListener("change", load);
filter.addEventListener("input", search);
load();
