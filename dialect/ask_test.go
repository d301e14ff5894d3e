package dialect

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// parse parses a body that must pass.
func parse(t testing.TB, path, body string) Ask {
	t.Helper()
	a, err := Parse(at(t, path), []byte(body))
	require.NoError(t, err, body)
	return a
}

func TestParseChat(t *testing.T) {
	body := `{ "model" : "qwen3:8b", "stream": true, "n": 3, "max_tokens": 100, "max_completion_tokens": 50,
		"service_tier": "flex", "stream_options": {"x": 1, "include_usage": true}, "return_progress": true, "temperature": 0.7,
		"tools": [{"type":"function"}],
		"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "what is it"},
			{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}] }`
	a := parse(t, "/v1/chat/completions", body)
	require.Equal(t, "qwen3:8b", a.Model)
	require.Equal(t, `"qwen3:8b"`, body[a.ModelStart:a.ModelEnd])
	require.True(t, a.Stream)
	require.True(t, a.IncludeUsage)
	require.True(t, a.ReturnProgress)
	require.Equal(t, 3, a.Width)
	require.Equal(t, 3, a.Choices)
	require.Equal(t, 50, a.MaxTokens, "the name engines prefer")
	require.Equal(t, "flex", a.ServiceTier)
	text := len("be brief") + len("what is it") + len(`[{"type":"function"}]`)
	require.Equal(t, text, a.PromptBytes)
	require.Equal(t, (text+3)/4+MediaTokens, a.PromptTokens)
}

func TestParseWidth(t *testing.T) {
	tests := []struct {
		path, body     string
		width, choices int
	}{
		{"/v1/chat/completions", `{}`, 1, 1},
		{"/v1/chat/completions", `{"n":null}`, 1, 1},
		{"/v1/chat/completions", `{"n":0}`, 1, 1},
		{"/v1/chat/completions", `{"n":-4}`, 1, 1},
		{"/v1/chat/completions", `{"n":2.5}`, 3, 3},
		{"/v1/chat/completions", `{"n":1e300}`, maxWidth, maxWidth},
		{"/v1/chat/completions", `{"prompt":["a","b"]}`, 1, 1},
		{"/v1/completions", `{"prompt":"a"}`, 1, 1},
		{"/v1/completions", `{"prompt":"a","n":2,"best_of":5}`, 5, 2},
		{"/v1/completions", `{"prompt":["a","b","c"]}`, 3, 3},
		{"/v1/completions", `{"prompt":["a","b","c"],"n":2,"best_of":4}`, 12, 6},
		{"/v1/completions", `{"prompt":[1,2,3]}`, 1, 1},
		{"/v1/completions", `{"prompt":[[1,2],[3]]}`, 2, 2},
		{"/v1/completions", `{"prompt":[]}`, 1, 1},
		{"/completion", `{"prompt":[12,"text",13]}`, 1, 1},
		{"/completion", `{"prompt":["a",{"prompt_string":"b","multimodal_data":["AA"]}],"n_cmpl":2}`, 4, 4},
		{"/v1/embeddings", `{"input":["a","b"]}`, 2, 2},
		{"/v1/embeddings", `{"input":[1,2,3,4]}`, 1, 1},
		{"/embedding", `{"content":["a","b","c"]}`, 3, 3},
		{"/api/embed", `{"input":["a","b"]}`, 2, 2},
		{"/api/embeddings", `{"prompt":"a"}`, 1, 1},
		{"/v1/rerank", `{"query":"q","documents":["a","b",{"text":"c"}]}`, 3, 3},
		{"/rerank", `{"query":"q","texts":["a","b"]}`, 2, 2},
		{"/v1/responses", `{"input":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`, 1, 1},
		{"/v1/messages", `{"n":5,"messages":[]}`, 1, 1},
		{"/api/generate", `{"n":5,"prompt":"a"}`, 1, 1},
	}
	for _, tt := range tests {
		a := parse(t, tt.path, tt.body)
		require.Equal(t, tt.width, a.Width, "%s %s", tt.path, tt.body)
		require.Equal(t, tt.choices, a.Choices, "%s %s", tt.path, tt.body)
	}
}

