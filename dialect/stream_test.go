package dialect

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const sse, ndjson = "text/event-stream; charset=utf-8", "application/x-ndjson"

// letters name the kinds in the order of a stream, to be read at a glance.
const letters = ":rp+CTE"

// run reads a stream in the given pieces to its clean end: the kinds of its
// events as letters (a piece of a long event is "+").
func run(t require.TestingT, s *Stream, pieces ...string) string { return read(t, s, false, pieces) }

// read is run, with Run where it has something if ahead.
func read(t require.TestingT, s *Stream, ahead bool, pieces []string) string {
	var kinds, passed strings.Builder
	drain := func() {
		for {
			if before := s.events; ahead {
				if events := s.Run(); events != nil {
					require.Greater(t, s.events, before)
					kinds.WriteString(strings.Repeat(string(letters[EventContent]), s.events-before))
					passed.Write(events)
				}
			}
			event, kind, ok := s.Next()
			if !ok {
				return
			}
			kinds.WriteByte(letters[kind])
			passed.Write(event)
		}
	}
	for _, p := range pieces {
		s.Push([]byte(p))
		drain()
	}
	s.End()
	drain()
	require.Equal(t, strings.Join(pieces, ""), passed.String()+string(s.Rest()), "every byte, and none twice")
	return kinds.String()
}

func stream(t testing.TB, path, contentType string, ask Ask) *Stream {
	ep := at(t, path)
	return NewStream(ep.Format, ep, ask, contentType)
}

func ms(f float64) time.Duration { return time.Duration(f * float64(time.Millisecond)) }

// The exchanges with real servers: what each event is, that the answer is
// complete, and what it says of usage.
func TestRecordedStreams(t *testing.T) {
	tests := []struct {
		file, path, contentType string
		kinds                   string
		usage                   Usage
	}{
		{"llamacpp_chat.sse", "/v1/chat/completions", sse, "rCCCCTT", Usage{19, 18, 4, 0, ms(75.024), ms(27.642), true}},
		{"llamacpp_chat_usage.sse", "/v1/chat/completions", sse, "rCCCCTrT", Usage{19, 18, 4, 0, ms(5.426), ms(34.646), true}},
		{"llamacpp_chat_timings.sse", "/v1/chat/completions", sse, "rCCCTT", Usage{19, 18, 3, 0, ms(10.886), ms(24.415), true}},
		{"llamacpp_chat_progress.sse", "/v1/chat/completions", sse, "pprCCTT", Usage{23, 7, 2, 0, ms(7.825), ms(4.929), true}},
		{"llamacpp_completion.sse", "/completion", sse, "CCCT", Usage{5, 4, 3, 0, ms(4.976), ms(8.105), true}},
		{"ollama_chat.ndjson", "/api/chat", ndjson, "CCCT", Usage{19, 0, 3, 105587893, 21865774, 23448313, false}},
		{"ollama_generate.ndjson", "/api/generate", ndjson, "CCCT", Usage{19, 0, 3, 81862315, 17276814, 28190513, false}},
		{"ollama_preload.json", "/api/generate", "application/json; charset=utf-8", "T", Usage{}},
		{"ollama_v1.sse", "/v1/chat/completions", sse, "CCCTrT", Usage{19, 0, 3, 0, 0, 0, false}},
		{"openai_tools.sse", "/v1/chat/completions", sse, "rCCCTT", Usage{}},
		{"anthropic.sse", "/v1/messages", sse, "rrrCCrrCCrrT", Usage{20, 3, 9, 0, 0, 0, true}},
		{"responses.sse", "/v1/responses", sse, "rrrrCCCCCT", Usage{36, 4, 11, 0, 0, 0, true}},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			text := string(fixture(t, tt.file))
			s := stream(t, tt.path, tt.contentType, Ask{})
			require.Equal(t, tt.kinds, run(t, s, text))
			require.True(t, s.Complete())
			require.Empty(t, s.Rest())
			require.Equal(t, tt.usage, s.Usage())
			// PAINS 33: without usage, events are counted.
			want := tt.usage.OutputTokens
			if want == 0 {
				want = strings.Count(tt.kinds, "C")
			}
			require.Equal(t, want, s.Tokens())

			byBytes := stream(t, tt.path, tt.contentType, Ask{ReturnProgress: true})
			require.Equal(t, tt.kinds, run(t, byBytes, strings.Split(text, "")...))
			require.Equal(t, tt.usage, byBytes.Usage())

			// R8: what is cut before its terminal event is not complete.
			short := stream(t, tt.path, tt.contentType, Ask{})
			run(t, short, text[:strings.LastIndexAny(strings.TrimSpace(text), "\n")+1]+"data: {")
			if strings.HasSuffix(tt.kinds, "TT") || strings.HasSuffix(tt.kinds, "TrT") {
				require.True(t, short.Complete(), "a finish_reason for every choice is enough")
			} else {
				require.False(t, short.Complete())
			}
		})
	}
}

