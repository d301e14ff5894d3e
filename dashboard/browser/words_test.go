package browser_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// The pure parts of the page: what it says of numbers, replicas and requests,
// and how it cuts them up.
func TestWords(t *testing.T) {
	b := open(t, newFleet(t, 1, 0).url, desktop)
	const up = `{name: "gpu1", up: true, engine: "vllm", models: [{name: "m", resident: true}], breaker: {state: "closed", allowance: 1}, held_off_s: 0, consecutive_failed: 0, slots: {total: 8, free: 5, busy: 2, zombie: 1, foreign: 0}, busy_by_class: [0, 2]}`
	for _, tc := range []struct{ module, expression, want string }{
		{"words", `[0, 0.0042, 0.905, 1, 2.34, 59.6, 300, 7200, null].map(m.seconds)`, `["0 s","4.2 ms","905 ms","1 s","2.3 s","60 s","5 min","2.0 h","–"]`},
		{"words", `[0, 0.123, 3.456, 1234, 123456, 7.5e6].map(m.number)`, `["0","0.12","3.5","1,234","123 k","7.5 M"]`},
		{"words", `[0, 0.031, 0.5, 0.9996, 1, NaN].map(m.percent)`, `["0 %","3.1 %","50 %","99.9 %","100 %","–"]`},
		{"words", `m.condition(` + up + `)`, `{"kind":"good","label":"up","why":"","sentence":""}`},
		{
			"words", `m.condition({...` + up + `, breaker: {state: "open", open_s: 14, next_trial_s: 6, reason: "3 consecutive failures"}}).sentence`,
			`"gpu1 is open since 14 s: 3 consecutive failures; next trial in 6 s."`,
		},
		{
			"words", `m.condition({...` + up + `, breaker: {state: "half-open", allowance: 0.13, reason: "recovering from 3 consecutive failures"}}).sentence`,
			`"gpu1 is on trial with 13 % of its slots, after: 3 consecutive failures."`,
		},
		{"words", `m.condition({...` + up + `, up: false, error: "connection refused"}).sentence`, `"gpu1 is down: connection refused."`},
		{"words", `m.condition({...` + up + `, draining: true}).sentence`, `"gpu1 is drained by an operator: 3 slots are still in use."`},
		{"words", `m.condition({...` + up + `, gpu: {devices: [{id: "0", throttle: "heat"}]}}).sentence`, `"gpu1 is throttled: the clocks of GPU 0 are held down by heat."`},
		{
			"words", `m.explain({outcome: "refused", reason: "deadline_unmeetable", deadline_s: 6, forecast_s: 14.2, retry_after_s: 8.1, candidates: [{}], attempts: []})`,
			`["On arrival its first token was forecast in 14 s, against a deadline of 6 s.","Refused on arrival: its first token would have come too late.","It was told to come back in 9 s."]`,
		},
		// slots: who is busy by class, and what is free
		{"replicas", `m.cells(` + up + `, [{name: "a"}, {name: "b"}]).map((p) => p.label + " " + p.n)`, `["b 2","zombie 1","free 5"]`},
		// half-open: only so many of the free ones may be used
		{"replicas", `m.cells({...` + up + `, breaker: {state: "half-open", allowance: 0.52}}, [{}, {name: "b"}]).map((p) => p.label + " " + p.n)`, `["b 2","zombie 1","free 1","held off 4"]`},
		{"replicas", `m.cells({...` + up + `, held_off_s: 3}, [{}, {name: "b"}]).at(-1)`, `{"kind":"held","n":5,"label":"held off"}`},
		// a failed attempt, a wait, and a good one
		{
			"requests", `m.segments({total_ms: 1000, attempts: [{begun_ms: 100, ms: 50, result: "connect", first_token_ms: 0}, {begun_ms: 300, ms: 700, result: "ok", first_token_ms: 600}]}).parts.map((p) => [p.kind, p.from, p.to].join(" "))`,
			`["queued 0 100","failed 100 150","queued 150 300","prompt 300 600","decode 600 1000"]`,
		},
		{"requests", `m.segments({total_ms: 3000, queue_ms: 3000, attempts: []})`, `{"parts":[{"kind":"queued","from":0,"to":3000}],"end":3000}`},
		{"requests", `[m.scale([7]), m.scale([101, 20]), m.scale([4300])]`, `[100,200,5000]`},
		// a chart's gap stays a gap, and its past does not grow
		{"charts", `(() => { const d = {span: "15m", step_s: 5, names: ["x"], from: 1000, points: [[1]]}; m.addPoint(d, {from: 1015, points: [[4]]}); m.addPoint(d, {from: 1015, points: [[9]]}); return d.points; })()`, `[[1],[null],[null],[4]]`},
		{"charts", `(() => { const d = {span: "15m", step_s: 5, names: ["x"], from: 0, points: []}; for (let i = 0; i < 1000; i++) m.addPoint(d, {from: i * 5, points: [[i]]}); return [d.points.length, d.from, d.points[0][0]]; })()`, `[180,4100,820]`},
		{"charts", `m.columns({names: ["a", "b"], points: [[1, 2], [null, 3]]}, {stack: true, lines: [["a"], ["b"]]}).drawn`, `[[1,null],[3,3]]`},
		// the whole, and then what has changed
		{
			"state", `(() => { const s = m.fresh({uptime_s: 1, replicas: [{name: "a", slow: "heat"}, {name: "b"}]}); m.apply(s, {set: {uptime_s: 2}, replicas: {a: {slow: null}, c: {name: "c"}}, order: ["c", "a"]}); return {...s, replicas: m.replicasOf(s)}; })()`,
			`{"uptime_s":2,"order":["c","a"],"replicas":[{"name":"c"},{"name":"a"}]}`,
		},
		// events that come in pieces
		{"stream", `(() => { const got = []; const on = {state: (v) => got.push(v)}; const rest = m.take("event: state\ndata: {\"a\":1}\n\nevent: new\ndata: 0\n\nevent: sta", on); got.push(rest); return got; })()`, `[{"a":1},"event: sta"]`},
		{"queue", `m.rows([{name: "a", queued: 9, running: 1, forecast_wait_s: 0}], Array.from({length: 8}, (_, i) => ({class: "a", key: "k" + i, queued: 1, oldest_s: i, soonest_s: i})), true).map((r) => r.key + " " + r.queued)`, `["over 8 keys 9","k0 1","k1 1","k2 1","k3 1","k4 1","k5 1","further keys 3"]`},
	} {
		got := eval[json.RawMessage](b, `import("/dashboard/`+tc.module+`.js").then((m) => `+tc.expression+`)`)
		require.JSONEq(t, tc.want, string(got), "%s: %s", tc.module, tc.expression)
	}
	b.clean()
}
