package bench

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/simserver"
)

// built is the whole program: the gateway is a process of its own.
var built struct {
	sync.Once
	dir string
	err error
}

func binary(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the program and takes seconds")
	}
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "switchyard-bench-test-"); built.err == nil {
			out, err := exec.Command("go", "build", "-o", built.dir, "switchyard/cmd/switchyard").CombinedOutput()
			if err != nil {
				built.err = fmt.Errorf("%w: %s", err, out)
			}
		}
	})
	require.NoError(t, built.err)
	return filepath.Join(built.dir, "switchyard")
}

// live runs a target over real sockets.
func live(t *testing.T, s *Scenario, target string, from traffic) *Trial {
	t.Helper()
	to, err := ParseTarget(target)
	require.NoError(t, err)
	trial, err := runLive(t.Context(), s, to, from, LiveOptions{Binary: binary(t)})
	require.NoError(t, err)
	return trial
}

// quick is two engines on one device, twenty times faster than life: about
// eight requests a second, of which each takes a second in four slots.
const quick = `
name: quick
replicas:
  - {name: a, engine: llamacpp, model: m, slots: 2, prefill: 20000, decode: 400, gpu_share: card, output_tokens: "lognormal:100,0.5"}
  - {name: b, engine: ollama, model: m, slots: 2, prefill: 20000, decode: 400, gpu_share: card, output_tokens: "lognormal:100,0.5"}
classes: [{name: standard, deadline: 1s}]
traffic:
  - {kind: poisson, rate: 15, requests: 50, prompt_tokens: "lognormal:400,0.8", max_tokens: 512}
`

// Each target over real sockets: what must hold holds, and the numbers are those
// of the virtual run, as far as a busy test machine lets them.
func TestLiveAgreesWithVirtual(t *testing.T) {
	s := scenario(t, quick)
	onTime := func(r *Record) bool { return r.OnTime }
	for _, target := range []string{"round-robin", "least-connections", "switchyard"} {
		got := live(t, s, target, s.NewTraffic(1))
		require.Empty(t, got.Violations, target)
		virtual := try(t, s, target, s.NewTraffic(1))
		require.Len(t, got.Records, len(virtual.Records))
		for i := range got.Records {
			l, v := &got.Records[i], &virtual.Records[i]
			require.Equal(t, v.ID, l.ID, "the same traffic")
			require.Empty(t, l.Error, "%s: %+v", target, l)
			if l.Status == 200 && v.Status == 200 {
				require.Equal(t, v.OutputTokens, l.OutputTokens, "%s %s: the answer is the request's", target, l.ID)
			}
			if l.Status == 429 {
				require.NotNil(t, l.RetryAfterS)
				require.GreaterOrEqual(t, *l.RetryAfterS, 1.0)
			}
		}
		n, m := howMany(got.Records, onTime), howMany(virtual.Records, onTime)
		t.Logf("%s: %d on time live, %d virtual", target, n, m)
		require.InDelta(t, m, n, 4+0.35*float64(m), target)
		for i := range got.Replicas {
			if target == "switchyard" {
				require.LessOrEqual(t, got.Replicas[i].Stats.MaxInHand, 2, "R1")
			}
		}
	}
}

// R7, R8 over real sockets, and clients that leave.
func TestLiveFaultsAndDepartures(t *testing.T) {
	s := scenario(t, `
replicas:
  - {name: a, engine: llamacpp, model: m, slots: 2, prefill: 20000, decode: 200, faults: [{at: 600ms, kind: crash, for: 800ms}]}
  - {name: b, engine: vllm, model: m, slots: 2, prefill: 20000, decode: 200}
  - {name: c, engine: ollama, model: m, slots: 2, prefill: 400, decode: 200}
classes: [{name: standard, deadline: 10s}]
gateway: {health: {interval: 200ms}}
traffic: [{kind: poisson, rate: 1, requests: 1}]
`)
	list := steady(40, 50*time.Millisecond, 40)
	for i, r := range list {
		if i%10 == 9 { // two seconds of prompt on c, and half a second of patience
			r.PromptTokens, r.Prompt[0].Tokens, r.Patience = 800, 800, 500*time.Millisecond
		}
		r.Stream = i%7 != 0
	}
	trial := live(t, s, "switchyard", newScript(list...))
	require.Empty(t, trial.Violations)
	for _, r := range trial.Records {
		switch {
		case r.Error == ErrLeft:
			require.Nil(t, r.FirstTokenS)
		case r.Error != "":
			require.NotNil(t, r.FirstTokenS, "R7: an error before the first byte: %+v", r)
			require.Equal(t, string(admission.ReasonUpstreamFailed), r.Code, "R8: %+v", r)
		default:
			require.Equal(t, 200, r.Status, "%+v", r)
			require.Equal(t, 40, r.OutputTokens)
		}
	}
}

