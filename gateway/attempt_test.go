package gateway

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/replica"
)

// PAINS 34, 35, R12: what goes to a replica is the client's request without what
// is not for it: no credentials, no hop-by-hop headers, no foreign Origin, no
// service headers, and none that makes a replica answer unreadably or go on for
// a client that has left.
func TestHeadersToTheReplica(t *testing.T) {
	f := faces[0]
	tr := newTroupe(t, f.good(false))
	r := newRig(t, tr, func(o *rigging) { o.settings.Instance = "yard" })
	got := r.post(f.path+"?trace=1", f.body(false),
		"Authorization: Bearer sk-secret", "X-Api-Key: sk-secret", "Api-Key: sk-secret", "Cookie: a=b",
		"Origin: http://evil.example", "X-Conversation-Id: c1", "Accept-Encoding: gzip, br",
		"X-Switchyard-Class: standard", "X-Switchyard-Deadline: 30s", "X-Request-ID: me-2", "Via: 1.1 cdn",
		"Keep-Alive: timeout=5", "TE: trailers", "X-Session-ID: s1", "X-Custom: yes", "User-Agent: test/1")
	require.Equal(t, 200, got.status, "%s", got.raw)
	k := tr.calls()[0]
	h := k.request.Header
	for _, name := range []string{
		"Authorization", "X-Api-Key", "Api-Key", "Cookie", "Origin", "X-Conversation-Id", "X-Switchyard-Class",
		"Keep-Alive", "Te", "Connection", "Expect",
	} {
		require.Empty(t, h.Values(name), "%s must not pass", name)
	}
	require.Equal(t, "identity", h.Get("Accept-Encoding"))
	require.Equal(t, "1.1 cdn, 1.1 switchyard-yard", h.Get("Via"))
	require.Equal(t, "me-2", h.Get("X-Request-ID"))
	require.Equal(t, "s1", h.Get("X-Session-ID"))
	require.Equal(t, "yes", h.Get("X-Custom"))
	require.Equal(t, "test/1", h.Get("User-Agent"))
	require.Equal(t, "application/json", h.Get("Content-Type"))
	left, err := time.ParseDuration(h.Get("X-Switchyard-Deadline"))
	require.NoError(t, err)
	require.Greater(t, left, 20*time.Second)
	require.LessOrEqual(t, left, 30*time.Second, "what remains, not what was stated")
	require.Equal(t, f.path+"?trace=1", k.request.RequestURI)
	require.NotEqual(t, "gateway.example", k.request.Host, "Host is the replica's own")
	require.EqualValues(t, len(k.body), k.request.ContentLength)
}

// The replica's own key goes with the request, the client's never does.
func TestReplicaKey(t *testing.T) {
	f := faces[0]
	tr := newTroupe(t, f.good(false))
	r := newRig(t, tr, func(o *rigging) { o.replicas = 1 })
	s := *r.gw.settings()
	s.Replicas = append([]Replica(nil), s.Replicas...)
	s.Replicas[0].APIKey = "replica-key"
	r.gw.Apply(s)
	got := r.post(f.path, f.body(false), "Authorization: Bearer client-key")
	require.Equal(t, 200, got.status)
	require.Equal(t, "Bearer replica-key", tr.calls()[0].request.Header.Get("Authorization"))
	require.Empty(t, tr.calls()[0].request.Header.Get("X-Switchyard-Deadline"), "the client stated none")
}

// R17: an alias replaces the model's name in place and nothing else.
func TestAliasReplacesTheModelR17(t *testing.T) {
	f := faces[0]
	tr := newTroupe(t, f.good(true))
	r := newRig(t, tr, func(o *rigging) { o.settings.Aliases = []Alias{{Name: "chat", Candidates: []string{"qwen3:8b"}}} })
	body := `{ "stream":true, "model" : "chat", "messages":[{"role":"user","content":"the model \"chat\" is \ud83d\ude00"}] }`
	got := r.post(f.path, body)
	require.Equal(t, 200, got.status, "%s", got.raw)
	require.Equal(t, strings.Replace(body, `"chat"`, `"qwen3:8b"`, 1), tr.calls()[0].body)
}

