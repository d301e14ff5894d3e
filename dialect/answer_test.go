package dialect

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRecordedAnswers(t *testing.T) {
	tests := []struct {
		file, path string
		usage      Usage
	}{
		{"llamacpp_chat.json", "/v1/chat/completions", Usage{19, 18, 8, 0, ms(23.604), ms(21.668), true}},
		{"llamacpp_n2.json", "/v1/chat/completions", Usage{19, 18, 3, 0, ms(5.22), ms(11.896), true}},
		{"llamacpp_completion.json", "/completion", Usage{5, 1, 4, 0, ms(6.066), ms(7.609), true}},
		{"llamacpp_messages.json", "/v1/messages", Usage{19, 18, 4, 0, 0, 0, true}},
		{"ollama_chat.json", "/api/chat", Usage{19, 0, 6, 26697581, 18756357, 107607208, false}},
		{"ollama_v1.json", "/v1/chat/completions", Usage{19, 0, 6, 0, 0, 0, false}},
		{"ollama_preload.json", "/api/generate", Usage{}},
	}
	for _, tt := range tests {
		ep, body := at(t, tt.path), fixture(t, tt.file)
		require.Equal(t, tt.usage, AnswerUsage(ep.Format, ep, body), tt.file)
		require.False(t, AnswerLooksBroken(ep.Format, ep, body), tt.file)
		require.True(t, AnswerLooksBroken(ep.Format, ep, body[:len(body)-2]), "cut short: %s", tt.file)
	}
}

// R7: 200 and then no answer.
func TestR7BrokenAnswers(t *testing.T) {
	tests := []struct {
		path, body string
		broken     bool
	}{
		{"/v1/chat/completions", ``, true},
		{"/v1/chat/completions", " \n", true},
		{"/v1/chat/completions", `null`, true},
		{"/v1/chat/completions", `<html>`, true},
		{"/v1/chat/completions", `{}`, true},
		{"/v1/chat/completions", `{"choices":[]}`, true},
		{"/v1/chat/completions", `{"error":{"message":"m"}}`, true},
		{"/v1/chat/completions", `{"object":"error","message":"m"}`, true},
		{"/v1/chat/completions", `{"choices":[{"message":{"content":""},"finish_reason":"stop"}],"error":null}`, false},
		{"/v1/chat/completions", `{"choices":[{"message":{"content":"the \"error\" is"}}]}`, false},
		{"/v1/embeddings", `{"data":[],"usage":{"prompt_tokens":2}}`, false},
		{"/v1/embeddings", `{"error":"m"}`, true},
		{"/v1/rerank", `{"results":[]}`, false},
		{"/v1/messages", `{"type":"error","error":{"type":"api_error"}}`, true},
		{"/v1/messages", `{"type":"message","content":[]}`, false},
		{"/v1/responses", `{"status":"failed","error":{"code":"x"}}`, true},
		{"/v1/responses", `{"status":"completed","error":null,"output":[]}`, false},
		{"/api/chat", `{"error":"m"}`, true},
		{"/api/chat", `{"message":{"content":""},"done":false}`, true},
		{"/api/chat", `{"message":{"content":""},"done":true}`, false},
		{"/api/embed", `{"embeddings":[]}`, false},
		{"/completion", `{"content":"","stop":true}`, false},
		{"/completion", `[{"content":"a","stop":true},{"content":"b","stop":true}]`, false},
		{"/completion", `[{"content":"a","stop":true},{"error":{"code":500}}]`, true},
		{"/completion", `[{"content":"a"`, true},
		{"/embedding", `[{"index":0,"embedding":[[0.1]]}]`, false},
	}
	for _, tt := range tests {
		ep := at(t, tt.path)
		require.Equal(t, tt.broken, AnswerLooksBroken(ep.Format, ep, []byte(tt.body)), "%s %s", tt.path, tt.body)
	}
}

func TestAnswersInAList(t *testing.T) {
	one := `{"index":0,"content":"a","stop":true,"tokens_evaluated":5,"tokens_predicted":2,"timings":{"cache_n":1,"prompt_n":4,"prompt_ms":2,"predicted_n":2,"predicted_ms":3}}`
	ep := at(t, "/completion")
	require.Equal(t, Usage{10, 2, 4, 0, ms(4), ms(6), true}, AnswerUsage(ep.Format, ep, []byte("["+one+","+one+"]")))
}

func TestUsageOfOddAnswers(t *testing.T) {
	ep := at(t, "/v1/chat/completions")
	for _, body := range []string{
		`{"choices":[{}],"usage":null}`, `{"choices":[{}],"usage":{"prompt_tokens":"many"}}`, `{"choices":[{}],"timings":{"predicted_n":-1,"prompt_ms":-5}}`,
		`{"choices":[{}],"usage":{"prompt_tokens_details":null}}`, `nope`,
	} {
		require.Equal(t, Usage{}, AnswerUsage(ep.Format, ep, []byte(body)), body)
	}
	u := AnswerUsage(ep.Format, ep, []byte(`{"timings":{"prompt_ms":1e300,"prompt_n":1e300}}`))
	require.Positive(t, u.Prompt)
	require.Positive(t, u.PromptTokens)
}

func TestR7ContextTooLong(t *testing.T) {
	tests := []struct {
		body string
		want bool
	}{
		{string(fixture(t, "llamacpp_context.json")), true},
		{string(fixture(t, "ollama_context.json")), true},
		{`{"error":"the input length exceeds the context length"}`, true},
		{`{"error":{"message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens","type":"BadRequestError","code":400}}`, true},
		{`{"error":{"message":"m","type":"invalid_request_error","code":"context_length_exceeded"}}`, true},
		{`{"error":{"message":"The decoder prompt (length 6000) is longer than the maximum model length of 4096."}}`, true},
		{`{"error":{"code":400,"message":"'messages' is required","type":"invalid_request_error"}}`, false},
		{``, false},
		{strings.Repeat(" ", 1<<20) + "maximum context length", false},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, ContextTooLong(400, []byte(tt.body)), tt.body[:min(len(tt.body), 200)])
		require.False(t, ContextTooLong(500, []byte(tt.body)))
	}
}

func TestResponseID(t *testing.T) {
	require.Equal(t, "resp_1", ResponseID([]byte(`{"output":[{"id":"msg_1"}],"id":"resp_1","object":"response"}`)))
	require.Empty(t, ResponseID([]byte(`{"id":5}`)))
	require.Empty(t, ResponseID(nil))
}

// R6: a count of 0 cached tokens is a word, none is not.
func TestR6WhetherCachedTokensWereSaid(t *testing.T) {
	for usage, said := range map[string]bool{
		`"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}`:    true,
		`"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":null}}`: false,
		`"usage":{"prompt_tokens":9,"prompt_tokens_details":null}`:                   false,
		`"usage":{"prompt_tokens":9}`:                                                false,
		`"usage":{"input_tokens":9,"cache_read_input_tokens":0}`:                     true,
		`"usage":{"input_tokens":9,"cache_read_input_tokens":null}`:                  false,
		`"timings":{"cache_n":0,"prompt_n":9}`:                                       true,
		`"timings":{"cache_n":-1,"prompt_n":9}`:                                      false,
	} {
		ep := at(t, "/v1/chat/completions")
		require.Equal(t, said, AnswerUsage(ep.Format, ep, []byte(`{"choices":[{}],`+usage+`}`)).CacheSaid, usage)
		s := stream(t, "/v1/chat/completions", sse, Ask{})
		run(t, s, `data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}],`+usage+"}\n\n")
		require.Equal(t, said, s.Usage().CacheSaid, usage)
	}
}
