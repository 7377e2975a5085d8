// What single pages do.
import { $, $$, Problem, api, at, curl, described, element, number, say, segment, setTime, shell, summary } from "./app.js";
import { watch } from "./live.js";
import { forecast, lateness } from "./charts.js";
import { Timeline } from "./timeline.js";

export function startPages() {
  if ($("[data-live=overview]")) overview();
  if ($("#timeline")) timeline();
  if ($("#strip")) dueNext();
  if ($("[data-produce]")) produce();
  if ($("[data-lease]")) consume();
  if ($("[data-schedule]")) schedules();
  if ($("#lateness")) lateness();
  if ($("#forecast-chart")) forecast();
  if ($("[data-letters]")) letters();
  for (const form of $$("[data-dry]")) dryRun(form);
  for (const form of $$("[data-secret]")) secret(form);
  for (const button of $$("button.act")) sure(button);
  if ($("[data-topic-live]")) topicCounts();
  for (const place of $$("[data-focused]")) showFocused(place);
  for (const button of $$("button.letter")) button.addEventListener("click", () => act(button, { json: { ids: [button.dataset.id] } }, $("#letter-outcome")));
  for (const button of $$("button.schedule")) button.addEventListener("click", () => act(button, {}, $("#schedule-outcome")));
  for (const form of $$("#by-id")) form.addEventListener("submit", (event) => { event.preventDefault(); location.assign(`/topics/${segment(form.dataset.topic)}/messages/${encodeURIComponent(form.elements.id.value)}`); });
}

// Buttons in rows share one place that shows what the one in focus would run.
function showFocused(place) {
  const put = (name, text) => { $(`[data-as=${name}]`, place).textContent = text; };
  const show = (button) => {
    if (!button?.dataset.cli) return;
    const { cli, python, method = "POST", path, json } = button.dataset;
    put("cli", cli); put("python", python); put("curl", curl(method, path, json ? JSON.parse(json) : method === "DELETE" ? undefined : {}));
  };
  for (const name of ["focusin", "pointerover"]) place.parentElement.addEventListener(name, (event) => show(event.target.closest("button")));
  show($("button[data-cli]", place.parentElement));
}

function topicCounts() {
  const place = $("[data-topic-live]");
  watch("topic", { kind: "topic", topic: place.dataset.topicLive }, (topic) => {
    for (const cell of $$("[data-of]", place)) cell.textContent = number(topic[cell.dataset.of]);
    for (const cell of $$(".rates [data-rate]")) cell.textContent = (topic.rates?.[cell.dataset.rate] ?? 0).toFixed(1);
  });
}

// A button that changes something asks once, beside itself.
function sure(button) {
  button.addEventListener("click", () => {
    const place = button.parentElement, output = $("[data-outcome]", button.closest("section")) ?? element("output", "", { class: "outcome", role: "status" });
    const yes = element("button", button.dataset.sure, { type: "button", class: "danger" }), no = element("button", "Keep it", { type: "button" });
    const back = () => { place.replaceChildren(button); button.focus(); };
    no.addEventListener("click", back);
    yes.addEventListener("click", async () => {
      try { await api(button.dataset.method, button.dataset.path); place.replaceChildren(element("span", "Done.", { class: "ok" })); setTimeout(() => location.reload(), 400); }
      catch (error) { back(); place.append(output); say(output, error.message, false); }
    });
    place.replaceChildren(yes, " ", no);
    yes.focus();
  });
}

function dryRun(form) {
  form.customSubmit = async (button) => {
    const call = described(form), dry = button?.name === "dry";
    const answer = await api(call.method, call.path, { json: { ...call.body, dry_run: dry } });
    const offsets = Object.entries(answer.offsets).slice(0, 20).map(([bucket, offset]) => `${bucket}: ${number(offset)}`).join(", ");
    say($(".outcome", form), `${dry ? "Would read on from" : "Reads on from"} ${offsets}.${dry ? " Nothing was changed." : ""}`, true);
    if (!dry) setTimeout(() => location.reload(), 800);
  };
}

function secret(form) {
  form.customSubmit = async () => {
    const call = described(form), { key, secret: text } = await api(call.method, call.path, { json: call.body });
    say($(".outcome", form), `Key ${key.id}. Copy its secret now; it is never shown again:\n${text}`, true);
  };
}

