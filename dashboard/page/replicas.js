// The lanes: one a replica, with its slots as cells. A large fleet is grouped,
// and only a page of lanes is ever in the document.
import { announce, byId, el, list, setAttr, setClass, setText, setVar, show } from "./dom.js";
import { bytes, none, number, percent, plural, rate, seconds } from "./words.js";
import { conditionOf, replicasOf, sumSlots } from "./state.js";
import { placeColour } from "./classes.js";

const maxLanes = 24; // in the document at once
const maxCells = 32; // of more slots a bar tells the shares
const maxGroups = 40;

const view = { filter: "", group: "auto", open: null, page: 0 };

// arrange decides what is shown of a fleet: groups, and a page of lanes. Pure.
export function arrange(replicas, v) {
  const words = v.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = words.length ? replicas.filter((r) => words.every((w) => searchable(r).includes(w))) : replicas;
  const by = v.group === "auto" ? (fits.length > maxLanes && !words.length ? "engine" : "none") : v.group;
  let lanes = fits;
  let groups = [];
  if (by !== "none") {
    const found = new Map();
    for (const r of fits) {
      const name = groupName(r, by);
      if (!found.has(name)) found.set(name, []);
      found.get(name).push(r);
    }
    groups = [...found].map(([name, members]) => ({ name, members })).sort((a, b) => b.members.length - a.members.length || (a.name < b.name ? -1 : 1));
    lanes = found.get(v.open) || [];
  }
  const pages = Math.max(1, Math.ceil(lanes.length / maxLanes));
  const page = Math.min(v.page, pages - 1);
  return { groups: groups.slice(0, maxGroups), hiddenGroups: Math.max(0, groups.length - maxGroups), lanes: lanes.slice(page * maxLanes, (page + 1) * maxLanes), matching: fits.length, total: lanes.length, page, pages };
}

const searchable = (r) => `${r.name} ${r.engine} ${conditionOf(r).label} ${r.models.map((m) => m.name).join(" ")}`.toLowerCase();

function groupName(r, by) {
  switch (by) {
    case "engine": return r.engine || "unknown engine";
    case "tier": return `tier ${r.tier}`;
    case "state": return conditionOf(r).label;
    default: return r.models[0]?.name || "any model";
  }
}

// cells lists the slots of a lane in the order in which they are drawn: who is
// busy by class, zombies, foreign, and what is free or held off. Pure.
export function cells(r, classes) {
  const s = r.slots;
  const parts = [];
  let told = 0;
  (r.busy_by_class || []).forEach((n, i) => {
    if (n > 0) parts.push({ kind: placeColour(i), n, label: `${classes[i]?.name || "busy"}` });
    told += n;
  });
  if (s.busy > told) parts.push({ kind: "c5", n: s.busy - told, label: "busy" });
  if (s.zombie) parts.push({ kind: "zombie", n: s.zombie, label: "zombie" });
  if (s.foreign) parts.push({ kind: "foreign", n: s.foreign, label: "foreign" });
  // what a breaker, a hold-off or an operator keeps free
  const share = r.draining || !r.up || r.breaker.state === "open" || r.held_off_s > 0 ? 0 : r.breaker.state === "half-open" ? r.breaker.allowance : 1;
  const may = Math.max(share > 0 ? 1 : 0, Math.floor(share * s.total + 1e-9));
  const free = Math.max(0, Math.min(s.free, may - s.busy - s.zombie));
  if (free) parts.push({ kind: "free", n: free, label: "free" });
  if (s.free > free) parts.push({ kind: "held", n: s.free - free, label: "held off" });
  return parts;
}

