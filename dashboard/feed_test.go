package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/breaker"
	"switchyard/replica"
)

// crowd is a controller with busy replicas of four slots and a queue.
type crowd struct {
	c       *admission.Controller
	running []*admission.Assignment
	tickets map[*admission.Assignment]*admission.Ticket
	waiting []*admission.Ticket
	n       int
}

func newCrowd(t testing.TB, replicas, queued int) *crowd {
	t.Helper()
	cfg := admission.Config{
		Classes: []admission.Class{
			{Name: "interactive", Deadline: time.Hour}, {Name: "standard", Deadline: time.Hour, MinShare: 0.05}, {Name: "batch", Deadline: time.Hour, MinShare: 0.05},
		},
		DefaultClass: "standard",
		Retry:        admission.Retry{MaxAttempts: 3, Budget: 0.2, FirstTokenFloor: time.Minute, FirstTokenFactor: 4, LoadTimeout: time.Hour},
		Breaker:      breaker.Config{ConsecutiveFailures: 3, FailureShare: 0.5, Window: 20, Cooldown: time.Second, MaxCooldown: time.Minute, TrialStart: 0.05, TrialFactor: 1.6},
		ProbeEvery:   time.Hour,
	}
	for i := range replicas {
		name := fmt.Sprintf("gpu%03d", i)
		cfg.Replicas = append(cfg.Replicas, replica.Config{Name: name, URL: "http://" + name, Engine: replica.EngineOpenAI, Slots: map[string]int{"*": 4}})
	}
	now := time.Now()
	cr := &crowd{c: admission.New(cfg, now), tickets: map[*admission.Assignment]*admission.Ticket{}}
	for _, r := range cfg.Replicas {
		cr.c.Report(now, r.Name, replica.Facts{
			Up: true, Engine: replica.EngineOpenAI, ModelsRead: true, InHand: -1, Waiting: -1, Progress: -1, Models: []replica.Model{{Name: "m", Resident: true}},
		})
	}
	for range 4*replicas + queued {
		cr.arrive(t)
	}
	cr.collect()
	require.Len(t, cr.running, 4*replicas)
	return cr
}

func (cr *crowd) arrive(t testing.TB) {
	now := time.Now()
	class := [...]string{"interactive", "standard", "batch"}[cr.n%3]
	tk := cr.c.Arrive(now, admission.Arrival{ID: fmt.Sprint("request-", cr.n), Class: class, Key: fmt.Sprint("team-", cr.n%40), At: now})
	cr.n++
	require.Nil(t, cr.c.Admit(now, tk, admission.Ask{
		Class: class, Models: []string{"m"}, Public: "m", Engines: []replica.Engine{replica.EngineOpenAI}, Width: 1, Bytes: 1000,
		PromptTokens: 100, MaxTokens: 100, Stream: true, Deadline: now.Add(time.Hour),
	}))
	cr.waiting = append(cr.waiting, tk)
}

// collect takes the grants that have come.
func (cr *crowd) collect() {
	rest := cr.waiting[:0]
	for _, tk := range cr.waiting {
		select {
		case g := <-tk.C():
			cr.running = append(cr.running, g.Assignment)
			cr.tickets[g.Assignment] = tk
		default:
			rest = append(rest, tk)
		}
	}
	cr.waiting = rest
}

// turn ends n requests, lets as many come, and tells of their ends.
func (cr *crowd) turn(t testing.TB, n int, ended func(admission.Decision)) {
	now := time.Now()
	n = min(n, len(cr.running))
	for _, a := range cr.running[:n] {
		cr.c.Finish(now, a, admission.AttemptResult{Kind: admission.ResultOK, FirstTokenAt: now, Usage: admission.Usage{PromptTokens: 100, OutputTokens: 10}})
		ended(cr.c.End(now, cr.tickets[a], admission.Completed, ""))
		delete(cr.tickets, a)
	}
	cr.running = cr.running[n:]
	for range n {
		cr.arrive(t)
	}
	cr.collect()
}

// read takes events off a stream.
func read(t *testing.T, s *bufio.Scanner) (name string, data []byte) {
	t.Helper()
	for s.Scan() {
		if n, ok := strings.CutPrefix(s.Text(), "event: "); ok {
			name = n
		}
		if d, ok := strings.CutPrefix(s.Text(), "data: "); ok {
			return name, []byte(d)
		}
	}
	require.NoError(t, s.Err())
	return "", nil
}

