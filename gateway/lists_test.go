package gateway

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/replica"
)

// fleetOfThree is an Ollama, a llama.cpp and a vLLM; two have a model in common.
func fleetOfThree() []seat {
	return []seat{
		{name: "o", engine: replica.EngineOllama, version: "0.17.4", models: []replica.Model{
			{
				Name: "qwen3:8b", Resident: true,
				Tag: json.RawMessage(`{"name":"qwen3:8b", "model":"qwen3:8b","modified_at":"2026-01-02T03:04:05Z","size":7,"details":{"family":"q<3"}}`),
				PS:  json.RawMessage(`{"name":"qwen3:8b","size_vram":7}`),
			},
			{Name: "tiny:latest", Tag: json.RawMessage(`{"name":"tiny:latest","model":"tiny:latest"}`)},
		}},
		{name: "l", engine: replica.EngineLlamaCpp, any: true, models: []replica.Model{
			{Name: "gguf", Resident: true, OpenAI: json.RawMessage(`{"id":"gguf","object":"model","created":1,"owned_by":"llamacpp","meta":{"n_ctx":4096}}`)},
		}},
		{name: "v", engine: replica.EngineVLLM, models: []replica.Model{
			{Name: "qwen3:8b", Resident: true, OpenAI: json.RawMessage(`{"id":"qwen3:8b","owned_by":"vllm"}`)},
			{Name: "org/big", Resident: true, OpenAI: json.RawMessage(`{"id":"org/big","object":"model","max_model_len":32768}`)},
		}},
		{name: "o2", engine: replica.EngineOllama, version: "0.6.5", models: []replica.Model{
			{Name: "tiny:latest", Resident: true, Tag: json.RawMessage(`{"name":"tiny:latest"}`), PS: json.RawMessage(`{"name":"tiny:latest"}`)},
		}},
	}
}

// TestListsAreUnions: the replicas' own entries, unchanged, each model once.
func TestListsAreUnions(t *testing.T) {
	d := newDesk(t, newTroupe(t, echoAct), func(s *Settings) {
		s.Aliases = []Alias{{"chat", []string{"none", "qwen3:8b"}}, {"later", []string{"none"}}}
		s.Keys = []Key{{Name: "k", Hash: sha256.Sum256([]byte("k")), Models: []string{"tiny", "chat"}}}
	}, fleetOfThree()...)

	require.Equal(t, `{"object":"list","data":[`+
		`{"id":"qwen3:8b","object":"model","created":1767323045,"owned_by":"library"},`+
		`{"id":"tiny:latest","object":"model","created":0,"owned_by":"library"},`+
		`{"id":"gguf","object":"model","created":1,"owned_by":"llamacpp","meta":{"n_ctx":4096}},`+
		`{"id":"org/big","object":"model","max_model_len":32768},`+
		`{"created":1767323045,"id":"chat","object":"model","owned_by":"library"},`+
		`{"id":"later","object":"model","created":0,"owned_by":"switchyard"}]}`, d.get("/v1/models").body)

	require.Equal(t, `{"models":[`+
		`{"name":"qwen3:8b", "model":"qwen3:8b","modified_at":"2026-01-02T03:04:05Z","size":7,"details":{"family":"q<3"}},`+
		`{"name":"tiny:latest","model":"tiny:latest"},`+
		`{"details":{"family":"q\u003c3"},"model":"chat","modified_at":"2026-01-02T03:04:05Z","name":"chat","size":7}]}`, d.get("/api/tags").body)

	require.Equal(t, `{"models":[{"name":"qwen3:8b","size_vram":7},{"name":"tiny:latest"}]}`, d.get("/api/ps").body)
	require.Equal(t, `{"version":"0.6.5"}`, d.get("/api/version").body)

	require.Equal(t, `{"id":"tiny:latest","object":"model","created":0,"owned_by":"library"}`, d.get("/v1/models/tiny").body)
	for _, path := range []string{"/v1/models/org/big", "/v1/models/org%2Fbig"} {
		require.Equal(t, `{"id":"org/big","object":"model","max_model_len":32768}`, d.get(path).body)
	}
	missing := d.get("/v1/models/none")
	require.Equal(t, 404, missing.status)
	require.Equal(t, "model_not_found", missing.header.Get("X-Switchyard-Reason"))

	// A key sees what it may use.
	require.Equal(t, `{"object":"list","data":[`+
		`{"id":"tiny:latest","object":"model","created":0,"owned_by":"library"},`+
		`{"created":1767323045,"id":"chat","object":"model","owned_by":"library"}]}`, d.get("/v1/models", "X-Api-Key: k").body)
	require.Equal(t, `{"models":[{"name":"tiny:latest"}]}`, d.get("/api/ps", "X-Api-Key: k").body)
	require.Equal(t, 404, d.get("/v1/models/gguf", "X-Api-Key: k").status)

	require.Zero(t, d.settled().Arrived, "lists are in no books (R13)")
}

