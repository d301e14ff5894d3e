package dialect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
)

// conversation is a chat body of about size bytes: turns of a few KiB of text
// with the line breaks and quotes that text has.
func conversation(size int) []byte {
	text := strings.Repeat(`She said: "It is the third one on the left, I think."`+"\nAnd then nobody said anything for a while, which was new. ", 30)
	text = text[:min(len(text), size/2)]
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	var messages []message
	for n := 0; n < size-len(text)/2; n += len(text) {
		messages = append(messages, message{"user", text})
	}
	b, _ := json.Marshal(map[string]any{
		"messages": messages, "model": "qwen3:8b", "stream": true, "max_tokens": 512, "temperature": 0.7,
		"stream_options": map[string]bool{"include_usage": true},
	})
	return b
}

// plainText is a chat body with one long message that needs no escapes.
func plainText(size int) []byte {
	return fmt.Appendf(nil, `{"stream":true,"max_tokens":10,"model":"m","messages":[{"role":"user","content":"%s"}]}`,
		strings.Repeat("the quick brown fox ", size/20))
}

// tokenIDs is a completions body whose prompt is given as numbers.
func tokenIDs(size int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"model":"m","prompt":[0`)
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, ",%d", 100+i*7919%32000)
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

// toolbox is a chat body that is mostly tool definitions.
func toolbox(size int) []byte {
	var tools []any
	for n := 0; n < size; n += 330 {
		tools = append(tools, map[string]any{"type": "function", "function": map[string]any{
			"name": fmt.Sprint("tool_", n), "description": "Looks something up.\nReturns what it found.",
			"parameters": map[string]any{
				"type": "object", "required": []string{"query"},
				"properties": map[string]any{
					"query": map[string]any{"type": "string", "description": "what to look for"},
					"limit": map[string]any{"type": "integer", "minimum": 1, "maximum": 100},
				},
			},
		}})
	}
	b, _ := json.Marshal(map[string]any{"model": "m", "tools": tools, "messages": []any{map[string]any{"role": "user", "content": "hi"}}})
	return b
}

// foreign is a chat body whose text is all escapes, as Python writes Chinese.
func foreign(size int) []byte {
	return fmt.Appendf(nil, `{"model":"m","messages":[{"role":"user","content":"%s"}]}`, strings.Repeat(`\u4e2d\u6587`, size/12))
}

var walkOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// tokenize is the yardstick: one pass of jsontext's tokenizer that looks at nothing.
func tokenize(dec *jsontext.Decoder, in *bytes.Buffer, body []byte) error {
	*in = *bytes.NewBuffer(body)
	dec.Reset(in, walkOptions...)
	for {
		if _, err := dec.ReadToken(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// BenchmarkParse also reports how many times the tokenizer's own pass a Parse,
// the prefix chain included, takes ("x-tokenizer", to be below 1.5 for 256 KiB):
// the least time of each, taken in turn, so that a busy
// machine does not decide it.
func BenchmarkParse(b *testing.B) {
	for _, bm := range []struct {
		name, path string
		body       []byte
	}{
		{"chat-1KiB", "/v1/chat/completions", conversation(1 << 10)},
		{"chat-256KiB", "/v1/chat/completions", conversation(256 << 10)},
		{"plain-256KiB", "/v1/chat/completions", plainText(256 << 10)},
		{"ids-256KiB", "/v1/completions", tokenIDs(256 << 10)},
		{"tools-256KiB", "/v1/chat/completions", toolbox(256 << 10)},
		{"escapes-256KiB", "/v1/chat/completions", foreign(256 << 10)},
	} {
		ep := at(b, bm.path)
		b.Run(bm.name, func(b *testing.B) {
			b.SetBytes(int64(len(bm.body)))
			b.ReportAllocs()
			var dec jsontext.Decoder
			var in bytes.Buffer
			ours, theirs := time.Hour, time.Hour
			for b.Loop() {
				start := time.Now()
				if _, err := Parse(ep, bm.body); err != nil {
					b.Fatal(err)
				}
				ours = min(ours, time.Since(start))
				b.StopTimer()
				start = time.Now()
				if err := tokenize(&dec, &in, bm.body); err != nil {
					b.Fatal(err)
				}
				theirs = min(theirs, time.Since(start))
				b.StartTimer()
			}
			b.ReportMetric(float64(ours.Nanoseconds()), "min-ns")
			b.ReportMetric(float64(ours)/float64(theirs), "x-tokenizer")
		})
	}
}

func TestParseAllocatesLittle(t *testing.T) {
	ep, body := at(t, "/v1/chat/completions"), conversation(1<<10)
	n := testing.AllocsPerRun(100, func() {
		_, err := Parse(ep, body)
		require.NoError(t, err)
	})
	require.LessOrEqual(t, n, 6.0)
}

// BenchmarkStreamEvent is the hot path: an event after the first content, pushed
// as it was read, cut out and judged.
func BenchmarkStreamEvent(b *testing.B) {
	for _, bm := range []struct{ name, path, contentType, event string }{
		{"llamacpp-chat", "/v1/chat/completions", sse, `data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" listopada"}}],"created":1795992595,"id":"chatcmpl-Ci00Te7E674QzMXP0yG0Q6Pt76LJEGfo","model":"tiny","system_fingerprint":"b1-80fb11a","object":"chat.completion.chunk"}` + "\n\n"},
		{"openai-chat", "/v1/chat/completions", sse, `data: {"id":"chatcmpl-934","object":"chat.completion.chunk","created":1795993809,"model":"tiny","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":" jack"},"finish_reason":null}]}` + "\n\n"},
		{"openai-chat-varying", "/v1/chat/completions", sse, `data: {"id":"chatcmpl-0000000000000000","object":"chat.completion.chunk","created":1700000000,"model":"fake","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}],"t":1234567}` + "\n\n"},
		{"anthropic", "/v1/messages", sse, "event: content_block_delta\n" + `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" jack"}}` + "\n\n"},
		{"responses", "/v1/responses", sse, "event: response.output_text.delta\n" + `data: {"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,"delta":" there!"}` + "\n\n"},
		{"ollama", "/api/chat", ndjson, `{"model":"tiny","created_at":"2026-11-29T23:10:08.473692561Z","message":{"role":"assistant","content":" transaction"},"done":false}` + "\n"},
		{"llamacpp-completion", "/completion", sse, `data: {"index":0,"content":" capable","tokens":[15390],"stop":false,"id_slot":-1,"tokens_predicted":3,"tokens_evaluated":5}` + "\n\n"},
	} {
		for _, parsed := range []bool{false, true} {
			name := bm.name
			if parsed {
				name += "/parsed" // as before the first content, or with progress wanted
			}
			b.Run(name, func(b *testing.B) {
				event, n := []byte(bm.event), 0
				varying := strings.HasSuffix(bm.name, "varying")
				s := stream(b, bm.path, bm.contentType, Ask{})
				b.ReportAllocs()
				for b.Loop() {
					s.begun = s.begun && !parsed
					if varying {
						n++
						event[len(event)-6] = '0' + byte(n%10)
					}
					s.Push(event)
					if _, kind, ok := s.Next(); !ok || kind != EventContent {
						b.Fatal(kind)
					}
					if _, _, ok := s.Next(); ok {
						b.Fatal("one too many")
					}
				}
			})
		}
	}
}

