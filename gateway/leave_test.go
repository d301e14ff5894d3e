package gateway

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
)

// departure is a phase in which a client leaves. ready tells the test when the
// phase has been reached; act is what the replica does meanwhile.
type departure struct {
	name   string
	stream bool
	act    func(f face, reached chan<- struct{}) act
	label  string // of the attempt; empty: there is none
}

func reach(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

var departures = []departure{
	{name: "before the headers", stream: true, label: "client_gone", act: func(_ face, reached chan<- struct{}) act {
		return func(k *call) { reach(reached); k.untilGone() }
	}},
	{name: "before the headers, not streamed", label: "client_gone", act: func(_ face, reached chan<- struct{}) act {
		return func(k *call) { reach(reached); k.untilGone() }
	}},
	{name: "before the first token", stream: true, label: "client_gone", act: func(f face, reached chan<- struct{}) act {
		return func(k *call) { k.streamHead(f.media); k.chunk(f.begin); reach(reached); k.untilGone() }
	}},
	{name: "in the stream", stream: true, label: "client_gone", act: func(f face, reached chan<- struct{}) act {
		return func(k *call) { k.streamHead(f.media); k.chunk(f.begin + f.content[0]); reach(reached); k.untilGone() }
	}},
	{name: "in an answer held back", label: "client_gone", act: func(f face, reached chan<- struct{}) act {
		return func(k *call) {
			k.head(200, "Content-Type: "+jsonMedia, fmt.Sprintf("Content-Length: %d", len(f.whole)))
			k.raw(f.whole[:5])
			reach(reached)
			k.untilGone()
		}
	}},
	{name: "in the body of an error", label: "client_gone", act: func(f face, reached chan<- struct{}) act {
		return func(k *call) {
			k.head(500, "Content-Type: "+jsonMedia, "Content-Length: 10000")
			k.raw(f.mistake)
			reach(reached)
			k.untilGone()
		}
	}},
}

// R10, R9, R1, and PAINS 1 and 13: a client that leaves, in whatever phase, has
// its work cancelled at the replica at once; nobody is blamed, nothing is tried
// again, and the slot is free once the replica has stopped.
func TestDeparturesR10(t *testing.T) {
	for _, d := range departures {
		for _, f := range faces {
			t.Run(d.name+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				reached := make(chan struct{}, 1)
				tr := newTroupe(t, d.act(f, reached))
				r := newRig(t, tr, func(o *rigging) { o.engine = f.engine })
				c := r.connect(f.path, f.body(d.stream))
				<-reached
				c.Close()
				rec := r.seen.record(t, 1)
				require.Equal(t, admission.Cancelled, rec.Outcome)
				select {
				case <-tr.calls()[0].done: // the replica has seen it
				case <-time.After(patienceInTests):
					t.Fatal("the replica was not told")
				}
				r.settle()
				require.Zero(t, r.failures())
				seen := r.seen.after(t, 1)
				require.Equal(t, []string{d.label}, seen.attempts)
				require.Empty(t, seen.retries)
				require.Empty(t, seen.broken)
				require.EqualValues(t, 1, r.totals().Cancelled)
			})
		}
	}
}

// R10: a client that leaves the queue is gone at once and costs nothing.
func TestLeavingTheQueueR10(t *testing.T) {
	f := faces[0]
	release := make(chan struct{})
	tr := newTroupe(t, func(k *call) { <-release; f.good(true)(k) })
	r := newRig(t, tr, func(o *rigging) { o.replicas, o.slots = 1, 1 })
	first := r.connect(f.path, f.body(true), "Connection: close")
	require.True(t, soon(func() bool { return len(tr.calls()) == 1 }))
	second := r.connect(f.path, f.body(true))
	require.True(t, soon(func() bool { return r.totals().Queued == 1 }))
	second.Close()
	require.Equal(t, admission.Cancelled, r.seen.record(t, 1).Outcome)
	require.Zero(t, r.totals().Queued)
	close(release)
	raw, err := io.ReadAll(first)
	require.NoError(t, err)
	require.Equal(t, f.events(), parseReply(t, raw).body)
	require.Len(t, tr.calls(), 1, "nothing was sent for the one that left")
}

// R10: a thousand departures in every phase open no breaker.
func TestManyDeparturesBlameNobodyR9(t *testing.T) {
	f := faces[0]
	d := departures
	reached := make(chan struct{}, 1)
	var acts []act
	for i := range 60 {
		acts = append(acts, d[i%len(d)].act(f, reached))
	}
	acts = append(acts, f.good(true))
	tr := newTroupe(t, acts...)
	r := newRig(t, tr, func(o *rigging) { o.slots = 2 })
	for i := range 60 {
		c := r.connect(f.path, f.body(d[i%len(d)].stream))
		<-reached
		c.Close()
	}
	require.Equal(t, f.events(), r.post(f.path, f.body(true)).body)
	require.Zero(t, r.failures())
	for _, s := range r.ctl.Snapshot(time.Now()).Replicas {
		require.Equal(t, "closed", s.Breaker.State)
	}
}

