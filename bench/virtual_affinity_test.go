package bench

import (
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// found is what several trials of a scenario came to.
type found struct {
	share  float64   // of prompt tokens, found in caches
	onTime int       // requests
	firsts []float64 // times to the first token, in order
}

func (f *found) median() float64 { return f.firsts[len(f.firsts)/2] }

// finds runs a scenario's trials against a target, with affinity as configured.
func finds(t *testing.T, s *Scenario, target string) (f found) {
	t.Helper()
	to, err := ParseTarget(target)
	require.NoError(t, err)
	cached, all := 0, 0
	for trial := 1; trial <= s.Trials; trial++ {
		got, err := RunVirtual(t.Context(), s, to, trial, VirtualOptions{Wire: wire})
		require.NoError(t, err)
		require.Empty(t, got.Violations)
		for _, r := range got.Replicas {
			cached, all = cached+r.Stats.CachedTokens, all+r.Stats.PromptTokens
		}
		for _, r := range got.Records {
			if r.OnTime {
				f.onTime++
			}
			if r.Status == 200 && r.FirstTokenS != nil {
				f.firsts = append(f.firsts, *r.FirstTokenS-r.ArrivalS)
			}
		}
	}
	slices.Sort(f.firsts)
	f.share = float64(cached) / float64(all)
	return f
}

// R6 at the clients: conversations find nearly all that pinning each for good
// finds, and have their first tokens far sooner than where caches are not looked at.
func TestR6ConversationsScenario(t *testing.T) {
	s, err := Load("conversations")
	require.NoError(t, err)
	for _, load := range s.Loads {
		at := s.At(load)
		best, least, turns, got := finds(t, at, "pinned"), finds(t, at, "least-connections"), finds(t, at, "round-robin"), finds(t, at, "switchyard")
		t.Logf("%g caches: %.3f of tokens found, %.3f at best; first token %.3f s, %.3f by least connections, %.3f in turn",
			load, got.share, best.share, got.median(), least.median(), turns.median())
		require.GreaterOrEqual(t, got.share, 0.95*best.share)
		require.LessOrEqual(t, got.median(), least.median()/2)
		require.LessOrEqual(t, got.median(), turns.median()/3)
	}
}

// R6 at the clients: a prompt that most requests share spreads.
func TestR6HotPrefixScenario(t *testing.T) {
	s, err := Load("hot-prefix")
	require.NoError(t, err)
	at := s.At(1)
	least, without, got := finds(t, at, "least-connections"), finds(t, at, "switchyard-no-affinity"), finds(t, at, "switchyard")
	t.Logf("on time: %d, %d without affinity, %d by least connections", got.onTime, without.onTime, least.onTime)
	require.GreaterOrEqual(t, float64(got.onTime), 0.98*float64(least.onTime))
	require.Greater(t, got.onTime, without.onTime)
}

// An eviction storm: conversations that are together three times as large as all
// caches. Affinity is no worse than none, and nobody waits for what is gone.
func TestR6EvictionStorm(t *testing.T) {
	s, err := Load("conversations")
	require.NoError(t, err)
	s = s.At(12)
	s.Trials, s.Traffic[0].Think = 1, time.Minute
	without, best, got := finds(t, s, "switchyard-no-affinity"), finds(t, s, "pinned"), finds(t, s, "switchyard")
	t.Logf("found %.3f, %.3f without affinity, %.3f at best", got.share, without.share, best.share)
	require.GreaterOrEqual(t, got.share, 0.9*best.share)
	require.Greater(t, got.share, without.share)
	require.GreaterOrEqual(t, got.onTime, without.onTime)
	require.Less(t, got.median(), without.median())
}

// A replica that restarts has an empty cache: its conversations are computed anew
// once, and nobody waits for what is gone.
func TestR6RestartInAScenario(t *testing.T) {
	text, ok := shipped("conversations")
	require.True(t, ok)
	one := regexp.MustCompile(`(?m)^(  - \{name: llama, )count: 4,(.*)\}$`)
	s := parse(t, one.ReplaceAllString(string(text), "${1}count: 3,$2}\n  - {name: crashing,$2, faults: [{at: 90s, kind: crash, for: 5s}]}")).At(3)
	require.Len(t, s.Replicas, 4)
	without, got := finds(t, s, "switchyard-no-affinity"), finds(t, s, "switchyard")
	t.Logf("found %.3f, %.3f without affinity; first token %.3f s and %.3f", got.share, without.share, got.median(), without.median())
	require.Greater(t, got.share, without.share+0.15)
	require.Less(t, got.median(), without.median()/2)
	require.GreaterOrEqual(t, float64(got.onTime), 0.99*float64(without.onTime))
}
