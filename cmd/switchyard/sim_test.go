package main

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// Nonsense is refused with what would be right, before anything listens.
func TestSimRefusesNonsense(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--slots", "0"}, "--slots 0: want at least 1"},
		{[]string{"--slots=-2"}, "slots -2: want at least 1"},
		{[]string{"--time-scale", "0"}, "--time-scale 0: want a factor above 0, as 10 for ten times faster"},
		{[]string{"--prefill", "0"}, "--prefill 0: want tokens per second above 0"},
		{[]string{"--decode", "0"}, "--decode 0: want tokens per second above 0"},
		{[]string{"--context", "0"}, "--context 0: want at least 1 token"},
		{[]string{"--output-tokens", "many"}, "want fixed:N or lognormal:MEDIAN,SIGMA"},
		{[]string{"--sleep-idle=-1s"}, "want a duration of at least 0s"},
	} {
		got := command(t, append([]string{"sim"}, c.args...)...)
		require.Equal(t, exitUsage, got.code, "%v: %s", c.args, got.err)
		require.Contains(t, got.err, c.says)
		require.Empty(t, got.out)
	}
}

// A port that is taken is named; a replica without a name is not.
func TestSimOnATakenPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	got := command(t, "sim", "--listen", l.Addr().String())
	require.Equal(t, exitFail, got.code)
	require.Contains(t, got.err, "starting the simulation: simulated replica: ")
	require.Contains(t, got.err, l.Addr().String()+": ")
	require.Empty(t, got.out)
}
