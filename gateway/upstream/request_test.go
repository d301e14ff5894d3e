package upstream

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func clientFor(t testing.TB, base string) *Client {
	u, err := url.Parse(base)
	require.NoError(t, err)
	return New(Options{Base: u})
}

// reread writes r and reads it as a server would.
func reread(t testing.TB, c *Client, r *Request) (*http.Request, string) {
	t.Helper()
	require.NoError(t, r.check())
	b := append(r.appendHead(nil, c), r.Body...)
	rd := bufio.NewReader(bytes.NewReader(b))
	got, err := http.ReadRequest(rd)
	require.NoError(t, err, "%q", b)
	body, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	_, err = rd.ReadByte()
	require.ErrorIs(t, err, io.EOF, "more than one request: %q", b)
	return got, string(body)
}

func TestRequestBytes(t *testing.T) {
	c := clientFor(t, "http://gpu0.internal:8080")
	r := post("{}")
	r.Header = http.Header{"Content-Type": {"application/json"}}
	require.Equal(t, "POST /v1/chat/completions HTTP/1.1\r\nHost: gpu0.internal:8080\r\n"+
		"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n", string(r.appendHead(nil, c)))
	require.Equal(t, "GET /health HTTP/1.1\r\nHost: gpu0.internal:8080\r\n\r\n", string(get("/health").appendHead(nil, c)))
}

// PAINS 34, 35: Host is the replica's own, hop-by-hop headers never pass, and
// the length is that of the body sent.
func TestRequestHeaders(t *testing.T) {
	c := clientFor(t, "http://h:1/prefix%20a/")
	r := post("hello")
	r.Target = "/v1/x?q=%20"
	r.Header = http.Header{
		"Host": {"evil"}, "Content-Length": {"99"}, "Transfer-Encoding": {"chunked"}, "Connection": {"close, X-Hop", "x-two"},
		"Keep-Alive": {"timeout=9"}, "Proxy-Authorization": {"x"}, "Proxy-Anything": {"x"}, "Te": {"trailers"}, "Trailer": {"X"},
		"Upgrade": {"h2c"}, "X-Hop": {"1"}, "X-Two": {"2"}, "Expect": {"100-continue"}, "transfer-encoding": {"chunked"},
		"X-Many": {"1", "2"}, "Authorization": {"Bearer client"}, "Cookie": {"c"}, "Bad Name": {"x"}, "": {"x"}, "A:b": {"x"},
		"X-Inject": {"a\r\nEvil: 1\r\n\r\nGET / HTTP/1.1\r\n", "tab\tstays\x00"},
	}
	r.Extra = []string{"authorization", "Bearer replica", "Cookie", "", "X-New", "n", "Host", "evil", "Connection", "close", "X-New", "m"}
	got, body := reread(t, c, r)
	require.Equal(t, "hello", body)
	require.Equal(t, "h:1", got.Host)
	require.Equal(t, "/prefix%20a/v1/x?q=%20", got.RequestURI)
	require.Equal(t, http.Header{
		"X-Many": {"1", "2"}, "Authorization": {"Bearer replica"}, "X-New": {"n", "m"}, "Content-Length": {"5"},
		"X-Inject": {"a  Evil: 1    GET / HTTP/1.1", "tab\tstays"},
	}, got.Header)
}

func TestRequestLengthOfNothing(t *testing.T) {
	c := clientFor(t, "http://h")
	for method, want := range map[string]string{"POST": "0", "PUT": "0", "PATCH": "0", "GET": "", "HEAD": "", "DELETE": ""} {
		got, _ := reread(t, c, &Request{Method: method, Target: "/"})
		require.Equal(t, want, got.Header.Get("Content-Length"), method)
	}
	got, body := reread(t, c, &Request{Method: "DELETE", Target: "/api/delete", Body: []byte("{}")})
	require.Equal(t, "2", got.Header.Get("Content-Length"))
	require.Equal(t, "{}", body)
}

func TestRequestIsRefused(t *testing.T) {
	c := clientFor(t, "http://h")
	for name, r := range map[string]*Request{
		"method with a space": {Method: "GET /x HTTP/1.1\r\n", Target: "/"},
		"no method":           {Target: "/"},
		"relative target":     {Method: "GET", Target: "x"},
		"no target":           {Method: "GET"},
		"absolute target":     {Method: "GET", Target: "http://x/"},
		"space in the target": {Method: "GET", Target: "/a b"},
		"line end in it":      {Method: "GET", Target: "/a\r\nX: y"},
		"odd extra":           {Method: "GET", Target: "/", Extra: []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.Start(context.Background(), r, in(patience))
			require.Equal(t, NothingSent, phaseOf(t, err))
			require.ErrorContains(t, err, "making a request for h:80")
		})
	}
}

func TestAddresses(t *testing.T) {
	for base, want := range map[string][3]string{
		"http://h":              {"h", "h:80", ""},
		"https://h/":            {"h", "h:443", ""},
		"http://[::1]:11434/v1": {"[::1]:11434", "[::1]:11434", "/v1"},
		"http://[fe80::1%25lo]": {"[fe80::1]", "[fe80::1%lo]:80", ""},
		"http://10.0.0.1:8080":  {"10.0.0.1:8080", "10.0.0.1:8080", ""},
	} {
		c := clientFor(t, base)
		require.Equal(t, want, [3]string{c.host, c.addr, c.prefix}, base)
	}
}

// Whatever names and values there are, what is written is one request with the
// body it was given.
func FuzzRequest(f *testing.F) {
	f.Add("POST", "/v1/x", "Content-Type", "application/json", "X-A", "b", []byte("{}"))
	f.Add("GET", "/?a\r\nb", "A\r\nB", "c\r\n\r\n", "Transfer-Encoding", "chunked", []byte(""))
	f.Add("PUT", "/", "content-length", "7", "connection", "close", []byte("x"))
	f.Fuzz(func(t *testing.T, method, target, name, value, name2, value2 string, body []byte) {
		c := clientFor(t, "http://h:1")
		r := &Request{Method: method, Target: target, Header: http.Header{name: {value, value}}, Extra: []string{name2, value2}, Body: body}
		if r.check() != nil || strings.ContainsAny(target, "%#[]") || method == "CONNECT" || method == "PRI" {
			return // net/url is more particular about those
		}
		got, sent := reread(t, c, r)
		require.Equal(t, string(body), sent)
		require.Equal(t, "h:1", got.Host)
		require.Empty(t, got.TransferEncoding)
		require.LessOrEqual(t, len(got.Header), 3)
	})
}