function letters() {
  const form = $("[data-letters]");
  form.customSubmit = async (button) => {
    const call = described(form), purge = button?.name === "purge", dry = button?.name === "dry";
    if (!Object.keys(call.body).length) throw new Problem("Give a reason, a time or an owner; the cards below are for all.");
    const path = purge ? call.path.replace(":redrive", ":purge") : call.path;
    say($(".outcome", form), summary(await api("POST", path, { json: { ...call.body, dry_run: dry } })), true);
    if (!dry) setTimeout(() => location.reload(), 800);
  };
}

async function act(button, options, output) {
  button.disabled = true;
  try { say(output, summary(await api("POST", button.dataset.path, options)), true); setTimeout(() => location.reload(), 400); }
  catch (error) { say(output, error.message, false); button.disabled = false; }
}

function overview() {
  const past = new Map();
  watch("overview", { kind: "overview" }, (info) => {
    const sums = { topics: info.topics.length, clients: info.clients.length, waiting: 0, available: 0, processing: 0 };
    for (const topic of info.topics) {
      for (const name of ["waiting", "available", "processing"]) sums[name] += topic[name];
      const row = $$("#busy-topics tr[data-topic]").find((one) => one.dataset.topic === topic.name);
      const points = past.get(topic.name) ?? [];
      points.push(topic.waiting); past.set(topic.name, points.slice(-160));
      if (!row) continue;
      for (const cell of $$("[data-of]", row)) cell.textContent = number(topic[cell.dataset.of]);
      const rates = info.rates[topic.name];
      for (const cell of $$("[data-rate]", row)) { const value = rates?.[cell.dataset.rate]; cell.textContent = cell.dataset.rate !== "p99_ms" ? (value ?? 0).toFixed(1) : value === undefined || value === null ? "—" : `${value.toFixed(1)} ms`; }
      spark($("canvas", row), past.get(topic.name));
    }
    for (const broker of info.brokers) {
      const row = $$("tr[data-broker]").find((one) => one.dataset.broker === broker.id), bad = broker.draining || broker.degradations.length > 0;
      if (!row) continue;
      const health = $("[data-health]", row);
      health.textContent = broker.draining ? "draining" : bad ? "degraded" : "healthy"; health.className = `status ${bad ? "bad" : "good"}`;
      $("[data-sessions]", row).textContent = number(broker.sessions); $("[data-offset]", row).textContent = `${broker.offset_ms.toFixed(1)} ms`;
    }
    problems(info);
    for (const one of $$("[data-sum]")) one.textContent = number(sums[one.dataset.sum]);
  });
}

// What is wrong, and what to do: the same list as the server makes, built again only when it changes.
function problems(info) {
  const rows = [], counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
  const link = (text, href) => element("a", text, { href });
  for (const broker of info.brokers) for (const [text, kind] of [...broker.degradations.map((one) => [`: ${one}`, "bad"]), ...(broker.draining ? [[" is shutting down", "bad"]] : []), ...broker.notes.map((one) => [`: ${one}`, ""])]) rows.push([kind, element("strong", broker.id), text]);
  for (const { name, available, consumers, settings } of info.topics) {
    if (!available || consumers || settings.kind === "log") continue;
    const place = `/topics/${segment(name)}`;
    if (name.endsWith(".dead")) rows.push(["", link(name, place), ` has ${counted(available, "dead letter")}: `, link("look, then redrive or purge", `/topics/${segment(name.slice(0, -5))}/dead-letters`)]);
    else rows.push(["", link(name, place), ` has ${counted(available, "message")} that ${available === 1 ? "is" : "are"} due, and no consumer: start one, or `, link("consume by hand", `${place}/consume`)]);
  }
  const items = rows.map(([kind, ...parts]) => { const item = element("li", "", kind ? { class: kind } : {}); item.append(...parts); return item; });
  const list = $("#problems"), text = (found) => found.map((one) => one.textContent).join("\n");
  if (text(items) !== text([...list.children])) list.replaceChildren(...items);
}

function spark(canvas, points) {
  const pen = canvas.getContext("2d"), most = Math.max(1, ...points), least = Math.min(...points), high = Math.max(most - least, 1);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent"); pen.lineWidth = 1.5; pen.beginPath();
  points.forEach((value, n) => pen.lineTo(canvas.width - points.length + n, 22 - (value - least) / high * 20));
  pen.stroke();
}

