package dialect

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzParse: no body breaks it; what it takes is JSON to a library that is known
// to be right, and says to Go's decoder (and so to Ollama) what it says to us.
func FuzzParse(f *testing.F) {
	for _, body := range []string{
		`{}`, `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],"n":2}`, `{"mod\u0065l":"a","Stream":false}`,
		`{"prompt":[[1,2],[3]],"max_tokens":-1,"options":{"num_ctx":1e9}}`, `{"keep_alive":"0s","images":["AA"],"ſtream":1}`,
		`{"model":"a","model":"b"}`, "{\"model\":\"\xff\"}", `{"input":{"a":[{}]},"x":"\ud800"}`, `{"messages":[{"content":[{"text":"a\n"},{"image_url":{"url":"data:a;base64,AA"}},[1,[0,-1.5]]]}],"tools":[true,{"a":[]}]}`, `{"messages":[{"content":[{"type":"image","source":{"data":"x"}}]}]}`,
	} {
		for i := range table {
			f.Add(i, []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, i int, body []byte) {
		ep := &table[uint(i)%uint(len(table))]
		a, err := Parse(ep, body)
		if err != nil {
			require.IsType(t, &BadRequest{}, err)
			require.NotEmpty(t, err.Error())
			return
		}
		require.GreaterOrEqual(t, a.Width, 1)
		require.GreaterOrEqual(t, a.Width, a.Choices)
		require.GreaterOrEqual(t, min(a.PromptBytes, a.PromptTokens, a.MaxTokens, a.NumCtx), 0)
		if !ep.Inference() {
			return
		}
		require.True(t, valid(body), "%q", body)
		requireChain(t, ep, body, a)
		if ep.StreamDefault {
			requireSameAsGo(t, body, a)
		}
		if a.ModelStart >= 0 {
			b, err := Parse(ep, ReplaceModel(body, a, "other"))
			require.NoError(t, err)
			require.Equal(t, "other", b.Model)
			a.Model, a.ModelEnd, a.Sum = b.Model, b.ModelEnd, b.Sum
			require.Equal(t, a, b, "nothing but the model has changed")
		}
	})
}

// requireChain: no part of the prompt is lost or counted twice, and how the JSON
// is spaced makes no difference.
func requireChain(t *testing.T, ep *Endpoint, body []byte, a Ask) {
	require.LessOrEqual(t, len(a.Chain), maxParts+int(places))
	sum := 0
	for _, p := range a.Chain {
		require.GreaterOrEqual(t, p.Bytes, 0)
		sum += p.Bytes
	}
	require.LessOrEqual(t, sum/4, a.PromptTokens)
	var compact bytes.Buffer
	if json.Compact(&compact, body) != nil {
		return // its depth is another
	}
	b, err := Parse(ep, compact.Bytes())
	require.NoError(t, err)
	require.Len(t, b.Chain, len(a.Chain), "%q", body)
	for i := range a.Chain {
		require.Equal(t, a.Chain[i].Hash, b.Chain[i].Hash, "%q", body)
	}
}

// FuzzWalker holds the walker to jsontext: they call the same texts JSON.
func FuzzWalker(f *testing.F) {
	for _, text := range []string{`{"a":[1,-2.5e+3,"x\n\u00e9\ud83d\ude00",true,false,null,{}]}`, `[`, `"`, `-`, `{"a":`, "\"\x1f\"", `"12345678\`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if bytes.Count(text, []byte("["))+bytes.Count(text, []byte("{")) > maxDepth {
			return
		}
		require.Equal(t, valid(text), isJSON(text), "%q", text)
	})
}

// fuzzStream: no stream breaks the reader, none loses a byte, and how it was read
// makes no difference.
func fuzzStream(t *testing.T, path, contentType string, text []byte, cuts []byte) {
	ep := at(t, path)
	var pieces []string
	rest := string(text)
	for _, n := range cuts {
		if len(rest) == 0 {
			break
		}
		m := min(int(n)+1, len(rest))
		pieces, rest = append(pieces, rest[:m]), rest[m:]
	}
	if rest != "" {
		pieces = append(pieces, rest)
	}
	whole := NewStream(ep.Format, ep, Ask{}, contentType)
	want := run(t, whole, string(text))
	for _, ahead := range []bool{false, true} {
		s := NewStream(ep.Format, ep, Ask{}, contentType)
		require.Equal(t, want, read(t, s, ahead, pieces))
		require.Equal(t, whole.Complete(), s.Complete())
		require.Equal(t, whole.Usage(), s.Usage())
		require.Equal(t, whole.Tokens(), s.Tokens())
		require.Equal(t, string(whole.Rest()), string(s.Rest()))
	}
}

func FuzzSSE(f *testing.F) {
	paths := []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/completion"}
	for i, name := range []string{"llamacpp_chat_usage.sse", "openai_tools.sse", "anthropic.sse", "responses.sse", "llamacpp_completion.sse", "llamacpp_chat_progress.sse"} {
		f.Add(i, fixture(f, name), []byte{0, 1, 2, 3, 250, 40})
		f.Add(i, bytes.ReplaceAll(fixture(f, name), []byte("\n"), []byte("\r\n")), []byte{7, 1, 99})
	}
	f.Add(0, []byte(":\r\rdata:\rdata: x\n\r\r\n\nevent: error\n\n"), []byte{0})
	f.Fuzz(func(t *testing.T, i int, text, cuts []byte) {
		fuzzStream(t, paths[uint(i)%uint(len(paths))], sse, text, cuts)
	})
}

func FuzzNDJSON(f *testing.F) {
	for _, name := range []string{"ollama_chat.ndjson", "ollama_generate.ndjson", "ollama_preload.json"} {
		f.Add(fixture(f, name), []byte{0, 1, 2, 3, 250, 40})
	}
	f.Add([]byte("\n\r\n{\"done\":true}\r\n{\"error\":\"x\"}"), []byte{0})
	f.Fuzz(func(t *testing.T, text, cuts []byte) {
		fuzzStream(t, "/api/chat", ndjson, text, cuts)
	})
}
