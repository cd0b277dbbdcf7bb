// Requests to the server, and what to tell a person when one fails.

const about = document.documentElement.dataset;
export const server = {
  version: about.version,
  needsKey: about.needsKey === "1",
  mayWrite: about.mayWrite === "1",
};

const KEY = "flowvec-key";
const listeners = new Set();

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set(value) {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  },
  // Called when the server refuses the key.
  onRefused(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};

export class Failure extends Error {
  constructor(title, detail, status = 0, wait = 0) {
    super(title);
    this.title = title;
    this.detail = detail;
    this.status = status;
    this.wait = wait; // seconds until it makes sense to try again; 0 if that would not help
  }
}

function failure(status, detail, wait) {
  const again = Math.max(1, Math.ceil(wait || 1));
  const titles = {
    400: ["The server does not accept this", 0],
    401: ["This server needs an API key", 0],
    403: ["The server does not answer pages from this address", 0],
    404: ["Not found", 0],
    409: ["This collection belongs to another model", 0],
    413: ["Too large", 0],
    429: ["The server is busy", again],
    503: ["The server takes no work at the moment", again],
    504: ["The server was too slow: it is probably overloaded", again],
  };
  const [title, seconds] = titles[status] ?? [`The server failed (${status})`, again];
  return new Failure(title, detail, status, seconds);
}

function headers(json) {
  const given = {};
  if (json) given["content-type"] = "application/json";
  if (key.get()) given.authorization = `Bearer ${key.get()}`;
  return given;
}

async function answered(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server does not answer", "It may have stopped, or the network fails.", 0, 3);
  }
  if (answer.ok) return answer;
  let detail = "";
  try {
    const body = await answer.json();
    detail = String(body.error?.message ?? body.error ?? body.message ?? "");
  } catch { /* not JSON: the status says enough */ }
  if (answer.status === 401) listeners.forEach((listener) => listener());
  throw failure(answer.status, detail, Number(answer.headers.get("retry-after")));
}

// JSON of a route. With a body it is a POST.
export async function ask(path, body, { signal, method } = {}) {
  const answer = await answered(path, {
    method: method ?? (body === undefined ? "GET" : "POST"),
    headers: headers(body !== undefined),
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
  });
  const value = await answer.json();
  return { value, stages: stages(answer.headers.get("server-timing")) };
}

export async function bytes(path, { signal } = {}) {
  const answer = await answered(path, { headers: headers(false), signal });
  return answer.arrayBuffer();
}

// Events of a stream, with the key in a header, which EventSource cannot send.
export async function* events(path, signal) {
  const answer = await answered(path, {
    headers: { ...headers(false), accept: "text/event-stream" },
    signal,
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "));
      if (data) yield JSON.parse(data.slice(6));
    }
  }
}

function stages(header) {
  const found = [];
  for (const part of (header ?? "").split(",")) {
    const match = /^\s*(\w+);dur=([\d.]+)/.exec(part);
    if (match) found.push([match[1], Number(match[2])]);
  }
  return found;
}

export const collectionPath = (name) => `v1/collections/${encodeURIComponent(name)}`;
