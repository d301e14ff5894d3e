// The queue: who waits by class and key, and who is next.
import { byId, el, list, setAttr, setClass, setText, setVar, show } from "./dom.js";
import { newcomer, number, plural, seconds } from "./words.js";
import { classColour } from "./classes.js";

const maxKeys = 6; // rows of a class

// rows are the classes, each followed by its keys where there are several. Pure.
export function rows(classes, groups, serving) {
  return classes.flatMap((c) => {
    const keys = groups.filter((g) => g.class === c.name);
    const oldest = Math.max(0, ...keys.map((g) => g.oldest_s));
    const soonest = Math.min(Infinity, ...keys.map((g) => g.soonest_s));
    const untold = c.queued > keys.reduce((n, g) => n + g.queued, 0); // the state has the fullest of many keys
    const one = keys.length === 1 ? keys[0].key : keys.length ? `${untold ? "over " : ""}${plural(keys.length, "key")}` : "";
    const head = { id: c.name, class: c.name, key: one, queued: c.queued, running: c.running, oldest, soonest, newcomer: newcomer(c, serving), head: true };
    if (keys.length < 2) return [head];
    const shown = keys.slice(0, maxKeys);
    const rest = c.queued - shown.reduce((n, g) => n + g.queued, 0);
    const more = rest > 0 ? [{ id: `${c.name}\u0000\u0000`, class: c.name, key: "further keys", queued: rest, oldest: NaN, soonest: NaN }] : [];
    return [head, ...shown.map((g) => ({ id: `${c.name}\u0000${g.key}`, class: c.name, key: g.key, queued: g.queued, oldest: g.oldest_s, soonest: g.soonest_s })), ...more];
  });
}

export function showQueue(s) {
  const w = s.waiting || { groups: [], others: 0, next: [] };
  setText(byId("queue-count"), number(s.totals.queued));
  list(byId("groups"), rows(s.classes, w.groups, s.serving), {
    key: (r) => r.id,
    create: () => el("tr", {}, el("th", { scope: "row" }, el("i", { class: "dot" }), el("span")), ...Array.from({ length: 6 }, (_, i) => el("td", { class: i ? "num" : "" }))),
    update: (tr, r) => {
      const [name, key, queued, running, oldest, soonest, fresh] = tr.children;
      setClass(tr, r.head ? "" : "sub");
      setClass(name.firstChild, r.head ? `dot ${classColour(r.class)}` : "");
      setText(name.lastChild, r.class);
      setClass(name.lastChild, r.head ? "" : "unseen");
      setText(key, r.key);
      setText(queued, number(r.queued));
      setText(running, r.head ? number(r.running) : "");
      setText(oldest, r.queued && Number.isFinite(r.oldest) ? seconds(r.oldest) : "");
      setText(soonest, r.queued && Number.isFinite(r.soonest) ? (r.soonest < 0 ? "past" : `in ${seconds(r.soonest)}`) : "");
      setText(fresh, r.newcomer || "");
    },
  });
  list(byId("next"), w.next, {
    key: (n) => n.id,
    create: (n) => el("li", {}, el("div", { class: "line" }, el("i", { class: `dot ${classColour(n.class)}` }), el("span", { class: "grow" }), el("span", { class: "num" })), el("div", { class: "age", role: "img" }, el("i", { class: "spent" }), el("i", { class: "ahead" }))),
    update: (li, n) => {
      const [dot, who, start] = li.firstChild.children;
      setClass(dot, `dot ${classColour(n.class)}`);
      setText(who, [n.class, n.key, n.model, n.tries ? `attempt ${n.tries + 1}` : ""].filter(Boolean).join(" · "));
      const left = n.deadline_s - n.age_s;
      setText(start, n.start_s < 0.05 ? "starts now" : `starts in ${seconds(n.start_s)}`);
      const bar = li.lastChild;
      const span = Math.max(n.deadline_s, 1e-3);
      setVar(bar, "--spent", Math.min(1, n.age_s / span).toFixed(3));
      setVar(bar, "--ahead", Math.min(1, (n.age_s + n.start_s) / span).toFixed(3));
      const words = `waits since ${seconds(n.age_s)}; deadline ${left < 0 ? "past" : `in ${seconds(left)}`}`;
      setAttr(bar, "aria-label", words);
      setAttr(li, "title", `${n.id}: ${words}`);
    },
  });
  show(byId("next-none"), w.next.length === 0);
}
