package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/breaker"
	"switchyard/replica"
)

// The benchmarks of the way compare the gateway with the standard library's
// ReverseProxy, tuned as far as it can be, in the same process and with the same
// client and replica: what they have in common is in both figures, so the true
// ratio of the two is larger than the ratio of the figures.

// stub is a replica that answers each request at once with the same bytes.
func stub(b *testing.B, answer string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serveStub(c, answer)
		}
	}()
	return "http://" + l.Addr().String()
}

func serveStub(c net.Conn, answer string) {
	defer c.Close()
	br := bufio.NewReaderSize(c, 64<<10)
	for {
		length := 0
		for {
			line, err := br.ReadSlice('\n')
			if err != nil {
				return
			}
			if len(line) <= 2 {
				break
			}
			if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
				length, _ = strconv.Atoi(string(bytes.TrimSpace(v)))
			}
		}
		if _, err := br.Discard(length); err != nil {
			return
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
	}
}

func gatewayTo(b testing.TB, to string) http.Handler { return gatewayOf(b, to, 4096) }

func gatewayOf(b testing.TB, to string, slots int) *Gateway {
	u, err := url.Parse(to)
	require.NoError(b, err)
	ctl := admission.New(admission.Config{
		Classes: []admission.Class{{Name: "standard", Deadline: time.Minute}}, DefaultClass: "standard", Enabled: true,
		Queue:    admission.QueueLimits{MaxRequests: 1000, MaxBytes: 1 << 30},
		Replicas: []replica.Config{{Name: "a", URL: to, Engine: replica.EngineOpenAI, Slots: map[string]int{"*": slots}}},
		Retry:    admission.Retry{MaxAttempts: 3, Budget: 0.2, FirstTokenFloor: 15 * time.Second, FirstTokenFactor: 4, LoadTimeout: time.Minute},
		Breaker:  breaker.Config{ConsecutiveFailures: 3, FailureShare: 0.5, Window: 20, Cooldown: 5 * time.Second, MaxCooldown: time.Minute, TrialStart: 0.05, TrialFactor: 1.6},
	}, time.Now())
	g := New(Settings{
		Classes: []Class{{"standard", time.Minute}}, Replicas: []Replica{{Name: "a", URL: u}},
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}, ctl, deaf{})
	g.Observe(time.Now(), "a", replica.Facts{Up: true, Engine: replica.EngineOpenAI, AnyModel: true, ModelsRead: true, InHand: -1, Waiting: -1, Progress: -1})
	b.Cleanup(func() { g.replicaClient("a").Close() })
	return g
}

type bufferPool struct{ free chan []byte }

func (p bufferPool) Get() []byte {
	select {
	case b := <-p.free:
		return b
	default:
		return make([]byte, 32<<10)
	}
}

func (p bufferPool) Put(b []byte) {
	select {
	case p.free <- b:
	default:
	}
}

func reverseProxyTo(b testing.TB, to string) http.Handler {
	u, err := url.Parse(to)
	require.NoError(b, err)
	transport := &http.Transport{MaxIdleConns: 1 << 14, MaxIdleConnsPerHost: 1 << 14, DisableCompression: true}
	b.Cleanup(transport.CloseIdleConnections)
	return &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(u) },
		Transport:     transport,
		FlushInterval: -1,
		BufferPool:    bufferPool{make(chan []byte, 64)},
	}
}

// drive sends the request over one connection, again and again, and reads each
// answer up to its end.
func drive(b *testing.B, h http.Handler, ask, end string) {
	c := serve(b, h)
	buf := make([]byte, 256<<10)
	b.ReportAllocs()
	before := processTime(b)
	defer func() { b.ReportMetric(float64(processTime(b)-before)/float64(b.N), "cpu-ns/op") }()
	for b.Loop() {
		if _, err := io.WriteString(c, ask); err != nil {
			b.Fatal(err)
		}
		for n := 0; ; {
			m, err := c.Read(buf[n:])
			if err != nil {
				b.Fatal(err, string(buf[:n]))
			}
			if n += m; bytes.HasSuffix(buf[:n], []byte(end)) {
				break
			}
			if n > len(buf)/2 {
				n = copy(buf, buf[n-1024:n])
			}
		}
	}
}

// serve puts a handler on a socket and connects a client to it.
func serve(b *testing.B, h http.Handler) net.Conn {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	server := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	if g, ok := h.(*Gateway); ok { // as deployed
		server = NewServer(Settings{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}, g)
		go g.Serve(server, l)
	} else {
		go server.Serve(l)
	}
	b.Cleanup(func() { server.Close() })
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(b, err)
	b.Cleanup(func() { c.Close() })
	return c
}

// processTime is the CPU time of this process so far: on a machine that others
// use, too, it says more than the clock.
func processTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func beside(b *testing.B, answer, ask, end string) {
	b.Run("gateway", func(b *testing.B) { drive(b, gatewayTo(b, stub(b, answer)), ask, end) })
	b.Run("reverseproxy", func(b *testing.B) { drive(b, reverseProxyTo(b, stub(b, answer)), ask, end) })
}

func chatOf(size int, stream bool) string {
	body := fmt.Sprintf(`{"model":"m","stream":%v,"messages":[{"role":"user","content":"%s"}]}`, stream, strings.Repeat("x", max(0, size-70)))
	return request("/v1/chat/completions", body, "User-Agent: bench/1", "Accept: */*")
}

// A request and an answer of 1 KiB, and a request of 256 KiB.
func BenchmarkWholeAnswer(b *testing.B) {
	f := faces[0]
	body := strings.Replace(f.whole, " fixed", strings.Repeat(" fixed", 100), 1)
	answer := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	for name, size := range map[string]int{"1KiB": 1 << 10, "256KiB": 256 << 10} {
		b.Run(name, func(b *testing.B) { beside(b, answer, chatOf(size, false), body[len(body)-16:]) })
	}
}

// A stream of 200 events that all come at once.
func BenchmarkUnpacedStream(b *testing.B) {
	f := faces[0]
	end := "0\r\n\r\n"
	answer := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" +
		strings.Repeat(chunkOf(f.content[0]), 200) + chunkOf("data: [DONE]\n\n") + end
	beside(b, answer, chatOf(1<<10, true), end)
}

func chunkOf(event string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(event), event) }

// An event of a stream, each sent when the client has the one before.
func BenchmarkPacedEvent(b *testing.B) {
	b.Run("gateway", func(b *testing.B) { pace(b, gatewayTo) })
	b.Run("reverseproxy", func(b *testing.B) { pace(b, reverseProxyTo) })
}

func pace(b *testing.B, to func(testing.TB, string) http.Handler) {
	chunk := chunkOf(faces[0].content[0])
	next := make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	b.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		http.ReadRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		for range next {
			io.WriteString(c, chunk)
		}
	}()
	c := serve(b, to(b, "http://"+l.Addr().String()))
	io.WriteString(c, chatOf(1<<10, true))
	buf := make([]byte, 64<<10)
	await := func() {
		for n := 0; !bytes.HasSuffix(buf[:n], []byte("\n\n\r\n")); {
			m, err := c.Read(buf[n:])
			if err != nil {
				b.Fatal(err)
			}
			n += m
		}
	}
	next <- struct{}{}
	await()
	b.ReportAllocs()
	before := processTime(b)
	for b.Loop() {
		next <- struct{}{}
		await()
	}
	b.ReportMetric(float64(processTime(b)-before)/float64(b.N), "cpu-ns/op")
	close(next)
}
