package simserver

import (
	"encoding/json"
	"fmt"
	"strconv"

	"switchyard/simserver/model"
)

// responsesRequest is the body of /v1/responses.
type responsesRequest struct {
	Model        string     `json:"model"`
	Input        input      `json:"input"`
	Instructions string     `json:"instructions"`
	Tools        tools      `json:"tools"`
	ToolChoice   toolChoice `json:"tool_choice"`
	Reasoning    struct {
		Effort string `json:"effort"`
	} `json:"reasoning"`
	Stream             bool   `json:"stream"`
	MaxOutputTokens    *int   `json:"max_output_tokens"`
	Store              *bool  `json:"store"`
	PreviousResponseID string `json:"previous_response_id"`
}

// input is a string or a list of messages; other items count for nothing.
type input struct{ list []message }

func (i *input) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		i.list = []message{{Role: "user", Content: content{text: text}}}
		return nil
	}
	return json.Unmarshal(b, &i.list)
}

func parseResponses(body []byte) (*ask, error) {
	var q responsesRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	if len(q.Input.list) == 0 {
		return nil, errNoInput
	}
	a := &ask{name: q.Model, messages: true, store: q.Store == nil || *q.Store, previous: q.PreviousResponseID}
	a.Model, a.Stream = q.Model, q.Stream
	a.Max = maxTokens(q.MaxOutputTokens)
	a.Prompts = append(a.Prompts, promptOf(q.Instructions, q.Tools, q.Input.list))
	a.turn = q.Input.list
	a.wants(effort(q.Reasoning.Effort), q.Tools, q.ToolChoice, lastOf(q.Input.list))
	return a, nil
}

// responsesForm is the answer of /v1/responses: OpenAI's own shape. Ollama calls
// reasoning a summary, and says a tool call when it is whole.
type responsesForm struct {
	kind model.Kind
	keep *responseStore // nil: the engine keeps none
}

func (f *responsesForm) contentType(stream bool) string {
	switch {
	case stream:
		return "text/event-stream"
	case f.kind == model.LlamaCpp:
		return llamaJSON
	}
	return openAIJSON
}

func (f *responsesForm) progress(b []byte, _ *answer, _ int) []byte { return b }

// event appends an event's beginning up to its own fields.
func (f *responsesForm) event(b []byte, a *answer, kind string) []byte {
	b = append(append(append(b, "event: "...), kind...), "\ndata: {\"type\":\""...)
	b = append(append(b, kind...), `","sequence_number":`...)
	b = strconv.AppendInt(b, int64(a.events), 10)
	a.events++
	return b
}

// status is how the response has ended; the engines that are no OpenAI's say
// "completed" of one that met its maximum, too.
func (f *responsesForm) status(a *answer) string {
	if a.tasks[0].limited && f.kind != model.LlamaCpp && f.kind != model.Ollama {
		return "incomplete"
	}
	return "completed"
}

// object is the response as a whole.
func (f *responsesForm) object(b []byte, a *answer, status string) []byte {
	done := status != "in_progress"
	b = fmt.Appendf(b, `{"id":"resp_%s","object":"response","created_at":%d,"status":%q,"error":null,"incomplete_details":`, a.id, a.created, status)
	if status == "incomplete" {
		b = append(b, `{"reason":"max_output_tokens"}`...)
	} else {
		b = append(b, "null"...)
	}
	b = append(quoted(append(b, `,"model":`...), a.name), `,"output":[`...)
	if done {
		for i, kind := range f.items(a) {
			if i > 0 {
				b = append(b, ',')
			}
			b = f.item(b, a, kind, true)
		}
	}
	b = fmt.Appendf(b, `],"instructions":null,"max_output_tokens":null,"metadata":{},"parallel_tool_calls":true,"previous_response_id":null,"reasoning":null,"store":%t,"temperature":1,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_p":1,"truncation":"disabled","usage":`, a.ask.store)
	if !done {
		return append(b, "null}"...)
	}
	p, c, n := a.totals()
	return fmt.Appendf(b, `{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d},"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}}`,
		p, c, n, min(a.thoughts(0), n), p+n)
}

// items are the kinds of item that the answer consists of.
func (f *responsesForm) items(a *answer) (kinds []pieceKind) {
	if a.tasks[0].decoded > 0 && a.thoughts(0) > 0 {
		kinds = append(kinds, saysThought)
	}
	call, whole := a.called(0)
	switch {
	case call != nil && (whole || f.kind != model.Ollama):
		kinds = append(kinds, callsTool)
	case a.ask.call == nil && a.tasks[0].decoded > a.thoughts(0):
		kinds = append(kinds, saysText)
	}
	return kinds
}

// id is an item's.
func (f *responsesForm) id(b []byte, a *answer, kind pieceKind) []byte {
	return append(append(b, [...]string{"msg_", "rs_", "fc_"}[kind]...), a.id...)
}

// item is one of the output, as it begins or as it is done.
func (f *responsesForm) item(b []byte, a *answer, kind pieceKind, done bool) []byte {
	status := "in_progress"
	if done {
		status = "completed"
	}
	b = append(f.id(append(b, `{"id":"`...), a, kind), `","type":`...)
	switch kind {
	case saysThought:
		return append(f.reasoning(append(b, `"reasoning"`...), a, done), '}')
	case callsTool:
		args := ""
		if call, _ := a.called(0); done {
			args = call.args
		}
		return fmt.Appendf(b, `"function_call","status":%q,"call_id":%q,"name":%s,"arguments":%s}`,
			status, a.callID(0), quotedString(a.ask.call.name), quotedString(args))
	}
	b = fmt.Appendf(b, `"message","role":"assistant","status":%q,"content":[`, status)
	if done {
		b = f.part(b, a.text(0))
	}
	return append(b, "]}"...)
}

