package bench

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// processTime is the CPU time of this process so far.
func processTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkVirtualFleet is what a request costs in a virtual run, from its
// arrival to its record, engines and gateway included, with fleets that are nine
// tenths busy and with ones of which more is asked than they can do.
func BenchmarkVirtualFleet(b *testing.B) {
	const perReplica = 2.3 // requests a second
	for _, load := range []float64{0.9, 1.2} {
		for _, n := range []int{10, 30, 100, 300, 1000} {
			b.Run(fmt.Sprintf("load=%g/replicas=%d", load, n), func(b *testing.B) {
				s, err := Parse("fleet.yaml", fmt.Appendf(nil, `
replicas: [{name: r, count: %d, engine: vllm, model: m, slots: 4, prefill: 4000, decode: 60, output_tokens: "lognormal:60,0.6"}]
classes: [{name: standard, deadline: 5s}]
gateway: {queue: {max_requests: 100000}}
traffic: [{kind: poisson, rate: %g, requests: %d, prompt_tokens: "lognormal:300,0.6", max_tokens: 256}]
`, n, perReplica*load/0.9*float64(n), b.N))
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.ResetTimer()
				before := processTime(b)
				trial, err := RunVirtual(b.Context(), s, Target{Name: "switchyard", Kind: Gateway}, 1, VirtualOptions{Wire: wire})
				if err != nil || len(trial.Violations) > 0 {
					b.Fatal(err, trial.Violations)
				}
				b.ReportMetric(float64(processTime(b)-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}