function drawSlots(box, parts, total) {
  const said = parts.map((p) => `${number(p.n)} ${p.label}`).join(", ") || "no slots";
  const now = `${total}:${parts.map((p) => p.kind + p.n).join()}`;
  if (box.drawn === now) return;
  box.drawn = now;
  setAttr(box, "aria-label", `${plural(total, "slot")}: ${said}`);
  setAttr(box, "title", said);
  if (total > maxCells) {
    setClass(box, "slots wide");
    list(box, parts, { key: (p) => p.kind, create: () => el("i"), update: (n, p) => { setClass(n, `part ${p.kind}`); setVar(n, "--n", p.n); } });
    return;
  }
  setClass(box, "slots");
  const each = parts.flatMap((p) => Array.from({ length: p.n }, () => p.kind));
  list(box, each.map((kind, i) => ({ kind, i })), { key: (c) => c.i, create: () => el("i"), update: (n, c) => setClass(n, `cell ${c.kind}`) });
}

function makeLane(act) {
  const name = el("b", { class: "name" });
  const about = el("span", { class: "quiet" });
  const chip = el("span", { class: "chip" });
  const why = el("span", { class: "why quiet" });
  const slots = el("div", { class: "slots", role: "img" });
  const count = el("span", { class: "slot-count quiet" });
  const prompt = el("b");
  const decode = el("b");
  const cache = el("b");
  const gpus = el("div", { class: "gpus" });
  const button = el("button", { type: "button" });
  const lane = el("article", { class: "lane" },
    el("div", { class: "who" }, el("h3", {}, name), about),
    el("div", { class: "how" }, chip, why),
    el("div", { class: "what" }, slots, count),
    el("dl", { class: "speeds" }, fact("prompt", prompt, "tok/s"), fact("decode", decode, "tok/s"), fact("cached", cache, "")),
    gpus, el("div", { class: "act" }, button));
  Object.assign(lane, { parts: { name, about, chip, why, slots, count, prompt, decode, cache, gpus, button } });
  button.addEventListener("click", () => act(lane.replica));
  return lane;
}

const fact = (label, value, unit) => el("div", {}, el("dt", { text: label }), el("dd", {}, value, el("span", { class: "quiet", text: unit ? ` ${unit}` : "" })));

function updateLane(lane, r, classes) {
  lane.replica = r;
  const p = lane.parts;
  const c = conditionOf(r);
  setText(p.name, r.name);
  const models = r.models.filter((m) => m.resident).concat(r.models.filter((m) => !m.resident));
  setText(p.about, [[r.engine, r.engine_version].filter(Boolean).join(" "), r.tier ? `tier ${r.tier}` : "", modelWords(models, r.any_model)].filter(Boolean).join(" · "));
  setAttr(p.about, "title", models.map((m) => `${m.name}${m.resident ? ", resident" : ""}${m.on_cpu ? ", on the CPU" : ""}${m.context ? `, context ${m.context}` : ""}`).join("\n"));
  setText(p.chip, c.label);
  setClass(p.chip, `chip ${c.kind}`);
  setText(p.why, c.why);
  drawSlots(p.slots, cells(r, classes), r.slots.total);
  setText(p.count, `${number(r.slots.busy + r.slots.zombie + r.slots.foreign)} of ${number(r.slots.total)}`);
  setText(p.prompt, r.prompt_tokens_per_s ? rate(r.prompt_tokens_per_s) : none);
  setText(p.decode, r.decode_tokens_per_s ? rate(r.decode_tokens_per_s) : none);
  setText(p.cache, r.prompt_tokens ? percent(r.cached_tokens / r.prompt_tokens) : none);
  drawGPUs(p.gpus, r.gpu);
  setText(p.button, r.draining ? "Resume" : "Drain");
  setAttr(p.button, "aria-label", `${r.draining ? "Resume" : "Drain"} ${r.name}`);
  setClass(lane, `lane ${c.kind}`);
  setAttr(lane, "data-replica", r.name);
  setAttr(lane, "aria-label", r.name);
}

function modelWords(models, any) {
  if (!models.length) return any ? "any model" : "";
  const first = models[0].name + (models[0].on_cpu ? " (on the CPU)" : "") + (models[0].resident ? "" : " (not resident)");
  return models.length > 1 ? `${first} and ${models.length - 1} more` : first;
}

