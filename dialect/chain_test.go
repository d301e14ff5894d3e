package dialect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func chainOf(t require.TestingT, path, body string) []Part {
	ep, ok := Lookup(path)
	require.True(t, ok, path)
	a, err := Parse(ep, []byte(body))
	require.NoError(t, err, "%.200s", body)
	return a.Chain
}

// common is how many parts two chains have in common.
func common(a, b []Part) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

const (
	chatPath     = "/v1/chat/completions"
	messagesPath = "/v1/messages"
)

// R6: prompts that are equal to the engine have equal chains.
func TestR6ChainsOfEqualPrompts(t *testing.T) {
	for _, tt := range []struct{ name, pathA, a, pathB, b string }{
		{
			"spacing, order of names, and what is no prompt", chatPath,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":0.1,"stream":true,"seed":1}`, chatPath,
			" {\n\"top_p\":0.5, \"messages\" : [ { \"content\" : \"hi\" ,\t\"role\" : \"user\" } ], \"model\" : \"m\" , \"max_tokens\": 5 }",
		},
		{
			"the model: caches are kept apart by model already", chatPath,
			`{"model":"m","messages":[{"role":"user","content":"hi"}]}`, chatPath, `{"model":"alias","messages":[{"role":"user","content":"hi"}]}`,
		},
		{
			"escapes", chatPath,
			`{"messages":[{"role":"user","content":"é\n/😀\u0041"}]}`, chatPath,
			`{"messages":[{"r\u006fle":"us\u0065r","content":"\u00e9\u000a\/\ud83d\ude00A"}]}`,
		},
		{
			"a text and a list of one text", chatPath,
			`{"messages":[{"role":"user","content":"hi"}]}`, chatPath, `{"messages":[{"role":"user","content":[{"text":"hi","type":"text"}]}]}`,
		},
		{
			"OpenAI chat and Ollama chat", chatPath,
			`{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"},{"role":"assistant","content":"yes?","tool_calls":null}]}`,
			"/api/chat", `{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"},{"role":"assistant","content":"yes?"}],"options":{"num_ctx":2048}}`,
		},
		{
			"pictures of OpenAI and Ollama", chatPath,
			`{"messages":[{"role":"user","content":[{"type":"text","text":"what?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","detail":"low"}}]}]}`,
			"/api/chat", `{"messages":[{"role":"user","content":"what?","images":["AAAA"]}]}`,
		},
		{
			"tools, spacing and order of names", chatPath,
			`{"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","required":["a"],"additionalProperties":false}}}],"messages":[{"content":"x"}]}`, chatPath,
			`{"messages":[{"content":"x"}],"tools":[ {"function": {"parameters": {"additionalProperties": false, "required": ["a"], "type": "object"}, "name": "f"}, "type": "function"} ]}`,
		},
		{
			"no tools", chatPath, `{"tools":[],"messages":[{"content":"x"}]}`, chatPath, `{"tools":null,"messages":[{"content":"x"}]}`,
		},
		{
			"tool calls and results, whatever their ids", chatPath,
			`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"a","content":"4"}]}`, chatPath,
			`{"messages":[{"tool_calls":[{"function":{"arguments":"{}","name":"f"}}],"role":"assistant"},{"content":"4","role":"tool","tool_call_id":"b"}]}`,
		},
		{
			"Anthropic's marks for its own cache", messagesPath,
			`{"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"u","cache_control":{"type":"ephemeral"}}]}]}`, messagesPath,
			`{"messages":[{"role":"user","content":"u"}],"system":"s"}`,
		},
		{
			"Anthropic's blocks", messagesPath,
			`{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":[{"type":"text","text":"r"}]}]}]}`, messagesPath,
			`{"messages":[{"role":"user","content":[{"content":"r","tool_use_id":"y","type":"tool_result"}]}]}`,
		},
		{
			"one prompt and a list of it", "/v1/completions", `{"prompt":"abc","n":1}`, "/v1/completions", `{"n":2,"prompt":["abc"]}`,
		},
		{
			"token ids and spacing", "/v1/completions", `{"prompt":[1,20,300]}`, "/v1/completions", `{"prompt":[ 1, 20,` + "\n" + `300 ]}`,
		},
		{
			"Responses", "/v1/responses", `{"instructions":"i","input":[{"role":"user","content":"a"}]}`,
			"/v1/responses", `{"input":[{"type":"message","id":"msg_1","status":"completed","role":"user","content":[{"type":"input_text","text":"a"}]}],"instructions":"i","store":false}`,
		},
		{
			"generate", "/api/generate", `{"system":"s","context":[1,2],"prompt":"p","images":["AA"]}`,
			"/api/generate", `{"images":["AA"],"prompt":"p","context":[1, 2],"system":"s","keep_alive":"5m"}`,
		},
		{
			"infill", "/infill", `{"input_extra":[{"filename":"f","text":"t"}],"input_prefix":"p","prompt":"q","input_suffix":"s"}`,
			"/infill", `{"input_suffix":"s","prompt":"q","input_prefix":"p","input_extra":[{"text":"t","filename":"f"}]}`,
		},
	} {
		a, b := chainOf(t, tt.pathA, tt.a), chainOf(t, tt.pathB, tt.b)
		require.NotEmpty(t, a, tt.name)
		require.Len(t, b, len(a), tt.name)
		for i := range a {
			require.Equal(t, a[i].Hash, b[i].Hash, "%s: part %d", tt.name, i)
		}
	}
}