// What replicas say about who may read an answer is not passed on; hop-by-hop
// headers are not either.
func TestHeadersToTheClient(t *testing.T) {
	f := faces[0]
	tr := newTroupe(t, f.good(true,
		"Access-Control-Allow-Origin: *", "Keep-Alive: timeout=5, max=100", "Server: llama.cpp",
		"X-Request-ID: theirs", "X-Switchyard-Replica: theirs", "Set-Cookie: a=1", "Set-Cookie: b=2"))
	got := newRig(t, tr).post(f.path, f.body(true), "X-Request-ID: mine")
	h := got.header
	require.Empty(t, h.Get("Access-Control-Allow-Origin"))
	require.Empty(t, h.Get("Keep-Alive"))
	require.Equal(t, "llama.cpp", h.Get("Server"))
	require.Equal(t, []string{"mine"}, h.Values("X-Request-ID"))
	require.NotEqual(t, "theirs", h.Get("X-Switchyard-Replica"))
	require.Equal(t, []string{"a=1", "b=2"}, h.Values("Set-Cookie"))
}

// slowly reads 64 KiB in 80 ms, and nothing any more after most bytes.
type slowly struct {
	net.Conn
	n, most int
	gone    <-chan struct{}
}

func (c *slowly) Read(p []byte) (int, error) {
	if c.n >= c.most {
		<-c.gone
		return 0, io.EOF
	}
	n, err := c.Conn.Read(p[:min(len(p), 64<<10)])
	before := c.n
	if c.n += n; before>>16 != c.n>>16 {
		<-time.After(80 * time.Millisecond)
	}
	return n, err
}

// R7: a request that goes to a replica slowly is no hang: the first token is
// waited for from when it has been written. A replica that takes no more of it
// for stall_timeout has failed.
func TestASlowUploadIsNoHangR7(t *testing.T) {
	const floor = 3 * time.Second
	f := faces[0]
	body := strings.Replace(f.body(true), "hello there", strings.Repeat("hello there ", 1<<18), 1)
	quick := func(o *rigging) {
		o.retry.FirstTokenFloor, o.retry.LoadTimeout = floor, floor
		o.observing = true
	}
	t.Run("goes on", func(t *testing.T) {
		tr := newTroupe(t, f.good(true))
		tr.reads = func(c net.Conn) io.Reader {
			c.(*net.TCPConn).SetReadBuffer(256 << 10)
			return &slowly{Conn: c, most: math.MaxInt}
		}
		r := newRig(t, tr, quick)
		began := time.Now()
		got := r.post(f.path, body)
		require.Equal(t, f.events(), got.body)
		require.Greater(t, time.Since(began), floor, "slow enough to prove something")
		require.Equal(t, "1", got.header.Get("X-Switchyard-Attempts"))
		require.Zero(t, r.failures())
	})
	t.Run("stops", func(t *testing.T) {
		var stopped atomic.Bool
		gone := make(chan struct{})
		defer close(gone)
		tr := newTroupe(t, f.good(true))
		tr.reads = func(c net.Conn) io.Reader {
			if stopped.Swap(true) {
				return c
			}
			return &slowly{Conn: c, most: 1 << 20, gone: gone}
		}
		r := newRig(t, tr, quick, func(o *rigging) { o.settings.StallTimeout = stallInTests })
		got := r.post(f.path, body)
		require.Equal(t, f.events(), got.body)
		require.Equal(t, "2", got.header.Get("X-Switchyard-Attempts"))
		require.EqualValues(t, 1, r.failures())
	})
}

// R7: both forms of Retry-After, and the finer one of gateways like this.
func TestRetryAfterFormsR7(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name, value string
		want        time.Duration
	}{
		{"Retry-After", "7", 7 * time.Second},
		{"Retry-After", " 7 ", 7 * time.Second},
		{"Retry-After", "Mon, 30 Nov 2026 12:00:09 GMT", 9 * time.Second},
		{"Retry-After", "Mon, 30 Nov 2026 11:00:00 GMT", 0},
		{"Retry-After", "soon", 0},
		{"Retry-After", "-3", 0},
		{"Retry-After", "99999999999999", 0},
		{"Retry-After-Ms", "1500", 1500 * time.Millisecond},
		{"Retry-After-Ms", "-1", 0},
		{"X-Other", "7", 0},
	} {
		h := http.Header{}
		h.Set(c.name, c.value)
		require.Equal(t, c.want, retryAfter(h, now), "%s: %s", c.name, c.value)
	}
	require.Equal(t, 100*time.Millisecond, retryAfter(http.Header{"Retry-After": {"1"}, "Retry-After-Ms": {"100"}}, now))
}

