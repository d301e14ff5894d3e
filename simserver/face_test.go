package simserver

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func decode(t *testing.T, body string) (v map[string]any) {
	require.NoError(t, json.Unmarshal([]byte(body), &v), body)
	return v
}

func TestAnthropicMessages(t *testing.T) {
	for _, engine := range []string{"llamacpp", "ollama", "vllm"} {
		s := start(t, quick(engine))
		const body = `{"model":"tiny","max_tokens":4,"system":[{"type":"text","text":"be brief"}],"messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}]`
		_, b := send(t, s, "POST", "/v1/messages", body+"}")
		v := decode(t, b)
		require.Equal(t, "max_tokens", v["stop_reason"])
		_, b = send(t, s, "POST", "/v1/messages", body+`,"stream":true}`)
		var kinds []string
		for line := range strings.SplitSeq(b, "\n") {
			if kind, ok := strings.CutPrefix(line, "event: "); ok {
				kinds = append(kinds, kind)
			} else if data, ok := strings.CutPrefix(line, "data: "); ok && data != "[DONE]" {
				require.Equal(t, kinds[len(kinds)-1], decode(t, data)["type"])
			}
		}
		require.Equal(t, []string{
			"message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_delta", "content_block_delta",
			"content_block_stop", "message_delta", "message_stop",
		}, kinds)
		resp, b := send(t, s, "POST", "/v1/messages", `{"model":"tiny","max_tokens":4}`)
		require.Equal(t, 400, resp.StatusCode)
		require.Contains(t, b, `"error"`)
		if engine != "llamacpp" {
			require.Equal(t, "error", decode(t, b)["type"])
		}
	}
}

func TestResponses(t *testing.T) {
	for _, engine := range engines {
		s := start(t, quick(engine))
		_, b := send(t, s, "POST", "/v1/responses", `{"model":"tiny","input":"hello","max_output_tokens":3}`)
		v := decode(t, b)
		status := map[string]string{"vllm": "incomplete", "openai": "incomplete"}[engine]
		require.Equal(t, cmp.Or(status, "completed"), v["status"], engine)
		id := v["id"].(string)
		_, b = send(t, s, "POST", "/v1/responses", `{"model":"tiny","input":[{"role":"user","content":"hello"}],"stream":true}`)
		require.True(t, strings.HasPrefix(b, "event: response.created\n"))
		require.Equal(t, 20, strings.Count(b, "event: response.output_text.delta"))
		require.Contains(t, b, "event: response.completed\n")
		n := 0
		for line := range strings.SplitSeq(b, "\n") {
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				require.EqualValues(t, n, decode(t, data)["sequence_number"])
				n++
			}
		}
		resp, kept := send(t, s, "GET", "/v1/responses/"+id, "")
		next, _ := send(t, s, "POST", "/v1/responses", `{"model":"tiny","input":"more","previous_response_id":"`+id+`"}`)
		switch engine {
		case "vllm", "openai":
			require.Equal(t, 200, resp.StatusCode)
			require.Equal(t, id, decode(t, kept)["id"])
			require.Equal(t, 200, next.StatusCode)
			next, _ = send(t, s, "POST", "/v1/responses", `{"model":"tiny","input":"more","previous_response_id":"resp_x"}`)
			require.Equal(t, 404, next.StatusCode)
			gone, _ := send(t, s, "DELETE", "/v1/responses/"+id, "")
			require.Equal(t, 200, gone.StatusCode)
			resp, _ = send(t, s, "GET", "/v1/responses/"+id, "")
		case "llamacpp":
			require.Equal(t, 400, next.StatusCode)
		}
		require.Equal(t, 404, resp.StatusCode, "%s keeps none, or no longer", engine)
	}
}