function timeline() {
  const canvas = $("#timeline"), topic = canvas.dataset.topic, form = $("#change"), path = `/api/v1/topics/${segment(topic)}`;
  const table = $("#bins tbody");
  const range = (line) => {
    const view = line.view();
    $("#range").textContent = `${at(line.start)} to ${at(line.end)}, one bar per ${length(view.step_ms)}`;
    watch("timeline", view, (data, now) => {
      line.shownStep = view.step_ms; line.show(data, now);
      const held = new Map(data.held_starts.map((start, n) => [start, data.held_counts[n]]));
      table.replaceChildren(...data.starts.slice(0, 500).map((start, n) => { const row = element("tr"); row.append(element("td", at(start)), element("td", number(data.counts[n]), { class: "n" }), element("td", number(held.get(start) ?? 0), { class: "n" })); return row; }));
    });
  };
  const line = new Timeline(canvas, { onRange: range, onSelect: (selection) => selected(selection) });
  for (const button of $$("[data-span]")) button.addEventListener("click", () => line.span(Number(button.dataset.span)));
  $("#scale").addEventListener("click", () => { line.logarithmic = !line.logarithmic; $("#scale").setAttribute("aria-pressed", String(line.logarithmic)); line.draw(); });
  for (const button of $$("[data-zoom]")) button.addEventListener("click", () => line.zoom(Number(button.dataset.zoom)));

  async function selected(selection) {
    $("#selection").hidden = !selection;
    if (!selection) return;
    setTime($("#selected-start"), selection[0]); setTime($("#selected-end"), selection[1]);
    $("#selected-list").href = `/topics/${segment(topic)}/messages?start=${selection[0]}&end=${selection[1]}`;
    describe();
    try {
      const found = await api("GET", `${path}/count?start=${selection[0]}&end=${selection[1]}`);
      $("#selected-count").textContent = number(found.count);
    } catch (error) { $("#selected-count").textContent = error.message; }
  }
  if (!form) return;
  const call = (dry) => {
    const { action, value, group } = Object.fromEntries(new FormData(form)), [start, end] = line.selection;
    const seconds = Number(value), verb = action === "shift" ? "move" : action;
    if ((action === "shift" || action === "edit") && !Number.isFinite(seconds)) throw new Problem("The value is a number.");
    const body = { shift: { shift: seconds }, move: { at: value }, edit: { priority: Math.trunc(seconds) }, cancel: {} }[action];
    return { action, value, group, start, end, body, path: `${path}/messages:${verb}?${new URLSearchParams({ group, start, end, ...(dry ? { dry_run: "true" } : {}) })}` };
  };
  function describe() {
    if (!line.selection) return;
    try {
      const { action, value, group, start, end, body, path: target } = call(false);
      line.ghost = action === "shift" ? body.shift * 1000 : 0; line.draw();
      const verb = { shift: "move", move: "move", edit: "edit", cancel: "cancel" }[action];
      const option = { shift: ` --shift ${shell(`${value}s`)}`, move: ` --at ${shell(value)}`, edit: ` --priority ${shell(value)}`, cancel: "" }[action];
      const argument = { shift: `, shift=${value}`, move: `, at=${JSON.stringify(value)}`, edit: `, priority=${value}`, cancel: "" }[action];
      $("[data-as=cli]", form).textContent = `dejaq ${verb} ${shell(topic)} --group ${shell(group)} --where from=${start} --where to=${end}${option}`;
      $("[data-as=python]", form).textContent = `async with client.producer(${JSON.stringify(topic)}, group=${JSON.stringify(group)}) as producer:\n    await producer.${verb}_where(dejaq.Where(start=${start}, end=${end})${argument})`;
      $("[data-as=curl]", form).textContent = curl("POST", target, body);
    } catch { line.ghost = 0; }
  }
  // A value of one action must not become that of another: 3600 seconds are a time in 1970.
  form.elements.action.addEventListener("change", () => { form.elements.value.value = { shift: "3600", move: "+1h", edit: "0", cancel: "" }[form.elements.action.value]; describe(); });
  form.addEventListener("input", describe);
  form.customSubmit = async (button) => {
    const { body, path: target } = call(button?.name !== "apply"), output = $(".outcome", form);
    say(output, "working …", true);
    const lines = ({ tried }) => say(output, `working … ${number(tried)} so far`, true);
    say(output, summary(await api("POST", target, { json: body, lines })), true);
    if (button?.name === "apply") selected(line.selection);
  };
}

