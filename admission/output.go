package admission

// outputKey is whose answers were learned from; without a key it is everybody's.
type outputKey struct{ key, model string }

// maxOutputKeys bounds how many pairs of key and model are remembered apart;
// further ones share their model's.
const maxOutputKeys = 4096

// unknownOutput is assumed while nothing has been learned and the request
// states no maximum, in tokens.
const unknownOutput = 256

// enoughLengths is how many of a key's own answers are asked for before they
// are preferred to everybody's.
const enoughLengths = 8

// lengthsOf is what is known of the lengths of a key's answers; nil: nothing.
func (c *core) lengthsOf(key, model string) *lengths {
	own, all := c.output[outputKey{key, model}], c.output[outputKey{model: model}]
	if own != nil && (own.n >= enoughLengths || all == nil) {
		return own
	}
	return all
}

// expectedOutput predicts an answer's length, capped by the request's own maximum.
func (c *core) expectedOutput(t *Ticket, model string) int {
	n := unknownOutput
	if l := c.lengthsOf(t.key, model); l != nil {
		n = int(l.mean(t.ask.MaxTokens) + 0.5)
	}
	if t.ask.MaxTokens > 0 {
		n = min(n, t.ask.MaxTokens)
	}
	return max(n, 1)
}

func (c *core) learnOutput(t *Ticket, model string, tokens int) {
	for _, key := range [...]outputKey{{t.key, model}, {model: model}} {
		l := c.output[key]
		if l == nil {
			if len(c.output) >= maxOutputKeys {
				continue
			}
			l = &lengths{}
			c.output[key] = l
		}
		l.add(tokens)
	}
}