func TestAConversationFindsItsCache(t *testing.T) {
	for _, engine := range []string{"llamacpp", "vllm", "openai"} {
		s := start(t, quick(engine))
		first := strings.Repeat("a long question ", 100)
		_, b := send(t, s, "POST", chatPath, `{"model":"tiny","messages":[{"role":"user","content":"`+first+`"}]}`)
		answer := decode(t, b)["choices"].([]any)[0].(map[string]any)["message"].(map[string]any)["content"].(string)
		_, b = send(t, s, "POST", chatPath, `{"model":"tiny","messages":[{"role":"user","content":"`+first+`"},{"role":"assistant","content":"`+answer+`"},{"role":"user","content":"and then?"}]}`)
		usage := decode(t, b)["usage"].(map[string]any)
		cached := usage["prompt_tokens_details"].(map[string]any)["cached_tokens"]
		rest := int(usage["prompt_tokens"].(float64) - cached.(float64))
		if engine == "vllm" { // which finds whole blocks of 16 tokens
			require.Less(t, rest, 7+16, "%v", usage)
			continue
		}
		require.Equal(t, 7, rest, "all but the new message: %v", usage)
	}
}

func TestSeveralChoicesAndPrompts(t *testing.T) {
	for _, engine := range []string{"llamacpp", "vllm", "openai"} {
		s := start(t, quick(engine))
		_, b := send(t, s, "POST", chatPath, `{"model":"tiny","n":2,"stream":true,"max_tokens":3,"messages":[{"role":"user","content":"x"}]}`)
		require.Equal(t, 2, strings.Count(b, `"finish_reason":"length"`))
		require.Equal(t, 1, strings.Count(b, "[DONE]"))
		_, b = send(t, s, "POST", "/v1/completions", `{"model":"tiny","prompt":["a","b","c"],"max_tokens":3}`)
		require.Len(t, decode(t, b)["choices"], 3)
		require.Equal(t, 2, s.Stats().MaxInHand, "R1: min(width, slots)")
		require.Zero(t, s.Stats().OverSlotsEvents)
	}
}

func TestVLLMReports(t *testing.T) {
	s := start(t, Options{Engine: "vllm", Models: []string{"tiny", "alias"}, Slots: 1, Context: 2048, OutputTokens: "fixed:8000", Notice: -1})
	_, b := send(t, s, "GET", "/v1/models", "")
	list := decode(t, b)["data"].([]any)
	require.Len(t, list, 2)
	require.EqualValues(t, 2048, list[0].(map[string]any)["max_model_len"])
	for range 3 {
		raw(t, s, chatPath, helloS)
	}
	until(t, "one runs, two wait", func() bool { return s.Stats().InHand == 3 })
	_, b = send(t, s, "GET", "/metrics", "")
	require.Contains(t, b, "\nvllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 1\n")
	require.Contains(t, b, "\nvllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 2\n")
	resp, _ := send(t, s, "POST", chatPath, `{"model":"nope","messages":[{"role":"user","content":"x"}]}`)
	require.Equal(t, 404, resp.StatusCode)
	resp, b = send(t, s, "POST", chatPath, strings.Replace(long(false), "long", "longer", 1))
	require.Equal(t, 400, resp.StatusCode)
	require.Contains(t, b, "maximum context length is 2048")
}

