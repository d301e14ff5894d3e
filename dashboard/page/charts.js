// The charts: 15 minutes or 6 hours as the gateway remembers them, drawn by
// uPlot, which is loaded as a script and known as the global uPlot.
/* global uPlot */
import { byId, el, list, setAttr, setText } from "./dom.js";
import { clock, none, number, percent, rate, seconds } from "./words.js";
import { call } from "./stream.js";

const perSecond = (v) => `${rate(v)}/s`;
const spans = { "15m": "15 minutes", "6h": "6 hours" };

// What there is to see. stack: the values lie on each other, the first below.
const charts = [
  { key: "traffic", title: "Traffic by outcome", unit: "requests a second", stack: true, format: perSecond,
    lines: [["completed", "completed", "good"], ["refused", "refused", "warn"], ["failed", "failed", "bad"], ["cancelled", "cancelled", "foreign"]] },
  { key: "waiting", title: "Waiting and running", unit: "requests, most at once", format: number, lines: [["queued", "queued", "c2"], ["running", "running", "c0"]] },
  { key: "first", title: "Time to first token", unit: "seconds, with the wait in the queue", format: seconds,
    lines: [["first_p50", "median", "c0"], ["first_p99", "p99", "zombie"], ["wait_p99", "p99 of the wait", "c2"]] },
  { key: "tokens", title: "Tokens", unit: "a second, counted when answers end", format: perSecond, lines: [["output_tokens", "output", "c1"], ["prompt_tokens", "prompt", "c0"]] },
  { key: "cache", title: "Prompt cache", unit: "share of prompt tokens", format: percent, top: 1, lines: [["cache_share", "from the cache", "c1"]] },
  { key: "gpu", title: "GPUs", unit: "share, mean of all", format: percent, top: 1, lines: [["gpu_use", "in use", "c0"], ["gpu_memory", "memory", "zombie"]], optional: true },
];

const data = {}; // by span: {names, step, from, points}
let span = "15m";
const drawn = new Map(); // by chart: {plot, values, root}

export async function loadCharts() {
  await Promise.all(Object.keys(spans).map(async (name) => {
    const answer = await call(`/admin/history?span=${name}`);
    if (answer.ok) data[name] = await answer.json();
  }));
  draw();
}

// room is the number of steps that a span has.
const room = (d) => (d.span === "15m" ? 180 : 360);

// addPoint takes a step that has ended in. Pure but for the data it changes.
export function addPoint(d, p) {
  const next = d.from + d.points.length * d.step_s;
  if (!d.points.length) d.from = p.from;
  else if (p.from < next) return; // known already
  else for (let t = next; t < p.from && d.points.length < 2 * room(d); t += d.step_s) d.points.push(d.names.map(() => null));
  d.points.push(...p.points);
  const over = d.points.length - room(d);
  if (over > 0) {
    d.points.splice(0, over);
    d.from = p.from - (d.points.length - 1) * d.step_s;
  }
}

export function point(p) {
  const d = data[p.span];
  if (!d) return;
  addPoint(d, p);
  if (p.span === span) draw();
}

// line gives the last 15 minutes of a value.
export function line(name) {
  const d = data["15m"];
  if (!d) return null;
  const i = d.names.indexOf(name);
  return d.points.map((p) => p[i]);
}

// columns gives a chart's values by line, and stacked where it stacks. Pure.
export function columns(d, chart) {
  const raw = chart.lines.map(([name]) => { const i = d.names.indexOf(name); return d.points.map((p) => p[i]); });
  if (!chart.stack) return { raw, drawn: raw };
  const sum = d.points.map(() => 0);
  return { raw, drawn: raw.map((values) => values.map((v, i) => (v === null ? null : (sum[i] += v)))) };
}

