package main

import (
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/config"
)

// TestR15ASilentConnectionHoldsNothingUp: a balancer's connection that has sent
// nothing, on either listener, is no request that a stop would wait for.
func TestR15ASilentConnectionHoldsNothingUp(t *testing.T) {
	cfg, err := config.Default().With(config.Flags{
		Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", Replicas: []string{"http://127.0.0.1:1,engine=openai"},
	})
	require.NoError(t, err)
	a, err := newApp(cfg, slog.New(slog.NewTextHandler(io.Discard, nil)), nil)
	require.NoError(t, err)
	require.NoError(t, a.start())
	for _, addr := range []string{a.dataAddr, a.opsAddr} {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer c.Close()
	}
	began := time.Now()
	require.NoError(t, a.stop())
	require.Less(t, time.Since(began), 4*time.Second, "net/http alone waits five for such connections")
}