func TestParsePromptSize(t *testing.T) {
	tests := []struct {
		path, body    string
		bytes, tokens int
	}{
		{"/v1/completions", `{"prompt":"12345"}`, 5, 2},
		{"/v1/completions", `{"prompt":[1,2,3]}`, 0, 3},
		{"/v1/completions", `{"prompt":"a\n\"b\\","suffix":"xx"}`, 7, 2},
		{"/v1/completions", `{"prompt":"\u00e9\u0041\u4e2d\ud83d\ude00"}`, 2 + 1 + 3 + 4, 3},
		{"/v1/rerank", `{"query":"1234","documents":["ab","cdef"]}`, 2*4 + 6, 4},
		{"/v1/messages", `{"system":[{"type":"text","text":"sys!","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"user"}]}`, 8, 2},
		{"/v1/messages", `{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAAAAAA"}}]}]}`, 0, MediaTokens},
		{"/v1/messages", `{"messages":[{"role":"user","content":[{"type":"document","source":{"data":"12345678","type":"text"}}]}]}`, 8, 2},
		{"/v1/messages", `{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"edit","input":{"file":"main.go","source":"xyz"}}]}]}`, 4 + 7 + 3, 4},
		{"/v1/messages", `{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"hmmm","signature":"AAAAAAAAAAAA"}]}]}`, 4, 1},
		{"/api/chat", `{"messages":[{"role":"user","content":"abcd","images":["AAAA","BBBB"]}]}`, 4, 1 + 2*MediaTokens},
		{"/api/generate", `{"prompt":"abcd","images":["AAAA"],"context":[1,2,3],"system":"s"}`, 5, 2 + 3 + MediaTokens},
		{"/v1/responses", `{"instructions":"abcd","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"efgh"},{"type":"input_image","image_url":"https://x/y.png"}]}]}`, 8, 2 + MediaTokens},
		{"/v1/responses", `{"input":"abcd"}`, 4, 1},
		{"/infill", `{"input_prefix":"ab","input_suffix":"cd","input_extra":[{"text":"ef","filename":"gh"}],"prompt":"ij"}`, 10, 3},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}]}]}`, 0, MediaTokens},
		{"/v1/chat/completions", `{"messages":"wrong type"}`, 0, 0},
		{"/v1/chat/completions", `{"messages":[]}`, 0, 0},
	}
	for _, tt := range tests {
		a := parse(t, tt.path, tt.body)
		require.Equal(t, tt.bytes, a.PromptBytes, "%s %s", tt.path, tt.body)
		require.Equal(t, tt.tokens, a.PromptTokens, "%s %s", tt.path, tt.body)
	}
}

func textLen(t require.TestingT, quoted string) int {
	p := parser{walker: walker{b: []byte(quoted)}, chain: chain{scratch: new(scratch)}}
	require.NoError(t, p.say())
	return p.prompt.bytes
}

// The length of an escaped text is that of the text, whatever the escapes.
func TestTextLen(t *testing.T) {
	for _, s := range []string{`\\`, `\\\\\"`, `C:\\new\\u0041`, `\\\u0041`, `\/\b\f\n\r\t`, `\u00e9\u4e2d\ud83d\ude00\u0000`} {
		var text string
		require.NoError(t, json.Unmarshal([]byte(`"`+s+`"`), &text))
		require.Equal(t, len(text), textLen(t, `"`+s+`"`), s)
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		for _, ascii := range []bool{false, true} {
			quoted, _ := json.Marshal(text)
			if ascii { // as Python writes it
				quoted = []byte(strconv.QuoteToASCII(text))
				if !json.Valid(quoted) {
					continue // Go has escapes that JSON has not
				}
			}
			var back string
			require.NoError(t, json.Unmarshal(quoted, &back))
			require.Equal(t, len(back), textLen(t, string(quoted)), "%s", quoted)
		}
	})
}

