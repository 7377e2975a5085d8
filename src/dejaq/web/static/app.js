// What every page has: theme, time zone, keys, forms that call the API. It never makes HTML from text.
import { startPages } from "./pages.js";

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
export const number = (value) => Number(value).toLocaleString("en-US");

export function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Names of topics, ids and schedules are parts of an address. A user's own topic keeps its slash: ~alice/mail.
export const segment = (text) => encodeURIComponent(text).replaceAll("%2F", "/").replaceAll("%7E", "~");

export class Problem extends Error {}

// With `lines`, the answer may be lines of JSON: those that tell the progress are given to it as they come.
export async function api(method, path, { json, content, kind, headers = {}, lines } = {}) {
  const token = $("meta[name=csrf]")?.content;
  const options = { method, headers: { ...(token ? { "X-CSRF-Token": token } : {}), ...headers } };
  if (json !== undefined) { options.body = JSON.stringify(json); options.headers["Content-Type"] = "application/json"; }
  if (content !== undefined) { options.body = content; options.headers["Content-Type"] = kind; }
  if (lines) options.headers.Accept = "application/x-ndjson";
  const response = await fetch(path, options);
  if (lines && response.ok) return await lastLine(response.body, lines);
  const text = await response.text();
  if (!response.ok) {
    let problem = {};
    try { problem = JSON.parse(text); } catch { problem = { code: String(response.status), detail: text.slice(0, 200) }; }
    if (response.status === 401 && token) problem.detail += ". Your session has ended: load the page again to sign in.";
    throw new Problem(`${problem.code}: ${problem.detail}`);
  }
  return text && response.headers.get("content-type").startsWith("application/json") ? JSON.parse(text) : text;
}

async function lastLine(body, show) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", last = null;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const found = (rest + part.value).split("\n");
    rest = found.pop();
    for (const line of found) { last = JSON.parse(line); if ("tried" in last) show(last); }
  }
  if (rest) last = JSON.parse(rest);
  if (!last || "tried" in last) throw new Problem("The answer broke off: look what was changed.");
  if (last.code) throw new Problem(`${last.code}: ${last.detail}`);
  return last;
}

export function say(output, text, good) {
  output.textContent = text;
  output.className = `outcome ${good ? "ok" : "failed"}`;
}

// Times

let zone = localStorage.getItem("zone") || "UTC";
export function at(ms, digits = 3) {
  const date = new Date(Number(ms));
  if (Number.isNaN(date.getTime())) return String(ms);
  const parts = new Intl.DateTimeFormat("sv-SE", { timeZone: zone, year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: digits || undefined, hourCycle: "h23" });
  return parts.format(date).replace(",", ".");
}
function showTimes() { for (const one of $$("time[data-ms]")) { one.textContent = at(one.dataset.ms); one.title = new Date(Number(one.dataset.ms)).toISOString(); } }
export function setTime(target, ms) { target.dataset.ms = ms; target.dateTime = new Date(ms).toISOString(); target.textContent = at(ms); }

function startZone() {
  const select = $("#zone");
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const all = Intl.supportedValuesOf ? Intl.supportedValuesOf("timeZone") : [own];
  for (const name of [own, ...all]) if (name !== "UTC" && !$$("option", select).some((one) => one.value === name)) select.append(element("option", name, { value: name }));
  if (![...select.options].some((one) => one.value === zone)) zone = "UTC";
  select.value = zone;
  select.addEventListener("change", () => { zone = select.value; localStorage.setItem("zone", zone); showTimes(); document.dispatchEvent(new Event("zone")); });
  showTimes();
}

function startTheme() {
  const root = document.documentElement;
  if (localStorage.getItem("theme")) root.dataset.theme = localStorage.getItem("theme");
  $("#theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
    document.dispatchEvent(new Event("zone"));
  });
}

const PLACES = { o: "/", t: "/topics", c: "/clients", m: "/cluster", l: "/lateness", p: "/pipeline", a: "/access" };
function startKeys() {
  let before = "";
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    if (event.key === "?") $("#keys").showModal();
    else if (event.key === "/" && $("[data-search]")) { event.preventDefault(); $("[data-search]").focus(); }
    else if (before === "g" && PLACES[event.key]) location.assign(PLACES[event.key]);
    before = event.key;
  });
}

// Forms that call the API

