package simserver

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// pieceKind is what an output token belongs to.
type pieceKind uint8

const (
	saysText    pieceKind = iota
	saysThought           // reasoning, before all else
	callsTool             // a tool call begins; the text is its name
	callsWith             // some of its arguments, as JSON
)

// piece is one output token as it is said.
type piece struct {
	kind pieceKind
	text string
	n    int // which token of its task, from 1
}

// toolCall is the call that an answer makes instead of saying something.
type toolCall struct {
	name string
	args string // JSON
}

// thoughtsBeforeCall is how many tokens are thought before a tool is called.
const thoughtsBeforeCall = 16

// tokens is how many output tokens the call takes, with the thoughts before it.
func (t *toolCall) tokens(think bool) int {
	n := 1 + countTokens(len(t.args))
	if think {
		n += thoughtsBeforeCall
	}
	return n
}

// thoughts is how many of a task's tokens are reasoning: half of an answer.
func (a *answer) thoughts(task int) int {
	switch {
	case !a.ask.think:
		return 0
	case a.ask.call != nil:
		return thoughtsBeforeCall
	}
	return (a.tasks[task].target + 1) / 2
}

// piece is the index-th token of a task.
func (a *answer) piece(task, index int) piece {
	n := a.thoughts(task)
	call := a.ask.call
	switch {
	case index < n:
		return piece{saysThought, a.words.word(a.number, task, index, index == 0, a.garbage), index + 1}
	case call == nil:
		return piece{saysText, a.words.word(a.number, task, index, index == n, a.garbage), index + 1}
	case index == n:
		return piece{callsTool, call.name, index + 1}
	}
	from := min((index-n-1)*bytesPerToken, len(call.args))
	return piece{callsWith, call.args[from:min(from+bytesPerToken, len(call.args))], index + 1}
}

// said is all that a task has said so far, of one kind.
func (a *answer) said(task int, kind pieceKind) string {
	var b strings.Builder
	for i := range a.tasks[task].decoded {
		if p := a.piece(task, i); p.kind == kind {
			b.WriteString(p.text)
		}
	}
	return b.String()
}

func (a *answer) text(task int) string    { return a.said(task, saysText) }
func (a *answer) thought(task int) string { return a.said(task, saysThought) }

// called is the tool call that a task has begun: nil if it has none, and
// whole only if the answer was not cut at its maximum.
func (a *answer) called(task int) (call *toolCall, whole bool) {
	if a.ask.call == nil || a.tasks[task].decoded <= a.thoughts(task) {
		return nil, false
	}
	args := a.said(task, callsWith)
	return &toolCall{a.ask.call.name, args}, len(args) == len(a.ask.call.args)
}

// callID is the id of a task's tool call.
func (a *answer) callID(task int) string {
	return fmt.Sprintf("call_%08x", uint32(hashOn(uint64(a.number), a.id))+uint32(task))
}

// reason is why a task ended, in OpenAI's words.
func (a *answer) reason(task int) string {
	switch {
	case a.tasks[task].limited:
		return "length"
	case a.ask.call != nil:
		return "tool_calls"
	}
	return "stop"
}

// openThought is what llama.cpp, vLLM and most others call reasoning in OpenAI's
// chat; Ollama calls it reasoning.
const openThought = "reasoning_content"

// turns reports whether a piece begins a block of another kind than is open.
func (a *answer) turns(k pieceKind) bool {
	return a.items == 0 || min(k, callsTool) != a.saying
}

// delta appends a piece as a delta of OpenAI's chat; thought is what the engine
// names the field of its reasoning.
func (a *answer) delta(b []byte, task int, p piece, thought string) []byte {
	switch p.kind {
	case saysThought:
		b = append(append(append(b, `{"`...), thought...), `":"`...)
		return append(append(b, p.text...), `"}`...)
	case callsTool:
		b = append(append(append(b, `{"tool_calls":[{"index":0,"id":"`...), a.callID(task)...), `","type":"function","function":{"name":`...)
		return append(quoted(b, p.text), `,"arguments":""}}]}`...)
	case callsWith:
		b = append(b, `{"tool_calls":[{"index":0,"function":{"arguments":`...)
		return append(quoted(b, p.text), `}}]}`...)
	}
	return append(append(append(b, `{"content":"`...), p.text...), `"}`...)
}