// R6: what the engine sees differently has different chains from there on.
func TestR6ChainsOfDifferentPrompts(t *testing.T) {
	for _, tt := range []struct {
		name, pathA, a, pathB, b string
		common                   int
	}{
		{"role", chatPath, `{"messages":[{"role":"user","content":"a"},{"content":"b"}]}`, chatPath, `{"messages":[{"role":"system","content":"a"},{"content":"b"}]}`, 0},
		{"a later text", chatPath, `{"messages":[{"content":"a"},{"content":"b"}]}`, chatPath, `{"messages":[{"content":"a"},{"content":"c"}]}`, 1},
		{"where a text ends", chatPath, `{"messages":[{"content":"ab"},{"content":"c"}]}`, chatPath, `{"messages":[{"content":"a"},{"content":"bc"}]}`, 0},
		{"texts of one message", chatPath, `{"messages":[{"content":[{"text":"ab"},{"text":"c"}]}]}`, chatPath, `{"messages":[{"content":[{"text":"a"},{"text":"bc"}]}]}`, 0},
		{"tools come first", chatPath, `{"messages":[{"content":"a"}],"tools":[{"name":"x"}]}`, chatPath, `{"messages":[{"content":"a"}],"tools":[{"name":"y"}]}`, 0},
		{"no tools", chatPath, `{"messages":[{"content":"a"}],"tools":[{"name":"x"}]}`, chatPath, `{"messages":[{"content":"a"}]}`, 0},
		{"a flag in a tool", chatPath, `{"messages":[],"tools":[{"strict":true}]}`, chatPath, `{"messages":[],"tools":[{"strict":false}]}`, 0},
		{"the picture", chatPath, `{"messages":[{"content":[{"image_url":{"url":"http://a"}},{"text":"?"}]}]}`, chatPath, `{"messages":[{"content":[{"image_url":{"url":"http://b"}},{"text":"?"}]}]}`, 0},
		{"order of pictures", "/api/chat", `{"messages":[{"content":"?","images":["a","b"]}]}`, "/api/chat", `{"messages":[{"content":"?","images":["b","a"]}]}`, 0},
		{
			"which call has which arguments", messagesPath,
			`{"messages":[{"content":[{"type":"tool_use","name":"a","input":{"x":1}},{"type":"tool_use","name":"b","input":{"x":2}}]}]}`, messagesPath,
			`{"messages":[{"content":[{"type":"tool_use","name":"a","input":{"x":2}},{"type":"tool_use","name":"b","input":{"x":1}}]}]}`, 0,
		},
		{"arguments", chatPath, `{"messages":[{"tool_calls":[{"function":{"arguments":"{\"a\":1}"}}]}]}`, chatPath, `{"messages":[{"tool_calls":[{"function":{"arguments":"{\"a\":2}"}}]}]}`, 0},
		{"system", messagesPath, `{"system":"a","messages":[{"content":"x"}]}`, messagesPath, `{"system":"b","messages":[{"content":"x"}]}`, 0},
		{"system, then the messages", messagesPath, `{"messages":[{"content":"x"}],"system":"a"}`, messagesPath, `{"system":"a","messages":[{"content":"y"}]}`, 1},
		{"format", chatPath, `{"messages":[{"content":"x"}]}`, messagesPath, `{"messages":[{"content":"x"}]}`, 0},
		{"format of prompts", "/v1/completions", `{"prompt":"x"}`, "/api/generate", `{"prompt":"x"}`, 0},
		{"ids", "/completion", `{"prompt":[1,2]}`, "/completion", `{"prompt":[1,3]}`, 0},
		{"ids as text", "/completion", `{"prompt":[12]}`, "/completion", `{"prompt":"12"}`, 0},
		{"a document in pieces", messagesPath, `{"messages":[{"content":[{"source":{"type":"content","content":[{"text":"a"}]}}]}]}`, messagesPath, `{"messages":[{"content":[{"source":{"type":"content","content":[{"text":"b"}]}}]}]}`, 0},
		{"a document", messagesPath, `{"messages":[{"content":[{"type":"document","source":{"type":"text","data":"a"}}]}]}`, messagesPath, `{"messages":[{"content":[{"type":"document","source":{"type":"text","data":"b"}}]}]}`, 0},
	} {
		a, b := chainOf(t, tt.pathA, tt.a), chainOf(t, tt.pathB, tt.b)
		require.NotEmpty(t, a, tt.name)
		require.Equal(t, tt.common, common(a, b), tt.name)
		for i := tt.common; i < min(len(a), len(b)); i++ {
			require.NotEqual(t, a[i].Hash, b[i].Hash, "%s: part %d", tt.name, i)
		}
	}
}

