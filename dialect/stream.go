package dialect

import (
	"bytes"
	"strings"
)

// EventKind is what an event of a stream is to the gateway.
type EventKind uint8

// The kinds, by what they do to the commit point (R7): everything up to
// EventPart is held back until one of the others decides.
const (
	EventComment  EventKind = iota // a comment, a blank line, fields without data
	EventRole                      // says that there will be an answer, or how it is going, but has nothing of it
	EventProgress                  // of prompt processing; commits only if the client asked for it
	EventPart                      // a piece of an event too long to keep; the kind comes with its last piece
	EventContent                   // text, reasoning, a tool call: anything else
	EventTerminal                  // the end of the answer by R8, with content or without
	EventError                     // an error where an answer should be
)

// Stream reads a streamed answer: it cuts it into events, says what each is,
// whether the answer is complete and what it says about usage. It changes and
// drops nothing; events handed out, in order, are the bytes pushed.
//
// Use: Push what was read, then Next until it has no more, and so on. When the
// body has ended well, End, then Next until it has no more; then Complete tells
// whether the answer was whole. When it broke, Rest is what must not be passed on.
//
// After the first content an ordinary event is only searched for signs that it
// is not ordinary; it is parsed when there is one. A Stream is for one goroutine.
type Stream struct {
	framer
	format Format
	ep     *Endpoint
	ask    Ask

	begun    bool   // content has been seen
	over     bool   // the terminal event has been seen
	final    bool   // End was called
	events   int    // with content
	finished []bool // choices with a finish_reason, by index
	ends     int    // how many of them
	id       string
	counts   counts

	long  *skeleton // of the present event, if it is too long to keep
	chunk shape     // of the last ordinary one
}

// NewStream reads an answer with that Content-Type to a request for ep.
func NewStream(f Format, ep *Endpoint, ask Ask, contentType string) *Stream {
	s := new(Stream)
	s.Reset(f, ep, ask, contentType)
	return s
}

// Reset makes s as NewStream's is, whatever it was used for before.
func (s *Stream) Reset(f Format, ep *Endpoint, ask Ask, contentType string) {
	s.drop()
	held, head := s.held, s.chunk.head[:0]
	*s = Stream{format: f, ep: ep, ask: ask}
	s.framing = framingOf(f, contentType)
	s.ask.Choices = max(ask.Choices, 1)
	s.held, s.chunk.head = held, head
}

func framingOf(f Format, contentType string) framing {
	switch media := mediaType(contentType); {
	case isLines(media), f == Ollama: // which answers a preload with one line of plain JSON
		return framingLines
	case media == "application/json":
		return framingWhole
	default:
		return framingSSE
	}
}

// IsStream reports whether an answer of that Content-Type is a stream of
// events, whatever the request asked for.
func IsStream(contentType string) bool {
	media := mediaType(contentType)
	return media == "text/event-stream" || isLines(media)
}

func isLines(media string) bool {
	return media == "application/x-ndjson" || media == "application/ndjson" || media == "application/jsonl"
}

func mediaType(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(media))
}

// Push gives the next bytes as they came. They are used in place: they must stay
// as they are until Next has no more.
func (s *Stream) Push(p []byte) { s.push(p) }

// End says that the body has ended as it should: what is left counts as an event
// if all it lacks is the end of its last line.
func (s *Stream) End() { s.final = true }

// Next hands out the next event, framing and all. It is valid until the next
// call of Push or Next.
func (s *Stream) Next() (event []byte, kind EventKind, ok bool) {
	event, whole, ok := s.next()
	switch {
	case !ok && s.final:
		return s.last()
	case !ok:
		return nil, 0, false
	case !whole:
		if s.long == nil {
			s.long = &skeleton{sse: s.framing == framingSSE}
		}
		s.long.feed(event)
		return event, EventPart, true
	case s.long != nil:
		s.long.feed(event)
		name, data := s.long.name, s.long.json.out
		s.long = nil
		return event, s.judge(name, data), true
	default:
		name, data := s.fields(event)
		return event, s.judge(name, data), true
	}
}

