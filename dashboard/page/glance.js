// The top of the page: the headline, the tiles, the books, what needs attention.
import { byId, el, list, setAttr, setClass, setText, show } from "./dom.js";
import { headline, none, number, percent, plural, rate, seconds, usualClass } from "./words.js";
import { conditionOf, replicasOf, sumSlots } from "./state.js";

const maxTroubles = 8; // sentences; of more only the number is told

const share = (a, b) => (b > 0 ? a / b : NaN);

// tiles gives what the tiles say. name is that of the chart values whose line
// is drawn into the tile.
function tiles(s) {
  const g = s.glance;
  const judged = s.promises.kept + s.promises.broken;
  const lately = g.kept + g.broken;
  const kept = lately ? share(g.kept, lately) : share(s.promises.kept, judged);
  const usual = usualClass(s);
  const wasted = share(g.wasted_tokens, g.output_tokens);
  return [
    { key: "offered", label: "Offered", value: rate(g.offered_per_s), unit: "a second", note: `${number(s.totals.arrived)} in all`, line: "arrived" },
    { key: "served", label: "Served", value: rate(g.served_per_s), unit: "a second", note: `${number(s.totals.completed)} in all`, line: "completed" },
    {
      key: "refused", label: "Refused", value: rate(g.refused_per_s), unit: "a second", line: "refused",
      note: g.offered_per_s > 0 ? `${percent(Math.min(1, share(g.refused_per_s, g.offered_per_s)))} of what is offered` : `${number(s.totals.refused)} in all`,
    },
    {
      key: "kept", label: "Promises kept", value: percent(kept), unit: lately ? "last minute" : "", kind: kept < 0.9 ? "bad" : kept < 0.95 ? "warn" : "",
      note: judged ? `${number(s.promises.kept)} of ${number(judged)} in all` : "no promise has come due",
    },
    { key: "first", label: "First token", value: seconds(g.first_p50_s), unit: "median, last minute", note: `p99 ${seconds(g.first_p99_s)}`, line: "first_p50" },
    {
      key: "queue", label: "Queue", value: number(s.totals.queued), unit: s.totals.queued === 1 ? "request" : "requests", line: "queued",
      note: !s.serving ? "nobody can start" : usual ? (usual.forecast_wait_s < 0.05 ? "a newcomer starts at once" : `forecast wait ${seconds(usual.forecast_wait_s)}, ${usual.name}`) : "",
    },
    {
      key: "wasted", label: "Wasted tokens", value: g.output_tokens ? percent(wasted || 0) : none, unit: "last minute", kind: wasted > 0.1 ? "warn" : "",
      note: `${number(g.wasted_tokens_total)} for nobody, in all`,
    },
  ];
}

const makeTile = () => {
  const t = el("div", { class: "tile" }, el("p", { class: "label" }), el("p", { class: "figure" }, el("b"), el("span", { class: "unit" })), el("p", { class: "quiet" }));
  t.innerParts = { label: t.children[0], value: t.children[1].firstChild, unit: t.children[1].lastChild, note: t.children[2] };
  return t;
};

// spark draws a line of values into a tile. It is decoration: the value says it.
function spark(tile, values) {
  if (!values || values.length < 2) return;
  if (!tile.spark) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    setAttr(svg, "viewBox", "0 0 100 24");
    setAttr(svg, "preserveAspectRatio", "none");
    setAttr(svg, "aria-hidden", "true");
    svg.classList.add("spark");
    tile.spark = document.createElementNS(svg.namespaceURI, "path");
    svg.append(tile.spark);
    tile.append(svg);
  }
  const top = Math.max(...values.map((v) => v ?? 0), 1e-9);
  let d = "";
  let pen = false;
  values.forEach((v, i) => {
    if (v === null) return void (pen = false);
    d += `${pen ? "L" : "M"}${((100 * i) / (values.length - 1)).toFixed(1)} ${(22 - (20 * v) / top).toFixed(1)}`;
    pen = true;
  });
  setAttr(tile.spark, "d", d);
}

export function showGlance(s, line) {
  const replicas = replicasOf(s);
  const slots = sumSlots(replicas);
  setText(byId("headline"), headline(s, slots));
  setClass(byId("headline"), `headline ${s.serving && !s.draining ? "good" : "bad"}`);
  setText(byId("version"), `${s.version || ""} · up ${seconds(s.uptime_s)}`);
  list(byId("tiles"), tiles(s), {
    key: (t) => t.key, create: makeTile,
    update: (node, t) => {
      const p = node.innerParts;
      setText(p.label, t.label);
      setText(p.value, t.value);
      setText(p.unit, t.unit);
      setText(p.note, t.note);
      setClass(node, `tile ${t.kind || ""}`);
      setAttr(node, "data-tile", t.key);
      if (t.line) spark(node, line(t.line));
    },
  });
  books(s.totals);
  attention(replicas);
}

// books tells rule R13: every request is somewhere, exactly once.
function books(t) {
  const right = t.completed + t.refused + t.failed + t.cancelled + t.queued + t.running;
  setText(byId("books"), `${number(t.arrived)} arrived = ${["completed", "refused", "failed", "cancelled", "queued", "running"].map((k) => `${number(t[k])} ${k}`).join(" + ")}` +
    (right === t.arrived ? "" : " — the books do not balance"));
  for (const [k, v] of Object.entries(t)) setAttr(byId("books"), `data-${k}`, v);
}

const urgency = { bad: 0, warn: 1, note: 2 };

function attention(replicas) {
  const all = [];
  for (const r of replicas) {
    const c = conditionOf(r);
    if (c.sentence) all.push({ key: r.name, ...c });
  }
  all.sort((a, b) => urgency[a.kind] - urgency[b.kind]);
  const shown = all.slice(0, maxTroubles);
  if (all.length > shown.length) shown.push({ key: "\u0000more", kind: "note", label: "more", sentence: `${plural(all.length - shown.length, "more replica")} of ${number(replicas.length)} are not as they should be: group by state to see them.` });
  if (!all.length) shown.push({ key: "\u0000well", kind: "good", label: "up", sentence: replicas.length === 1 ? "The one replica there is can be used." : `All ${number(replicas.length)} replicas can be used.` });
  list(byId("troubles"), shown, {
    key: (t) => t.key,
    create: () => el("li", {}, el("span", { class: "chip" }), el("span")),
    update: (node, t) => {
      setClass(node.firstChild, `chip ${t.kind}`);
      setText(node.firstChild, t.label);
      setText(node.lastChild, t.sentence);
    },
  });
  setText(byId("attention-title"), all.length ? "Needs attention" : "All is well");
  show(byId("attention"), replicas.length > 0);
}
