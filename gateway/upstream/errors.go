package upstream

import (
	"errors"
	"io"
)

// Phase says how far a request had got when it failed. It alone decides
// whether and how it may be tried again.
type Phase uint8

// The phases of a request.
const (
	NothingSent Phase = iota // no byte of the request reached the wire
	Sent                     // the request was sent, wholly or in part; no byte of an answer came
	Answered                 // at least one byte of an answer came
)

func (p Phase) String() string {
	switch p {
	case NothingSent:
		return "nothing sent"
	case Sent:
		return "sent"
	case Answered:
		return "answered"
	}
	return "unknown"
}

// Error is every failure of an exchange but the two that can be resumed or
// are asked for: os.ErrDeadlineExceeded and ErrInterrupted come as they are.
type Error struct {
	Phase Phase
	Op    string // what was tried
	Addr  string // on what address
	Err   error
}

func (e *Error) Error() string { return e.Op + " " + e.Addr + ": " + e.Err.Error() }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

var (
	// ErrInterrupted is what Head and Next return once Interrupt was called.
	ErrInterrupted = errors.New("upstream: interrupted")
	// ErrClosed is the cause when an exchange or its client is used after Close or Abort.
	ErrClosed = errors.New("already closed")

	errNoHead = errors.New("Next was called before Head gave an answer")
)

// cutShort names an end of input where more was due, so that no failure can be
// taken for the io.EOF of a clean end.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