func TestR6NoChainWhereNothingIsCached(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/embeddings": `{"input":"text"}`, "/v1/rerank": `{"query":"q","documents":["d"]}`, "/embedding": `{"content":"c"}`,
		"/api/generate": `{"model":"m","prompt":""}`, "/api/chat": `{"model":"m","messages":[]}`, chatPath: `{"messages":"wrong"}`,
	} {
		require.Empty(t, chainOf(t, path, body), path)
	}
}

// A part's size is what Ask.PromptTokens counts it as.
func TestR6PartSizes(t *testing.T) {
	chain := chainOf(t, chatPath, `{"tools":[{"name":"f"}],"messages":[{"role":"user","content":"12345678"},
		{"role":"user","content":[{"type":"text","text":"abcd"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`)
	require.Equal(t, []int{len(`[{"name":"f"}]`), 8, 4 + 4*MediaTokens}, sizes(chain))
	require.Equal(t, []int{12}, sizes(chainOf(t, "/v1/completions", `{"prompt":[1,2,3]}`)))
	require.Equal(t, []int{3, 4, 5}, sizes(chainOf(t, "/infill", `{"prompt":"four","input_prefix":"pre","input_suffix":"after"}`)))
}

func sizes(chain []Part) (out []int) {
	for _, p := range chain {
		out = append(out, p.Bytes)
	}
	return out
}

// quoteAny writes a JSON string with escapes chosen at random.
func quoteAny(t *rapid.T, text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case rapid.IntRange(0, 3).Draw(t, "escape") == 0 && r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		case r < ' ':
			fmt.Fprintf(&b, `\u%04X`, r)
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		default:
			b.WriteRune(r)
		}
	}
	return b.String() + `"`
}