func TestLlamaCppReports(t *testing.T) {
	s := start(t, Options{Engine: "llamacpp", Models: []string{"tiny"}, Slots: 2, OutputTokens: "fixed:8000", Notice: -1})
	raw(t, s, chatPath, helloS)
	until(t, "it decodes", func() bool { return s.Stats().TokensGenerated > 2 })
	_, b := send(t, s, "GET", "/slots", "")
	var slots []struct {
		ID           int  `json:"id"`
		IsProcessing bool `json:"is_processing"`
		NPrompt      int  `json:"n_prompt_tokens"`
		NextToken    []struct {
			NDecoded int `json:"n_decoded"`
		} `json:"next_token"`
	}
	require.NoError(t, json.Unmarshal([]byte(b), &slots))
	require.Len(t, slots, 2)
	require.False(t, slots[0].IsProcessing)
	require.True(t, slots[1].IsProcessing, "the last of those that were never used, as recorded")
	require.Equal(t, 7, slots[1].NPrompt)
	require.Positive(t, slots[1].NextToken[0].NDecoded)
	resp, _ := send(t, s, "GET", "/slots?fail_on_no_slot=1", "")
	require.Equal(t, 200, resp.StatusCode)
	raw(t, s, chatPath, helloS)
	raw(t, s, chatPath, helloS)
	until(t, "all slots are taken", func() bool { return s.Stats().InHand == 3 })
	resp, b = send(t, s, "GET", "/slots?fail_on_no_slot=1", "")
	require.Equal(t, 503, resp.StatusCode)
	require.Equal(t, "close", connection(resp))
	require.Contains(t, b, "no slot available")
	_, b = send(t, s, "GET", "/metrics", "")
	require.Contains(t, b, "\nllamacpp:requests_processing 2\n")
	require.Contains(t, b, "\nllamacpp:requests_deferred 1\n")
	_, b = send(t, s, "POST", "/tokenize", `{"content":"hello there"}`)
	_, b = send(t, s, "POST", "/detokenize", b)
	require.Equal(t, `{"content":"hello there"}`, b)
	o := quick("llamacpp")
	o.Reranking = true
	s = start(t, o)
	_, b = send(t, s, "POST", "/rerank", `{"query":"x","documents":["a","b"]}`)
	require.Len(t, decode(t, b)["results"], 2)
}

func connection(r *http.Response) string {
	if r.Close {
		return "close"
	}
	return "keep-alive"
}

func TestLlamaCppConnectionsEndWithTheHundredthRequest(t *testing.T) {
	s := start(t, quick("llamacpp"))
	c, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "http://"))
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	for n := 1; ; n++ {
		_, err := io.WriteString(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		resp, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, resp.Body)
		if resp.Close {
			require.Equal(t, 100, n)
			break
		}
	}
	_, err = in.ReadByte()
	require.Equal(t, io.EOF, err)
}

func TestLlamaCppLoads(t *testing.T) {
	o := quick("llamacpp")
	o.LoadTime = 100 * time.Millisecond
	s := start(t, o)
	for _, path := range []string{"/health", "/props", "/slots", "/v1/models"} {
		resp, b := send(t, s, "GET", path, "")
		require.Equal(t, 503, resp.StatusCode)
		require.Contains(t, b, "Loading model")
	}
	until(t, "loaded", func() bool { return try(t, s, hello).status == 200 })
}

func TestOllamaUnloads(t *testing.T) {
	s := start(t, quick("ollama"))
	_, b := send(t, s, "POST", "/api/generate", `{"model":"tiny"}`)
	require.Contains(t, b, `"done_reason":"load"`)
	_, b = send(t, s, "GET", "/api/ps", "")
	require.Contains(t, b, `"tiny:latest"`)
	_, b = send(t, s, "POST", "/api/chat", `{"model":"tiny","keep_alive":0,"messages":[]}`)
	require.Contains(t, b, `"done_reason":"unload"`)
	_, b = send(t, s, "GET", "/api/ps", "")
	require.Equal(t, `{"models":[]}`, b)
	resp, _ := send(t, s, "POST", "/api/generate", `{"model":"nope","keep_alive":"0s"}`)
	require.Equal(t, 404, resp.StatusCode)
}

func TestSharedGPUHalvesTheSpeed(t *testing.T) {
	decoding := func(share string) float64 {
		o := Options{Name: "a", Engine: "llamacpp", Slots: 1, Decode: 200, OutputTokens: "fixed:101", GPUShare: share}
		p := o
		p.Name = "b"
		fleet, err := StartFleet([]Options{o, p})
		require.NoError(t, err)
		defer fleet.Close()
		bodies := make(chan string, 2)
		for _, s := range fleet {
			c := client(t)
			go func() {
				var b []byte
				if resp, err := open(c, s, "POST", chatPath, hello); err == nil {
					b, _ = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
				}
				bodies <- string(b)
			}()
		}
		slowest := 0.0
		for range fleet {
			slowest = max(slowest, decode(t, <-bodies)["timings"].(map[string]any)["predicted_ms"].(float64))
		}
		return slowest
	}
	require.InDelta(t, 500, decoding(""), 1)
	require.Greater(t, decoding("g"), 650.0, "about a second where both begin together")
}

