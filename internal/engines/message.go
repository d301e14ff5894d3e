package engines

import (
	"bytes"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// event is what a message came to with the bytes fed.
type event int

const (
	more        event = iota // bytes taken, nothing new
	headRead                 // the head is complete
	messageRead              // the message is complete; the next byte begins another
)

// message follows the framing of HTTP/1.1 messages, one after the other, as
// their bytes pass. It is told well-formed ones only: both ends are real
// programs, and what it cannot follow it takes for a body until the close.
type message struct {
	start      string // request or status line
	status     int    // of an answer
	header     http.Header
	data       []byte // body bytes of the last feed
	untilClose bool
	toHead     bool // set by the caller: the answer is to HEAD and has no body

	state   func(m *message, p []byte) (used int, e event)
	line    []byte // an unfinished head or chunk line
	left    int    // bytes left of the body or the chunk
	answer  bool
	chunked bool
}

// feed takes bytes up to the next event.
func (m *message) feed(p []byte, answer bool) (used int, e event) {
	m.data = nil
	m.answer = answer
	if m.state == nil {
		m.state = (*message).head
	}
	return m.state(m, p)
}

// upTo collects a piece that ends with mark.
func (m *message) upTo(p []byte, mark string) (used int, whole bool) {
	before := len(m.line)
	m.line = append(m.line, p...)
	i := bytes.Index(m.line[max(0, before-len(mark)):], []byte(mark))
	if i < 0 {
		return len(p), false
	}
	end := max(0, before-len(mark)) + i + len(mark)
	m.line = m.line[:end]
	return end - before, true
}

func (m *message) head(p []byte) (int, event) {
	used, whole := m.upTo(p, "\r\n\r\n")
	if !whole {
		return used, more
	}
	m.readHead(string(m.line))
	m.line = m.line[:0]
	none := m.answer && (m.toHead || m.status < 200 || m.status == http.StatusNoContent || m.status == http.StatusNotModified)
	switch {
	case none || !m.chunked && m.left == 0 && !m.untilClose:
		m.state, m.untilClose = nil, false
		if !m.answer {
			return used, headRead // a request without a body is its head
		}
		return used, messageRead
	case m.chunked:
		m.state = (*message).chunkLine
	default:
		m.state = (*message).body
	}
	return used, headRead
}

func (m *message) readHead(head string) {
	lines := strings.Split(strings.TrimSuffix(head, "\r\n\r\n"), "\r\n")
	m.start, m.status, m.header = lines[0], 0, http.Header{}
	for _, l := range lines[1:] {
		name, value, _ := strings.Cut(l, ":")
		m.header.Add(textproto.CanonicalMIMEHeaderKey(name), strings.TrimSpace(value))
	}
	if m.answer {
		_, rest, _ := strings.Cut(m.start, " ")
		code, _, _ := strings.Cut(rest, " ")
		m.status, _ = strconv.Atoi(code)
	}
	m.chunked = strings.EqualFold(m.header.Get("Transfer-Encoding"), "chunked")
	length, err := strconv.Atoi(m.header.Get("Content-Length"))
	m.left = length
	m.untilClose = m.answer && !m.chunked && err != nil
}

func (m *message) body(p []byte) (int, event) {
	if m.untilClose {
		m.data = p
		return len(p), more
	}
	n := min(m.left, len(p))
	m.data = p[:n]
	m.left -= n
	if m.left > 0 {
		return n, more
	}
	if m.chunked {
		m.state = (*message).chunkEnd
		return n, more
	}
	m.state = nil
	return n, messageRead
}

func (m *message) chunkLine(p []byte) (int, event) {
	used, whole := m.upTo(p, "\r\n")
	if !whole {
		return used, more
	}
	size, _, _ := strings.Cut(strings.TrimSpace(string(m.line)), ";")
	n, _ := strconv.ParseInt(size, 16, 32)
	m.line = m.line[:0]
	m.left = int(n)
	m.state = (*message).body
	if n == 0 {
		m.state = (*message).trailer
	}
	return used, more
}

func (m *message) chunkEnd(p []byte) (int, event) {
	used, whole := m.upTo(p, "\r\n")
	if whole {
		m.line = m.line[:0]
		m.state = (*message).chunkLine
	}
	return used, more
}

func (m *message) trailer(p []byte) (int, event) {
	used, whole := m.upTo(p, "\r\n")
	if !whole {
		return used, more
	}
	last := len(m.line) == len("\r\n")
	m.line = m.line[:0]
	if !last {
		return used, more
	}
	m.state = nil
	return used, messageRead
}
