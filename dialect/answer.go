package dialect

import (
	"bytes"
	"net/http"
)

// Answer is what a whole, not streamed answer with a good status says.
type Answer struct {
	Usage Usage
	ID    string // by which the Responses API refers to it
	// Broken: it is no answer: empty, not JSON, an error under a good status, or
	// without the end that a stream would need (R7).
	Broken bool
}

// ReadAnswer reads a whole answer to a request for ep in one pass.
func ReadAnswer(f Format, ep *Endpoint, body []byte) Answer {
	var few [4]int
	all := said{finished: few[:0]}
	if text := bytes.TrimSpace(body); len(text) > 0 && text[0] == '[' {
		if !all.readList(text) { // llama.cpp, to several prompts at once
			return Answer{Broken: true}
		}
	} else if !all.read(text) {
		return Answer{Broken: true}
	}
	return Answer{
		Usage:  all.usage(),
		ID:     string(all.id),
		Broken: all.isError() || all.broken(f, ep),
	}
}

// AnswerUsage is the usage of a whole answer.
func AnswerUsage(f Format, ep *Endpoint, body []byte) Usage {
	return ReadAnswer(f, ep, body).Usage
}

// AnswerLooksBroken reports whether a whole answer with a good status is none.
func AnswerLooksBroken(f Format, ep *Endpoint, body []byte) bool {
	return ReadAnswer(f, ep, body).Broken
}

// ResponseID is the id of a whole answer; of a stream, see Stream.ID.
func ResponseID(body []byte) string {
	var s said
	s.read(body)
	return string(s.id)
}

// readList reads a list of answers and adds up what they say.
func (s *said) readList(text []byte) bool {
	w := walker{b: text}
	err := w.array(func() error {
		var one said
		if err := w.object(reader{&w, &one}.member); err != nil {
			return err
		}
		s.failed = s.failed || one.failed
		s.tokens.add(one.usage())
		return nil
	})
	return err == nil && w.end() == nil
}

func (u *Usage) add(o Usage) {
	u.PromptTokens += o.PromptTokens
	u.CachedTokens += o.CachedTokens
	u.CacheSaid = u.CacheSaid || o.CacheSaid
	u.OutputTokens += o.OutputTokens
	u.Load += o.Load
	u.Prompt += o.Prompt
	u.Decode += o.Decode
}

// isError reports whether it is an error in any format.
func (s *said) isError() bool {
	return s.failed || string(s.typ) == "error" || string(s.class) == "error" && !s.hasChoices
}

// broken reports whether a whole answer lacks what makes it one. Only what every
// server of a format is sure to send is asked for.
func (s *said) broken(f Format, ep *Endpoint) bool {
	if ep.Kind != KindChat && ep.Kind != KindGenerate {
		return false
	}
	switch f {
	case OpenAI:
		return s.choices == 0
	case Responses:
		return string(s.status) == "failed"
	case Ollama:
		return s.done == saidFalse
	default:
		return false
	}
}

// tooLong are words of engines that refuse a prompt for its length; the rest of
// their sentences has numbers in it.
var tooLong = [][]byte{
	[]byte("exceed_context_size_error"),              // llama.cpp's type, also inside Ollama's message
	[]byte("exceeds the available context size"),     // llama.cpp, where the type was lost on the way
	[]byte("exceeds the context length"),             // Ollama with truncate: false
	[]byte("context_length_exceeded"),                // OpenAI's code
	[]byte("maximum context length"),                 // vLLM, OpenAI, SGLang
	[]byte("longer than the maximum model length"),   // vLLM
	[]byte("longer than the model's context length"), // SGLang
	[]byte("prompt is too long"),                     // Anthropic
}

// ContextTooLong reports whether an answer says that the prompt does not fit
// into the context of this replica's model, so that another might take it.
func ContextTooLong(status int, body []byte) bool {
	if status != http.StatusBadRequest {
		return false
	}
	body = body[:min(len(body), 64<<10)]
	for _, words := range tooLong {
		if bytes.Contains(body, words) {
			return true
		}
	}
	return false
}
