package admission

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/breaker"
	"switchyard/replica"
)

// world is a controller under a made-up clock with replicas that tests drive.
type world struct {
	t   *testing.T
	c   *Controller
	now time.Time
	n   int // requests so far
}

func testConfig(replicas ...replica.Config) Config {
	return Config{
		Classes: []Class{
			{Name: "interactive", Deadline: 10 * time.Second},
			{Name: "standard", Deadline: time.Minute, MinShare: 0.05},
			{Name: "batch", Deadline: 15 * time.Minute, MinShare: 0.05},
		},
		DefaultClass: "standard",
		Replicas:     replicas,
		Queue:        QueueLimits{MaxRequests: 2048, MaxBytes: 512 << 20},
		Enabled:      true,
		Retry: Retry{
			MaxAttempts: 3, Budget: 0.2, FirstTokenFloor: 15 * time.Second, FirstTokenFactor: 4, LoadTimeout: 5 * time.Minute,
		},
		Breaker: breaker.Config{
			ConsecutiveFailures: 3, FailureShare: 0.5, Window: 20, Cooldown: 5 * time.Second, MaxCooldown: 2 * time.Minute,
			TrialStart: 0.05, TrialFactor: 1.6,
		},
		ProbeEvery: 2 * time.Second,
	}
}

// rep is an OpenAI-compatible replica with some slots.
func rep(name string, slots int) replica.Config {
	return replica.Config{
		Name: name, URL: "http://" + name, Engine: replica.EngineOpenAI, Slots: map[string]int{"*": slots},
	}
}

// facts is a good probe of a replica that has the models.
func facts(models ...string) replica.Facts {
	f := replica.Facts{Up: true, Engine: replica.EngineOpenAI, ModelsRead: true, InHand: -1, Waiting: -1, Progress: -1}
	for _, m := range models {
		f.Models = append(f.Models, replica.Model{Name: m, Resident: true})
	}
	return f
}

// newWorld starts a controller whose replicas are all up and have model m.
func newWorld(t *testing.T, cfg Config) *world {
	w := &world{t: t, now: time.Unix(1_700_000_000, 0)}
	w.c = New(cfg, w.now)
	for _, r := range cfg.Replicas {
		f := facts("m")
		f.Engine = r.Engine
		w.report(r.Name, f)
	}
	return w
}

func (w *world) report(name string, f replica.Facts) {
	f.At = w.now
	w.c.Report(w.now, name, f)
}

// pass lets time go by and fires what is due on the way.
func (w *world) pass(d time.Duration) {
	end := w.now.Add(d)
	for {
		next := w.c.Tick(w.now)
		if next.IsZero() || next.After(end) {
			break
		}
		if next.After(w.now) {
			w.now = next
		}
	}
	w.now = end
	w.c.Tick(w.now)
}

// ask is a request for m with ten seconds to its first token.
func (w *world) ask() Ask {
	return Ask{
		Models: []string{"m"}, Public: "m", Path: "/v1/chat/completions", Engines: []replica.Engine{replica.EngineOpenAI, replica.EngineLlamaCpp, replica.EngineOllama, replica.EngineVLLM},
		Width: 1, Bytes: 100, PromptTokens: 100, MaxTokens: 100, Stream: true, Deadline: w.now.Add(10 * time.Second),
	}
}

func (w *world) arrive() *Ticket {
	w.n++
	return w.c.Arrive(w.now, Arrival{ID: fmt.Sprint("r", w.n), Class: "standard", Key: "anonymous", At: w.now})
}

// accept admits a request that must be accepted.
func (w *world) accept(a Ask) *Ticket {
	w.t.Helper()
	t := w.arrive()
	require.Nil(w.t, w.c.Admit(w.now, t, a))
	return t
}

// granted takes the assignment that a ticket must have.
func (w *world) granted(t *Ticket) *Assignment {
	w.t.Helper()
	select {
	case g := <-t.C():
		require.NotNil(w.t, g.Assignment, "refused: %+v", g.Refusal)
		return g.Assignment
	default:
		require.Fail(w.t, "nothing granted")
		return nil
	}
}

func (w *world) refused(t *Ticket) *Refusal {
	w.t.Helper()
	select {
	case g := <-t.C():
		require.NotNil(w.t, g.Refusal, "assigned: %+v", g.Assignment)
		return g.Refusal
	default:
		require.Fail(w.t, "neither granted nor refused")
		return nil
	}
}

func (w *world) waits(t *Ticket) {
	w.t.Helper()
	require.Empty(w.t, t.C(), "granted while it should wait")
}

// serve runs an assignment to a good end after d.
func (w *world) serve(a *Assignment, d time.Duration) {
	w.t.Helper()
	w.pass(d)
	n := w.c.Finish(w.now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: w.now, Usage: Usage{OutputTokens: 10}})
	require.Equal(w.t, ActEnd, n.Action)
	w.c.End(w.now, a.ticket, Completed, "")
}

// teach makes every replica known to take d per request.
func (w *world) teach(d time.Duration) {
	w.t.Helper()
	for _, r := range w.c.mu.fleet {
		w.learn(r, "m", replica.Sample{PromptTokens: 100, Prompt: d / 10, First: d / 10, Hold: d})
	}
}

// learn makes a replica known for sure to serve a model like that.
func (w *world) learn(r *replica.Replica, model string, s replica.Sample) {
	for range 3 { // the first two are doubted
		r.Speed(model).Learn(s)
	}
	w.c.mu.runsOn(r.Pool(model)).learned = w.now
	w.c.mu.touch(r)
}

func (w *world) snap() *Snapshot {
	w.t.Helper()
	s := w.c.Snapshot(w.now)
	require.True(w.t, s.Totals.Balanced(), "R13: %+v", s.Totals)
	return s
}

func (w *world) replica(name string) ReplicaState {
	w.t.Helper()
	for _, r := range w.snap().Replicas {
		if r.Name == name {
			return r
		}
	}
	require.Fail(w.t, "no replica "+name)
	return ReplicaState{}
}
