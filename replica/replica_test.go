package replica

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"switchyard/breaker"
)

var t0 = time.Unix(1_700_000_000, 0)

// TestR1TheLedgerNeverOverdraws: random takes, burials and returns against a
// plain count of what is held.
func TestR1TheLedgerNeverOverdraws(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := Slots{Total: rapid.IntRange(1, 8).Draw(rt, "total")}
		busy, zombie := 0, 0
		rt.Repeat(map[string]func(*rapid.T){
			"take": func(rt *rapid.T) {
				n := rapid.IntRange(1, 3).Draw(rt, "n")
				if n > s.Free() {
					require.Panics(rt, func() { s.Take(t0, n) })
					return
				}
				s.Take(t0, n)
				busy += n
			},
			"give": func(*rapid.T) {
				if busy == 0 {
					require.Panics(rt, func() { s.Give(t0, 1) }, "given back twice")
					return
				}
				s.Give(t0, 1)
				busy--
			},
			"bury": func(*rapid.T) {
				if busy > 0 {
					s.Bury(t0, 1)
					busy, zombie = busy-1, zombie+1
				}
			},
			"exhume": func(*rapid.T) {
				if zombie == 0 {
					require.Panics(rt, func() { s.Exhume(t0, 1) }, "given back twice")
					return
				}
				s.Exhume(t0, 1)
				zombie--
			},
			"": func(*rapid.T) {
				require.Equal(rt, busy+zombie, s.Held())
				require.Equal(rt, max(0, s.Total-busy-zombie), s.Free())
			},
		})
	})
}

func TestSpeedLearnsFromTheFirstSampleAndFollows(t *testing.T) {
	var s Speed
	_, known := s.FirstToken(100)
	require.False(t, known)
	s.Learn(Sample{PromptTokens: 100, OutputTokens: 51, Prompt: time.Second, Decode: 5 * time.Second, Hold: 6 * time.Second})
	d, known := s.FirstToken(200)
	require.True(t, known)
	require.Equal(t, 2*time.Second, d)
	require.Equal(t, 12*time.Second, whole(&s, 200, 101)) // the first token comes with the prompt
	require.InDelta(t, 100, s.PromptTokensPerS(), 0.001)
	require.InDelta(t, 10, s.DecodeTokensPerS(), 0.001)
	for range 40 { // twice as slow from now on
		s.Learn(Sample{PromptTokens: 100, Prompt: 2 * time.Second})
	}
	require.InDelta(t, 50, s.PromptTokensPerS(), 1)
	s.Learn(Sample{PromptTokens: 3, Prompt: time.Hour})
	require.InDelta(t, 50, s.PromptTokensPerS(), 1, "a tiny prompt teaches no speed")
}

// R6: where most prompts are found in the cache, a few new tokens each, their
// fixed cost is not taken for the speed of all tokens.
func TestR6SpeedWhereMostPromptsAreCached(t *testing.T) {
	took := func(tokens int) time.Duration { // 20 ms and 2,000 tokens a second
		return 20*time.Millisecond + time.Duration(tokens)*500*time.Microsecond
	}
	for _, every := range []int{2, 10, 50} {
		var s Speed
		for i := range 2000 {
			tokens := 20 + i%60
			if i%every == 0 {
				tokens = 1500 + i%1000
			}
			s.Learn(Sample{PromptTokens: tokens, Prompt: took(tokens)})
			if i < 2*every {
				continue
			}
			large, _ := s.FirstToken(2000)
			require.InEpsilon(t, took(2000).Seconds(), large.Seconds(), 0.1, "one in %d, after %d", every, i)
			if i > 1000 {
				small, _ := s.FirstToken(50)
				require.InEpsilon(t, took(50).Seconds(), small.Seconds(), 0.2, "one in %d, after %d", every, i)
			}
		}
	}
	var s Speed
	for range 100 { // only small ones: what a large one takes is their ratio's guess
		s.Learn(Sample{PromptTokens: 50, Prompt: took(50)})
	}
	d, _ := s.FirstToken(50)
	require.InEpsilon(t, took(50).Seconds(), d.Seconds(), 0.01)
	s.Learn(Sample{PromptTokens: 2000, Prompt: took(2000)})
	d, _ = s.FirstToken(2000)
	require.InEpsilon(t, took(2000).Seconds(), d.Seconds(), 0.01, "one large one sets it right")
}

// R4: the first token of an answer comes with its prompt; the pace is that of the
// others, so a short answer is not forecast longer than it is.
func TestR4AnAnswerIsItsPromptAndTheTokensAfterTheFirst(t *testing.T) {
	var s Speed
	s.Learn(Sample{PromptTokens: 100, Prompt: time.Second, OutputTokens: 3, Decode: 2 * time.Second, Hold: 3 * time.Second})
	require.Equal(t, 3*time.Second, whole(&s, 100, 3))
	require.Equal(t, time.Second, whole(&s, 100, 1))
}

// whole is how long an answer is predicted to take.
func whole(s *Speed, prompt, output int) time.Duration {
	terms := s.Terms()
	first, rest, _ := terms.Predict(prompt, output)
	return first + rest
}

