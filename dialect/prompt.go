package dialect

import "bytes"

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

// promptList reads a prompt or input: a text, several texts, or token ids. An
// array with a number in it is one prompt, as the engines see it.
func (p *parser) promptList() error {
	before, count, numbers := p.prompt, 0, false
	err := error(nil)
	if p.peek() == '[' {
		err = p.array(func() error {
			count++
			numbers = numbers || isNumber(p.peek())
			return p.read(&p.prompt)
		})
	} else {
		count = 1
		err = p.read(&p.prompt)
	}
	if numbers {
		count = 1
	}
	p.prompts = max(p.prompts, count)
	p.hasPrompt = p.hasPrompt || p.prompt != before
	return err
}

// schema counts tool definitions as they stand: templates print their JSON.
func (p *parser) schema() error {
	raw, err := p.value()
	p.prompt.bytes += len(raw)
	return err
}

// read counts everything in a value that a model will read: the strings of
// messages, content parts and tool calls, token ids, and media by the piece.
func (w *walker) read(t *tally) error {
	switch c := w.peek(); {
	case c == '"':
		return w.countText(t)
	case c == '{':
		return w.object(func(name []byte) error { return w.part(name, t) })
	case c == '[':
		return w.array(func() error { return w.read(t) })
	case isNumber(c):
		t.ids++
		return w.digits()
	default:
		return w.skip()
	}
}

// countText counts a string; a data URL is media.
func (w *walker) countText(t *tally) error {
	raw, err := w.text()
	if err != nil {
		return err
	}
	if bytes.HasPrefix(raw, []byte(`"data:`)) && bytes.Contains(raw[:min(len(raw), 128)], []byte(";base64,")) {
		t.media++
		return nil
	}
	t.bytes += len(raw) - len(`""`) - w.saved
	return nil
}

// part counts one member of a message or content part.
func (w *walker) part(name []byte, t *tally) error {
	switch string(name) {
	case "role", "type", "id", "call_id", "tool_call_id", "tool_use_id", "status", "detail", "media_type", "index", "cache_control":
		return w.label(t)
	case "signature", "encrypted_content":
		return w.skip() // not for the model's eyes
	case "image_url", "video_url", "audio_url", "images", "multimodal_data":
		return w.media(t)
	case "source", "input_audio", "file":
		if w.peek() == '{' {
			return w.source(t)
		}
	}
	return w.read(t)
}

// label reads over a word that is form, not text. In a tool's arguments, which
// look the same, it can be long: then it counts.
func (w *walker) label(t *tally) error {
	if w.peek() != '"' {
		return w.skip()
	}
	var word tally
	err := w.countText(&word)
	if word.bytes > 64 {
		t.add(word, 1)
	}
	return err
}

// media counts a picture, or the pictures of a list.
func (w *walker) media(t *tally) error {
	switch w.peek() {
	case '[':
		return w.array(func() error { return w.media(t) })
	case '"', '{':
		t.media++
	}
	return w.skip()
}

// source counts an attached document: its text if it is text, else as media.
func (w *walker) source(t *tally) error {
	var text bool
	var data tally
	err := w.object(func(name []byte) error {
		switch {
		case string(name) == "data" && w.peek() == '"':
			return w.countText(&data)
		case string(name) == "type":
			raw, err := w.value()
			text = string(raw) == `"text"`
			return err
		default:
			return w.skip()
		}
	})
	if !text {
		data = tally{media: 1}
	}
	t.add(data, 1)
	return err
}
