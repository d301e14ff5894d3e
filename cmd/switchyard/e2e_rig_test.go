package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/config"
	"switchyard/gateway"
	"switchyard/simserver"
)

// The end-to-end tests run the whole gateway in front of simulated replicas,
// all in this process and over loopback sockets, so that the race detector
// sees both sides. Only where signals matter is the gateway a process.

// patience is how long a condition may take that is sure to come: long, since
// test machines are slow and shared.
const patience = 60 * time.Second

// eventually waits until ok is true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-limit.C:
			require.FailNow(t, "waited in vain", "%s, for %s", what, patience)
		case <-tick.C:
		}
	}
}

// setup is what a rig is made of.
type setup struct {
	replicas []simserver.Options
	others   []string // replicas that the test wrote itself, as --replica takes them
	tune     func(*config.Config)
}

// rig is a gateway with its replicas and a client of both.
type rig struct {
	t      testing.TB
	app    *app
	fleet  simserver.Fleet
	base   string // of the data plane
	admin  string
	client *http.Client
	notes  *notes
	closed bool
}

// newRig starts everything and waits until each replica was found. All of it
// is gone again when the test ends, or after close.
func newRig(t *testing.T, s setup) *rig {
	t.Helper()
	fleet, err := simserver.StartFleet(s.replicas)
	require.NoError(t, err)
	cfg := config.Default()
	cfg.Health = config.Health{Interval: 100 * time.Millisecond, Timeout: 5 * time.Second}
	if s.tune != nil {
		s.tune(cfg)
	}
	flags := config.Flags{Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", Replicas: slices.Clone(s.others)}
	for _, f := range fleet {
		flags.Replicas = append(flags.Replicas, replicaFlag(f, s.replicas))
	}
	cfg, err = cfg.With(flags)
	require.NoError(t, err)
	r := &rig{t: t, fleet: fleet, client: newClient(), notes: &notes{}}
	r.app, err = newApp(cfg, slog.New(slog.NewTextHandler(io.Discard, nil)), r.notes.wrap)
	require.NoError(t, err)
	require.NoError(t, r.app.start())
	r.base, r.admin = "http://"+r.app.dataAddr, "http://"+r.app.opsAddr
	t.Cleanup(r.close)
	r.untilFound()
	return r
}

// replicaFlag names a simulated replica to the gateway. Its slots are told
// where its engine does not say them.
func replicaFlag(s *simserver.Server, all []simserver.Options) string {
	i := slices.IndexFunc(all, func(o simserver.Options) bool { return o.Name == s.Name() })
	flag := fmt.Sprintf("%s=%s,engine=%s", s.Name(), s.URL(), all[i].Engine)
	if all[i].Engine != "llamacpp" {
		flag += fmt.Sprintf(",slots=%d", s.Slots())
	}
	return flag
}

// newClient is a client that keeps connections, as SDKs do.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128}}
}

func (r *rig) untilFound() {
	r.t.Helper()
	eventually(r.t, "all replicas to be found", func() bool {
		for _, s := range r.state().Replicas {
			if !s.Up || !s.ModelsRead || s.Loading {
				return false
			}
		}
		return true
	})
}

// close ends everything; a second call does nothing.
func (r *rig) close() {
	if r.closed {
		return
	}
	r.closed = true
	r.client.CloseIdleConnections()
	require.NoError(r.t, r.app.stop())
	r.fleet.Close()
}

func (r *rig) state() *admission.Snapshot { return r.app.controller.Snapshot(time.Now()) }

// replica is a replica's state by its name.
func (r *rig) replica(name string) admission.ReplicaState {
	r.t.Helper()
	s := r.state()
	i := slices.IndexFunc(s.Replicas, func(x admission.ReplicaState) bool { return x.Name == name })
	require.GreaterOrEqual(r.t, i, 0, "no replica %s", name)
	return s.Replicas[i]
}

// untilFree waits until no slot is held by anything and the replicas have
// nothing in hand, then checks that they never had more than their slots (R1).
func (r *rig) untilFree() {
	r.t.Helper()
	eventually(r.t, "every slot to be free", func() bool {
		for _, s := range r.state().Replicas {
			if s.Slots.Free != s.Slots.Total {
				return false
			}
		}
		return r.app.controller.Idle()
	})
	for _, f := range r.fleet {
		st := f.Stats()
		require.Zero(r.t, st.InHand, "%s has work left", f.Name())
		require.Zero(r.t, st.OverSlotsEvents, "%s had more than its slots", f.Name())
		require.LessOrEqual(r.t, st.MaxInHand, f.Slots(), "%s", f.Name())
	}
}

// untilEnded waits until so many requests are on record: a client has its
// answer a moment earlier.
func (r *rig) untilEnded(n int) {
	r.t.Helper()
	eventually(r.t, "the requests' records", func() bool {
		return r.notes.count(func(gateway.Record) bool { return true }) >= n
	})
}

// books watches the gateway's books from now until the returned function is
// called, which fails the test unless they balanced at each look (R13) and no
// slot was held beyond those there are.
func (r *rig) books() (done func()) {
	stop, ended := make(chan struct{}), make(chan error, 1)
	halt := sync.OnceFunc(func() { close(stop) })
	r.t.Cleanup(halt)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		var wrong error
		for {
			if wrong == nil {
				wrong = audit(r.state())
			}
			select {
			case <-stop:
				ended <- wrong
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		r.t.Helper()
		halt()
		require.NoError(r.t, <-ended)
	}
}

func audit(s *admission.Snapshot) error {
	if !s.Totals.Balanced() {
		return fmt.Errorf("the books do not balance: %+v", s.Totals)
	}
	for _, r := range s.Replicas {
		if l := r.Slots; l.Busy+l.Zombie > l.Total || l.Free < 0 || l.Busy < 0 || l.Zombie < 0 {
			return fmt.Errorf("the ledger of %s is wrong: %+v", r.Name, l)
		}
	}
	return nil
}

// notes remembers what an observer is told.
type notes struct {
	gateway.Observer
	mu      sync.Mutex
	records []gateway.Record
	results map[string]int // attempts by result
	changes []admission.Event
}

func (n *notes) wrap(o gateway.Observer) gateway.Observer {
	n.Observer, n.results = o, map[string]int{}
	return n
}

func (n *notes) RequestEnded(r gateway.Record) {
	n.Observer.RequestEnded(r)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.records = append(n.records, r)
}

func (n *notes) AttemptEnded(replica, result string) {
	n.Observer.AttemptEnded(replica, result)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.results[result]++
}

func (n *notes) ReplicaChanged(e admission.Event) {
	n.Observer.ReplicaChanged(e)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changes = append(n.changes, e)
}

// changed lists what was told of a kind of change.
func (n *notes) changed(what admission.EventKind) (all []admission.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.changes {
		if e.What == what {
			all = append(all, e)
		}
	}
	return all
}

// count is the number of ended requests that are as asked.
func (n *notes) count(is func(gateway.Record) bool) (sum int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.records {
		if is(r) {
			sum++
		}
	}
	return sum
}

// attempts is the number of attempts with the result; "" for all.
func (n *notes) attempts(result string) (sum int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, v := range n.results {
		if result == "" || k == result {
			sum += v
		}
	}
	return sum
}
