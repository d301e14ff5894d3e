package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/breaker"
	"switchyard/dialect"
	"switchyard/replica"
)

// rig is a gateway in front of a troupe, on a real socket.
type rig struct {
	t       *testing.T
	troupe  *troupe
	ctl     *admission.Controller
	gw      *Gateway
	addr    string
	seen    *witness
	names   []string
	engine  replica.Engine
	noCheck bool // the test leaves zombies behind on purpose
}

var rigs atomic.Int64

// rigging is what a test may want otherwise.
type rigging struct {
	replicas   int
	engine     replica.Engine
	slots      int
	retry      admission.Retry
	settings   Settings
	breaker    breaker.Config
	limits     map[string]admission.Limits
	faulty     bool  // the gateway panics at each first token
	parkBehind int64 // 0: whoever waits is parked
	observing  bool  // do not turn requests away for their deadlines
	affinity   bool
	pinned     bool // llama.cpp is told which slot to use
	facts      replica.Facts
}

func newRig(t *testing.T, tr *troupe, changes ...func(*rigging)) *rig {
	o := rigging{
		replicas: 2, engine: replica.EngineOpenAI, slots: 4,
		retry: admission.Retry{
			MaxAttempts: 3, Budget: 0.2, FirstTokenFloor: 5 * time.Second, FirstTokenFactor: 4, LoadTimeout: 5 * time.Second,
		},
		breaker: breaker.Config{
			ConsecutiveFailures: 3, FailureShare: 0.5, Window: 20, Cooldown: 5 * time.Second,
			MaxCooldown: 2 * time.Minute, TrialStart: 0.05, TrialFactor: 1.6,
		},
		facts: replica.Facts{Up: true, AnyModel: true, ModelsRead: true, InHand: -1, Waiting: -1, Progress: -1},
	}
	o.settings.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	for _, change := range changes {
		change(&o)
	}
	if o.settings.Instance == "" {
		o.settings.Instance = fmt.Sprintf("%d-%d", os.Getpid(), rigs.Add(1))
	}
	tr.via = o.settings.Instance
	r := &rig{t: t, troupe: tr, engine: o.engine, seen: &witness{}}
	cfg := admission.Config{
		Classes: []admission.Class{{Name: "standard", Deadline: time.Minute}}, DefaultClass: "standard",
		Queue: admission.QueueLimits{MaxRequests: 1000, MaxBytes: 1 << 30}, Enabled: !o.observing, Observe: o.observing,
		Affinity: o.affinity, Retry: o.retry, Breaker: o.breaker, Limits: o.limits, ProbeEvery: 2 * time.Second,
	}
	o.settings.Classes = []Class{{"standard", time.Minute}}
	o.settings.DefaultClass = "standard"
	for i := range o.replicas {
		name := string(rune('a' + i))
		at := tr.listen(name)
		u, err := url.Parse(at)
		require.NoError(t, err)
		r.names = append(r.names, name)
		cfg.Replicas = append(cfg.Replicas, replica.Config{Name: name, URL: at, Engine: o.engine, Slots: map[string]int{"*": o.slots}, PinSlots: o.pinned})
		o.settings.Replicas = append(o.settings.Replicas, Replica{Name: name, URL: u})
	}
	r.ctl = admission.New(cfg, time.Now())
	var observer Observer = r.seen
	if o.faulty {
		observer = faulty{r.seen}
	}
	r.gw = New(o.settings, r.ctl, observer)
	r.gw.parkBehind = o.parkBehind
	r.start(o)
	return r
}

