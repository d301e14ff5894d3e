package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

// row is one row of rule R7's table: what a replica does, and what must follow.
type row struct {
	name   string
	act    func(f face, stream bool) act
	only   string // "stream", "whole" or empty: both
	label  string // of the attempt
	blamed int64  // failures counted against replicas, once another one has answered well
	passed bool   // the answer is passed on at once, nothing else is tried
	sse    bool   // it exists in SSE only
	alone  int    // status when every replica does it
	code   string // X-Switchyard-Reason then; empty: the replica's own answer is passed on
	tries  int    // attempts then, with two replicas
}

func always(a act) func(face, bool) act { return func(face, bool) act { return a } }

// status answers with a status and the face's own error.
func status(code int, headers ...string) func(face, bool) act {
	return func(f face, _ bool) act {
		return func(k *call) { k.whole(code, jsonMedia, f.mistake, headers...) }
	}
}

// begun begins an answer without content, streamed or not, and goes on as told.
func begun(then func(*call)) func(face, bool) act {
	return func(f face, stream bool) act {
		return func(k *call) {
			if stream {
				k.streamHead(f.media)
				if f.begin != "" {
					k.chunk(f.begin)
				}
			} else {
				k.head(200, "Content-Type: "+jsonMedia, "Content-Length: "+fmt.Sprint(len(f.whole)))
			}
			then(k)
		}
	}
}

// inTheMiddle sends half of an answer that is not streamed and goes on as told.
func inTheMiddle(then func(*call)) func(face, bool) act {
	return func(f face, _ bool) act {
		return func(k *call) {
			k.head(200, "Content-Type: "+jsonMedia, "Content-Length: "+fmt.Sprint(len(f.whole)))
			k.raw(f.whole[:len(f.whole)/2])
			then(k)
		}
	}
}

const (
	streamed = "stream"
	held     = "whole"
)

