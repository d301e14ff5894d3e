package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lot is a rig with one replica of one slot, taken until release is closed:
// whoever comes is parked.
type lot struct {
	*rig
	face    face
	troupe  *troupe
	first   net.Conn
	release chan struct{}
}

func newLot(t *testing.T, f face, changes ...func(*rigging)) *lot {
	release := make(chan struct{})
	tr := newTroupe(t, func(k *call) {
		<-release
		if strings.Contains(k.body, `"stream":true`) {
			k.streamHead(f.media)
			k.chunk(f.events())
			k.end()
			return
		}
		k.whole(200, jsonMedia, f.whole)
	})
	r := newRig(t, tr, append(changes, func(o *rigging) { o.engine, o.slots, o.replicas = f.engine, 1, 1 })...)
	l := &lot{rig: r, face: f, troupe: tr, release: release}
	l.first = r.connect(f.path, f.body(false), "Connection: close")
	require.True(t, soon(func() bool { return len(tr.calls()) == 1 }))
	return l
}

// queue sends a request as it is and waits until n are parked.
func (l *lot) queue(raw string, n int) net.Conn {
	c, err := net.Dial("tcp", l.addr)
	require.NoError(l.t, err)
	l.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patienceInTests))
	_, err = io.WriteString(c, raw)
	require.NoError(l.t, err)
	require.True(l.t, soon(func() bool { return l.totals().Queued == int64(n) && l.gw.waiting.Load() == 0 }))
	return c
}

// shape is what a client can tell of an answer, times and ids aside, and how its
// length is told: a stream that ends at once may be sent as a whole.
func shape(t *testing.T, resp *http.Response) string {
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	resp.Header.Del("Content-Length")
	for _, h := range []string{"Date", "X-Request-Id", "X-Switchyard-Queue-Ms"} {
		require.NotEmpty(t, resp.Header[h], h)
		resp.Header.Del(h)
	}
	return fmt.Sprint(resp.Proto, resp.Status, resp.Header, resp.Close, string(body))
}

// What was parked is answered like what was not, in every format, and its
// connection goes on.
func TestTheParkedAreAnsweredLikeOthers(t *testing.T) {
	for _, f := range faces {
		for _, stream := range []bool{false, true} {
			for _, header := range []string{"X-Any: 1", "Connection: close"} {
				t.Run(fmt.Sprintf("%s/%t/%s", f.name, stream, header), func(t *testing.T) {
					t.Parallel()
					l := newLot(t, f)
					raw := request(f.path, f.body(stream), header)
					c := l.queue(raw, 1)
					close(l.release)
					from := bufio.NewReader(c)
					got, err := http.ReadResponse(from, &http.Request{Method: "POST"})
					require.NoError(t, err)
					parked := shape(t, got)
					if header != "Connection: close" { // the next one finds a free slot
						require.True(t, soon(func() bool { return l.totals().Running == 0 }))
						_, err = io.WriteString(c, raw)
						require.NoError(t, err)
					} else {
						rest, err := io.ReadAll(from)
						require.NoError(t, err)
						require.Empty(t, rest)
						require.True(t, soon(func() bool { return l.totals().Running == 0 }))
						from = bufio.NewReader(l.connect(f.path, f.body(stream), header))
					}
					got, err = http.ReadResponse(from, &http.Request{Method: "POST"})
					require.NoError(t, err)
					require.Equal(t, shape(t, got), parked)
				})
			}
		}
	}
}

// The server answers in the client's version of HTTP.
func TestAParkedHTTP10Client(t *testing.T) {
	f := faces[0]
	for _, keep := range []bool{false, true} {
		l := newLot(t, f)
		raw := strings.Replace(request(f.path, f.body(false)), "HTTP/1.1", "HTTP/1.0", 1)
		if keep {
			raw = strings.Replace(raw, "\r\n\r\n", "\r\nConnection: keep-alive\r\n\r\n", 1)
		}
		c := l.queue(raw, 1)
		close(l.release)
		from := bufio.NewReader(c)
		for range 2 {
			got, err := http.ReadResponse(from, &http.Request{Method: "POST"})
			require.NoError(t, err)
			require.Equal(t, !keep, got.Close)
			require.Empty(t, got.TransferEncoding)
			body, err := io.ReadAll(got.Body)
			require.NoError(t, err)
			require.Equal(t, f.whole, string(body))
			if !keep {
				break
			}
			_, err = io.WriteString(c, raw)
			require.NoError(t, err)
		}
	}
}

