package gateway

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/replica"
)

// TestOddInputR17 goes through what clients and others send that is not a
// plain request. Each is answered by the gateway alone, with a code.
func TestOddInputR17(t *testing.T) {
	line := func(first string, headers ...string) string {
		return first + " HTTP/1.1\r\nHost: x\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n"
	}
	big := strings.Repeat("x", 5000)
	tr := newTroupe(t, chatAct)
	d := newDesk(t, tr, func(s *Settings) {
		s.Instance = "me"
		s.Limits.MaxBody = 4096
		s.Limits.ReadBodyTimeout = 300 * time.Millisecond
	}, openAI("a", "m", "n"))
	for _, tc := range []struct {
		name   string
		send   string
		status int
		reason string
		says   string
	}{
		{"unknown path", line("GET /nothing"), 404, "not_found", "/nothing"},
		{"unknown path with a body", request("/v1/nothing", "{}"), 404, "not_found", ""},
		{"a double slash is another path", request("//v1/chat/completions", chatBody), 404, "not_found", ""},
		{"so is a slash behind", request(chat+"/", chatBody), 404, "not_found", ""},
		{"and an escaped one", request("/v1%2Fchat/completions", chatBody), 404, "not_found", ""},
		{"and dots", request("/v1/./chat/completions", chatBody), 404, "not_found", ""},
		{"wrong method", line("GET " + chat), 405, "method_not_allowed", "POST"},
		{"wrong method on a list", request("/v1/models", "{}"), 405, "method_not_allowed", "GET, HEAD"},
		{"a method of its own", line("BREW " + chat), 405, "method_not_allowed", ""},
		{"OPTIONS without CORS", line("OPTIONS " + chat), 405, "method_not_allowed", ""},
		{"CONNECT", line("CONNECT other:443"), 501, "not_supported", ""},
		{"an upgrade", line("GET /v1/models", "Connection: Upgrade", "Upgrade: websocket"), 501, "not_supported", ""},
		{"an upgrade of a POST", request(chat, chatBody, "Connection: Upgrade", "Upgrade: websocket"), 501, "not_supported", ""},
		{"a loop", request(chat, chatBody, "Via: 1.1 other, 1.1 switchyard-me"), 508, "loop", ""},
		{"compressed", request(chat, chatBody, "Content-Encoding: gzip"), 415, "unsupported_encoding", ""},
		{"too large, said before", request(chat, big), 413, "body_too_large", "4096"},
		{"too large, found out", line("POST "+chat, "Transfer-Encoding: chunked") + "1388\r\n" + big + "\r\n0\r\n\r\n", 413, "body_too_large", ""},
		{"broken framing", line("POST "+chat, "Transfer-Encoding: chunked") + "zz\r\n", 400, "bad_request", "framing"},
		{"never complete", line("POST "+chat, "Content-Length: 10") + "{", 400, "bad_request", "300ms"},
		{"never complete, chunked", line("POST "+chat, "Transfer-Encoding: chunked") + "5\r\n{", 400, "bad_request", "300ms"},
		{"empty", request(chat, ""), 400, "bad_request", "empty"},
		{"not JSON", request(chat, "model=m"), 400, "bad_request", "JSON"},
		{"not an object", request(chat, `["m"]`), 400, "bad_request", "object"},
		{"something behind", request(chat, chatBody+"{}"), 400, "bad_request", ""},
		{"a name twice", request(chat, `{"model":"m","model":"n"}`), 400, "bad_request", "model"},
		{"a name in capitals", request(chat, `{"MODEL":"m"}`), 400, "bad_request", "model"},
		{"a folded name", request(chat, `{"model":"m","ſtream":true}`), 400, "bad_request", "stream"},
		{"model of a wrong type", request(chat, `{"model":1}`), 400, "bad_request", "string"},
		{"no model where there are several", request(chat, `{"messages":[]}`), 400, "bad_request", "m, n"},
		{"unknown model", request(chat, `{"model":"other"}`), 404, "model_not_found", `model \"other\" not found; there are: m, n`},
		{"a class there is not", request(chat, chatBody, "X-Switchyard-Class: rush"), 400, "bad_request", "rush"},
		{"an empty class", request(chat, chatBody, "X-Switchyard-Class: "), 400, "bad_request", "interactive"},
		{"an empty deadline", request(chat, chatBody, "X-Switchyard-Deadline: "), 400, "bad_request", "Deadline"},
		{"a deadline that is none", request(chat, chatBody, "X-Switchyard-Deadline: soon"), 400, "bad_request", "duration"},
		{"management", request("/api/pull", `{"model":"m"}`), 403, "forbidden", "ollama_admin"},
		{"management of blobs", request("/api/blobs/sha256:00", "x"), 403, "forbidden", ""},
		{"management, DELETE", line("DELETE /api/delete"), 403, "forbidden", ""},
		{"a response nobody gave", line("GET /v1/responses/resp_1"), 404, "not_found", "resp_1"},
		{"a previous response nobody gave", request("/v1/responses", `{"model":"m","input":"x","previous_response_id":"resp_1"}`), 404, "not_found", "resp_1"},
		{"a path that no replica serves", request("/api/chat", `{"model":"m","messages":[]}`), 404, "model_not_found", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := d.raw(tc.send)
			require.Equal(t, tc.status, got.status, got.body)
			require.Equal(t, tc.reason, got.header.Get("X-Switchyard-Reason"))
			require.NotEmpty(t, got.header.Get("X-Request-Id"))
			require.Contains(t, got.body, tc.says)
			require.True(t, json.Valid([]byte(got.body)), got.body)
			require.True(t, got.clean)
			if tc.status == 405 {
				require.Contains(t, got.header.Get("Allow"), tc.says)
			}
		})
	}
	require.Empty(t, tr.calls(), "nothing of it reached a replica")
	totals := d.settled()
	require.Equal(t, totals.Arrived, totals.Refused)
}

