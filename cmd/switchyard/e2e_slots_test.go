package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"switchyard/admission"
	"switchyard/config"
	"switchyard/gateway"
	"switchyard/simserver"
)

// R1, R2, R10, R13: two replicas with two slots each, 64 clients of which a
// third hangs up at random moments, replicas that notice late, and never more
// in hand than there are slots. Who leaves while its request runs costs a slot
// until the replica has noticed: on llama.cpp until its next word about its
// slots, seconds later. So there most leave while they still wait.
func TestR1Hammer(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("engines", func(t *testing.T) {
		for _, h := range []*hammer{{engine: "llamacpp", running: 2}, {engine: "ollama", running: 10}, {engine: "openai", running: 10}} {
			t.Run(h.engine, func(t *testing.T) {
				t.Parallel()
				h.total = 10000
				if raced {
					h.total = 4000 // it finds a race in less, and is slow
				}
				if testing.Short() {
					h.total = 1000
				}
				h.run(t)
			})
		}
	})
	goleak.VerifyNone(t, before)
}

// hammer is one run against replicas of one engine.
type hammer struct {
	engine  string
	running int // of 64 that leave, so many try to leave while their request runs
	total   int

	rig   *rig
	next  atomic.Int64
	whole atomic.Int64
	wrong atomic.Pointer[reply]
}

const hammerClients = 64

func (h *hammer) run(t *testing.T) {
	began := time.Now()
	h.rig = newRig(t, setup{replicas: hammerReplicas(h.engine), tune: func(c *config.Config) {
		c.Admission.Enabled = false // whoever does not leave is to be served
	}})
	done := h.rig.books()
	var clients sync.WaitGroup
	for range hammerClients {
		clients.Go(h.client)
	}
	clients.Wait()
	h.rig.untilFree()
	done()
	if w := h.wrong.Load(); w != nil {
		require.FailNow(t, "a client that stayed had no whole answer", "%s", w)
	}
	h.check(t)
	h.rig.close()
	t.Logf("%s: %d requests in %s", h.engine, h.total, time.Since(began).Round(time.Millisecond))
}

func hammerReplicas(engine string) (all []simserver.Options) {
	for i := range 2 {
		all = append(all, simserver.Options{
			Name: fmt.Sprintf("%s-%d", engine, i), Engine: engine, Models: []string{simModel}, Slots: 2,
			Prefill: 1000, Decode: 200, BatchSlowdown: 0.3, LoadTime: 2 * time.Second, Notice: 2 * time.Second,
			OutputTokens: "fixed:4000", TimeScale: 100, Seed: uint64(i + 1), // answers are as long as asked for
		})
	}
	return all
}

// client asks until all requests have been made.
func (h *hammer) client() {
	tongues := tonguesOf(h.engine)
	for {
		i := int(h.next.Add(1)) - 1
		if i >= h.total {
			return
		}
		random := rand.New(rand.NewPCG(uint64(i), 1))
		l := tongues[random.IntN(len(tongues))]
		q := query{prompt: prompt(i, 20+random.IntN(200)), stream: random.IntN(2) == 0, tokens: 2 + random.IntN(12)}
		if i%3 == 0 {
			h.leave(random, departure{number: i / 3, tongue: l, query: q})
			continue
		}
		r := l.ask(context.Background(), h.rig.client, h.rig.base, q)
		if r.fate() == "whole" {
			h.whole.Add(1)
		} else {
			h.wrong.CompareAndSwap(nil, &r)
		}
	}
}

// departure is a request whose client will hang up.
type departure struct {
	number int
	tongue tongue
	query  query
}

// leave asks and hangs up at a random moment. Most clients that leave do so in
// the queue; some go before the others and ask for a long answer, so that they
// leave while it is made: before its first token or in its middle.
func (h *hammer) leave(random *rand.Rand, d departure) {
	kind := d.number % 64
	urgent, listens := kind < h.running, kind < h.running/2
	after := time.Duration(random.Int64N(int64(10 * time.Millisecond)))
	if urgent {
		d.query.stream, d.query.tokens = listens, 2000
		after *= 4
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req := d.tongue.request(ctx, h.rig.base, d.query)
	if urgent {
		req.Header.Set("X-Switchyard-Class", "interactive")
	}
	if !listens {
		defer time.AfterFunc(after, cancel).Stop()
	}
	resp, err := h.rig.client.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if listens {
		_, _ = io.ReadFull(resp.Body, make([]byte, 1+random.IntN(4000)))
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
}

// check looks at what all of it came to.
func (h *hammer) check(t *testing.T) {
	s := h.rig.state()
	require.True(t, s.Totals.Balanced(), "%+v", s.Totals)
	require.Zero(t, s.Totals.Queued+s.Totals.Running, "%+v", s.Totals)
	require.Zero(t, s.Totals.Failed+s.Totals.Refused, "%+v", s.Totals)
	require.GreaterOrEqual(t, s.Totals.Completed, h.whole.Load())
	require.LessOrEqual(t, s.Totals.Arrived, int64(h.total))
	gone := func(is func(gateway.Record) bool) int {
		return h.rig.notes.count(func(r gateway.Record) bool { return r.Outcome == admission.Cancelled && is(r) })
	}
	queued := gone(func(r gateway.Record) bool { return r.Attempts == 0 })
	silent := gone(func(r gateway.Record) bool { return r.Attempts > 0 && r.FirstToken == 0 })
	speaking := gone(func(r gateway.Record) bool { return r.FirstToken > 0 })
	require.Positive(t, queued)
	require.Positive(t, speaking)
	require.True(t, silent > 0 || testing.Short())
	for i, r := range s.Replicas { // R9: departures blame nobody
		require.Equal(t, "closed", r.Breaker.State, "%s", r.Name)
		require.Zero(t, r.AttemptsFailed, "%s", r.Name)
		st := h.rig.fleet[i].Stats()
		t.Logf("%s: max_in_hand %d of %d slots, %d requests, %d cut by clients, %.2f zombie seconds", r.Name, st.MaxInHand, h.rig.fleet[i].Slots(), st.Requests, st.CutByClient, st.ZombieSeconds)
	}
	t.Logf("%s: %+v; left while queued %d, before the first token %d, in the answer's middle %d", h.engine, s.Totals, queued, silent, speaking)
}
