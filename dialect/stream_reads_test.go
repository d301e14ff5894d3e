package dialect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// R8: events too long to keep pass in pieces, and are understood all the same:
// llama.cpp repeats the prompt in its last event, Ollama all token ids.
func TestR8LongTerminalEvents(t *testing.T) {
	prompt := strings.Repeat(`some \"stop\":false text `, 20_000)
	ids := strings.Repeat("12345,", 80_000) + "1"
	tests := []struct {
		path, contentType, event, kind string
		usage                          Usage
	}{
		{"/completion", sse, `data: {"index":0,"content":"","stop":true,"prompt":"` + prompt + `","timings":{"cache_n":4,"prompt_n":1,"predicted_n":3}}` + "\n\n", "T", Usage{5, 4, 3, 0, 0, 0, true}},
		{"/api/generate", ndjson, `{"response":"","done":true,"context":[` + ids + `],"prompt_eval_count":80001,"eval_count":3}` + "\n", "T", Usage{80001, 0, 3, 0, 0, 0, false}},
		{"/v1/responses", sse, "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"content\":[{\"text\":\"" + prompt + "\"}]}],\"usage\":{\"input_tokens\":5,\"output_tokens\":7}}}\n\n", "T", Usage{5, 0, 7, 0, 0, 0, false}},
		{"/v1/chat/completions", sse, `data: {"choices":[{"delta":{"content":"` + prompt + `"},"finish_reason":null}]}` + "\n\n", "C", Usage{}},
		{"/v1/chat/completions", sse, `data: {"error":{"message":"` + prompt + `"}}` + "\r\n\r\n", "E", Usage{}},
		{"/v1/responses", sse, `data: {"type":"response.created","response":{"instructions":"` + prompt + `"}}` + "\n\n", "r", Usage{}},
	}
	for _, tt := range tests {
		for _, size := range []int{997, 100_000, len(tt.event)} {
			var pieces []string
			for rest := tt.event; rest != ""; {
				n := min(size, len(rest))
				pieces, rest = append(pieces, rest[:n]), rest[n:]
			}
			s := stream(t, tt.path, tt.contentType, Ask{})
			kinds := run(t, s, pieces...)
			require.Equal(t, tt.kind, strings.TrimLeft(kinds, "+"), "%s in pieces of %d", tt.path, size)
			require.Equal(t, tt.usage, s.Usage())
			require.Equal(t, tt.kind == "T", s.Complete())
			require.False(t, s.Open())
		}
		// Cut in the middle it is open: an error event must not stick to it.
		s := stream(t, tt.path, tt.contentType, Ask{})
		require.Equal(t, "++", run(t, s, tt.event[:200_000], tt.event[200_000:400_000]))
		require.True(t, s.Open())
		require.False(t, s.Complete())
	}
}

// PAINS 11: the same events, kinds, usage, whatever the reads.
func TestStreamDoesNotDependOnReads(t *testing.T) {
	files := []struct{ name, path, contentType string }{
		{"llamacpp_chat_usage.sse", "/v1/chat/completions", sse},
		{"llamacpp_completion.sse", "/completion", sse},
		{"ollama_chat.ndjson", "/api/chat", ndjson},
		{"anthropic.sse", "/v1/messages", sse},
		{"responses.sse", "/v1/responses", sse},
	}
	var texts []string
	for _, f := range files {
		text := string(fixture(t, f.name))
		texts = append(texts, text, strings.ReplaceAll(text, "\n", "\r\n"))
	}
	rapid.Check(t, func(rt *rapid.T) {
		i := rapid.IntRange(0, len(texts)-1).Draw(rt, "file")
		f := files[i/2]
		whole := stream(t, f.path, f.contentType, Ask{})
		want := run(rt, whole, texts[i])
		s := stream(t, f.path, f.contentType, Ask{})
		require.Equal(rt, want, read(rt, s, rapid.Bool().Draw(rt, "in runs"), split3(rt, texts[i])))
		require.Equal(rt, whole.Usage(), s.Usage())
		require.Equal(rt, whole.Tokens(), s.Tokens())
		require.True(rt, s.Complete())
	})
}