func TestEmptyLists(t *testing.T) {
	d := newDesk(t, newTroupe(t, echoAct), nil)
	require.Equal(t, `{"object":"list","data":[]}`, d.get("/v1/models").body)
	require.Equal(t, `{"models":[]}`, d.get("/api/tags").body)
	require.Equal(t, 503, d.get("/api/version").status)
	require.Equal(t, 503, d.get("/readyz").status)
	require.Equal(t, 200, d.get("/healthz").status)
}

// TestAModelOfAReplicaThatIsOutIsListed: it is not gone.
func TestAModelOfAReplicaThatIsOutIsListed(t *testing.T) {
	out := openAI("a", "m")
	out.down = true
	d := newDesk(t, newTroupe(t, echoAct), nil, out, openAI("b", "n"))
	require.Contains(t, d.get("/v1/models").body, `"m"`)
	require.Contains(t, d.get("/v1/models").body, `"n"`)
}

// TestHelpersR13: paths that take no slot go to a replica that serves them,
// with aliases resolved, and are in no books.
func TestHelpersR13(t *testing.T) {
	tr := newTroupe(t, echoAct)
	d := newDesk(t, tr, func(s *Settings) { s.Aliases = []Alias{{"chat", []string{"none", "tiny"}}} }, fleetOfThree()...)
	for _, tc := range []struct{ path, body, replica, sent string }{
		{"/api/show", `{"model":"qwen3:8b"}`, "o", `{"model":"qwen3:8b"}`},
		{"/api/show?verbose=1", `{"name":"qwen3:8b"}`, "o", `{"name":"qwen3:8b"}`},
		{"/api/show", `{ "model": "chat:latest", "x":[1]}`, "", `{ "model": "tiny", "x":[1]}`},
		{"/tokenize", `{"content":"x"}`, "l", `{"content":"x"}`},
		{"/detokenize", `{"tokens":[1]}`, "l", `{"tokens":[1]}`},
		{"/apply-template", `{"messages":[]}`, "l", `{"messages":[]}`},
		{"/v1/messages/count_tokens", `{"model":"org/big"}`, "", `{"model":"org/big"}`},
	} {
		got := d.post(tc.path, tc.body, "Authorization: Bearer x", "X-Request-ID: h1")
		require.Equal(t, 200, got.status, "%s: %s", tc.path, got.body)
		var echo map[string]string
		require.NoError(t, json.Unmarshal([]byte(got.body), &echo))
		require.Equal(t, tc.path, echo["uri"])
		require.Equal(t, tc.sent, echo["body"])
		require.Equal(t, echo["replica"], got.header.Get("X-Switchyard-Replica"))
		if tc.replica != "" {
			require.Equal(t, tc.replica, echo["replica"])
		}
		calls := tr.calls()
		h := calls[len(calls)-1].request.Header
		require.Empty(t, h.Get("Authorization"))
		require.Equal(t, "h1", h.Get("X-Request-Id"))
		require.Equal(t, "1.1 switchyard-gateway", h.Get("Via"))
	}
	unknown := d.post("/api/show", `{"model":"none"}`)
	require.Equal(t, 404, unknown.status)
	require.Equal(t, `{"error":"model \"none\" not found; there are: chat, qwen3:8b, tiny:latest"}`, unknown.body)
	require.Equal(t, 400, d.post("/api/show", `{}`).status, "several models, none named")
	require.Zero(t, d.settled().Arrived)
}

