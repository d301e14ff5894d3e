package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/simserver"
)

// long asks for an answer that takes until somebody gives up.
var long = query{prompt: "tell me everything", tokens: 7000}

// wide are two replicas with room for many.
func wide() []simserver.Options {
	o := simserver.Options{
		Engine: "openai", Models: []string{simModel}, Slots: 32, Prefill: 20000, Decode: 50, Notice: 10 * time.Millisecond,
		OutputTokens: "fixed:7000",
	}
	a, b := o, o
	a.Name, b.Name = "a", "b"
	return []simserver.Options{a, b}
}

// R9, R10: a thousand departures in each phase of a request blame nobody: no
// breaker opens, nothing is retried, and no slot is lost.
func TestR9R10Departures(t *testing.T) {
	r := newRig(t, setup{replicas: wide()})
	total := 1000
	if testing.Short() {
		total = 128
	}
	done := r.books()
	stream := long
	stream.stream = true
	for name, phase := range map[string]func(){
		"uploading":       func() { r.departUploading() },
		"queued":          func() { r.departQueued() },
		"prompt":          func() { r.departRunning(stream) }, // most before their first token
		"not streaming":   func() { r.departRunning(long) },
		"midst of stream": func() { r.departSpeaking(stream) },
	} {
		before := r.state().Totals
		for r.state().Totals.Cancelled-before.Cancelled < int64(total) {
			phase()
		}
		after := r.state().Totals
		require.Equal(t, after.Arrived-before.Arrived, after.Cancelled-before.Cancelled, "%s: %+v", name, after)
		t.Logf("%s: %d departures", name, after.Cancelled-before.Cancelled)
	}
	r.untilFree()
	done()
	require.Empty(t, r.notes.changed(admission.EventOpened))
	require.Equal(t, r.notes.attempts(""), r.notes.attempts("client_gone"), "%v", r.notes.results)
	for _, s := range r.state().Replicas {
		require.Equal(t, "closed", s.Breaker.State, "%+v", s)
		require.Zero(t, s.AttemptsFailed, "%+v", s)
	}
	for i := range 4 {
		openAI.ask(t.Context(), r.client, r.base, query{prompt: prompt(i, 10), tokens: 2}).mustBe(t, "whole")
	}
}

// slots is the number of slots of the whole fleet.
func (r *rig) slots() (n int) {
	for _, s := range r.fleet {
		n += s.Slots()
	}
	return n
}

// crowd is a number of requests under way that can hang up together.
type crowd struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup
	first  sync.WaitGroup // the first byte of each answer
}

// send sends n requests.
func (r *rig) send(n int, q query) *crowd {
	ctx, cancel := context.WithCancel(r.t.Context())
	c := &crowd{cancel: cancel}
	for range n {
		req := openAI.request(ctx, r.base, q)
		if q.stream {
			c.first.Add(1)
		}
		c.ended.Go(func() {
			resp, err := r.client.Do(req)
			if err == nil {
				defer resp.Body.Close()
				_, _ = resp.Body.Read(make([]byte, 1))
			}
			if q.stream {
				c.first.Done()
			}
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
			}
		})
	}
	return c
}

// leave hangs up.
func (c *crowd) leave() {
	c.cancel()
	c.ended.Wait()
}

// untilUnderWay waits until so many requests run, and so many wait.
func (r *rig) untilUnderWay(running, queued int) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%d running and %d queued", running, queued), func() bool {
		s := r.state().Totals
		return s.Running == int64(running) && s.Queued == int64(queued)
	})
}

func (r *rig) departUploading() {
	cancelled := r.state().Totals.Cancelled
	const batch = 50
	for range batch {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.base, "http://"))
		require.NoError(r.t, err)
		_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"model\":", openAI.path)
		require.NoError(r.t, err)
		require.NoError(r.t, c.Close())
	}
	eventually(r.t, "the uploads to be given up", func() bool { return r.state().Totals.Cancelled == cancelled+batch })
}

func (r *rig) departQueued() {
	holders := r.send(r.slots(), long)
	r.untilUnderWay(r.slots(), 0)
	for range 2 {
		waiting := r.send(r.slots(), long)
		r.untilUnderWay(r.slots(), r.slots())
		waiting.leave()
		r.untilUnderWay(r.slots(), 0)
	}
	holders.leave()
	r.untilFree()
}

func (r *rig) departRunning(q query) {
	c := r.send(r.slots(), q)
	r.untilUnderWay(r.slots(), 0)
	c.leave()
	r.untilFree()
}

