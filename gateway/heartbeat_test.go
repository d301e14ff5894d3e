package gateway

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
)

func beating(o *rigging) {
	o.replicas, o.slots = 1, 1
	o.settings.Heartbeat = 20 * time.Millisecond
}

// occupied is a rig whose only slot is taken until release is closed.
func occupied(t *testing.T, second act, changes ...func(*rigging)) (r *rig, release chan struct{}) {
	f := faces[0]
	release = make(chan struct{})
	tr := newTroupe(t, func(k *call) { <-release; f.good(true)(k) }, second)
	r = newRig(t, tr, append([]func(*rigging){beating}, changes...)...)
	c := r.connect(f.path, f.body(true), "Connection: close")
	go io.Copy(io.Discard, c)
	require.True(t, soon(func() bool { return len(tr.calls()) == 1 }))
	return r, release
}

// PAINS 16: a heartbeat is a single line with a colon and nothing else; the
// stream follows it.
func TestHeartbeatIsOneLine(t *testing.T) {
	f := faces[0]
	r, release := occupied(t, f.good(true))
	c := r.connect(f.path, f.body(true), "Connection: close")
	seen := readUntil(t, c, ":\n\r\n2\r\n:\n")
	close(release)
	rest, err := io.ReadAll(c)
	require.NoError(t, err)
	got := parseReply(t, []byte(seen+string(rest)))
	require.Equal(t, 200, got.status)
	require.Equal(t, "text/event-stream", got.header.Get("Content-Type"))
	require.Equal(t, f.events(), strings.TrimLeft(got.body, ":\n"))
	require.True(t, got.clean)
}

// PAINS 17: heartbeats are off unless configured, and are sent only to clients
// that read SSE.
func TestHeartbeatOnlyWhereItCanBeRead(t *testing.T) {
	for _, f := range faces {
		for _, stream := range []bool{true, false} {
			j := &job{ep: endpointOf(t, f.path)}
			j.ask.Stream = stream
			require.Equal(t, stream && f.name != "ollama", j.hearsBeats(), "%s stream=%v", f.name, stream)
		}
	}
}

// After a heartbeat a refusal and a replica's own error can only be told as an
// error event.
func TestErrorsAfterAHeartbeatAreEvents(t *testing.T) {
	f := faces[0]
	for name, c := range map[string]struct {
		second  act
		outcome admission.Outcome
		words   string
	}{
		"a client's mistake": {func(k *call) { k.whole(400, jsonMedia, f.mistake) }, admission.Completed, "too short"},
		"failures":           {(*call).reset, admission.Failed, "upstream_failed"},
		"no stream":          {f.good(false), admission.Failed, "no stream"},
	} {
		t.Run(name, func(t *testing.T) {
			r, release := occupied(t, c.second)
			conn := r.connect(f.path, f.body(true), "Connection: close")
			seen := readUntil(t, conn, ":\n")
			close(release)
			rest, _ := io.ReadAll(conn)
			raw := append([]byte(seen), rest...)
			got := parseReply(t, raw)
			require.Equal(t, 200, got.status)
			event := strings.TrimLeft(got.body, ":\n")
			require.True(t, strings.HasPrefix(event, f.errorIs), "%s", got.body)
			require.Contains(t, event, c.words)
			require.False(t, got.clean)
			require.False(t, bytes.Contains(raw, []byte("[DONE]")))
			require.Equal(t, c.outcome, r.seen.record(t, 2).Outcome)
		})
	}
}

// R10: a client that leaves while it is sent heartbeats leaves the queue.
func TestLeavingWhileHeartbeatsComeR10(t *testing.T) {
	f := faces[0]
	r, release := occupied(t, f.good(true))
	defer close(release)
	c := r.connect(f.path, f.body(true))
	readUntil(t, c, ":\n")
	c.Close()
	require.Equal(t, admission.Cancelled, r.seen.record(t, 1).Outcome)
	require.Zero(t, r.totals().Queued)
}