// TestHelpersAtOnceR13: at most 32 at a replica.
func TestHelpersAtOnceR13(t *testing.T) {
	tr := newTroupe(t, func(k *call) {
		k.untilGone()
	})
	d := newDesk(t, tr, nil, seat{name: "l", engine: replica.EngineLlamaCpp, any: true})
	for range atOnce {
		io.WriteString(d.dial(), request("/tokenize", `{"content":"x"}`))
	}
	require.True(t, soon(func() bool { return len(tr.calls()) == atOnce }))
	got := d.post("/tokenize", `{"content":"x"}`)
	require.Equal(t, 429, got.status)
	require.Equal(t, "queue_full", got.header.Get("X-Switchyard-Reason"))
	require.Equal(t, "1", got.header.Get("Retry-After"))
	require.Len(t, tr.calls(), atOnce)
}

// TestAHelperThatFails gets a proper error, and a half answer is no whole one.
func TestAHelperThatFails(t *testing.T) {
	tr := newTroupe(t,
		func(k *call) {},
		func(k *call) { k.head(200, "Content-Length: 10"); k.raw("half") },
		func(k *call) { k.whole(400, "application/json", `{"error":"no"}`) })
	d := newDesk(t, tr, nil, seat{name: "l", engine: replica.EngineLlamaCpp, any: true})
	got := d.post("/tokenize", `{}`)
	require.Equal(t, 502, got.status)
	require.Equal(t, "upstream_failed", got.header.Get("X-Switchyard-Reason"))
	c := d.dial()
	io.WriteString(c, request("/tokenize", `{}`))
	half, _ := io.ReadAll(c)
	require.NotContains(t, string(half), "\r\n\r\nhalf\r\n")
	require.True(t, len(half) == 0 || !parseReply(t, half).clean)
	got = d.post("/tokenize", `{}`)
	require.Equal(t, 400, got.status)
	require.Equal(t, `{"error":"no"}`, got.body)
}

// TestManagementWhereAllowedR17 passes on, streams and all.
func TestManagementWhereAllowedR17(t *testing.T) {
	tr := newTroupe(t, func(k *call) {
		k.streamHead("application/x-ndjson")
		k.chunk(`{"status":"pulling"}` + "\n")
		k.chunk(`{"status":"success"}` + "\n")
		k.end()
	})
	d := newDesk(t, tr, func(s *Settings) { s.Limits.OllamaAdmin = true }, fleetOfThree()...)
	got := d.post("/api/pull", `{"model":"new"}`)
	require.Equal(t, 200, got.status)
	require.Equal(t, "{\"status\":\"pulling\"}\n{\"status\":\"success\"}\n", got.body)
	got = d.raw("DELETE /api/delete HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{\"model\":\"qwen3:8b\"}")
	require.Equal(t, 200, got.status)
	require.Equal(t, "o", got.header.Get("X-Switchyard-Replica"))
	require.Equal(t, 200, d.post("/api/blobs/sha256:00", "bytes that are no JSON").status)
	require.Zero(t, d.settled().Arrived)
}

// TestUnloadR17: keep_alive 0 goes to every replica that has the model in
// memory; a preload goes to one. Both are in the books.
func TestUnloadR17(t *testing.T) {
	tr := newTroupe(t, func(k *call) {
		k.whole(200, "application/json", `{"model":"tiny","done":true,"done_reason":"unload"}`)
	})
	tiny := []replica.Model{{Name: "tiny:latest", Resident: true}}
	cold := []replica.Model{{Name: "tiny:latest"}}
	d := newDesk(t, tr, func(s *Settings) { s.Aliases = []Alias{{"small", []string{"tiny"}}} },
		seat{name: "a", engine: replica.EngineOllama, models: tiny},
		seat{name: "b", engine: replica.EngineOllama, models: cold},
		seat{name: "c", engine: replica.EngineOllama, models: tiny},
		seat{name: "v", engine: replica.EngineVLLM, models: tiny})
	asked := func(from int) (names []string) {
		for _, k := range tr.calls()[from:] {
			names = append(names, k.replica+" "+k.body)
		}
		return names
	}

	got := d.post("/api/generate", `{"model":"tiny","keep_alive":0}`)
	require.Equal(t, 200, got.status)
	require.Contains(t, got.body, `"done_reason":"unload"`)
	require.ElementsMatch(t, []string{`a {"model":"tiny:latest","keep_alive":0}`, `c {"model":"tiny:latest","keep_alive":0}`}, asked(0))

	require.Equal(t, 200, d.post("/api/chat", `{"model":"small","messages":[],"keep_alive":"0s"}`).status)
	require.Len(t, asked(2), 2)

	// Where nobody has it in memory, one that has it says so.
	d.report(seat{name: "a", engine: replica.EngineOllama, models: cold})
	d.report(seat{name: "c", engine: replica.EngineOllama, models: cold})
	require.Equal(t, 200, d.post("/api/generate", `{"model":"tiny","keep_alive":0}`).status)
	require.Len(t, asked(4), 1)
	require.Equal(t, 404, d.post("/api/generate", `{"model":"none","keep_alive":0}`).status)
	require.Len(t, asked(5), 0)

	require.Equal(t, 200, d.post("/api/generate", `{"model":"tiny","stream":false}`).status)
	require.Len(t, asked(5), 1, "a preload")

	totals := d.settled()
	require.EqualValues(t, 4, totals.Completed)
	require.EqualValues(t, 1, totals.Refused)
}

