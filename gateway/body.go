package gateway

import (
	"errors"
	"io"
	"math/bits"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"switchyard/admission"
)

// Why a body could not be read.
var (
	errBodyTooLarge = errors.New("the body is larger than limits.max_body")
	errBodySlow     = errors.New("the body did not come within limits.read_body_timeout")
	errBodyGarbled  = errors.New("the body's framing is broken")
	errClientLeft   = errors.New("the client left before its body was complete")
	errUploadsFull  = errors.New("bodies that are still coming fill queue.max_bytes")
)

const (
	// firstPiece is the most room made before any byte has come, whatever
	// Content-Length promises: a claim must not cost memory.
	firstPiece = 256 << 10
	chunkPiece = 4 << 10 // the same where no length is promised
)

// body reads the request's body; the end of draining cuts it short.
func (q *visit) body() (body []byte, free func(), err error) {
	if q.r.ContentLength == 0 {
		q.bodyAt = time.Now()
		return nil, nil, nil
	}
	q.begun = true
	q.flight.onCut(q)
	if body, free, err = q.g.readBody(q.r); err != nil {
		return nil, nil, err
	}
	q.flight.onCut(nil)
	q.readBy(time.Time{}) // one left behind would pass for the client's departure
	q.bodyAt, q.size = time.Now(), int64(len(body))
	return body, free, nil
}

// cutShort ends the reading of the body.
func (q *visit) cutShort() { q.readBy(time.Unix(1, 0)) }

// bodyFailed is the end of a request whose body did not come as it should.
func (q *visit) bodyFailed(err error) ending {
	switch {
	case q.g.wasCut():
		return endedBy(q.g.stopping(time.Now()))
	case errors.Is(err, errBodySlow): // the server has ended the context for it
	case errors.Is(err, errClientLeft), q.r.Context().Err() != nil:
		return ending{outcome: admission.Cancelled, severed: true}
	}
	return endedBy(q.bodyDenial(err))
}

func (q *visit) bodyDenial(err error) *denial {
	l := q.v.Limits
	switch {
	case errors.Is(err, errBodyTooLarge):
		return deny(admission.ReasonBodyTooLarge, "the body is larger than the limit of %d bytes", l.MaxBody)
	case errors.Is(err, errUploadsFull):
		return deny(admission.ReasonQueueFull, "the bodies that are coming in fill the queue's %d bytes", q.v.QueueBytes)
	case errors.Is(err, errBodySlow):
		return deny(badRequest, "the body was not complete %s after the headers", l.ReadBodyTimeout)
	}
	return deny(badRequest, "the body's framing is broken")
}

// readBody reads the whole body within limits; ServeHTTP has set the read
// deadline. What it holds while the body is
// still coming counts towards queue.max_bytes. free gives the memory back; it
// is nil where there is nothing to give.
func (g *Gateway) readBody(r *http.Request) (body []byte, free func(), err error) {
	s := g.settings()
	if r.ContentLength > s.Limits.MaxBody {
		return nil, nil, errBodyTooLarge
	}
	if r.ContentLength == 0 {
		return nil, nil, nil
	}
	u := upload{g: g, max: s.Limits.MaxBody, held: s.QueueBytes, length: r.ContentLength}
	err = u.read(r.Body)
	g.uploading.Add(-u.counted)
	if err != nil {
		u.free()
		return nil, nil, bodyError(err)
	}
	body = u.buf
	if len(body) >= pooledFrom {
		free = func() { giveBack(body) }
	}
	return body, free, nil
}

// upload is a body that is still coming.
type upload struct {
	g       *Gateway
	max     int64 // limits.max_body
	held    int64 // queue.max_bytes
	length  int64 // promised; -1: none
	buf     []byte
	counted int64 // of buf, in g.uploading
}