// BenchmarkReadAnswer reads whole answers.
func BenchmarkReadAnswer(b *testing.B) {
	numbers := strings.Repeat("-0.0123456789,", 4096)
	for _, bm := range []struct {
		name, path string
		body       []byte
	}{
		{"chat", "/v1/chat/completions", fixture(b, "llamacpp_chat.json")},
		{"embeddings-1MiB", "/v1/embeddings", []byte(`{"data":[` + strings.Repeat(`{"embedding":[`+numbers+`0]},`, 19) + `{}],"usage":{"prompt_tokens":9}}`)},
	} {
		b.Run(bm.name, func(b *testing.B) {
			ep := at(b, bm.path)
			b.SetBytes(int64(len(bm.body)))
			b.ReportAllocs()
			for b.Loop() {
				if ReadAnswer(ep.Format, ep, bm.body).Broken {
					b.Fatal("broken")
				}
			}
		})
	}
}

func TestEventsAfterTheFirstContentAllocateNothing(t *testing.T) {
	event := []byte(`data: {"choices":[{"index":0,"delta":{"content":" jack"},"finish_reason":null}]}` + "\n\n")
	s := stream(t, "/v1/chat/completions", sse, Ask{})
	require.Zero(t, testing.AllocsPerRun(100, func() {
		s.Push(event[:20])
		s.Next()
		s.Push(event[20:])
		s.Next()
		s.Next()
	}))
	require.Equal(t, 101, s.Tokens())
}
