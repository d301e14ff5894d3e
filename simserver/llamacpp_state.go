package simserver

import (
	"fmt"
	"net/http"
	"time"

	"switchyard/simserver/model"
)

// The sampling parameters as llama.cpp lists them; only the tools that read
// them care for the values.
const (
	llamaParams = `"seed":4294967295,"temperature":0.8,"dynatemp_range":0.0,"dynatemp_exponent":1.0,"top_k":40,"top_p":0.95,"min_p":0.05,"top_n_sigma":-1.0,"xtc_probability":0.0,"xtc_threshold":0.1,"typical_p":1.0,"repeat_last_n":64,"repeat_penalty":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"dry_multiplier":0.0,"dry_base":1.75,"dry_allowed_length":2,"dry_penalty_last_n":64`
	llamaMore   = `"mirostat":0,"mirostat_tau":5.0,"mirostat_eta":0.1,"adaptive_target":-1.0,"adaptive_decay":0.9`
	llamaTail   = `"samplers":["penalties","dry","top_n_sigma","top_k","typ_p","top_p","min_p","xtc","temperature"],"speculative.types":"none","timings_per_token":false,"post_sampling_probs":false,"backend_sampling":false,"lora":[]`
	llamaChatML = `{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}`
)

// slotParams is the shorter list of /props and /slots.
func slotParams(b []byte, limit int, stream bool, format string) []byte {
	return fmt.Appendf(b, `{`+llamaParams+`,`+llamaMore+`,"max_tokens":%d,"n_predict":%d,"n_keep":0,"n_discard":0,"ignore_eos":false,"stream":%t,"n_probs":0,"min_keep":0,"chat_format":%q,"reasoning_format":"none","reasoning_in_content":false,"generation_prompt":"",`+llamaTail+`}`,
		limit, limit, stream, format)
}

// generationSettings is the list that an answer of /completion repeats.
func generationSettings(b []byte, limit int, stream bool) []byte {
	return fmt.Appendf(b, `{`+llamaParams+`,"dry_sequence_breakers":["\n",":","\"","*"],`+llamaMore+`,"stop":[],"max_tokens":%d,"n_predict":%d,"n_keep":0,"n_discard":0,"ignore_eos":false,"stream":%t,"logit_bias":[],"n_probs":0,"min_keep":0,"grammar":"","grammar_lazy":false,"grammar_triggers":[],"preserved_tokens":[],"chat_format":"Content-only","reasoning_format":"deepseek","reasoning_in_content":false,"generation_prompt":"",`+llamaTail+`}`,
		limit, limit, stream)
}

func (f *llamaCppFace) props(w http.ResponseWriter, r *http.Request, name string) {
	c := &f.s.config
	var sleeping bool
	f.s.do(func(now time.Time) { sleeping = f.s.model.Sleeping(now, name) })
	b := append([]byte(`{"default_generation_settings":{"params":`), slotParams(nil, -1, false, "Content-only")...)
	b = fmt.Appendf(b, `,"n_ctx":%d},"total_slots":%d,"model_alias":`, c.Context, c.Slots)
	b = append(quoted(b, name), `,"model_ftype":"F16","model_path":`...)
	b = quoted(b, "/models/"+name+".gguf")
	b = append(b, `,"modalities":{"vision":false,"video":false,"audio":false},"media_marker":"<__media__>","endpoint_slots":true,"endpoint_props":false,"endpoint_metrics":true,"ui":true,"ui_settings":{},"chat_template":`...)
	b = quoted(b, llamaChatML)
	b = append(b, `,"chat_template_caps":{"supports_object_arguments":false,"supports_parallel_tool_calls":false,"supports_preserve_reasoning":false,"supports_reasoning_effort":false,"supports_string_content":true,"supports_system_role":true,"supports_tool_calls":true,"supports_tools":true,"supports_typed_content":false},"bos_token":"<s>","eos_token":"</s>","build_info":"`+llamaBuild+`"`...)
	b = fmt.Appendf(b, `,"is_sleeping":%t,"cors_proxy_enabled":false}`, sleeping)
	f.s.writeJSON(w, r, http.StatusOK, b)
}

// slots shows each slot, and wakes a server that sleeps; reading it is a result
// like any other to those that wait for a quiet second.
func (f *llamaCppFace) slots(w http.ResponseWriter, r *http.Request, name string) {
	var awake time.Time
	f.s.do(func(now time.Time) { awake = f.s.model.Wake(now, name) })
	f.s.wait(r, awake)
	b, free := []byte{'['}, 0
	f.s.do(func(now time.Time) {
		f.s.model.Polled(now)
		for i, v := range f.s.model.Slots(now, name) {
			if i > 0 {
				b = append(b, ',')
			}
			if v.Task == nil {
				free++
			}
			b = f.slot(b, i, v)
		}
	})
	if r.URL.Query().Get("fail_on_no_slot") != "" && free == 0 {
		f.fail(w, r, problem{status: http.StatusServiceUnavailable, message: "no slot available"})
		return
	}
	f.s.writeJSON(w, r, http.StatusOK, append(b, ']'))
}

