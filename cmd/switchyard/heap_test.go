package main

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// A small heap grows to smallHeap before each collection, the later ones too;
// where GOGC is set, as it says.
func TestSmallHeapIsLeftAlone(t *testing.T) {
	bin := binary(t)
	for _, gogc := range []string{"", "100"} {
		t.Run("GOGC="+gogc, func(t *testing.T) {
			t.Setenv("GOGC", gogc)
			c := startChild(t, bin, patientReplicas(t), "a")
			number := func(name string) float64 {
				m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(string(c.do("GET", "/metrics").body))
				require.NotNil(t, m, name)
				n, err := strconv.ParseFloat(m[1], 64)
				require.NoError(t, err)
				return n
			}
			began := number("go_gc_duration_seconds_count")
			eventually(t, "some collections", func() bool { return number("go_gc_duration_seconds_count") >= began+2 })
			next := number("go_memstats_next_gc_bytes")
			if gogc == "" {
				require.GreaterOrEqual(t, next, 0.9*smallHeap)
				require.Less(t, next, 1.5*smallHeap)
			} else {
				require.Less(t, next, 0.9*smallHeap)
			}
		})
	}
}
