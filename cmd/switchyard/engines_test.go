//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// R8, R11: all that a real Ollama answers comes through whole and unchanged,
// and the lists are those of both.
func TestRealEngineAnswers(t *testing.T) {
	r := newEngineRig(t, true)
	for _, name := range []string{"a", "b"} {
		found := r.found(name)
		t.Logf("found at %s: %s", name, found)
		require.Contains(t, found, "Ollama")
		require.Contains(t, found, "2 slots per model (configured)")
		require.Contains(t, found, nonsense)
		require.Equal(t, "ollama", r.state().replica(name).Engine, "recognised by what it answers")
	}
	r.answersComeThrough()
	r.answersOfOnlyOne()
	r.listsAreUnions()
	r.mistakesArePassedOn()
}

func (r *engineRig) answersComeThrough() {
	t := r.t
	all := append(engineKinds(),
		engineAsk{path: "/api/generate", stream: true}, engineAsk{path: "/v1/completions", stream: true},
		engineAsk{path: "/api/generate"}, engineAsk{path: "/v1/completions"})
	for i, a := range all {
		a.id, a.tokens = fmt.Sprintf("whole-%d", i), 20
		// What a browser or a proxy in front would say: Ollama itself refuses both.
		a.header = map[string]string{"Host": "gateway.example.com", "Origin": "https://elsewhere.example.com"}
		got := r.send(r.ctx, a)
		require.NoError(t, got.whole())
		require.Equal(t, []string{a.id, "1", "standard"}, []string{
			got.header.Get("X-Request-Id"), got.header.Get("X-Switchyard-Attempts"), got.header.Get("X-Switchyard-Class"),
		}, "%s", a)
		require.Contains(t, []string{"hit", "miss"}, got.header.Get("X-Switchyard-Affinity"))
		require.NotEmpty(t, got.header.Get("X-Switchyard-Queue-Ms"))
		require.Contains(t, []string{"a", "b"}, got.replica())
		if a.stream {
			require.Equal(t, "no", got.header.Get("X-Accel-Buffering"))
		}
		sent, ok := r.taps[got.replica()].Find(a.id)
		require.True(t, ok, "%s: %s does not know of it", a, got.replica())
		require.Equal(t, string(sent.Body), string(got.body), "%s: byte for byte", a)
		require.Empty(t, sent.Header.Get("Origin"))
		t.Logf("%s: %d bytes in %v, from %s", a, len(got.body), got.ended.Sub(sent.Began).Round(time.Millisecond), got.replica())
	}
}

// answersOfOnlyOne: a model that one replica has is asked for there.
func (r *engineRig) answersOfOnlyOne() {
	for i, a := range engineKinds() {
		a.id, a.tokens, a.model = fmt.Sprintf("only-%d", i), 5, onlyB
		got := r.send(r.ctx, a)
		require.NoError(r.t, got.whole())
		require.Equal(r.t, "b", got.replica())
	}
}

func (r *engineRig) listsAreUnions() {
	t := r.t
	var tags struct{ Models []struct{ Name string } }
	r.json(r.clients+"/api/tags", &tags)
	var names []string
	for _, m := range tags.Models {
		names = append(names, m.Name)
	}
	require.ElementsMatch(t, []string{nonsense + ":latest", onlyB + ":latest"}, names)

	var list struct{ Data []struct{ ID string } }
	r.json(r.clients+"/v1/models", &list)
	names = nil
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	require.ElementsMatch(t, []string{nonsense + ":latest", onlyB + ":latest"}, names)

	r.until("the probes have seen the loaded models", func() bool {
		var ps struct{ Models []struct{ Name string } }
		r.json(r.clients+"/api/ps", &ps)
		var names []string
		for _, m := range ps.Models {
			names = append(names, m.Name)
		}
		return slices.Contains(names, nonsense+":latest") && slices.Contains(names, onlyB+":latest")
	})
	_, body, err := r.get(r.clients + "/")
	require.NoError(t, err)
	require.Equal(t, "Ollama is running", string(body))
	var version struct{ Version string }
	r.json(r.clients+"/api/version", &version)
	require.NotEmpty(t, version.Version)
}