// R7: a replica that says it is busy is held off for as long as it says, and no
// longer; the request keeps its place and is answered there in the end.
func TestBusyReplicaIsAskedAgainR7(t *testing.T) {
	f := faces[0]
	var busyAt, againAt time.Time
	tr := newTroupe(t, func(k *call) {
		busyAt = time.Now()
		k.whole(503, jsonMedia, f.mistake, "Retry-After-Ms: 120")
	}, func(k *call) {
		againAt = time.Now()
		f.good(true)(k)
	})
	r := newRig(t, tr, func(o *rigging) { o.replicas = 1 })
	got := r.post(f.path, f.body(true))
	require.Equal(t, 200, got.status)
	require.Equal(t, "2", got.header.Get("X-Switchyard-Attempts"))
	require.GreaterOrEqual(t, againAt.Sub(busyAt), 120*time.Millisecond)
	require.Zero(t, r.failures())
}

// R7: the same 5xx from a second replica is the request's own fault: it is not
// tried a third time, and the replica's own error is passed on. PAINS 8.
func TestPoisonIsNotPassedAroundR7(t *testing.T) {
	f := faces[0]
	tr := newTroupe(t, func(k *call) { k.whole(500, jsonMedia, f.mistake) })
	r := newRig(t, tr, func(o *rigging) { o.replicas = 3 })
	for i := range 2 {
		got := r.post(f.path, f.body(true))
		require.Equal(t, 500, got.status)
		require.Equal(t, f.mistake, got.body)
		require.Len(t, tr.calls(), 2*(i+1))
	}
	require.EqualValues(t, 2, r.totals().Failed)
}

// PAINS 14, 15: while the replica is seen to make progress, a first token may
// take longer than its timeout.
func TestProgressPutsTheTimeoutOffR7(t *testing.T) {
	f := faces[3]
	asked := make(chan struct{}, 1)
	answer := make(chan struct{})
	tr := newTroupe(t, func(k *call) {
		reach(asked)
		<-answer
		f.good(true)(k)
	})
	r := newRig(t, tr, func(o *rigging) {
		o.engine, o.replicas = f.engine, 1
		o.retry.LoadTimeout, o.retry.FirstTokenFloor = 10*time.Second, 150*time.Millisecond
		o.facts.Slots = 4
	})
	// Once something is known, the floor is the timeout.
	r.gw.Observe(time.Now(), "a", llamaFacts(time.Now(), 0, 1))
	go func() { answer <- struct{}{} }()
	require.Equal(t, 200, r.post(f.path, f.body(true)).status)
	<-asked
	got := make(chan reply)
	go func() { got <- r.post(f.path, f.body(true)) }()
	<-asked
	begun := time.Now()
	for i := 2; time.Since(begun) < 600*time.Millisecond; i++ {
		r.gw.Observe(time.Now(), "a", llamaFacts(time.Now(), 1, i))
		<-time.After(50 * time.Millisecond)
	}
	close(answer)
	require.Equal(t, 200, (<-got).status)
	require.Zero(t, r.failures())
}

func llamaFacts(at time.Time, inHand, progress int) replica.Facts {
	return replica.Facts{
		At: at, Up: true, Engine: replica.EngineLlamaCpp, AnyModel: true, ModelsRead: true, Slots: 4,
		InHand: inHand, Waiting: -1, Progress: progress,
	}
}

