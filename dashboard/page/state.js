// The state as the live stream tells it: the whole at first, then what changes.
// It knows no DOM and no connection.
import { condition } from "./words.js";

// fresh makes a state of /admin/state's form.
export function fresh(whole) {
  const { replicas, ...head } = whole;
  return { ...head, order: replicas.map((r) => r.name), replicas: new Map(replicas.map((r) => [r.name, r])) };
}

// apply takes a delta in: members to set, replicas' members to set, and the
// order where replicas came or went. null takes a member away.
export function apply(state, delta) {
  assign(state, delta.set);
  for (const [name, members] of Object.entries(delta.replicas)) {
    let r = state.replicas.get(name);
    if (!r) state.replicas.set(name, (r = {}));
    assign(r, members);
    conditions.delete(r);
  }
  if (delta.order) {
    state.order = delta.order;
    const known = new Set(delta.order);
    for (const name of state.replicas.keys()) if (!known.has(name)) state.replicas.delete(name);
  }
}

function assign(to, members) {
  for (const [k, v] of Object.entries(members)) {
    if (v === null) delete to[k];
    else to[k] = v;
  }
}

export const replicasOf = (state) => state.order.map((name) => state.replicas.get(name));

const conditions = new WeakMap(); // of replicas, until they change

// conditionOf is words.js's condition, thought about once for each change: in
// an update several parts of the page ask.
export function conditionOf(r) {
  let c = conditions.get(r);
  if (!c) conditions.set(r, (c = condition(r)));
  return c;
}

// sumSlots adds up the slots of replicas.
export function sumSlots(replicas) {
  const sum = { total: 0, free: 0, busy: 0, zombie: 0, foreign: 0 };
  for (const r of replicas) for (const k in sum) sum[k] += r.slots[k];
  return sum;
}
