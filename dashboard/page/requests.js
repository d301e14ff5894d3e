// The live timeline: the last requests to end, each a bar from its arrival to
// its end, and the story of one on click.
import { byId, el, list, setAttr, setClass, setText, setVar, show } from "./dom.js";
import { clock, explain, firstToken, number, plural, result, seconds } from "./words.js";
import { classColour } from "./classes.js";
import { call } from "./stream.js";

const kept = 400; // ends remembered, so that a filter finds some
const maxRows = 25;

const all = []; // newest first
const view = { which: "all", paused: false, held: false, shown: [], missed: 0 };

const filters = {
  all: () => true,
  refused: (d) => d.outcome === "refused",
  failed: (d) => d.outcome === "failed",
  retried: (d) => (d.attempts || []).length > 1,
  cancelled: (d) => d.outcome === "cancelled",
};

// segments cuts a request's time into what it was spent on, in ms from its
// arrival. Pure.
export function segments(d) {
  const parts = [];
  let at = 0;
  for (const a of d.attempts || []) {
    if (a.begun_ms > at) parts.push({ kind: "queued", from: at, to: a.begun_ms });
    const end = a.begun_ms + a.ms;
    const ok = a.result === "ok" || a.result === "client_gone" || a.result === "slow_client";
    if (a.first_token_ms > 0) {
      parts.push({ kind: ok ? "prompt" : "failed", from: a.begun_ms, to: a.first_token_ms });
      parts.push({ kind: ok ? "decode" : "failed", from: a.first_token_ms, to: end });
    } else parts.push({ kind: ok ? "prompt" : "failed", from: a.begun_ms, to: end });
    at = end;
  }
  const end = Math.max(at, d.total_ms || d.queue_ms || 0);
  if (!(d.attempts || []).length || end - at > 1) parts.push({ kind: "queued", from: at, to: end });
  return { parts, end };
}

// scale is a round time that holds all but the longest. Pure.
export function scale(ends) {
  const longest = Math.max(100, ...ends);
  for (const unit of [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7])
    for (const k of [1, 2, 5]) if (k * unit >= longest) return k * unit;
  return longest;
}

export function addEnds(batch) {
  view.missed = batch.missed;
  for (const d of batch.shown) all.unshift(d);
  all.length = Math.min(all.length, kept);
}

export async function loadEnds() {
  const answer = await call(`/admin/decisions?limit=${kept / 2}`);
  if (!answer.ok) return;
  all.length = 0;
  all.push(...(await answer.json()));
}

export function showEnds() {
  const frozen = view.paused || view.held;
  if (!frozen) view.shown = all.filter(filters[view.which]).slice(0, maxRows);
  const rows = view.shown.map((d) => ({ d, ...segments(d) }));
  const span = scale(rows.map((r) => r.end));
  const note = view.paused ? "Paused." : view.held ? "Held while you point at it." : view.missed ? `${plural(view.missed, "more request")} ended in the last second.` : "";
  setText(byId("ends-note"), `${note} Each bar begins with the request's arrival; the whole width is ${seconds(span / 1000)}.`.trim());
  list(byId("ends"), rows, { key: (r) => r.d, create: (r) => makeRow(r.d), update: (node, r) => updateRow(node, r, span) });
  show(byId("ends-none"), rows.length === 0);
  setText(byId("ends-none"), all.length ? "None of the last requests is of that kind." : "No request has ended yet.");
}

function makeRow(d) {
  const open = () => tellStory(d);
  const replicas = [...new Set((d.attempts || []).map((a) => a.replica))].join(" → ");
  const verdict = d.outcome === "refused" ? `refused: ${d.reason.replaceAll("_", " ")}` : d.outcome === "failed" ? `failed${d.reason ? `: ${d.reason.replaceAll("_", " ")}` : ""}` : d.outcome;
  const first = firstToken(d);
  const times = first ? `first token ${seconds(first / 1000)}` : "";
  return el("li", { class: `end ${d.outcome}` },
    el("button", { type: "button", class: "row", click: open, title: [d.model, times, "click for why"].filter(Boolean).join(" · ") },
      el("span", { class: "when quiet", text: clock(d.time) }),
      el("span", { class: "kind" }, el("i", { class: `dot ${classColour(d.class)}` }), d.class),
      el("span", { class: `verdict ${d.outcome}`, text: verdict }),
      el("span", { class: "where quiet", text: replicas || "not sent" }),
      el("span", { class: "track", "aria-hidden": "true" }),
      el("span", { class: "took num", text: seconds((d.total_ms || d.queue_ms) / 1000) })));
}

