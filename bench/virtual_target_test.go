package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/simserver"
)

// crowd is more than one replica can serve in time: twice as much.
func crowd() *script {
	var list []*Request
	for i := range 60 {
		r := request(fmt.Sprint("r", i), time.Duration(i)*500*time.Millisecond, 91) // a second each
		r.Deadline = 3 * time.Second
		list = append(list, r)
	}
	return newScript(list...)
}

func crowded() *Scenario {
	s := small(spec("a", "vllm", 1))
	s.Classes[0].Deadline = 3 * time.Second
	return s
}

func TestVirtualAblations(t *testing.T) {
	onTime := func(r *Record) bool { return r.OnTime }
	refused := func(r *Record) bool { return r.Status == 429 }
	whole := try(t, crowded(), "switchyard", crowd())
	require.Empty(t, whole.Violations)
	require.Greater(t, howMany(whole.Records, onTime), 25)
	require.Equal(t, 60, howMany(whole.Records, func(r *Record) bool { return r.OnTime || r.Status == 429 }))

	open := try(t, crowded(), "switchyard-no-admission", crowd())
	require.Empty(t, open.Violations)
	require.Zero(t, howMany(open.Records, refused), "nobody is refused")
	require.Less(t, howMany(open.Records, onTime), 15)
	require.Equal(t, 1, open.Replicas[0].Stats.MaxInHand, "the queue is still the gateway's")

	inside := try(t, crowded(), "switchyard-no-slots", crowd())
	require.Empty(t, inside.Violations)
	require.Greater(t, inside.Replicas[0].Stats.MaxInHand, 1, "the queue is the replica's")
	require.Less(t, howMany(inside.Records, onTime), howMany(whole.Records, onTime))
}

// Without order nobody says how urgent he is: first come, first served.
func TestVirtualNoOrder(t *testing.T) {
	s := crowded()
	s.Classes = []Class{{Name: "urgent", Deadline: 20 * time.Second}, {Name: "standard", Deadline: time.Minute}}
	list := func() *script {
		first, second, third := request("1", 0, 91), request("2", 100*time.Millisecond, 91), request("3", 200*time.Millisecond, 91)
		for _, r := range []*Request{first, second, third} {
			r.Class, r.Deadline = "standard", time.Minute
		}
		third.Class, third.Deadline = "urgent", 20*time.Second
		return newScript(first, second, third)
	}
	first := func(target string) (second, third float64) {
		trial := try(t, s, target, list())
		return *trial.Records[1].FirstTokenS, *trial.Records[2].FirstTokenS
	}
	second, third := first("switchyard")
	require.Less(t, third, second)
	second, third = first("switchyard-no-order")
	require.Less(t, second, third)
}

// The oracle serves everyone it has not refused in time, and the slot is never
// idle while someone waits who can be: of one server that takes a second for
// each, thirty come in thirty seconds, and three more wait at the end.
func TestVirtualOracle(t *testing.T) {
	trial := try(t, crowded(), "switchyard-oracle", crowd())
	require.Empty(t, trial.Violations)
	served := howMany(trial.Records, func(r *Record) bool { return r.Status == 200 })
	require.Equal(t, served, howMany(trial.Records, func(r *Record) bool { return r.OnTime }))
	require.InDelta(t, 33, served, 1)
	for _, r := range trial.Records {
		if r.Status != 200 {
			require.Equal(t, string(admission.ReasonDeadlineUnmeetable), r.Code)
			require.LessOrEqual(t, r.EndS-r.ArrivalS, 3.001)
		}
	}
}

func TestVirtualTargetsThatAreNotVirtual(t *testing.T) {
	to, err := ParseTarget("url:other=http://127.0.0.1:1")
	require.NoError(t, err)
	_, err = runVirtual(t.Context(), crowded(), to, crowd(), VirtualOptions{Wire: wire})
	require.ErrorContains(t, err, "live run")
	s := crowded()
	s.Replicas[0].URL = "http://127.0.0.1:1"
	to, err = ParseTarget("switchyard")
	require.NoError(t, err)
	_, err = runVirtual(t.Context(), s, to, crowd(), VirtualOptions{Wire: wire})
	require.ErrorContains(t, err, "replica a is a real one")
}

// R13, R1, waste: what must not be is found.
func TestChecksFindWhatIsBroken(t *testing.T) {
	own := admission.Totals{Completed: 3, Refused: 2}
	good := func() *admission.Snapshot {
		return &admission.Snapshot{
			Totals:   admission.Totals{Arrived: 5, Completed: 3, Refused: 2},
			Replicas: []admission.ReplicaState{{Name: "a", Slots: admission.SlotState{Total: 2, Free: 2}}},
		}
	}
	require.Empty(t, checkBooks(good(), own))
	for what, spoil := range map[string]func(*admission.Snapshot){
		"do not balance":    func(s *admission.Snapshot) { s.Totals.Arrived++ },
		"the clients saw":   func(s *admission.Snapshot) { s.Totals.Completed--; s.Totals.Failed++ },
		"1 requests":        func(s *admission.Snapshot) { s.Totals.Queued++; s.Totals.Arrived++ },
		"slots of a are":    func(s *admission.Snapshot) { s.Replicas[0].Slots.Zombie = 1 },
		"1 run when all ha": func(s *admission.Snapshot) { s.Totals.Running++; s.Totals.Arrived++ },
	} {
		s := good()
		spoil(s)
		require.Contains(t, fmt.Sprint(checkBooks(s, own)), what)
	}

	trial := func(st simserver.Stats, r Record) *Trial {
		return &Trial{Records: []Record{{Status: 200, Attempts: 1}, r}, Replicas: []ReplicaRecord{{Replica: "a", Stats: st}}}
	}
	gateway, proxy := Target{Kind: Gateway}, Target{Kind: RoundRobin}
	over, waste, fine := simserver.Stats{Slots: 2, MaxInHand: 3}, simserver.Stats{Slots: 2, TokensWasted: 1}, Record{Status: 200, Attempts: 1}
	require.Contains(t, fmt.Sprint(checkFleet(gateway, trial(over, fine))), "R1: a has had 3 requests in hand on 2 slots")
	require.Empty(t, checkFleet(proxy, trial(over, fine)))
	require.Empty(t, checkFleet(Target{Kind: Gateway, Without: "slots"}, trial(over, fine)))
	require.Contains(t, fmt.Sprint(checkFleet(gateway, trial(waste, fine))), "waste")
	require.Empty(t, checkFleet(gateway, trial(waste, Record{Status: 200, Attempts: 2})))
	require.Empty(t, checkFleet(gateway, trial(waste, Record{Error: ErrLeft})))
	require.NotEmpty(t, checkFleet(gateway, trial(waste, Record{Status: 429, Code: string(admission.ReasonDeadlineUnmeetable)})))
}