// TestWhatPassesR17: the odd input that is none of the gateway's business.
func TestWhatPassesR17(t *testing.T) {
	tr := newTroupe(t, chatAct)
	d := newDesk(t, tr, nil, openAI("a", "m"))
	for name, send := range map[string]string{
		"malformed Priority":       request(chat, chatBody, "Priority: u=99, ("),
		"malformed Prefer":         request(chat, chatBody, "Prefer: wait=soon"),
		"malformed SDK timeouts":   request(chat, chatBody, "X-Stainless-Timeout: x"),
		"invalid UTF-8 in a value": request(chat, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}"),
		"an offer of h2c":          request(chat, chatBody, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
		"Content-Encoding of none": request(chat, chatBody, "Content-Encoding: identity"),
		"another's Via":            request(chat, chatBody, "Via: 1.1 switchyard-other"),
		"no model, one there":      request(chat, `{"messages":[{"role":"user","content":"hi"}]}`),
		"a key nobody knows":       request(chat, chatBody, "Authorization: Bearer sk-whatever"),
		"a query":                  request(chat+"?beta=true", chatBody),
		"no Content-Type":          strings.Replace(request(chat, chatBody), "Content-Type: application/json\r\n", "", 1),
	} {
		got := d.raw(send)
		require.Equal(t, 200, got.status, "%s: %s", name, got.body)
	}
	for _, k := range tr.calls() {
		require.Empty(t, k.request.Header.Get("Authorization"))
	}
	totals := d.settled()
	require.Equal(t, totals.Arrived, totals.Completed)
}

// TestErrorShapesR17: every format's clients get errors as their server sends
// them.
func TestErrorShapesR17(t *testing.T) {
	d := newDesk(t, newTroupe(t, chatAct), nil, openAI("a", "m", "n"), seat{name: "o", engine: replica.EngineOllama, models: []replica.Model{model("q:latest")}},
		seat{name: "l", engine: replica.EngineLlamaCpp, models: []replica.Model{model("g")}})
	for path, want := range map[string]string{
		"/v1/chat/completions":      "error.message error.type error.param error.code",
		"/v1/completions":           "error.message error.type error.param error.code",
		"/v1/embeddings":            "error.message error.type error.param error.code",
		"/v1/rerank":                "error.message error.type error.param error.code",
		"/v1/responses":             "error.message error.type error.param error.code",
		"/v1/messages":              "type error.type error.message",
		"/v1/messages/count_tokens": "type error.type error.message",
		"/v1/messages/other":        "type error.type error.message",
		"/api/chat":                 "error",
		"/api/generate":             "error",
		"/api/embed":                "error",
		"/api/show":                 "error",
		"/api/nothing":              "error",
		"/completion":               "error.code error.message error.type",
		"/infill":                   "error.code error.message error.type",
		"/tokenize":                 "error.code error.message error.type",
	} {
		got := d.post(path, "not JSON")
		require.GreaterOrEqual(t, got.status, 400, path)
		require.Less(t, got.status, 500, path)
		var body map[string]any
		require.NoError(t, json.Unmarshal([]byte(got.body), &body), path)
		for name := range strings.FieldsSeq(want) {
			outer, inner, nested := strings.Cut(name, ".")
			require.Contains(t, body, outer, path)
			if nested {
				require.Contains(t, body[outer], inner, path)
			}
		}
	}
}

// TestHeadWhereverGetR17: the same headers without the body.
func TestHeadWhereverGetR17(t *testing.T) {
	d := newDesk(t, newTroupe(t, chatAct), nil, openAI("a", "m"),
		seat{name: "o", engine: replica.EngineOllama, version: "0.6.5", models: []replica.Model{model("q:latest")}})
	for _, path := range []string{"/", "/healthz", "/readyz", "/v1/models", "/v1/models/m", "/api/tags", "/api/ps", "/api/version"} {
		get := d.get(path)
		require.Equal(t, 200, get.status, path)
		require.NotEmpty(t, get.body, path)
		head := d.raw("HEAD " + path + " HTTP/1.1\r\nHost: x\r\n\r\n")
		require.Equal(t, 200, head.status, path)
		require.Empty(t, head.body, path)
		require.Equal(t, strconv.Itoa(len(get.body)), head.header.Get("Content-Length"), path)
		require.NotEmpty(t, head.header.Get("X-Request-Id"))
	}
	require.Equal(t, "Ollama is running", d.get("/").body)
}

// TestKeysRequiredR12: without a known key nothing is served but the paths
// that say whether anything is there.
func TestKeysRequiredR12(t *testing.T) {
	tr := newTroupe(t, chatAct)
	d := newDesk(t, tr, func(s *Settings) {
		s.KeysRequired = true
		s.Keys = []Key{{Name: "team", Hash: sha256.Sum256([]byte("sk-1")), Models: []string{"m"}}}
	}, openAI("a", "m", "n"))
	for _, headers := range [][]string{nil, {"Authorization: Bearer sk-2"}, {"X-Api-Key: sk-2"}} {
		for _, got := range []reply{d.post(chat, chatBody, headers...), d.get("/v1/models", headers...), d.post("/v1/messages/count_tokens", "{}", headers...)} {
			require.Equal(t, 401, got.status)
			require.Equal(t, "unauthorized", got.header.Get("X-Switchyard-Reason"))
			require.Equal(t, "Bearer", got.header.Get("Www-Authenticate"))
			require.NotContains(t, got.body, "sk-")
		}
	}
	for _, path := range []string{"/", "/healthz", "/readyz"} {
		require.Equal(t, 200, d.get(path).status, path)
	}
	for _, key := range []string{"Authorization: Bearer sk-1", "X-Api-Key: sk-1"} {
		require.Equal(t, 200, d.post(chat, chatBody, key).status)
		got := d.post(chat, `{"model":"n"}`, key)
		require.Equal(t, 403, got.status)
		require.Equal(t, "forbidden", got.header.Get("X-Switchyard-Reason"))
		require.Equal(t, 403, d.post(chat, `{"messages":[]}`, key).status, "no model named, and one of those there is not allowed")
		require.NotContains(t, d.get("/v1/models", key).body, `"n"`)
	}
	require.Len(t, tr.calls(), 2)
	for _, k := range tr.calls() {
		for name, values := range k.request.Header {
			require.NotContains(t, strings.Join(values, " "), "sk-1", name)
		}
	}
	totals := d.settled()
	require.EqualValues(t, 2, totals.Completed)
	require.EqualValues(t, 3+4, totals.Refused)
	d.seen.record(t, 9)
	d.seen.mu.Lock()
	defer d.seen.mu.Unlock()
	keys := map[string]int{}
	for _, r := range d.seen.records {
		keys[r.Key]++
	}
	require.Equal(t, map[string]int{"anonymous": 3, "team": 6}, keys)
}

// TestRefusalsAreTimedFromTheBody: the clock of a refusal begins with the last
// byte of the body, however long it took to come.
func TestRefusalsAreTimedFromTheBody(t *testing.T) {
	d := newDesk(t, newTroupe(t, chatAct), nil, openAI("a", "m"))
	c := d.dial()
	body := `{"model":"other"}`
	io.WriteString(c, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nX-Switchyard-Class: batch\r\nContent-Length: %d\r\n\r\n%s", chat, len(body), body[:5]))
	began := time.Now()
	require.True(t, soon(func() bool { return time.Since(began) > 200*time.Millisecond }))
	io.WriteString(c, body[5:])
	require.Equal(t, 404, d.read(bufio.NewReader(c), "POST").status)
	d.settled()
	require.True(t, soon(func() bool {
		d.seen.mu.Lock()
		defer d.seen.mu.Unlock()
		return len(d.seen.refused) == 1
	}))
	require.Equal(t, []string{"batch model_not_found"}, d.seen.refused)
	require.Less(t, d.seen.took[0], 100*time.Millisecond)
	record := d.seen.record(t, 1)
	require.Greater(t, record.Took, 150*time.Millisecond)
	require.Equal(t, "other", record.Model)
	require.Equal(t, admission.Refused, record.Outcome)
	require.Equal(t, 404, record.Status)
	require.Equal(t, "batch", record.Decision.Class)
}

// TestExpectContinue: a client that asks first is told to go on once its
// headers have passed, and is spared the upload when they have not.
func TestExpectContinue(t *testing.T) {
	d := newDesk(t, newTroupe(t, chatAct), nil, openAI("a", "m"))
	c := d.dial()
	br := bufio.NewReader(c)
	ask := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n", chat, len(chatBody))
	io.WriteString(c, ask+"\r\n")
	first, err := br.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 100 Continue\r\n", first)
	_, err = br.ReadString('\n')
	require.NoError(t, err)
	io.WriteString(c, chatBody)
	require.Equal(t, 200, d.read(br, "POST").status)

	got := d.raw(ask + "Content-Encoding: br\r\n\r\n")
	require.Equal(t, 415, got.status)
	require.Equal(t, "close", got.header.Get("Connection"))
}

// TestClientLeavesDuringUploadR13 counts as cancelled and blames nobody.
func TestClientLeavesDuringUploadR13(t *testing.T) {
	d := newDesk(t, newTroupe(t, chatAct), nil, openAI("a", "m"))
	for i, begin := range []string{
		"Content-Length: 1000\r\n\r\n{\"model\":",
		"Transfer-Encoding: chunked\r\n\r\n5\r\n{\"mod\r\n",
	} {
		c := d.dial()
		io.WriteString(c, "POST "+chat+" HTTP/1.1\r\nHost: x\r\n"+begin)
		require.True(t, soon(func() bool { return d.ctl.Snapshot(time.Now()).Totals.Queued == 1 }), "an upload counts as queued")
		c.Close()
		require.True(t, soon(func() bool { return d.ctl.Snapshot(time.Now()).Totals.Cancelled == int64(i+1) }))
	}
	require.Zero(t, d.gw.uploading.Load())
	require.EqualValues(t, 2, d.settled().Cancelled)
}

// TestUploadsCountTowardsTheQueue: bodies that are still coming may not take
// more memory than the queue may.
func TestUploadsCountTowardsTheQueue(t *testing.T) {
	d := newDesk(t, newTroupe(t, chatAct), func(s *Settings) { s.QueueBytes = 300 << 10 }, openAI("a", "m"))
	c := d.dial()
	io.WriteString(c, "POST "+chat+" HTTP/1.1\r\nHost: x\r\nContent-Length: 400000\r\n\r\n{")
	require.True(t, soon(func() bool { return d.gw.uploading.Load() > 0 }))
	got := d.raw("POST " + chat + " HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n{")
	require.Equal(t, 429, got.status)
	require.Equal(t, "queue_full", got.header.Get("X-Switchyard-Reason"))
	require.NotEmpty(t, got.header.Get("Retry-After"))
	c.Close()
	require.True(t, soon(func() bool { return d.gw.uploading.Load() == 0 }))
	require.Equal(t, 200, d.post(chat, chatBody).status)
}

// TestRefusedBeforeItsBody: a refusal does not wait for the body, is not lost
// to a reset, and never lets the rest of a body pass for a request.
func TestRefusedBeforeItsBody(t *testing.T) {
	d := newDesk(t, newTroupe(t, chatAct), nil, openAI("a", "m"))

	t.Run("a slow body is not waited for", func(t *testing.T) {
		got := d.raw("POST " + chat + " HTTP/1.1\r\nHost: x\r\nContent-Encoding: br\r\nContent-Length: 50\r\n\r\n")
		require.Equal(t, 415, got.status)
		require.Equal(t, "close", got.header.Get("Connection"))
	})
	t.Run("a large one is read past", func(t *testing.T) {
		c := d.dial()
		io.WriteString(c, "POST "+chat+" HTTP/1.1\r\nHost: x\r\nContent-Encoding: br\r\nContent-Length: 4000000\r\n\r\n")
		for range 1000 {
			_, err := c.Write(make([]byte, 4000))
			require.NoError(t, err)
		}
		require.Equal(t, 415, d.read(bufio.NewReader(c), "POST").status)
	})
	t.Run("a small one keeps the connection", func(t *testing.T) {
		c := d.dial()
		br := bufio.NewReader(c)
		for range 3 {
			io.WriteString(c, request(chat, chatBody, "Content-Encoding: br"))
			require.Equal(t, 415, d.read(br, "POST").status)
		}
	})
	t.Run("a body is no request", func(t *testing.T) {
		inner := request(chat, chatBody)
		c := d.dial()
		io.WriteString(c, "POST "+chat+" HTTP/1.1\r\nHost: x\r\nContent-Encoding: br\r\nContent-Length: 70000\r\n\r\n"+inner)
		br := bufio.NewReader(c)
		require.Equal(t, 415, d.read(br, "POST").status)
		_, err := br.ReadByte()
		require.ErrorIs(t, err, io.EOF)
	})
	require.Zero(t, d.settled().Completed)
}

// TestNoReplicaR17: unknown is 404 only where every list has been read;
// otherwise, and while who has the model is out, it is 503.
func TestNoReplicaR17(t *testing.T) {
	out := openAI("a", "m")
	out.down = true
	for name, tc := range map[string]struct {
		seat  seat
		model string
		want  int
	}{
		"who has it is out":         {out, "m", 503},
		"nobody has it":             {openAI("a", "m"), "x", 404},
		"no list could be read yet": {seat{name: "a", engine: replica.EngineAuto, unread: true}, "m", 503},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, newTroupe(t, chatAct), nil, tc.seat)
			got := d.post(chat, fmt.Sprintf(`{"model":%q,"messages":[]}`, tc.model))
			require.Equal(t, tc.want, got.status, got.body)
			require.Equal(t, tc.want == 503, got.header.Get("Retry-After") != "")
			require.Equal(t, tc.want == 503, got.header.Get("Retry-After-Ms") != "")
		})
	}
}

