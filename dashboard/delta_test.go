package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"switchyard/admission"
	"switchyard/dashboard/history"
	"switchyard/replica"
)

// object is JSON as the page sees it.
type object = map[string]json.RawMessage

// told applies a delta as the page's state.js does.
func told(t *rapid.T, state object, replicas map[string]object, order []string, delta []byte) []string {
	var d struct {
		Set      object
		Replicas map[string]object
		Order    []string
	}
	if err := json.Unmarshal(delta, &d); err != nil {
		t.Fatalf("%v in %s", err, delta)
	}
	assign := func(to, members object) {
		for k, v := range members {
			if string(v) == "null" {
				delete(to, k)
			} else {
				to[k] = v
			}
		}
	}
	assign(state, d.Set)
	for name, members := range d.Replicas {
		if replicas[name] == nil {
			replicas[name] = object{}
		}
		assign(replicas[name], members)
	}
	if d.Order != nil {
		order = d.Order
		known := map[string]bool{}
		for _, n := range order {
			known[n] = true
		}
		for n := range replicas {
			if !known[n] {
				delete(replicas, n)
			}
		}
	}
	return order
}

// drawn is a snapshot of a few replicas in any state.
func drawn(t *rapid.T) view {
	s := &admission.Snapshot{UptimeS: float64(rapid.IntRange(0, 3).Draw(t, "uptime"))}
	s.Totals.Arrived = int64(rapid.IntRange(0, 2).Draw(t, "arrived"))
	if rapid.Bool().Draw(t, "looked") {
		s.Waiting = &admission.Waiting{Others: rapid.IntRange(0, 1).Draw(t, "others")}
	}
	for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, 5), 0, 5, rapid.ID[int]).Draw(t, "names") {
		r := admission.ReplicaState{
			Name: fmt.Sprintf("r%d <\"é\n", i), Err: rapid.SampledFrom([]string{"", "gone"}).Draw(t, "error"),
			Slow: rapid.SampledFrom([]string{"", "slow"}).Draw(t, "slow"), EngineVersion: rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "version"),
		}
		r.Breaker.Reason = rapid.SampledFrom([]string{"", "3 failures"}).Draw(t, "reason")
		r.Slots.Busy = rapid.IntRange(0, 2).Draw(t, "busy")
		if rapid.Bool().Draw(t, "gpu") {
			r.GPU = &replica.GPUFacts{Source: "nvml"}
		}
		s.Replicas = append(s.Replicas, r)
	}
	return view{s, history.Glance{}}
}

// Whoever was told the whole once, and each change since, knows what one knows
// who is told the whole now.
func TestDeltasAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := newFrame(drawn(t))
		state, replicas, order := parsed(t, before)
		for range rapid.IntRange(1, 4).Draw(t, "beats") {
			now := newFrame(drawn(t))
			var b bytes.Buffer
			now.delta(&b, before)
			order = told(t, state, replicas, order, b.Bytes())
			wantState, wantReplicas, wantOrder := parsed(t, now)
			require.Equal(t, wantState, state)
			require.Equal(t, wantReplicas, replicas)
			require.Equal(t, wantOrder, order)
			before = now
		}
	})
}

// parsed reads a whole frame; a null member counts as none.
func parsed(t *rapid.T, f *frame) (state object, replicas map[string]object, order []string) {
	var b bytes.Buffer
	f.whole(&b)
	if err := json.Unmarshal(b.Bytes(), &state); err != nil {
		t.Fatalf("%v in %s", err, b.Bytes())
	}
	var list []object
	if err := json.Unmarshal(state["replicas"], &list); err != nil {
		t.Fatalf("%v in %s", err, b.Bytes())
	}
	delete(state, "replicas")
	replicas, order = map[string]object{}, []string{}
	for _, r := range list {
		var name string
		if err := json.Unmarshal(r["name"], &name); err != nil {
			t.Fatalf("%v", err)
		}
		dropNull(r)
		replicas[name], order = r, append(order, name)
	}
	dropNull(state)
	return state, replicas, order
}

func dropNull(o object) {
	for k, v := range o {
		if string(v) == "null" {
			delete(o, k)
		}
	}
}

// Nothing has changed: next to nothing is said.
func TestNoChangeIsShort(t *testing.T) {
	s := &admission.Snapshot{Replicas: []admission.ReplicaState{{Name: "a"}, {Name: "b"}}}
	var b bytes.Buffer
	newFrame(view{s, history.Glance{}}).delta(&b, newFrame(view{s, history.Glance{}}))
	require.JSONEq(t, `{"set":{},"replicas":{}}`, b.String())
}
