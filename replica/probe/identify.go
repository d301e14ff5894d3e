package probe

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	"switchyard/replica"
)

// found is what identify came to.
type found struct {
	engine  replica.Engine // EngineAuto: no inference server at all
	certain bool           // the server said so itself; otherwise it is the best guess
	saw     string         // the evidence, for people
}

// identify finds out what kind of server answers. It asks only what changes
// nothing and wakes nobody, most telling question first, and stops at the
// first clear word. An error means that the server did not answer.
func identify(ctx context.Context, c *client) (found, error) {
	root, err := c.glance(ctx, "/", 64) // it may be a web page of megabytes
	if err != nil {
		return found{}, err
	}
	if root.server("llama.cpp") {
		return sure(replica.EngineLlamaCpp, "Server: "+root.header.Get("Server")), nil
	}
	if root.status == http.StatusOK && bytes.HasPrefix(bytes.TrimSpace(root.body), []byte("Ollama is running")) {
		// A gateway like this one says so too, whatever is behind it.
		if v, err := c.get(ctx, "/api/version"); err != nil || ollamaVersion(v) != "" {
			return sure(replica.EngineOllama, `GET / says "Ollama is running"`), err
		}
	}
	list, err := c.get(ctx, "/v1/models")
	if err != nil {
		return found{}, err
	}
	if list.server("llama.cpp") || list.loading() {
		return sure(replica.EngineLlamaCpp, "GET /v1/models: "+list.summary()), nil
	}
	models, listed := readOpenAIList(list)
	for _, m := range models {
		switch m.OwnedBy {
		case "llamacpp":
			return sure(replica.EngineLlamaCpp, "its models are owned by llamacpp"), nil
		case "vllm":
			return sure(replica.EngineVLLM, "its models are owned by vllm"), nil
		}
	}
	if f, ok, err := identifyByDetail(ctx, c, listed); err != nil || ok {
		return f, err
	}
	if listed {
		return found{engine: replica.EngineOpenAI, saw: "GET /v1/models lists models"}, nil
	}
	if err := list.broken(); err != nil {
		return found{}, err
	}
	saw := "GET /v1/models: " + list.summary()
	if list.busy() {
		return found{}, fmt.Errorf("%s: what it is cannot be told yet", saw)
	}
	if list.hidden() {
		// The list may be kept private, or the path not be offered: such a
		// replica serves any model.
		return found{engine: replica.EngineOpenAI, saw: saw}, nil
	}
	return found{engine: replica.EngineAuto, saw: saw}, nil
}

// identifyByDetail asks for what only one kind of server has, for servers that
// hide what usually tells them apart.
func identifyByDetail(ctx context.Context, c *client, listed bool) (found, bool, error) {
	metrics, err := c.get(ctx, "/metrics")
	if err != nil {
		return found{}, false, err
	}
	if metrics.status == http.StatusOK && bytes.Contains(metrics.body, []byte("\nvllm:")) {
		return sure(replica.EngineVLLM, "GET /metrics has vllm: names"), true, nil
	}
	props, err := c.get(ctx, "/props")
	if err != nil {
		return found{}, false, err
	}
	var p llamaProps
	if props.server("llama.cpp") || props.decode(&p) && (p.Slots > 0 || p.Role == "router") {
		return sure(replica.EngineLlamaCpp, "GET /props is llama.cpp's"), true, nil
	}
	if listed {
		return found{}, false, nil
	}
	version, err := c.get(ctx, "/api/version")
	if err != nil {
		return found{}, false, err
	}
	if v := ollamaVersion(version); v != "" {
		return sure(replica.EngineOllama, fmt.Sprintf("GET /api/version: %q", v)), true, nil
	}
	return found{}, false, nil
}

// ollamaVersion reads an answer of /api/version; "" if it is none.
func ollamaVersion(a answer) string {
	var v struct{ Version string }
	if a.status != http.StatusOK || !a.decode(&v) {
		return ""
	}
	return v.Version
}

func sure(e replica.Engine, saw string) found { return found{engine: e, certain: true, saw: saw} }