func (r *rig) departSpeaking(q query) {
	c := r.send(r.slots(), q)
	c.first.Wait()
	c.leave()
	r.untilFree()
}

// opened is a rig of one replica whose breaker has opened and whose fault is
// gone, so that it is on trial.
func opened(t *testing.T, slots int) *rig {
	o := wide()[:1]
	o[0].Slots = slots
	r := newRig(t, setup{replicas: o, tune: quickBack})
	require.NoError(t, r.fleet[0].SetFault(simserver.Fault{Kind: "empty"}))
	for i := range 20 {
		if r.replica("a").Breaker.State == "open" {
			break
		}
		openAI.ask(t.Context(), r.client, r.base, query{prompt: prompt(i, 10), tokens: 2}).mustBe(t, "error")
	}
	require.NoError(t, r.fleet[0].SetFault(simserver.Fault{Kind: "none"}))
	eventually(t, "the opening to be told", func() bool { return len(r.notes.changed(admission.EventOpened)) > 0 })
	eventually(t, "the breaker to be half-open", func() bool { return r.replica("a").Breaker.State == "half-open" })
	return r
}

// R9, R10: a trial whose client leaves gives its place back, however often.
func TestR9ATrialsPlaceCannotLeak(t *testing.T) {
	r := opened(t, 4)
	for range 20 {
		trial := r.send(1, long)
		r.untilUnderWay(1, 0)
		next := r.send(1, long) // there is one trial at a time
		r.untilUnderWay(1, 1)
		trial.leave()
		r.untilUnderWay(1, 0)
		next.leave()
		r.untilUnderWay(0, 0)
	}
	s := r.replica("a").Breaker
	require.Equal(t, "half-open", s.State)
	require.InDelta(t, 0.05, s.Allowance, 1e-9)
	for i := range 8 {
		openAI.ask(t.Context(), r.client, r.base, query{prompt: prompt(i, 10), tokens: 2}).mustBe(t, "whole")
	}
	require.Equal(t, "closed", r.replica("a").Breaker.State)
	r.untilFree()
}

// R9: after a recovery each success multiplies the share of slots in use by
// the same factor, as /admin/state shows, and the slots follow it.
func TestR9TheRampInTheState(t *testing.T) {
	r := opened(t, 20)
	share := 0.05
	for i := range 7 { // 0.05, 0.08, 0.128, 0.2048, 0.32768, 0.524288, 0.8388608
		var s admission.Snapshot
		r.getJSON("/admin/state", &s)
		b := s.Replicas[0].Breaker
		require.Equal(t, "half-open", b.State)
		require.InDelta(t, share, b.Allowance, 1e-9, "after %d successes", i)
		may := max(1, int(share*20))
		crowd := r.send(may+2, long)
		r.untilUnderWay(may, 2)
		require.LessOrEqual(t, r.fleet[0].Stats().InHand, may)
		crowd.leave() // which says nothing about the replica
		r.untilFree()
		openAI.ask(t.Context(), r.client, r.base, query{prompt: prompt(i, 10), tokens: 2}).mustBe(t, "whole")
		share *= 1.6
	}
	b := r.replica("a").Breaker
	require.Equal(t, "closed", b.State)
	require.InDelta(t, 1, b.Allowance, 1e-9)
	eventually(t, "the recovery to be told", func() bool { return len(r.notes.changed(admission.EventClosed)) == 1 })
}

// R9: what counts is counted, not clocked: with requests one at a time, each
// served by the other replica, one that fails everything is found out. (At 0.2
// requests a second and for hours, package admission shows it in virtual time.)
func TestR9OneThatFailsEverythingTrips(t *testing.T) {
	r := newRig(t, setup{replicas: wide()})
	require.NoError(t, r.fleet[0].SetFault(simserver.Fault{Kind: "error"}))
	for i := range 10 {
		x := openAI.ask(t.Context(), r.client, r.base, query{prompt: prompt(i, 10), tokens: 2})
		x.mustBe(t, "whole")
		require.Equal(t, "b", x.header.Get("X-Switchyard-Replica"))
	}
	require.NotEqual(t, "closed", r.replica("a").Breaker.State)
	require.Equal(t, http.StatusOK, r.status("/readyz"))
}

// status is what the admin side answers a GET with.
func (r *rig) status(path string) int {
	resp, err := r.client.Get(r.admin + path)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}
