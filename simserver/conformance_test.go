package simserver

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testdata/*.txt are exchanges with real servers, llama-server v0.4.0 and Ollama
// v0.17.4, each under the title that it had when it was recorded. All are there
// that a client or the gateway can meet, but for
//   - what has no answer of its own to compare: how many are served or refused at
//     once, when headers and tokens come, how soon a departure is noticed, which
//     slot and how much of its cache a prompt gets, what a reload waits for. Those
//     are tests of the model and of the timing (model/, departure_test.go);
//   - SIGTERM and SIGKILL of the whole process: fault crash, fault_test.go;
//   - the idle time and the hundred requests of a connection: face_test.go;
//   - what Ollama v0.6.5 and v0.33.0-rc2 do in another way: only v0.17.4 is
//     imitated. The differences of v0.6.5 are listed in TestRealEngineConformance
//     (cmd/switchyard); v0.33 adds context_length, embedding_length and
//     capabilities to /api/tags, calls an unknown model's error not_found_error
//     and names it with its tag, has a role only in a stream's first delta and an
//     empty one in the last, answers embeddings with 501 for a model that is not
//     for them, and repeats llama.cpp's words when a prompt is too long.

// exchange is one request and the answer that a real server gave.
type exchange struct {
	title        string
	setup        string // what must be so before: a key of setups
	method, path string
	headers      []string
	body         string
	status       string
	want         []string // headers of the answer
	answer       string
}

// recorded is the answer of an exchange.
func (x exchange) recorded() asked {
	a := asked{status: x.status, header: http.Header{}, body: x.answer}
	for _, h := range x.want {
		name, value, _ := strings.Cut(h, ":")
		if value = strings.TrimSpace(value); name == "Transfer-Encoding" {
			a.transfer = value
		} else {
			a.header.Add(name, value)
		}
	}
	return a
}

// exchanges reads a file of them: "==" a title, "!" a setup, ">" request line
// and headers, ">>" its body, "<" status and headers, then the answer's body.
func exchanges(t *testing.T, file string) (all []exchange) {
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, section := range strings.Split("\n"+string(data), "\n== ")[1:] {
		var x exchange
		var answer []string
		for i, line := range strings.Split(section, "\n") {
			switch {
			case i == 0:
				x.title = line
			case answer == nil && strings.HasPrefix(line, "! "):
				x.setup = line[2:]
			case answer == nil && strings.HasPrefix(line, ">> "):
				x.body = line[3:]
			case answer == nil && strings.HasPrefix(line, "> ") && x.method == "":
				x.method, x.path, _ = strings.Cut(line[2:], " ")
			case answer == nil && strings.HasPrefix(line, "> "):
				x.headers = append(x.headers, line[2:])
			case answer == nil && strings.HasPrefix(line, "< ") && x.status == "":
				x.status = line[2:]
			case answer == nil && strings.HasPrefix(line, "< "):
				x.want = append(x.want, line[2:])
			default:
				answer = append(answer, line)
			}
		}
		x.answer = strings.Join(answer, "\n")
		all = append(all, x)
	}
	return all
}

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
