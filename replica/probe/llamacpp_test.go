package probe

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

// R11: slots, context, model and work in hand are the engine's own word.
func TestLlamaReportsItself(t *testing.T) {
	f := aLlama(t)
	p := probing(t, f.serve(), replica.EngineAuto)

	got := round(t, p)
	require.True(t, got.Up)
	require.Empty(t, got.Err)
	require.Empty(t, got.Note)
	require.Equal(t, replica.EngineLlamaCpp, got.Engine)
	require.Equal(t, "b1-80fb11a", got.Version)
	require.Equal(t, 2, got.Slots)
	require.Equal(t, 4096, got.Context)
	require.True(t, got.AnyModel)
	require.True(t, got.ModelsRead)
	require.Len(t, got.Models, 1)
	require.Equal(t, "tiny", got.Models[0].Name)
	require.Equal(t, []string{"small"}, got.Models[0].Aliases)
	require.True(t, got.Models[0].Resident)
	require.Equal(t, 4096, got.Models[0].Context)
	require.Contains(t, string(got.Models[0].OpenAI), `"created":1795992595`)
	require.Equal(t, 0, got.InHand)
	require.Equal(t, 0, got.Waiting)
	require.Equal(t, []string{"/", "/props", "/v1/models", "/slots"}, f.took())
	require.NotZero(t, got.At)
	require.Positive(t, got.Took)
}

// A round asks as little as it can; the list is read again every tenth round.
func TestLlamaAsksLittle(t *testing.T) {
	for _, c := range []struct{ name, sleeping, round string }{
		{"a build that can sleep", "false", "/props /slots"},
		{"a build that cannot", "", "/slots"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := aLlama(t)
			f.set(map[string]reply{"/props": ok(propsAnswer(c.sleeping))})
			p := probing(t, f.serve(), replica.EngineAuto)
			round(t, p)
			f.took()
			for range listEvery - 1 {
				round(t, p)
				require.Equal(t, c.round, strings.Join(f.took(), " "))
			}
			round(t, p)
			require.Equal(t, "/props /v1/models /slots", strings.Join(f.took(), " "))
		})
	}
}

// R7: progress counts. It grows with every token of any task and never falls,
// also when one task ends and the next begins.
func TestLlamaProgressNeverFalls(t *testing.T) {
	slot := func(task, processed, decoded int, next string) string {
		return fmt.Sprintf(`[{"id":0,"n_ctx":4096,"is_processing":%t,"id_task":%d,"n_prompt_tokens_processed":%d,"next_token":%s}]`,
			task >= 0, task, processed, fmt.Sprintf(next, decoded))
	}
	const list, object = `[{"n_decoded":%d}]`, `{"n_decoded":%d}`
	f := aLlama(t)
	p := probing(t, f.serve(), replica.EngineAuto)
	for _, c := range []struct {
		what   string
		slots  string
		inHand int
		want   int
	}{
		{"idle", slot(-1, 0, 0, list), 0, 0},
		{"a prompt begins", slot(7, 100, 0, list), 1, 100},
		{"it goes on", slot(7, 600, 0, list), 1, 600},
		{"nothing moved", slot(7, 600, 0, list), 1, 600},
		{"it decodes", slot(7, 600, 40, list), 1, 640},
		{"another task took the slot", slot(8, 10, 0, list), 1, 650},
		{"idle again", slot(-1, 0, 0, list), 0, 650},
		{"asleep for a while", "", 0, 650},
		{"an older build's form", slot(9, 5, 5, object), 1, 660},
	} {
		f.set(map[string]reply{"/slots": ok(c.slots), "/props": ok(propsAnswer(fmt.Sprint(c.slots == "")))})
		got := round(t, p)
		require.Equal(t, c.inHand, got.InHand, c.what)
		require.Equal(t, c.want, got.Progress, c.what)
	}
}

// R11: requests that wait inside a full server are counted where it says so.
func TestLlamaQueueOfAFullServer(t *testing.T) {
	full := strings.ReplaceAll(llamaIdle, `"is_processing":false`, `"is_processing":true`)
	f := aLlama(t)
	p := probing(t, f.serve(), replica.EngineAuto)
	f.set(map[string]reply{"/slots": ok(llamaOneBusy)})
	got := round(t, p)
	require.Equal(t, 1, got.InHand)
	require.Equal(t, 0, got.Waiting)

	f.set(map[string]reply{"/slots": ok(full)})
	got = round(t, p)
	require.Equal(t, 2, got.InHand)
	require.Equal(t, 4, got.Waiting)

	f.set(map[string]reply{"/metrics": {status: 501, body: llamaNoSlots}})
	got = round(t, p)
	require.Equal(t, 2, got.InHand)
	require.Equal(t, -1, got.Waiting)
	f.took()
	round(t, p)
	require.NotContains(t, f.took(), "/metrics", "what is switched off is not asked for again")
}