// What a client would see of a request is what the tables are made of.
func TestLiveProxyStreamsAtOnce(t *testing.T) {
	next := make(chan struct{})
	replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"w%d\"}}]}\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	}))
	defer replica.Close()
	s := &Scenario{Replicas: []Replica{{Spec: simserver.Spec{Name: "a"}}}}
	p, err := startProxy(s, []string{replica.URL}, false)
	require.NoError(t, err)
	defer p.close()
	resp, err := http.Get(p.base + chatPath)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, "a", resp.Header.Get("X-Switchyard-Replica"))
	b := make([]byte, 1000)
	for i := range 3 { // each event is there before the next is made
		n, err := resp.Body.Read(b)
		require.NoError(t, err)
		require.Contains(t, string(b[:n]), fmt.Sprint("w", i))
		next <- struct{}{}
	}
	_, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
	http.DefaultClient.CloseIdleConnections()
}

// A body has as many tokens for the simulator as the request says, and the same
// beginning where prompts begin alike.
func TestBodyHasTheTokensOfTheRequest(t *testing.T) {
	s, err := simserver.Start(simserver.Options{Engine: "vllm", Models: []string{"m"}, Prefill: 1e9, Decode: 1e9, Context: 1 << 20})
	require.NoError(t, err)
	defer s.Close()
	l := newLoad(newScript(), s.URL())
	defer l.client.CloseIdleConnections()
	system := Part{Role: RoleSystem, Seed: 7, Tokens: 640}
	for i, prompt := range [][]Part{
		{{Role: RoleUser, Seed: 1, Tokens: 5}},
		{system, {Role: RoleUser, Seed: 2, Tokens: 100}},
		{system, {Role: RoleUser, Seed: 3, Tokens: 99}, {Seed: 4, Tokens: 300}, {Role: RoleAssistant, Seed: 5, Tokens: 64}, {Role: RoleUser, Seed: 6, Tokens: 9}},
	} {
		tokens := tokensOf(prompt)
		before := s.Stats()
		c := &caller{r: &Request{ID: "x", Model: "m", Stream: i%2 == 0, Prompt: prompt, PromptTokens: tokens, MaxTokens: 9, OutputTokens: 7}, began: time.Now()}
		c.call(t.Context(), l.client, s.URL(), body(c.r, nil))
		require.Equal(t, 200, c.rec.Status)
		require.Empty(t, c.rec.Error)
		require.Equal(t, 7, c.rec.OutputTokens)
		require.Equal(t, tokens, s.Stats().PromptTokens-before.PromptTokens)
		if i == 2 {
			require.InDelta(t, 640, c.rec.CachedTokens, 16, "the system prompt was there")
		}
		require.Equal(t, tokens, modelTokens(prompt), "and for the virtual run")
	}
}

func modelTokens(prompt []Part) (n int) {
	for _, p := range chain(nil, prompt...) {
		n += p.Tokens
	}
	return n
}

// Another gateway in front of the same replicas, which have fixed addresses.
func TestLiveForeignGateway(t *testing.T) {
	var urls []string
	s := scenario(t, quick)
	s.Traffic[0].Requests = 8
	for i := range s.Replicas {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		s.Replicas[i].Listen = ln.Addr().String()
		urls = append(urls, "http://"+ln.Addr().String())
		require.NoError(t, ln.Close())
	}
	p, err := startProxy(s, urls, false)
	require.NoError(t, err)
	defer p.close()
	trial := live(t, s, "url:other="+p.base, s.NewTraffic(1))
	require.Empty(t, trial.Violations)
	require.Len(t, trial.Records, 8)
	for _, r := range trial.Records {
		require.Equal(t, 200, r.Status)
	}
	require.Equal(t, 4, trial.Replicas[1].Stats.Completed)
}

// A client that leaves in the moment in which its answer comes may be on the
// gateway's books as answered; nothing else may differ.
func TestBooksAllowForPartingClients(t *testing.T) {
	own := admission.Totals{Completed: 5, Refused: 2, Cancelled: 3}
	require.Equal(t, admission.Totals{Completed: 6, Refused: 3, Cancelled: 1}, parted(own, admission.Totals{Completed: 6, Refused: 3, Cancelled: 1}))
	require.Equal(t, own, parted(own, own))
	require.Equal(t, own, parted(own, admission.Totals{Completed: 6, Refused: 2, Cancelled: 3}), "one more than there were")
}

func TestWhatTheBooksMustSay(t *testing.T) {
	require.Equal(t, admission.Totals{Completed: 2, Refused: 2, Failed: 4, Cancelled: 1}, seen([]Record{
		{Status: 200, Replica: "a"},
		{Status: 400, Code: "invalid_request_error", Replica: "a"}, // passed on
		{Status: 429, Code: "deadline_unmeetable"},
		{Status: 503, Code: "no_replica"},
		{Status: 500, Code: "server_error", Replica: "a"}, // passed on
		{Status: 502, Code: "upstream_failed"},
		{Status: 200, Replica: "a", Error: "the stream broke off with an error event"},
		{Error: "connection reset"},
		{Error: ErrLeft},
	}))
}
