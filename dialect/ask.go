package dialect

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Ask is what a body asks for, as far as the gateway needs to know.
type Ask struct {
	Model                string // empty: none was named
	ModelStart, ModelEnd int    // where the model's raw JSON value stands, quotes included; -1: nowhere

	Stream bool
	// Width is how many slots the engine will fill at once: completions asked
	// for times prompts, inputs to embed, documents to rank; at least 1.
	Width     int
	Choices   int // choices the answer will have; not Width where best_of is above n
	MaxTokens int // per choice; 0: unstated or unlimited

	PromptBytes  int // bytes of text in everything the model will read
	PromptTokens int // estimate: a token per 4 bytes, MediaTokens per image, token ids as given

	// Sum tells bodies apart, as bytes but for long texts of chats and completions,
	// whose escapes do not count. As Part's hashes it is no defence.
	Sum uint64

	// Chain is the prompt's prefix chain, for what engines keep in prompt
	// caches: chats and completions. See Part.
	Chain []Part

	ServiceTier string

	// Store is true only where the body says so. The API's own default is to
	// store, but the engines behind this gateway do not unless asked (or never
	// do), and pinning every Responses request would cost all of them their
	// retries (R17). Remember the id of every answer all the same.
	Store            bool
	PreviousResponse string

	Unload  bool // Ollama: nothing to do but to free the model's memory
	Preload bool // Ollama: nothing to do but to load the model
	NumCtx  int  // Ollama: context size asked for; 0 unstated

	HasSlot bool // llama.cpp: the client asks for a slot itself

	IncludeUsage   bool // OpenAI: a last event with the usage is wanted
	ReturnProgress bool // llama.cpp: progress events are wanted

	// reshaped: llama.cpp was told which fields to answer with, so its last
	// event need not say "stop".
	reshaped bool
}

// MediaTokens is what an image, a sound or a file in a prompt counts as. Vision
// models spend from 250 to 1,500 tokens on a picture.
const MediaTokens = 768

// maxWidth bounds Width and Choices; engines refuse far smaller ones.
const maxWidth = 1 << 20

// BadRequest is why a body cannot be taken. The message is for the client.
type BadRequest struct {
	Message string
	Param   string // the offending top-level name; empty if it is none
}

func (e *BadRequest) Error() string { return e.Message }

// names are the top-level names Parse reads. A name that differs from one of
// them by case alone is refused: Go's decoder, and so Ollama, would take it for
// that name while we and others do not.
var names = split("model stream n n_cmpl best_of max_tokens max_completion_tokens max_output_tokens n_predict " +
	"messages prompt input content query documents texts system instructions suffix input_prefix input_suffix " +
	"input_extra tools functions images context service_tier store previous_response_id keep_alive options " +
	"stream_options return_progress response_fields id_slot")

// helperNames are the ones read of a body whose path takes no slot.
var helperNames = split("model name")

func split(s string) [][]byte { return bytes.Fields([]byte(s)) }

// Parse reads what a body asks for in one pass. Its errors are *BadRequest:
// what is not one JSON object, a top-level name that repeats or nearly is one
// we read, a model, stream or count of the wrong type (R17). Every other wrong
// type passes; the engine has its own words for it.
func Parse(ep *Endpoint, body []byte) (Ask, error) {
	p := parser{ep: ep, ask: Ask{ModelStart: -1, ModelEnd: -1, Stream: ep.StreamDefault, Width: 1, Choices: 1}}
	if !ep.readsJSON() || !ep.Inference() && len(bytes.TrimSpace(body)) == 0 {
		return p.ask, nil
	}
	p.b = body
	if ep.Inference() {
		p.chained = ep.Kind == KindChat || ep.Kind == KindGenerate
		p.scratch = scratches.Get().(*scratch)
		defer scratches.Put(p.scratch)
		p.parts = p.parts[:0]
	}
	if err := p.run(); err != nil {
		return Ask{ModelStart: -1, ModelEnd: -1}, p.explain(err)
	}
	if ep.Inference() {
		p.ask.Sum = mix(p.sum, sum(body[p.summed:]))
		p.conclude()
	}
	return p.ask, nil
}

// readsJSON reports whether a body sent there is JSON that names a model.
func (e *Endpoint) readsJSON() bool {
	switch e.Kind {
	case KindList, KindHealth, KindStored:
		return false
	default:
		return e.Path != blobPath
	}
}

// parser is the state of one Parse.
type parser struct {
	walker
	chain
	ep   *Endpoint
	ask  Ask
	seen seen

	prompt    tally // what the model will read
	query     tally // what it reads again with every document
	documents int
	prompts   int // prompts or inputs; 0: none were given
	messages  int

	n, bestOf   int
	limits      [4]int // by rank, 0 unstated
	keepNothing bool   // keep_alive is zero
	hasPrompt   bool   // the prompt is there and not an empty string
}

func (p *parser) run() error {
	if p.peek() != '{' {
		if err := p.skip(); err != nil {
			return err
		}
		return &BadRequest{Message: "the body must be a JSON object"}
	}
	field := p.field
	if !p.ep.Inference() {
		field = p.helperField
	}
	err := p.object(func(name []byte) error {
		if err := p.check(name); err != nil {
			return err
		}
		return field(name)
	})
	if err != nil {
		return err
	}
	if err := p.end(); err != nil {
		return &BadRequest{Message: fmt.Sprintf("the body goes on after its JSON object ends: %v", err)}
	}
	return nil
}

