package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/config"
	"switchyard/simserver"
)

// two are two replicas of an engine, slow enough to be met in their work.
func two(engine string) []simserver.Options {
	o := simserver.Options{
		Engine: engine, Models: []string{simModel}, Slots: 4, Prefill: 20000, Decode: 400, Notice: -1, LoadTime: time.Millisecond,
	}
	a, b := o, o
	a.Name, b.Name, b.Seed = "a", "b", 1
	return []simserver.Options{a, b}
}

// patient are two replicas with answers as long as they are asked for.
func patient(engine string) []simserver.Options {
	all := two(engine)
	for i := range all {
		all[i].OutputTokens, all[i].Notice = "fixed:7000", 10*time.Millisecond
	}
	return all
}

// quickBack makes a breaker's cool-down short.
func quickBack(c *config.Config) { c.Breaker.Cooldown = 200 * time.Millisecond }

// R7, R8: one of two replicas is killed under load. Who had not received a byte
// is served by the other one, who was in the middle of a stream is told so in
// his own format, and the replica is used again once it is back.
func TestR7R8KillUnderLoad(t *testing.T) {
	for _, engine := range []string{"llamacpp", "ollama", "openai"} {
		t.Run(engine, func(t *testing.T) {
			r := newRig(t, setup{replicas: two(engine), tune: quickBack})
			done := r.books()
			l := startLoad(r, tonguesOf(engine), 16)
			for range 3 {
				l.untilStreaming("a")
				served := r.fleet[0].Stats().Completed
				require.NoError(t, r.fleet[0].SetFault(simserver.Fault{Kind: "crash", For: 300 * time.Millisecond}))
				eventually(t, "the killed replica to serve again", func() bool { return r.fleet[0].Stats().Completed >= served+4 })
			}
			replies := l.stop()
			r.untilFree()
			done()
			fates := map[string]int{}
			for _, x := range replies {
				fates[x.fate()]++
				require.Contains(t, []string{"whole", "event"}, x.fate(), "%s", x)
				require.True(t, x.stream || x.fate() == "whole", "%s", x)
			}
			require.Positive(t, fates["event"], "nobody was in the middle of a stream")
			require.EqualValues(t, fates["event"], r.state().Totals.Failed)
			t.Logf("%v, attempts: %v", fates, r.notes.results)
		})
	}
}

// load is a number of clients that ask without a pause.
type load struct {
	r       *rig
	client  *http.Client
	end     chan struct{}
	clients sync.WaitGroup
	mu      struct {
		sync.Mutex
		streams map[string]int // streams that have begun, by replica
		replies []reply
	}
}

func startLoad(r *rig, tongues []tongue, clients int) *load {
	l := &load{r: r, end: make(chan struct{})}
	l.mu.streams = map[string]int{}
	l.client = &http.Client{Transport: l}
	for i := range clients {
		l.clients.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-l.end:
					return
				default:
				}
				tongue := tongues[(i+n)%len(tongues)]
				q := query{prompt: prompt(i*100000+n, 60), stream: (i+n/2)%4 > 0, tokens: 40}
				x := tongue.ask(context.Background(), l.client, r.base, q)
				l.mu.Lock()
				l.mu.replies = append(l.mu.replies, x)
				l.mu.Unlock()
			}
		})
	}
	return l
}

// RoundTrip counts the streams that have begun and not ended.
func (l *load) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.r.client.Transport.RoundTrip(req)
	if err != nil || resp.Header.Get("X-Accel-Buffering") == "" {
		return resp, err
	}
	name := resp.Header.Get("X-Switchyard-Replica")
	l.count(name, 1)
	resp.Body = &counted{resp.Body, func() { l.count(name, -1) }}
	return resp, nil
}

func (l *load) count(replica string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.streams[replica] += n
}

type counted struct {
	io.ReadCloser
	ended func()
}

func (c *counted) Close() error {
	c.ended()
	return c.ReadCloser.Close()
}

// untilStreaming waits until the replica has all its slots in use and streams
// come from it.
func (l *load) untilStreaming(name string) {
	l.r.t.Helper()
	eventually(l.r.t, name+" to be busy", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		s := l.r.replica(name)
		return s.Slots.Busy == s.Slots.Total && l.mu.streams[name] >= 2
	})
}