function updateRow(node, r, span) {
  const track = node.querySelector(".track");
  if (track.span === span) return;
  track.span = span;
  const at = (ms) => Math.min(1, ms / span).toFixed(4);
  track.replaceChildren(...r.parts.map((p) => {
    const i = el("i", { class: `seg ${p.kind === "prompt" || p.kind === "decode" ? `${p.kind} ${classColour(r.d.class)}` : p.kind}` });
    setVar(i, "--from", at(p.from));
    setVar(i, "--to", at(p.to));
    return i;
  }));
  const mark = (kind, ms) => {
    const m = el("i", { class: `mark ${kind}` });
    setVar(m, "--from", at(ms));
    track.append(m);
  };
  (r.d.attempts || []).slice(1).forEach((a) => mark("retry", a.begun_ms));
  if (r.d.outcome === "refused") mark("refusal", r.end);
  if (r.d.deadline_s > 0 && r.d.deadline_s * 1000 <= span) mark("due", r.d.deadline_s * 1000);
}

// tellStory shows why a request went as it did.
async function tellStory(brief) {
  const dialog = byId("story");
  setText(byId("story-title"), `Request ${brief.id}`);
  const body = byId("story-body");
  let d = brief;
  const answer = await call(`/admin/decisions/${encodeURIComponent(brief.id)}`).catch(() => null);
  if (answer?.ok) d = await answer.json();
  const rows = (label, names, items, cellsOf) => el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, el("table", {}, el("thead", {}, el("tr", {}, ...names.map((n, i) => el("th", { scope: "col", class: i ? "num" : "", text: n })))),
    el("tbody", {}, ...items.map((i) => el("tr", {}, ...cellsOf(i).map((c, k) => el("td", { class: k ? "num" : "", text: c })))))));
  const parts = [
    el("p", { class: "quiet", text: [d.class, d.key, d.model, `ended ${clock(d.time)}`].filter(Boolean).join(" · ") }),
    ...explain(d).map((s) => el("p", { text: s })),
  ];
  if (d.attempts?.length) parts.push(el("h3", { text: "Attempts" }), rows("Attempts", ["replica", "result", "began after", "first token after", "took", "output tokens"], d.attempts,
    (a) => [a.replica, result(a.result), seconds(a.begun_ms / 1000), a.first_token_ms ? seconds(a.first_token_ms / 1000) : "none", seconds(a.ms / 1000), number(a.output_tokens)]));
  if (d.candidates?.length) parts.push(el("h3", { text: "Candidates on arrival" }), rows("Candidates on arrival", ["replica", "first token forecast in", "of the prompt cached"], d.candidates,
    (c) => [c.replica, seconds(c.forecast_s), plural(c.cached_tokens, "token")]));
  parts.push(el("details", {}, el("summary", { text: "As the decision log has it" }), el("pre", { tabindex: "0", text: JSON.stringify(d, null, 1) })));
  body.replaceChildren(...parts);
  if (!dialog.open) dialog.showModal();
}

export function startEnds() {
  const choose = (name) => {
    view.which = name;
    for (const b of byId("which").children) setAttr(b, "aria-pressed", String(b.textContent === name));
    view.shown = all.filter(filters[name]).slice(0, maxRows);
    showEnds();
  };
  byId("which").append(...Object.keys(filters).map((name) => el("button", { type: "button", "aria-pressed": String(name === "all"), text: name, click: () => choose(name) })));
  byId("pause").addEventListener("click", () => {
    view.paused = !view.paused;
    setAttr(byId("pause"), "aria-pressed", String(view.paused));
    showEnds();
  });
  // What one points at, or has the focus on, must not move away.
  const ends = byId("ends");
  const hold = () => { view.held = ends.matches(":hover") || ends.querySelector(":focus-visible") !== null; };
  for (const e of ["pointerenter", "pointerleave", "focusin", "focusout"]) ends.addEventListener(e, () => setTimeout(hold));
  byId("story-close").addEventListener("click", () => byId("story").close());
  byId("story").addEventListener("click", (e) => { if (e.target === byId("story")) byId("story").close(); });
  setClass(ends, "ends");
}
