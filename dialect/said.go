package dialect

import (
	"bytes"
	"strconv"
	"time"
)

// Usage is what an answer says about tokens and time; zero: it does not say.
type Usage struct {
	PromptTokens int // all of them, cached ones too
	CachedTokens int // of these, taken from the engine's prompt cache
	OutputTokens int
	Load         time.Duration // loading the model
	Prompt       time.Duration // processing the prompt
	Decode       time.Duration // making the output
	CacheSaid    bool          // CachedTokens was said, if only to be 0
}

// said is what one JSON object of an answer says: an event of a stream or a
// whole answer, in any format. The formats share most names and contradict each
// other in none, so one reader serves all; what it means is decided where the
// format is known. Slices point into the text read.
type said struct {
	failed   bool // it has an error in it
	content  bool // some text, reasoning, tool call or other thing made by the model
	progress bool // of prompt processing

	typ, class, status, id []byte // "type", "object", "status", "id"

	index      int
	hasChoices bool
	choices    int
	finished   []int // indexes of choices that have a finish_reason
	done, stop truth // Ollama's and llama.cpp's ends

	counts
}

// counts is usage as it was said, in up to two places.
type counts struct {
	tokens  Usage // "usage" and its like
	timings Usage // llama.cpp's "timings"
}

// truth is a boolean that may be absent.
type truth uint8

const (
	unsaid truth = iota
	saidFalse
	saidTrue
)

// read reads an answer's object; false if the text is not one JSON object.
func (s *said) read(text []byte) bool {
	w := walker{b: text}
	r := reader{&w, s}
	return w.peek() == '{' && r.object(r.member) == nil && w.end() == nil
}

// usage puts the two together: the times add up (only one of them has any), the
// counts of timings stand in where there is no usage.
func (c *counts) usage() Usage {
	u, t := c.tokens, c.timings
	if u.PromptTokens == 0 {
		u.PromptTokens = t.PromptTokens
	}
	if u.CachedTokens == 0 {
		u.CachedTokens = t.CachedTokens
	}
	u.CacheSaid = u.CacheSaid || t.CacheSaid
	if u.OutputTokens == 0 {
		u.OutputTokens = t.OutputTokens
	}
	u.Prompt += t.Prompt
	u.Decode += t.Decode
	return u
}

// reader reads one object into a said.
type reader struct {
	*walker
	said *said
}

// member reads one top-level member.
func (r reader) member(name []byte) (err error) {
	s := r.said
	switch string(name) {
	case "error":
		s.failed, err = r.substance()
	case "choices":
		s.hasChoices = true
		return r.array(func() error {
			s.choices++
			return r.choice()
		})
	case "usage":
		return r.object(r.usageMember)
	case "timings":
		return r.object(r.timing)
	case "prompt_progress":
		s.progress, err = r.substance()
	case "type":
		s.typ, err = r.word()
	case "object":
		s.class, err = r.word()
	case "status":
		s.status, err = r.word()
	case "id":
		s.id, err = r.word()
	case "index":
		s.index, err = r.number()
	case "done":
		s.done, err = r.ternary()
	case "stop":
		s.stop, err = r.ternary()
	case "prompt_eval_count", "tokens_evaluated":
		s.tokens.PromptTokens, err = r.number()
	case "eval_count", "tokens_predicted":
		s.tokens.OutputTokens, err = r.number()
	case "load_duration":
		s.tokens.Load, err = r.duration(1)
	case "prompt_eval_duration":
		s.tokens.Prompt, err = r.duration(1)
	case "eval_duration":
		s.tokens.Decode, err = r.duration(1)
	case "response": // Ollama: a text; Responses: what is in the making
		if r.peek() == '{' {
			return r.object(r.response)
		}
		return r.content()
	case "message", "delta", "item", "part", "content_block":
		if r.peek() == '{' {
			return r.object(r.made)
		}
		return r.content()
	case "content", "thinking", "tokens", "image", "output":
		return r.content()
	default:
		return r.skip()
	}
	return err
}

// response reads a member of the response that an event of Responses reports on.
func (r reader) response(name []byte) (err error) {
	switch string(name) {
	case "usage":
		return r.object(r.usageMember)
	case "id":
		r.said.id, err = r.word()
	default:
		return r.skip()
	}
	return err
}