// R4: where all that is expected in the cache takes as long as if it were not,
// that is what it takes: the prompt of an engine that never says is not free.
func TestR4ACacheThatSavesNothingIsNotCounted(t *testing.T) {
	var s Speed
	for range 16 { // before anything is expected
		s.Learn(Sample{PromptTokens: 250, Prompt: 100 * time.Millisecond})
	}
	for range 200 {
		s.Learn(Sample{PromptTokens: 1, Prompt: 100 * time.Millisecond})
	}
	d, _ := s.FirstToken(1)
	require.InEpsilon(t, 0.1, d.Seconds(), 0.01)
	for range 200 { // and whole prompts are told again what they take
		s.Learn(Sample{PromptTokens: 250, Prompt: 100 * time.Millisecond})
	}
	d, _ = s.FirstToken(250)
	require.InEpsilon(t, 0.1, d.Seconds(), 0.1)
}

func TestLoadingIsLeftOutOfSpeeds(t *testing.T) {
	var s Speed
	s.Learn(Sample{First: 8 * time.Second, Hold: 9 * time.Second, Load: 7 * time.Second})
	d, _ := s.FirstToken(1)
	require.Equal(t, time.Second, d)
	d, _ = s.Load()
	require.Equal(t, 7*time.Second, d)
}

func up(models ...Model) Facts {
	return Facts{Up: true, ModelsRead: true, Models: models, InHand: -1, Waiting: -1, Progress: -1, Engine: EngineOllama}
}

func TestR17OllamaNames(t *testing.T) {
	r := New(Config{Name: "a", Engine: EngineOllama}, breaker.New(breaker.Config{}))
	r.Observe(t0, up(Model{Name: "qwen3:latest"}, Model{Name: "host:5000/lib/x:7b"}))
	for name, want := range map[string]bool{"qwen3": true, "qwen3:latest": true, "qwen3:8b": false, "host:5000/lib/x:7b": true, "host:5000/lib/x": false} {
		serves, known := r.Serves(name)
		require.True(t, known)
		require.Equal(t, want, serves, name)
	}
	require.Same(t, r.Pool("qwen3"), r.Pool("qwen3:latest"), "one model, one ledger")
	require.True(t, r.Cold("qwen3"))
}

func TestR11AListThatCannotBeReadServesAnyModel(t *testing.T) {
	r := New(Config{Name: "a"}, breaker.New(breaker.Config{}))
	_, known := r.Serves("m")
	require.False(t, known, "not asked yet")
	f := up()
	f.ModelsRead, f.Models, f.Engine = false, nil, EngineOpenAI
	r.Observe(t0, f)
	serves, known := r.Serves("m")
	require.True(t, serves && known)
}

func TestR11BusyIsNotDead(t *testing.T) {
	r := New(Config{Name: "a"}, breaker.New(breaker.Config{ConsecutiveFailures: 3, Cooldown: time.Second}))
	r.Observe(t0, up())
	silent := Facts{Err: "no answer within 2s"}
	r.Observe(t0, silent)
	r.Observe(t0, silent)
	require.True(t, r.Up, "two rounds without an answer are no outage")
	r.Observe(t0, silent)
	require.False(t, r.Up)
	require.Equal(t, breaker.Closed, r.Breaker.State(t0))
	r.Observe(t0, up())
	require.True(t, r.Up)
	r.Observe(t0, Facts{Gone: true, Err: "connection refused"})
	require.False(t, r.Up, "but a process that is gone is")
	require.Equal(t, breaker.Open, r.Breaker.State(t0))
}

func TestR11TheModelListSurvivesAnOutage(t *testing.T) {
	r := New(Config{Name: "a"}, breaker.New(breaker.Config{}))
	r.Observe(t0, up(Model{Name: "m"}))
	r.Observe(t0, Facts{Gone: true})
	serves, known := r.Serves("m")
	require.True(t, serves && known)
}

func TestSlotsConfiguredPerModel(t *testing.T) {
	r := New(Config{Name: "a", Engine: EngineOllama, Slots: map[string]int{"big": 1, "*": 4}}, breaker.New(breaker.Config{}))
	require.Equal(t, 1, r.Pool("big:latest").Total)
	require.Equal(t, 4, r.Pool("small").Total)
	r.Reconfigure(Config{Name: "a", Engine: EngineOllama, Slots: map[string]int{"*": 2}})
	require.Equal(t, 2, r.Pool("big").Total)
}

// TestR1NamesOfOneDigestShareOneRunner: found on a real Ollama, where two names
// of one model file were given twice its slots.
func TestR1NamesOfOneDigestShareOneRunner(t *testing.T) {
	r := New(Config{Name: "a", Engine: EngineOllama, Slots: map[string]int{"*": 2}}, breaker.New(breaker.Config{}))
	r.Observe(t0, up(Model{Name: "x:latest", Digest: "d1"}, Model{Name: "copy:latest", Digest: "d1"}, Model{Name: "z:latest", Digest: "d2"}))
	require.Same(t, r.Pool("x"), r.Pool("copy"))
	require.NotSame(t, r.Pool("x"), r.Pool("z"))
	require.Equal(t, 2, r.Pool("copy").Total)
}
