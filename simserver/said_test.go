package simserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// told is an answer put together again, whatever its format and framing.
type told struct {
	thought, text, tool, args string
	end                       string
	ends                      int // terminal events
}

// formats are the ways of asking: the body for a prompt, and how to read one
// event, or a whole answer, of what comes.
var formats = map[string]struct {
	path   string
	think  string // the field that asks for reasoning
	tools  string // the fields that force a tool call
	body   string
	read   func(t *told, v map[string]any)
	native bool // NDJSON, streaming unless told not to
}{
	"openai": {
		path: chatPath, think: `"reasoning_effort":"high"`, tools: `"tools":[{"type":"function","function":{"name":"other"}},{"type":"function","function":{"name":"weather","parameters":` + weather + `}}],"tool_choice":{"type":"function","function":{"name":"weather"}}`,
		body: `"max_tokens":%d,"messages":[{"role":"user","content":%q}]`,
		read: func(t *told, v map[string]any) {
			for _, c := range list(v["choices"]) {
				m := object(c["delta"])
				if c["message"] != nil {
					m = object(c["message"])
				}
				t.text += text(m["content"])
				t.thought += text(m["reasoning_content"]) + text(m["reasoning"])
				for _, call := range list(m["tool_calls"]) {
					f := object(call["function"])
					t.tool += text(f["name"])
					t.args += text(f["arguments"])
				}
				if f := text(c["finish_reason"]); f != "" {
					t.end = f
					t.ends++
				}
			}
		},
	},
	"anthropic": {
		path: "/v1/messages", think: `"thinking":{"type":"enabled","budget_tokens":1024}`, tools: `"tools":[{"name":"weather","input_schema":` + weather + `}],"tool_choice":{"type":"any"}`,
		body: `"max_tokens":%d,"messages":[{"role":"user","content":%q}]`,
		read: func(t *told, v map[string]any) {
			blocks := list(v["content"])
			if v["content_block"] != nil {
				blocks = append(blocks, object(v["content_block"]))
			}
			for _, b := range blocks {
				t.thought += text(b["thinking"])
				t.text += text(b["text"])
				t.tool += text(b["name"])
				if input, ok := b["input"].(map[string]any); ok && len(input) > 0 {
					args, _ := json.Marshal(input)
					t.args += string(args)
				}
			}
			d := object(v["delta"])
			t.thought += text(d["thinking"])
			t.text += text(d["text"])
			t.args += text(d["partial_json"])
			if end := text(d["stop_reason"]) + text(v["stop_reason"]); end != "" {
				t.end = end
			}
			if v["type"] == "message_stop" || v["type"] == "message" {
				t.ends++
			}
		},
	},
	"responses": {
		path: "/v1/responses", think: `"reasoning":{"effort":"low"}`, tools: `"tools":[{"type":"function","name":"weather","parameters":` + weather + `}],"tool_choice":"required"`,
		body: `"max_output_tokens":%d,"input":%q`,
		read: func(t *told, v map[string]any) {
			switch kind := text(v["type"]); kind {
			case "response.output_text.delta":
				t.text += text(v["delta"])
			case "response.reasoning_text.delta", "response.reasoning_summary_text.delta":
				t.thought += text(v["delta"])
			case "response.function_call_arguments.delta":
				t.args += text(v["delta"])
			case "response.output_item.added":
				t.tool += text(object(v["item"])["name"])
			case "response.completed", "response.incomplete":
				whole := told{}
				readResponse(&whole, object(v["response"]))
				t.end = whole.end
				t.ends++
				if whole.thought+whole.text+whole.tool+whole.args != t.thought+t.text+t.tool+t.args {
					t.end = "another whole than its parts"
				}
			case "":
				readResponse(t, v)
				t.ends++
			}
		},
	},
	"ollama": {
		path: "/api/chat", think: `"think":true`, native: true,
		tools: `"tools":[{"type":"function","function":{"name":"weather","parameters":` + weather + `}}]`,
		body:  `"options":{"num_predict":%d},"messages":[{"role":"user","content":%q}]`,
		read: func(t *told, v map[string]any) {
			m := object(v["message"])
			t.text += text(m["content"])
			t.thought += text(m["thinking"])
			for _, call := range list(m["tool_calls"]) {
				f := object(call["function"])
				t.tool += text(f["name"])
				args, _ := json.Marshal(f["arguments"])
				t.args += string(args)
			}
			if v["done"] == true {
				t.end = text(v["done_reason"])
				t.ends++
			}
		},
	},
	"generate": {
		path: "/api/generate", think: `"think":"high"`, native: true,
		body: `"options":{"num_predict":%d},"prompt":%q`,
		read: func(t *told, v map[string]any) {
			t.text += text(v["response"])
			t.thought += text(v["thinking"])
			if v["done"] == true {
				t.end = text(v["done_reason"])
				t.ends++
			}
		},
	},
}

const weather = `{"type":"object","required":["city","days","celsius","unit"],"properties":{"city":{"type":"string"},"days":{"type":"integer"},"celsius":{"type":["boolean","null"]},"unit":{"enum":["a","b"]},"other":{"type":"string"}}}`

