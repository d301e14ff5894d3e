package dialect

import "bytes"

// framing is how the events of a stream are told apart.
type framing uint8

const (
	framingSSE   framing = iota // an event ends with a blank line
	framingLines                // an event is a line (NDJSON)
	framingWhole                // the whole body is one event: plain JSON
)

// maxEvent is how much of an event that is not whole yet is kept. A longer one
// comes out in pieces.
const maxEvent = 256 << 10

// framer cuts a stream into events, whatever pieces it arrives in. An event
// that lies whole in a piece is handed out in place; only one that the end of a
// piece cuts is copied. Bytes are never dropped or changed: all that is handed
// out, in order, is the stream.
//
// Events of SSE end with a blank line. Lines end with LF, CR, or CRLF; a lone CR
// at the end of what has arrived may be half of a CRLF, so how the line before
// it ended decides whether there is an LF to wait for. A comment line between
// events is an event of its own: it must not wait for the next one.
type framer struct {
	framing framing
	in      []byte // pushed and not handed out; the caller's memory
	scanned int    // of in, without finding an end
	held    []byte // the start of an event that a piece's end has cut
	out     bool   // held was handed out and is free to be reused
	open    bool   // pieces of the present event have been handed out
	lf      bool   // there is no CR in in: the usual case, with a short way
	single  bool   // the last event was one line and its blank line, ended by LF

	// Where the present SSE event stands after all that was scanned.
	filled bool // the present line has characters
	note   bool // it is a comment line between events
	inside bool // the event has lines
	cr     bool // the last byte was a CR
	crlf   bool // the last line end was a CRLF, as far as that is known
	wantLF bool // the event is over but for the LF of its last CRLF
}

// push takes the next bytes of the stream. They are used, not copied, until
// next says there is no more.
func (f *framer) push(p []byte) {
	if len(f.in) > 0 {
		p = append(bytes.Clone(f.in), p...)
	}
	f.in = p
	f.lf = bytes.IndexByte(p, '\r') < 0
}

// next hands out the next event, or a piece of one too long to keep (whole
// false); the last piece comes with whole true. It is valid until the next call
// of push or next.
func (f *framer) next() (b []byte, whole, ok bool) {
	if f.out {
		f.out = false
		f.drop()
	}
	n, end := f.scan(f.in[f.scanned:])
	f.scanned += n
	if end {
		b, f.in, f.scanned = f.in[:f.scanned], f.in[f.scanned:], 0
		f.open = false
		if len(f.held) > 0 {
			f.held, f.out = append(f.held, b...), true
			b = f.held
		}
		return b, true, true
	}
	switch {
	case !f.open && len(f.held)+len(f.in) <= maxEvent:
		f.held = append(f.held, f.in...)
		f.in, f.scanned = nil, 0
		return nil, false, false
	case len(f.held) > 0:
		f.open, f.out = true, true
		return f.held, false, true
	case len(f.in) > 0:
		b, f.in, f.scanned = f.in, nil, 0
		f.open = true
		return b, false, true
	default:
		return nil, false, false
	}
}

// drop empties held. A stream at rest should not keep a large buffer.
func (f *framer) drop() {
	if cap(f.held) > 4<<10 {
		f.held = nil
	}
	f.held = f.held[:0]
}

// rest is what has arrived of an event that is not whole.
func (f *framer) rest() []byte {
	if f.out {
		return f.in
	}
	if len(f.in) > 0 {
		return append(bytes.Clone(f.held), f.in...)
	}
	return f.held
}

// scan looks for the end of the event. It gives how many bytes of p belong to
// it: all of p if the end is not there.
func (f *framer) scan(p []byte) (n int, end bool) {
	switch f.framing {
	case framingSSE:
		return f.scanSSE(p)
	case framingLines:
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			return i + 1, true
		}
	}
	return len(p), false
}

func (f *framer) scanSSE(p []byte) (n int, end bool) {
	if f.single = false; f.atStart() {
		if n := f.scanLF(p); n > 0 {
			f.crlf = false
			return n, true
		}
	}
	for i := 0; i < len(p); {
		if f.cr { // the LF of a CRLF belongs to the line before
			f.cr = false
			if f.crlf = p[i] == '\n'; f.crlf {
				i++
			}
			if f.wantLF {
				return i, f.close()
			}
			continue
		}
		j := lineEnd(p[i:])
		if j != 0 && !f.filled {
			f.filled = true
			f.note = !f.inside && p[i] == ':'
		}
		if j < 0 {
			break
		}
		i += j + 1
		blank, note := !f.filled, f.note
		f.filled, f.note = false, false
		f.cr = p[i-1] == '\r'
		if !blank && !note {
			f.inside = true
			f.crlf = f.crlf && f.cr
			continue
		}
		// The event is over; if its lines end with CRLF, after one more byte.
		if f.cr && f.crlf {
			f.wantLF = true
			continue
		}
		f.crlf = false
		return i, f.close()
	}
	return len(p), false
}

// atStart reports whether an event of SSE is about to begin and has no CR in it.
func (f *framer) atStart() bool {
	return f.framing == framingSSE && f.lf && !f.cr && !f.filled && !f.inside
}

// scanLF finds the end of an event that begins and ends in p, without CRs and
// without a comment before it; 0 if there is no such thing.
func (f *framer) scanLF(p []byte) int {
	if len(p) == 0 || p[0] == ':' || p[0] == '\n' {
		return 0
	}
	for i, lines := 0, 1; ; lines++ {
		j := bytes.IndexByte(p[i:], '\n') + 1
		i += j
		if j == 0 || i == len(p) {
			return 0
		}
		if p[i] == '\n' {
			f.single = lines == 1
			return i + 1
		}
	}
}

// close makes ready for the next event.
func (f *framer) close() bool {
	f.inside, f.wantLF = false, false
	return true
}

// lineEnd is the index of the first LF or CR, -1 if there is none.
func lineEnd(p []byte) int {
	i := bytes.IndexByte(p, '\n')
	q := p
	if i >= 0 {
		q = p[:i]
	}
	if j := bytes.IndexByte(q, '\r'); j >= 0 {
		return j
	}
	return i
}

// cutLine takes the first line off b, without its end.
func cutLine(b []byte) (line, rest []byte) {
	i := lineEnd(b)
	switch {
	case i < 0:
		return b, nil
	case b[i] == '\r' && i+1 < len(b) && b[i+1] == '\n':
		return b[:i], b[i+2:]
	default:
		return b[:i], b[i+1:]
	}
}