// TestAliasR17: the model's value is replaced in place, and nothing else.
func TestAliasR17(t *testing.T) {
	tr := newTroupe(t, chatAct)
	d := newDesk(t, tr, func(s *Settings) {
		s.Aliases = []Alias{{"chat", []string{"gone", "n"}}, {"none", []string{"gone"}}}
	}, openAI("a", "m", "n"))
	require.Equal(t, 200, d.post(chat, `{ "model" : "chat", "messages":[{"content":"model chat"}] }`).status)
	require.Equal(t, `{ "model" : "n", "messages":[{"content":"model chat"}] }`, tr.calls()[0].body)
	got := d.post(chat, `{"model":"none"}`)
	require.Equal(t, 404, got.status)
	require.Contains(t, got.body, "there are: chat, none, m, n")
}

// TestClassAndDeadlineReachTheController: what headers and body said is what
// the decision says.
func TestClassAndDeadlineReachTheController(t *testing.T) {
	d := newDesk(t, newTroupe(t, chatAct), nil, openAI("a", "m"))
	got := d.post(chat, `{"model":"m","service_tier":"flex","messages":[]}`, "X-Request-ID: mine-1", "Prefer: wait=20")
	require.Equal(t, 200, got.status)
	require.Equal(t, "batch", got.header.Get("X-Switchyard-Class"))
	require.Equal(t, "mine-1", got.header.Get("X-Request-Id"))
	r := d.seen.record(t, 1)
	require.Equal(t, "batch", r.Class)
	require.Equal(t, "batch", r.Decision.Class)
	require.Equal(t, "mine-1", r.Decision.ID)
	require.InDelta(t, 20, r.Decision.DeadlineS, 0.01)
	require.Equal(t, 200, r.Status)
	require.EqualValues(t, len(`{"model":"m","service_tier":"flex","messages":[]}`), r.BytesIn)
	require.Equal(t, admission.Completed, r.Outcome)
}