// R8: a clean end as real servers make it when they die is not complete.
func TestR8CleanEndIsNotComplete(t *testing.T) {
	content := `data: {"choices":[{"index":0,"delta":{"content":" hip"},"finish_reason":null}]}` + "\n\n"
	s := stream(t, "/v1/chat/completions", sse, Ask{})
	require.Equal(t, "CC", run(t, s, content, content))
	require.False(t, s.Complete())

	// Ollama's /v1 when the runner was killed: an empty delta.
	s = stream(t, "/v1/chat/completions", sse, Ask{})
	require.Equal(t, "r", run(t, s, `data: {"model":"","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`+"\n\n"))
	require.False(t, s.Complete())

	s = stream(t, "/api/chat", ndjson, Ask{})
	require.Equal(t, "C", run(t, s, `{"message":{"role":"assistant","content":" lay"},"done":false}`+"\n"))
	require.False(t, s.Complete())

	for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/completion", "/api/chat"} {
		s = stream(t, path, sse, Ask{})
		require.Empty(t, run(t, s))
		require.False(t, s.Complete(), "an empty stream")
	}
}

// R7: what commits and what does not, an event at a time, as the first of a stream.
func TestR7KindOfFirstEvent(t *testing.T) {
	const chat, text, resp, msg, comp, och, ogen = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/completion", "/api/chat", "/api/generate"
	tests := []struct {
		path, data string
		want       string
	}{
		// OpenAI: a role, nothing, or only labels are not content (PAINS 7: all else is).
		{chat, `{"choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}`, "r"},
		{chat, `{"choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null,"tool_calls":[]},"logprobs":null,"finish_reason":null}]}`, "r"},
		{chat, `{"choices":[{"delta":{}}]}`, "r"},
		{chat, `{"choices":[],"prompt_filter_results":[{"prompt_index":0}]}`, "r"},
		{chat, `{"choices":[],"usage":{"prompt_tokens":1}}`, "r"},
		{chat, `{"choices":[{"delta":{"content":"x"}}]}`, "C"},
		{chat, `{"choices":[{"delta":{"content":" "}}]}`, "C"},
		{chat, `{"choices":[{"delta":{"reasoning_content":"hm"}}]}`, "C"},
		{chat, `{"choices":[{"delta":{"reasoning":"hm"}}]}`, "C"},
		{chat, `{"choices":[{"delta":{"content":null,"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":""}}]}}]}`, "C"},
		{chat, `{"choices":[{"delta":{"function_call":{"name":"f"}}}]}`, "C"},
		{chat, `{"choices":[{"delta":{"refusal":"no"}}]}`, "C"},
		{chat, `{"choices":[{"index":0,"delta":{"content":"all of it"},"finish_reason":"stop"}]}`, "T"},
		{chat, `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`, "T"},
		{chat, `[DONE]`, "T"},
		{chat, `{"choices":[{"delta":{"role":"assistant","content":null}}],"prompt_progress":{"total":23,"processed":7}}`, "p"},
		{chat, `{"some":"thing"}`, "C"},
		{chat, `not JSON`, "C"},
		{text, `{"choices":[{"text":"x","index":0}]}`, "C"},
		{text, `{"choices":[{"text":"","index":0,"finish_reason":null}]}`, "r"},
		// PAINS 39, R7: an error under status 200.
		{chat, `{"error":{"message":"m","type":"server_error"}}`, "E"},
		{chat, `{"error":"m"}`, "E"},
		{chat, `{"error":null,"choices":[{"delta":{"content":"x"}}]}`, "C"},
		{chat, `{"object":"error","message":"m","type":"BadRequestError","code":400}`, "E"},
		{chat, `{"id":"1","error":{"code":502},"choices":[{"delta":{"content":""},"finish_reason":"error"}]}`, "E"},
		// Anthropic, with names only in the data.
		{msg, `{"type":"message_start","message":{"id":"m","role":"assistant","content":[],"usage":{"input_tokens":1}}}`, "r"},
		{msg, `{"type":"ping"}`, "r"},
		{msg, `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`, "r"},
		{msg, `{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}`, "r"},
		{msg, `{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}`, "C"},
		{msg, `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}`, "r"},
		{msg, `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}`, "C"},
		{msg, `{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{"}}`, "C"},
		{msg, `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}`, "r"},
		{msg, `{"type":"message_stop"}`, "T"},
		{msg, `{"type":"error","error":{"type":"overloaded_error","message":"m"}}`, "E"},
		{msg, `[DONE]`, "r"},
		// Responses.
		{resp, `{"type":"response.created","response":{"id":"resp_1","instructions":"long","error":null,"output":[]}}`, "r"},
		{resp, `{"type":"response.output_item.added","item":{"id":"msg_1","type":"message","status":"in_progress","role":"assistant","content":[]}}`, "r"},
		{resp, `{"type":"response.output_item.added","item":{"id":"fc_1","type":"function_call","call_id":"c","name":"f","arguments":""}}`, "C"},
		{resp, `{"type":"response.content_part.added","part":{"type":"output_text","text":"","annotations":[]}}`, "r"},
		{resp, `{"type":"response.output_text.delta","delta":"x"}`, "C"},
		{resp, `{"type":"response.output_text.delta","delta":""}`, "r"},
		{resp, `{"type":"response.reasoning_text.delta","delta":"x"}`, "C"},
		{resp, `{"type":"response.completed","response":{"id":"resp_1"}}`, "T"},
		{resp, `{"type":"response.incomplete","response":{"id":"resp_1"}}`, "T"},
		{resp, `{"type":"response.failed","response":{"id":"resp_1","error":{"code":"server_error"}}}`, "E"},
		{resp, `{"type":"error","code":"x","message":"m"}`, "E"},
		// llama.cpp.
		{comp, `{"index":0,"content":"","tokens":[],"stop":false,"tokens_predicted":0}`, "r"},
		{comp, `{"index":0,"content":"","tokens":[],"stop":false,"prompt_progress":{"total":5,"processed":2}}`, "p"},
		{comp, `{"index":0,"content":"x","stop":false}`, "C"},
		{comp, `{"index":0,"content":"","tokens":[226],"stop":false}`, "C"},
		{comp, `{"index":0,"content":"","stop":true}`, "T"},
		{comp, `{"error":{"code":500,"message":"m","type":"server_error"}}`, "E"},
		// Ollama.
		{och, `{"message":{"role":"assistant","content":""},"done":false}`, "r"},
		{och, `{"message":{"role":"assistant","content":"","thinking":"hm"},"done":false}`, "C"},
		{och, `{"message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"done":true}}}]},"done":false}`, "C"},
		{och, `{"message":{"role":"assistant","content":"x"},"done":false}`, "C"},
		{och, `{"message":{"role":"assistant","content":""},"done":true,"done_reason":"stop"}`, "T"},
		{och, `{"error":"an error was encountered while running the model: unexpected EOF"}`, "E"},
		{och, ``, ":"},
		{ogen, `{"response":"","done":false}`, "r"},
		{ogen, `{"response":"x","done":false}`, "C"},
		{ogen, `{"response":"","thinking":"hm","done":false}`, "C"},
		{ogen, `{"response":"","done":true,"done_reason":"unload"}`, "T"},
	}
	for _, tt := range tests {
		contentType, event := sse, "data: "+tt.data+"\n\n"
		if tt.path == och || tt.path == ogen {
			contentType, event = ndjson, tt.data+"\n"
		}
		s := stream(t, tt.path, contentType, Ask{})
		require.Equal(t, tt.want, run(t, s, event), "%s %s", tt.path, tt.data)
		require.Equal(t, tt.want == "T" || strings.Contains(tt.data, "response.failed"), s.Complete(), "%s %s", tt.path, tt.data)
	}
}

