package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// smallHeap is what the heap may grow to, in bytes, before it is collected,
// however little of it is in use. Collections get cheaper with more, but memory
// is then walked through that no cache holds: at 32 MiB that cost more than it
// saved.
const smallHeap = 12 << 20

// largeHeap is, in bytes in use, what only thousands of connections come to.
// From there on memory is dearer than collections, which are rare.
const largeHeap = 32 << 20

// leaveGarbage has the heap collected at smallHeap, or at twice what is in use,
// whichever is more, and from largeHeap on at one and a half times. Go's own
// rule begins at 4 MiB: a gateway has little to keep, and under load would
// collect it dozens of times a second, for a sixth of its CPU time. GOGC, where
// it is set, has its say instead.
func leaveGarbage() {
	if os.Getenv("GOGC") == "" {
		pace(100)
	}
}

// pace sets GOGC, now percent, by what the last collection left, and anew after
// each further one. It ends with the process.
func pace(percent int) {
	base := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	metrics.Read(base)
	live := base[0].Value.Uint64()
	scanned := live + base[1].Value.Uint64() + base[2].Value.Uint64()
	// GOGC is a share of scanned, but of no less than 4 MiB: so 300 is enough.
	fit := 100
	switch {
	case live < smallHeap/2:
		fit = max(fit, int(min(100*(smallHeap-live)/max(scanned, 1), 300)))
	case live >= largeHeap:
		fit = 50
	}
	if fit != percent {
		debug.SetGCPercent(fit)
	}
	runtime.AddCleanup(new([64]byte), pace, fit) // unreachable, so run after the next collection
}
