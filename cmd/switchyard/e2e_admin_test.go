package main

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/config"
	"switchyard/simserver"
)

// three are replicas of three engines that serve one model.
func three() (all []simserver.Options) {
	for i, engine := range []string{"llamacpp", "ollama", "vllm"} {
		all = append(all, simserver.Options{
			Name: "r" + engine, Engine: engine, Models: []string{simModel}, Slots: 2, Prefill: 20000, Decode: 400,
			LoadTime: time.Millisecond, Seed: uint64(i),
		})
	}
	return all
}

// do sends a request to the admin side.
func (r *rig) do(method, path string, header ...string) reply {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.admin+path, nil)
	require.NoError(r.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	x := (&tongue{}).send(r.client, req, query{})
	require.NoError(r.t, x.err)
	return x
}

// With admin.token_env set, everything but the health checks and the page's
// own files needs the token.
func TestAdminToken(t *testing.T) {
	t.Setenv("SWITCHYARD_TEST_ADMIN", "open-sesame")
	r := newRig(t, setup{replicas: three()[:1], tune: func(c *config.Config) { c.Admin.TokenEnv = "SWITCHYARD_TEST_ADMIN" }})
	for _, path := range []string{"/metrics", "/admin/state", "/admin/events", "/admin/decisions", "/admin/decisions/x"} {
		x := r.do("GET", path)
		require.Equal(t, http.StatusUnauthorized, x.status, path)
		require.Contains(t, x.header.Get("Www-Authenticate"), "Bearer")
		require.Equal(t, http.StatusUnauthorized, r.do("GET", path, "Authorization", "Bearer open-sesam").status, path)
	}
	for _, path := range []string{"/admin/replicas/rllamacpp/drain", "/admin/reload"} {
		require.Equal(t, http.StatusUnauthorized, r.do("POST", path).status, path)
	}
	for _, path := range []string{"/healthz", "/readyz", "/", "/dashboard/"} {
		require.Equal(t, http.StatusOK, r.do("GET", path).status, path)
	}
	for _, path := range []string{"/metrics", "/admin/state", "/admin/decisions"} {
		require.Equal(t, http.StatusOK, r.do("GET", path, "Authorization", "Bearer open-sesame").status, path)
	}
	got := command(t, "status", "--admin", strings.TrimPrefix(r.admin, "http://"))
	require.Equal(t, exitFail, got.code)
	require.Contains(t, got.err, "401")
	t.Setenv("SWITCHYARD_ADMIN_TOKEN", "open-sesame")
	require.Equal(t, exitWell, command(t, "status", "--admin", r.admin).code)
	require.NotContains(t, got.out+got.err, "sesame")
}

// R15: a replica is drained and resumed; a page of another site cannot do it.
func TestAdminDrain(t *testing.T) {
	r := newRig(t, setup{replicas: two("llamacpp")})
	served := func(only string) {
		t.Helper()
		for i := range 6 {
			x := openAI.ask(t.Context(), r.client, r.base, query{prompt: prompt(i, 10), tokens: 2})
			x.mustBe(t, "whole")
			if only != "" {
				require.Equal(t, only, x.header.Get("X-Switchyard-Replica"))
			}
		}
	}
	drain := "/admin/replicas/a/drain"
	require.Equal(t, http.StatusForbidden, r.do("POST", drain, "Origin", "https://evil.example").status)
	require.Equal(t, http.StatusForbidden, r.do("POST", drain, "Sec-Fetch-Site", "cross-site").status)
	require.False(t, r.replica("a").Draining)
	require.Equal(t, http.StatusMethodNotAllowed, r.do("GET", drain).status)
	require.Equal(t, http.StatusNotFound, r.do("POST", "/admin/replicas/zebra/drain").status)
	require.Equal(t, http.StatusUnprocessableEntity, r.do("POST", "/admin/reload").status, "there is no file")

	running := openAI.request(t.Context(), r.base, query{prompt: "under way", stream: true, tokens: 60})
	ended := make(chan reply, 1)
	go func() { ended <- openAI.send(r.client, running, query{stream: true}) }()
	r.untilUnderWay(1, 0)
	busy := "a"
	if r.fleet[1].Stats().InHand == 1 {
		busy = "b"
	}
	other := map[string]string{"a": "b", "b": "a"}[busy]
	x := r.do("POST", "/admin/replicas/"+busy+"/drain", "Origin", r.admin)
	require.Equal(t, http.StatusOK, x.status, x.body)
	require.JSONEq(t, `{"replica":"`+busy+`","draining":true}`, x.body)
	served(other)
	(<-ended).mustBe(t, "whole") // what runs there ends
	require.Equal(t, http.StatusOK, r.do("POST", "/admin/replicas/"+other+"/drain").status)
	require.Equal(t, http.StatusServiceUnavailable, r.status("/readyz"))
	openAI.ask(t.Context(), r.client, r.base, query{prompt: "nobody is left", tokens: 2}).mustBe(t, "error")
	require.Equal(t, http.StatusOK, r.do("POST", "/admin/replicas/"+busy+"/resume").status)
	served(busy)
}