// The page is told the whole first, then what changes, and the ends gathered
// up; whoever asks for no changes is told the whole each time (the interface).
func TestStreams(t *testing.T) {
	cr := newCrowd(t, 2, 1)
	a, d := newAdmin(t, cr.c)
	srv := httptest.NewServer(a.Handler())
	defer srv.Close()
	defer a.Close()
	open := func(path string) *bufio.Scanner {
		req, err := http.NewRequestWithContext(t.Context(), "GET", srv.URL+path, nil)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		s := bufio.NewScanner(resp.Body)
		s.Buffer(nil, 1<<20)
		return s
	}
	page, whole := open("/admin/events?changes"), open("/admin/events")
	name, data := read(t, page)
	require.Equal(t, "state", name)
	var state struct {
		Totals   admission.Totals
		Replicas []admission.ReplicaState
		Waiting  admission.Waiting
		Glance   map[string]any
	}
	require.NoError(t, json.Unmarshal(data, &state))
	require.EqualValues(t, 9, state.Totals.Arrived)
	require.Len(t, state.Replicas, 2)
	require.Len(t, state.Waiting.Next, 1)
	require.Contains(t, state.Glance, "first_p99_s")
	name, data = read(t, whole)
	require.Equal(t, "state", name)
	require.Contains(t, string(data), `"waiting"`)

	cr.turn(t, 2, d.Add)
	a.beat(time.Now())
	name, data = read(t, page)
	require.Equal(t, "delta", name)
	require.Contains(t, string(data), `"totals":{"arrived":11,"completed":2`)
	require.NotContains(t, string(data), `"version"`, "it has not changed")
	name, data = read(t, page)
	require.Equal(t, "ends", name)
	require.Contains(t, string(data), `"total_ms"`)
	require.Contains(t, string(data), `"candidates":null`, "those are asked for")
	name, _ = read(t, whole)
	require.Equal(t, "state", name)
	for range 2 {
		name, data = read(t, whole)
		require.Equal(t, "request", name)
		require.Contains(t, string(data), `"candidates":[{`)
	}
	http.DefaultClient.CloseIdleConnections()
}

// A viewer that does not read is cut off, and holds nobody up.
func TestSlowViewerIsCutOff(t *testing.T) {
	a, _ := newAdmin(t, newCrowd(t, 1, 0).c)
	a.Handler()
	slow, _ := a.join(time.Now(), true)
	good, _ := a.join(time.Now(), true)
	for range maxBehind + 1 {
		a.beat(time.Now())
		<-good.beats
	}
	for range maxBehind {
		_, ok := <-slow.beats
		require.True(t, ok)
	}
	_, ok := <-slow.beats
	require.False(t, ok)
	a.beat(time.Now())
	require.Len(t, a.feed.mu.viewers, 1)
	a.feed.leave(good)
	a.beat(time.Now())
	require.Nil(t, a.feed.last, "nothing is kept for nobody")
}

// However many requests end in a second, viewers are told of a few.
func TestEndsAreBounded(t *testing.T) {
	a, d := newAdmin(t, newCrowd(t, 1, 0).c)
	a.Handler()
	v, _ := a.join(time.Now(), true)
	for i := range 10 * maxEnds {
		d.Add(admission.Decision{ID: fmt.Sprint(i)})
	}
	a.beat(time.Now())
	_, said, _ := strings.Cut(string(<-v.beats), "event: ends\ndata: ")
	var e ends
	require.NoError(t, json.Unmarshal([]byte(said), &e))
	require.Len(t, e.Shown, maxPageEnds)
	require.Equal(t, 10*maxEnds-maxPageEnds, e.Missed)
	require.Equal(t, fmt.Sprint(10*maxEnds-1), e.Shown[maxPageEnds-1].ID)
}

// Run beats once a second, feeds the charts when nobody watches, and ends.
func TestRunBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := newAdmin(t, newCrowd(t, 1, 0).c)
		a.Handler()
		ctx, end := context.WithCancel(t.Context())
		stopped := make(chan struct{})
		go func() { a.Run(ctx); close(stopped) }()
		time.Sleep(21 * time.Second) // of the bubble's clock
		require.GreaterOrEqual(t, len(a.feed.series(0).Points), 4)
		v, _ := a.join(time.Now(), true)
		time.Sleep(5 * time.Second)
		require.InDelta(t, 5, len(v.beats), 1)
		end()
		<-stopped
	})
}

// largeFleet is one whose every second ends many requests, and a viewer.
func largeFleet(t testing.TB) (second, beat func()) {
	cr := newCrowd(t, 1000, 10_000)
	a, d := newAdmin(t, cr.c)
	a.Handler()
	v, _ := a.join(time.Now(), true)
	return func() { cr.turn(t, 200, d.Add) }, func() {
		a.beat(time.Now())
		<-v.beats
	}
}

// With 1,000 replicas and 10,000 queued a viewer costs the gateway less than
// 5 % of a core: 50 ms of CPU time for each second's beat.
func TestLargeFleetIsCheapToWatch(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's cost is not the page's")
	}
	second, beat := largeFleet(t)
	const beats = 20
	var spent time.Duration
	for range beats {
		second()
		from := cpuTime(t)
		beat()
		spent += cpuTime(t) - from
	}
	t.Logf("%v of CPU time a beat", spent/beats)
	require.Less(t, spent/beats, 50*time.Millisecond)
}

func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkLargeBeat(b *testing.B) {
	second, beat := largeFleet(b)
	for b.Loop() {
		b.StopTimer()
		second()
		b.StartTimer()
		beat()
	}
}
