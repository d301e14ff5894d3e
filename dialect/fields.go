package dialect

import "fmt"

// field reads the value of one top-level name of an inference request.
func (p *parser) field(name []byte) (err error) {
	a := &p.ask
	switch string(name) {
	case "model":
		return p.model()
	case "stream":
		return p.stream()
	case "n", "n_cmpl":
		return p.completions(name, &p.n)
	case "best_of":
		return p.completions(name, &p.bestOf)
	case "max_completion_tokens":
		return p.limit(0) // by rank: the name engines prefer first
	case "max_output_tokens":
		return p.limit(1)
	case "max_tokens":
		return p.limit(2)
	case "n_predict":
		return p.limit(3)
	case "messages":
		return p.in(atMessages, p.messageList)
	case "prompt":
		return p.in(atPrompt, p.promptList)
	case "input":
		return p.in(atInput, p.promptList)
	case "content":
		return p.promptList()
	case "documents", "texts":
		return p.array(func() error {
			p.documents++
			return p.turn()
		})
	case "query":
		return p.asked()
	case "system":
		return p.in(atSystem, p.turn)
	case "instructions":
		return p.in(atInstructions, p.turn)
	case "suffix":
		return p.in(atSuffix, p.turn)
	case "input_prefix":
		return p.in(atPrefix, p.turn)
	case "input_suffix":
		return p.in(atInputSuffix, p.turn)
	case "input_extra":
		return p.in(atExtra, p.turn)
	case "context": // Ollama: the token ids of the turns before
		return p.in(atContext, p.turn)
	case "tools":
		return p.in(atTools, p.schema)
	case "functions":
		return p.in(atFunctions, p.schema)
	case "images":
		return p.in(atImages, p.pictureList)
	case "service_tier":
		return p.keep(&a.ServiceTier)
	case "previous_response_id":
		return p.keep(&a.PreviousResponse)
	case "store":
		a.Store, err = p.truth()
	case "return_progress":
		a.ReturnProgress, err = p.truth()
	case "keep_alive":
		return p.keepAlive()
	case "options":
		return p.object(p.option)
	case "stream_options":
		return p.object(func(name []byte) (err error) {
			if string(name) != "include_usage" {
				return p.skip()
			}
			a.IncludeUsage, err = p.truth()
			return err
		})
	case "id_slot":
		a.HasSlot = true
		return p.skip()
	case "response_fields":
		a.reshaped = true
		return p.skip()
	default:
		return p.skip()
	}
	return err
}

// helperField reads the value of one top-level name of a request that takes no
// slot: only the model matters, and its type is the engine's business.
func (p *parser) helperField(name []byte) error {
	a := &p.ask
	if string(name) != "model" && string(name) != "name" {
		return p.skip()
	}
	raw, err := p.value()
	if err != nil || raw[0] != '"' {
		return err
	}
	s := string(unquote(raw))
	// Ollama takes "name" where "model" is empty.
	if s == "" || string(name) == "name" && a.Model != "" {
		return nil
	}
	a.Model, a.ModelStart, a.ModelEnd = s, p.i-len(raw), p.i
	return nil
}

func (p *parser) model() error {
	raw, err := p.value()
	if err != nil {
		return err
	}
	switch raw[0] {
	case '"':
		p.ask.Model = string(unquote(raw))
		p.ask.ModelStart, p.ask.ModelEnd = p.i-len(raw), p.i
	case 'n': // null is as good as absent
	default:
		return &BadRequest{Message: "model must be a string", Param: "model"}
	}
	return nil
}

// stream must be a boolean: engines differ in what they make of anything else,
// and the gateway must know what the answer will be.
func (p *parser) stream() error {
	raw, err := p.value()
	if err != nil {
		return err
	}
	switch raw[0] {
	case 't', 'f':
		p.ask.Stream = raw[0] == 't'
	case 'n':
	default:
		return &BadRequest{Message: "stream must be true or false", Param: "stream"}
	}
	return nil
}

// completions reads a number of completions; the largest one given counts. Some
// engines would take it as text, too, which would hide the width of the
// request: that is refused.
func (p *parser) completions(name []byte, into *int) error {
	raw, err := p.value()
	if err != nil || raw[0] == 'n' {
		return err
	}
	n, ok := toInt(raw)
	if !ok {
		return &BadRequest{Message: fmt.Sprintf("%s must be a number", name), Param: string(name)}
	}
	*into = max(*into, n)
	return nil
}

// limit reads an output limit. Negative means none; zero still makes a token.
func (p *parser) limit(rank int) error {
	raw, err := p.value()
	if err != nil {
		return err
	}
	if n, ok := toInt(raw); ok && n >= 0 {
		p.limits[rank] = max(n, 1)
	}
	return nil
}

func (p *parser) keepAlive() error {
	raw, err := p.value()
	if err == nil {
		p.keepNothing = keepAliveZero(raw, p.ep.Kind == KindChat)
	}
	return err
}

// option reads one of Ollama's options. There zero and below mean no limit.
func (p *parser) option(name []byte) error {
	var into *int
	switch {
	case p.ep.Format != Ollama:
		return p.skip()
	case string(name) == "num_predict":
		into = &p.limits[0]
	case string(name) == "num_ctx":
		into = &p.ask.NumCtx
	default:
		return p.skip()
	}
	n, err := p.number()
	*into = max(n, 0)
	return err
}

// keep reads a short string; another type is as good as absent.
func (p *parser) keep(into *string) error {
	raw, err := p.value()
	if err == nil && raw[0] == '"' {
		*into = string(unquote(raw))
	}
	return err
}