// A client that sends its next requests without waiting has all of them
// answered, in order, whether they came before it was parked or after.
func TestAParkedClientThatPipelines(t *testing.T) {
	f := faces[0]
	for _, late := range []bool{false, true} {
		l := newLot(t, f)
		one, two := request(f.path, f.body(false)), request(f.path, f.body(true))
		var c net.Conn
		if late {
			c = l.queue(one, 1)
			io.WriteString(c, two+one)
		} else {
			// What follows a request at once is noticed as it is parked, and
			// the next wait of it is not.
			c = l.connect(f.path, f.body(false))
			io.WriteString(c, two+one)
		}
		require.True(t, soon(func() bool { return l.totals().Queued == 1 }))
		close(l.release)
		from := bufio.NewReader(c)
		for i, want := range []string{f.whole, f.events(), f.whole} {
			got, err := http.ReadResponse(from, &http.Request{Method: "POST"})
			require.NoError(t, err, i)
			body, err := io.ReadAll(got.Body)
			require.NoError(t, err, i)
			require.Equal(t, want, string(body), i)
		}
		l.rig.settle()
		require.EqualValues(t, 4, l.totals().Completed)
	}
}

// R10: who leaves while parked is gone at once, and costs nothing.
func TestParkedClientsLeaveR10(t *testing.T) {
	l := newLot(t, faces[0])
	var all []net.Conn
	for i := range 20 {
		all = append(all, l.queue(request(l.face.path, l.face.body(i%2 == 0)), i+1))
	}
	for i, c := range all {
		if i%3 == 0 {
			c.(*net.TCPConn).SetLinger(0) // a reset
		}
		c.Close()
	}
	require.True(t, soon(func() bool { return l.totals().Cancelled == 20 }), "%+v", l.totals())
	require.Len(t, l.troupe.calls(), 1)
	close(l.release)
	l.rig.settle()
	require.EqualValues(t, 1, l.totals().Completed)
}

// R10 where the grant and the departure meet: every request ends once, and no
// slot is lost.
func TestParkedClientsLeaveAsTheyAreServedR10(t *testing.T) {
	l := newLot(t, faces[0])
	var all []net.Conn
	for i := range 60 {
		all = append(all, l.queue(request(l.face.path, l.face.body(true)), i+1))
	}
	close(l.release)
	for _, c := range all {
		c.Close()
	}
	l.rig.settle()
	n := l.totals()
	require.EqualValues(t, 61, n.Completed+n.Cancelled, "%+v", n)
}

// What a request of 1 KiB takes while it waits, in bytes of Go's heap and
// stacks, without the client's side: where it is parked and where it is not.
func BenchmarkQueuedRequest(b *testing.B) {
	for name, behind := range map[string]int64{"parked": 0, "not": 1 << 30} {
		b.Run(name, func(b *testing.B) {
			silent, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(b, err)
			defer silent.Close()
			g := gatewayOf(b, "http://"+silent.Addr().String(), 1)
			g.parkBehind = behind
			first := serve(b, g)
			_, err = io.WriteString(first, chatOf(1<<10, false))
			require.NoError(b, err)
			require.True(b, soon(func() bool { return g.controller.Snapshot(time.Now()).Totals.Running == 1 }))
			for b.Loop() {
				const n = 400
				addr := first.RemoteAddr().String()
				before := inUse()
				var all [n]net.Conn
				for i := range all {
					c, err := net.Dial("tcp", addr)
					require.NoError(b, err)
					_, err = io.WriteString(c, chatOf(1<<10, false))
					require.NoError(b, err)
					all[i] = c
				}
				waiting := func() bool { return g.controller.Snapshot(time.Now()).Totals.Queued == n }
				require.True(b, soon(func() bool { return waiting() && (behind > 0 || g.waiting.Load() == 0) }))
				b.ReportMetric(float64(inUse()-before)/n, "B/request")
				for _, c := range all {
					c.Close()
				}
				require.True(b, soon(func() bool { return g.controller.Snapshot(time.Now()).Totals.Queued == 0 }))
			}
		})
	}
}

// inUse is what Go's heap and stacks hold.
func inUse() int64 {
	runtime.GC()
	runtime.GC() // what the first made ready to be freed, and pools' contents
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