func (f *llamaCppFace) slot(b []byte, id int, v model.SlotView) []byte {
	b = fmt.Appendf(b, `{"id":%d,"n_ctx":%d,"speculative":false,"is_processing":%t`, id, f.s.config.Context, v.Task != nil)
	if t := v.Task; t != nil {
		limit := v.Work.Request.Max
		remain := limit - t.Decoded
		if limit == 0 {
			limit, remain = -1, -1
		}
		b = fmt.Appendf(b, `,"id_task":%d,"n_prompt_tokens":%d,"n_prompt_tokens_processed":%d,"n_prompt_tokens_cache":%d,"params":`,
			v.Work.ID, t.Prompt, t.Processed-t.Cached, t.Cached)
		b = slotParams(b, limit, v.Work.Request.Stream, "peg-native")
		b = fmt.Appendf(b, `,"next_token":[{"has_next_token":true,"has_new_line":false,"n_remain":%d,"n_decoded":%d}]`, remain, t.Decoded)
	}
	return append(b, '}')
}

// metrics are llama.cpp's counters; reading them is a result, as with slots.
func (f *llamaCppFace) metrics(w http.ResponseWriter, r *http.Request, name string) {
	var st Stats
	var v model.ModelView
	var u model.Usage
	f.s.do(func(now time.Time) {
		f.s.model.Polled(now)
		st, u = f.s.model.Stats(now).Models[name], f.s.model.Usage(now, name)
		for _, m := range f.s.model.Models(now) {
			if m.Name == name {
				v = m
			}
		}
	})
	per := func(n, d float64) float64 {
		if d == 0 {
			return 0
		}
		return n / d
	}
	processed, made := float64(st.PromptTokens-st.CachedTokens), float64(st.TokensGenerated)
	prompting, decoding := u.Prompting.Seconds(), u.Decoding.Seconds()
	var b []byte
	metric := func(name, kind, help string, value float64) {
		b = fmt.Appendf(b, "# HELP llamacpp:%s %s\n# TYPE llamacpp:%s %s\nllamacpp:%s %g\n", name, help, name, kind, name, value)
	}
	metric("prompt_tokens_total", "counter", "Number of prompt tokens processed, excluding cached tokens", processed)
	metric("prompt_tokens_cached_total", "counter", "Number of prompt tokens reused from the cache", float64(st.CachedTokens))
	metric("prompt_seconds_total", "counter", "Total time spent processing prompts", prompting)
	metric("tokens_predicted_total", "counter", "Number of generation tokens processed", made)
	metric("tokens_predicted_seconds_total", "counter", "Total time spent generating tokens", decoding)
	metric("n_decode_total", "counter", "Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding", float64(u.Batches))
	metric("n_tokens_max", "counter", "Largest observed sequence length (prompt + generation)", float64(u.Longest))
	for _, c := range [][2]string{
		{"num_draft_tokens_total", "Total draft tokens generated"},
		{"num_accepted_tokens_total", "Total draft tokens accepted by the target model"},
		{"num_drafts_total", "Total speculative decoding verification steps"},
	} { // there is no draft model
		metric("spec_decode_"+c[0], "counter", "Speculative: "+c[1], 0)
	}
	metric("prompt_tokens_seconds", "gauge", "Average prompt throughput in tokens/s", per(processed, prompting))
	metric("predicted_tokens_seconds", "gauge", "Average generation throughput in tokens/s", per(made, decoding))
	metric("requests_processing", "gauge", "Number of requests processing", float64(v.Running))
	metric("requests_deferred", "gauge", "Number of requests deferred", float64(v.Queued))
	metric("n_busy_slots_per_decode", "gauge", "Average number of busy slots per llama_decode() call", per(float64(u.BusySlots), float64(u.Batches)))
	w.Header().Set("Process-Start-Time-Unix", fmt.Sprint(f.s.born.Unix()))
	f.headers(w.Header(), r, "text/plain; version=0.0.4")
	f.s.writeBody(w, r, http.StatusOK, b)
}

func (f *llamaCppFace) models(w http.ResponseWriter, r *http.Request) {
	names := f.s.config.Models
	b := []byte(`{"models":[`)
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		n := quotedString(name)
		b = fmt.Appendf(b, `{"name":%s,"model":%s,"modified_at":"","size":"","digest":"","type":"model","description":"","tags":[""],"capabilities":["completion"],"parameters":"","details":{"parent_model":"","format":"gguf","family":"","families":[""],"parameter_size":"","quantization_level":""}}`, n, n)
	}
	b = append(b, `],"object":"list","data":[`...)
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		n := quotedString(name)
		b = fmt.Appendf(b, `{"id":%s,"aliases":[%s],"tags":[],"object":"model","created":%d,"owned_by":"llamacpp","meta":{"vocab_type":true,"n_vocab":32000,"n_ctx":%d,"n_ctx_train":32768,"n_embd":256,"n_params":19532032,"size":39068672,"ftype":"F16"}}`,
			n, n, time.Now().Unix(), f.s.config.Context)
	}
	f.s.writeJSON(w, r, http.StatusOK, append(b, "]}"...))
}
