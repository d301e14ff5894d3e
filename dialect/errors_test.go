package dialect

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestErrorBodies(t *testing.T) {
	tests := []struct {
		format      Format
		status      int
		code, param string
		want        string
	}{
		{OpenAI, 429, "deadline_unmeetable", "", `{"error":{"message":"m","type":"rate_limit_error","param":null,"code":"deadline_unmeetable"}}`},
		{OpenAI, 400, "bad_request", "stream", `{"error":{"message":"m","type":"invalid_request_error","param":"stream","code":"bad_request"}}`},
		{OpenAI, 401, "unauthorized", "", `{"error":{"message":"m","type":"authentication_error","param":null,"code":"unauthorized"}}`},
		{Responses, 502, "upstream_failed", "", `{"error":{"message":"m","type":"server_error","param":null,"code":"upstream_failed"}}`},
		{Anthropic, 400, "bad_request", "x", `{"type":"error","error":{"type":"invalid_request_error","message":"m"}}`},
		{Anthropic, 401, "unauthorized", "", `{"type":"error","error":{"type":"authentication_error","message":"m"}}`},
		{Anthropic, 403, "forbidden", "", `{"type":"error","error":{"type":"permission_error","message":"m"}}`},
		{Anthropic, 404, "model_not_found", "", `{"type":"error","error":{"type":"not_found_error","message":"m"}}`},
		{Anthropic, 413, "body_too_large", "", `{"type":"error","error":{"type":"request_too_large","message":"m"}}`},
		{Anthropic, 415, "unsupported_encoding", "", `{"type":"error","error":{"type":"invalid_request_error","message":"m"}}`},
		{Anthropic, 429, "queue_full", "", `{"type":"error","error":{"type":"rate_limit_error","message":"m"}}`},
		{Anthropic, 502, "upstream_failed", "", `{"type":"error","error":{"type":"api_error","message":"m"}}`},
		{Anthropic, 503, "draining", "", `{"type":"error","error":{"type":"overloaded_error","message":"m"}}`},
		{Anthropic, 504, "upstream_timeout", "", `{"type":"error","error":{"type":"timeout_error","message":"m"}}`},
		{Ollama, 404, "model_not_found", "", `{"error":"m"}`},
		{LlamaCpp, 503, "no_replica", "", `{"error":{"code":503,"message":"m","type":"unavailable_error"}}`},
		{LlamaCpp, 400, "bad_request", "", `{"error":{"code":400,"message":"m","type":"invalid_request_error"}}`},
		{LlamaCpp, 501, "not_supported", "", `{"error":{"code":501,"message":"m","type":"not_supported_error"}}`},
		{LlamaCpp, 500, "", "", `{"error":{"code":500,"message":"m","type":"server_error"}}`},
	}
	for _, tt := range tests {
		contentType, body := ErrorBody(tt.format, tt.status, tt.code, "m", tt.param)
		require.Equal(t, tt.want, string(body))
		require.True(t, strings.HasPrefix(contentType, "application/json"), contentType)
	}
}

func TestErrorsAreValidWhateverTheMessage(t *testing.T) {
	nasty := "line\nbreak \"quoted\" back\\slash \x00\x1f \xff\xfe \u2028 </script>"
	for f := OpenAI; f <= LlamaCpp; f++ {
		_, body := ErrorBody(f, 500, nasty, nasty, nasty)
		require.True(t, json.Valid(body), "%s", body)
		event := ErrorEvent(f, nasty, nasty)
		lines := strings.Split(strings.TrimRight(string(event), "\n"), "\n")
		data := lines[len(lines)-1]
		if f != Ollama {
			data = strings.TrimPrefix(data, "data: ")
		}
		require.True(t, json.Valid([]byte(data)), "%s", event)
	}
}

func TestR8ErrorEventBytes(t *testing.T) {
	want := map[Format]string{
		OpenAI:    `data: {"error":{"message":"m","type":"server_error","param":null,"code":"upstream_failed"}}` + "\n\n",
		Responses: "event: error\n" + `data: {"type":"error","code":"upstream_failed","message":"m","param":null,"sequence_number":0}` + "\n\n",
		Anthropic: "event: error\n" + `data: {"type":"error","error":{"type":"api_error","message":"m"}}` + "\n\n",
		Ollama:    `{"error":"m"}` + "\n",
		LlamaCpp:  `data: {"error":{"code":502,"message":"m","type":"server_error"}}` + "\n\n",
	}
	for f, bytes := range want {
		require.Equal(t, bytes, string(ErrorEvent(f, "upstream_failed", "m")))
	}
	require.Contains(t, string(ErrorEvent(LlamaCpp, "upstream_timeout", "m")), `"code":504`)
	require.Contains(t, string(ErrorEvent(Anthropic, "draining", "m")), "overloaded_error")
}

// An error event of ours is one to our own reader, in every format.
func TestR8ErrorEventsAreRecognised(t *testing.T) {
	for path, contentType := range map[string]string{
		"/v1/chat/completions": "text/event-stream", "/v1/responses": "text/event-stream", "/v1/messages": "text/event-stream",
		"/completion": "text/event-stream", "/api/chat": "application/x-ndjson",
	} {
		ep := at(t, path)
		s := NewStream(ep.Format, ep, Ask{}, contentType)
		s.Push(ErrorEvent(ep.Format, "upstream_failed", "m"))
		_, kind, ok := s.Next()
		require.True(t, ok, path)
		require.Equal(t, EventError, kind, path)
		require.False(t, s.Complete(), path)
	}
}
