package simserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

var (
	errNoModel   = errors.New("model is required")
	errOnePrompt = errors.New("json: cannot unmarshal array into Go struct field CompletionRequest.prompt of type string")
)

// ollamaRequest is the body of /api/chat and /api/generate.
type ollamaRequest struct {
	Model     string     `json:"model"`
	Messages  []message  `json:"messages"`
	Prompt    string     `json:"prompt"`
	System    string     `json:"system"`
	Suffix    string     `json:"suffix"`
	Stream    *bool      `json:"stream"`
	Tools     tools      `json:"tools"`
	Think     think      `json:"think"`
	Truncate  *bool      `json:"truncate"`
	KeepAlive *keepAlive `json:"keep_alive"`
	Options   struct {
		NumPredict *int `json:"num_predict"`
		NumCtx     int  `json:"num_ctx"`
	} `json:"options"`
}

// think is true, false, or how much: low, medium, high.
type think bool

func (t *think) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case "false", "null":
	case "true", `"low"`, `"medium"`, `"high"`, `"max"`:
		*t = true
	default:
		return fmt.Errorf("invalid think value: %s (must be \"high\", \"medium\", \"low\", \"max\", true, or false)", b)
	}
	return nil
}

// keepAlive is a duration, or a number of seconds; negative means for ever.
type keepAlive time.Duration

func (k *keepAlive) UnmarshalJSON(b []byte) error {
	var seconds float64
	if json.Unmarshal(b, &seconds) == nil {
		*k = keepAlive(seconds * float64(time.Second))
		return nil
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf("json: cannot unmarshal %s into keep_alive", b)
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	*k = keepAlive(d)
	return nil
}

func (q *ollamaRequest) ask() *ask {
	a := &ask{name: q.Model}
	a.Model, a.Context = q.Model, q.Options.NumCtx
	a.Stream = q.Stream == nil || *q.Stream
	a.Max = maxTokens(q.Options.NumPredict)
	a.Strict = q.Truncate != nil && !*q.Truncate
	if q.KeepAlive != nil {
		a.KeepAlive = time.Duration(*q.KeepAlive)
		if a.KeepAlive == 0 {
			a.KeepAlive = 1 // as soon as it rests
		}
	}
	return a
}

// nothing makes a body without a prompt what it means: a preload or an unload.
func (q *ollamaRequest) nothing(a *ask) {
	a.Stream = false
	a.Preload = true
	a.unload = q.KeepAlive != nil && *q.KeepAlive == 0
}

func parseOllamaChat(body []byte) (*ask, error) {
	var q ollamaRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	a := q.ask()
	if len(q.Messages) == 0 {
		q.nothing(a)
		return a, nil
	}
	a.messages = true
	a.Prompts = append(a.Prompts, promptOf("", q.Tools, q.Messages))
	a.wants(bool(q.Think), q.Tools, toolChoice{}, lastOf(q.Messages))
	return a, nil
}

func parseOllamaGenerate(body []byte) (*ask, error) {
	var q ollamaRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	a := q.ask()
	if q.Prompt == "" && q.Suffix == "" {
		q.nothing(a)
		return a, nil
	}
	parts := promptOf(q.System, tools{}, nil)
	a.Prompts = append(a.Prompts, chain(parts, "user", q.Prompt+q.Suffix, messageTokens))
	a.wants(bool(q.Think), tools{}, toolChoice{}, q.Prompt)
	return a, nil
}
