// Numbers as people read them, and sentences where numbers need them. Pure.

export const none = "–";
const known = (n) => n !== null && n !== undefined && Number.isFinite(n);

// seconds gives a duration with its unit.
export function seconds(s) {
  if (!known(s)) return none;
  if (s <= 0) return "0 s";
  if (s < 0.0095) return `${(s * 1000).toFixed(1)} ms`;
  if (s < 0.995) return `${Math.round(s * 1000)} ms`;
  if (s < 9.95 && !Number.isInteger(s)) return `${s.toFixed(1)} s`;
  if (s < 119.5) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${(s / 3600).toFixed(s < 36000 ? 1 : 0)} h`;
  return `${Math.round(s / 86400)} days`;
}

// Formatters are made once: to make one takes longer than all that it formats.
const grouped = new Intl.NumberFormat("en");
const hour = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const minutes = new Intl.DateTimeFormat([], hour);
const minutesSeconds = new Intl.DateTimeFormat([], { ...hour, second: "2-digit" });

export function number(n) {
  if (!known(n)) return none;
  if (n === 0) return "0";
  if (Math.abs(n) < 10 && !Number.isInteger(n)) return n.toFixed(n < 1 ? 2 : 1);
  if (Math.abs(n) < 99_950) return grouped.format(Math.round(n));
  if (Math.abs(n) < 999_500) return `${Math.round(n / 1000)} k`;
  if (Math.abs(n) < 999_500_000) return `${(n / 1e6).toFixed(1)} M`;
  return `${(n / 1e9).toFixed(1)} G`;
}

export const rate = (n) => (known(n) && n > 0 && n < 10 ? n.toFixed(1) : number(n));

export function percent(share) {
  if (!known(share)) return none;
  const p = share * 100;
  if (p > 99.9 && p < 100) return "99.9 %"; // one hundred means all
  if (p < 10 && p > 0) return `${p.toFixed(1)} %`;
  return p >= 90 && p < 100 ? `${p.toFixed(1)} %` : `${Math.round(p)} %`;
}

export function bytes(b) {
  if (!known(b)) return none;
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (b >= size) return `${(b / size).toFixed(b / size < 10 ? 1 : 0)} ${unit}`;
  return `${b} B`;
}

export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

export const clock = (t, withSeconds = true) => (withSeconds ? minutesSeconds : minutes).format(new Date(t));

const dot = (s) => (/[.!?]$/.test(s) ? s : `${s}.`);

// condition is how a replica is: kind good, note, warn or bad; a word for its
// label; why, if it is not well, and the sentence that says so.
export function condition(r) {
  const b = r.breaker;
  const say = (kind, label, why, verb = `is ${label}`) => ({ kind, label, why, sentence: dot(`${r.name} ${verb}${why ? " " : ""}${why}`) });
  if (r.draining) {
    const left = r.slots.busy + r.slots.zombie;
    return say("note", "draining", left ? `${plural(left, "slot is", "slots are")} still in use` : "nothing runs there any more", "is drained by an operator:");
  }
  if (b.state === "open") return say("bad", "open", `since ${seconds(b.open_s)}: ${b.reason}; next trial in ${seconds(b.next_trial_s)}`);
  if (!r.up) return say("bad", "down", r.error || "no probe has reached it yet", "is down:");
  if (r.misconfigured) return say("bad", "misconfigured", r.misconfigured, "is misconfigured:");
  if (r.loading) return say("note", "loading", "", "is loading its model");
  if (b.state === "half-open") return say("warn", "on trial", `with ${percent(b.allowance)} of its slots, after: ${(b.reason || "").replace(/^recovering from /, "")}`);
  if (r.held_off_s > 0) return say("warn", "held off", `for another ${seconds(r.held_off_s)}: it said that it is busy or loading`);
  if (r.consecutive_failed > 0) return say("warn", "failing", r.consecutive_failed === 1 ? "its last attempt failed" : `its last ${r.consecutive_failed} attempts failed`, "is failing:");
  if (r.slow) return say("warn", "slow", r.slow, "is slow:");
  const gpu = (r.gpu?.devices || []).find((g) => g.error || g.throttle);
  if (gpu?.error) return say("warn", "no readings", `GPU ${gpu.id}: ${gpu.error}`, "has a GPU without readings:");
  if (gpu) return say("note", "throttled", `the clocks of GPU ${gpu.id} are held down by ${gpu.throttle}`, "is throttled:");
  return { kind: "good", label: "up", why: "", sentence: "" };
}

// newcomer says how long a request of a class would wait.
export const newcomer = (c, serving = true) => (!serving ? none : c.forecast_wait_s < 0.05 ? "starts at once" : `waits about ${seconds(c.forecast_wait_s)}`);

// headline answers: is it all right?
export function headline(state, slots) {
  if (state.draining) return "Stopping: new requests are refused, what is under way may end.";
  if (!state.serving) return state.order.length ? "Not serving: no replica can be used." : "Not serving: no replica is configured.";
  const busy = slots.busy === 0 ? "no slot is busy" : slots.busy === slots.total ? `all ${plural(slots.total, "slot")} are busy` : `${number(slots.busy)} of ${plural(slots.total, "slot")} are busy`;
  const q = state.totals.queued;
  const waits = q ? ` and ${plural(q, "request waits", "requests wait")}` : "";
  const c = mostPatient(state);
  return `Serving: ${busy}${waits}${c ? `; a new ${c.name} request ${newcomer(c)}` : ""}.`;
}

// mostPatient is the class whose newcomer the headline speaks of: the one with
// the most requests so far.
const mostPatient = (state) => state.classes.reduce((a, c) => (!a || c.arrived > a.arrived ? c : a), null);
export { mostPatient as usualClass };

const refusals = {
  deadline_unmeetable: "Refused on arrival: its first token would have come too late.",
  deadline_expired: "Turned away from the queue: its deadline could no longer be met.",
  queue_full: "Refused on arrival: the queue was full.",
  rate_limited_requests: "Refused: its key has had its requests of this minute.",
  rate_limited_tokens: "Refused: its key has had its tokens of this minute.",
  too_many_running: "Refused: its key has as many requests running or queued as it may have.",
  bad_request: "Refused: the request is malformed.",
  unauthorized: "Refused: its key is missing or unknown.",
  forbidden: "Refused: its key may not use this model or path.",
  model_not_found: "Refused: no replica has this model.",
  no_replica: "Refused: every replica that could serve it is out.",
  draining: "Refused: the gateway was stopping.",
  body_too_large: "Refused: its body is over the limit.",
  unsupported_encoding: "Refused: its body is compressed.",
  not_supported: "Refused: this is not supported.",
  loop: "Refused: it has passed this gateway before.",
  upstream_failed: "Failed: the last attempt that it could have failed too.",
  upstream_timeout: "Failed: the last attempt that it could have did not answer in time.",
};

const results = {
  ok: "a whole answer",
  connect: "no connection, or none that lasted until the answer",
  no_first_token: "no first token in time",
  empty: "an answer without content",
  broken: "the stream broke",
  client_gone: "the client left",
  slow_client: "the client did not read",
  moved: "moved to another replica with a free slot",
  context_too_long: "too long for its context",
};
export const result = (r) => results[r] || (r.startsWith("status_") ? `answered with ${r.slice(7)}` : r);

export const firstToken = (d) => (d.attempts || []).find((a) => a.first_token_ms > 0)?.first_token_ms || 0;

// explain tells the story of a request in sentences.
export function explain(d) {
  const said = [];
  const attempts = d.attempts || [];
  if (d.deadline_s > 0 && (d.candidates?.length || d.forecast_s > 0))
    said.push(`On arrival its first token was forecast in ${seconds(d.forecast_s)}, against a deadline of ${seconds(d.deadline_s)}.`);
  if (d.outcome === "refused" || refusals[d.reason]) said.push(refusals[d.reason] || `Refused: ${d.reason}.`);
  if (d.retry_after_s > 0 && d.outcome === "refused") said.push(`It was told to come back in ${seconds(Math.ceil(d.retry_after_s))}.`);
  if (d.would_refuse) said.push("It would have been refused, were admission not set to observe.");
  if (attempts.length) said.push(`It waited ${seconds(d.queue_ms / 1000)} for a slot.`);
  const ms = firstToken(d);
  if (ms) {
    const late = d.deadline_s > 0 && ms > d.deadline_s * 1000;
    said.push(`Its first token came after ${seconds(ms / 1000)}${d.deadline_s > 0 ? (late ? ": late, the promise was broken" : ", in time") : ""}.`);
  }
  if (attempts.length > 1) said.push(`It took ${attempts.length} attempts; the client saw only the last.`);
  if (d.outcome === "cancelled") said.push("Its client left before the end; nobody is blamed.");
  if (d.outcome === "failed" && !d.reason) said.push("It failed after its client had seen a part of the answer.");
  if (d.outcome === "completed") said.push(`It was complete after ${seconds(d.total_ms / 1000)}.`);
  return said;
}