export const shell = (text) => /^[\w./:@%+=,-][\w./:@%+=,~-]*$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`;
const escapes = { cli: shell, curl: shell };

export function fill(template, values, escape) {
  const put = (text) => text.replace(/\{(?:(p):)?(\w+)\}/g, (_, python, name) => python ? JSON.stringify(values[name] ?? "") : escape(values[name] ?? ""));
  // {{ and [[ are a brace and a bracket of a value that the server has put in.
  const hidden = template.replaceAll("{{", "\uE000").replaceAll("[[", "\uE001");
  return put(hidden.replace(/\[([^[\]]*\{(?:p:)?(\w+)\}[^[\]]*)\]/g, (_, part, name) => (values[name] ?? "") === "" ? "" : part)).replaceAll("\uE000", "{").replaceAll("\uE001", "[");
}

export function curl(method, path, json, headers = {}) {
  const parts = [`curl -X ${method} ${shell(location.origin + path)}`];
  for (const [name, value] of Object.entries(headers)) parts.push(`-H ${shell(`${name}: ${value}`)}`);
  if (json !== undefined) parts.push(`-H 'Content-Type: application/json'`, `-d ${shell(JSON.stringify(json))}`);
  return parts.join(" ");
}

function gathered(form) {
  const values = {}, json = {};
  for (const field of form.elements) {
    if (!field.name || field.type === "file" || field.name.startsWith("_") || field.tagName === "BUTTON") continue;
    if (field.value === "" && !("keep" in field.dataset)) continue;
    values[field.name] = field.value;
    json[field.name] = "json" in field.dataset ? JSON.parse(field.value) : "list" in field.dataset ? field.value.split(",").map((one) => one.trim()).filter(Boolean) : field.value;
  }
  return { values, json };
}

export function described(form) {
  const { values, json } = gathered(form);
  let path = form.dataset.path.replace(/\{(\w+)\}/g, (_, name) => { delete json[name]; return segment(values[name] ?? ""); });
  const query = new URLSearchParams();
  for (const name of (form.dataset.query || "").split(" ").filter(Boolean)) { if (values[name]) query.set(name, values[name]); delete json[name]; }
  if ([...query].length) path += (path.includes("?") ? "&" : "?") + query;
  const headers = form.dataset.ifMatch ? { "If-Match": `"${form.dataset.ifMatch}"` } : {};
  let body = form.dataset.body ? JSON.parse(form.dataset.body) : json;
  if (form.dataset.method === "DELETE") body = undefined;
  return { method: form.dataset.method, path, body, headers, values };
}

function showAs(form) {
  if ("bulk" in form.dataset) return;
  let call;
  try { call = described(form); } catch { return; }
  const put = (name, text) => { const place = $(`[data-as=${name}]`, form); if (place) place.textContent = text; };
  put("cli", fill(form.dataset.cli || "", call.values, escapes.cli));
  put("python", fill(form.dataset.python || "", call.values, String));
  put("curl", curl(call.method, call.path, call.body, call.headers));
}

async function submit(form, event) {
  event.preventDefault();
  const output = $(".outcome", form);
  if (form.dataset.confirm && form.elements._confirm.value !== form.dataset.confirm) return say(output, `Type ${form.dataset.confirm} to confirm.`, false);
  const custom = form.customSubmit;
  try {
    form.setAttribute("aria-busy", "true");
    if (custom) return await custom(event.submitter);
    const call = described(form);
    const answer = await api(call.method, call.path, { json: call.body, headers: call.headers });
    say(output, summary(answer), true);
    if (form.dataset.then !== undefined) {
      const next = form.dataset.then.replace(/\{(\w+)\}/g, (_, name) => segment(call.values[name]));
      setTimeout(() => next ? location.assign(next) : location.reload(), 400);
    }
  } catch (error) { say(output, error instanceof Problem ? error.message : `The gateway did not answer: ${error.message}`, false); }
  finally { form.removeAttribute("aria-busy"); }
}

export function summary(answer) {
  if (!answer) return "Done.";
  if (answer.matched !== undefined) {
    const refused = Object.entries(answer.refused).map(([code, count]) => `${number(count)} ${code}`).join(", ");
    return answer.dry_run ? `${number(answer.matched)} would be changed. Nothing was changed.` : `${number(answer.done)} of ${number(answer.matched)} changed${refused ? `; refused: ${refused}` : ""}.`;
  }
  if (answer.results) { const good = answer.results.filter((one) => one.ok).length; return `${number(good)} of ${number(answer.results.length)} accepted${answer.results.length === 1 ? `: ${answer.results[0].id} ${answer.results[0].code}` : ""}.`; }
  return "Done.";
}

function startForms() {
  for (const form of $$("form.api")) {
    form.addEventListener("submit", (event) => submit(form, event));
    form.addEventListener("input", () => showAs(form));
    showAs(form);
  }
  for (const table of $$("table[data-sortable]")) for (const [place, head] of $$("th", table).entries()) {
    const button = element("button", head.textContent, { type: "button" });
    head.replaceChildren(button);
    let up = true;
    button.addEventListener("click", () => {
      const key = (row) => row.cells[place]?.textContent.trim() ?? "";
      const numeric = head.classList.contains("n");
      const value = (row) => numeric ? parseFloat(key(row).replaceAll(",", "")) || 0 : key(row);
      const rows = [...table.tBodies[0].rows].sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (up ? 1 : -1));
      table.tBodies[0].append(...rows);
      for (const other of $$("th", table)) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      up = !up;
    });
  }
  const again = $("[data-again]");
  if (again) setTimeout(() => location.reload(), Number(again.dataset.again));
}

// On a narrow screen the links are one line that scrolls: show the one of this page.
function startLinks() {
  for (const link of $$("nav [aria-current=page]")) {
    const line = link.parentElement;
    line.scrollLeft = link.offsetLeft - line.offsetLeft - (line.clientWidth - link.offsetWidth) / 2;
  }
}

startTheme(); startZone(); startKeys(); startLinks(); startForms(); startPages();
// The style sheet lets nobody click before.
document.documentElement.dataset.ready = "";