// R7: at half of its remaining deadline a silent attempt moves to another
// replica with a free slot; whether the first one hung is found out later.
func TestSilentAttemptMovesR7(t *testing.T) {
	f := faces[0]
	tr := newTroupe(t, f.good(true), f.good(true), f.good(true), f.good(true), (*call).untilGone, f.good(true))
	r := newRig(t, tr, func(o *rigging) { o.slots = 1; o.retry.FirstTokenFloor = time.Minute })
	for range 4 { // both replicas are known then
		require.Equal(t, 200, r.post(f.path, f.body(true)).status)
	}
	begun := time.Now()
	got := r.post(f.path, f.body(true), "X-Switchyard-Deadline: 1s")
	require.Equal(t, 200, got.status, "%s", got.raw)
	require.Equal(t, "2", got.header.Get("X-Switchyard-Attempts"))
	require.GreaterOrEqual(t, time.Since(begun), 450*time.Millisecond)
	calls := tr.calls()
	require.NotEqual(t, calls[4].replica, calls[5].replica)
	r.settle()
	require.Zero(t, r.failures(), "it answered the end of our side at once: it did not hang")
}

// R15: what the end of draining overtakes gets a proper error, whatever it was
// doing: waiting for a slot, for its first token, or in the middle of a stream.
func TestEndOfDrainingR15(t *testing.T) {
	f := faces[0]
	tr := newTroupe(t, func(k *call) {
		k.streamHead(f.media)
		k.chunk(f.begin + f.content[0])
		k.untilGone()
	}, (*call).untilGone)
	r := newRig(t, tr, func(o *rigging) {
		o.replicas, o.slots = 1, 2
		o.observing = true
		o.settings.Limits.DrainTimeout = 50 * time.Millisecond
	})
	streaming := r.connect(f.path, f.body(true), "Connection: close")
	seen := readUntil(t, streaming, "zm")
	silent := r.connect(f.path, f.body(true), "Connection: close")
	require.True(t, soon(func() bool { return len(tr.calls()) == 2 }))
	queued := r.connect(f.path, f.body(true), "Connection: close")
	require.True(t, soon(func() bool { return r.totals().Queued == 1 }))
	require.NoError(t, r.gw.Shutdown(context.Background()))

	rest, _ := io.ReadAll(streaming)
	require.Contains(t, seen+string(rest), f.errorIs)
	require.NotContains(t, seen+string(rest), "[DONE]")
	for _, c := range []io.Reader{silent, queued} {
		raw, err := io.ReadAll(c)
		require.NoError(t, err)
		got := parseReply(t, raw)
		require.Equal(t, 503, got.status)
		require.Equal(t, "draining", got.header.Get("X-Switchyard-Reason"))
		require.NotEmpty(t, got.header.Get("Retry-After"))
		require.True(t, got.clean)
	}
	totals := r.totals()
	require.EqualValues(t, 1, totals.Failed, "%+v", totals)
	require.EqualValues(t, 2, totals.Refused, "%+v", totals)
	require.Zero(t, r.failures())
}

