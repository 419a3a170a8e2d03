// Small helpers. Text from data only ever becomes text nodes.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat());
  return made;
}

function shape(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.flat());
  return made;
}

// Control characters, NUL among them, as pictures of themselves.
const visible = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, (c) => String.fromCharCode(c === "\u007f" ? 0x2421 : 0x2400 + c.charCodeAt(0)));

// A piece of text whose direction is its own and leaves its surroundings alone.
const isolated = (text, tag = "bdi") => element(tag, { dir: "auto" }, visible(text));

const minus = (number) => number.replace("-", "−");
const percent = (value, digits = 1) => (value === null || Number.isNaN(value) ? "–" : minus(`${(100 * value).toFixed(digits)} %`));
const fixed = (value, digits = 3) => (value === null || value === undefined || Number.isNaN(value) ? "–" : minus(value.toFixed(digits)));
const count = (value) => value.toLocaleString("en-US");

const ARRAYS = { f32: Float32Array, u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, i32: Int32Array };

// A packed column: base64 of compressed bytes, of numbers or of JSON.
async function unpack(packed) {
  const raw = atob(packed.data);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const answer = new Response(stream);
  if (packed.type === "json") return JSON.parse(await answer.text());
  return new ARRAYS[packed.type](await answer.arrayBuffer());
}

function table(caption, heads, rows) {
  return element("table", {},
    element("caption", {}, visible(caption)),
    element("thead", {}, element("tr", {}, heads.map((head) => element("th", { scope: "col" }, visible(head))))),
    element("tbody", {}, rows.map((row) => element("tr", {}, row.map((cell, i) =>
      element(i ? "td" : "th", i ? {} : { scope: "row" }, visible(String(cell))))))));
}

function option(value, text) {
  const shown = visible(text);
  return element("option", { value }, shown.length > 60 ? `${shown.slice(0, 59)}…` : shown);
}

// Wilson's 95 % interval of a share.
function wilson(right, rows) {
  if (!rows) return [0, 1];
  const z = 1.96, share = right / rows, scale = 1 + (z * z) / rows;
  const middle = (share + (z * z) / (2 * rows)) / scale;
  const half = (z / scale) * Math.sqrt((share * (1 - share)) / rows + (z * z) / (4 * rows * rows));
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}
