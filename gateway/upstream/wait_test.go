package upstream

import (
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// told sends what it is told to, as it is told to, after the first request.
func told(t *testing.T) (*Client, chan<- string) {
	words := make(chan string)
	s := newServer(t, func(_ int, p *peer) {
		if r, _ := p.request(); r == nil {
			return
		}
		for w := range words {
			p.say(w)
		}
	})
	t.Cleanup(func() { close(words) })
	return s.client(t, Options{}), words
}

const chunkedHead = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

// A deadline that passes ends nothing: Head and Next go on where they were,
// even in the middle of a line.
func TestDeadlineIsResumable(t *testing.T) {
	c, words := told(t)
	e := sent(t, c, post("{}"))
	defer e.Close()
	_, err := e.Head(in(time.Millisecond))
	require.Equal(t, os.ErrDeadlineExceeded, err)
	words <- "HTTP/1.1 200 OK\r\nTransfer-Enc"
	_, err = e.Head(in(20 * time.Millisecond))
	require.Equal(t, os.ErrDeadlineExceeded, err)
	words <- "oding: chunked\r\n\r\n"
	_, err = e.Head(time.Time{})
	require.NoError(t, err)
	_, err = e.Next(in(-time.Second))
	require.Equal(t, os.ErrDeadlineExceeded, err)
	words <- "2\r"
	_, err = e.Next(in(20 * time.Millisecond))
	require.Equal(t, os.ErrDeadlineExceeded, err)
	words <- "\nab"
	p, err := e.Next(in(patience))
	require.NoError(t, err)
	require.Equal(t, "ab", string(p))
}

// A deadline later than the armed one wakes up early, and waits on; an earlier
// one is kept to; none at all waits without.
func TestDeadlineMoves(t *testing.T) {
	c, words := told(t)
	e := sent(t, c, post("{}"))
	defer e.Close()
	first := in(20 * time.Millisecond)
	_, err := e.Head(first)
	require.Equal(t, os.ErrDeadlineExceeded, err)
	later := in(60 * time.Millisecond)
	_, err = e.Head(later)
	require.Equal(t, os.ErrDeadlineExceeded, err)
	require.False(t, time.Now().Before(later))

	words <- chunkedHead
	_, err = e.Head(in(time.Hour))
	require.NoError(t, err)
	soon := in(20 * time.Millisecond)
	_, err = e.Next(soon)
	require.Equal(t, os.ErrDeadlineExceeded, err)
	require.Equal(t, soon, e.conn.armed)

	sent := make(chan struct{})
	go func() { words <- "1\r\na\r\n"; close(sent) }()
	p, err := e.Next(time.Time{})
	<-sent
	require.NoError(t, err)
	require.Equal(t, "a", string(p))
}

// A stream's deadline moves with each event; the timer is not touched.
func TestDeadlineIsLeftWhereItIs(t *testing.T) {
	c, words := told(t)
	e := sent(t, c, post("{}"))
	defer e.Close()
	words <- chunkedHead
	armed := in(time.Minute)
	_, err := e.Head(armed)
	require.NoError(t, err)
	for range 5 {
		words <- "1\r\na\r\n"
		_, err := e.Next(in(2 * time.Minute))
		require.NoError(t, err)
		require.Equal(t, armed, e.conn.armed)
	}
	_, err = e.Next(in(10 * time.Millisecond))
	require.Equal(t, os.ErrDeadlineExceeded, err)
}

// A silent exchange holds no buffer.
func TestNoBufferWhileSilent(t *testing.T) {
	c, words := told(t)
	e := sent(t, c, post("{}"))
	defer e.Close()
	_, err := e.Head(in(5 * time.Millisecond))
	require.Equal(t, os.ErrDeadlineExceeded, err)
	require.Nil(t, e.conn.b)
	words <- chunkedHead + "1\r\na\r\n"
	_, err = e.Head(in(patience))
	require.NoError(t, err)
	_, err = e.Next(in(patience))
	require.NoError(t, err)
	_, err = e.Next(in(20 * time.Millisecond))
	require.Equal(t, os.ErrDeadlineExceeded, err)
	require.Nil(t, e.conn.b)
	require.Nil(t, e.req, "nor the request once the answer has begun")
}

// Nothing runs for an exchange but the goroutine that waits for it, nor for an
// unused connection.
func TestNoGoroutineOfOurs(t *testing.T) {
	c, words := told(t)
	e := sent(t, c, post("{}"))
	defer e.Close()
	words <- chunkedHead
	_, err := e.Head(in(patience))
	require.NoError(t, err)
	other := newServer(t, answers(okAnswer)).client(t, Options{})
	whole(t, other, post("{}"))
	require.Equal(t, 1, idle(other))
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	require.NotContains(t, string(stacks), "created by switchyard/gateway/upstream.(*")
}

// Interrupt ends a wait at once, whatever is being waited for and whether the
// wait has begun yet; and it stays.
func TestInterrupt(t *testing.T) {
	for _, deadline := range []time.Time{{}, in(time.Hour)} {
		c, _ := told(t)
		e := start(t, c, post("{}"))
		go e.Interrupt()
		_, err := e.Head(deadline)
		require.Equal(t, ErrInterrupted, err)
		_, err = e.Head(in(time.Hour))
		require.Equal(t, ErrInterrupted, err)
		e.Close()
	}
	c, words := told(t)
	e := sent(t, c, post("{}"))
	defer e.Close()
	words <- chunkedHead
	_, err := e.Head(in(patience))
	require.NoError(t, err)
	go e.Interrupt()
	_, err = e.Next(in(time.Hour))
	require.Equal(t, ErrInterrupted, err)
	e.Interrupt()
}

// The race between Interrupt and the setting of deadlines: with the answer
// coming in bytes and the deadline moving both ways, no Interrupt is ever lost.
func TestInterruptRacesDeadlines(t *testing.T) {
	s := newServer(t, func(_ int, p *peer) {
		p.request()
		p.say(chunkedHead)
		for {
			if _, err := p.Write([]byte("1\r\na\r\n")); err != nil {
				return
			}
		}
	})
	c := s.client(t, Options{})
	for i := range 200 {
		e, _ := ask(t, c, post("{}"))
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(e.Interrupt)
		}
		var err error
		for n := 0; err == nil || err == os.ErrDeadlineExceeded; n++ {
			// back and forth: a minute ahead, an hour ahead, just passed, none
			deadline := []time.Time{in(time.Minute), in(time.Hour), in(-1), {}}[(n+i)%4]
			_, err = e.Next(deadline)
		}
		require.Equal(t, ErrInterrupted, err)
		wg.Wait()
		e.Close()
	}
}

// An Interrupt that comes after the end hits nobody: not the connection's next
// exchange either. And one that came before a clean end spoils nothing.
func TestInterruptAfterTheEnd(t *testing.T) {
	c := newServer(t, answers(okAnswer)).client(t, Options{})
	e1, _ := ask(t, c, post("{}"))
	_, err := readAll(e1)
	require.NoError(t, err)
	e1.Interrupt()
	_, err = readAll(e1)
	require.NoError(t, err, "the answer is there already")
	e1.Close()
	require.Equal(t, 1, idle(c))
	e2 := start(t, c, post("{}"))
	require.True(t, e2.conn.used)
	e1.Interrupt()
	_, err = e2.Head(in(patience))
	require.NoError(t, err)
	e2.Close()
}
