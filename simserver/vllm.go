package simserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"switchyard/simserver/model"
)

func (f *openAIFace) health(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Server", "uvicorn")
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
}

const vllmVersion = "0.14.0"

func (f *openAIFace) version(w http.ResponseWriter, r *http.Request) {
	f.s.writeJSON(w, r, http.StatusOK, []byte(`{"version":"`+vllmVersion+`"}`))
}

// metrics are those that vLLM is watched by; its slots are not among them.
func (f *openAIFace) metrics(w http.ResponseWriter, r *http.Request) {
	var st Stats
	var v model.ModelView
	held := 0
	f.s.do(func(now time.Time) {
		st, v = f.s.model.Stats(now), f.s.model.Models(now)[0]
		for _, s := range f.s.model.Slots(now, "") {
			if s.Task != nil {
				held += s.Task.Processed + s.Task.Decoded
			}
		}
	})
	var b []byte
	metric := func(name, kind, help string, value float64) {
		b = fmt.Appendf(b, "# HELP vllm:%s %s\n# TYPE vllm:%s %s\nvllm:%s{engine=\"0\",model_name=%q} %g\n", name, help, name, kind, name, v.Name, value)
	}
	metric("num_requests_running", "gauge", "Number of requests in model execution batches.", float64(v.Running))
	metric("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", float64(v.Queued))
	metric("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", min(float64(held)/float64(f.s.config.Slots*f.s.config.Context), 1))
	metric("prefix_cache_queries_total", "counter", "Prefix cache queries, in terms of number of queried tokens.", float64(st.PromptTokens))
	metric("prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens.", float64(st.CachedTokens))
	metric("prompt_tokens_total", "counter", "Number of prefill tokens processed.", float64(st.PromptTokens))
	metric("generation_tokens_total", "counter", "Number of generation tokens processed.", float64(st.TokensGenerated))
	f.headers(w.Header(), r, "text/plain; version=0.0.4; charset=utf-8")
	f.s.writeBody(w, r, http.StatusOK, b)
}

func (f *openAIFace) tokenize(w http.ResponseWriter, r *http.Request) {
	var q tokenRequest
	if err := json.Unmarshal(f.s.body(r), &q); err != nil {
		f.fail(w, r, problem{status: http.StatusBadRequest, message: err.Error()})
		return
	}
	text := q.Prompt
	if len(q.Messages) > 0 {
		text = template(q.Messages)
	}
	ids := tokenize(text)
	b := fmt.Appendf(nil, `{"count":%d,"max_model_len":%d,"tokens":`, len(ids), f.s.config.Context)
	f.s.writeJSON(w, r, http.StatusOK, append(appendIDs(b, ids), `,"token_strs":null}`...))
}

func (f *openAIFace) detokenize(w http.ResponseWriter, r *http.Request) {
	var q tokenRequest
	if err := json.Unmarshal(f.s.body(r), &q); err != nil {
		f.fail(w, r, problem{status: http.StatusBadRequest, message: err.Error()})
		return
	}
	f.s.writeJSON(w, r, http.StatusOK, append(quoted([]byte(`{"prompt":`), detokenize(q.Tokens)), '}'))
}

// countTokens counts what a conversation would cost, in Anthropic's format.
func (f *openAIFace) countTokens(w http.ResponseWriter, r *http.Request) {
	var q tokenRequest
	if err := json.Unmarshal(f.s.body(r), &q); err != nil {
		f.fail(w, r, problem{status: http.StatusBadRequest, message: err.Error()})
		return
	}
	n := q.count()
	f.s.writeJSON(w, r, http.StatusOK, fmt.Appendf(nil, `{"input_tokens":%d,"context_management":{"original_input_tokens":%d}}`, n, n))
}
