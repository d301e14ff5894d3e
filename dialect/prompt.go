package dialect

// tally is how much there is for a model to read.
type tally struct {
	bytes int // of text, escapes resolved
	ids   int // token ids given as numbers
	media int // images, sounds, files
}

func (t *tally) add(o tally, times int) {
	t.bytes += o.bytes * times
	t.ids += o.ids * times
	t.media += o.media * times
}

// weight is all of it in bytes of text: a token is four of them.
func (t *tally) weight() int { return t.bytes + 4*(t.ids+t.media*MediaTokens) }

// promptList reads a prompt or input: a text, several texts, items, or token
// ids. An array with a number in it is one prompt, as the engines see it.
func (p *parser) promptList() error {
	before, count, numbers := p.prompt, 0, false
	err := error(nil)
	if p.peek() == '[' {
		err = p.array(func() error {
			count++
			if isNumber(p.peek()) {
				numbers = true
				return p.id(count)
			}
			return p.turn()
		})
	} else {
		count = 1
		err = p.turn()
	}
	if numbers {
		count = 1
	}
	p.prompts = max(p.prompts, count)
	p.hasPrompt = p.hasPrompt || p.prompt != before
	return err
}

// messageList reads the messages of a conversation.
func (p *parser) messageList() error {
	return p.array(func() error {
		p.messages++
		return p.turn()
	})
}

// pictureList reads pictures that belong to a prompt.
func (p *parser) pictureList() error {
	p.begin()
	err := p.media()
	p.finish()
	return err
}

// asked reads what a rerank asks of each document.
func (p *parser) asked() error {
	before := p.prompt
	err := p.turn()
	p.query.add(p.prompt, 1)
	p.query.add(before, -1)
	p.prompt = before
	return err
}

// schema reads tool definitions. They count as they stand: templates print
// their JSON.
func (p *parser) schema() error {
	p.peek()
	before, start := p.prompt.bytes, p.i
	v, err := p.detail()
	p.prompt = p.began
	if v != 0 {
		p.prompt.bytes = before + p.i - start
		p.add(v)
	}
	return err
}

// turn reads one message, item or text of a prompt, or whatever stands in its
// place, and all in it that a model will read: the strings of messages, content
// parts and tool calls, token ids, and media by the piece.
func (p *parser) turn() error {
	p.begin()
	err := p.piece()
	p.finish()
	return err
}

// piece reads a message or a part of its content: texts and token ids enter the
// chain where they stand, all else goes into the label.
func (p *parser) piece() error {
	switch c := p.peek(); {
	case c == '"':
		return p.say()
	case c == '{':
		return p.object(p.member)
	case c == '[':
		n, outer := 0, p.label
		err := p.array(func() error {
			n++
			if isNumber(p.peek()) {
				return p.id(n)
			}
			p.label = 0
			err := p.piece()
			if p.label != 0 { // what belongs together stays together
				outer += mix(uint64(n), p.label)
			}
			return err
		})
		p.label = outer
		return err
	case isNumber(c):
		return p.id(1)
	default:
		return p.skip()
	}
}

// member reads one member of a message or content part.
func (p *parser) member(name []byte) error {
	switch string(name) {
	case "content", "text", "output", "prompt_string":
		return p.piece()
	case "type", "id", "call_id", "tool_call_id", "tool_use_id", "status", "detail", "media_type", "index", "cache_control":
		_, err := p.form()
		return err
	}
	v, err := p.trait(name)
	p.label += v
	return err
}

// detail reads a value that belongs to a message but is no text of its own: the
// arguments of a call, a schema. It gives its hash, 0 for what is as good as
// absent.
func (p *parser) detail() (v uint64, err error) {
	switch c := p.peek(); {
	case c == '"':
		if p.isData() {
			return 0, p.picture()
		}
		v, n, err := p.digest()
		p.prompt.bytes += n
		return v, err
	case c == '{':
		err = p.object(func(name []byte) error {
			m, err := p.trait(name)
			v += m // in whatever order they stand
			return err
		})
	case c == '[':
		err = p.array(func() error {
			e, err := p.detail()
			v = mix(v+1, e)
			return err
		})
	case isNumber(c):
		p.prompt.ids++
		start := p.i
		err = p.digits()
		v = p.hash(p.b[start:p.i])
	case c == 't':
		return seedTrue, p.skip()
	case c == 'f':
		return seedFalse, p.skip()
	default:
		err = p.skip()
	}
	return v, err
}

// trait reads one member of a detail, or a member of a message that is one.
func (p *parser) trait(name []byte) (v uint64, err error) {
	switch string(name) {
	case "role", "type", "id", "call_id", "tool_call_id", "tool_use_id", "status", "detail", "media_type", "index":
		v, err = p.form()
	case "signature", "encrypted_content", "cache_control": // not for the model's eyes
		return 0, p.skip()
	case "image_url", "video_url", "audio_url", "images", "multimodal_data":
		return 0, p.media()
	case "source", "input_audio", "file":
		if p.peek() == '{' {
			return 0, p.source()
		}
		v, err = p.detail()
	default:
		v, err = p.detail()
	}
	if v == 0 || err != nil {
		return 0, err
	}
	return mix(p.hash(name), v), nil
}

// form reads a word that is form, not text. In a tool's arguments, which look
// the same, it can be long: then it counts.
func (p *parser) form() (uint64, error) {
	if p.peek() != '"' {
		return 0, p.skip()
	}
	v, n, err := p.digest()
	if n > 64 {
		p.prompt.bytes += n
	}
	return v, err
}

// media reads a picture, or the pictures of a list.
func (p *parser) media() error {
	switch p.peek() {
	case '"':
		return p.picture()
	case '[':
		return p.array(p.media)
	case '{':
		pictures := p.prompt.media
		err := p.object(func(name []byte) error {
			if string(name) == "url" && p.peek() == '"' {
				return p.picture()
			}
			return p.skip()
		})
		p.prompt.media = pictures + 1
		return err
	}
	return p.skip()
}

// source reads an attached document: text if it says that it is, else media.
func (p *parser) source() error {
	text, at := false, 0
	p.peek()
	start := p.i
	err := p.object(func(name []byte) error {
		raw, err := p.value()
		if err != nil || raw[0] != '"' {
			return err
		}
		switch string(name) {
		case "data", "url", "file_data", "file_id":
			at = p.i - len(raw)
		case "type":
			text = string(raw) == `"text"`
		}
		return nil
	})
	if err != nil || at == 0 {
		p.prompt.media++
		p.label += p.hash(p.b[start:p.i])
		return err
	}
	end := p.i // known to be JSON by now, so that reading a part again cannot fail
	p.i = at
	if text {
		err = p.spell(p.feed)
	} else {
		err = p.picture()
	}
	p.i = end
	return err
}
