package admission

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// manyKeys is a controller with n keys that have limits, each of which has
// asked once, and their names.
func manyKeys(t testing.TB, n int) (*Controller, []string, time.Time) {
	cfg := testConfig(rep("a", 4))
	cfg.Limits = map[string]Limits{}
	names := []string{"anonymous"}
	for i := range n {
		names = append(names, fmt.Sprint("team-", i))
		cfg.Limits[names[i+1]] = Limits{RequestsPerMinute: 1_000_000_000, TokensPerMinute: 1_000_000_000, MaxRunning: 4, MaxQueued: 20}
	}
	now := time.Unix(1_700_000_000, 0)
	c := New(cfg, now)
	c.Report(now, "a", facts("m"))
	for _, name := range names {
		serveOne(t, c, name, now)
	}
	return c, names, now
}

// serveOne is one request's whole way.
func serveOne(t testing.TB, c *Controller, key string, now time.Time) {
	tk := c.Arrive(now, Arrival{ID: "b", Class: "standard", Key: key, At: now})
	if ref := c.Admit(now, tk, benchAsk(now)); ref != nil {
		t.Fatal(ref)
	}
	c.Finish(now, (<-tk.C()).Assignment, AttemptResult{Kind: ResultOK, FirstTokenAt: now, Usage: Usage{PromptTokens: 90, OutputTokens: 10}})
	c.End(now, tk, Completed, "")
}

// BenchmarkKeys is a request's whole way through an idle controller, keys in
// turn (R12: 10,000 keys cost nothing noticeable). Zero keys: without limits.
func BenchmarkKeys(b *testing.B) {
	for _, n := range []int{0, 1, 100, 10_000} {
		b.Run(fmt.Sprint("keys=", n), func(b *testing.B) {
			c, names, now := manyKeys(b, n)
			if n > 0 {
				names = names[1:]
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Millisecond)
				serveOne(b, c, names[i%len(names)], now)
				i++
			}
		})
	}
}

// BenchmarkRateLimited is a refusal by a limit while a queue waits.
func BenchmarkRateLimited(b *testing.B) {
	c, now, _ := benchWorld(b, 2, 1000)
	cfg := c.mu.cfg
	cfg.Limits = map[string]Limits{"k": {RequestsPerMinute: 1}}
	c.Reconfigure(now, cfg)
	refused := 0
	b.ReportAllocs()
	for b.Loop() {
		t := c.Arrive(now, Arrival{ID: "b", Class: "standard", Key: "k", At: now})
		if ref := c.Admit(now, t, benchAsk(now)); ref != nil {
			refused++
			c.End(now, t, Refused, ref.Reason)
		}
	}
	require.GreaterOrEqual(b, refused, b.N-1)
}

// BenchmarkReloadKeys is a reload while 10,000 keys have accounts.
func BenchmarkReloadKeys(b *testing.B) {
	c, _, now := manyKeys(b, 10_000)
	for b.Loop() {
		c.Reconfigure(now, c.mu.cfg)
	}
}

// R12: what 10,000 keys with limits weigh once each has asked.
func TestR12TenThousandKeysAreLight(t *testing.T) {
	weigh := func(n int) uint64 {
		c, _, _ := manyKeys(t, n)
		clear(c.mu.output) // what is learned of their answers is bounded elsewhere
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		runtime.KeepAlive(c)
		return m.HeapAlloc
	}
	weigh(10)
	before := weigh(0)
	each := float64(weigh(10_000)-before) / 10_000
	t.Logf("%.0f bytes a key", each)
	require.Less(t, each, 1000.0)
}
