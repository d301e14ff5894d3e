package simserver

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// exchange is one request and the answer that a real server gave.
type exchange struct {
	title        string
	method, path string
	headers      []string
	body         string
	status       string
	want         []string // headers of the answer
	answer       string
}

// exchanges reads a file of them: "==" a title, ">" request line and headers,
// ">>" its body, "<" status and headers, then the answer's body.
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
		sort.Strings(fields)
		return "{" + strings.Join(fields, ",") + "}"
	case []any:
		kinds := map[string]bool{}
		for _, e := range v {
			kinds[shape(e)] = true
		}
		var list []string
		for k := range kinds {
			list = append(list, k)
		}
		sort.Strings(list)
		return "[" + strings.Join(list, "|") + "]"
	}
	return fmt.Sprintf("%T", v)
}

// shapes is the shape of a body, whatever its framing: each event once where
// several alike follow each other.
func shapes(t *testing.T, body string) []string {
	var list []string
	add := func(s string) {
		if len(list) == 0 || list[len(list)-1] != s {
			list = append(list, s)
		}
	}
	decode := func(s string) string {
		var v any
		if json.Unmarshal([]byte(s), &v) != nil {
			return s // text as it is
		}
		return shape(v)
	}
	trimmed := strings.Trim(body, "\n")
	if !strings.HasPrefix(trimmed, "data: ") && !strings.HasPrefix(trimmed, "event: ") {
		for line := range strings.SplitSeq(trimmed, "\n") {
			add(decode(line))
		}
		return list
	}
	require.True(t, strings.HasSuffix(strings.TrimRight(body, "\n")+"\n\n", "\n\n"))
	for event := range strings.SplitSeq(trimmed, "\n\n") {
		var s strings.Builder
		for line := range strings.SplitSeq(event, "\n") {
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				s.WriteString("data: " + decode(data))
			} else {
				s.WriteString(line + " ")
			}
		}
		add(s.String())
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

// Each recorded exchange, asked of the simulator: the same status, headers,
// framing, names, types and errors.
func TestAnswersAreShapedLikeTheRecordings(t *testing.T) {
	for engine, file := range map[string]string{"llamacpp": "testdata/llamacpp.txt", "ollama": "testdata/ollama.txt"} {
		s := start(t, Options{
			Engine: engine, Models: []string{"tiny"}, Slots: 2, Context: 4096,
			Prefill: 1e6, Decode: 1e5, Batch: 8, OutputTokens: "fixed:20",
		})
		if engine == "ollama" {
			_, b := send(t, s, "GET", "/api/ps", "")
			require.Equal(t, `{"models":[]}`, b)
			send(t, s, "POST", "/api/generate", `{"model":"tiny"}`)
		}
		for _, x := range exchanges(t, file) {
			t.Run(engine+"/"+x.title, func(t *testing.T) {
				if x.title == "/api/ps with nothing loaded" {
					return // asked above, before anything was loaded
				}
				body := strings.ReplaceAll(x.body, "{{long}}", strings.Repeat("word ", 6000))
				got := askAs(t, s, x, body)
				require.Equal(t, x.status, got.status)
				for _, h := range x.want {
					name, value, _ := strings.Cut(h, ": ")
					if name == "Transfer-Encoding" {
						require.Equal(t, value, got.transfer)
						continue
					}
					require.Equal(t, strings.TrimSpace(value), strings.Join(got.header.Values(name), ","), name)
				}
				if x.status[0] >= '4' {
					sameError(t, x.answer, got.body)
					return
				}
				require.Equal(t, shapes(t, x.answer), shapes(t, got.body))
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
