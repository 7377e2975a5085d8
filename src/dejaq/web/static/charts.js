// Charts over time on a canvas: the heat map of lateness with percentiles, and the forecast with the capacity it takes.
import { $, at, element, number } from "./app.js";
import { watch } from "./live.js";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const PADDING = { left: 56, right: 14, top: 14, bottom: 26 };

function prepared(canvas, right = PADDING.right) {
  const width = canvas.clientWidth, height = canvas.clientHeight, ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0); pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif"; pen.lineWidth = 1;
  return { pen, width, height, left: PADDING.left, right: width - right, top: PADDING.top, floor: height - PADDING.bottom };
}

function timeAxis(area, start, end) {
  const { pen, left, right, floor } = area, x = (ms) => left + (ms - start) / Math.max(end - start, 1) * (right - left);
  pen.strokeStyle = color("--line"); pen.fillStyle = color("--muted"); pen.textAlign = "center";
  pen.beginPath(); pen.moveTo(left, floor + 0.5); pen.lineTo(right, floor + 0.5); pen.stroke();
  const count = Math.max(2, Math.floor((right - left) / 130)), long = end - start > 864e5;
  for (let n = 0; n <= count; n += 1) {
    const ms = start + (end - start) * n / count, text = at(ms, 0);
    pen.textAlign = n === 0 ? "left" : n === count ? "right" : "center";
    pen.fillText(long ? text.slice(5, 16) : text.slice(11, 19), x(ms), floor + 18);
  }
  return x;
}

const short = (ms) => ms < 1000 ? `${ms} ms` : ms < 6e4 ? `${ms / 1000} s` : `${ms / 6e4} min`;

function drawLateness(canvas, data) {
  const area = prepared(canvas), { pen, left, right, top, floor } = area, bounds = data.bounds_ms, rows = bounds.length + 1;
  const span = data.step_ms * (data.step_ms === 5000 ? 240 : 720), end = Math.ceil(Number(canvas.dataset.now) / data.step_ms) * data.step_ms;
  // Soon after the gateway has started, the axis has only the time since then.
  const start = Math.max(end - span, Math.min(Number(canvas.dataset.began || 0), end - span / 10));
  const x = timeAxis(area, start, end), tall = (floor - top) / rows, y = (row) => floor - (row + 1) * tall;
  const most = Math.max(1, ...data.counts.flat());
  pen.textAlign = "right"; pen.fillStyle = color("--muted");
  bounds.forEach((bound, row) => { if (row % 2 === 0) pen.fillText(short(bound), left - 8, floor - (row + 1) * tall + 4); });
  pen.fillStyle = color("--heat");
  data.starts.forEach((time, n) => data.counts[n].forEach((count, row) => {
    if (!count || time < start) return;
    pen.globalAlpha = 0.12 + 0.88 * Math.log1p(count) / Math.log1p(most);
    pen.fillRect(x(time), y(row), Math.max(1.5, x(time + data.step_ms) - x(time) - 0.5), tall - 0.5);
  }));
  pen.globalAlpha = 1;
  // Within a row, a percentile lies between the bounds of the row.
  const place = (ms) => { let row = bounds.findIndex((bound) => ms <= bound); if (row < 0) row = bounds.length; const low = row ? bounds[row - 1] : 0, high = bounds[row] ?? low; return floor - (row + (high > low ? (ms - low) / (high - low) : 0.5)) * tall; };
  for (const [name, style, dash] of [["p50_ms", "--good", []], ["p99_ms", "--available", []], ["p999_ms", "--bad", [4, 3]]]) {
    pen.strokeStyle = color(style); pen.lineWidth = 2; pen.setLineDash(dash); pen.beginPath();
    let before = null;
    data.starts.forEach((time, n) => {
      if (data[name][n] === null || time < start) return;
      const to = [x(time + data.step_ms / 2), place(data[name][n])];
      if (before === null || time - before > data.step_ms * 2) { pen.moveTo(to[0] - 2, to[1]); pen.lineTo(...to); } else pen.lineTo(...to);
      before = time;
    });
    pen.stroke();
  }
  pen.setLineDash([]);
}

export function lateness() {
  const canvas = $("#lateness"), table = $("#lateness-table tbody"), rates = $("#rates-table tbody");
  let data = JSON.parse(canvas.dataset.chart);
  const ms = (value) => value === null ? "—" : `${value.toFixed(1)} ms`;
  const show = () => {
    drawLateness(canvas, data);
    $("#no-lateness").hidden = data.starts.length > 0;
    table.replaceChildren(...data.starts.map((time, n) => { const row = element("tr"); row.append(element("td", at(time, 0)), element("td", number(data.counts[n].reduce((sum, one) => sum + one, 0)), { class: "n" }), ...["p50_ms", "p99_ms", "p999_ms"].map((name) => element("td", ms(data[name][n]), { class: "n" }))); return row; }).reverse());
  };
  watch("lateness", { kind: "lateness", topic: canvas.dataset.topic, fine: canvas.dataset.fine === "true" }, (fresh, now) => {
    data = fresh.lateness; canvas.dataset.now = now; show();
    const rows = Object.entries(fresh.rates).map(([name, one]) => { const row = element("tr"), cell = element("td"); cell.append(element("a", name, { href: `/topics/${encodeURIComponent(name).replaceAll("%2F", "/").replaceAll("%7E", "~")}/lateness` })); row.append(cell, ...["created", "leased", "deleted"].map((key) => element("td", one[key].toFixed(1), { class: "n" })), element("td", ms(one.p99_ms), { class: "n" })); return row; });
    if (rows.length) rates.replaceChildren(...rows);
  });
  document.addEventListener("zone", show);
  new ResizeObserver(show).observe(canvas);
}

function drawForecast(canvas, data) {
  const area = prepared(canvas, 56), { pen, left, right, top, floor } = area, step = 6e4;
  const x = timeAxis(area, data.starts[0], data.starts.at(-1) + step), wide = Math.max(1, x(data.starts[0] + step) - left - 0.5);
  const most = Math.max(1, ...data.due.map((due, n) => due + data.expected[n])), consumers = Math.max(1, ...data.consumers);
  const tall = (count) => count / most * (floor - top);
  data.starts.forEach((start, n) => {
    const due = tall(data.due[n]), expected = tall(data.expected[n]);
    pen.fillStyle = color("--waiting"); pen.fillRect(x(start), floor - due, wide, due);
    pen.fillStyle = color("--expected"); pen.fillRect(x(start), floor - due - expected, wide, expected);
  });
  pen.strokeStyle = color("--available"); pen.lineWidth = 2; pen.beginPath();
  data.starts.forEach((start, n) => { const y = floor - data.consumers[n] / consumers * (floor - top); pen.lineTo(x(start), y); pen.lineTo(x(start + step), y); });
  pen.stroke();
  pen.fillStyle = color("--muted"); pen.textAlign = "right"; pen.fillText(number(Math.round(most)), left - 8, top + 8); pen.fillText("0", left - 8, floor);
  pen.fillStyle = color("--available"); pen.textAlign = "left"; pen.fillText(number(Math.ceil(consumers)), right + 8, top + 8);
}

export function forecast() {
  const canvas = $("#forecast-chart"), data = JSON.parse(canvas.dataset.chart), show = () => drawForecast(canvas, data);
  document.addEventListener("zone", show);
  new ResizeObserver(show).observe(canvas);
}