// check refuses a name that was there before or that is nearly one we read.
func (p *parser) check(name []byte) error {
	if !p.seen.add(name) {
		return &BadRequest{Message: fmt.Sprintf("the name %q stands twice in the body", name), Param: string(name)}
	}
	if plain(name) {
		return nil
	}
	known := names
	if !p.ep.Inference() {
		known = helperNames
	}
	for _, k := range known {
		if bytes.EqualFold(name, k) {
			return &BadRequest{Message: fmt.Sprintf("the name %q must be written %q", name, k), Param: string(name)}
		}
	}
	return nil
}

// plain reports whether a name has no letter that folding could change into
// one of ours: then it is ours exactly or not at all.
func plain(name []byte) bool {
	for _, c := range name {
		if c >= 0x80 || 'A' <= c && c <= 'Z' {
			return false
		}
	}
	return true
}

// seen remembers names: a few in place, more (an odd or hostile body) in a map.
type seen struct {
	few  [24][]byte
	n    int
	many map[string]struct{}
}

// add reports whether the name is new.
func (s *seen) add(name []byte) bool {
	for _, old := range s.few[:s.n] {
		if bytes.Equal(old, name) {
			return false
		}
	}
	if s.n < len(s.few) {
		s.few[s.n] = name
		s.n++
		return true
	}
	if _, ok := s.many[string(name)]; ok {
		return false
	}
	if s.many == nil {
		s.many = make(map[string]struct{})
	}
	s.many[string(name)] = struct{}{}
	return true
}

// conclude works out what the fields together mean.
func (p *parser) conclude() {
	a := &p.ask
	prompts := max(p.prompts, 1)
	n, wide := 1, 1
	switch p.ep.Kind {
	case KindChat, KindGenerate:
		if p.ep.Kind == KindChat {
			prompts = 1
		}
		if p.ep.Format == OpenAI || p.ep.Format == LlamaCpp {
			n = max(p.n, 1)
			wide = max(n, p.bestOf)
		}
	case KindRerank:
		prompts = max(p.documents, 1)
	}
	a.Width = min(min(prompts, maxWidth)*wide, maxWidth)
	a.Choices = min(min(prompts, maxWidth)*n, maxWidth)
	for _, v := range p.limits {
		if a.MaxTokens == 0 {
			a.MaxTokens = v
		}
	}

	t := p.prompt
	t.add(p.query, max(p.documents, 1))
	a.PromptBytes = t.bytes
	a.PromptTokens = (t.bytes+3)/4 + t.ids + t.media*MediaTokens
	p.link()

	if p.ep.Format == Ollama {
		idle := p.ep.Kind == KindGenerate && !p.hasPrompt && t.media == 0 || p.ep.Kind == KindChat && p.messages == 0
		a.Unload = idle && p.keepNothing
		a.Preload = idle && !p.keepNothing
	}
	if p.ep.Kind == KindEmbed || p.ep.Kind == KindRerank {
		a.Stream = false
	}
}

// explain turns what went wrong into words for the client.
func (p *parser) explain(err error) error {
	if bad, ok := errors.AsType[*BadRequest](err); ok {
		return bad
	}
	if len(bytes.TrimSpace(p.b)) == 0 {
		return &BadRequest{Message: "the body is empty: a JSON object is needed"}
	}
	return &BadRequest{Message: fmt.Sprintf("the body is not valid JSON: %v", err)}
}

// ReplaceModel gives the body with another model's name in place of the one it
// has, nothing else changed; the body itself if it names none.
func ReplaceModel(body []byte, a Ask, model string) []byte {
	if a.ModelStart < 0 {
		return body
	}
	out := make([]byte, 0, len(body)+len(model)+2)
	out = append(out, body[:a.ModelStart]...)
	out, _ = jsontext.AppendQuote(out, model)
	return append(out, body[a.ModelEnd:]...)
}

// PinSlot gives the body with a llama.cpp slot to use, nothing else changed; the
// body itself where the client asks for one, or the path does not take it.
func PinSlot(ep *Endpoint, body []byte, a Ask, slot int) []byte {
	if a.HasSlot || ep.Kind != KindChat && ep.Kind != KindGenerate || ep.Format != OpenAI && ep.Format != LlamaCpp {
		return body
	}
	open := bytes.IndexByte(body, '{') + 1
	out := make([]byte, 0, len(body)+len(`"id_slot":1234,`))
	out = append(out, body[:open]...)
	out = append(out, `"id_slot":`...)
	out = strconv.AppendInt(out, int64(slot), 10)
	if rest := bytes.TrimLeft(body[open:], " \t\r\n"); rest[0] != '}' {
		out = append(out, ',')
	}
	return append(out, body[open:]...)
}

// keepAliveZero reports whether a keep_alive value means "not at all". Ollama
// takes seconds as a number or a duration as text; in a chat it counts whole
// seconds.
func keepAliveZero(raw []byte, chat bool) bool {
	if raw[0] == '"' {
		d, err := time.ParseDuration(string(unquote(raw)))
		if chat {
			d = d.Truncate(time.Second)
		}
		return err == nil && d == 0
	}
	n, ok := toInt(raw)
	return ok && n == 0
}