// TestUnloadFails: what no replica answers has failed.
func TestUnloadFails(t *testing.T) {
	tr := newTroupe(t, func(k *call) {})
	d := newDesk(t, tr, nil, seat{name: "a", engine: replica.EngineOllama, models: []replica.Model{model("tiny:latest")}})
	got := d.post("/api/generate", `{"model":"tiny","keep_alive":0}`)
	require.Equal(t, 502, got.status)
	require.EqualValues(t, 1, d.settled().Failed)
}

// TestStoredResponsesR17: what a replica stored is asked of it, by the key it
// was given to.
func TestStoredResponsesR17(t *testing.T) {
	answer := `{"id":"resp_1","object":"response","status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"hi"}]}],"usage":{"input_tokens":1,"output_tokens":1}}`
	tr := newTroupe(t, func(k *call) { k.whole(200, "application/json", answer) }, echoAct)
	d := newDesk(t, tr, func(s *Settings) {
		s.Keys = []Key{{Name: "k", Hash: sha256.Sum256([]byte("k"))}}
	}, openAI("a", "m"), openAI("b", "m"), openAI("c", "m"))
	got := d.post("/v1/responses", `{"model":"m","input":"x","store":true}`)
	require.Equal(t, 200, got.status, got.body)
	home := got.header.Get("X-Switchyard-Replica")

	for range 3 {
		require.Equal(t, home, d.get("/v1/responses/resp_1").header.Get("X-Switchyard-Replica"))
		got = d.post("/v1/responses", `{"model":"m","input":"y","previous_response_id":"resp_1"}`)
		require.Equal(t, 200, got.status)
		require.Equal(t, home, got.header.Get("X-Switchyard-Replica"))
	}
	require.Equal(t, home, d.post("/v1/responses/resp_1/cancel", "").header.Get("X-Switchyard-Replica"))
	require.Equal(t, 404, d.get("/v1/responses/resp_1", "X-Api-Key: k").status)
	require.Equal(t, 200, d.raw("DELETE /v1/responses/resp_1 HTTP/1.1\r\nHost: x\r\n\r\n").status)
	require.Equal(t, 404, d.get("/v1/responses/resp_1").status)
}