func TestR7EventsWithoutData(t *testing.T) {
	for _, event := range []string{":\n", ": ping\n\n", "\n", "event: ping\n\n", "id: 7\n\n", "retry: 10\n\n", "data:\n\n", "nonsense\n\n"} {
		s := stream(t, "/v1/chat/completions", sse, Ask{})
		require.Equal(t, "", strings.Trim(run(t, s, event), ":"), "%q", event)
	}
	s := stream(t, "/v1/chat/completions", sse, Ask{})
	require.Equal(t, "E", run(t, s, "event: error\ndata: it broke\n\n"))
	s = stream(t, "/v1/chat/completions", sse, Ask{})
	require.Equal(t, "E", run(t, s, "error: {\"code\":500}\n\n"), "as old llama.cpp says it")
	s = stream(t, "/v1/chat/completions", sse, Ask{})
	require.Equal(t, "C", run(t, s, "data:{\"choices\":[{\"delta\":\ndata: {\"content\":\"x\"}}]}\n\n"), "data on two lines, without space")
	s = stream(t, "/v1/chat/completions", sse, Ask{})
	require.Equal(t, "C", run(t, s, "data: {\"choices\":[\ndata: {\"delta\":\ndata:\ndata: {\"content\":\"x\"}}]}\n\n"))
	s = stream(t, "/v1/chat/completions", sse, Ask{})
	require.Equal(t, "CT", run(t, s, "\xef\xbb\xbfdata: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\r\n\r\ndata: [DONE]\r\n\r\n"))
}