// mistakesArePassedOn, R7: what the client did wrong is said to the client, and
// blamed on nobody. Ollama answers a wrong type with a 500, so a second replica
// is asked, and then no third.
func (r *engineRig) mistakesArePassedOn() {
	t := r.t
	got := r.send(r.ctx, engineAsk{path: "/api/chat", model: "nobody-has-it"})
	require.Equal(t, http.StatusNotFound, got.status)
	require.Equal(t, "model_not_found", got.header.Get("X-Switchyard-Reason"))

	req, err := http.NewRequestWithContext(r.ctx, http.MethodPost, r.clients+"/api/chat",
		strings.NewReader(`{"model":"nonsense","stream":false,"options":{"num_predict":"many"},"messages":[{"role":"user","content":"x"}]}`))
	require.NoError(t, err)
	resp, err := r.http.Do(req)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	t.Logf("an option of a wrong type: %d after %s attempts: %s", resp.StatusCode, resp.Header.Get("X-Switchyard-Attempts"), body)
	require.Equal(t, http.StatusInternalServerError, resp.StatusCode)
	require.Equal(t, "2", resp.Header.Get("X-Switchyard-Attempts"))
	require.Contains(t, string(body), "num_predict", "in Ollama's own words")
	require.Equal(t, 1, r.state().Totals.Failed, "only this")
	for _, name := range []string{"a", "b"} {
		require.Equal(t, "closed", r.state().replica(name).Breaker.State)
	}
}