// Ten times faster, a client sees the same proportions within 5%: the prompt's
// time, the answer's, and both beside a load. It may look late on a busy machine,
// never early, so the best of some tries counts.
func TestTimeScaleOverTheWire(t *testing.T) {
	body := fmt.Sprintf(`{"model":"tiny","stream":true,"messages":[{"role":"user","content":%q}]}`, strings.Repeat("word", 796))
	for _, scale := range []float64{1, 10} {
		t.Run(fmt.Sprint(scale), func(t *testing.T) {
			s := start(t, Options{Engine: "ollama", Models: []string{"tiny"}, Slots: 1, Prefill: 1000, Decode: 100, LoadTime: 800 * time.Millisecond, OutputTokens: "fixed:81", TimeScale: scale})
			within := func(d time.Duration, want float64) bool {
				return math.Abs(d.Seconds()*scale/want-1) < 0.05
			}
			var seen []string
			for end := time.Now().Add(time.Minute); time.Now().Before(end); {
				send(t, s, "POST", "/api/generate", `{"model":"tiny","keep_alive":0}`)
				s.Reset() // an empty prompt cache
				first, last := watch(t, s, body)
				seen = append(seen, fmt.Sprintf("first token after %v, last %v later", first, last-first))
				if within(first, 1.6) && within(last-first, 0.8) {
					return
				}
			}
			require.Fail(t, "not within 5% in any try", "%v", seen)
		})
	}
}

// watch gives the times after which the first and the last token of a stream came.
func watch(t *testing.T, s *Server, body string) (first, last time.Duration) {
	began := time.Now()
	resp, err := open(client(t), s, "POST", chatPath, body)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	in := bufio.NewReader(resp.Body)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			require.ErrorIs(t, err, io.EOF)
			return first, last
		}
		if strings.Contains(line, `"content":"`) && !strings.Contains(line, `"content":""`) {
			last = time.Since(began)
			if first == 0 {
				first = last
			}
		}
	}
}

// Two hundred clients in turn leave nothing behind: what is in hand goes back to
// zero, and TestMain looks for goroutines.
func TestManyClientsLeaveNothingBehind(t *testing.T) {
	s := start(t, Options{Engine: "llamacpp", Models: []string{"tiny"}, Slots: 2, OutputTokens: "fixed:30", Decode: 5000, Prefill: 1e5, Notice: 5 * time.Millisecond})
	done := make(chan struct{})
	for i := range 200 {
		go func() {
			defer func() { done <- struct{}{} }()
			c := raw(t, s, chatPath, []string{hello, helloS}[i%2])
			if i%3 == 0 {
				_ = c.Close()
				return
			}
			_, _ = bufio.NewReader(c).ReadString('\n')
			_ = c.Close()
		}()
	}
	for range 200 {
		<-done
	}
	until(t, "all is over", func() bool { return s.Stats().InHand == 0 })
	st := s.Stats()
	require.Equal(t, 200, st.Requests)
	require.Equal(t, 200, st.Completed+st.CutByClient)
}

// A stream that waits inside llama.cpp hears an SSE comment every 30 s, which
// is neither a role event nor a token.
func TestLlamaCppPingsWhatWaits(t *testing.T) {
	s := start(t, Options{Engine: "llamacpp", Slots: 1, Decode: 1, Prefill: 1, Context: 1e6, OutputTokens: "fixed:1000", TimeScale: 1000, Notice: -1})
	raw(t, s, chatPath, long(true))
	until(t, "the slot is taken", func() bool { return s.Stats().InHand == 1 })
	c := raw(t, s, chatPath, helloS)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	b := make([]byte, 6)
	_, err = io.ReadFull(resp.Body, b)
	require.NoError(t, err)
	require.Equal(t, ":\n\n:\n\n", string(b))
}
