// The page: it follows the live stream and draws what has changed, at most once
// a frame and so at most once a second.
import { announce, byId, setClass, setText, show } from "./dom.js";
import { apply, fresh } from "./state.js";
import { call, follow, setToken } from "./stream.js";
import { seconds } from "./words.js";
import { setClasses } from "./classes.js";
import { showGlance } from "./glance.js";
import { showLegend, showReplicas, startReplicas, tellChanges } from "./replicas.js";
import { showQueue } from "./queue.js";
import { addEnds, loadEnds, showEnds, startEnds } from "./requests.js";
import { line, loadCharts, point, startCharts } from "./charts.js";

let state = null;
let due = false;
let lostSince = null; // when the connection was lost; null: it is there
let why = "";
let spent = 0; // ms of main thread on what is to be drawn

// work measures what an update costs, as the performance entry "update".
function work(f) {
  const from = performance.now();
  f();
  spent += performance.now() - from;
}

function draw() {
  due = false;
  if (!state) return;
  work(() => {
    setClasses(state.classes);
    showGlance(state, line);
    showLegend(state.classes);
    showReplicas(state);
    showQueue(state);
    showEnds();
    tellChanges(state);
  });
  performance.measure("update", { start: performance.now() - spent, duration: spent });
  performance.clearMeasures("update");
  spent = 0;
}

function soon() {
  if (due) return;
  due = true;
  requestAnimationFrame(draw);
}

function showLink() {
  const lost = lostSince !== null;
  setText(byId("link"), lost ? "disconnected" : "live");
  setClass(byId("link"), `pill ${lost ? "bad" : "good"}`);
  document.body.classList.toggle("stale", lost && state !== null);
  show(byId("lost"), lost);
  if (lost) setText(byId("lost"), `Disconnected since ${seconds((Date.now() - lostSince) / 1000 + 1)}: ${why}. What you see is as it was then; trying again.`);
}

setInterval(() => { if (lostSince !== null) showLink(); }, 1000);

// askToken resolves once a token has been given.
function askToken() {
  const dialog = byId("ask-token");
  return new Promise((given) => {
    const send = () => {
      if (!byId("token").value) return;
      setToken(byId("token").value);
      byId("token").value = "";
      show(byId("token-wrong"), true); // for the next time, if it was
      dialog.close();
      given();
    };
    byId("token-send").onclick = send;
    byId("token").onkeydown = (e) => { if (e.key === "Enter") send(); };
    dialog.oncancel = (e) => e.preventDefault(); // there is nothing to see without
    if (!dialog.open) dialog.showModal();
  });
}

async function drain(replica) {
  const verb = replica.draining ? "resume" : "drain";
  const answer = await call(`/admin/replicas/${encodeURIComponent(replica.name)}/${verb}`, { method: "POST" }).catch(() => null);
  if (answer?.status === 401) {
    await askToken();
    return drain(replica);
  }
  announce(answer?.ok ? `${replica.name} is ${replica.draining ? "resumed" : "drained"}.` : `${replica.name} could not be ${verb === "drain" ? "drained" : "resumed"}: ${answer ? `status ${answer.status}` : "no connection"}.`);
}

startReplicas(soon, drain);
startEnds();
startCharts();
follow({
  open() {
    if (lostSince !== null) announce("Connected again.");
    lostSince = null;
    show(byId("token-wrong"), false);
    showLink();
    loadEnds().then(soon, () => {}); // the stream's end, if it is one, is told by the stream
    loadCharts().then(soon, () => {});
  },
  closed(reason) {
    if (lostSince === null) {
      lostSince = Date.now();
      announce("Disconnected.");
    }
    why = reason;
    showLink();
  },
  locked: askToken,
  state(whole) { work(() => (state = fresh(whole))); soon(); },
  delta(d) { work(() => apply(state, d)); soon(); },
  point(p) { work(() => point(p)); },
  ends(batch) { work(() => addEnds(batch)); soon(); },
});