// R1, R2, R13: twelve clients at once, two slots at each replica: neither ever
// has more in hand, both have that much, and everybody is answered.
func TestRealEngineSlotsUnderLoad(t *testing.T) {
	r := newEngineRig(t, true)
	const clients, each = 12, 4
	stop := r.watchSlots()
	start := time.Now()
	var wg sync.WaitGroup
	answers := make([][]engineAnswer, clients)
	for c := range clients {
		wg.Go(func() {
			for i := range each {
				a := engineKinds()[(c+i)%len(engineKinds())]
				a.id, a.tokens = fmt.Sprintf("load-%d-%d", c, i), 30+rand.IntN(60)
				answers[c] = append(answers[c], r.send(r.ctx, a))
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	samples := stop()
	for _, got := range slices.Concat(answers...) {
		require.NoError(t, got.whole())
	}
	for name, tap := range r.taps {
		now, most := tap.InHand()
		require.Zero(t, now, name)
		require.Equal(t, engineSlots, most, "the most that %s had in hand", name)
		t.Logf("%s: %d requests, at most %d in hand", name, len(tap.Exchanges()), most)
	}
	totals := r.state().Totals
	require.Equal(t, clients*each, totals.Completed, "%+v", totals)
	require.Equal(t, totals.Arrived, totals.Completed, "%+v", totals)
	t.Logf("%d answers in %v; the state was looked at %d times", clients*each, took.Round(time.Millisecond), samples)
}

// watchSlots looks at the state again and again until told to stop: at every
// moment the books balance and no ledger is overdrawn.
func (r *engineRig) watchSlots() (stop func() (samples int)) {
	ctx, cancel := context.WithCancel(r.ctx)
	var wg sync.WaitGroup
	n := 0
	var wrong []string
	wg.Go(func() {
		tick := time.NewTicker(2 * engineGlance)
		defer tick.Stop()
		for ctx.Err() == nil {
			s, err := r.look()
			n++
			if err != nil {
				wrong = append(wrong, err.Error())
				return
			}
			if !s.balanced() {
				wrong = append(wrong, fmt.Sprintf("the books: %+v", s.Totals))
			}
			for _, rep := range s.Replicas {
				if held := rep.Slots.Busy + rep.Slots.Zombie; held > engineSlots || rep.Slots.Free < 0 {
					wrong = append(wrong, fmt.Sprintf("the slots of %s: %+v", rep.Name, rep.Slots))
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return func() int {
		r.t.Helper()
		cancel()
		wg.Wait()
		require.Empty(r.t, wrong)
		return n
	}
}

// R1, R10: clients leave while they wait, while they stream, and while they
// wait for a whole answer. Ollama stops at once, the slot comes back only then,
// and those who stayed are served.
func TestRealEngineClientsLeave(t *testing.T) {
	all := newEngineRig(t, true)
	all.warm()
	for _, kind := range engineKinds() {
		t.Run(kind.String(), func(t *testing.T) {
			r := *all
			r.t = t
			r.clientsLeave(kind)
		})
	}
}

func (r *engineRig) clientsLeave(kind engineAsk) {
	t, before := r.t, r.state().Totals
	var wg sync.WaitGroup
	longs, leave := context.WithCancel(r.ctx)
	defer leave()
	for i := range 2 * engineSlots {
		a := kind
		a.id, a.tokens = fmt.Sprintf("leaves-%d", i), 1500
		wg.Go(func() { r.send(longs, a) })
	}
	r.until("all slots are taken, at the replicas too", func() bool {
		a, _ := r.taps["a"].InHand()
		b, _ := r.taps["b"].InHand()
		return a == engineSlots && b == engineSlots
	})

	waiting, give := context.WithCancel(r.ctx)
	defer give()
	wg.Go(func() { r.send(waiting, engineAsk{path: kind.path, stream: kind.stream, id: "gives-up", tokens: 5}) })
	stayed := make([]engineAnswer, 3)
	for i := range stayed {
		wg.Go(func() {
			stayed[i] = r.send(r.ctx, engineAsk{path: kind.path, stream: kind.stream, id: fmt.Sprintf("stays-%d", i), tokens: 5})
		})
	}
	r.until("four wait", func() bool { return r.state().Totals.Queued == 4 })
	gave := time.Now()
	give()
	r.until("the one that gave up is gone", func() bool { return r.state().Totals.Queued == 3 })
	t.Logf("left the queue after %v", time.Since(gave).Round(time.Millisecond))
	require.Equal(t, before.Cancelled+1, r.state().Totals.Cancelled)

	left := time.Now()
	leave()
	wg.Wait()
	for _, got := range stayed {
		require.NoError(t, got.whole())
		require.Equal(t, "1", got.header.Get("X-Switchyard-Attempts"))
	}
	r.until("all slots are back", func() bool {
		s := r.state()
		return s.replica("a").Slots.Zombie+s.replica("b").Slots.Zombie == 0 && s.Totals.Running == 0
	})
	r.noticed(left)
	for name, tap := range r.taps {
		_, most := tap.InHand()
		require.Equal(t, engineSlots, most, "the most that %s had in hand", name)
		_, passed := tap.Find("gives-up")
		require.False(t, passed, "who left the queue was never sent to %s", name)
	}
	s := r.state()
	require.Equal(t, before.Cancelled+1+2*engineSlots, s.Totals.Cancelled)
	require.Zero(t, s.Totals.Failed)
	require.True(t, s.balanced(), "%+v", s.Totals)
	for _, rep := range s.Replicas {
		require.Equal(t, "closed", rep.Breaker.State, "nobody is blamed")
	}
}

// noticed reports how soon Ollama was through with the requests whose clients
// had left at that time.
func (r *engineRig) noticed(left time.Time) {
	r.t.Helper()
	for name, tap := range r.taps {
		n := 0
		for _, e := range tap.Exchanges() {
			if e.Left.Before(left) { // or not at all
				continue
			}
			n++
			told, through := e.Left.Sub(left), e.Ended.Sub(left)
			r.t.Logf("%s: the gateway hung up after %v, Ollama was through after %v, with status %d and %d bytes",
				name, told.Round(100*time.Microsecond), through.Round(100*time.Microsecond), e.Status, len(e.Body))
			require.NotContains(r.t, string(e.Body), `"done":true`, "it was cut short")
			require.NotContains(r.t, string(e.Body), `"length"`, "it was cut short")
			require.Less(r.t, told, time.Second)
			require.Less(r.t, through, 2*time.Second, "a tenth of a second is usual")
		}
		require.Equal(r.t, engineSlots, n, "%s was told of those who left", name)
	}
}

// warm has both replicas load the model.
func (r *engineRig) warm() {
	r.t.Helper()
	var wg sync.WaitGroup
	answers := make([]engineAnswer, 2*engineSlots)
	for i := range answers {
		wg.Go(func() { answers[i] = r.send(r.ctx, engineAsk{path: "/api/chat", stream: true, id: "warm", tokens: 20}) })
	}
	wg.Wait()
	from := map[string]bool{}
	for _, got := range answers {
		require.NoError(r.t, got.whole())
		from[got.replica()] = true
	}
	require.Len(r.t, from, 2, "four at once must take both replicas")
}