// Run hands out the events that come next and are ordinary beyond doubt, all with
// content and one beside the other, as Next would one by one; nil: ask Next. Most
// of a stream whose server is ahead of us is that. It is valid as Next's event is.
func (s *Stream) Run() []byte {
	if !s.begun || len(s.held) > 0 || s.open || s.scanned > 0 || !s.atStart() {
		return nil
	}
	run, from := 0, s.in
	for {
		n := s.scanLF(from[run:])
		if n == 0 || !s.single || !bytes.HasPrefix(from[run:], dataField) || !s.ordinary(nil, from[run+len(dataField):run+n-len("\n\n")]) {
			break
		}
		run += n
		s.events++
	}
	if run == 0 {
		return nil
	}
	s.in, s.crlf = from[run:], false
	return from[:run]
}

// last hands out what is left at the end of the body, if it is whole.
func (s *Stream) last() ([]byte, EventKind, bool) {
	s.final = false
	event, whole := s.rest(), false
	var name, data []byte
	switch {
	case s.long != nil:
		name, data = s.long.name, s.long.json.out
		whole = isJSON(data)
	case s.isNote(event):
		whole = len(event) > 0
	default:
		name, data = s.fields(event)
		whole = isDone(data) || isJSON(data)
	}
	if !whole {
		return nil, 0, false
	}
	s.long, s.open = nil, false
	s.in, s.out = nil, len(s.held) > 0
	return event, s.judge(name, data), true
}

// isNote reports whether there is nothing but space or a comment.
func (s *Stream) isNote(event []byte) bool {
	event = bytes.TrimSpace(event)
	return len(event) == 0 || s.framing == framingSSE && event[0] == ':'
}

// Rest is the unfinished last event. It is dropped when the stream breaks, so
// that the error event stands alone.
func (s *Stream) Rest() []byte { return s.rest() }

// Open reports whether pieces of an unfinished event have been handed out. Then
// a blank line has to come before an error event.
func (s *Stream) Open() bool { return s.open }

// Complete reports whether the answer is whole by R8: its terminal event was
// there, or a finish_reason for every choice.
func (s *Stream) Complete() bool { return s.over }

// Usage is what the answer has said about tokens and time so far.
func (s *Stream) Usage() Usage { return s.counts.usage() }

// Tokens is the number of tokens of output: as the answer says, else one for
// each event with content.
func (s *Stream) Tokens() int {
	if n := s.counts.usage().OutputTokens; n > 0 {
		return n
	}
	return s.events
}

// ID is the answer's id, by which the Responses API refers to it.
func (s *Stream) ID() string { return s.id }

// fields gives the data of an event, and its name where it has one.
func (s *Stream) fields(event []byte) (name, data []byte) {
	if s.framing != framingSSE {
		return nil, bytes.TrimSpace(event)
	}
	if s.single && bytes.HasPrefix(event, dataField) {
		return nil, event[len(dataField) : len(event)-len("\n\n")]
	}
	rest := bytes.TrimPrefix(event, []byte("\xef\xbb\xbf")) // a BOM may begin the stream
	for lines := 0; len(rest) > 0; {
		var line []byte
		line, rest = cutLine(rest)
		switch {
		case bytes.HasPrefix(line, []byte("data:")):
			line = line[len("data:"):]
			if len(line) > 0 && line[0] == ' ' {
				line = line[1:]
			}
			switch lines++; lines {
			case 1:
				data = line
			case 2:
				data = append(append(append(make([]byte, 0, len(event)), data...), '\n'), line...)
			default:
				data = append(append(data, '\n'), line...)
			}
		case bytes.HasPrefix(line, []byte("event:")):
			name = bytes.TrimSpace(line[len("event:"):])
		case bytes.HasPrefix(line, []byte("error:")): // old llama.cpp
			name, data = []byte("error"), line[len("error:"):]
		}
	}
	return name, data
}

// dataField begins the line of an event's data.
var dataField = []byte("data: ")

// judge says what an event is and takes note of what it says.
func (s *Stream) judge(name, data []byte) EventKind {
	if len(data) == 0 {
		return EventComment
	}
	if s.begun && s.ordinary(name, data) {
		s.events++
		return EventContent
	}
	return s.study(name, data)
}

func isDone(data []byte) bool { return string(bytes.TrimSpace(data)) == "[DONE]" }

func isJSON(data []byte) bool {
	w := walker{b: data}
	return w.skip() == nil && w.end() == nil
}
