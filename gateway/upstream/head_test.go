package upstream

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// parseText scans and parses one head.
func parseText(text, method string) (head, error) {
	var s headScan
	n, err := s.end([]byte(text))
	if err != nil {
		return head{}, err
	}
	if n == 0 {
		return head{}, fmt.Errorf("unfinished")
	}
	var h head
	err = h.parse([]byte(text[:n]), s.n, method)
	return h, err
}

func TestHeadIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, err string }{
		"not HTTP":               {"SSH-2.0-OpenSSH_9.2\r\n", `begins with "SSH-2.0-OpenSSH_`},
		"HTTP/2":                 {"HTTP/2.0 200 OK\r\n\r\n", "begins with"},
		"lower-case protocol":    {"http/1.1 200 OK\r\n\r\n", "begins with"},
		"version 1.2":            {"HTTP/1.2 200 OK\r\n\r\n", "status line"},
		"no status":              {"HTTP/1.1 \r\n\r\n", "status line"},
		"status of two digits":   {"HTTP/1.1 20 OK\r\n\r\n", "status line"},
		"status of four digits":  {"HTTP/1.1 2000 OK\r\n\r\n", "status line"},
		"status 099":             {"HTTP/1.1 099 X\r\n\r\n", "status line"},
		"status 600":             {"HTTP/1.1 600 X\r\n\r\n", "status line"},
		"signed status":          {"HTTP/1.1 +20 X\r\n\r\n", "status line"},
		"control in the reason":  {"HTTP/1.1 200 a\x00b\r\n\r\n", "status line"},
		"two spaces":             {"HTTP/1.1  200 OK\r\n\r\n", "status line"},
		"bare LF":                {"HTTP/1.1 200 OK\nA: b\n\n", "without CR"},
		"bare LF later":          {"HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n", "without CR"},
		"bare CR":                {"HTTP/1.1 200 OK\r\nA: b\rC: d\r\n\r\n", "control"},
		"NUL in a value":         {"HTTP/1.1 200 OK\r\nA: b\x00\r\n\r\n", "control"},
		"folded line":            {"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "malformed header line"},
		"fold at the start":      {"HTTP/1.1 200 OK\r\n A: b\r\n\r\n", "malformed header line"},
		"space before the colon": {"HTTP/1.1 200 OK\r\nA : b\r\n\r\n", "malformed header line"},
		"no colon":               {"HTTP/1.1 200 OK\r\nABC\r\n\r\n", "malformed header line"},
		"no name":                {"HTTP/1.1 200 OK\r\n: b\r\n\r\n", "malformed header line"},
		"odd name":               {"HTTP/1.1 200 OK\r\nA(b): c\r\n\r\n", "malformed header line"},
		"length not a number":    {"HTTP/1.1 200 OK\r\nContent-Length: 1x\r\n\r\n", "not a number"},
		"signed length":          {"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n", "not a number"},
		"negative length":        {"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "not a number"},
		"empty length":           {"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", "not a number"},
		"length past int64":      {"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\n", "not a number"},
		"two lengths":            {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "two Content-Lengths"},
		"two lengths in a list":  {"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n", "two Content-Lengths"},
		"length and chunked":     {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "both"},
		"gzip coding":            {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "only chunked"},
		"identity coding":        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n", "only chunked"},
		"empty coding":           {"HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n\r\n", "only chunked"},
		"chunked twice":          {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", "only chunked"},
		"chunked in 1.0":         {"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.0"},
		"unasked upgrade":        {"HTTP/1.1 101 Switching Protocols\r\n\r\n", "no upgrade"},
		"too long":               {"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", maxHead) + "\r\n\r\n", "more than 65536 bytes"},
		"too long, no line end":  {"HTTP/1.1 200 " + strings.Repeat("b", maxHead), "more than 65536 bytes"},
		"too many lines":         {"HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", maxHeadLines) + "\r\n", "more than 512 lines"},
		"nothing but a line end": {"\r\n\r\n", "begins with"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseText(c.text, "POST")
			require.ErrorContains(t, err, c.err)
		})
	}
}