// R8: text that speaks of terminal events is none, at the start and in the middle.
func TestR8TextAboutTerminalEvents(t *testing.T) {
	traps := []string{
		`[DONE]`, `data: [DONE]`, `\n\ndata: [DONE]\n\n`, `\"finish_reason\":\"stop\"`, `\"finish_reason\": \"stop\"`, `finish_reason`, `finish_reason\"`,
		`\"stop\":true`, `\"done\":true`, `,\"done\":true}`, `\"done\":false}`, `\"error\":{\"message\":1}`, `\"error\" : 1`, `\"usage\":{\"completion_tokens\":99}`,
		`message_stop`, `event: message_stop`, `\"type\":\"message_stop\"`, `response.completed`, `\\\"finish_reason\\\":1`, `\\`, `: : \" :`,
	}
	shapes := []struct{ path, contentType, event, end string }{
		{"/v1/chat/completions", sse, `data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"%s"}}],"usage":null}` + "\n\n", "data: [DONE]\n\n"},
		{"/v1/chat/completions", sse, `data: {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "%s"}}]}, "finish_reason": null}]}` + "\n\n", "data: [DONE]\n\n"},
		{"/v1/completions", sse, `data: {"choices":[{"text":"%s","index":0,"logprobs":null,"finish_reason":null}]}` + "\n\n", "data: [DONE]\n\n"},
		{"/v1/messages", sse, "event: content_block_delta\n" + `data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"%s"}}` + "\n\n", "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"},
		{"/v1/messages", sse, `data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"%s"}}` + "\n\n", `data: {"type":"message_stop"}` + "\n\n"},
		{"/v1/responses", sse, `data: {"type":"response.output_text.delta","delta":"%s"}` + "\n\n", `data: {"type":"response.completed"}` + "\n\n"},
		{"/completion", sse, `data: {"index":0,"content":"%s","stop":false}` + "\n\n", `data: {"content":"","stop":true}` + "\n\n"},
		{"/api/chat", ndjson, `{"message":{"role":"assistant","content":"%s"},"done":false}` + "\n", `{"message":{"content":""},"done":true}` + "\n"},
		{"/api/chat", ndjson, `{"done":false,"message":{"tool_calls":[{"function":{"arguments":{"done":true,"x":"%s"}}}]}}` + "\n", `{"done":true}` + "\n"},
		{"/api/generate", ndjson, `{"response":"%s","done":false}` + "\n", `{"response":"","done":true}` + "\n"},
	}
	for _, shape := range shapes {
		for _, trap := range traps {
			s := stream(t, shape.path, shape.contentType, Ask{})
			event := fmt.Sprintf(shape.event, trap)
			require.Equal(t, "CC", run(t, s, event, event), "%s", event)
			require.False(t, s.Complete(), "%s", event)
			require.Equal(t, 2, s.Tokens(), "%s", event)
			require.Equal(t, "T", run(t, s, shape.end))
			require.True(t, s.Complete())
		}
	}
}

