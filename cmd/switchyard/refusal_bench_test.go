package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/simserver"
)

// BenchmarkRefusals asks a gateway, a process of its own that its clients reach by
// loopback sockets, 5,000 times a second for what it refuses, whether answers
// come or not: because its queue is full, or because the deadline cannot be met.
//
// p50 and p99 are bounds of switchyard_refusal_seconds, which the gateway
// measures from a body's last byte on. cpu is what the gateway spends on a
// refusal, net/http and metrics included. late is how late the requests were sent
// and wake how late this machine wakes a sleeper while nothing runs, both at the
// 99th percentile: where they are not far below a millisecond, p99 tells of the
// machine.
func BenchmarkRefusals(b *testing.B) {
	bin := binary(b)
	for _, c := range []struct {
		reason, deadline string
		waiting          int
	}{{"queue_full", "1800", 2048}, {"deadline_unmeetable", "5", 0}} {
		b.Run("reason="+c.reason, func(b *testing.B) {
			g := newRefusing(b, bin, c.waiting)
			ask := g.request(c.deadline)
			b.Run("rate=5000", func(b *testing.B) {
				before := g.measure()
				b.ResetTimer()
				refused, late := g.flood(b, ask, 5000)
				after := g.measure()
				b.ReportMetric(1e6*after.quantile(before.buckets, 0.5), "p50-us-within")
				b.ReportMetric(1e6*after.quantile(before.buckets, 0.99), "p99-us-within")
				b.ReportMetric(1e6*(after.cpu-before.cpu)/float64(b.N), "cpu-us/op")
				b.ReportMetric(100*refused, "%refused")
				b.ReportMetric(float64(late.Microseconds()), "late-us-p99")
				b.ReportMetric(float64(lateness().Microseconds()), "wake-us-p99")
			})
		})
	}
}

// refusing is a gateway that is asked for more than it can do.
type refusing struct{ *child }

// newRefusing starts one with a replica of four slots, lets it learn how long
// answers take, and keeps so many requests waiting.
func newRefusing(b *testing.B, bin string, waiting int) *refusing {
	fleet, err := simserver.StartFleet([]simserver.Options{{
		Name: "a", Engine: "llamacpp", Models: []string{simModel}, Slots: 4, Prefill: 20000, Decode: 50, OutputTokens: "fixed:100",
	}})
	require.NoError(b, err)
	b.Cleanup(fleet.Close)
	g := &refusing{startChild(b, bin, fleet, "a")}
	ctx, cancel := context.WithCancel(b.Context())
	var clients sync.WaitGroup
	b.Cleanup(func() { cancel(); clients.Wait() })
	require.Equal(b, http.StatusOK, g.post(ctx))
	for range waiting + 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if g.post(ctx) != http.StatusOK { // refused: another was quicker
					select {
					case <-ctx.Done():
					case <-time.After(100 * time.Millisecond):
					}
				}
			}
		})
	}
	eventually(b, "the queue to fill", func() bool {
		n := 0
		for _, c := range g.snapshot().Classes {
			n += c.Queued
		}
		return n >= waiting
	})
	return g
}

const refusalBody = `{"model":"m","max_tokens":100,"messages":[{"role":"user","content":"hello"}]}`

// post asks for something that may come late, and reads the answer.
func (g *refusing) post(ctx context.Context) (status int) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.base+openAI.path, strings.NewReader(refusalBody))
	require.NoError(g.t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Switchyard-Deadline", "1800")
	resp, err := g.client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// request is what is to be refused, as it goes over the wire.
func (g *refusing) request(deadline string) string {
	return "POST " + openAI.path + " HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nX-Switchyard-Deadline: " + deadline +
		"\r\nContent-Length: " + strconv.Itoa(len(refusalBody)) + "\r\n\r\n" + refusalBody
}

// flood asks b.N times at a steady rate, on as many connections as that takes. It
// returns which part was refused, and how late the requests were sent. A few are
// accepted, since what is done is followed by something.
func (g *refusing) flood(b *testing.B, ask string, perSecond int) (refused float64, p99 time.Duration) {
	idle := make(chan *asker, 4096)
	var busy sync.WaitGroup
	var turnedAway atomic.Int64
	late := make([]time.Duration, 0, b.N)
	began := time.Now()
	for i := range b.N {
		due := began.Add(time.Duration(i) * time.Second / time.Duration(perSecond))
		if wait := time.Until(due); wait > 0 {
			<-time.After(wait)
		}
		var a *asker
		select {
		case a = <-idle:
		default:
			a = &asker{to: strings.TrimPrefix(g.base, "http://")}
		}
		late = append(late, time.Since(due))
		busy.Go(func() {
			switch status, err := a.ask(ask); {
			case status == http.StatusTooManyRequests:
				turnedAway.Add(1)
				select {
				case idle <- a:
				default:
					a.conn.Close()
				}
			case errors.Is(err, os.ErrDeadlineExceeded) || status == http.StatusOK: // it was accepted
				a.conn.Close()
			default:
				b.Errorf("status %d, %v", status, err)
			}
		})
	}
	b.StopTimer()
	busy.Wait()
	close(idle)
	for a := range idle {
		a.conn.Close()
	}
	slices.Sort(late)
	return float64(turnedAway.Load()) / float64(b.N), late[len(late)*99/100]
}

// asker is one client's connection.
type asker struct {
	to     string
	conn   net.Conn
	reader *bufio.Reader
}

func (a *asker) ask(request string) (status int, err error) {
	if a.conn == nil {
		if a.conn, err = net.Dial("tcp", a.to); err != nil {
			return 0, err
		}
		a.reader = bufio.NewReader(a.conn)
	}
	if err = a.conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return 0, err
	}
	if _, err = io.WriteString(a.conn, request); err != nil {
		return 0, err
	}
	resp, err := http.ReadResponse(a.reader, nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// measure reads the gateway's own metrics.
func (g *refusing) measure() (m struct {
	buckets
	cpu float64 // seconds so far
},
) {
	resp, err := g.client.Get(g.admin + "/metrics")
	require.NoError(g.t, err)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, text, _ := strings.Cut(lines.Text(), " ")
		value, _ := strconv.ParseFloat(text, 64)
		switch bound, bucket := strings.CutPrefix(name, `switchyard_refusal_seconds_bucket{le="`); {
		case bucket:
			le, err := strconv.ParseFloat(strings.TrimSuffix(bound, `"}`), 64)
			require.NoError(g.t, err)
			m.bound, m.count = append(m.bound, le), append(m.count, uint64(value))
		case name == "switchyard_refusal_seconds_count":
			m.total = uint64(value)
		case name == "process_cpu_seconds_total":
			m.cpu = value
		}
	}
	require.NotEmpty(g.t, m.bound)
	return m
}
