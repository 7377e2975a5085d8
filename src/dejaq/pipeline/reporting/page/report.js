"use strict";
// Draws the report from the JSON in the page. All text is set as text, never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const ROWS = 25;
const report = JSON.parse(document.getElementById("data").textContent);

function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") element.className = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function draw(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const colour = (place) => `var(--c${place % 8})`;

function short(value) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)}${unit}`;
  return `${+value.toPrecision(3)}`;
}

function when(ms, step) {
  const text = new Date(ms).toISOString();
  if (step >= 86400000) return text.slice(0, 10);
  if (step >= 60000) return text.slice(5, 16).replace("T", " ");
  return text.slice(11, step >= 1000 ? 19 : 23);
}

// Ticks at round distances, so many at most.
function ticks(low, high, most, steps) {
  const wanted = (high - low) / Math.max(1, most);
  let step = steps ? steps.find((one) => one >= wanted) : undefined;
  if (step === undefined) {
    const power = 10 ** Math.floor(Math.log10(Math.max(wanted, 1e-9)));
    step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= wanted);
  }
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(at);
  return [found, step];
}

const TIMES = [1000, 5000, 15000, 60000, 300000, 900000, 3600000, 10800000, 43200000, 86400000, 604800000, 2592000000];

// A chart over time. Drag a stretch to zoom in, or use the keys + - left right 0.
function timeChart(chart) {
  const svg = draw("svg", { height: 240, tabindex: 0, role: "img", "aria-label": `${chart.title}; the numbers are in the tables below` });
  const hint = make("p", { class: "hint", "aria-live": "polite" });
  const reset = make("button", { type: "button", onclick: () => show(first, last) }, "whole time");
  const legend = make("ul", { class: "legend" });
  chart.series.forEach((series, place) => {
    const mark = make("i");
    mark.style.background = colour(place);
    legend.append(make("li", {}, mark, series.name));
  });
  const all = chart.series.flatMap((series) => series.points.map((point) => point[0]));
  const first = all.reduce((a, b) => Math.min(a, b));
  const last = all.reduce((a, b) => Math.max(a, b)) + chart.step;
  let low = first, high = last, frame = null, drag = null;

  // The largest value in each column of pixels, so that no peak disappears.
  function columns(series, width) {
    const found = new Map();
    for (const [x, y] of series.points) {
      if (y === null || x + chart.step <= low || x >= high) continue;
      const column = Math.max(0, Math.floor(((x - low) / (high - low)) * width));
      if (!found.has(column) || found.get(column)[1] < y) found.set(column, [x, y]);
    }
    return [...found.values()].sort((a, b) => a[0] - b[0]);
  }

  function show(from, to) {
    const least = chart.step * 2;
    if (to - from < least) { const middle = (from + to) / 2; from = middle - least / 2; to = from + least; }
    if (from < first) { to += first - from; from = first; }
    if (to > last) { from -= to - last; to = last; }
    low = Math.max(first, from);
    high = Math.max(low + least, to);
    paint();
  }

  function paint() {
    const width = Math.max(200, svg.clientWidth || 800), height = 240, bottom = height - 24, top = 8;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    const rough = chart.series.map((series) => columns(series, width));
    let peak = 0;
    if (chart.stacked) {
      const sums = new Map();
      rough.flat().forEach(([x, y]) => sums.set(x, (sums.get(x) || 0) + y));
      sums.forEach((sum) => { peak = Math.max(peak, sum); });
    } else rough.flat().forEach(([, y]) => { peak = Math.max(peak, y); });
    if (chart.line) peak = Math.max(peak, chart.line.at);
    const [marks] = ticks(0, peak || 1, 5);
    const ceiling = Math.max(marks[marks.length - 1], peak || 1) * 1.05;
    const labels = marks.map((mark) => draw("text", { x: 0, "text-anchor": "end" }, short(mark)));
    svg.append(...labels);
    // As wide as the widest label, so that none is clipped.
    const left = Math.ceil(Math.max(...labels.map((label) => label.getComputedTextLength()))) + 10, right = width - 12;
    const px = (x) => left + ((x - low) / (high - low)) * (right - left);
    const py = (y) => bottom - (y / ceiling) * (bottom - top);
    marks.forEach((mark, place) => {
      labels[place].setAttribute("x", left - 6);
      labels[place].setAttribute("y", py(mark) + 4);
      svg.append(draw("line", { class: "grid", x1: left, x2: right, y1: py(mark), y2: py(mark) }));
    });
    const [moments, step] = ticks(low, high, (right - left) / 110, TIMES);
    for (const at of moments) {
      const label = draw("text", { x: px(at), y: height - 6, "text-anchor": "middle" }, when(at, step));
      svg.append(label);
      const half = label.getComputedTextLength() / 2;
      label.setAttribute("x", Math.min(Math.max(px(at), half + 1), width - half - 1));
      svg.append(draw("line", { class: "grid", x1: px(at), x2: px(at), y1: bottom, y2: bottom + 4 }));
    }
    const below = new Map();
    chart.series.forEach((series, place) => {
      const points = columns(series, right - left);
      const one = Math.max(1, ((right - left) * chart.step) / (high - low));
      if (chart.stacked) {
        for (const [x, y] of points) {
          const base = below.get(x) || 0;
          const edge = Math.max(left, px(x));
          const size = Math.max(0, Math.min(px(x) + one, right) - edge);
          const bar = draw("rect", { x: edge, width: size, y: py(base + y), height: Math.max(0, py(base) - py(base + y)) });
          bar.style.fill = colour(place);
          svg.append(bar);
          below.set(x, base + y);
        }
        return;
      }
      const inside = points.map(([x, y]) => [Math.min(Math.max(px(x + chart.step / 2), left), right), py(y)]);
      const line = draw("polyline", { points: inside.map((pair) => pair.join(",")).join(" "), fill: "none", "stroke-width": 1.6 });
      line.style.stroke = colour(place);
      if (series.dashed) line.setAttribute("stroke-dasharray", "4 3");
      svg.append(line);
      if (inside.length < 120) for (const [x, y] of inside) {
        const dot = draw("circle", { cx: x, cy: y, r: 2.2 });
        dot.style.fill = colour(place);
        svg.append(dot);
      }
    });
    if (chart.line) {
      const line = draw("line", { x1: left, x2: right, y1: py(chart.line.at), y2: py(chart.line.at), "stroke-dasharray": "6 4" });
      line.style.stroke = "var(--bad)";
      svg.append(line, draw("text", { x: left + 6, y: py(chart.line.at) - 4 }, chart.line.name));
    }
    reset.disabled = low === first && high === last;
    frame = { left, right, ms: (x) => low + ((x - left) / (right - left)) * (high - low) };
    svg.dataset.low = low;
    svg.dataset.high = high;
    hint.textContent = `${when(low, 60000)} to ${when(high, 60000)} UTC. Drag to zoom in; keys: + − ← → 0.`;
  }

  const place = (event) => Math.min(Math.max(event.clientX - svg.getBoundingClientRect().left, frame.left), frame.right);
  svg.addEventListener("pointerdown", (event) => {
    drag = { from: place(event), box: draw("rect", { class: "brush", y: 0, height: 216, width: 0 }) };
    svg.append(drag.box);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (drag) {
      drag.box.setAttribute("x", Math.min(drag.from, place(event)));
      drag.box.setAttribute("width", Math.abs(place(event) - drag.from));
      return;
    }
    const at = frame.ms(place(event));
    const values = chart.series.map((series) => {
      const point = series.points.find(([x]) => x <= at && at < x + chart.step);
      return point && point[1] !== null ? `${series.name} ${short(point[1])}` : null;
    });
    hint.textContent = `${when(at, Math.min(chart.step, 60000))} UTC: ${values.filter(Boolean).join(", ") || "nothing"}`;
  });
  svg.addEventListener("pointerup", (event) => {
    const begun = drag;
    drag = null;
    if (!begun) return;
    begun.box.remove();
    if (Math.abs(place(event) - begun.from) > 4) {
      const [a, b] = [begun.from, place(event)].sort((one, other) => one - other).map(frame.ms);
      show(a, b);
    }
  });
  svg.addEventListener("pointercancel", () => { if (drag) drag.box.remove(); drag = null; });
  svg.addEventListener("keydown", (event) => {
    const width = high - low, middle = (low + high) / 2;
    const moves = {
      "+": [middle - width / 4, middle + width / 4], "-": [middle - width, middle + width], 0: [first, last],
      ArrowLeft: [low - width / 4, high - width / 4], ArrowRight: [low + width / 4, high + width / 4],
    };
    if (moves[event.key]) { event.preventDefault(); show(...moves[event.key]); }
  });
  new ResizeObserver(paint).observe(svg);
  return make("div", { class: "chart" }, make("h3", {}, chart.title), legend, svg, make("div", { class: "tools" }, reset, hint));
}

function barChart(chart) {
  const most = Math.max(1e-9, ...chart.bars.map((bar) => bar.parts.reduce((sum, part) => sum + part, 0)));
  const legend = make("ul", { class: "legend" });
  if (chart.names.length > 1) chart.names.forEach((name, place) => {
    const mark = make("i");
    mark.style.background = colour(place);
    legend.append(make("li", {}, mark, name));
  });
  const grid = make("div", { class: "bars" });
  for (const bar of chart.bars) {
    const line = make("span", { class: "bar", "aria-hidden": "true" });
    bar.parts.forEach((part, place) => {
      const piece = make("i");
      piece.style.background = colour(place);
      piece.style.width = `${(part / most) * 100}%`;
      line.append(piece);
    });
    const sum = bar.parts.reduce((all, part) => all + part, 0);
    grid.append(make("span", { class: "name" }, bar.name), line, make("span", { class: "value" }, `${short(sum)}${chart.unit}`));
  }
  return make("div", { class: "chart" }, make("h3", {}, chart.title), legend, grid);
}

// A table of which a page is shown; searching and sorting use every row.
function dataTable(table) {
  const body = make("tbody"), told = make("span", { class: "rows", "aria-live": "polite" });
  const texts = table.rows.map((row) => row.map((cell) => cell[0].toLowerCase()).join("\n"));
  let shown = table.rows.map((_, row) => row), page = 0, sorted = null;
  const search = make("input", { type: "search", placeholder: "search every row", "aria-label": `search ${table.name}`, oninput: () => { page = 0; choose(); } });
  const back = make("button", { type: "button", onclick: () => { page -= 1; paint(); } }, "previous");
  const next = make("button", { type: "button", onclick: () => { page += 1; paint(); } }, "next");

  function choose() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = texts.flatMap((text, row) => (words.every((word) => text.includes(word)) ? [row] : []));
    if (sorted) {
      const value = (row) => table.rows[row][sorted.column][1] ?? table.rows[row][sorted.column][0];
      shown.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : a - b) * sorted.direction);
    }
    paint();
  }

  function paint() {
    const first = page * ROWS, part = shown.slice(first, first + ROWS);
    body.replaceChildren(...part.map((row) => make("tr", {}, ...table.rows[row].map(([text], column) => make("td", { class: table.columns[column].kind }, text)))));
    told.textContent = shown.length ? `${(first + 1).toLocaleString("en")} to ${(first + part.length).toLocaleString("en")} of ${shown.length.toLocaleString("en")} rows` : "no row";
    back.disabled = page === 0;
    next.disabled = first + ROWS >= shown.length;
  }

  const head = make("tr", {}, ...table.columns.map((column, place) => {
    const cell = make("th", { class: column.kind, scope: "col" });
    cell.append(make("button", { type: "button", onclick: () => {
      sorted = { column: place, direction: sorted && sorted.column === place ? -sorted.direction : 1 };
      head.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", sorted.direction > 0 ? "ascending" : "descending");
      page = 0;
      choose();
    } }, column.name));
    return cell;
  }));
  const details = make("details", {}, make("summary", {}, `${table.name} (${table.rows.length.toLocaleString("en")})`));
  details.open = table.open;
  const place = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": table.name });
  place.append(make("table", {}, make("thead", {}, head), body));
  details.append(make("div", { class: "tools" }, search, back, next, told), place);
  if (table.note) details.append(make("p", { class: "hint" }, table.note));
  choose();
  return details;
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  const other = name === "dark" ? "light" : "dark";
  switcher.textContent = `${other} colours`;
  switcher.onclick = () => theme(other);
}

const switcher = make("button", { type: "button", id: "theme" });
const nav = document.querySelector("nav");
const main = document.querySelector("main");
for (const section of report.sections) {
  nav.append(make("a", { href: `#${section.job}` }, section.title));
  const cards = make("ul", { class: "cards" }, ...section.figures.map(([name, value]) => make("li", { class: name }, make("b", {}, value), make("span", {}, name))));
  const whole = make("section", { id: section.job, class: section.failed ? "failed" : "" }, make("h2", {}, section.title), make("p", { class: "question" }, section.question), cards);
  main.append(whole);
  for (const chart of section.charts) whole.append(chart.bars ? barChart(chart) : timeChart(chart));
  for (const table of section.tables) whole.append(dataTable(table));
}
nav.append(switcher);
theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