func TestParseMaxTokens(t *testing.T) {
	tests := []struct {
		path, body string
		want       int
	}{
		{"/v1/chat/completions", `{}`, 0},
		{"/v1/chat/completions", `{"max_tokens":5}`, 5},
		{"/v1/chat/completions", `{"max_tokens":5,"max_completion_tokens":3}`, 3},
		{"/v1/chat/completions", `{"max_tokens":"many"}`, 0},
		{"/v1/chat/completions", `{"max_tokens":0}`, 1},
		{"/v1/chat/completions", `{"max_tokens":-1}`, 0},
		{"/v1/responses", `{"max_output_tokens":7}`, 7},
		{"/v1/messages", `{"max_tokens":9}`, 9},
		{"/completion", `{"n_predict":11}`, 11},
		{"/completion", `{"n_predict":-1}`, 0},
		{"/api/chat", `{"options":{"num_predict":6,"num_ctx":2048}}`, 6},
		{"/api/chat", `{"options":{"num_predict":-2}}`, 0},
		{"/api/chat", `{"options":{"num_predict":"many"}}`, 0},
		{"/api/chat", `{"options":7}`, 0},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, parse(t, tt.path, tt.body).MaxTokens, "%s %s", tt.path, tt.body)
	}
	require.Equal(t, 2048, parse(t, "/api/chat", `{"options":{"num_predict":6,"num_ctx":2048}}`).NumCtx)
}

func TestParseStream(t *testing.T) {
	require.False(t, parse(t, "/v1/chat/completions", `{}`).Stream)
	require.True(t, parse(t, "/v1/chat/completions", `{"stream":true}`).Stream)
	require.True(t, parse(t, "/api/chat", `{}`).Stream, "Ollama streams unless told not to")
	require.True(t, parse(t, "/api/chat", `{"stream":null}`).Stream)
	require.False(t, parse(t, "/api/generate", `{"stream":false}`).Stream)
	require.False(t, parse(t, "/api/embed", `{"stream":true}`).Stream)
}

// R17: an unload goes to every replica that has the model, a preload to one.
func TestR17UnloadAndPreload(t *testing.T) {
	tests := []struct {
		path, body      string
		unload, preload bool
	}{
		{"/api/generate", `{"model":"m"}`, false, true},
		{"/api/generate", `{"model":"m","prompt":""}`, false, true},
		{"/api/generate", `{"model":"m","prompt":"","keep_alive":"5m"}`, false, true},
		{"/api/generate", `{"model":"m","keep_alive":-1}`, false, true},
		{"/api/generate", `{"model":"m","keep_alive":0}`, true, false},
		{"/api/generate", `{"model":"m","keep_alive":"0"}`, true, false},
		{"/api/generate", `{"keep_alive":"0s","model":"m","prompt":""}`, true, false},
		{"/api/generate", `{"model":"m","keep_alive":0,"prompt":"hi"}`, false, false},
		{"/api/generate", `{"model":"m","prompt":"hi"}`, false, false},
		{"/api/chat", `{"model":"m"}`, false, true},
		{"/api/chat", `{"model":"m","messages":[]}`, false, true},
		{"/api/chat", `{"model":"m","messages":[],"keep_alive":0}`, true, false},
		{"/api/chat", `{"model":"m","messages":[],"keep_alive":"500ms"}`, true, false},
		{"/api/chat", `{"model":"m","messages":[{"role":"user","content":""}],"keep_alive":0}`, false, false},
		{"/api/embed", `{"model":"m","keep_alive":0}`, false, false},
		{"/v1/completions", `{"model":"m","prompt":"","keep_alive":0}`, false, false},
	}
	for _, tt := range tests {
		a := parse(t, tt.path, tt.body)
		require.Equal(t, tt.unload, a.Unload, "%s %s", tt.path, tt.body)
		require.Equal(t, tt.preload, a.Preload, "%s %s", tt.path, tt.body)
	}
}

func TestR17ResponsesPinning(t *testing.T) {
	require.False(t, parse(t, "/v1/responses", `{"input":"x"}`).Store)
	require.False(t, parse(t, "/v1/responses", `{"input":"x","store":false}`).Store)
	require.True(t, parse(t, "/v1/responses", `{"input":"x","store":true}`).Store)
	require.Equal(t, "resp_1", parse(t, "/v1/responses", `{"previous_response_id":"resp_1"}`).PreviousResponse)
	require.Empty(t, parse(t, "/v1/responses", `{"previous_response_id":null}`).PreviousResponse)
}