function draw() {
  const d = data[span];
  if (!d || typeof uPlot === "undefined") return;
  const shown = charts.filter((c) => !c.optional || c.lines.some(([name]) => { const i = d.names.indexOf(name); return d.points.some((p) => p[i] !== null); }));
  list(byId("plots"), shown, { key: (c) => c.key, create: makeChart });
  if (!d.points.length) d.from = Math.floor(Date.now() / 1000 / d.step_s) * d.step_s;
  const x = d.points.map((_, i) => d.from + i * d.step_s);
  for (const chart of shown) {
    const c = drawn.get(chart.key);
    c.cols = columns(d, chart);
    const steps = Math.max(d.points.length, room(d) / 6); // a young gateway's past is not squeezed to the edge
    c.range = [d.from + (d.points.length - steps) * d.step_s, d.from + (d.points.length - 1) * d.step_s];
    const cols = chart.stack ? c.cols.drawn.toReversed() : c.cols.drawn;
    if (!c.plot) c.plot = makePlot(chart, c);
    c.plot.setData([x, ...cols], false);
    c.plot.setScale("x", { min: c.range[0], max: c.range[1] });
    legend(chart, c);
    setAttr(c.box, "aria-label", `${chart.title}, the last ${spans[span]}, ${chart.unit}. Now: ${chart.lines.map(([, label], i) => `${label} ${value(chart, c, i, d.points.length - 1)}`).join(", ")}.`);
  }
}

const value = (chart, c, i, at) => { const v = c.cols.raw[i][at]; return v === null || v === undefined ? none : chart.format(v); };

function makeChart(chart) {
  const values = chart.lines.map(([, label, colour]) => el("li", {}, el("i", { class: `swatch ${colour}` }), el("span", { text: label }), el("b")));
  const box = el("div", { class: "plot", role: "img" });
  const when = el("span", { class: "quiet" });
  const root = el("figure", { class: "chart" }, el("figcaption", {}, el("h3", { text: chart.title }), el("span", { class: "quiet", text: chart.unit }), when), el("ul", { class: "values" }, ...values), box);
  drawn.set(chart.key, { box, values, when });
  new ResizeObserver(() => { const c = drawn.get(chart.key); c.plot?.setSize({ width: box.clientWidth, height: height() }); }).observe(box);
  return root;
}

const height = () => (window.innerWidth < 640 ? 150 : 180);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function makePlot(chart, c) {
  const grid = { stroke: css("--line"), width: 1 };
  const axis = { stroke: css("--quiet"), grid, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const series = chart.lines.map(([, label, colour]) => ({ label, stroke: css(`--${colour}`), width: 1.75, fill: chart.stack ? css(`--${colour}-fill`) : undefined, points: { show: (u) => u.data[0].length < 3, size: 5 }, spanGaps: false }));
  if (chart.stack) series.reverse();
  return new uPlot({
    width: c.box.clientWidth, height: height(), padding: [8, 36, 0, 0], legend: { show: false }, series: [{}, ...series],
    cursor: { y: false, sync: { key: "switchyard" }, drag: { x: false, y: false }, points: { size: 6 } },
    scales: { x: { time: true, auto: false, range: () => c.range }, y: { range: (_, min, max) => [0, chart.top || Math.max(max * 1.1, 1)] } },
    axes: [{ ...axis, values: (_, ticks) => ticks.map((t) => clock(t * 1000, ticks[1] - ticks[0] < 60)), space: 80, size: 28 }, { ...axis, size: 56, space: 36, values: (_, ticks) => ticks.map((t) => short(chart, t)) }],
    hooks: { setCursor: [(u) => { c.at = u.cursor.left >= 0 ? u.cursor.idx : null; legend(chart, c); }] },
  }, [[], ...series.map(() => [])], c.box);
}

// short is a value on an axis.
const short = (chart, v) => (v === 0 ? "0" : chart.format(v).replace("/s", ""));

// legend shows the values under the cursor, or the newest.
function legend(chart, c) {
  const d = data[span];
  const at = c.at ?? d.points.length - 1;
  chart.lines.forEach((_, i) => setText(c.values[i].lastChild, value(chart, c, i, at)));
  setText(c.when, c.at === null || c.at === undefined ? "" : `at ${clock((d.from + at * d.step_s) * 1000)}`);
}

function again() {
  for (const c of drawn.values()) { c.plot?.destroy(); c.plot = null; }
  draw();
}

export function startCharts() {
  const choose = (name) => {
    span = name;
    for (const b of byId("span").children) setAttr(b, "aria-pressed", String(b.textContent === spans[name]));
    for (const c of drawn.values()) c.at = null;
    draw();
  };
  byId("span").append(...Object.entries(spans).map(([name, words]) => el("button", { type: "button", "aria-pressed": String(name === span), text: words, click: () => choose(name) })));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again); // canvases keep the colours they were drawn in
}