// R11: with --no-slots the slots come from /props, the work from /metrics.
func TestLlamaWithoutSlots(t *testing.T) {
	f := aLlama(t)
	f.set(map[string]reply{"/slots": {status: 501, body: llamaNoSlots}})
	p := probing(t, f.serve(), replica.EngineAuto)
	got := round(t, p)
	require.Equal(t, 2, got.Slots)
	require.Equal(t, 2, got.InHand)
	require.Equal(t, 4, got.Waiting)
	require.Zero(t, got.Progress)
	require.Empty(t, got.Note)
	f.set(map[string]reply{"/metrics": ok(strings.ReplaceAll(llamaNumbers, "110", "117"))})
	require.Equal(t, 7, round(t, p).Progress)

	f.set(map[string]reply{"/metrics": {status: 501, body: llamaNoSlots}})
	got = round(t, p)
	require.True(t, got.Up)
	require.Equal(t, 2, got.Slots)
	require.Equal(t, -1, got.InHand)
	require.Contains(t, got.Note, "--no-slots")
	f.took()
	round(t, p)
	require.Equal(t, []string{"/props"}, f.took())

	// The server says beforehand that it has neither.
	f = aLlama(t)
	f.set(map[string]reply{"/props": ok(strings.NewReplacer(`_slots":true`, `_slots":false`, `_metrics":true`, `_metrics":false`).Replace(propsAnswer("false")))})
	p = probing(t, f.serve(), replica.EngineAuto)
	got = round(t, p)
	require.Equal(t, -1, got.InHand)
	require.NotContains(t, f.took(), "/slots")
}

// R11, PAINS 29: a replica that is loading is not dead; its list is read when
// it is ready.
func TestLlamaLoadingThenReady(t *testing.T) {
	loading := reply{status: 503, body: llamaLoading}
	ready := aLlama(t)
	f := newFake(t, "llama.cpp", nil)
	f.otherwise = loading
	p := probing(t, f.serve(), replica.EngineAuto)
	for range 3 {
		got := round(t, p)
		require.True(t, got.Up)
		require.True(t, got.Loading)
		require.Equal(t, replica.EngineLlamaCpp, got.Engine)
		require.False(t, got.ModelsRead)
		require.Zero(t, got.InHand, "nothing runs while the model loads")
	}
	f.set(ready.mu.replies)
	got := round(t, p)
	require.False(t, got.Loading)
	require.True(t, got.ModelsRead)
	require.Equal(t, 2, got.Slots)

	// It was restarted between two rounds, with another model.
	f.set(map[string]reply{"/props": loading, "/slots": loading})
	require.True(t, round(t, p).Loading)
	f.set(map[string]reply{
		"/props": ok(propsAnswer("false")), "/slots": ok(llamaIdle),
		"/v1/models": ok(strings.ReplaceAll(llamaModels, "tiny", "large")),
	})
	require.Equal(t, "large", round(t, p).Models[0].Name)

	// The same behind a proxy that hides the Server header.
	bare := newFake(t, "", nil)
	bare.otherwise = loading
	got = round(t, probing(t, bare.serve(), replica.EngineAuto))
	require.True(t, got.Loading)
	require.Equal(t, replica.EngineLlamaCpp, got.Engine)
}

// A sleeping server is not woken by probing: not at first contact, not later,
// not even by a question that must be answered.
func TestLlamaSleepingIsNotWoken(t *testing.T) {
	f := aLlama(t)
	f.set(map[string]reply{"/props": ok(propsAnswer("true"))})
	f.hook = func(path string) {
		switch path {
		case "/", "/health", "/props":
		default:
			t.Errorf("GET %s may wake a sleeping llama.cpp", path)
		}
	}
	p := probing(t, f.serve(), replica.EngineAuto)
	for range 2 * listEvery {
		got := round(t, p)
		require.True(t, got.Up)
		require.True(t, got.Sleeping)
		require.Zero(t, got.InHand)
		require.Equal(t, 2, got.Slots)
		require.True(t, got.ModelsRead)
		require.Equal(t, "tiny", got.Models[0].Name)
		require.False(t, got.Models[0].Resident)
		require.JSONEq(t, `{"id":"tiny","object":"model","created":0,"owned_by":"llamacpp"}`, string(got.Models[0].OpenAI))
	}
	f.hook = nil
	f.set(map[string]reply{"/props": ok(propsAnswer("false")), "/slots": ok(llamaOneBusy)})
	got := round(t, p)
	require.False(t, got.Sleeping)
	require.Equal(t, 1, got.InHand)
	require.True(t, got.Models[0].Resident)
}

