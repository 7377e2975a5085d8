// The future of a topic on a canvas: from years to one millisecond. Zoom by wheel, keys, pinch; drag selects, Alt-drag moves.
import { at } from "./app.js";

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5, 1728e5, 6048e5, 12096e5, 2592e6, 7776e6, 15552e6, 31536e6];
const LEAST = 20, MOST = 10 * 366 * 864e5, PIXELS_PER_BIN = 6, TS_MIN = 978307200000, TS_MAX = 253402300799999;
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Timeline {
  constructor(canvas, { onRange, onSelect }) {
    this.canvas = canvas; this.onRange = onRange; this.onSelect = onSelect;
    this.offset = Number(canvas.dataset.now) - Date.now();
    const last = Number(canvas.dataset.last);
    const span = Math.min(Math.max(last - Number(canvas.dataset.now), 6e4), MOST / 1.25);
    this.start = Number(canvas.dataset.now) - span * 0.1; this.end = this.start + span * 1.25;
    this.data = { starts: [], counts: [], held_starts: [], held_counts: [] };
    this.selection = null; this.ghost = 0; this.logarithmic = false; this.asked = -Infinity; this.pointers = new Map();
    this.listen();
    new ResizeObserver(() => this.changed()).observe(canvas);
    document.addEventListener("zone", () => this.draw());
    setInterval(() => { if (document.visibilityState === "visible") this.draw(); }, 250);
  }
  now() { return Date.now() + this.offset; }
  get step() { const least = (this.end - this.start) / Math.max(this.canvas.clientWidth / PIXELS_PER_BIN, 10); return STEPS.find((one) => one >= least) ?? STEPS.at(-1); }
  view() {
    const step = this.step, start = Math.max(TS_MIN, Math.floor(this.start / step) * step);
    return { kind: "timeline", topic: this.canvas.dataset.topic, start, end: Math.max(start, Math.min(Math.ceil(this.end / step) * step, TS_MAX)), step_ms: step };
  }
  x(ms) { return (ms - this.start) / (this.end - this.start) * this.canvas.clientWidth; }
  ms(x) { return this.start + x / this.canvas.clientWidth * (this.end - this.start); }
  show(data, now) { this.data = data; this.offset = now - Date.now(); this.draw(); }
  range(start, end) {
    const span = Math.min(Math.max(end - start, LEAST), MOST);
    this.start = Math.max(TS_MIN, Math.min(start, TS_MAX - span)); this.end = this.start + span; this.changed();
  }
  span(length) { const now = this.now(); this.range(now - length * 0.1, now + length * 0.9); }
  zoom(factor, x = this.canvas.clientWidth / 2) { const middle = this.ms(x); this.range(middle - (middle - this.start) * factor, middle + (this.end - middle) * factor); }
  pan(share) { const by = (this.end - this.start) * share; this.range(this.start + by, this.end + by); }
  // The first change asks at once; those of a wheel or a drag that follow ask together.
  changed() {
    clearTimeout(this.timer); this.draw();
    const ask = () => { this.asked = performance.now(); this.onRange(this); };
    if (!(performance.now() - this.asked < 120)) ask(); else this.timer = setTimeout(ask, 80);
  }
  select(a, b) { const step = Math.min(this.step, (this.end - this.start) / 50); this.selection = a === null ? null : [Math.max(0, Math.round(Math.min(a, b))), Math.round(Math.max(a, b, Math.min(a, b) + step))]; this.draw(); clearTimeout(this.selecting); this.selecting = setTimeout(() => this.onSelect(this.selection), 120); }
  listen() {
    const canvas = this.canvas, x = (event) => event.clientX - canvas.getBoundingClientRect().left;
    canvas.addEventListener("wheel", (event) => { event.preventDefault(); if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / 1500); else this.zoom(Math.exp(event.deltaY / 400), x(event)); }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); this.pointers.set(event.pointerId, x(event)); this.from = this.ms(x(event)); this.moves = event.altKey || event.button === 1; });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.pointers.has(event.pointerId)) return;
      const before = this.pointers.get(event.pointerId), here = x(event);
      if (this.pointers.size === 2) {
        const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
        this.zoom(Math.abs(before - other) / Math.max(Math.abs(here - other), 1), (here + other) / 2); this.pinched = true;
      } else if (this.moves) this.pan((before - here) / canvas.clientWidth);
      else if (!this.pinched && Math.abs(this.x(this.from) - here) > 3) this.select(this.from, this.ms(here));
      this.pointers.set(event.pointerId, here);
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => { this.pointers.delete(event.pointerId); if (!this.pointers.size) this.pinched = false; });
    canvas.addEventListener("keydown", (event) => {
      const keys = { "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), "0": () => this.span(36e5), Escape: () => this.select(null), ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1) };
      if (event.shiftKey && event.key.startsWith("Arrow")) {
        const width = (this.end - this.start) / 20, [a, b] = this.selection ?? [this.now(), this.now()];
        this.select(a, event.key === "ArrowRight" ? b + width : Math.max(a, b - width));
      } else if (keys[event.key]) keys[event.key](); else return;
      event.preventDefault();
    });
  }
  draw() {
    const { canvas, data } = this, width = canvas.clientWidth, height = canvas.clientHeight, ratio = devicePixelRatio || 1;
    if (!width) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) { canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); }
    const pen = canvas.getContext("2d"), floor = height - 26, now = this.now(), step = this.shownStep ?? this.step;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0); pen.clearRect(0, 0, width, height);
    const most = Math.max(1, ...data.counts.slice(0, 5000)), tall = (count) => Math.max(2, (this.logarithmic ? Math.log1p(count) / Math.log1p(most) : count / most) * (floor - 22));
    const bar = (start, count, fill) => { const x = this.x(start), w = Math.max(1, this.x(start + step) - x - 1), h = tall(count); if (x + w < 0 || x > width) return; pen.fillStyle = fill; pen.fillRect(x, floor - h, w, h); };
    const waiting = color("--waiting"), available = color("--available"), held = color("--processing");
    data.starts.forEach((start, n) => bar(start, data.counts[n], start + step <= now ? available : waiting));
    data.held_starts.forEach((start, n) => bar(start, data.held_counts[n], held));
    if (this.selection) {
      const [a, b] = this.selection, x = this.x(a);
      pen.fillStyle = color("--accent"); pen.globalAlpha = 0.18; pen.fillRect(x, 0, Math.max(2, this.x(b) - x), floor); pen.globalAlpha = 1;
      if (this.ghost) { pen.strokeStyle = color("--muted"); pen.setLineDash([4, 3]); data.starts.forEach((start, n) => { if (start >= a && start < b) { const h = tall(data.counts[n]), gx = this.x(start + this.ghost); pen.strokeRect(gx, floor - h, Math.max(2, this.x(start + step) - this.x(start) - 1), h); } }); pen.setLineDash([]); }
    }
    this.axis(pen, width, floor, most);
    const x = this.x(now);
    if (x >= 0 && x <= width) { pen.fillStyle = color("--bad"); pen.fillRect(x - 1, 0, 2, floor); const left = x > width - 36 ? x - 35 : x + 3; pen.fillStyle = color("--card"); pen.fillRect(left - 1, 14, 34, 16); pen.fillStyle = color("--bad"); pen.fillText("now", left + 4, 26); }
  }
  axis(pen, width, floor, most) {
    const span = this.end - this.start, gap = STEPS.find((one) => one >= span / Math.max(2, width / 110)) ?? STEPS.at(-1);
    pen.font = "12px system-ui, sans-serif"; pen.fillStyle = color("--muted"); pen.strokeStyle = color("--line");
    pen.beginPath(); pen.moveTo(0, floor + 0.5); pen.lineTo(width, floor + 0.5); pen.stroke();
    for (let tick = Math.ceil(this.start / gap) * gap; tick < this.end; tick += gap) {
      const x = this.x(tick), text = at(tick, gap < 1000 ? 3 : 0);
      pen.fillRect(x, floor, 1, 5);
      const label = gap >= 864e5 ? text.slice(0, 10) : span > 864e5 ? text.slice(5, 16) : gap < 1000 ? text.slice(11, 23) : gap < 6e4 ? text.slice(11, 19) : text.slice(11, 16);
      pen.fillText(label, Math.min(x + 2, width - pen.measureText(label).width - 1), floor + 18);
    }
    pen.fillText(most.toLocaleString("en-US"), 4, 12);
  }
}