const maxGPUs = 4; // bars of their own in a lane

// gpuRows gives one row a GPU, or one for all where there are many. Pure.
export function gpuRows(g) {
  const devices = g?.devices || [];
  const mean = (f) => { const v = devices.map(f).filter(Number.isFinite); return v.length ? v.reduce((a, b) => a + b) / v.length : NaN; };
  const row = (d, name) => ({ name, use: d.utilization ?? NaN, memory: d.memory_total_bytes ? (d.memory_used_bytes || 0) / d.memory_total_bytes : NaN,
    note: d.error ? "no readings" : [
      d.memory_total_bytes ? `${bytes(d.memory_total_bytes - (d.memory_used_bytes || 0))} free` : "", Number.isFinite(d.temperature_c) ? `${Math.round(d.temperature_c)} °C` : "",
      Number.isFinite(d.power_w) ? `${Math.round(d.power_w)} W` : "", d.throttle ? `held down by ${d.throttle}` : "", d.xid ? `Xid ${d.xid}` : ""].filter(Boolean).join(" · ") });
  if (devices.length <= maxGPUs) return devices.map((d) => row(d, `GPU ${d.id}`));
  const sum = (f) => devices.reduce((a, d) => a + (d[f] || 0), 0);
  return [row({ utilization: mean((d) => d.utilization), memory_used_bytes: sum("memory_used_bytes"), memory_total_bytes: sum("memory_total_bytes"),
    temperature_c: Math.max(...devices.map((d) => d.temperature_c ?? -Infinity)), power_w: sum("power_w"), throttle: devices.find((d) => d.throttle)?.throttle }, `${devices.length} GPUs`)];
}

function drawGPUs(box, g) {
  const rows = gpuRows(g);
  show(box, rows.length > 0);
  if (!rows.length) return;
  list(box, rows, {
    key: (r) => r.name,
    create: () => {
      const row = el("div", { class: "gpu" }, el("span", { class: "gpu-name" }), meter("use"), meter("memory"), el("span", { class: "quiet note" }));
      return row;
    },
    update: (n, r) => {
      setText(n.children[0], r.name);
      setMeter(n.children[1], "use", r.use);
      setMeter(n.children[2], "memory", r.memory);
      setText(n.children[3], r.note);
    },
  });
  const cost = g.joules_per_1k_tokens ? `${number(g.joules_per_1k_tokens)} J for 1,000 tokens` : "";
  setAttr(box, "title", [g.note, cost].filter(Boolean).join("\n"));
}

const meter = (cls) => el("span", { class: `meter ${cls}`, role: "img" }, el("i"), el("em"));
function setMeter(m, what, share) {
  const known = Number.isFinite(share);
  setAttr(m, "aria-label", `${what === "use" ? "in use" : "memory"} ${known ? percent(share) : "not known"}`);
  setVar(m, "--share", known ? Math.min(1, share).toFixed(3) : "0");
  setText(m.lastChild, known ? `${what === "use" ? "use" : "mem"} ${Math.round(share * 100)} %` : none);
}

function updateGroup(node, g, classes) {
  const s = sumSlots(g.members);
  const kinds = {};
  for (const r of g.members) { const l = conditionOf(r).label; kinds[l] = (kinds[l] || 0) + 1; }
  const all = { slots: s, up: true, breaker: { state: "closed", allowance: 1 }, busy_by_class: classes.map((_, i) => g.members.reduce((n, r) => n + (r.busy_by_class?.[i] || 0), 0)) };
  const [head, slots] = node.children;
  const isOpen = view.open === g.name;
  setAttr(head, "aria-expanded", String(isOpen));
  setText(head.children[1], g.name);
  setText(head.children[2], `${plural(g.members.length, "replica")}: ${Object.entries(kinds).map(([k, n]) => `${number(n)} ${k}`).join(", ")}`);
  setText(head.children[3], `${number(s.total - s.free)} of ${plural(s.total, "slot")} in use`);
  const parts = cells(all, classes);
  const now = parts.map((p) => p.kind + p.n).join();
  if (slots.drawn === now) return;
  slots.drawn = now;
  setAttr(slots, "aria-label", parts.map((p) => `${number(p.n)} ${p.label}`).join(", "));
  list(slots, parts, { key: (p) => p.kind, create: () => el("i"), update: (n, p) => { setClass(n, `part ${p.kind}`); setVar(n, "--n", p.n); } });
}

