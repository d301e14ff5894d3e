package simserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
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

// shape is a JSON value with its names and types only; a list is the shapes
// that its elements have.
func shape(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case map[string]any:
		var fields []string
		for k, f := range v {
			fields = append(fields, k+":"+shape(f))
		}
		slices.Sort(fields)
		return "{" + strings.Join(fields, ",") + "}"
	case []any:
		var list []string
		for _, e := range v {
			list = append(list, shape(e))
		}
		slices.Sort(list)
		return "[" + strings.Join(slices.Compact(list), "|") + "]"
	}
	return fmt.Sprintf("%T", v)
}

// shapes is the shape of a body, whatever its framing: event by event, line by
// line, or metric by metric.
func shapes(t *testing.T, body string) (list []string) {
	decode := func(s string) string {
		var v any
		if json.Unmarshal([]byte(s), &v) != nil {
			return s // text as it is
		}
		return shape(v)
	}
	trimmed := strings.Trim(body, "\n")
	switch {
	case strings.HasPrefix(trimmed, "# HELP "):
		for line := range strings.SplitSeq(trimmed, "\n") {
			if !strings.HasPrefix(line, "# ") {
				line = line[:strings.LastIndexByte(line, ' ')]
			}
			list = append(list, line)
		}
		return list
	case !strings.HasPrefix(trimmed, "data: ") && !strings.HasPrefix(trimmed, "event: "):
		for line := range strings.SplitSeq(trimmed, "\n") {
			list = append(list, decode(line))
		}
		return list
	}
	for event := range strings.SplitSeq(trimmed, "\n\n") {
		var s strings.Builder
		for line := range strings.SplitSeq(event, "\n") {
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				s.WriteString("data: " + decode(data))
			} else {
				s.WriteString(line + " ")
			}
		}
		list = append(list, s.String())
	}
	return list
}

var digits = regexp.MustCompile(`\d+`)

// message is an error's text without what may differ.
func messageOf(body string) string {
	if i := strings.Index(body, "[json.exception.parse_error.101]"); i >= 0 {
		body = body[:i]
	}
	return strings.TrimSpace(digits.ReplaceAllString(body, "N"))
}

// sameError compares two error bodies field by field.
func sameError(t *testing.T, want, got string) {
	var w, g any
	if json.Unmarshal([]byte(want), &w) != nil {
		require.Equal(t, strings.TrimSpace(want), strings.TrimSpace(got))
		return
	}
	require.NoError(t, json.Unmarshal([]byte(got), &g), got)
	var walk func(a, b any)
	walk = func(a, b any) {
		switch a := a.(type) {
		case map[string]any:
			for k, v := range a {
				walk(v, b.(map[string]any)[k])
			}
		case string:
			require.Equal(t, messageOf(a), messageOf(b.(string)))
		}
	}
	require.Equal(t, shape(w), shape(g))
	walk(w, g)
}

// facts are the values of a body that must be as recorded, where it has them.
var facts = []*regexp.Regexp{
	regexp.MustCompile(`"(?:finish_reason|done_reason|stop_reason|stop_type)":"[a-z_]+"`),
	regexp.MustCompile(`"(?:completion_tokens|eval_count|predicted_n|tokens_predicted|output_tokens)":\d+`),
	regexp.MustCompile(`"(?:is_sleeping|is_processing)":\w+`),
	regexp.MustCompile(`"(?:object|type|role)":"[a-z_.]+"`),
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
				compare(t, s, x)
			})
		}
	}
}

// compare asks and compares.
func compare(t *testing.T, s *Server, x exchange) {
	got := askAs(t, s, x)
	require.Equal(t, x.status, got.status, got.body)
	names := map[string]bool{"Date": true, "Content-Length": true} // these need not be in the file
	for _, h := range x.want {
		name, value, _ := strings.Cut(h, ": ")
		names[http.CanonicalHeaderKey(name)] = true
		switch name {
		case "Transfer-Encoding":
			require.Equal(t, value, got.transfer)
		case "Process-Start-Time-Unix":
			require.Regexp(t, `^\d+$`, got.header.Get(name))
		default:
			require.Contains(t, got.header, name)
			require.Equal(t, strings.TrimSpace(value), strings.Join(got.header.Values(name), ","), name)
		}
	}
	for name := range got.header {
		require.Contains(t, names, name, "a header that the real server does not send")
	}
	if x.status[0] >= '4' {
		sameError(t, x.answer, got.body)
		return
	}
	want, said := shapes(t, x.answer), shapes(t, got.body)
	if x.setup == "runner dies" { // after how many tokens is chance
		want, said = slices.Compact(want), slices.Compact(said)
	}
	require.Equal(t, want, said, got.body)
	for _, pattern := range facts {
		w, g := pattern.FindAllString(x.answer, -1), pattern.FindAllString(got.body, -1)
		slices.Sort(w) // the order of fields is free, and which slot is taken
		slices.Sort(g)
		if x.setup == "runner dies" {
			w, g = slices.Compact(w), slices.Compact(g)
		}
		require.Equal(t, w, g)
	}
	if x.setup == "again" { // all but one token of the prompt was in the cache, if the client wants it
		pattern := regexp.MustCompile(`"prompt_n":1[,}]`)
		require.Equal(t, pattern.MatchString(x.answer), pattern.MatchString(got.body))
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