// message appends the message of OpenAI's chat; empty is the content of one that
// only calls.
func (a *answer) message(b []byte, task int, thought, empty string) []byte {
	b = append(b, `{"role":"assistant","content":`...)
	call, _ := a.called(task)
	if text := a.text(task); text != "" || call == nil {
		b = quoted(b, text)
	} else {
		b = append(b, empty...)
	}
	if t := a.thought(task); t != "" {
		b = fmt.Appendf(b, `,%q:%q`, thought, t)
	}
	if call != nil {
		b = fmt.Appendf(b, `,"tool_calls":[{"id":%q,"type":"function","function":{"name":%s,"arguments":%s}}]`,
			a.callID(task), quotedString(call.name), quotedString(call.args))
	}
	return append(b, '}')
}

// tools are the tools that a client offers, in any of the formats.
type tools struct {
	raw  json.RawMessage
	list []tool
}

type tool struct {
	Name        string `json:"name"`         // Anthropic, Responses
	InputSchema schema `json:"input_schema"` // Anthropic
	Parameters  schema `json:"parameters"`   // Responses
	Function    *struct {
		Name       string `json:"name"`
		Parameters schema `json:"parameters"`
	} `json:"function"` // OpenAI, Ollama
}

// schema is what is read of a tool's JSON schema.
type schema struct {
	Required   []string                     `json:"required"`
	Properties map[string]propertyOfASchema `json:"properties"`
}

type propertyOfASchema struct {
	Type any               `json:"type"` // a name, or a list of them
	Enum []json.RawMessage `json:"enum"`
}

func (t *tools) UnmarshalJSON(b []byte) error {
	if b[0] == 'n' {
		return nil
	}
	t.raw = slices.Clone(b)
	return json.Unmarshal(b, &t.list)
}

// toolChoice says whether a tool must be called, and which.
type toolChoice struct {
	must bool
	name string
}

func (c *toolChoice) UnmarshalJSON(b []byte) error {
	var o struct {
		Type     string `json:"type"`
		Name     string `json:"name"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if json.Unmarshal(b, &o.Type) != nil {
		if err := json.Unmarshal(b, &o); err != nil {
			return err
		}
	}
	switch o.Type {
	case "required", "any", "function", "tool":
		c.must, c.name = true, o.Name+o.Function.Name
	}
	return nil
}

// What a client can write into its last message where the format has no field
// for it, or the field says only "may".
const (
	wordThink = "#think"
	wordTool  = "#tool"
)

// wants settles how the answer is to be: with reasoning where the client's own
// switch or the word asks for it, a tool call where the choice forces one or the
// word asks for it.
func (a *ask) wants(think bool, t tools, choice toolChoice, last string) {
	a.think = think || strings.Contains(last, wordThink)
	if len(t.list) == 0 || !choice.must && !strings.Contains(last, wordTool) {
		return
	}
	call := t.list[0].call()
	for i := range t.list {
		if c := t.list[i].call(); c.name == choice.name {
			call = c
			break
		}
	}
	a.call = call
	a.Output = call.tokens(a.think)
}

// lastOf is the text of the last message.
func lastOf(messages []message) string {
	if len(messages) == 0 {
		return ""
	}
	return messages[len(messages)-1].Content.text
}

// call makes the tool's call: arguments of the right types for what its schema
// requires, or for all that it names where it requires nothing.
func (t *tool) call() *toolCall {
	name, s := t.Name, t.Parameters
	if len(t.InputSchema.Properties) > 0 {
		s = t.InputSchema
	}
	if t.Function != nil {
		name, s = t.Function.Name, t.Function.Parameters
	}
	fields := s.Required
	if len(fields) == 0 {
		for f := range s.Properties {
			fields = append(fields, f)
		}
		slices.Sort(fields)
	}
	b := []byte{'{'}
	for i, f := range fields {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(quoted(b, f), ':')
		b = s.Properties[f].value(b)
	}
	return &toolCall{name, string(append(b, '}'))}
}

func (p propertyOfASchema) value(b []byte) []byte {
	if len(p.Enum) > 0 {
		return append(b, p.Enum[0]...)
	}
	kind, _ := p.Type.(string)
	if list, ok := p.Type.([]any); ok && len(list) > 0 {
		kind, _ = list[0].(string)
	}
	switch kind {
	case "integer", "number":
		return append(b, '7')
	case "boolean":
		return append(b, "true"...)
	case "array":
		return append(b, "[]"...)
	case "object":
		return append(b, "{}"...)
	case "null":
		return append(b, "null"...)
	}
	return append(b, `"the old stone bridge"`...)
}