// R8: searching an event comes to what parsing it comes to, whatever came before.
func TestR8SearchAgreesWithParsing(t *testing.T) {
	texts := []string{" jack", "x", `\"`, `\\`, `a\\\"b`, `\n`, `\"finish_reason\":\"stop\"`, `\"error\":{}`, `: `, `\" : 1`, "é"}
	shapes := []string{
		`{"choices":[{"finish_reason":%[2]s,"index":0,"delta":{"content":"%[1]s"}}],"created":%[3]d,"id":"c"%[4]s}`,
		`{"id":"c","created":%[3]d,"choices":[{"index":0,"delta":{"content":"%[1]s"},"finish_reason":%[2]s}]%[4]s}`,
		`{"id": "c", "choices": [{"index": 0, "delta": {"reasoning_content": "%[1]s"}, "finish_reason" : %[2]s}]%[4]s}`,
		`{"choices":[{"index":0,"text":"%[1]s","finish_reason":%[2]s}]%[4]s}`,
		`{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"%[1]s"}}],"content":"."},"finish_reason":%[2]s}]%[4]s,"t":%[3]d}`,
		`{"object":"x","content":"%[1]s","choices":[{"delta":{"content":"%[1]s"},"finish_reason":%[2]s}],"t":%[3]d%[4]s}`,
	}
	ends := []string{"null", "null", "null", "null", `"stop"`, `""`}
	tails := []string{"", "", "", `,"usage":null`, `,"usage":{"prompt_tokens":3,"completion_tokens":9}`, `,"error":{"message":"m"}`, `,"error" : "m"`, `,"object":"error"`, `,"x":{"error":1}`}
	rapid.Check(t, func(rt *rapid.T) {
		from := func(name string, list []string) string { return rapid.SampledFrom(list).Draw(rt, name) }
		fast, slow := stream(t, "/v1/chat/completions", sse, Ask{}), stream(t, "/v1/chat/completions", sse, Ask{})
		shape := from("shape", shapes)
		for range rapid.IntRange(1, 20).Draw(rt, "events") {
			if rapid.IntRange(0, 4).Draw(rt, "change") == 0 {
				shape = from("shape", shapes)
			}
			event := fmt.Sprintf(shape, from("text", texts), from("end", ends), rapid.IntRange(0, 2).Draw(rt, "n"), from("tail", tails))
			var kinds []EventKind
			for _, s := range []*Stream{fast, slow} {
				slow.begun = false // so that it parses
				s.Push([]byte("data: " + event + "\n\n"))
				_, kind, ok := s.Next()
				require.True(rt, ok)
				kinds = append(kinds, kind)
				s.Next()
			}
			require.Equal(rt, kinds[1], kinds[0], "%s", event)
			require.Equal(rt, slow.Complete(), fast.Complete(), "%s", event)
			require.Equal(rt, slow.events, fast.events, "%s", event)
			require.Equal(rt, slow.Usage(), fast.Usage(), "%s", event)
		}
	})
}

// After the first content, what is ordinary comes in one, up to what is not.
func TestRunEndsBeforeWhatIsNotOrdinary(t *testing.T) {
	content := `data: {"choices":[{"index":0,"delta":{"content":" a"},"finish_reason":null}]}` + "\n\n"
	for name, next := range map[string]string{
		"the end":          `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n",
		"[DONE]":           "data: [DONE]\n\n",
		"an error":         `data: {"error":{"message":"x"}}` + "\n\n",
		"usage":            `data: {"choices":[],"usage":{"prompt_tokens":1}}` + "\n\n",
		"a comment":        ": ping\n",
		"a name":           "event: x\n" + content,
		"another spelling": "data:" + content[len("data: "):],
		"no end":           content[:len(content)-1],
		"nothing":          "",
	} {
		t.Run(name, func(t *testing.T) {
			s := stream(t, "/v1/chat/completions", sse, Ask{})
			s.Push([]byte(content + content + content + content + next))
			require.Nil(t, s.Run(), "before the first content")
			_, kind, ok := s.Next()
			require.True(t, ok && kind == EventContent)
			require.Equal(t, content+content+content, string(s.Run()))
			require.Nil(t, s.Run())
			require.Equal(t, 4, s.Tokens())
			event, _, _ := s.Next()
			if name != "no end" {
				require.Equal(t, next, string(event))
			}
		})
	}
	s := stream(t, "/v1/chat/completions", sse, Ask{ReturnProgress: true})
	s.Push([]byte(content + content))
	s.Next()
	require.Nil(t, s.Run(), "progress is looked for in each")
}
