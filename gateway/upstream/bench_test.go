package upstream

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The parts of a request that are not system calls, and the one that is.

func BenchmarkRequestHead(b *testing.B) {
	c := clientFor(b, "http://127.0.0.1:8080")
	r := post("{}")
	r.Header = http.Header{
		"Content-Type": {"application/json"}, "Accept": {"text/event-stream"}, "User-Agent": {"OpenAI/Python 2.0.0"},
		"X-Request-Id": {"3f1c6f2e-8d1a-4a66-9b55-0c8f2f3c9f11"}, "X-Stainless-Lang": {"python"}, "Authorization": {"Bearer x"},
	}
	r.Extra = []string{"Authorization", "", "Via", "1.1 switchyard"}
	buf := make([]byte, 0, bufSize)
	b.ReportAllocs()
	for b.Loop() {
		buf = r.appendHead(buf[:0], c)
	}
}

func BenchmarkAnswerHead(b *testing.B) {
	text := []byte("HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nKeep-Alive: timeout=5, max=100\r\nAccess-Control-Allow-Origin: *\r\n" +
		"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
	b.ReportAllocs()
	for b.Loop() {
		var s headScan
		var h head
		n, err := s.end(text)
		if err == nil {
			err = h.parse(text[:n], s.n, "POST")
		}
		require.NoError(b, err)
	}
}

func BenchmarkChunks(b *testing.B) {
	one := "a3\r\n" + strings.Repeat("x", 0xa3) + "\r\n"
	for name, text := range map[string]string{"one": one, "ten": strings.Repeat(one, 10)} {
		b.Run(name, func(b *testing.B) {
			in, buf := []byte(text), make([]byte, len(text))
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				copy(buf, in)
				var d chunked
				if _, n, err := d.decode(buf); n != len(buf) || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}

// BenchmarkQuiet is the look at an unused connection before it is used again.
func BenchmarkQuiet(b *testing.B) {
	c := newServer(b, answers(okAnswer)).client(b, Options{IdleTimeout: time.Hour})
	whole(b, c, post("{}"))
	conn := c.pool.pop()
	b.ReportAllocs()
	for b.Loop() {
		if !conn.quiet() {
			b.Fatal("the connection has something to say")
		}
	}
	conn.close()
}

func BenchmarkExchange(b *testing.B) {
	c := newServer(b, answers(okAnswer)).client(b, Options{})
	r := post("{}")
	b.ReportAllocs()
	for b.Loop() {
		e, err := c.Start(context.Background(), r, time.Time{})
		if err == nil {
			_, err = e.Head(time.Time{})
		}
		if err == nil {
			_, err = readAll(e)
		}
		require.NoError(b, err)
		e.Close()
	}
}
