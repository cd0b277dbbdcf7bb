// Runs viewer.js with as much of a browser's document as it uses, against a running server, and
// prints which routes it shows and what they answer when the form is sent as it is.

const [url] = process.argv.slice(2);

class Element {
  constructor(name) {
    Object.assign(this, { name, children: [], attributes: {}, listeners: {}, dataset: {}, value: "", hidden: false, text: "" });
  }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  setAttribute(name, value) {
    this.attributes[name] = value;
    if (name.startsWith("data-")) this.dataset[name.slice(5)] = value;
  }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  get childElementCount() { return this.children.length; }
  set textContent(text) { this.text = text; }
  get textContent() {
    return this.text + this.children.map((child) => child.textContent ?? child).join("");
  }
  all(test) {
    const inside = this.children.filter((child) => child instanceof Element).flatMap((child) => child.all(test));
    return test(this) ? [this, ...inside] : inside;
  }
  querySelectorAll(name) { return this.all((each) => each.name === name); }
}

const named = {};
globalThis.document = {
  getElementById: (id) => (named[id] ??= new Element(id)),
  createElement: (name) => new Element(name),
};
const real = globalThis.fetch;
globalThis.fetch = (path, options) => real(new URL(path, `${url}/docs`), options);

await import("./viewer.js");
const until = async (condition) => {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 5));
};
await until(() => named.status.text === "" || named.status.text.includes("not"));

const views = named.routes.querySelectorAll("details");
const nameOf = (view) => view.children[0].children.slice(0, 2).map((part) => part.textContent).join(" ");
const answers = {};
for (const view of views) {
  const name = nameOf(view);
  if (name.includes("{")) continue;
  view.listeners.toggle();
  const [button] = view.querySelectorAll("button");
  const [output] = view.querySelectorAll("pre");
  button.listeners.click();
  await until(() => output.text && output.text !== "…");
  answers[name] = output.text;
}
named.filter.value = "EMBED-stream";
named.filter.listeners.input();
const filtered = views.filter((view) => !view.hidden).map(nameOf);
console.log(JSON.stringify({ routes: views.map(nameOf), answers, filtered }));
