package simserver

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a replica for the length of a test.
func start(t *testing.T, o Options) *Server {
	s, err := Start(o)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// client is one that keeps no connection behind its back.
func client(t *testing.T) *http.Client {
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}

// send makes a request and gives the answer's status, headers and whole body.
func send(t *testing.T, s *Server, method, path, body string) (*http.Response, string) {
	return sendWith(t, client(t), s, method, path, body)
}

func sendWith(t *testing.T, c *http.Client, s *Server, method, path, body string) (*http.Response, string) {
	resp, err := open(c, s, method, path, body)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(b)
}

func open(c *http.Client, s *Server, method, path, body string) (*http.Response, error) {
	req, err := http.NewRequest(method, s.URL()+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	return c.Do(req)
}

// raw is a connection on which a request has been written.
func raw(t *testing.T, s *Server, path, body string) net.Conn {
	c, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "+itoa(len(body))+"\r\n\r\n"+body)
	require.NoError(t, err)
	return c
}

func itoa(n int) string { return strconv.Itoa(n) }

// until waits for something that other goroutines bring about.
func until(t *testing.T, what string, ok func() bool) {
	require.Eventually(t, ok, 20*time.Second, time.Millisecond, what)
}
