package dialect

import "bytes"

// skeleton takes an event too long to keep, piece by piece, and keeps a short
// JSON text of the same shape: long strings are cut, long lists end early, deep
// values are emptied. What an event is and what usage it reports survives that:
// llama.cpp's last event repeats the whole prompt between "stop" and "timings",
// Ollama's a list of all token ids before the counts.
type skeleton struct {
	sse  bool
	name []byte // of the event: its "event" line
	json elider

	// Where in an SSE line the last piece ended.
	field  []byte // the field's name as far as it goes
	inside bool   // after the field's colon
}

// feed takes the next piece.
func (s *skeleton) feed(p []byte) {
	if !s.sse {
		s.json.feed(p)
		return
	}
	for len(p) > 0 {
		i := lineEnd(p)
		line := p
		if i >= 0 {
			line = p[:i]
		}
		s.line(line)
		if i < 0 {
			return
		}
		s.field, s.inside = s.field[:0], false
		p = p[i+1:]
	}
}

// line takes a line, or a piece of one.
func (s *skeleton) line(p []byte) {
	if !s.inside {
		i := bytes.IndexByte(p, ':')
		if i < 0 {
			i = len(p)
		}
		s.field = append(s.field, p[:min(i, 16)]...)
		if i == len(p) {
			return
		}
		s.inside = true
		p = p[i+1:]
	}
	switch string(s.field) {
	case "data":
		s.json.feed(p)
	case "event":
		if len(s.name) < 64 {
			s.name = append(s.name, bytes.TrimLeft(p, " ")...)
		}
	}
}

// Limits of what an elider keeps; together they bound what it holds.
const (
	keepString   = 256
	keepElements = 64
	keepDepth    = 24
	keepTotal    = 64 << 10
)

// elider shortens one JSON text. What it makes of a valid text is valid. Beyond
// keepTotal it keeps no more, and the result is not.
type elider struct {
	out    []byte
	depth  int
	counts [keepDepth + 1]int // commas seen, by depth

	quoted bool // in a string
	kept   int  // bytes of it
	escape int  // bytes left of an escape

	skip int // depth at which all is left out until the bracket closes; 0: nothing is
}

func (e *elider) feed(p []byte) {
	for _, c := range p {
		if e.quoted {
			e.inString(c)
		} else {
			e.between(c)
		}
	}
}

func (e *elider) inString(c byte) {
	switch {
	case e.escape > 0:
		e.escape--
		if e.escape == 0 && c == 'u' && e.kept >= 0 {
			e.escape = -4
		}
	case e.escape < 0:
		e.escape++
	case c == '"':
		e.quoted = false
		e.put(c)
		return
	default:
		if e.kept >= keepString {
			e.kept = -1 // no more of this string; never cut an escape
		}
		if c == '\\' {
			e.escape = 1
		}
	}
	if e.kept >= 0 {
		e.kept++
		e.put(c)
	}
}

func (e *elider) between(c byte) {
	switch c {
	case '"':
		e.quoted, e.kept, e.escape = true, 0, 0
		e.put(c)
	case '{', '[':
		e.put(c)
		e.depth++
		if e.depth < len(e.counts) {
			e.counts[e.depth] = 0
		} else if e.skip == 0 {
			e.skip = e.depth
		}
	case '}', ']':
		if e.skip == e.depth {
			e.skip = 0
		}
		e.depth = max(e.depth-1, 0)
		e.put(c)
	case ',':
		// The members of the event itself all stay.
		if e.skip == 0 && e.depth > 1 {
			if e.counts[e.depth]++; e.counts[e.depth] >= keepElements {
				e.skip = e.depth
			}
		}
		e.put(c)
	default:
		if !isSpace(c) {
			e.put(c)
		}
	}
}

func (e *elider) put(c byte) {
	if e.skip == 0 && len(e.out) < keepTotal {
		e.out = append(e.out, c)
	}
}
