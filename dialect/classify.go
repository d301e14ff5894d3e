package dialect

import (
	"bytes"
	"strings"
)

// ordinary reports whether an event after the first content is more of the same
// for certain: content, not the end, no error, no usage. It only searches. A text
// that speaks of "finish_reason" or [DONE] cannot deceive it: inside a JSON string
// quotes are escaped, so a quote before a colon or at a line's end ends a name.
// What it does not know for certain is parsed.
func (s *Stream) ordinary(name, data []byte) bool {
	switch s.format {
	case OpenAI:
		return !s.ask.ReturnProgress && s.chunk.ordinary(data)
	case Responses:
		return bytes.HasSuffix(name, []byte(".delta"))
	case Anthropic:
		return string(name) == "content_block_delta"
	case Ollama:
		return bytes.HasSuffix(data, []byte(`"done":false}`))
	default:
		i := bytes.Index(data, []byte(`stop":false`))
		return !s.ask.ReturnProgress && i > 0 && data[i-1] == '"'
	}
}

// study parses an event.
func (s *Stream) study(name, data []byte) EventKind {
	if isDone(data) {
		if s.format != OpenAI {
			return EventRole // no end by R8 there
		}
		s.over = true
		return EventTerminal
	}
	var e said
	if !e.read(data) {
		// Not JSON, and nobody's error format: it is the client's to judge.
		if string(name) == "error" {
			return EventError
		}
		return s.content()
	}
	if len(name) == 0 {
		name = e.typ
	}
	if s.id == "" && len(e.id) > 0 {
		s.id = string(e.id)
	}
	s.count(&e)
	if string(name) == "error" || e.isError() {
		return EventError
	}
	if s.framing == framingWhole {
		if e.broken(s.format, s.ep) {
			return EventError
		}
		return s.terminal(&e)
	}
	switch s.format {
	case OpenAI:
		return s.openAI(&e)
	case Responses:
		return s.response(string(name), &e)
	case Anthropic:
		return s.message(string(name), &e)
	case Ollama:
		return s.line(&e)
	default:
		return s.completion(&e)
	}
}

// content takes note of an event with content.
func (s *Stream) content() EventKind {
	s.begun = true
	s.events++
	return EventContent
}

// terminal takes note of the end. What content is in it counts.
func (s *Stream) terminal(e *said) EventKind {
	s.over = true
	if e.content {
		s.content()
	}
	return EventTerminal
}

// openAI judges a chunk of OpenAI's chat or completions.
func (s *Stream) openAI(e *said) EventKind {
	for _, index := range e.finished {
		s.finish(index)
	}
	switch {
	case len(e.finished) > 0 && s.ends >= s.ask.Choices:
		return s.terminal(e)
	case e.content:
		return s.content()
	case e.progress:
		return EventProgress
	case e.hasChoices: // a role, the usage, a choice that ends before others
		return EventRole
	default:
		return s.content()
	}
}

// maxChoices bounds the indexes of choices that are kept account of.
const maxChoices = 4096

// finish takes note that a choice has a finish_reason.
func (s *Stream) finish(index int) {
	if index < 0 || index >= maxChoices {
		return
	}
	for len(s.finished) <= index {
		s.finished = append(s.finished, false)
	}
	if !s.finished[index] {
		s.finished[index] = true
		s.ends++
	}
}

// response judges an event of the Responses API.
func (s *Stream) response(name string, e *said) EventKind {
	switch name {
	case "response.completed", "response.incomplete":
		s.over = true
		return EventTerminal
	case "response.failed":
		// It ends the answer, but before any content it is a failed attempt.
		s.over = true
		if !s.begun {
			return EventError
		}
		return EventTerminal
	case "response.created", "response.in_progress", "response.queued":
		return EventRole
	}
	switch {
	case !e.content && (strings.HasSuffix(name, ".delta") || strings.HasSuffix(name, ".added")):
		return EventRole
	case s.begun && strings.HasSuffix(name, ".done"):
		return EventContent // again what the deltas said: no token of its own
	default:
		return s.content()
	}
}

// message judges an event of Anthropic's Messages.
func (s *Stream) message(name string, e *said) EventKind {
	switch name {
	case "message_stop":
		s.over = true
		return EventTerminal
	case "message_start", "ping", "content_block_stop", "message_delta":
		return EventRole
	case "content_block_start", "content_block_delta":
		if !e.content {
			return EventRole
		}
	}
	return s.content()
}

// line judges a line of Ollama's.
func (s *Stream) line(e *said) EventKind {
	switch {
	case e.done == saidTrue:
		return s.terminal(e)
	case e.content || e.done == unsaid:
		return s.content()
	default:
		return EventRole
	}
}

// completion judges an event of llama.cpp's /completion and /infill.
func (s *Stream) completion(e *said) EventKind {
	if e.stop == saidTrue || e.stop == unsaid && s.ask.reshaped {
		s.finish(e.index)
		if s.ends >= s.ask.Choices {
			return s.terminal(e)
		}
	}
	switch {
	case e.content:
		return s.content()
	case e.progress:
		return EventProgress
	case e.stop != unsaid:
		return EventRole
	default:
		return s.content()
	}
}

// count takes note of what an event says about usage. Counts in usage are totals
// so far, so the largest is the last. Timings are those of one choice, and only
// the last ones of each choice matter.
func (s *Stream) count(e *said) {
	t, u := &s.counts.tokens, &e.tokens
	t.PromptTokens = max(t.PromptTokens, u.PromptTokens)
	t.CachedTokens = max(t.CachedTokens, u.CachedTokens)
	if s.format != Anthropic || string(e.typ) != "message_start" { // there it is a guess
		t.OutputTokens = max(t.OutputTokens, u.OutputTokens)
	}
	t.CacheSaid = t.CacheSaid || u.CacheSaid
	t.Load = max(t.Load, u.Load)
	t.Prompt = max(t.Prompt, u.Prompt)
	t.Decode = max(t.Decode, u.Decode)

	if len(e.finished) > 0 || e.hasChoices && e.choices == 0 || e.stop == saidTrue {
		t, u := &s.counts.timings, &e.timings
		t.PromptTokens += u.PromptTokens
		t.CachedTokens += u.CachedTokens
		t.CacheSaid = t.CacheSaid || u.CacheSaid
		t.OutputTokens += u.OutputTokens
		t.Prompt += u.Prompt
		t.Decode += u.Decode
	}
}
