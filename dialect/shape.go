package dialect

import "bytes"

// shape is an ordinary OpenAI chunk without its text. The next one is mostly
// the same but for the text, and then three comparisons are enough.
type shape struct {
	head   []byte // up to the text, its opening quote included
	after  []byte // from the closing quote on
	fixed  int    // of after, up to a finish_reason of null
	misses int    // in a row
}

// maxShape bounds what a stream keeps to compare with.
const maxShape = 1 << 10

// ordinary reports whether a chunk is.
func (s *shape) ordinary(data []byte) bool {
	if len(s.head) > 0 && bytes.HasPrefix(data, s.head) {
		text := data[len(s.head):]
		// A quote that no backslash precedes ends the text.
		if i := bytes.IndexByte(text, '"'); i >= 0 && (i == 0 || text[i-1] != '\\') {
			after := text[i:]
			if bytes.Equal(after, s.after) {
				s.misses = 0
				return true
			}
			if bytes.HasPrefix(after, s.after[:s.fixed]) && quiet(after[s.fixed:], true) {
				s.misses = 0
				return true
			}
		}
	}
	if !quiet(data, false) {
		return false
	}
	// Where no two are alike, learning would only cost.
	if s.misses++; s.misses < 8 || s.misses%64 == 0 {
		s.learn(data)
	}
	return true
}

// learn takes the shape of a chunk that is ordinary.
func (s *shape) learn(data []byte) {
	const begin, null = `content":"`, `"finish_reason":null` // reasoning_content begins so, too
	s.head = s.head[:0]
	i := bytes.Index(data, []byte(begin)) + len(begin)
	if i < len(begin) || len(data) > maxShape || !bytes.Contains(data[:i], []byte(`"choices":`)) {
		return
	}
	end := bytes.IndexByte(data[i:], '"')
	if end < 0 || end > 0 && data[i+end-1] == '\\' {
		return
	}
	// Both in one piece of memory, which the next shape can use again.
	kept := append(append(s.head, data[:i]...), data[i+end:]...)
	s.head, s.after, s.fixed = kept[:i], kept[i:], 0
	if j := bytes.Index(s.after, []byte(null)); j >= 0 {
		s.fixed = j + len(null)
	}
}

// quiet looks at every name of a chunk, at any depth, for one that would make it
// more than content. The name "choices" must be there, or known to be before.
func quiet(data []byte, choices bool) bool {
	for {
		i := bytes.IndexByte(data, ':')
		if i < 0 {
			return choices
		}
		if i > 6 && data[i-1] == '"' {
			switch name := data[:i-1]; name[len(name)-1] {
			case 's':
				choices = choices || bytes.HasSuffix(name, []byte(`"choices`))
			case 'n':
				if bytes.HasSuffix(name, []byte(`"finish_reason`)) && !isNull(data[i+1:]) {
					return false
				}
			case 'e':
				if bytes.HasSuffix(name, []byte(`"usage`)) && !isNull(data[i+1:]) {
					return false
				}
			case 'r':
				if bytes.HasSuffix(name, []byte(`"error`)) && !isNull(data[i+1:]) {
					return false
				}
			}
		} else if i > 0 && isSpace(data[i-1]) && endsName(data[:i]) {
			return false // a name with space before its colon: leave it to the parser
		}
		data = data[i+1:]
	}
}

// endsName reports whether a quote that may end a name is all but space away.
func endsName(b []byte) bool {
	b = bytes.TrimRight(b, " \t\r\n")
	return len(b) > 1 && b[len(b)-1] == '"' && b[len(b)-2] != '\\'
}

func isNull(b []byte) bool {
	for len(b) > 0 && isSpace(b[0]) {
		b = b[1:]
	}
	return len(b) > 0 && b[0] == 'n'
}