// TestPanicsKeepTheBooksR13: a fault of ours is one failed request, answered,
// and the gateway serves on.
func TestPanicsKeepTheBooksR13(t *testing.T) {
	d := newDesk(t, newTroupe(t, chatAct), nil, openAI("a", "m"))
	d.gw.stored = nil // anything that asks for a stored response will fail
	got := d.post("/v1/responses", `{"model":"m","input":"secret words","previous_response_id":"r"}`)
	require.Equal(t, 500, got.status)
	require.Equal(t, "internal_error", got.header.Get("X-Switchyard-Reason"))
	require.Equal(t, 200, d.post(chat, chatBody).status)
	totals := d.settled()
	require.EqualValues(t, 1, totals.Failed)
	require.EqualValues(t, 1, totals.Completed)
}

// TestBooksBalanceAtAnyInstantR13: clients of every kind at once, and whoever
// looks in between sees books that balance.
func TestBooksBalanceAtAnyInstantR13(t *testing.T) {
	two := openAI("a", "m")
	two.slots = 2
	d := newDesk(t, newTroupe(t, chatAct), func(s *Settings) { s.Limits.MaxBody = 4096 }, two)
	kinds := []struct {
		send   string
		status int // 0: leaves without reading
	}{
		{request(chat, chatBody), 200},
		{request(chat, "not JSON"), 400},
		{request(chat, `{"model":"other"}`), 404},
		{request(chat, strings.Repeat("x", 5000)), 413},
		{request(chat, chatBody, "Content-Encoding: br"), 415},
		{"GET " + chat + " HTTP/1.1\r\nHost: x\r\n\r\n", 405},
		{request(chat, chatBody), 0},
		{strings.TrimSuffix(request(chat, chatBody), chatBody) + "{", 0},
	}
	const each = 40
	var clients sync.WaitGroup
	for _, k := range kinds {
		clients.Go(func() {
			for range each {
				c := d.dial()
				io.WriteString(c, k.send)
				if k.status != 0 {
					method, _, _ := strings.Cut(k.send, " ")
					require.Equal(t, k.status, d.read(bufio.NewReader(c), method).status)
				}
				c.Close()
			}
		})
	}
	done := make(chan struct{})
	go func() { clients.Wait(); close(done) }()
	for looking := true; looking; {
		select {
		case <-done:
			looking = false
		case <-time.After(100 * time.Microsecond):
		}
		totals := d.ctl.Snapshot(time.Now()).Totals
		require.True(t, totals.Balanced(), "%+v", totals)
	}
	require.True(t, soon(func() bool { return d.ctl.Snapshot(time.Now()).Totals.Arrived == int64(len(kinds)*each) }))
	totals := d.settled()
	require.EqualValues(t, 5*each, totals.Refused)
	require.EqualValues(t, 3*each, totals.Completed+totals.Cancelled)
	require.GreaterOrEqual(t, totals.Completed, int64(each))
	require.GreaterOrEqual(t, totals.Cancelled, int64(each), "half a body and gone")
	d.seen.record(t, len(kinds)*each)
}

// TestLargeBodiesPassUnchanged: their memory is used again and again, and never
// while a replica may still be sent from it.
func TestLargeBodiesPassUnchanged(t *testing.T) {
	tr := newTroupe(t, chatAct)
	d := newDesk(t, tr, nil, openAI("a", "m"))
	var clients sync.WaitGroup
	sent := map[string]bool{}
	for i := range 16 {
		size := 10_000 << (i % 8) // up to 1.3 MB
		body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, strings.Repeat(string(rune('a'+i)), size))
		sent[body] = true
		send := request(chat, body)
		if i%2 == 1 {
			half := len(body) / 2
			send = fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n",
				chat, half, body[:half], len(body)-half, body[half:])
		}
		clients.Go(func() {
			require.Equal(t, 200, d.raw(send).status)
		})
	}
	clients.Wait()
	for _, k := range tr.calls() {
		require.True(t, sent[k.body], "a body of %d bytes that nobody sent", len(k.body))
		delete(sent, k.body)
	}
	require.Empty(t, sent)
}