// TestCORS: pages of the origins that are configured, and no others.
func TestCORS(t *testing.T) {
	tr := newTroupe(t, func(k *call) {
		k.whole(200, "application/json", `{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}`, "Access-Control-Allow-Origin: ")
	})
	d := newDesk(t, tr, func(s *Settings) { s.Origins = []string{"https://ui.example"} }, openAI("a", "m"))
	preflight := "OPTIONS " + chat + " HTTP/1.1\r\nHost: x\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, x-api-key\r\nOrigin: "
	got := d.raw(preflight + "https://ui.example\r\n\r\n")
	require.Equal(t, 204, got.status)
	require.Equal(t, "https://ui.example", got.header.Get("Access-Control-Allow-Origin"))
	require.Equal(t, "authorization, x-api-key", got.header.Get("Access-Control-Allow-Headers"))
	require.Contains(t, got.header.Get("Access-Control-Allow-Methods"), "POST")

	got = d.raw(preflight + "https://evil.example\r\n\r\n")
	require.Equal(t, 204, got.status)
	require.Empty(t, got.header.Get("Access-Control-Allow-Origin"))

	for _, got := range []reply{
		d.post(chat, chatBody, "Origin: https://ui.example"),
		d.post(chat, "not JSON", "Origin: https://ui.example"),
		d.get("/v1/models", "Origin: https://ui.example"),
	} {
		require.Equal(t, []string{"https://ui.example"}, got.header["Access-Control-Allow-Origin"])
		require.Contains(t, got.header.Get("Access-Control-Expose-Headers"), "Retry-After")
		require.Contains(t, got.header["Vary"], "Origin")
	}
	require.Empty(t, d.post(chat, chatBody, "Origin: https://evil.example").header["Access-Control-Allow-Origin"])
	require.EqualValues(t, 3, d.settled().Arrived, "preflights are no requests")

	open := viewOf(func(s *Settings) { s.Origins = []string{"*"} })
	h := http.Header{}
	require.False(t, open.cors(h, &http.Request{Method: "POST", Header: wish("Origin: null")}))
	require.Equal(t, "null", h.Get("Access-Control-Allow-Origin"))
}

// TestRetryHeadersR14: rounded up, honest, and with a word to SDKs that would
// not wait that long.
func TestRetryHeadersR14(t *testing.T) {
	for _, tc := range []struct {
		name          string
		ref           admission.Refusal
		after, ms, no string
	}{
		{"whole seconds are rounded up", admission.Refusal{Reason: admission.ReasonDeadlineUnmeetable, RetryAfter: 1200 * time.Millisecond}, "2", "1200", ""},
		{"never less than a second", admission.Refusal{Reason: admission.ReasonQueueFull}, "1", "1000", ""},
		{"what SDKs will wait", admission.Refusal{Reason: admission.ReasonNoReplica, RetryAfter: time.Minute}, "60", "60000", ""},
		{"what they will not", admission.Refusal{Reason: admission.ReasonDeadlineExpired, RetryAfter: time.Minute + time.Millisecond}, "61", "60001", "false"},
		{"coming back cannot help", admission.Refusal{Reason: admission.ReasonDeadlineUnmeetable, RetryAfter: 3 * time.Second, NoRetry: true}, "3", "3000", "false"},
		{"a failure may have a time", admission.Refusal{Reason: admission.ReasonUpstreamFailed, RetryAfter: 5 * time.Second}, "5", "5000", ""},
		{"or none", admission.Refusal{Reason: admission.ReasonUpstreamTimeout}, "", "", ""},
		{"a mistake has none", admission.Refusal{Reason: admission.ReasonBadRequest}, "", "", ""},
	} {
		h := http.Header{}
		d := denial{Refusal: tc.ref}
		d.retryHeaders(h, statusOf(tc.ref.Reason))
		require.Equal(t, tc.after, h.Get("Retry-After"), tc.name)
		require.Equal(t, tc.ms, h.Get("retry-after-ms"), tc.name)
		require.Equal(t, tc.no, h.Get("x-should-retry"), tc.name)
	}
}

// TestOutcomesR13: what is the gateway's own is refused, what it could not do
// has failed.
func TestOutcomesR13(t *testing.T) {
	for reason, status := range statuses {
		want := admission.Refused
		if status == 502 || status == 504 {
			want = admission.Failed
		}
		require.Equal(t, want, outcomeOf(reason), string(reason))
	}
	require.Equal(t, admission.Failed, outcomeOf(reasonInternal))
}

// TestPipelinedAnswersStayInOrder: one connection, several kinds of answers.
func TestPipelinedAnswersStayInOrder(t *testing.T) {
	d := newDesk(t, newTroupe(t, chatAct), nil, openAI("a", "m"))
	c := d.dial()
	var all strings.Builder
	for _, body := range []string{chatBody, "not JSON", chatBody, `{"model":"other"}`} {
		all.WriteString(request(chat, body))
	}
	io.WriteString(c, all.String())
	br := bufio.NewReader(c)
	for _, want := range []int{200, 400, 200, 404} {
		require.Equal(t, want, d.read(br, "POST").status)
	}
}
