package engines

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// post sends one request on a connection of its own and gives the connection.
func post(t *testing.T, url, id string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = io.WriteString(c, "POST /api/chat HTTP/1.1\r\nHost: x\r\nX-Request-Id: "+id+"\r\nContent-Length: 2\r\n\r\n{}")
	require.NoError(t, err)
	return c.(*net.TCPConn)
}

func TestTapCountsUntilTheServerIsThrough(t *testing.T) {
	arrived, finish := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "one")
		_ = http.NewResponseController(w).Flush()
		arrived <- struct{}{}
		<-finish
		_, _ = io.WriteString(w, "two")
	}))
	defer server.Close()
	tap, err := NewTap(server.Listener.Addr().String())
	require.NoError(t, err)
	defer tap.Close()

	a, b := post(t, tap.URL(), "a"), post(t, tap.URL(), "b")
	<-arrived
	<-arrived
	now, most := tap.InHand()
	require.Equal(t, []int{2, 2}, []int{now, most})

	// A client that closes its side is noticed, and is still in hand.
	require.NoError(t, a.CloseWrite())
	require.NoError(t, Poll(t.Context(), time.Millisecond, func() (bool, error) {
		e, _ := tap.Find("a")
		return !e.Left.IsZero(), nil
	}))
	now, _ = tap.InHand()
	require.Equal(t, 2, now)

	close(finish)
	resp, err := http.ReadResponse(bufio.NewReader(b), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "onetwo", string(body))
	_, err = io.Copy(io.Discard, a)
	require.NoError(t, err)
	now, most = tap.InHand()
	require.Equal(t, []int{0, 2}, []int{now, most}, "whoever has the end knows it counted")
	e, ok := tap.Find("b")
	require.True(t, ok)
	require.Equal(t, []any{"/api/chat", 200, "onetwo", true}, []any{e.Path, e.Status, string(e.Body), e.Whole})
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

func TestTapPassesAResetAndARefusalOn(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	tap, err := NewTap(ln.Addr().String())
	require.NoError(t, err)
	defer tap.Close()

	c := post(t, tap.URL(), "a")
	s, err := ln.Accept()
	require.NoError(t, err)
	// It has come whole before the reset: a reset that overtakes the request is
	// another case, in which the tap never sees one.
	_, err = http.ReadRequest(bufio.NewReader(s))
	require.NoError(t, err)
	require.NoError(t, s.(*net.TCPConn).SetLinger(0))
	require.NoError(t, s.Close())
	_, err = c.Read(make([]byte, 1))
	require.ErrorContains(t, err, "reset")
	require.NoError(t, c.Close())
	require.NoError(t, Poll(t.Context(), time.Millisecond, func() (bool, error) {
		now, _ := tap.InHand()
		e, ok := tap.Find("a")
		return ok && now == 0 && !e.Whole, nil
	}))

	require.NoError(t, ln.Close())
	refused, err := net.Dial("tcp", strings.TrimPrefix(tap.URL(), "http://"))
	if err == nil { // else the reset came even sooner
		_, err = refused.Read(make([]byte, 1))
		_ = refused.Close()
	}
	require.ErrorContains(t, err, "reset")
}