// writeAny writes a value with spacing, escapes and the order of names chosen at
// random.
func writeAny(t *rapid.T, b *strings.Builder, v any) {
	space := func() { b.WriteString(rapid.SampledFrom([]string{"", "", " ", "\n\t"}).Draw(t, "space")) }
	space()
	switch v := v.(type) {
	case string:
		b.WriteString(quoteAny(t, v))
	case []any:
		b.WriteString("[")
		for i, e := range v {
			if i > 0 {
				b.WriteString(",")
			}
			writeAny(t, b, e)
		}
		b.WriteString("]")
	case map[string]any:
		var names []string
		for name := range v {
			names = append(names, name)
		}
		b.WriteString("{")
		if len(names) > 1 {
			names = rapid.Permutation(names).Draw(t, "names")
		}
		for i, name := range names {
			if i > 0 {
				b.WriteString(",")
			}
			space()
			b.WriteString(quoteAny(t, name))
			space()
			b.WriteString(":")
			writeAny(t, b, v[name])
		}
		b.WriteString("}")
	default:
		raw, _ := json.Marshal(v)
		b.Write(raw)
	}
	space()
}

// anyText is a text of the lengths at which blocks begin and end.
func anyText() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		if rapid.Bool().Draw(t, "short") {
			return rapid.String().Draw(t, "text")
		}
		unit := rapid.SampledFrom([]string{"x", "a line\n", "é", "中文", "😀", `"\`}).Draw(t, "unit")
		return strings.Repeat(unit, rapid.IntRange(1, 4*blockBytes/len(unit)).Draw(t, "times")) + rapid.String().Draw(t, "rest")
	})
}

func anyMessage() *rapid.Generator[map[string]any] {
	return rapid.Custom(func(t *rapid.T) map[string]any {
		m := map[string]any{"role": rapid.SampledFrom([]string{"system", "user", "assistant", "tool"}).Draw(t, "role")}
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			m["content"] = []any{
				map[string]any{"type": "text", "text": anyText().Draw(t, "text")},
				map[string]any{"type": "image_url", "image_url": map[string]any{"url": rapid.String().Draw(t, "url")}},
				map[string]any{"type": "text", "text": anyText().Draw(t, "text")},
			}
		case 1:
			m["content"] = nil
			m["tool_calls"] = []any{map[string]any{
				"id": "call_1", "type": "function",
				"function": map[string]any{"name": "f", "arguments": anyText().Draw(t, "arguments"), "n": rapid.Int().Draw(t, "n"), "b": true},
			}}
		default:
			m["content"] = anyText().Draw(t, "text")
		}
		return m
	})
}

func anyConversation(most int) *rapid.Generator[[]any] {
	return rapid.Custom(func(t *rapid.T) (out []any) {
		for _, m := range rapid.SliceOfN(anyMessage(), 1, most).Draw(t, "messages") {
			out = append(out, m)
		}
		return out
	})
}

func bodyOf(messages []any) string {
	raw, _ := json.Marshal(map[string]any{"model": "m", "messages": messages})
	return string(raw)
}

// R6: a chain does not depend on how its JSON was written, and where it was
// written as text in quotes neither do the sizes.
func TestR6ChainsDoNotDependOnTheWriting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := map[string]any{"model": "m", "messages": anyConversation(4).Draw(t, "conversation")}
		plain, _ := json.Marshal(body)
		var other strings.Builder
		writeAny(t, &other, body)
		require.Equal(t, chainOf(t, chatPath, string(plain)), chainOf(t, chatPath, other.String()), "%s\n%s", plain, other.String())
	})
}

// R6: the next turn's chain begins with all of this turn's.
func TestR6AConversationGoesOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		turns := anyConversation(12).Draw(t, "conversation")
		k := rapid.IntRange(1, len(turns)).Draw(t, "k")
		before, after := chainOf(t, chatPath, bodyOf(turns[:k])), chainOf(t, chatPath, bodyOf(turns))
		require.Equal(t, len(before), common(before, after))
	})
}

// R6: a one-character change changes everything after it, and nothing before.
func TestR6OneCharacterChangesEverythingAfter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 200_000).Draw(t, "n")
		at := rapid.IntRange(0, n-1).Draw(t, "at")
		text := bytes.Repeat([]byte("x"), n)
		body := func(text []byte) string {
			return fmt.Sprintf(`{"messages":[{"role":"user","content":"%s"},{"role":"user","content":"and?"}]}`, text)
		}
		a := chainOf(t, chatPath, body(text))
		text[at] = 'y'
		b := chainOf(t, chatPath, body(text))
		require.Len(t, b, len(a))
		end := 0
		for i := range a {
			end += a[i].Bytes
			require.Equal(t, end <= at, a[i] == b[i], "part %d ends at %d, the change is at %d", i, end, at)
		}
	})
}

// R6: a prompt that grows keeps its parts, but for an unfinished last one.
func TestR6APromptGoesOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Repeat(strconv.Itoa(rapid.Int().Draw(t, "x")), 20_000)
		n := rapid.IntRange(1, len(text)).Draw(t, "n")
		m := rapid.IntRange(1, n).Draw(t, "m")
		a := chainOf(t, "/completion", `{"prompt":"`+text[:m]+`"}`)
		b := chainOf(t, "/completion", `{"prompt":"`+text[:n]+`"}`)
		same := common(a, b)
		require.GreaterOrEqual(t, same, len(a)-1)
		lost := m
		for _, p := range a[:same] {
			lost -= p.Bytes
		}
		require.LessOrEqual(t, lost, max(blockBytes, m/coarser+blockBytes))
	})
	ids := make([]string, 10_000)
	for i := range ids {
		ids[i] = strconv.Itoa(i * 7919)
	}
	list := func(n int) []Part { return chainOf(t, "/completion", `{"prompt":[`+strings.Join(ids[:n], ",")+`]}`) }
	require.Equal(t, len(list(9000))-1, common(list(9000), list(10_000)))
}

// The number of parts is bounded whatever the body, and no part of it is lost.
func TestR6ChainsAreBounded(t *testing.T) {
	repeat := func(s string, n int) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }
	long := strings.Repeat("x", 8<<20)
	for _, tt := range []struct {
		name, path, body string
		most             int
	}{
		{"a long text", "/completion", `{"prompt":"` + long + `"}`, 300},
		{"a long text with escapes", chatPath, `{"messages":[{"content":"\n` + long + `"}]}`, 300},
		{"256 KiB", chatPath, `{"messages":[{"content":"` + long[:256<<10] + `"}]}`, 142},
		{"tiny messages", chatPath, `{"messages":[` + repeat(`{"content":"a"}`, 1<<18) + `]}`, 450},
		{"empty messages", chatPath, `{"messages":[` + repeat(`{"role":"user"}`, 1<<18) + `]}`, exactParts + 1},
		{"texts of one message", chatPath, `{"messages":[{"content":[` + repeat(`"a"`, 1<<18) + `]}]}`, 1},
		{"prompts", "/completion", `{"prompt":[` + repeat(`"a"`, 1<<18) + `]}`, 450},
		{"ids", "/completion", `{"prompt":[` + repeat("7", 1<<20) + `]}`, 300},
		{"pictures", "/api/generate", `{"images":[` + repeat(`"AA"`, 1<<16) + `],"prompt":"x"}`, 2},
		{"everything", "/v1/responses", `{"input":[` + repeat(`{"content":"a"}`, 1<<18) + `],"instructions":"` + long + `","tools":["x"],"messages":[` + repeat(`"a"`, 1<<18) + `],"prompt":[` + repeat(`"a"`, 1<<18) + `],"system":"` + long + `"}`, maxParts + int(places)},
	} {
		a, err := Parse(at(t, tt.path), []byte(tt.body))
		require.NoError(t, err)
		require.NotEmpty(t, a.Chain)
		require.LessOrEqual(t, len(a.Chain), tt.most, tt.name)
		sum := 0
		for _, p := range a.Chain {
			sum += p.Bytes
		}
		require.InDelta(t, a.PromptTokens, sum/4, 1, tt.name)
	}
}