func TestR17BadBodies(t *testing.T) {
	deep := strings.Repeat("[", 20000)
	tests := []struct{ path, body, message, param string }{
		{"/v1/chat/completions", ``, "the body is empty: a JSON object is needed", ""},
		{"/v1/chat/completions", " \n", "the body is empty: a JSON object is needed", ""},
		{"/v1/chat/completions", `nope`, "not valid JSON", ""},
		{"/v1/chat/completions", `[]`, "must be a JSON object", ""},
		{"/v1/chat/completions", `"x"`, "must be a JSON object", ""},
		{"/v1/chat/completions", `{"model":"tiny", oops`, "not valid JSON", ""},
		{"/v1/chat/completions", `{"model":"tiny"`, "it ends at byte 15", ""},
		{"/v1/chat/completions", `{"model":"tiny",}`, "not valid JSON", ""},
		{"/v1/chat/completions", `{"model":"tiny"} {}`, "goes on after its JSON object", ""},
		{"/v1/chat/completions", `{"model":"tiny"},`, "goes on after its JSON object", ""},
		{"/v1/chat/completions", `{"x":NaN}`, "not valid JSON", ""},
		{"/v1/chat/completions", "\xef\xbb\xbf{}", "not valid JSON", ""},
		{"/v1/chat/completions", `{"x":` + deep, "not valid JSON", ""},
		{"/v1/chat/completions", `{"model":"a","model":"b"}`, `the name "model" stands twice`, "model"},
		{"/v1/chat/completions", `{"model":"a","mod\u0065l":"b"}`, `the name "model" stands twice`, "model"},
		{"/v1/chat/completions", `{"whatever":1,"x":2,"whatever":3}`, `stands twice`, "whatever"},
		{"/v1/chat/completions", `{"":1,"":3}`, `stands twice`, ""},
		{"/v1/chat/completions", `{"MODEL":"a"}`, `must be written "model"`, "MODEL"},
		{"/v1/chat/completions", `{"Stream":true}`, `must be written "stream"`, "Stream"},
		{"/v1/chat/completions", `{"ſtream":true}`, `must be written "stream"`, "ſtream"},
		{"/v1/chat/completions", `{"\u017ftream":true}`, `must be written "stream"`, "ſtream"},
		{"/api/chat", "{\"\u212aeep_alive\":0}", `must be written "keep_alive"`, "\u212aeep_alive"},
		{"/v1/chat/completions", `{"model":5}`, "model must be a string", "model"},
		{"/v1/chat/completions", `{"stream":"true"}`, "stream must be true or false", "stream"},
		{"/v1/chat/completions", `{"stream":1}`, "stream must be true or false", "stream"},
		{"/v1/chat/completions", `{"n":"2"}`, "n must be a number", "n"},
		{"/v1/completions", `{"best_of":[2]}`, "best_of must be a number", "best_of"},
		{"/api/show", `{"Model":"a"}`, `must be written "model"`, "Model"},
		{"/api/show", `{"model":"a","model":"b"}`, "stands twice", "model"},
		{"/tokenize", `{"content":`, "not valid JSON", ""},
	}
	for _, tt := range tests {
		a, err := Parse(at(t, tt.path), []byte(tt.body))
		var bad *BadRequest
		require.ErrorAs(t, err, &bad, "%s %.80s", tt.path, tt.body)
		require.Contains(t, bad.Message, tt.message)
		require.Equal(t, tt.param, bad.Param)
		require.Equal(t, -1, a.ModelStart)
	}
}

func TestR17OddBodiesThatPass(t *testing.T) {
	for _, body := range []string{
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe bad UTF-8 \xc3\"}]}",
		`{"model":"m","messages":[{"content":"\ud800 half a pair"}]}`,
		`{"model":"m","messages":[{"role":"user","role":"user"}],"options":{"a":1,"a":2}}`,
		`{"model":"m","Temperature":1,"temperature":2,"METADATA":{}}`,
		" \t\r\n{\"model\":\"m\"} \n",
		`{"model":"m","messages":5,"prompt":{},"input":true,"tools":null,"store":"yes","service_tier":3,"keep_alive":[],"stream_options":1}`,
	} {
		a := parse(t, "/v1/chat/completions", body)
		require.Equal(t, "m", a.Model, body)
	}
	require.Empty(t, parse(t, "/v1/chat/completions", `{"model":null}`).Model)
	require.Empty(t, parse(t, "/v1/chat/completions", `{"model":""}`).Model)
}