var (
	silent   = (*call).untilGone
	nothing  = func(*call) {}
	tooLong  = `{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error","n_prompt_tokens":9000,"n_ctx":4096}}`
	busy503  = []string{"Retry-After: 0"}
	rowsOfR7 = []row{
		{name: "reset before the answer", act: always((*call).reset), label: "connect", blamed: 1, alone: 502, code: "upstream_failed", tries: 3},
		{name: "end before the answer", act: always(nothing), label: "connect", blamed: 1, alone: 502, code: "upstream_failed", tries: 3},
		{name: "no HTTP", act: always(func(k *call) { k.raw("SSH-2.0-OpenSSH_9.2\r\n"); k.untilGone() }), label: "empty", blamed: 1, alone: 502, code: "upstream_failed", tries: 3},
		{name: "500", act: status(500), label: "status_500", blamed: 1, alone: 500, tries: 2},
		{name: "502", act: status(502), label: "status_502", blamed: 1, alone: 502, tries: 2},
		{name: "504", act: status(504), label: "status_504", blamed: 1, alone: 504, tries: 2},
		{name: "503", act: status(503, busy503...), label: "status_503", alone: 503, tries: 3},
		{name: "429", act: status(429, busy503...), label: "status_429", alone: 429, tries: 3},
		{name: "silence", act: always(silent), label: "no_first_token", blamed: 1, alone: 504, code: "upstream_timeout", tries: 3},
		{name: "headers and silence", act: begun(silent), label: "no_first_token", blamed: 1, alone: 504, code: "upstream_timeout", tries: 3},
		{name: "comments and silence", only: streamed, sse: true, act: begun(func(k *call) { k.chunk(":\n\n"); k.untilGone() }), label: "no_first_token", blamed: 1, alone: 504, code: "upstream_timeout", tries: 3},
		{name: "200 and an error", only: streamed, act: func(f face, _ bool) act {
			return func(k *call) { k.streamHead(f.media); k.chunk(f.begin + f.failing); k.end() }
		}, label: "empty", blamed: 1, alone: 502, code: "upstream_failed", tries: 3},
		{name: "200 and an error body", only: held, act: func(f face, _ bool) act {
			return func(k *call) { k.whole(200, jsonMedia, f.mistake) }
		}, label: "empty", blamed: 1, alone: 502, code: "upstream_failed", tries: 3},
		{name: "an empty stream", only: streamed, act: func(f face, _ bool) act {
			return func(k *call) { k.streamHead(f.media); k.end() }
		}, label: "empty", blamed: 1, alone: 502, code: "upstream_failed", tries: 3},
		{name: "an empty body", only: held, act: always(func(k *call) { k.whole(200, jsonMedia, "") }), label: "empty", blamed: 1, alone: 502, code: "upstream_failed", tries: 3},
		{name: "clean end before any content", only: streamed, act: begun((*call).end), label: "empty", blamed: 1, alone: 502, code: "upstream_failed", tries: 3},
		{name: "cut before any content", only: streamed, act: begun(nothing), label: "empty", blamed: 1, alone: 502, code: "upstream_failed", tries: 3},
		{name: "reset before any content", act: begun((*call).reset), label: "empty", blamed: 1, alone: 502, code: "upstream_failed", tries: 3},
		{name: "cut in the middle", only: held, act: inTheMiddle(nothing), label: "empty", blamed: 1, alone: 502, code: "upstream_failed", tries: 3},
		{name: "reset in the middle", only: held, act: inTheMiddle((*call).reset), label: "empty", blamed: 1, alone: 502, code: "upstream_failed", tries: 3},
		{name: "half an answer and a clean end", only: held, act: func(f face, _ bool) act {
			return func(k *call) { k.streamHead(jsonMedia); k.chunk(f.whole[:len(f.whole)/2]); k.end() }
		}, label: "empty", blamed: 1, alone: 502, code: "upstream_failed", tries: 3},
		{name: "malformed chunks", only: streamed, act: begun(func(k *call) { k.raw("zzz\r\n"); k.untilGone() }), label: "empty", blamed: 1, alone: 502, code: "upstream_failed", tries: 3},
		{name: "408", act: status(408), label: "status_408", alone: 408, tries: 3},
		{name: "409", act: status(409), label: "status_409", alone: 409, tries: 3},
		{name: "425", act: status(425), label: "status_425", alone: 425, tries: 3},
		{name: "401", act: status(401), label: "status_401", alone: 401, tries: 2},
		{name: "403", act: status(403), label: "status_403", alone: 403, tries: 2},
		{name: "404", act: status(404), label: "status_404", alone: 404, tries: 2},
		{name: "400", act: status(400), label: "status_400", passed: true, alone: 400, tries: 1},
		{name: "422", act: status(422), label: "status_422", passed: true, alone: 422, tries: 1},
	}
)

// patience is short where a replica is silent on purpose, and only there: a
// busy machine makes every replica slow.
func (w row) patience(o *rigging) {
	if w.label == "no_first_token" {
		impatient(o)
	}
}

func impatient(o *rigging) {
	o.retry.LoadTimeout, o.retry.FirstTokenFloor, o.retry.FirstTokenFactor = 400*time.Millisecond, 400*time.Millisecond, 0.001
}

// R7: every row of the table, streamed and not, for every kind of client: once
// with a replica that fails and one that does not, once with two that fail.
func TestTableOfR7(t *testing.T) {
	for _, w := range rowsOfR7 {
		for _, f := range faces {
			for _, stream := range []bool{true, false} {
				if w.only == streamed && !stream || w.only == held && stream || w.sse && f.engine == replica.EngineOllama {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/stream=%v", w.name, f.name, stream), func(t *testing.T) {
					t.Parallel()
					w.beside(t, f, stream)
					w.everywhere(t, f, stream)
				})
			}
		}
	}
}