let redraw = () => {};
let act = () => {};

export function startReplicas(onChange, onAct) {
  [redraw, act] = [onChange, onAct];
  byId("filter").addEventListener("input", (e) => { Object.assign(view, { filter: e.target.value, page: 0 }); redraw(); });
  byId("group").addEventListener("change", (e) => { Object.assign(view, { group: e.target.value, open: null, page: 0 }); redraw(); });
  const turn = (by) => () => { view.page = Math.max(0, view.page + by); redraw(); byId("replicas").scrollIntoView({ block: "start" }); };
  byId("pager").append(el("button", { type: "button", text: "‹ Earlier", click: turn(-1) }), el("span", { role: "status" }), el("button", { type: "button", text: "Later ›", click: turn(1) }));
}

const makeGroup = (g) => el("div", { class: "group" },
  el("button", { type: "button", class: "group-head", click: () => { Object.assign(view, { open: view.open === g.name ? null : g.name, page: 0 }); redraw(); } },
    el("span", { class: "arrow", "aria-hidden": "true" }), el("b"), el("span", { class: "quiet" }), el("span", { class: "quiet right" })),
  el("div", { class: "slots wide", role: "img" }));

export function showReplicas(s) {
  const replicas = replicasOf(s);
  const a = arrange(replicas, view);
  view.page = a.page;
  setText(byId("replica-count"), a.matching === replicas.length ? number(replicas.length) : `${number(a.matching)} of ${number(replicas.length)}`);
  const items = a.groups.flatMap((g) => [{ key: `g ${g.name}`, g }, ...(g.name === view.open ? a.lanes.map((r) => ({ key: `r ${r.name}`, r })) : [])]);
  if (!a.groups.length) items.push(...a.lanes.map((r) => ({ key: `r ${r.name}`, r })));
  list(byId("lanes"), items, {
    key: (i) => i.key,
    create: (i) => (i.g ? makeGroup(i.g) : makeLane(act)),
    update: (node, i) => (i.g ? updateGroup(node, i.g, s.classes) : updateLane(node, i.r, s.classes)),
  });
  show(byId("pager"), a.pages > 1);
  const [back, where, on] = byId("pager").children;
  back.disabled = a.page === 0;
  on.disabled = a.page === a.pages - 1;
  setText(where, `${number(a.page * maxLanes + 1)} to ${number(a.page * maxLanes + a.lanes.length)} of ${number(a.total)}`);
}

export function showLegend(classes) {
  const kinds = [...classes.map((c, i) => ({ kind: placeColour(i), label: c.name })), { kind: "zombie", label: "zombie: its client has left, it still works" }, { kind: "foreign", label: "foreign: not of this gateway" }, { kind: "free", label: "free" }, { kind: "held", label: "held off" }];
  list(byId("legend"), kinds, { key: (k) => k.label, create: (k) => el("li", {}, el("i", { class: `cell ${k.kind}` }), k.label) });
}

let conditions = null;

// tellChanges has a screen reader say which replicas are not as they were.
export function tellChanges(s) {
  const now = new Map(replicasOf(s).map((r) => [r.name, conditionOf(r)]));
  if (conditions) {
    const changed = [...now].filter(([name, c]) => conditions.get(name) && conditions.get(name).label !== c.label && (c.kind === "bad" || conditions.get(name).kind === "bad"));
    if (changed.length > 3) announce(`${changed.length} replicas have changed their state.`);
    else for (const [name, c] of changed) announce(c.sentence || `${name} is up again.`);
  }
  conditions = now;
}
