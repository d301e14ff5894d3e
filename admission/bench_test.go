package admission

import (
	"fmt"
	"testing"
	"time"

	"switchyard/replica"
)

// benchWorld has n replicas of four slots each, all busy when full.
func benchWorld(b testing.TB, n, queued int) (*Controller, time.Time, []*Assignment) {
	b.Helper()
	var cfgs []replica.Config
	for i := range n {
		r := rep(fmt.Sprint("r", i), 4)
		r.CacheTokens = 100_000
		cfgs = append(cfgs, r)
	}
	cfg := testConfig(cfgs...)
	cfg.Queue, cfg.Affinity = QueueLimits{}, true
	now := time.Unix(1_700_000_000, 0)
	c := New(cfg, now)
	for _, r := range cfgs {
		c.Report(now, r.Name, facts("m"))
	}
	var running []*Assignment
	for len(running) < 4*n || queued > 0 {
		t := c.Arrive(now, Arrival{ID: "b", Class: "standard", At: now})
		if ref := c.Admit(now, t, benchAsk(now)); ref != nil {
			b.Fatal(ref)
		}
		select {
		case g := <-t.C():
			running = append(running, g.Assignment)
		default:
			queued--
		}
	}
	for _, r := range c.mu.fleet {
		r.Speed("m").Learn(replica.Sample{PromptTokens: 100, Prompt: time.Millisecond, Hold: 10 * time.Millisecond})
	}
	return c, now, running
}

func benchAsk(now time.Time) Ask {
	return Ask{
		Models: []string{"m"}, Public: "m", Engines: []replica.Engine{replica.EngineOpenAI}, Width: 1, Bytes: 1000,
		PromptTokens: 100, MaxTokens: 100, Stream: true, Deadline: now.Add(time.Hour),
	}
}

// BenchmarkRound is a request's whole way through a loaded controller: it is
// admitted and queued, another ends, and its slot goes to the next in order.
func BenchmarkRound(b *testing.B) {
	for _, size := range []struct{ replicas, queued int }{{2, 10}, {2, 1000}, {2, 20000}, {10, 1000}, {100, 1000}, {100, 10000}, {1000, 1000}} {
		b.Run(fmt.Sprintf("replicas=%d/queued=%d", size.replicas, size.queued), func(b *testing.B) {
			c, now, _ := benchWorld(b, size.replicas, size.queued)
			for b.Loop() {
				now = now.Add(time.Millisecond)
				t := c.Arrive(now, Arrival{ID: "b", Class: "standard", At: now})
				c.Admit(now, t, benchAsk(now))
				for _, rs := range c.mu.running { // some attempt that runs
					a := rs.list[0].a
					c.Finish(now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: now, Usage: Usage{OutputTokens: 10}})
					c.End(now, a.ticket, Completed, "")
					break
				}
			}
		})
	}
}

// BenchmarkRefusal is a refusal on arrival by forecast.
func BenchmarkRefusal(b *testing.B) {
	for _, n := range []int{2, 100, 1000} {
		b.Run(fmt.Sprintf("replicas=%d", n), func(b *testing.B) {
			c, now, _ := benchWorld(b, n, 1000)
			ask := benchAsk(now)
			ask.Deadline = now.Add(time.Millisecond)
			for b.Loop() {
				t := c.Arrive(now, Arrival{ID: "b", Class: "standard", At: now})
				c.Admit(now, t, ask)
				c.End(now, t, Refused, ReasonDeadlineUnmeetable)
			}
		})
	}
}

// BenchmarkChoose is the choice among replicas (R3, R6: at most 20 µs among
// 1,000) that all have room, with a prompt of 64 parts that nothing is known of,
// that one holds, that all hold, or that one holds which is busy. It reports the
// least time, too, so that a busy machine does not decide it.
func BenchmarkChoose(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		for _, prompt := range []string{"unknown", "on-one", "on-all", "on-a-busy-one"} {
			b.Run(fmt.Sprintf("replicas=%d/prompt=%s", n, prompt), func(b *testing.B) {
				c, now, running := benchWorld(b, n, 0)
				for _, a := range running {
					if prompt == "on-a-busy-one" && a.Replica == "r0" {
						continue
					}
					c.Finish(now, a, AttemptResult{Kind: ResultOK})
					c.End(now, a.ticket, Completed, "")
				}
				t := c.Arrive(now, Arrival{ID: "b", Class: "standard", At: now})
				t.ask, t.lane = benchAsk(now), lane{model: "m", engines: "openai"}
				if prompt != "unknown" {
					t.ask.Chain = talk("x", 64)
					t.ask.PromptTokens = 64000
					for i, r := range c.mu.fleet {
						if i == 0 || prompt == "on-all" {
							r.Caches("m").Fill(now, -1, t.ask.Chain)
						}
					}
				}
				least := time.Hour
				for b.Loop() {
					start := time.Now()
					c.mu.choose(now, t)
					least = min(least, time.Since(start))
				}
				b.ReportMetric(float64(least.Nanoseconds()), "min-ns")
			})
		}
	}
}