// An idle server that is used by nobody is left to fall asleep: each answer of
// /slots would restart its idle time.
func TestDrowsy(t *testing.T) {
	start := time.Unix(0, 0)
	// run probes every 2 s a server that sleeps after idle without a look, and
	// returns how long after the start it first slept.
	run := func(d *drowsy, idle, limit time.Duration) time.Duration {
		touched := start
		for at := time.Duration(0); at <= limit; at += 2 * time.Second {
			now := start.Add(at)
			if now.Sub(touched) >= idle {
				d.slept()
				return at
			}
			if !d.let(now) {
				d.looked(now, 0)
				touched = now
			}
		}
		return -1
	}
	for _, c := range []struct{ idle, unknown, known time.Duration }{
		{10 * time.Second, 130 * time.Second, 10 * time.Second},
		{5 * time.Minute, 20 * time.Minute, 5 * time.Minute},
		{15 * time.Minute, 47 * time.Minute, 15 * time.Minute},
	} {
		var d drowsy
		first := run(&d, c.idle, time.Hour)
		require.Positive(t, first, "%v: it never slept", c.idle)
		require.LessOrEqual(t, first, c.unknown, c.idle)
		// Once seen asleep it is left alone as soon as it is idle.
		require.LessOrEqual(t, run(&d, c.idle, time.Hour), c.known+2*time.Second, c.idle)
	}

	var d drowsy
	for at := time.Duration(0); at < 10*time.Minute; at += 2 * time.Second {
		require.False(t, d.let(start.Add(at)), "a server at work is looked at every round")
		d.looked(start.Add(at), 1)
	}
	d.slept()
	require.False(t, d.let(start), "it woke: somebody is using it")
	d.looked(start, 1)
	require.False(t, d.let(start.Add(time.Second)), "and still is")
	d.looked(start.Add(time.Second), 0)
	require.True(t, d.let(start.Add(2*time.Second)))
}

// What the gateway has there is looked at in any case.
func TestLlamaLooksWhenAsked(t *testing.T) {
	f := aLlama(t)
	p := probing(t, f.serve(), replica.EngineAuto)
	round(t, p)
	p.engine.(*llama).drowsy.sleeper = true
	f.took()
	got := p.Round(t.Context(), patient, false)
	require.Equal(t, -1, got.InHand)
	require.Equal(t, 2, got.Slots)
	require.Equal(t, []string{"/props"}, f.took())
	require.Equal(t, 0, p.Round(t.Context(), patient, true).InHand)
	require.Equal(t, []string{"/props", "/slots"}, f.took())
}

// PAINS 29: builds whose /slots waits for a long batch are busy, not dead.
func TestLlamaBusyIsNotDead(t *testing.T) {
	f := aLlama(t)
	p := probing(t, f.serve(), replica.EngineAuto)
	round(t, p)
	f.set(map[string]reply{"/slots": {hang: true}})
	got := p.Round(t.Context(), 50*time.Millisecond, true)
	require.True(t, got.Up, got.Err)
	require.Equal(t, -1, got.InHand)
	require.Equal(t, 2, got.Slots)
	require.Contains(t, got.Note, "busy: no answer to GET /slots within 50ms")

	f.set(map[string]reply{"/props": {hang: true}})
	got = p.Round(t.Context(), 50*time.Millisecond, true)
	require.True(t, got.Up, got.Err)
	require.Equal(t, "tiny", got.Models[0].Name)

	f.set(map[string]reply{"/health": {hang: true}})
	got = p.Round(t.Context(), 50*time.Millisecond, true)
	require.False(t, got.Up)
	require.False(t, got.Gone)
	require.Contains(t, got.Err, "no answer to GET /props within 50ms")
}

// R7: a replica that refuses our key is misconfigured, not down, and what it
// has cannot be read: it serves any model.
func TestLlamaKey(t *testing.T) {
	f := aLlama(t)
	refused := reply{status: 401, body: llamaNoKey}
	f.set(map[string]reply{"/props": refused, "/slots": refused, "/v1/models": refused, "/metrics": refused})
	u := f.serve()
	got := round(t, probing(t, u, replica.EngineAuto))
	require.True(t, got.Up)
	require.Equal(t, replica.EngineLlamaCpp, got.Engine)
	require.False(t, got.ModelsRead)
	require.Equal(t, -1, got.InHand)
	require.Equal(t, "it wants an API key (GET /props: 401): name its variable in api_key_env", got.Note)

	p := New(Target{Name: "gpu0", URL: u, Engine: replica.EngineLlamaCpp, Key: "sekret"}, nil)
	t.Cleanup(p.Close)
	require.Equal(t, "it refuses the key of api_key_env (GET /props: 401)", round(t, p).Note)
	for _, r := range f.requests()[len(f.requests())-2:] {
		require.Equal(t, "Bearer sekret", r.Header.Get("Authorization"))
	}
}

