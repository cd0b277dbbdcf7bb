// A search as a command and as a program, to copy.
const base = () => new URL(".", document.baseURI).href;

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

// A value of JSON as Python writes it. JSON's strings are Python's, too.
function python(value, indent = "") {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const deeper = `${indent}    `;
  if (Array.isArray(value)) return `[${value.map((each) => python(each, indent)).join(", ")}]`;
  const lines = Object.entries(value).map(([k, v]) => `${deeper}${JSON.stringify(k)}: ${python(v, deeper)},\n`);
  return lines.length ? `{\n${lines.join("")}${indent}}` : "{}";
}

export function asCurl(path, body, needsKey) {
  const header = needsKey ? ` \\\n  -H "authorization: Bearer $FLOWVEC_KEY"` : "";
  return `curl ${quoted(base() + path)}${header} \\\n  -H 'content-type: application/json' \\\n`
    + `  -d ${quoted(JSON.stringify(body))}`;
}

export function asPython(path, body, needsKey) {
  const headers = needsKey
    ? `{"content-type": "application/json", "authorization": "Bearer " + os.environ["FLOWVEC_KEY"]}`
    : `{"content-type": "application/json"}`;
  return `import json
${needsKey ? "import os\n" : ""}from urllib.request import Request, urlopen

body = ${python(body)}
request = Request(
    ${JSON.stringify(base() + path)},
    json.dumps(body).encode(),
    ${headers},
)
for hit in json.load(urlopen(request))["hits"]:
    print(round(hit["score"], 3), hit["id"], hit["text"])
`;
}