// R8: after content the signs of the end, of errors and of usage are still seen.
func TestR8AfterContent(t *testing.T) {
	content := `data: {"choices":[{"delta":{"content":"x"},"finish_reason":null}]}` + "\n\n"
	for event, want := range map[string]string{
		`{"choices":[{"delta":{},"finish_reason":"length"}]}`:                                "T",
		`{"choices": [{"delta": {}, "finish_reason": "length"}]}`:                            "T",
		`{"choices":[{"delta":{},"finish_reason" : "length"}]}`:                              "T",
		`{"error":{"message":"m"}}`:                                                          "E",
		`{"choices":[{"delta":{"content":"x"}}],"error" : {"message":"m"}}`:                  "E",
		`{"object":"error","message":"m"}`:                                                   "E",
		`[DONE]`:                                                                             "T",
		`{"choices":[],"usage":{"completion_tokens":7}}`:                                     "r",
		`{"choices":[{"delta":{"content":"x"}}],"usage":{"completion_tokens":7}}`:            "C",
		`{"choices":[{"delta":{"content":"x"},"logprobs":{"finish_reason":"a"}}],"x":{}}`:    "C",
		`{"choices":[{"delta":{"content":"x"},"finish_reason":null}],"usage" : null,"a":1 }`: "C",
	} {
		s := stream(t, "/v1/chat/completions", sse, Ask{})
		require.Equal(t, "C"+want, run(t, s, content, "data: "+event+"\n\n"), event)
		if strings.Contains(event, "completion_tokens") {
			require.Equal(t, 7, s.Tokens())
		}
	}
	s := stream(t, "/v1/responses", sse, Ask{})
	require.Equal(t, "CT", run(t, s, `data: {"type":"response.output_text.delta","delta":"x"}`+"\n\n"+`data: {"type":"response.failed","response":{}}`+"\n\n"))
	require.True(t, s.Complete(), "it says itself that it failed")
}

// R8: with n choices the answer is complete when each has its finish_reason.
func TestR8EveryChoice(t *testing.T) {
	choice := func(index int, rest string) string {
		return fmt.Sprintf(`data: {"choices":[{"index":%d,%s}]}`+"\n\n", index, rest)
	}
	content, stop := `"delta":{"content":"x"},"finish_reason":null`, `"delta":{},"finish_reason":"stop"`
	s := stream(t, "/v1/chat/completions", sse, Ask{Choices: 2})
	require.Equal(t, "rCCr", run(t, s, choice(0, stop), choice(1, content), choice(1, content), choice(0, stop)))
	require.False(t, s.Complete())
	require.Equal(t, "T", run(t, s, choice(1, stop)))
	require.True(t, s.Complete())

	s = stream(t, "/v1/completions", sse, Ask{Choices: 2})
	require.Equal(t, "T", run(t, s, `data: {"choices":[{"index":0,"text":"a","finish_reason":"stop"},{"index":1,"text":"b","finish_reason":"length"}]}`+"\n\n"))

	s = stream(t, "/completion", sse, Ask{Choices: 2})
	require.Equal(t, "CrT", run(t, s, `data: {"index":1,"content":"x","stop":false}`+"\n\n",
		`data: {"index":1,"content":"","stop":true,"timings":{"prompt_n":3,"cache_n":1,"predicted_n":2,"prompt_ms":1,"predicted_ms":2}}`+"\n\n",
		`data: {"index":0,"content":"","stop":true,"timings":{"prompt_n":3,"cache_n":1,"predicted_n":2,"prompt_ms":1,"predicted_ms":2}}`+"\n\n"))
	require.Equal(t, Usage{8, 2, 4, 0, ms(2), ms(4), true}, s.Usage())
}