func readResponse(t *told, v map[string]any) {
	for _, item := range list(v["output"]) {
		t.tool += text(item["name"])
		t.args += text(item["arguments"])
		for _, part := range append(list(item["content"]), list(item["summary"])...) {
			if item["type"] == "reasoning" {
				t.thought += text(part["text"])
			} else {
				t.text += text(part["text"])
			}
		}
	}
	t.end = text(v["status"])
}

func object(v any) map[string]any { m, _ := v.(map[string]any); return m }
func text(v any) string           { s, _ := v.(string); return s }

func list(v any) (all []map[string]any) {
	l, _ := v.([]any)
	for _, e := range l {
		all = append(all, object(e))
	}
	return all
}

// Reasoning and tool calls, asked for by the format's own fields or by a word,
// in each format, streamed and whole, also cut short: the parts fit together.
func TestReasoningAndToolCalls(t *testing.T) {
	paths := map[string][]string{
		"llamacpp": {"openai", "anthropic", "responses"}, "ollama": slices.Sorted(maps.Keys(formats)),
		"vllm": {"openai", "anthropic", "responses"}, "openai": {"openai", "responses"},
	}
	for engine, names := range paths {
		o := quick(engine)
		o.OutputTokens, o.Decode = "fixed:20", 1e5
		s := start(t, o)
		for _, name := range names {
			f := formats[name]
			for _, think := range []bool{false, true} {
				for _, tool := range []string{"", "forced", "asked", "cut"} {
					if tool != "" && f.tools == "" || tool == "forced" && f.native {
						continue
					}
					for _, stream := range []bool{false, true} {
						t.Run(fmt.Sprintf("%s/%s/think=%t,tool=%s,stream=%t", engine, name, think, tool, stream), func(t *testing.T) {
							prompt, limit := "hello", 500
							switch {
							case tool == "cut" && think:
								limit = thoughtsBeforeCall + 4
							case tool == "cut":
								limit = 12
							}
							if tool == "asked" || tool == "cut" {
								prompt += " #tool"
							}
							body := fmt.Sprintf(`{"model":"tiny","stream":%t,`+f.body, stream, limit, prompt)
							if think {
								body += "," + f.think
							}
							if tool != "" {
								body += "," + f.tools
							}
							if tool == "asked" { // the format's own choice is then not needed
								body = strings.ReplaceAll(body, `"tool_choice"`, `"no_choice"`)
							}
							got := tell(t, s, f.path, body+"}", f.read)
							check(t, got, engine, name, think, tool)
						})
					}
				}
			}
		}
		require.Zero(t, s.Stats().InHand)
	}
}

func tell(t *testing.T, s *Server, path, body string, read func(*told, map[string]any)) (got told) {
	resp, b := send(t, s, "POST", path, body)
	require.Equal(t, 200, resp.StatusCode, b)
	for line := range strings.Lines(b) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "data: "))
		if strings.HasPrefix(line, "{") {
			read(&got, decode(t, line))
		}
	}
	require.Equal(t, 1, got.ends, b)
	return got
}

func check(t *testing.T, got told, engine, format string, think bool, tool string) {
	words := func(s string) int { return len(strings.Fields(s)) }
	held := engine == "ollama" // tool calls are held back until they are whole
	wantThought, wantText := 0, 20
	if think {
		wantThought, wantText = 10, 10
	}
	if tool != "" {
		wantText = 0
		if think {
			wantThought = thoughtsBeforeCall
		}
	}
	require.Equal(t, wantThought, words(got.thought), "%+v", got)
	require.Equal(t, wantText, words(got.text), "%+v", got)
	ends := map[string][3]string{ // said all, called, cut
		"openai": {"stop", "tool_calls", "length"}, "anthropic": {"end_turn", "tool_use", "max_tokens"},
		"responses": {"completed", "completed", "completed"}, "ollama": {"stop", "stop", "length"}, "generate": {"stop", "", ""},
	}[format]
	if engine == "vllm" || engine == "openai" {
		ends[2] = strings.ReplaceAll(ends[2], "completed", "incomplete")
	}
	const args = `{"city":"the old stone bridge","days":7,"celsius":true,"unit":"a"}`
	switch tool {
	case "":
		require.Equal(t, ends[0], got.end)
		require.Empty(t, got.tool+got.args)
	case "cut":
		require.Equal(t, ends[2], got.end)
		if held {
			require.Empty(t, got.tool+got.args)
		} else {
			require.Equal(t, "weather", got.tool)
			require.True(t, strings.HasPrefix(args, got.args), "%+v", got)
			require.Less(t, len(got.args), len(args))
		}
	default:
		require.Equal(t, ends[1], got.end)
		if tool == "asked" && format == "openai" {
			require.Equal(t, "other", got.tool, "the first of the tools")
			require.Equal(t, "{}", got.args)
			return
		}
		require.Equal(t, "weather", got.tool)
		require.JSONEq(t, args, got.args)
	}
}