// The page of its web interface is not read for its name.
func TestLlamaWithABigPage(t *testing.T) {
	f := aLlama(t)
	f.set(map[string]reply{"/": ok(strings.Repeat("<p>", maxAnswer/2))})
	require.Equal(t, 2, round(t, probing(t, f.serve(), replica.EngineAuto)).Slots)
}

// A proxy may offer nothing but the paths of inference.
func TestLlamaBehindAProxy(t *testing.T) {
	f := newFake(t, "nginx", map[string]reply{"/v1/models": ok(llamaModels)})
	got := round(t, probing(t, f.serve(), replica.EngineAuto))
	require.True(t, got.Up)
	require.Equal(t, replica.EngineLlamaCpp, got.Engine)
	require.True(t, got.AnyModel)
	require.Equal(t, "tiny", got.Models[0].Name)
	require.Equal(t, 4096, got.Context)
	require.Zero(t, got.Slots)
	require.Equal(t, -1, got.InHand)
	require.Contains(t, got.Note, "GET /props is not llama.cpp's: 404")
}

// R11: a router lists several models, tells which are loaded, and each has
// slots of its own. Asking loads nothing and wakes nothing.
func TestLlamaRouter(t *testing.T) {
	list := func(a, b string) string {
		return fmt.Sprintf(`{"data":[{"id":"big","aliases":["b"],"object":"model","owned_by":"llamacpp","status":{"value":%q,"args":["-c","8192"]}},{"id":"org/small:Q4","object":"model","owned_by":"llamacpp","status":{"value":%q,"args":[]}}],"object":"list"}`, a, b)
	}
	f := aLlama(t)
	f.set(map[string]reply{
		"/props":                          ok(`{"role":"router","max_instances":4,"model_alias":"llama-server","default_generation_settings":{"params":{},"n_ctx":0},"build_info":"b9"}`),
		"/v1/models":                      ok(list("unloaded", "unloaded")),
		"/slots":                          {status: 400, body: `{"error":{"message":"model name is missing"}}`},
		"/slots?autoload=false&model=big": ok(`[{"id":0,"n_ctx":8192,"is_processing":true,"id_task":3,"n_prompt_tokens_processed":50},{"id":1,"n_ctx":8192,"is_processing":false},{"id":2,"n_ctx":8192,"is_processing":false}]`),
		"/slots?autoload=false&model=org%2Fsmall%3AQ4": ok(llamaOneBusy),
	})
	p := probing(t, f.serve(), replica.EngineAuto)
	got := round(t, p)
	require.True(t, got.Up)
	require.Equal(t, "b9", got.Version)
	require.False(t, got.AnyModel)
	require.Len(t, got.Models, 2)
	require.Zero(t, got.Slots)
	require.Zero(t, got.InHand)
	require.False(t, got.Models[0].Resident)
	require.NotContains(t, strings.Join(f.took(), " "), "/slots")

	f.set(map[string]reply{"/v1/models": ok(list("loaded", "loaded"))})
	got = round(t, p)
	require.Equal(t, []string{"/v1/models", "/slots?autoload=false&model=big", "/slots?autoload=false&model=org%2Fsmall%3AQ4"}, f.took())
	require.Equal(t, 2, got.Slots, "the smallest holds for whichever is asked next")
	require.Equal(t, 2, got.InHand)
	require.Zero(t, got.Progress, "what was done before the first look is not progress")
	require.True(t, got.Models[1].Resident)
	require.Equal(t, 8192, got.Models[0].Context)
	require.Equal(t, 4096, got.Models[1].Context)

	f.set(map[string]reply{"/v1/models": ok(list("loaded", "sleeping"))})
	got = round(t, p)
	require.Equal(t, []string{"/v1/models", "/slots?autoload=false&model=big"}, f.took())
	require.Equal(t, 3, got.Slots)
	require.Zero(t, got.Progress)
	require.False(t, got.Models[1].Resident)
	require.Equal(t, 4096, got.Models[1].Context, "what it had is remembered")

	f.set(map[string]reply{"/slots?autoload=false&model=big": ok(`[{"id":0,"is_processing":true,"id_task":3,"n_prompt_tokens_processed":75}]`)})
	got = round(t, p)
	require.Equal(t, 1, got.Slots)
	require.Equal(t, 25, got.Progress)
	f.set(map[string]reply{"/slots?autoload=false&model=big": ok(`[{"id":0},{"id":1},{"id":2}]`)})
	require.Equal(t, 3, round(t, p).Slots)

	// One model's process hangs: the router does not.
	f.set(map[string]reply{"/slots?autoload=false&model=big": {hang: true}})
	got = p.Round(t.Context(), 50*time.Millisecond, true)
	require.True(t, got.Up)
	require.Equal(t, -1, got.InHand)
	require.Equal(t, 3, got.Slots)
}
