package compare

import (
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// load is what each client does in a round.
type load struct {
	path    string
	want    int // bytes of an answer's body
	times   int // one after the other
	streams int // at a time
	events  int // in each, to share the CPU by
}

// cpu is what this process has used so far.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// compare gives every client the same load in turn, round by round, so that
// whatever else the machine does meets them all. It reports the medians of the
// CPU time each took, and of its ratio to ours in the same round.
func compare(b *testing.B, l load) {
	all := clients()
	used := make([][]float64, len(all))
	for b.Loop() {
		for i, c := range all {
			begin := cpu(b)
			for range l.times {
				var wg sync.WaitGroup
				for range l.streams {
					wg.Go(func() {
						if n, err := c.ask(l.path); n != l.want || err != nil {
							b.Errorf("%s: %d bytes, wanted %d: %v", c.name, n, l.want, err)
						}
					})
				}
				wg.Wait()
			}
			used[i] = append(used[i], float64(cpu(b)-begin)/float64(l.times*l.streams*l.events))
		}
	}
	for i, c := range all {
		b.ReportMetric(median(used[i]), c.name+"-cpu-ns")
		if i == 0 {
			continue
		}
		ratios := make([]float64, len(used[i]))
		for round := range ratios {
			ratios[round] = used[i][round] / used[0][round]
		}
		b.ReportMetric(median(ratios), c.name+"-ratio")
	}
	b.ReportMetric(0, "ns/op") // of no interest
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// A request of 1 KiB and an answer of 1 KiB, one after the other.
func BenchmarkRequest(b *testing.B) {
	compare(b, load{path: "/small", want: len(smallBody), times: 200, streams: 1, events: 1})
}

// The same, 32 at a time.
func BenchmarkRequest32(b *testing.B) {
	compare(b, load{path: "/small", want: len(smallBody), times: 10, streams: 32, events: 1})
}

// An event of a stream of 1,000, 32 streams at a time with an event each 2 ms:
// each is read by itself, as tokens come.
func BenchmarkPacedEvent(b *testing.B) {
	compare(b, load{path: "/paced", want: events * len(eventData), times: 1, streams: 32, events: events})
}

// The same of a stream sent as fast as it goes: several events come with one read.
func BenchmarkBurstEvent(b *testing.B) {
	compare(b, load{path: "/burst", want: events * len(eventData), times: 10, streams: 1, events: events})
}

// What a stream costs in memory while it waits for its next event: the heap and
// the stack of the goroutine that waits, the kernel's sockets not.
func BenchmarkSilentStream(b *testing.B) {
	for _, c := range clients() {
		b.Run(c.name, func(b *testing.B) {
			const n = 2000
			for b.Loop() {
				before := inUse()
				var wg sync.WaitGroup
				ends := make([]func(), n)
				for i := range ends {
					wait, end, err := c.first("/silent")
					require.NoError(b, err)
					ends[i] = end
					wg.Go(wait)
				}
				b.ReportMetric(float64(inUse()-before)/n, "B/stream")
				for _, end := range ends {
					end()
				}
				wg.Wait()
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func inUse() int64 {
	for range 3 { // pools give up what they hold over two collections
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// The clients do what they are measured at.
func TestClients(t *testing.T) {
	for _, c := range clients() {
		for path, want := range map[string]int{"/small": len(smallBody), "/burst": events * len(eventData)} {
			n, err := c.ask(path)
			require.NoError(t, err, c.name)
			require.Equal(t, want, n, c.name)
		}
	}
}
