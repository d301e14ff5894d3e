// The connection to the gateway: the live stream with reconnection, and calls
// of the admin API, both with the admin token where one is needed.

// silence is how long nothing may come before the connection counts as lost, in
// ms: the stream has a beat every second.
const silence = 5000;
const pauses = [500, 1000, 2000, 4000];

const stored = "switchyard-token"; // of this tab, until it is closed

export const setToken = (token) => sessionStorage.setItem(stored, token);

// call asks the admin API. EventSource cannot send the token, so the stream is
// read by it, too.
export function call(path, options = {}) {
  const token = sessionStorage.getItem(stored);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  return fetch(path, { ...options, headers, cache: "no-store" });
}

// follow reads the stream for ever. on has a function for each event, and
// open(), closed(why) and locked(), which resolves when there is a token.
export async function follow(on) {
  for (let failures = 0; ; failures++) {
    let why;
    try {
      const answer = await once(on, () => (failures = 0));
      why = answer === 401 ? "the admin token is missing or wrong" : "the gateway ended the stream";
      if (answer === 401) {
        on.closed(why);
        await on.locked();
        continue;
      }
    } catch (e) {
      why = e.name === "AbortError" ? `nothing was heard for ${silence / 1000} s` : "the gateway cannot be reached";
    }
    on.closed(why);
    await new Promise((r) => setTimeout(r, pauses[Math.min(failures, pauses.length - 1)]));
  }
}

async function once(on, heard) {
  const abort = new AbortController();
  let timer = setTimeout(() => abort.abort(), silence);
  try {
    const answer = await call("/admin/events?changes", { signal: abort.signal });
    if (answer.status === 401) return 401;
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    on.open();
    heard();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return 200;
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), silence);
      rest = take(rest + value, on);
    }
  } finally {
    clearTimeout(timer);
    abort.abort();
  }
}

// take hands whole events on and returns what is left.
export function take(text, on) {
  const events = text.split("\n\n");
  const rest = events.pop();
  for (const e of events) {
    const nl = e.indexOf("\n");
    on[e.slice("event: ".length, nl)]?.(JSON.parse(e.slice(nl + 1 + "data: ".length)));
  }
  return rest;
}