// reasoning is what is special of a reasoning item.
func (f *responsesForm) reasoning(b []byte, a *answer, done bool) []byte {
	summary, text := "", ""
	switch {
	case !done:
	case f.kind == model.Ollama:
		summary = fmt.Sprintf(`{"type":"summary_text","text":%q}`, a.thought(0))
	default:
		text = fmt.Sprintf(`{"type":"reasoning_text","text":%q}`, a.thought(0))
	}
	b = fmt.Appendf(b, `,"summary":[%s]`, summary)
	if f.kind != model.Ollama {
		b = fmt.Appendf(b, `,"content":[%s]`, text)
	}
	return b
}

func (f *responsesForm) part(b []byte, text string) []byte {
	return append(quoted(append(b, `{"type":"output_text","text":`...), text), `,"annotations":[],"logprobs":[]}`...)
}

// place says which item an event is about, and which part of it.
func (f *responsesForm) place(b []byte, a *answer, kind pieceKind) []byte {
	b = append(f.id(append(b, `,"item_id":"`...), a, kind), `","output_index":`...)
	b = strconv.AppendInt(b, int64(a.items-1), 10)
	switch {
	case kind == callsTool:
		return b
	case kind == saysThought && f.kind == model.Ollama:
		return append(b, `,"summary_index":0`...)
	}
	return append(b, `,"content_index":0`...)
}

func (f *responsesForm) first(b []byte, a *answer) []byte {
	for _, kind := range []string{"response.created", "response.in_progress"} {
		b = append(f.event(b, a, kind), `,"response":`...)
		b = append(f.object(b, a, "in_progress"), "}\n\n"...)
	}
	return b
}

// thoughts is the family of events of reasoning.
func (f *responsesForm) thoughts() string {
	if f.kind == model.Ollama {
		return "response.reasoning_summary_text"
	}
	return "response.reasoning_text"
}

func (f *responsesForm) piece(b []byte, a *answer, _ int, p piece) []byte {
	if p.kind >= callsTool && f.kind == model.Ollama {
		return b // held back until it is whole
	}
	if a.turns(p.kind) {
		b = f.open(f.close(b, a), a, min(p.kind, callsTool))
	}
	switch p.kind {
	case callsTool:
		return b
	case callsWith:
		b = f.place(f.event(b, a, "response.function_call_arguments.delta"), a, callsTool)
		return append(quoted(append(b, `,"delta":`...), p.text), "}\n\n"...)
	case saysThought:
		b = f.place(f.event(b, a, f.thoughts()+".delta"), a, p.kind)
	default:
		b = append(f.place(f.event(b, a, "response.output_text.delta"), a, p.kind), `,"logprobs":[]`...)
	}
	return append(append(append(b, `,"delta":"`...), p.text...), `"}`+"\n\n"...)
}

// open begins an item.
func (f *responsesForm) open(b []byte, a *answer, kind pieceKind) []byte {
	a.items++
	a.saying = kind
	b = fmt.Appendf(f.event(b, a, "response.output_item.added"), `,"output_index":%d,"item":`, a.items-1)
	b = append(f.item(b, a, kind, false), "}\n\n"...)
	if kind == saysText {
		b = append(f.place(f.event(b, a, "response.content_part.added"), a, kind), `,"part":`...)
		b = append(f.part(b, ""), "}\n\n"...)
	}
	return b
}

// close ends the item that is open, if any.
func (f *responsesForm) close(b []byte, a *answer) []byte {
	if a.items == 0 {
		return b
	}
	field := func(kind, name, text string) {
		b = f.place(f.event(b, a, kind), a, a.saying)
		b = append(append(append(b, `,"`...), name...), `":`...)
		b = append(quoted(b, text), "}\n\n"...)
	}
	switch a.saying {
	case saysThought:
		field(f.thoughts()+".done", "text", a.thought(0))
	case callsTool:
		call, _ := a.called(0)
		field("response.function_call_arguments.done", "arguments", call.args)
	default:
		text := a.text(0)
		field("response.output_text.done", "text", text)
		b = append(f.place(f.event(b, a, "response.content_part.done"), a, saysText), `,"part":`...)
		b = append(f.part(b, text), "}\n\n"...)
	}
	b = fmt.Appendf(f.event(b, a, "response.output_item.done"), `,"output_index":%d,"item":`, a.items-1)
	return append(f.item(b, a, a.saying, true), "}\n\n"...)
}

func (f *responsesForm) ended(b []byte, _ *answer, _ int) []byte { return b }

func (f *responsesForm) last(b []byte, a *answer) []byte {
	b = f.close(b, a)
	if call, whole := a.called(0); whole && f.kind == model.Ollama {
		b = f.open(b, a, callsTool)
		b = f.place(f.event(b, a, "response.function_call_arguments.delta"), a, callsTool)
		b = append(quoted(append(b, `,"delta":`...), call.args), "}\n\n"...)
		b = f.close(b, a)
	}
	b = append(f.event(b, a, "response."+f.status(a)), `,"response":`...)
	return append(append(b, f.whole(nil, a)...), "}\n\n"...)
}

func (f *responsesForm) whole(b []byte, a *answer) []byte {
	b = f.object(b, a, f.status(a))
	if f.keep != nil && a.ask.store {
		f.keep.put("resp_"+a.id, stored{
			body:  b[:len(b):len(b)],
			parts: chain(append([]model.Part(nil), a.ask.Prompts[0]...), "assistant", a.text(0), messageTokens),
		})
	}
	return b
}