// choice reads one element of "choices".
func (r reader) choice() error {
	index, finished := 0, false
	err := r.object(func(name []byte) (err error) {
		switch string(name) {
		case "index":
			index, err = r.number()
		case "finish_reason":
			finished, err = r.substance()
		case "delta", "message":
			return r.object(r.made)
		case "text":
			return r.content()
		default:
			return r.skip()
		}
		return err
	})
	if finished {
		r.said.finished = append(r.said.finished, index)
	}
	return err
}

// made reads a member of something the model makes: a delta, a message, a
// content block. Whatever has substance is content, but for what only labels it
// and the reports that some formats put inside.
func (r reader) made(name []byte) error {
	switch string(name) {
	case "usage":
		return r.object(r.usageMember)
	case "id", "role", "type", "object", "status", "model", "index", "call_id", "phase", "created_at", "stop_reason", "stop_sequence":
		return r.skip()
	default:
		return r.content()
	}
}

// content reads a value that is content if it has substance.
func (r reader) content() error {
	is, err := r.substance()
	r.said.content = r.said.content || is
	return err
}

func (r reader) usageMember(name []byte) error {
	u := &r.said.tokens
	switch string(name) {
	case "prompt_tokens_details", "input_tokens_details":
		return r.object(func(name []byte) (err error) {
			if string(name) != "cached_tokens" {
				return r.skip()
			}
			u.CacheSaid = isNumber(r.peek())
			u.CachedTokens, err = r.number()
			return err
		})
	case "prompt_tokens", "input_tokens", "completion_tokens", "output_tokens",
		"cache_read_input_tokens", "cache_creation_input_tokens":
	default:
		return r.skip()
	}
	said := isNumber(r.peek())
	n, err := r.number()
	switch string(name) {
	case "completion_tokens", "output_tokens":
		u.OutputTokens = n
	case "cache_read_input_tokens": // Anthropic counts these beside input_tokens
		u.CachedTokens, u.CacheSaid = n, said
		u.PromptTokens += n
	default:
		u.PromptTokens += n
	}
	return err
}

// timing reads a member of llama.cpp's "timings".
func (r reader) timing(name []byte) (err error) {
	t := &r.said.timings
	var n int
	switch string(name) {
	case "cache_n":
		n, err = r.number()
		t.CachedTokens, t.CacheSaid = max(n, 0), n >= 0
		t.PromptTokens += max(n, 0)
	case "prompt_n":
		n, err = r.number()
		t.PromptTokens += max(n, 0)
	case "predicted_n":
		n, err = r.number()
		t.OutputTokens = max(n, 0)
	case "prompt_ms":
		t.Prompt, err = r.duration(time.Millisecond)
	case "predicted_ms":
		t.Decode, err = r.duration(time.Millisecond)
	default:
		return r.skip()
	}
	return err
}

// substance reads a value and reports whether there is anything in it: not
// null, false, zero, "", [] or {}.
func (r reader) substance() (bool, error) {
	raw, err := r.value()
	if err != nil {
		return false, err
	}
	switch raw[0] {
	case 't':
		return true, nil
	case 'n', 'f':
		return false, nil
	case '"':
		return len(raw) > 2, nil
	case '{', '[':
		return len(bytes.TrimSpace(raw[1:len(raw)-1])) > 0, nil
	default:
		n, _ := toInt(raw)
		return n != 0, nil
	}
}

// word reads a string as it stands; another type is none.
func (r reader) word() ([]byte, error) {
	raw, err := r.value()
	if err != nil || raw[0] != '"' {
		return nil, err
	}
	return unquote(raw), nil
}

func (r reader) ternary() (truth, error) {
	raw, err := r.value()
	switch {
	case err != nil:
		return unsaid, err
	case raw[0] == 't':
		return saidTrue, nil
	default:
		return saidFalse, nil
	}
}

// duration reads a number of units; a year is as long as it gets.
func (r reader) duration(unit time.Duration) (time.Duration, error) {
	raw, err := r.value()
	if err != nil {
		return 0, err
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f < 0 {
		return 0, nil
	}
	const year = 365 * 24 * time.Hour
	return time.Duration(min(f*float64(unit), float64(year))), nil
}