// start reports all replicas up, runs the clock and listens.
func (r *rig) start(o rigging) {
	for _, name := range r.names {
		f := o.facts
		f.At, f.Engine = time.Now(), o.engine
		r.gw.Observe(time.Now(), name, f)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.gw.Run(ctx) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(r.t, err)
	r.addr = l.Addr().String()
	server := NewServer(o.settings, r.gw)
	wg.Go(func() { r.gw.Serve(server, l) })
	r.t.Cleanup(func() {
		server.Close()
		r.troupe.close()
		r.settle()
		cancel()
		wg.Wait()
		r.gw.Close()
		r.troupe.wg.Wait()
	})
}

// settle waits until every slot is free again and checks the books (R1, R13).
func (r *rig) settle() {
	var s *admission.Snapshot
	ok := soon(func() bool {
		s = r.ctl.Snapshot(time.Now())
		for _, rep := range s.Replicas {
			if rep.Slots.Busy > 0 || rep.Slots.Zombie > 0 && !r.noCheck {
				return false
			}
		}
		return s.Totals.Queued == 0 && s.Totals.Running == 0
	})
	require.True(r.t, ok, "slots or requests are left: %+v", s)
	require.True(r.t, s.Totals.Balanced(), "the books do not balance: %+v", s.Totals)
}

// soon waits for something that happens on another goroutine.
func soon(done func() bool) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patienceInTests); time.Now().Before(end); <-tick.C {
		if done() {
			return true
		}
	}
	return false
}

// reply is what a client got.
type reply struct {
	raw    []byte // everything, as it came
	status int
	header http.Header
	body   string // framing taken off
	clean  bool   // the answer ended as HTTP wants it
}

// connect sends a request and leaves the connection to the test.
func (r *rig) connect(path, body string, headers ...string) net.Conn {
	c, err := net.Dial("tcp", r.addr)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patienceInTests))
	_, err = io.WriteString(c, request(path, body, headers...))
	require.NoError(r.t, err)
	return c
}

func request(path, body string, headers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: gateway.example\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", path, len(body))
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	return b.String() + "\r\n" + body
}

// post sends a request on a connection of its own and reads all there is.
func (r *rig) post(path, body string, headers ...string) reply {
	c := r.connect(path, body, append(headers, "Connection: close")...)
	defer c.Close()
	raw, _ := io.ReadAll(c) // a reset is seen by what is missing
	return parseReply(r.t, raw)
}

func parseReply(t *testing.T, raw []byte) reply {
	if len(raw) == 0 {
		return reply{}
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), &http.Request{Method: "POST"})
	require.NoError(t, err, "what came: %q", raw)
	body, err := io.ReadAll(resp.Body)
	return reply{raw: raw, status: resp.StatusCode, header: resp.Header, body: string(body), clean: err == nil}
}

// totals are the books.
func (r *rig) totals() admission.Totals { return r.ctl.Snapshot(time.Now()).Totals }

// failures is how often replicas were blamed.
func (r *rig) failures() (n int64) {
	for _, rep := range r.ctl.Snapshot(time.Now()).Replicas {
		n += rep.AttemptsFailed
	}
	return n
}

// witness is an Observer that remembers.
type witness struct {
	mu sync.Mutex
	testimony
}

type testimony struct {
	records  []Record
	attempts []string
	retries  []string
	broken   []string
}

func (w *witness) RequestEnded(r Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records = append(w.records, r)
}

func (w *witness) Refused(string, string, time.Duration) {}

func (w *witness) AttemptEnded(_, result string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.attempts = append(w.attempts, result)
}

func (w *witness) Retried(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.retries = append(w.retries, reason)
}

func (w *witness) ReplicaChanged(admission.Event) {}

func (w *witness) StreamBroken(_, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = append(w.broken, reason)
}

func (w *witness) FirstToken(string, string, time.Duration) {}

// after is what was seen once n requests have ended.
func (w *witness) after(t *testing.T, n int) (seen testimony) {
	require.True(t, soon(func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		seen = testimony{
			records: slices.Clone(w.records), attempts: slices.Clone(w.attempts),
			retries: slices.Clone(w.retries), broken: slices.Clone(w.broken),
		}
		return len(seen.records) >= n
	}), "request %d has not ended", n)
	return seen
}

// record is the n-th request that ended.
func (w *witness) record(t *testing.T, n int) Record { return w.after(t, n).records[n-1] }

func endpointOf(t *testing.T, path string) *dialect.Endpoint {
	ep, ok := dialect.Lookup(path)
	require.True(t, ok)
	return ep
}