// llama.cpp leaves out of its last event what it was told to leave out.
func TestR8ReshapedEnd(t *testing.T) {
	ask := parse(t, "/completion", `{"prompt":"x","response_fields":["content","timings"],"stream":true}`)
	s := stream(t, "/completion", sse, ask)
	require.Equal(t, "CT", run(t, s, `data: {"index":0,"content":"x","stop":false}`+"\n\n", `data: {"content":"","timings":{"predicted_n":1}}`+"\n\n"))
	require.True(t, s.Complete())
}

// The end of a body stands in for the end of its last line, and for no more.
func TestR8EndWithoutLineEnd(t *testing.T) {
	tests := []struct {
		path, contentType, stream, kinds, rest string
		complete                               bool
	}{
		{"/v1/chat/completions", sse, "data: [DONE]", "T", "", true},
		{"/v1/chat/completions", sse, "data: [DONE]\n", "T", "", true},
		{"/v1/chat/completions", sse, "data: [DONE]\r\n\r", "T", "", true},
		{"/v1/chat/completions", sse, "data: [DON", "", "data: [DON", false},
		{"/v1/chat/completions", sse, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n: bye", "C:", "", false},
		{"/v1/chat/completions", sse, "event: x", "", "event: x", false},
		{"/api/chat", ndjson, `{"done":true}`, "T", "", true},
		{"/api/chat", ndjson, `{"done":true`, "", `{"done":true`, false},
		{"/api/generate", "application/json", `{"response":"","done":true,"done_reason":"load"}`, "T", "", true},
		{"/v1/chat/completions", "application/json", "{\n\n\"choices\":[{\"message\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}\n", "T", "", true},
		{"/v1/messages", "application/json", `{"type":"message","content":[{"type":"text","text":"x"}],"usage":{"output_tokens":1}}`, "T", "", true},
		{"/v1/chat/completions", "application/json", `{"error":{"message":"m"}}`, "E", "", false},
		{"/v1/chat/completions", "application/json", `{"choices":[]}`, "E", "", false},
		{"/v1/chat/completions", "application/json", `{"choices":[{`, "", `{"choices":[{`, false},
	}
	for _, tt := range tests {
		s := stream(t, tt.path, tt.contentType, Ask{})
		require.Equal(t, tt.kinds, run(t, s, tt.stream), "%q", tt.stream)
		require.Equal(t, tt.rest, string(s.Rest()), "%q", tt.stream)
		require.Equal(t, tt.complete, s.Complete(), "%q", tt.stream)
		_, _, ok := s.Next()
		require.False(t, ok)
	}
}

func TestStreamIDs(t *testing.T) {
	s := stream(t, "/v1/responses", sse, Ask{})
	run(t, s, string(fixture(t, "responses.sse")))
	require.Equal(t, "resp_67c9fdcecf488190bdd9a0409de3a1ec07b8b0ad4e5eb654", s.ID())
}

func TestIsStream(t *testing.T) {
	for contentType, want := range map[string]bool{
		"text/event-stream": true, "Text/Event-Stream;charset=utf-8": true, "application/x-ndjson": true,
		"application/json": false, "text/plain": false, "": false,
	} {
		require.Equal(t, want, IsStream(contentType), contentType)
	}
}
