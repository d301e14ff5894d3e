// Renders /admin/events: the state once a second and each request's end.
const byId = (id) => document.getElementById(id);
const el = (tag, text, cls) => {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (cls) e.className = cls;
  return e;
};
const row = (...cells) => {
  const tr = el("tr");
  tr.append(...cells.map((c) => (c instanceof Node && c.nodeName === "TD" ? c : el("td", c))));
  return tr;
};
const seconds = (s) => (s < 1 ? `${Math.round(s * 1000)} ms` : `${s.toFixed(1)} s`);

function slots(s) {
  const td = el("td");
  td.setAttribute("aria-label", `${s.busy} busy, ${s.zombie} zombie, ${s.foreign} foreign, ${s.free} free of ${s.total}`);
  if (s.total > 64) {
    td.textContent = `${s.busy} + ${s.zombie} + ${s.foreign} of ${s.total}`;
    return td;
  }
  for (const kind of ["busy", "zombie", "foreign", "free"])
    for (let i = 0; i < s[kind]; i++) td.append(el("span", "", `slot ${kind}`));
  return td;
}

function replicaState(r) {
  if (!r.up) return el("td", `down: ${r.error || "not probed yet"}`, "down");
  if (r.draining) return el("td", "draining");
  if (r.loading) return el("td", "loading its model");
  const b = r.breaker;
  if (b.state === "open") return el("td", `left alone: ${b.reason}; next trial in ${seconds(b.next_trial_s)}`, "down");
  if (b.state === "half-open") return el("td", `on trial: ${Math.round(b.allowance * 100)} % of its slots`);
  if (r.held_off_s > 0) return el("td", `held off for ${seconds(r.held_off_s)}`);
  return el("td", "up", "up");
}

function show(s) {
  const serving = byId("serving");
  serving.textContent = s.draining ? "stopping" : s.serving ? "serving" : "not serving: no replica can be used";
  serving.className = s.serving ? "good" : "bad";
  const kept = s.promises.kept + s.promises.broken;
  const books = { ...s.totals, "promises kept": kept ? `${((100 * s.promises.kept) / kept).toFixed(1)} %` : "–" };
  byId("books").replaceChildren(...Object.entries(books).map(([k, v]) => {
    const d = el("div");
    d.append(el("dt", k), el("dd", v));
    return d;
  }));
  byId("replicas").replaceChildren(...s.replicas.map((r) => row(r.name, `${r.engine} ${r.engine_version || ""}`, replicaState(r), slots(r.slots),
    r.prompt_tokens_per_s.toFixed(0), r.decode_tokens_per_s.toFixed(0))));
  byId("classes").replaceChildren(...s.classes.map((c) => row(c.name, c.queued, c.running, seconds(c.forecast_wait_s),
    c.kept + c.broken ? `${c.kept} of ${c.kept + c.broken}` : "–")));
}

function ended(d) {
  const outcome = el("td", d.reason ? `${d.outcome}: ${d.reason}` : d.outcome, d.outcome);
  const body = byId("requests");
  body.prepend(row(new Date(d.time).toLocaleTimeString(), d.id, d.class, d.model, outcome,
    (d.attempts || []).map((a) => `${a.replica} ${a.result}`).join(", "), seconds(d.queue_ms / 1000)));
  while (body.rows.length > 30) body.lastChild.remove();
}

// EventSource cannot send the admin token, so the stream is read by fetch.
async function listen() {
  const token = sessionStorage.getItem("token");
  const ask = (path) => fetch(path, { headers: token ? { Authorization: `Bearer ${token}` } : {} });
  const answer = await ask("/admin/events");
  if (answer.status === 401) {
    const given = prompt("Admin token");
    if (given) sessionStorage.setItem("token", given);
    return;
  }
  const last = await ask("/admin/decisions?limit=30").then((a) => a.json());
  byId("requests").replaceChildren();
  last.reverse().forEach(ended);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const e of events) {
      const [name, data] = e.split("\n");
      const v = JSON.parse(data.slice("data: ".length));
      if (name === "event: state") show(v);
      else ended(v);
    }
  }
}

for (;;) {
  try {
    await listen();
  } catch { /* said below */ }
  byId("serving").textContent = "disconnected; trying again";
  byId("serving").className = "bad";
  await new Promise((r) => setTimeout(r, 1000));
}