func (u *upload) read(from io.Reader) error {
	first := int64(chunkPiece)
	if u.length > 0 {
		first = min(u.length, firstPiece)
	}
	if err := u.grow(int(first)); err != nil {
		return err
	}
	for {
		if len(u.buf) == cap(u.buf) {
			if err := u.grow(2 * len(u.buf)); err != nil {
				return err
			}
		}
		n, err := from.Read(u.buf[len(u.buf):cap(u.buf)])
		u.buf = u.buf[:len(u.buf)+n]
		switch {
		case int64(len(u.buf)) > u.max:
			return errBodyTooLarge
		case int64(len(u.buf)) == u.length, err == io.EOF && u.length < 0:
			return nil
		case err == io.EOF:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		}
	}
}

// grow makes room for size bytes, but for no more than may come.
func (u *upload) grow(size int) error {
	if u.length > 0 {
		size = min(size, int(u.length))
	}
	size = min(size, int(u.max)+1)
	add := int64(size) - u.counted
	u.counted += add
	if u.g.uploading.Add(add) > u.held {
		return errUploadsFull
	}
	bigger := append(borrow(size), u.buf...)
	u.free()
	u.buf = bigger
	return nil
}

func (u *upload) free() {
	giveBack(u.buf)
	u.buf = nil
}

// bodyError says why a read failed.
func bodyError(err error) error {
	var network net.Error
	switch {
	case errors.Is(err, errBodyTooLarge), errors.Is(err, errUploadsFull):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return errBodySlow
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &network):
		return errClientLeft
	}
	return errBodyGarbled
}

// Bodies from pooledFrom bytes on come from pools, one for each power of two,
// up to pooledTo: making and clearing that much for every request costs more
// than all else that is done to it.
const (
	pooledFrom = 16 << 10
	pooledTo   = 4 << 20
)

var bodyPools [23]sync.Pool // of *[]byte, by the power of two

// borrow returns an empty slice with room for at least size bytes.
func borrow(size int) []byte {
	if size < pooledFrom || size > pooledTo {
		return make([]byte, 0, size)
	}
	power := bits.Len(uint(size - 1))
	if b, _ := bodyPools[power].Get().(*[]byte); b != nil {
		return (*b)[:0]
	}
	return make([]byte, 0, 1<<power)
}

// giveBack returns what borrow gave. Nobody may use it any more.
func giveBack(b []byte) {
	c := cap(b)
	if c < pooledFrom || c > pooledTo || c&(c-1) != 0 {
		return
	}
	empty := b[:0]
	bodyPools[bits.Len(uint(c-1))].Put(&empty)
}

// What is read of a body that nobody wants.
const (
	skipBytes   = 64 << 10               // before a refusal, to keep the connection
	skipTime    = 100 * time.Millisecond // what is on its way will have come by then
	lingerBytes = 8 << 20                // after it, so that the client gets to read it
	lingerTime  = 2 * time.Second
)

// skipBody reads past a small body that has come already, as most have. It
// reports whether the connection is clear for the next request.
func (q *visit) skipBody() bool {
	if q.begun || q.r.ContentLength < 0 || q.r.ContentLength > skipBytes || q.r.Header.Get("Expect") != "" {
		return false
	}
	q.readBy(time.Now().Add(skipTime))
	n, err := io.Copy(io.Discard, q.r.Body)
	if err != nil || n != q.r.ContentLength {
		return false
	}
	q.readBy(time.Time{})
	return true
}

// linger reads on for a little after a refusal, towards the body's end: a
// connection that is closed with bytes unread is reset, and the answer lost
// with it.
func (q *visit) linger() {
	if !q.unread || q.r.Header.Get("Expect") != "" {
		return
	}
	q.readBy(time.Now().Add(lingerTime))
	io.CopyN(io.Discard, q.r.Body, lingerBytes) // however it ends, the connection closes
}

// readBy sets the read deadline of the client's connection; zero: none. Where
// that cannot be (a test's recorder) bodies are there at once.
func (q *visit) readBy(t time.Time) { q.conn.SetReadDeadline(t) }

// writable gives the next write to the client write_timeout. A deadline is the
// connection's and outlives its request, so whoever writes sets his own first.
func (q *visit) writable() { q.conn.SetWriteDeadline(time.Now().Add(q.v.Limits.WriteTimeout)) }