// PAINS 7: reasoning and tool calls are content: they commit, and they are
// tokens.
func TestAnyContentIsTheFirstToken(t *testing.T) {
	f := faces[0]
	for name, delta := range map[string]string{
		"reasoning": `{"reasoning_content":"hm"}`,
		"tool call": `{"tool_calls":[{"index":0,"id":"t","type":"function","function":{"name":"f","arguments":""}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTroupe(t, func(k *call) {
				k.streamHead(f.media)
				k.chunk(f.begin)
				k.chunk(fmt.Sprintf(`data: {"choices":[{"index":0,"finish_reason":null,"delta":%s}]}`+"\n\n", delta))
			}, f.good(true))
			r := newRig(t, tr)
			got := r.post(f.path, f.body(true))
			require.Contains(t, got.body, delta)
			require.Contains(t, got.body, f.errorIs, "it was committed")
			require.NotZero(t, r.seen.record(t, 1).FirstToken)
		})
	}
}

// R7: progress events are held back like a role, unless the client asked for
// them: then they commit.
func TestProgressEventsR7(t *testing.T) {
	f := faces[0]
	progress := `data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"prompt_progress":{"total":23,"cache":7,"processed":7,"time_ms":0}}` + "\n\n"
	fail := func(k *call) { k.streamHead(f.media); k.chunk(f.begin + progress) }
	t.Run("not asked for", func(t *testing.T) {
		tr := newTroupe(t, fail, func(k *call) { k.streamHead(f.media); k.chunk(progress + f.events()); k.end() })
		got := newRig(t, tr).post(f.path, f.body(true))
		require.Equal(t, progress+f.events(), got.body)
		require.Equal(t, "2", got.header.Get("X-Switchyard-Attempts"))
	})
	t.Run("asked for", func(t *testing.T) {
		tr := newTroupe(t, fail, f.good(true))
		r := newRig(t, tr)
		got := r.post(f.path, strings.Replace(f.body(true), "{", `{"return_progress":true,`, 1))
		require.True(t, strings.HasPrefix(got.body, f.begin+progress+f.errorIs), "%s", got.body)
		require.Len(t, tr.calls(), 1)
		require.Equal(t, admission.Failed, r.seen.record(t, 1).Outcome)
	})
}

// R7: an answer with a terminal event and no content is a success.
func TestTerminalWithoutContentR7(t *testing.T) {
	for _, f := range faces {
		t.Run(f.name, func(t *testing.T) {
			tr := newTroupe(t, func(k *call) { k.streamHead(f.media); k.chunk(f.begin + f.terminal); k.end() })
			r := newRig(t, tr, func(o *rigging) { o.engine = f.engine })
			got := r.post(f.path, f.body(true))
			require.Equal(t, f.begin+f.terminal, got.body)
			require.True(t, got.clean)
			require.Equal(t, "1", got.header.Get("X-Switchyard-Attempts"))
		})
	}
}

// A fault of ours in the middle of an attempt costs no slot (R1) and no balance
// (R13), and the client hears of it.
func TestFaultsCostNoSlotR1(t *testing.T) {
	f := faces[0]
	tr := newTroupe(t, f.good(true))
	r := newRig(t, tr, func(o *rigging) { o.faulty = true })
	got := r.post(f.path, f.body(true))
	require.Equal(t, 500, got.status)
	require.Contains(t, got.body, `"error"`)
	r.settle()
	require.EqualValues(t, 1, r.totals().Failed)
	require.Zero(t, r.failures())
}

type faulty struct{ *witness }

func (faulty) FirstToken(string, string, time.Duration) { panic("a fault") }

// R7: a replica that cannot speak TLS is down like one that refuses.
func TestTLSErrorsR7(t *testing.T) {
	f := faces[0]
	tr := newTroupe(t, f.good(true))
	r := newRig(t, tr, func(o *rigging) { o.slots = 1 })
	s := *r.gw.settings()
	s.Replicas = append([]Replica(nil), s.Replicas...)
	u := *s.Replicas[0].URL
	u.Scheme = "https"
	s.Replicas[0].URL = &u
	r.gw.Apply(s)
	for range 3 {
		got := r.post(f.path, f.body(true))
		require.Equal(t, 200, got.status, "%s", got.raw)
		require.Equal(t, "b", got.header.Get("X-Switchyard-Replica"))
	}
	require.NotZero(t, r.failures())
	require.Contains(t, r.seen.after(t, 3).attempts, "connect")
}

// PAINS 2, R9: a trial whose client leaves gives its place back.
func TestTrialPlaceComesBackR9(t *testing.T) {
	f := faces[0]
	reached := make(chan struct{}, 1)
	tr := newTroupe(t,
		(*call).reset, (*call).reset, (*call).reset,
		func(k *call) { reach(reached); k.untilGone() },
		f.good(true))
	r := newRig(t, tr, func(o *rigging) {
		o.replicas = 1
		o.breaker.ConsecutiveFailures, o.breaker.Cooldown = 3, 100*time.Millisecond
	})
	require.Equal(t, 502, r.post(f.path, f.body(true)).status)
	state := func() string { return r.ctl.Snapshot(time.Now()).Replicas[0].Breaker.State }
	require.Equal(t, "open", state())
	require.True(t, soon(func() bool { return state() == "half-open" }))
	c := r.connect(f.path, f.body(true))
	<-reached
	c.Close()
	r.seen.record(t, 2)
	got := r.post(f.path, f.body(true))
	require.Equal(t, 200, got.status, "%s", got.raw)
}