// Why a request went where it did can be asked afterwards, by its id.
func TestAdminDecisions(t *testing.T) {
	log := filepath.Join(t.TempDir(), "decisions.jsonl")
	r := newRig(t, setup{replicas: two("llamacpp"), tune: func(c *config.Config) { c.Log.Decisions = log }})
	require.NoError(t, r.fleet[0].SetFault(simserver.Fault{Kind: "empty"}))
	for i := range 6 { // every other one meets the replica that fails, until its breaker opens
		req := openAI.request(t.Context(), r.base, query{prompt: prompt(i, 10), tokens: 2})
		req.Header.Set("X-Request-ID", fmt.Sprint("ask-", i))
		req.Header.Set("Priority", "u=1")
		x := openAI.send(r.client, req, query{})
		x.mustBe(t, "whole")
		require.Equal(t, fmt.Sprint("ask-", i), x.header.Get("X-Request-Id"))
		require.Equal(t, "interactive", x.header.Get("X-Switchyard-Class"))
	}
	impossible := openAI.request(t.Context(), r.base, query{prompt: prompt(9, 10), tokens: 2})
	impossible.Header.Set("X-Request-ID", "in-vain")
	impossible.Header.Set("X-Switchyard-Deadline", "1ns")
	openAI.send(r.client, impossible, query{}).mustBe(t, "error")
	r.untilEnded(7)

	var all []admission.Decision
	r.getJSON("/admin/decisions?limit=3", &all)
	require.Len(t, all, 3)
	require.Equal(t, "in-vain", all[0].ID)
	require.Equal(t, "ask-5", all[1].ID)
	var refused admission.Decision
	r.getJSON("/admin/decisions/in-vain", &refused)
	require.Equal(t, "refused", refused.Outcome)
	require.Equal(t, admission.ReasonDeadlineUnmeetable, refused.Reason)
	require.Empty(t, refused.Attempts)
	require.Positive(t, refused.RetryAfterS)
	var first admission.Decision
	r.getJSON("/admin/decisions/ask-0", &first)
	require.Equal(t, "completed", first.Outcome)
	require.Equal(t, "interactive", first.Class)
	require.Equal(t, "anonymous", first.Key)
	require.Equal(t, simModel, first.Model)
	require.InDelta(t, 10, first.DeadlineS, 1e-6)
	require.Len(t, first.Candidates, 2)
	last := first.Attempts[len(first.Attempts)-1]
	require.Equal(t, "b", last.Replica)
	require.Equal(t, "ok", last.Result)
	require.Equal(t, http.StatusNotFound, r.do("GET", "/admin/decisions/nobody").status)
	require.Equal(t, http.StatusBadRequest, r.do("GET", "/admin/decisions?limit=none").status)
	r.close()
	written, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, 7, strings.Count(string(written), "\n"))
	require.NotContains(t, string(written), "word", "prompts are never logged")
}

// The live stream tells the state and each request's end.
func TestAdminEvents(t *testing.T) {
	r := newRig(t, setup{replicas: three()[:1]})
	resp, err := r.client.Get(r.admin + "/admin/events")
	require.NoError(t, err)
	defer resp.Body.Close()
	events := bufio.NewScanner(resp.Body)
	events.Buffer(nil, 1<<20)
	until := func(prefix string) string {
		for events.Scan() {
			if strings.HasPrefix(events.Text(), prefix) {
				return events.Text()
			}
		}
		require.Fail(t, "the stream ended", "%v", events.Err())
		return ""
	}
	until("event: state")
	require.Contains(t, until("data: "), `"totals":{"arrived":0`)
	openAI.ask(t.Context(), r.client, r.base, query{prompt: "hello", tokens: 2}).mustBe(t, "whole")
	until("event: request")
	require.Contains(t, until("data: "), `"outcome":"completed"`)
}

// metricNames are those of the interface that this version feeds.
var metricNames = strings.Fields(`
	switchyard_requests_total switchyard_arrivals_total switchyard_running_requests switchyard_refusals_total
	switchyard_promises_total switchyard_queue_requests switchyard_queue_bytes switchyard_queue_wait_seconds
	switchyard_forecast_error_seconds switchyard_refusal_seconds switchyard_attempts_total switchyard_retries_total
	switchyard_replica_slots switchyard_replica_up switchyard_breaker_state switchyard_breaker_allowance
	switchyard_prompt_tokens_total switchyard_cached_tokens_total switchyard_output_tokens_total
	switchyard_streams_broken_total gen_ai_server_time_to_first_token_seconds
	gen_ai_server_time_per_output_token_seconds gen_ai_server_request_duration_seconds`)