func TestHeadFraming(t *testing.T) {
	const forever = math.MaxInt64
	for name, c := range map[string]struct {
		head, method string
		framing      framing
		length       int64
		reuse        bool
		idle         time.Duration
	}{
		"length":                     {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", "POST", byLength, 5, true, forever},
		"empty":                      {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", "POST", byLength, 0, true, forever},
		"the same length twice":      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n", "POST", byLength, 5, true, forever},
		"the same length in a list":  {"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n", "POST", byLength, 5, true, forever},
		"chunked":                    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n", "POST", byChunks, -1, true, forever},
		"to the end":                 {"HTTP/1.1 200 OK\r\n", "POST", byClose, -1, false, forever},
		"no reason":                  {"HTTP/1.1 200 \r\nContent-Length: 5\r\n", "POST", byLength, 5, true, forever},
		"no space behind the status": {"HTTP/1.1 200\r\nContent-Length: 5\r\n", "POST", byLength, 5, true, forever},
		"HEAD":                       {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", "HEAD", noBody, 5, true, forever},
		"HEAD of a chunked one":      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", "HEAD", noBody, -1, true, forever},
		"204":                        {"HTTP/1.1 204 No Content\r\n", "POST", noBody, -1, true, forever},
		"304":                        {"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n", "GET", noBody, 5, true, forever},
		"close":                      {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n", "POST", byLength, 5, false, forever},
		"close among others":         {"HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 5\r\n", "POST", byLength, 5, false, forever},
		"1.0":                        {"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n", "POST", byLength, 5, false, forever},
		"1.0 kept":                   {"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 5\r\n", "POST", byLength, 5, true, forever},
		"timeout (llama.cpp)":        {"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=100\r\nContent-Length: 5\r\n", "POST", byLength, 5, true, 4 * time.Second},
		"timeout of a second":        {"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\nContent-Length: 5\r\n", "POST", byLength, 5, false, 0},
		"the last one":               {"HTTP/1.1 200 OK\r\nKeep-Alive: max=1, timeout=9\r\nContent-Length: 5\r\n", "POST", byLength, 5, false, 8 * time.Second},
		"odd keep-alive":             {"HTTP/1.1 200 OK\r\nKeep-Alive: timeout, max=, x\r\nContent-Length: 5\r\n", "POST", byLength, 5, true, forever},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := parseText(c.head+"\r\n", c.method)
			require.NoError(t, err)
			require.Equal(t, c.framing, h.framing)
			require.Equal(t, c.length, h.ContentLength)
			require.Equal(t, c.reuse, h.reuse)
			require.Equal(t, c.idle, h.idle)
		})
	}
}

func TestHeadNamesAndValues(t *testing.T) {
	h, err := parseText("HTTP/1.1 429 Too Many\r\n"+
		"content-type:application/json\r\nretry-after: \t 7 \t\r\nX-ODD-name: a\tb\r\nset-cookie: 1\r\n"+
		"Set-Cookie: 2\r\nempty:\r\nobs: caf\xe9\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", "POST")
	require.NoError(t, err)
	require.Equal(t, 429, h.Status)
	require.Equal(t, http.Header{
		"Content-Type": {"application/json"}, "Retry-After": {"7"}, "X-Odd-Name": {"a\tb"}, "Set-Cookie": {"1", "2"},
		"Empty": {""}, "Obs": {"caf\xe9"}, "Content-Length": {"3"},
	}, h.Header)
	h.Header["Content-Type"] = append(h.Header["Content-Type"], "x") // must not run into its neighbour
	require.Equal(t, []string{"7"}, h.Header["Retry-After"])
}

// PAINS 35: hop-by-hop headers never pass.
func TestHeadDropsWhatBelongsToTheConnection(t *testing.T) {
	h, err := parseText("HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\n"+
		"Proxy-Authenticate: Basic\r\nTrailer: X\r\nUpgrade: h2c\r\nTE: x\r\nTransfer-Encoding: chunked\r\nServer: llama.cpp\r\n\r\n", "POST")
	require.NoError(t, err)
	require.Equal(t, http.Header{"Server": {"llama.cpp"}}, h.Header)
}

func TestHeadManyHeaders(t *testing.T) {
	var b strings.Builder
	b.WriteString("HTTP/1.1 200 OK\r\n")
	for i := range maxHeadLines - 2 {
		fmt.Fprintf(&b, "X-%d: %d\r\n", i, i)
	}
	h, err := parseText(b.String()+"\r\n", "POST")
	require.NoError(t, err)
	require.Len(t, h.Header, maxHeadLines-2)
	require.Equal(t, "300", h.Header.Get("X-300"))
}

// The end is found at the same place, and the same is refused, however the head
// is cut into reads.
func TestHeadScanInPieces(t *testing.T) {
	text := []byte("HTTP/1.1 200 OK\r\nA: b\r\nC: d\r\n\r\nbody")
	for step := 1; step <= len(text); step++ {
		var s headScan
		for n := step; ; n = min(n+step, len(text)) {
			end, err := s.end(text[:n])
			require.NoError(t, err)
			if end > 0 {
				require.Equal(t, len(text)-4, end)
				require.Equal(t, 3, s.n)
				break
			}
			require.Less(t, n, len(text))
		}
	}
}

// What this parser takes, net/http's takes too, and they agree on everything
// that matters. (It is the stricter of the two.)
func FuzzResponse(f *testing.F) {
	for _, s := range []string{
		okAnswer, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"HTTP/1.0 200\r\n\r\nto the end", "HTTP/1.1 204 No\r\nConnection: close\r\n\r\n", "HTTP/1.1 100 C\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"b\"\r\nabc\r\n0\r\nX: y\r\n\r\n",
		"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=100\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, isHead bool) {
		method := "POST"
		if isHead {
			method = "HEAD"
		}
		var s headScan
		n, err := s.end(b)
		if n == 0 || err != nil {
			return
		}
		var h head
		if h.parse(b[:n], s.n, method) != nil || h.Status < 200 || strings.Contains(h.Header.Get("Content-Length"), ",") {
			return
		}
		if bytes.Contains(bytes.ToLower(b[:n]), []byte("content-length")) && bytes.Contains(b[:n], []byte(",")) {
			return // lists of equal lengths: theirs refuses them
		}
		body := b[n:]
		ref, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), &http.Request{Method: method})
		require.NoError(t, err)
		require.Equal(t, ref.StatusCode, h.Status)
		if h.framing == byLength {
			require.Equal(t, ref.ContentLength, h.ContentLength)
		}
		require.Equal(t, h.framing == byChunks, len(ref.TransferEncoding) == 1 && h.framing != noBody)
		for name, values := range h.Header {
			require.Equal(t, ref.Header[name], values, name)
		}
		if h.framing == byChunks {
			compareChunks(t, body)
		}
	})
}
