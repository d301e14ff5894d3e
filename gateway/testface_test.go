package gateway

import (
	"strconv"
	"strings"

	"switchyard/replica"
)

// face is how one API looks to a client, with answers as the recordings show.
type face struct {
	name     string
	path     string
	engine   replica.Engine
	ask      string   // a body with %s for true or false
	media    string   // Content-Type of its streams
	begin    string   // events before the content: roles, pings, starts
	content  []string // events with content
	terminal string   // the last events
	whole    string   // an answer that is not streamed
	mistake  string   // body of an error of the client's
	failing  string   // an error as an event
	errorIs  string   // how the gateway's own error event begins
	reset    string   // what proves that an answer was ended as if it were whole
}

func (f face) body(stream bool) string {
	return strings.Replace(f.ask, "%s", strconv.FormatBool(stream), 1)
}

// events is the whole stream.
func (f face) events() string { return f.begin + strings.Join(f.content, "") + f.terminal }

var faces = []face{
	{
		name: "openai", path: "/v1/chat/completions", engine: replica.EngineVLLM,
		ask:   `{"model":"tiny","stream":%s,"messages":[{"role":"user","content":"hello there"}]}`,
		media: "text/event-stream",
		begin: `data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"id":"c1","object":"chat.completion.chunk"}` + "\n\n",
		content: []string{
			`data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" zm"}}],"id":"c1","object":"chat.completion.chunk"}` + "\n\n",
			`data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" aim"}}],"id":"c1","object":"chat.completion.chunk"}` + "\n\n",
		},
		terminal: `data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}],"id":"c1","object":"chat.completion.chunk"}` + "\n\n" + "data: [DONE]\n\n",
		whole:    `{"choices":[{"finish_reason":"length","index":0,"message":{"role":"assistant","content":" fixed"}}],"object":"chat.completion","usage":{"completion_tokens":8,"prompt_tokens":19,"total_tokens":27}}`,
		mistake:  `{"error":{"message":"[] is too short - 'messages'","type":"invalid_request_error","param":null,"code":null}}`,
		failing:  `data: {"error":{"message":"the runner died","type":"api_error"}}` + "\n\n",
		errorIs:  `data: {"error":{"message":"`,
		reset:    "[DONE]",
	},
	{
		name: "anthropic", path: "/v1/messages", engine: replica.EngineLlamaCpp,
		ask:   `{"model":"tiny","max_tokens":4,"stream":%s,"messages":[{"role":"user","content":"hello there"}]}`,
		media: "text/event-stream",
		begin: "event: message_start\n" + `data: {"type":"message_start","message":{"id":"m1","type":"message","role":"assistant","content":[],"usage":{"input_tokens":19,"output_tokens":1}}}` + "\n\n" +
			"event: content_block_start\n" + `data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}` + "\n\n",
		content: []string{
			"event: content_block_delta\n" + `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" waren"}}` + "\n\n",
			"event: content_block_delta\n" + `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" soll"}}` + "\n\n",
		},
		terminal: "event: content_block_stop\n" + `data: {"type":"content_block_stop","index":0}` + "\n\n" +
			"event: message_delta\n" + `data: {"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":4}}` + "\n\n" +
			"event: message_stop\n" + `data: {"type":"message_stop"}` + "\n\n",
		whole:   `{"id":"m1","type":"message","role":"assistant","content":[{"type":"text","text":" waren soll"}],"model":"tiny","stop_reason":"max_tokens","usage":{"input_tokens":19,"output_tokens":4}}`,
		mistake: `{"type":"error","error":{"type":"invalid_request_error","message":"'messages' is required"}}`,
		failing: "event: error\n" + `data: {"type":"error","error":{"type":"api_error","message":"the runner died"}}` + "\n\n",
		errorIs: "event: error\n" + `data: {"type":"error","error":{"type":"`,
		reset:   "message_stop",
	},
	{
		name: "ollama", path: "/api/chat", engine: replica.EngineOllama,
		ask:   `{"model":"tiny","stream":%s,"messages":[{"role":"user","content":"hello there"}]}`,
		media: "application/x-ndjson",
		content: []string{
			`{"model":"tiny","created_at":"2026-11-29T23:10:08Z","message":{"role":"assistant","content":" transaction"},"done":false}` + "\n",
			`{"model":"tiny","created_at":"2026-11-29T23:10:08Z","message":{"role":"assistant","content":" levels"},"done":false}` + "\n",
		},
		terminal: `{"model":"tiny","created_at":"2026-11-29T23:10:08Z","message":{"role":"assistant","content":""},"done":true,"done_reason":"length","total_duration":159570671,"load_duration":105587893,"prompt_eval_count":19,"prompt_eval_duration":21865774,"eval_count":3,"eval_duration":23448313}` + "\n",
		whole:    `{"model":"tiny","created_at":"2026-11-29T23:10:08Z","message":{"role":"assistant","content":" loads poetry"},"done":true,"done_reason":"length","prompt_eval_count":19,"eval_count":6}`,
		mistake:  `{"error":"invalid options"}`,
		failing:  `{"error":"an error was encountered while running the model: unexpected EOF"}` + "\n",
		errorIs:  `{"error":"`,
		reset:    `"done":true`,
	},
	{
		name: "llamacpp", path: "/completion", engine: replica.EngineLlamaCpp,
		ask:   `{"prompt":"hello there my friend","n_predict":3,"stream":%s}`,
		media: "text/event-stream",
		content: []string{
			`data: {"index":0,"content":" nouveau","tokens":[13164],"stop":false,"id_slot":-1,"tokens_predicted":1,"tokens_evaluated":5}` + "\n\n",
			`data: {"index":0,"content":" tree","tokens":[5447],"stop":false,"id_slot":-1,"tokens_predicted":2,"tokens_evaluated":5}` + "\n\n",
		},
		terminal: `data: {"index":0,"content":"","tokens":[],"id_slot":1,"stop":true,"model":"tiny","tokens_predicted":3,"tokens_evaluated":5,"timings":{"cache_n":4,"prompt_n":1,"prompt_ms":4.9,"predicted_n":3,"predicted_ms":8.1}}` + "\n\n",
		whole:    `{"index":0,"content":" monaster gek","tokens":[],"id_slot":1,"stop":true,"model":"tiny","tokens_predicted":4,"tokens_evaluated":5,"timings":{"cache_n":1,"prompt_n":4,"prompt_ms":6.0,"predicted_n":4,"predicted_ms":7.6}}`,
		mistake:  `{"error":{"code":400,"message":"\"prompt\" must be a string","type":"invalid_request_error"}}`,
		failing:  `data: {"error":{"code":500,"message":"the runner died","type":"server_error"}}` + "\n\n",
		errorIs:  `data: {"error":{"code":`,
		reset:    `"stop":true`,
	},
}

const jsonMedia = "application/json"

// good answers a request as it should be.
func (f face) good(stream bool, headers ...string) act {
	if !stream {
		return func(k *call) { k.whole(200, jsonMedia, f.whole, headers...) }
	}
	return func(k *call) {
		k.streamHead(f.media, headers...)
		k.chunk(f.begin + f.content[0])
		for _, e := range f.content[1:] {
			k.chunk(e)
		}
		k.chunk(f.terminal)
		k.end()
	}
}

// want is what a client gets of good.
func (f face) want(stream bool) string {
	if stream {
		return f.events()
	}
	return f.whole
}