// R13: metrics, state and the status command tell the same books, under the
// names of the interface.
func TestMetricsAndStatus(t *testing.T) {
	r := newRig(t, setup{replicas: two("llamacpp"), tune: func(c *config.Config) {
		c.Retry.Budget, c.Breaker.ConsecutiveFailures = 1, 10 // no breaker opens here
	}})
	ask := func(q query) reply { return openAI.ask(t.Context(), r.client, r.base, q) }
	for i := range 4 {
		ask(query{prompt: prompt(i, 30), stream: true, tokens: 5}).mustBe(t, "whole")
	}
	for _, f := range []simserver.Fault{{Kind: "empty"}, {Kind: "cut", AfterTokens: 2}} {
		for _, s := range r.fleet {
			require.NoError(t, s.SetFault(f))
		}
		ask(query{prompt: "retried or broken", stream: true, tokens: 5})
	}
	refused := openAI.request(t.Context(), r.base, query{prompt: "no time", tokens: 5})
	refused.Header.Set("X-Switchyard-Deadline", "1ns")
	openAI.send(r.client, refused, query{}).mustBe(t, "error")
	r.untilEnded(7)

	text := r.do("GET", "/metrics").body
	for _, name := range metricNames {
		require.Regexp(t, `(?m)^`+name+`(_count)?(\{[^}]*\})? [0-9.e+-]+$`, text, name)
	}
	for _, line := range []string{
		`switchyard_requests_total{class="standard",key="anonymous",model="m",outcome="completed"} 4`,
		`switchyard_requests_total{class="standard",key="anonymous",model="m",outcome="failed"} 2`,
		`switchyard_requests_total{class="standard",key="anonymous",model="m",outcome="refused"} 1`,
		`switchyard_refusals_total{class="standard",reason="deadline_unmeetable"} 1`,
		`switchyard_replica_slots{replica="a",state="free"} 4`,
		`switchyard_replica_up{replica="b"} 1`,
		`switchyard_breaker_state{replica="a"} 0`,
		`switchyard_breaker_allowance{replica="b"} 1`,
		`switchyard_refusal_seconds_count 1`,
	} {
		require.Contains(t, text, line+"\n")
	}
	totals := r.state().Totals
	require.Equal(t, admission.Totals{Arrived: 7, Completed: 4, Refused: 1, Failed: 2}, totals)

	got := command(t, "status", "--admin", r.admin)
	require.Equal(t, outcome{exitWell, got.out, ""}, got)
	for _, line := range []string{
		`(?m)^serving, up \S+, version \S+`,
		`(?m)^arrived 7 = completed 4 \+ refused 1 \+ failed 2 \+ cancelled 0 \+ queued 0 \+ running 0; promises kept \d+, broken \d+$`,
		`(?m)^a +llamacpp +up +4 +0 +0 +0 +\d+ +\d+ +m, \(any name\)$`,
		`(?m)^interactive +0 +0 +0.0s +0 +0$`,
	} {
		require.Regexp(t, line, got.out)
	}
	nobody := command(t, "status", "--admin", "http://127.0.0.1:1")
	require.Equal(t, exitFail, nobody.code)
	require.Contains(t, nobody.err, "is it running")
	require.Equal(t, exitFail, command(t, "status", "--admin", r.base).code, "that is the data plane")
}

// The demo runs by itself and ends with books that balance.
func TestDemo(t *testing.T) {
	got := command(t, "demo", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--for", "3s", "--rate", "12")
	require.Equal(t, exitWell, got.code, "%s%s", got.out, got.err)
	require.Empty(t, got.err)
	m := regexp.MustCompile(`Books: arrived (\d+) = completed (\d+) \+ refused (\d+) \+ failed (\d+) \+ cancelled (\d+) \+ queued 0 \+ running 0\n`).FindStringSubmatch(got.out)
	require.NotNil(t, m, got.out)
	n := make([]int, 5)
	for i := range n {
		_, err := fmt.Sscan(m[i+1], &n[i])
		require.NoError(t, err)
	}
	require.Equal(t, n[0], n[1]+n[2]+n[3]+n[4])
	require.Positive(t, n[1])
	for _, line := range []string{
		`The gateway serves on http://127\.0\.0\.1:\d+, its dashboard on http://127\.0\.0\.1:\d+/`,
		`Promises: \d+ kept, \d+ broken`, `Time to first token: p50 \S+, p90 \S+, p99 \S+`,
		`llama +slots 2, max_in_hand [0-2], served \d+`, `ollama +slots 2, max_in_hand [0-2], served \d+`, `vllm +slots 4, max_in_hand [0-4], served \d+`,
	} {
		require.Regexp(t, line, got.out)
	}
	require.GreaterOrEqual(t, strings.Count(got.out, "  curl "), 3)
	for _, args := range [][]string{{"--rate", "0"}, {"--rate", "1001"}, {"--for", "-1s"}, {"--for=-1s"}} {
		require.Equal(t, exitUsage, command(t, append([]string{"demo"}, args...)...).code)
	}
}