const length = (ms) => ms < 1000 ? `${ms} ms` : ms < 6e4 ? `${ms / 1e3} s` : ms < 36e5 ? `${ms / 6e4} min` : ms < 864e5 ? `${ms / 36e5} h` : `${ms / 864e5} d`;

function dueNext() {
  const canvas = $("#strip"), topic = canvas.dataset.topic, rows = $("#due tbody");
  let offset = 0, data = { messages: [], starts: [], counts: [] };
  watch("due", { kind: "due", topic }, (fresh, now) => {
    offset = now - Date.now(); data = fresh;
    const total = data.counts.reduce((sum, one) => sum + one, 0);
    $("#due-count").textContent = number(total);
    rows.replaceChildren(...data.messages.map((message) => {
      const row = element("tr"), name = element("td"), time = element("td");
      name.append(element("a", message.id, { href: `/topics/${segment(topic)}/messages/${encodeURIComponent(message.id)}` }));
      const shown = element("time"); setTime(shown, message.ts); time.append(shown);
      row.append(element("td", "", { class: "n", "data-until": message.ts }), time, name, element("td", message.priority, { class: "n" }), element("td", message.group), element("td", number(message.body_bytes), { class: "n" }));
      return row;
    }));
  });
  const draw = () => {
    const now = Date.now() + offset, width = canvas.clientWidth, height = canvas.clientHeight, ratio = devicePixelRatio || 1;
    setTime($("#broker-clock"), now);
    for (const cell of $$("[data-until]", rows)) cell.textContent = `${Math.max(0, (Number(cell.dataset.until) - now) / 1000).toFixed(1)} s`;
    canvas.width = width * ratio; canvas.height = height * ratio;
    const pen = canvas.getContext("2d"), css = getComputedStyle(document.documentElement), most = Math.max(1, ...data.counts);
    pen.scale(ratio, ratio); pen.font = "12px system-ui, sans-serif";
    data.starts.forEach((start, n) => { const x = (start - now) / 6e4 * width; pen.fillStyle = css.getPropertyValue("--waiting"); const h = data.counts[n] / most * (height - 34); pen.fillRect(x, height - 20 - h, Math.max(2, width / 60 - 2), h); });
    pen.fillStyle = css.getPropertyValue("--muted");
    for (let second = 0; second <= 60; second += 10) pen.fillText(`${second} s`, Math.min(second / 60 * width, width - 26), height - 5);
    if (document.visibilityState === "visible") requestAnimationFrame(draw); else setTimeout(draw, 1000);
  };
  draw();
}

function produce() {
  const form = $("[data-produce]");
  form.customSubmit = async () => {
    const fields = form.elements, output = $(".outcome", form), group = fields.group.value;
    const path = form.dataset.path + (group ? `?${new URLSearchParams({ group })}` : "");
    if (fields._file.files.length) {
      const lines = await api("POST", path, { content: await fields._file.files[0].text(), kind: "application/x-ndjson" });
      const outcomes = lines.trim().split("\n").filter(Boolean).map((line) => JSON.parse(line));
      return say(output, summary({ results: outcomes }), outcomes.every((one) => one.ok));
    }
    const headers = Object.fromEntries(fields._headers.value.split("\n").filter((line) => line.includes(":")).map((line) => [line.slice(0, line.indexOf(":")).trim(), line.slice(line.indexOf(":") + 1).trim()]));
    const copies = Math.min(Math.max(Number(fields._copies.value) || 1, 1), 1000), rows = [];
    for (let n = 1; n <= copies; n += 1) rows.push({ body: fields.body.value.replaceAll("{n}", n), headers, ...(fields.at.value ? { at: fields.at.value } : {}), ...(fields.id.value ? { id: copies > 1 ? `${fields.id.value}-${n}` : fields.id.value } : {}), ...(fields.priority.value ? { priority: Number(fields.priority.value) } : {}) });
    const answer = await api("POST", path, { json: rows });
    const failed = answer.results.find((one) => !one.ok);
    say(output, summary(answer) + (failed ? ` ${failed.code}: ${failed.detail}` : ""), !failed);
  };
}

