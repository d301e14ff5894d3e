package gpu

import (
	"net"
	"net/url"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// The real /proc knows this process's own listener.
func TestR16TheProcessBehindAPort(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no /proc on " + runtime.GOOS)
	}
	h := host{proc: "/proc"}
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("no %s here: %v", address, err)
			continue
		}
		defer l.Close()
		port := uint16(l.Addr().(*net.TCPAddr).Port)
		pids, err := h.listeners(port)
		require.NoError(t, err)
		require.Contains(t, pids, os.Getpid())
		require.True(t, h.alive(os.Getpid()))
	}
	require.True(t, h.under(os.Getpid(), []int{os.Getppid()}))
	require.False(t, h.under(os.Getppid(), []int{os.Getpid()}))
	require.NotEqual(t, "?", h.name(os.Getpid()))
}

func TestR16ProcessesThatAreNotSeen(t *testing.T) {
	r := newRig(t, 0)
	h := r.reader.proc
	_, err := h.listeners(80)
	require.ErrorContains(t, err, "nothing on this host is seen to listen on port 80")
	r.process(70, 1, "x", 8080)
	_, err = h.listeners(80)
	require.ErrorContains(t, err, "nothing on this host is seen to listen on port 80")
	pids, err := h.listeners(8080)
	require.NoError(t, err)
	require.Equal(t, []int{70}, pids)
	r.kill(70)
	_, err = h.listeners(8080)
	require.ErrorContains(t, err, "is not seen from here (another container?)")
	r.process(5, 6, "five", 0)
	r.process(6, 5, "six", 0)
	require.False(t, h.under(5, []int{7}), "a circle ends")
	require.False(t, h.under(99, []int{7}))
}

func TestR16WhichAddressesAreHere(t *testing.T) {
	h := host{proc: "/proc"}
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addrs {
		if ip := a.(*net.IPNet).IP; ip.To4() != nil {
			here, why := h.here(t.Context(), &url.URL{Scheme: "http", Host: ip.String() + ":1"})
			require.True(t, here, why)
		}
	}
	here, why := h.here(t.Context(), &url.URL{Scheme: "http", Host: "192.0.2.7"})
	require.False(t, here)
	require.Contains(t, why, "192.0.2.7 is not this host, or not seen to be it from here: name its GPU")
	for address, want := range map[string]uint16{"http://x": 80, "https://x": 443, "http://x:8080/v1": 8080} {
		u, err := url.Parse(address)
		require.NoError(t, err)
		got, err := port(u)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}