func (l *load) stop() []reply {
	close(l.end)
	l.clients.Wait()
	return l.mu.replies
}

// R7, R8: an answer that ends without its terminal event is broken, however the
// connection ended. Before the first content it is had from the other replica;
// after it the client is told, and nothing of another replica is appended.
func TestR8CutAnswers(t *testing.T) {
	for _, engine := range []string{"llamacpp", "ollama"} {
		r := newRig(t, setup{replicas: two(engine), tune: func(c *config.Config) {
			// Neither is what is looked at.
			c.Breaker.ConsecutiveFailures, c.Breaker.Window, c.Retry.Budget = 1000, 10000, 1
		}})
		done := r.books()
		number := 0
		for _, l := range tonguesOf(engine) {
			for _, cut := range []simserver.Fault{{Kind: "cut"}, {Kind: "cut", Reset: true}, {Kind: "cut", AfterTokens: 5}, {Kind: "cut", AfterTokens: 5, Reset: true}} {
				for _, stream := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s/%s/after %d/reset %t/stream %t", engine, l.name, cut.AfterTokens, cut.Reset, stream), func(t *testing.T) {
						number++
						r.cutOne(t, cut, func() reply {
							return l.ask(t.Context(), r.client, r.base, query{prompt: prompt(number, 20), stream: stream, tokens: 12})
						})
					})
				}
			}
		}
		done()
		r.close()
	}
}

// cutOne cuts the answer of the replica that is asked first, and checks what
// came of it.
func (r *rig) cutOne(t *testing.T, cut simserver.Fault, ask func() reply) {
	defer r.fault(t, "", simserver.Fault{Kind: "none"})
	bad := "a"
	for n := range 20 { // which one is asked first is known only afterwards
		r.fault(t, bad, cut)
		x := ask()
		met := x.header.Get("X-Switchyard-Replica")
		if x.header.Get("X-Switchyard-Attempts") == "1" && met != bad {
			x.mustBe(t, "whole")
			if n%2 == 1 { // they do not take turns
				bad = met
			}
			continue
		}
		if !x.stream || cut.AfterTokens == 0 {
			x.mustBe(t, "whole")
			require.Equal(t, "2", x.header.Get("X-Switchyard-Attempts"), "%s", x)
			require.NotEqual(t, bad, met, "%s", x)
			return
		}
		x.mustBe(t, "event")
		require.Equal(t, bad, met, "%s", x)
		require.Equal(t, 1, strings.Count(x.body, x.tongue.broken), "%s", x)
		return
	}
	require.Fail(t, "the replica that cuts was never met")
}

// fault sets a replica's fault and clears the others'.
func (r *rig) fault(t *testing.T, name string, f simserver.Fault) {
	t.Helper()
	for _, s := range r.fleet {
		if s.Name() == name {
			require.NoError(t, s.SetFault(f))
		} else {
			require.NoError(t, s.SetFault(simserver.Fault{Kind: "none"}))
		}
	}
}

// R7, R9: a replica that fails before it answers costs nobody an answer, and is
// left alone after a few attempts.
func TestR7FaultsOfOneOfTwo(t *testing.T) {
	faults := []simserver.Fault{
		{Kind: "refuse"},
		{Kind: "reset"},
		{Kind: "error"},
		{Kind: "error", Status: 502},
		{Kind: "empty"},
		{Kind: "busy", RetryAfter: time.Second},
		{Kind: "busy", Status: 429},
		{Kind: "error", Status: 408},
	}
	for _, f := range faults {
		t.Run(fmt.Sprintf("%s %d", f.Kind, f.Status), func(t *testing.T) {
			r := newRig(t, setup{replicas: two("llamacpp")})
			require.NoError(t, r.fleet[0].SetFault(f))
			for i := range 12 {
				l := tonguesOf("llamacpp")[i%3]
				l.ask(t.Context(), r.client, r.base, query{prompt: prompt(i, 20), stream: i%2 == 0, tokens: 4}).mustBe(t, "whole")
			}
			r.untilFree()
			blamed := slices.Contains([]string{"refuse", "reset", "error", "empty"}, string(f.Kind)) && f.Status != 408
			a := r.replica("a")
			require.Equal(t, blamed, a.Breaker.State != "closed" || !a.Up, "%+v", a)
		})
	}
}
