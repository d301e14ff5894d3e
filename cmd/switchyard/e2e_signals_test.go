package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/simserver"
)

// R15: what signals do to a gateway that is at work.
func TestR15Signals(t *testing.T) {
	bin := binary(t)
	t.Run("SIGTERM in the middle of load", func(t *testing.T) { sigterm(t, bin) })
	t.Run("SIGTERM twice", func(t *testing.T) { sigtermTwice(t, bin) })
	t.Run("SIGHUP and changed files", func(t *testing.T) { sighup(t, bin) })
}

// patientReplicas are two llama.cpp with answers as long as they are asked for.
func patientReplicas(t *testing.T) simserver.Fleet {
	fleet, err := simserver.StartFleet(patient("llamacpp"))
	require.NoError(t, err)
	t.Cleanup(fleet.Close)
	return fleet
}

// snapshot is the state of a gateway in another process.
func (r *rig) snapshot() *admission.Snapshot {
	r.t.Helper()
	s := &admission.Snapshot{}
	r.getJSON("/admin/state", s)
	return s
}

// sigterm: every client gets a whole answer or a proper error, nobody is cut
// without a word, and the process ends well.
func sigterm(t *testing.T, bin string) {
	c := startChild(t, bin, patientReplicas(t), "a", "b")
	var clients sync.WaitGroup
	replies := make(chan reply, 1000)
	tongues := tonguesOf("llamacpp")
	send := func(l tongue, q query) reply {
		x := l.ask(context.Background(), c.client, c.base, q)
		replies <- x
		return x
	}
	for i := range 4 { // longer than there is time to drain: two streams, two whole answers
		clients.Go(func() { send(tongues[i%3], query{prompt: prompt(i, 20), stream: i%2 == 0, tokens: 6000}) })
	}
	eventually(t, "the long ones to run", func() bool { return c.snapshot().Totals.Running == 4 })
	for i := range 24 { // and clients that ask until they are turned away
		clients.Go(func() {
			for n := 0; ; n++ {
				q := query{prompt: prompt(100+i, 20), stream: (i+n)%2 == 0, tokens: 30}
				if send(tongues[(i+n)%3], q).fate() != "whole" {
					return
				}
			}
		})
	}
	var atWork admission.Totals
	eventually(t, "load", func() bool {
		s := c.snapshot().Totals
		atWork = s
		return s.Completed >= 20 && s.Running == 8 && s.Queued > 0
	})
	c.signal(syscall.SIGTERM)
	eventually(t, "the gateway to be no longer ready", func() bool { return c.status("/readyz") == http.StatusServiceUnavailable })
	require.True(t, c.snapshot().Draining)
	c.signal(syscall.SIGHUP) // there is nothing to reload any more
	x := openAI.ask(t.Context(), c.client, c.base, query{prompt: "too late", tokens: 3})
	require.Equal(t, http.StatusServiceUnavailable, x.status, "%s", x)
	require.Equal(t, "draining", x.header.Get("X-Switchyard-Reason"))
	require.NotEmpty(t, x.header.Get("Retry-After"))
	clients.Wait()
	close(replies)
	<-c.gone
	require.Zero(t, c.cmd.ProcessState.ExitCode(), "%s", c.cmd.ProcessState)
	fates := map[string]int{}
	for x := range replies {
		var refused *net.OpError
		if x.status == 0 && errors.As(x.err, &refused) && refused.Op == "dial" {
			fates["came after the end"]++
			continue
		}
		fates[x.fate()]++
		require.Contains(t, []string{"whole", "event", "error"}, x.fate(), "%s", x)
		if x.fate() == "error" {
			require.Equal(t, http.StatusServiceUnavailable, x.status, "%s", x)
			require.NotEmpty(t, x.header.Get("Retry-After"), "%s", x)
		}
	}
	require.GreaterOrEqual(t, fates["whole"], int(atWork.Completed)+4, "what ran, but for the long ones, ends whole: %v", fates)
	require.Equal(t, 2, fates["event"], "the streams that were too long: %v", fates)
	require.GreaterOrEqual(t, fates["error"], 2)
	for _, s := range c.fleet {
		require.Zero(t, s.Stats().OverSlotsEvents)
	}
	t.Logf("%v", fates)
}

// sigtermTwice: the second one ends the process at once, and the log says with
// what in hand.
func sigtermTwice(t *testing.T, bin string) {
	c := startChild(t, bin, patientReplicas(t), "a")
	c.untilReplicas("a")
	var client sync.WaitGroup
	client.Go(func() {
		openAI.ask(context.Background(), c.client, c.base, query{prompt: "long", stream: true, tokens: 6000})
	})
	eventually(t, "the stream to run", func() bool { return c.fleet[0].Stats().InHand == 1 })
	c.signal(syscall.SIGTERM)
	eventually(t, "the gateway to be no longer ready", func() bool { return c.status("/readyz") == http.StatusServiceUnavailable })
	c.signal(syscall.SIGTERM)
	<-c.gone
	client.Wait()
	require.Equal(t, syscall.SIGTERM, c.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), "%s", c.cmd.ProcessState)
	require.Contains(t, c.log.text(), `msg="a second signal: ending at once" signal=terminated running=1 queued=0`)
}

// sighup: the new configuration is applied whole without dropping a request,
// and a wrong one changes nothing.
func sighup(t *testing.T, bin string) {
	c := startChild(t, bin, patientReplicas(t), "a")
	c.untilReplicas("a")
	short := query{prompt: "short", stream: true, tokens: 3}
	served := func(by string) {
		t.Helper()
		x := openAI.ask(t.Context(), c.client, c.base, short)
		x.mustBe(t, "whole")
		require.Equal(t, by, x.header.Get("X-Switchyard-Replica"))
	}
	served("a")

	// a goes while it streams, b comes.
	var running reply
	var stream sync.WaitGroup
	stream.Go(func() {
		running = anthropic.ask(context.Background(), c.client, c.base, query{prompt: "long", stream: true, tokens: 1500})
	})
	eventually(t, "the stream to run", func() bool { return c.fleet[0].Stats().InHand == 1 })
	c.write("b")
	c.signal(syscall.SIGHUP)
	c.untilReplicas("b")
	served("b")
	require.Equal(t, 1, c.fleet[0].Stats().InHand, "the stream of the replica that was removed still runs")
	stream.Wait()
	running.mustBe(t, "whole")
	require.Equal(t, "a", running.header.Get("X-Switchyard-Replica"))
	require.Equal(t, 1500, strings.Count(running.body, "text_delta"))

	// A wrong file: the old configuration stays, and the log names the place.
	c.writeText("listne: here\n" + c.configuration("a", "b"))
	c.signal(syscall.SIGHUP)
	eventually(t, "the mistake in the log", func() bool { return strings.Contains(c.log.text(), c.file+":1: listne: unknown key") })
	c.untilReplicas("b")
	served("b")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.admin+"/admin/reload", nil)
	require.NoError(t, err)
	x := (&tongue{}).send(c.client, req, query{})
	require.Equal(t, http.StatusUnprocessableEntity, x.status, "%s", x.body)
	require.Contains(t, x.body, c.file+":1: listne: unknown key")

	// A file that is right again needs no signal.
	c.write("a", "b")
	c.untilReplicas("a", "b")
	require.Contains(t, c.log.text(), "configuration applied")
	c.signal(syscall.SIGTERM)
	<-c.gone
	require.Zero(t, c.cmd.ProcessState.ExitCode())
}