// beside: another replica answers well.
func (w row) beside(t *testing.T, f face, stream bool) {
	tr := newTroupe(t, w.act(f, stream), f.good(stream))
	r := newRig(t, tr, w.patience, func(o *rigging) { o.engine = f.engine })
	got := r.post(f.path, f.body(stream))
	if w.passed {
		require.Equal(t, w.alone, got.status)
		require.Equal(t, f.mistake, got.body)
		require.Len(t, tr.calls(), 1)
		require.Zero(t, r.failures())
		return
	}
	require.Equal(t, 200, got.status, "%s", got.raw)
	require.Equal(t, f.want(stream), got.body)
	require.True(t, got.clean)
	require.Equal(t, "2", got.header.Get("X-Switchyard-Attempts"))
	calls := tr.calls()
	require.Len(t, calls, 2)
	require.NotEqual(t, calls[0].replica, calls[1].replica, "a retry goes elsewhere first")
	require.Equal(t, calls[0].body, calls[1].body)
	seen := r.seen.after(t, 1)
	require.Equal(t, []string{w.label, "ok"}, seen.attempts)
	require.Equal(t, []string{w.label}, seen.retries)
	require.Equal(t, w.blamed, r.failures())
	require.EqualValues(t, 1, r.totals().Completed)
}

// everywhere: all replicas do it.
func (w row) everywhere(t *testing.T, f face, stream bool) {
	tr := newTroupe(t, w.act(f, stream))
	r := newRig(t, tr, w.patience, func(o *rigging) { o.engine = f.engine })
	got := r.post(f.path, f.body(stream))
	require.Equal(t, w.alone, got.status, "%s", got.raw)
	require.True(t, got.clean)
	require.True(t, soon(func() bool { return len(tr.calls()) == w.tries }), "%d attempts", len(tr.calls()))
	require.Equal(t, w.code, got.header.Get("X-Switchyard-Reason"))
	if w.code == "" {
		require.Equal(t, f.mistake, got.body, "passed on byte for byte")
		require.Equal(t, fmt.Sprint(w.tries), got.header.Get("X-Switchyard-Attempts"))
	} else {
		require.Contains(t, got.body, `"error"`)
	}
	totals := r.totals()
	if w.alone >= http.StatusInternalServerError {
		require.EqualValues(t, 1, totals.Failed)
	} else {
		require.EqualValues(t, 1, totals.Completed)
	}
}

// R7: a prompt too long for one replica goes to one with a larger context; where
// there is none, the replica's own words are passed on.
func TestContextTooLongR7(t *testing.T) {
	for _, f := range faces {
		t.Run(f.name, func(t *testing.T) {
			tr := newTroupe(t, func(k *call) { k.whole(400, jsonMedia, tooLong) }, f.good(true))
			r := newRig(t, tr, func(o *rigging) { o.engine = f.engine })
			for i, name := range r.names {
				r.gw.Observe(time.Now(), name, replica.Facts{
					At: time.Now(), Up: true, Engine: f.engine, AnyModel: true, ModelsRead: true,
					Context: 4096 * (i + 1), InHand: -1, Waiting: -1, Progress: -1,
				})
			}
			got := r.post(f.path, f.body(true))
			if tr.calls()[0].replica == "b" { // the larger one was tried first
				require.Equal(t, 400, got.status)
				require.Equal(t, tooLong, got.body)
				require.Len(t, tr.calls(), 1)
			} else {
				require.Equal(t, 200, got.status, "%s", got.raw)
				require.Equal(t, "b", got.header.Get("X-Switchyard-Replica"))
			}
			require.Zero(t, r.failures())
		})
	}
}

// R7: connections refused are retried elsewhere, and free of the retry budget.
func TestRefusedConnectionsR7(t *testing.T) {
	f := faces[0]
	tr := newTroupe(t, f.good(true))
	r := newRig(t, tr, func(o *rigging) { o.retry.Budget = 0; o.slots = 1 })
	tr.listeners[0].Close()
	for i := range 3 {
		got := r.post(f.path, f.body(true))
		require.Equal(t, 200, got.status, "request %d: %s", i, got.raw)
		require.Equal(t, f.events(), got.body)
	}
	tr.listeners[1].Close()
	tr.mu.Lock()
	for c := range tr.mu.conns {
		c.Close()
	}
	tr.mu.Unlock()
	got := r.post(f.path, f.body(true))
	require.Contains(t, []int{502, 503}, got.status)
	require.True(t, strings.HasPrefix(got.body, `{"error":{`), "%s", got.body)
}
