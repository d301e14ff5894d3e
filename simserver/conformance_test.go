package simserver

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// setups make what an exchange presumes, on a replica of its own.
var setups = map[string]func(t *testing.T, o Options, x exchange) *Server{
	"nothing loaded": func(t *testing.T, o Options, _ exchange) *Server { return start(t, o) },
	"again": func(t *testing.T, o Options, x exchange) *Server { // the same has been asked before
		s := start(t, o)
		send(t, s, x.method, x.path, x.body)
		return s
	},
	"loading": func(t *testing.T, o Options, _ exchange) *Server {
		o.LoadTime = time.Hour
		return start(t, o)
	},
	"one busy": func(t *testing.T, o Options, _ exchange) *Server { return busy(t, o, 1) },
	"all busy": func(t *testing.T, o Options, _ exchange) *Server { return busy(t, o, 6) },
	"key": func(t *testing.T, o Options, _ exchange) *Server {
		o.APIKey, o.Embeddings = "sekret", true
		return start(t, o)
	},
	"asleep": func(t *testing.T, o Options, _ exchange) *Server {
		o.SleepIdle, o.LoadTime = time.Millisecond, 20*time.Millisecond
		s := start(t, o)
		until(t, "it sleeps", func() (asleep bool) {
			s.do(func(now time.Time) { asleep = !s.model.Loading(now) && s.model.Sleeping(now, "") })
			return asleep
		})
		return s
	},
	"queue full": func(t *testing.T, o Options, _ exchange) *Server { // five wait for a load: one is loaded for
		o.LoadTime, o.Queue, o.Notice = time.Hour, 4, -1
		s := start(t, o)
		for range 5 {
			raw(t, s, chatPath, helloS)
		}
		until(t, "five wait", func() bool { return s.Stats().InHand == 5 })
		return s
	},
	"runner dies": func(t *testing.T, o Options, _ exchange) *Server { // as soon as something has been said
		o.Decode, o.OutputTokens = 100, "fixed:8000"
		s := start(t, o)
		go func() {
			for s.Stats().TokensGenerated < 3 {
				select {
				case <-s.done:
					return
				case <-time.After(time.Millisecond):
				}
			}
			_ = s.SetFault(Fault{Kind: "runner-crash"})
		}()
		return s
	},
}

// busy is a replica with so many streams in hand that do not end.
func busy(t *testing.T, o Options, streams int) *Server {
	o.OutputTokens, o.Notice, o.Decode = "fixed:4000", -1, 100
	s := start(t, o)
	for i := range streams {
		raw(t, s, chatPath, `{"stream":true,"max_tokens":3000,"messages":[{"role":"user","content":"a story"}]}`)
		until(t, "it is in hand", func() bool { return s.Stats().InHand == i+1 && s.Stats().TokensGenerated > 0 })
	}
	return s
}

// Each recorded exchange, asked of the simulator: the same status, headers,
// framing, names, types, ends and errors.
func TestAnswersAreShapedLikeTheRecordings(t *testing.T) {
	for _, engine := range []string{"llamacpp", "ollama"} {
		o := Options{
			Engine: engine, Models: []string{"tiny"}, Slots: 2, Context: 4096,
			Prefill: 1e6, Decode: 1e5, OutputTokens: "fixed:4000",
		}
		if engine == "ollama" {
			o.Models = []string{"slow", "tiny"}
		}
		shared := start(t, o)
		send(t, shared, "POST", "/api/generate", `{"model":"tiny"}`) // Ollama: loaded
		for _, x := range exchanges(t, "testdata/"+engine+".txt") {
			t.Run(engine+"/"+x.title, func(t *testing.T) {
				s := shared
				if x.setup != "" {
					require.Contains(t, setups, x.setup)
					s = setups[x.setup](t, o, x)
				}
				x.body = strings.ReplaceAll(x.body, "{{long}}", strings.Repeat("word ", 6000))
				x.body = strings.ReplaceAll(x.body, "{{nearly}}", strings.Repeat("abcd", 3994))
				require.Empty(t, differences(x, x.recorded(), askAs(t, s.front.addr, x)))
			})
		}
	}
}

// The order of "data:" events of a stream is in shapes; its bytes are here.
func TestStreamFraming(t *testing.T) {
	for _, engine := range []string{"llamacpp", "ollama", "vllm", "openai"} {
		s := start(t, Options{Engine: engine, Models: []string{"tiny"}, Decode: 1e5, Prefill: 1e6, OutputTokens: "fixed:5"})
		_, body := send(t, s, "POST", "/v1/chat/completions", `{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hi"}]}`)
		require.True(t, strings.HasSuffix(body, "\n\ndata: [DONE]\n\n"), engine)
		var text strings.Builder
		for event := range strings.SplitSeq(strings.TrimSuffix(body, "data: [DONE]\n\n"), "\n\n") {
			if event == "" {
				continue
			}
			var v struct {
				Choices []struct {
					Delta struct{ Content string }
				}
			}
			require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(event, "data: ")), &v), event)
			text.WriteString(v.Choices[0].Delta.Content)
		}
		require.Regexp(t, `^[a-z]+( [a-z]+){4}$`, text.String(), "five readable words")
		_, again := send(t, s, "POST", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`)
		require.Contains(t, again, `"finish_reason":"stop"`)
	}
}