// R17: a body with very many names costs no more than its length.
func TestR17ManyNames(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"model":"m"`)
	for i := range 20_000 {
		fmt.Fprintf(&b, `,"name%d":0`, i)
	}
	parse(t, "/v1/chat/completions", b.String()+"}")
	_, err := Parse(at(t, "/v1/chat/completions"), []byte(b.String()+`,"name17777":0}`))
	require.ErrorContains(t, err, "name17777")
}

func TestParseHelpers(t *testing.T) {
	a := parse(t, "/api/show", `{"model":"m","verbose":true}`)
	require.Equal(t, "m", a.Model)
	a = parse(t, "/api/show", `{"name":"m"}`)
	require.Equal(t, "m", a.Model)
	body := `{"model":"","name":"m"}`
	a = parse(t, "/api/show", body)
	require.Equal(t, "m", a.Model)
	require.Equal(t, `"m"`, body[a.ModelStart:a.ModelEnd])
	for _, b := range []string{`{"model":"m","name":"other"}`, `{"name":"other","model":"m"}`} {
		require.Equal(t, "m", parse(t, "/api/show", b).Model)
	}
	require.Empty(t, parse(t, "/tokenize", `{"content":"x","model":7,"Stream":1}`).Model)
	require.Empty(t, parse(t, "/api/version", ``).Model)
	require.Empty(t, parse(t, "/api/blobs/sha256:00", "\x00GGUF").Model, "blobs are bytes")
	require.Equal(t, "m", parse(t, "/api/delete", `{"model":"m"}`).Model)
	require.Equal(t, "m", parse(t, "/v1/messages/count_tokens", `{"model":"m","messages":[]}`).Model)
}

// R17: an alias replaces the model's value and nothing else.
func TestR17ReplaceModel(t *testing.T) {
	body := "{ \"a\" : 1.0,\n\t\"mod\\u0065l\" :\t\"x\\u0041\" , \"messages\":[{\"content\":\"\xff\"}]}"
	a := parse(t, "/v1/chat/completions", body)
	require.Equal(t, "xA", a.Model)
	got := ReplaceModel([]byte(body), a, "qwen \"3\"")
	require.Equal(t, strings.Replace(body, `"x\u0041"`, `"qwen \"3\""`, 1), string(got))
	require.Equal(t, "qwen \"3\"", parse(t, "/v1/chat/completions", string(got)).Model)

	none := []byte(`{"messages":[]}`)
	require.Equal(t, none, ReplaceModel(none, parse(t, "/v1/chat/completions", string(none)), "x"))
}

// R6: a slot is added to the body and nothing else changed, unless the client
// asks for one.
func TestR6PinSlot(t *testing.T) {
	for _, tt := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `{"model":"m"}`, `{"id_slot":3,"model":"m"}`},
		{"/v1/completions", " {\n \"prompt\": \"x\"}", " {\"id_slot\":3,\n \"prompt\": \"x\"}"},
		{"/completion", `{ }`, `{"id_slot":3 }`},
		{"/completion", `{"prompt":"{","id_slot":-1}`, `{"prompt":"{","id_slot":-1}`},
		{"/v1/messages", `{"model":"m"}`, `{"model":"m"}`},
		{"/v1/embeddings", `{"model":"m"}`, `{"model":"m"}`},
	} {
		a := parse(t, tt.path, tt.body)
		got := PinSlot(at(t, tt.path), []byte(tt.body), a, 3)
		require.Equal(t, tt.want, string(got))
		require.Equal(t, a.Chain, parse(t, tt.path, string(got)).Chain)
	}
}

// R17: whatever we accept, Go's decoder (and so Ollama) sees the same model and
// stream in it as we do.
func requireSameAsGo(t testing.TB, body []byte, a Ask) {
	var seen struct {
		Model  string
		Stream *bool
	}
	if json.Unmarshal(body, &seen) != nil {
		return // Ollama will not take it
	}
	require.Equal(t, seen.Model, a.Model, "%q", body)
	require.Equal(t, seen.Stream == nil || *seen.Stream, a.Stream, "%q", body)
}
