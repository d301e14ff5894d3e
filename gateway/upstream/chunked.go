package upstream

import (
	"errors"
	"fmt"
)

const (
	maxChunkLine = 4 << 10  // a chunk's size and its extensions
	maxTrailer   = 64 << 10 // all trailers together
)

// chunked takes the chunked framing off a body, however it is cut into reads.
type chunked struct {
	state chunkState
	left  uint64 // of the chunk's data
	line  int    // bytes of the size line, or of the trailers, so far
}

type chunkState uint8

const (
	chunkSize    chunkState = iota // before or in the size's digits
	chunkBlank                     // in blanks behind the digits
	chunkExt                       // in the extensions
	chunkSizeLF                    // the LF of the size line
	chunkData                      // in the data
	chunkDataCR                    // the CR behind the data
	chunkDataLF                    // the LF behind the data
	trailerStart                   // at the start of a trailer line
	trailerLine                    // in a trailer line
	trailerLF                      // the LF of a trailer line
	trailerEndLF                   // the last LF of the body
	chunkedDone
)

var errChunk = errors.New("malformed chunked body")

// decode takes the next bytes of the body. It gives the data in them, moved
// together inside b so that one piece of input is one piece of output, and how
// many bytes of b belong to the body: all of them until state is chunkedDone.
// Data before an error is given with the error.
func (d *chunked) decode(b []byte) (data []byte, n int, err error) {
	from, to := 0, 0 // the data gathered so far is b[from:to]
	for n < len(b) && d.state != chunkedDone && err == nil {
		if d.state != chunkData {
			if m := d.sized(b[n:]); m > 0 {
				n += m
				continue
			}
			err = d.step(b[n])
			n++
			continue
		}
		m := int(min(d.left, uint64(len(b)-n)))
		if to == 0 {
			from, to = n, n
		}
		if to < n {
			copy(b[to:], b[n:n+m])
		}
		to, n = to+m, n+m
		if d.left -= uint64(m); d.left == 0 {
			d.state = chunkDataCR
		}
	}
	return b[from:to:to], n, err
}

// sized takes what usually lies before the data of a chunk, the line end behind
// the last one's and a line of nothing but a size, in a look. 0: it is not that,
// or not whole, and step has to take it byte by byte.
func (d *chunked) sized(b []byte) (n int) {
	switch {
	case d.state == chunkDataCR && len(b) > 2 && b[0] == '\r' && b[1] == '\n':
		n = 2
	case d.state != chunkSize || d.line > 0:
		return 0
	}
	const most = 8
	var size uint64
	for end := min(len(b), n+most); n < end; n++ {
		digit := hexDigits[b[n]]
		if digit == noDigit {
			break
		}
		size = size<<4 | uint64(digit)
	}
	if size == 0 || n+1 >= len(b) || b[n] != '\r' || b[n+1] != '\n' {
		return 0
	}
	d.left, d.state = size, chunkData
	return n + 2
}

const noDigit = 0xff

// hexDigits are the values of the characters that are hexadecimal digits.
var hexDigits = func() (values [256]byte) {
	for i := range values {
		values[i] = noDigit
	}
	for i := range byte(16) {
		values["0123456789abcdef"[i]], values["0123456789ABCDEF"[i]] = i, i
	}
	return values
}()

// step takes one byte that is not data.
func (d *chunked) step(c byte) error {
	switch d.state {
	case chunkSize:
		return d.size(c)
	case chunkBlank, chunkExt:
		return d.extension(c)
	case chunkSizeLF:
		d.line = 0
		if d.left == 0 {
			return d.expect(c, '\n', trailerStart)
		}
		return d.expect(c, '\n', chunkData)
	case chunkDataCR:
		return d.expect(c, '\r', chunkDataLF)
	case chunkDataLF:
		return d.expect(c, '\n', chunkSize)
	case trailerStart, trailerLine:
		return d.trailer(c)
	case trailerLF:
		return d.expect(c, '\n', trailerStart)
	case trailerEndLF:
		return d.expect(c, '\n', chunkedDone)
	}
	return nil
}

func (d *chunked) expect(c, want byte, next chunkState) error {
	if c != want {
		return errChunk
	}
	d.state = next
	return nil
}

func (d *chunked) size(c byte) error {
	digit := hexDigits[c]
	switch {
	case digit != noDigit:
	case d.line == 0:
		return errChunk
	case c == '\r':
		d.state = chunkSizeLF
		return nil
	case c == ';':
		d.state = chunkExt
		return nil
	case c == ' ' || c == '\t':
		d.state = chunkBlank
		return nil
	default:
		return errChunk
	}
	if d.line++; d.line > 15 { // what fits an int64 with room
		return errors.New("a chunk's size of more than 15 digits")
	}
	d.left = d.left<<4 | uint64(digit)
	return nil
}

func (d *chunked) extension(c byte) error {
	if d.line++; d.line > maxChunkLine {
		return fmt.Errorf("a chunk's size line of more than %d bytes", maxChunkLine)
	}
	switch {
	case c == '\r':
		d.state = chunkSizeLF
	case c == ';':
		d.state = chunkExt
	case d.state == chunkExt && valueChar(c), c == ' ', c == '\t':
	default:
		return errChunk
	}
	return nil
}

func (d *chunked) trailer(c byte) error {
	if d.line++; d.line > maxTrailer {
		return fmt.Errorf("trailers of more than %d bytes", maxTrailer)
	}
	switch {
	case c == '\r' && d.state == trailerStart:
		d.state = trailerEndLF
	case c == '\r':
		d.state = trailerLF
	case valueChar(c):
		d.state = trailerLine
	default:
		return errChunk
	}
	return nil
}