// A client that leaves when the terminal event is out has its whole answer.
func TestLeavingAfterTheEnd(t *testing.T) {
	f := faces[0]
	tr := newTroupe(t, func(k *call) {
		k.streamHead(f.media)
		k.chunk(f.events())
		k.untilGone()
	})
	r := newRig(t, tr)
	c := r.connect(f.path, f.body(true))
	seen := readUntil(t, c, "[DONE]")
	require.Contains(t, seen, "[DONE]")
	c.Close()
	require.Equal(t, admission.Completed, r.seen.record(t, 1).Outcome)
	r.settle()
}

func readUntil(t *testing.T, c net.Conn, what string) string {
	var seen strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(seen.String(), what) {
		n, err := c.Read(buf)
		require.NoError(t, err, "so far: %q", seen.String())
		seen.Write(buf[:n])
	}
	return seen.String()
}

// PAINS 12: a client that reads nothing holds the replica back, not memory; when
// write_timeout has passed without a byte taken, it is cut off.
func TestClientThatReadsNothing(t *testing.T) {
	f := faces[0]
	event := `data: {"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", 32<<10) + `"}}]}` + "\n\n"
	var sent int
	tr := newTroupe(t, func(k *call) {
		gone := make(chan struct{})
		go func() { defer close(gone); io.Copy(io.Discard, k.conn) }()
		defer func() { k.conn.Close(); <-gone }()
		k.streamHead(f.media)
		k.chunk(f.content[0])
		for {
			select {
			case <-gone:
				return
			default:
				k.chunk(event)
			}
			if sent += len(event); sent > 64<<20 {
				k.t.Error("64 MiB went to a client that reads nothing")
				return
			}
		}
	})
	r := newRig(t, tr, func(o *rigging) { o.settings.Limits.WriteTimeout = 200 * time.Millisecond })
	c := r.connect(f.path, f.body(true))
	c.(*net.TCPConn).SetReadBuffer(4 << 10)
	rec := r.seen.record(t, 1)
	require.Equal(t, admission.Cancelled, rec.Outcome)
	require.Equal(t, []string{"slow_client"}, r.seen.after(t, 1).attempts)
	r.settle()
	require.Zero(t, r.failures())
}

// A client that reads slowly, but reads, is no client that reads nothing.
func TestClientThatReadsSlowly(t *testing.T) {
	f := faces[0]
	large := `{"choices":[{"index":0,"finish_reason":"stop","message":{"content":"` + strings.Repeat("x", 3<<20) + `"}}]}`
	tr := newTroupe(t, func(k *call) { k.whole(200, jsonMedia, large) })
	r := newRig(t, tr, func(o *rigging) { o.settings.Limits.WriteTimeout = 300 * time.Millisecond })
	c := r.connect(f.path, f.body(false), "Connection: close")
	buf := make([]byte, 64<<10)
	total := 0
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for ; ; <-pace.C {
		n, err := c.Read(buf)
		total += n
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
	}
	require.Greater(t, total, len(large))
	require.Equal(t, admission.Completed, r.seen.record(t, 1).Outcome)
}

// R1: a slot whose replica goes on after the client left stays taken, and the
// request that waits for it goes only when the replica has stopped.
func TestSlotOfAZombieStaysTakenR1(t *testing.T) {
	f := faces[0]
	stop := make(chan struct{})
	tr := newTroupe(t, func(k *call) {
		k.streamHead(f.media)
		k.chunk(f.begin + f.content[0])
		k.untilGone()
		<-stop // it notices late
	}, f.good(true))
	r := newRig(t, tr, func(o *rigging) { o.replicas, o.slots = 1, 1 })
	c := r.connect(f.path, f.body(true))
	readUntil(t, c, "zm")
	c.Close()
	r.seen.record(t, 1)
	next := r.connect(f.path, f.body(true), "Connection: close")
	require.True(t, soon(func() bool { return r.totals().Queued == 1 }))
	s := r.ctl.Snapshot(time.Now()).Replicas[0].Slots
	require.Equal(t, 1, s.Zombie, "%+v", s)
	require.Zero(t, s.Free)
	require.Len(t, tr.calls(), 1)
	close(stop)
	raw, err := io.ReadAll(next)
	require.NoError(t, err)
	require.Equal(t, f.events(), parseReply(t, raw).body)
	require.NotZero(t, r.seen.record(t, 2).Queued)
}