function consume() {
  const form = $("[data-lease]"), list = $("#leases");
  // Leases end by the broker's clock, and this one may be wrong.
  const ahead = Date.now() - Number(form.dataset.now);
  form.customSubmit = async () => {
    const { max, lease, wait } = Object.fromEntries(new FormData(form));
    say($(".outcome", form), "waiting …", true);
    const answer = await api("POST", form.dataset.path, { json: { max: Number(max), lease: Number(lease), wait: Number(wait), consumer: "web" } });
    say($(".outcome", form), answer.leases.length ? `${answer.leases.length} leased.` : "No message was due.", true);
    for (const one of answer.leases) list.append(item(one));
  };
  const item = (held) => {
    const place = element("li"), output = element("output", "", { class: "outcome", role: "status" }), left = element("span", "", { class: "muted" });
    const base = `${form.dataset.path}/${held.lease}`;
    place.append(element("strong", held.id), " ", left, element("pre", held.body ?? held.body_base64 ?? "", { tabindex: "0" }));
    if (Object.keys(held.headers).length) place.append(element("p", Object.entries(held.headers).map(([name, value]) => `${name}: ${value}`).join(", "), { class: "muted" }));
    let until = held.expires_ms, running = Promise.resolve();
    const tick = () => { const seconds = (until - Date.now() + ahead) / 1000; left.textContent = seconds > 0 ? `attempt ${held.attempts}, ${seconds.toFixed(0)} s left` : "the lease is over; the message is delivered again"; if (seconds <= 0) { clearInterval(timer); for (const one of $$("button", place)) one.disabled = true; } };
    const timer = setInterval(tick, 250);
    const act = (label, method, path, json, done, cli, python) => {
      const button = element("button", label, { type: "button", "data-method": method, "data-path": path, "data-cli": cli, "data-python": python, ...(json ? { "data-json": JSON.stringify(json) } : {}) });
      // One action after the other: a deletion right after "Extend" must not overtake it.
      const run = async () => {
        if (!place.isConnected) return;
        try { const answer = await api(method, path, { json }); if (done) { clearInterval(timer); place.remove(); say($(".outcome", form), `${held.id}: ${done}`, true); } else until = answer.expires_ms; }
        catch (error) { say(output, error.message, false); }
      };
      button.addEventListener("click", () => { running = running.then(run); });
      place.append(button, " ");
    };
    const topic = shell(form.dataset.topic), none = "a lease belongs to the program that took it; no command continues it";
    act("Delete", "DELETE", base, undefined, "deleted", `dejaq consume ${topic} --max 1`, "await lease.delete()");
    act("Release", "POST", `${base}/release`, {}, "released", `dejaq consume ${topic} --max 1 --release-after 0s`, "await lease.release()");
    act("Extend by a minute", "POST", `${base}/extend`, { seconds: 60 }, "", none, "await lease.extend(60)");
    act("Reject", "POST", `${base}/reject`, { reason: "rejected by hand" }, "a dead letter now", none, 'await lease.reject("rejected by hand")');
    place.append(output);
    tick();
    return place;
  };
}

function schedules() {
  const form = $("[data-schedule]");
  $("[data-preview-button]", form).addEventListener("click", async () => {
    const fields = form.elements, output = $(".outcome", form);
    try {
      const { times } = await api("POST", form.dataset.preview, { json: { expression: fields.expression.value, ...(fields.zone.value ? { zone: fields.zone.value } : {}) } });
      const shown = new Intl.DateTimeFormat("sv-SE", { timeZone: fields.zone.value || "UTC", dateStyle: "short", timeStyle: "long" });
      let before = null;
      $("#times").replaceChildren(...times.map((text) => {
        const local = shown.format(new Date(text)), change = before !== null && local.slice(-6) !== before.slice(-6);
        before = local;
        return element("li", local + (change ? "  ← the clock has changed since the time before" : ""));
      }));
      say(output, `The next ${times.length} times in ${fields.zone.value || "UTC"}`, true);
    } catch (error) { say(output, error.message, false); }
  });
}
