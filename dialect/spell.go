package dialect

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// spell reads a string, at whose opening quote the walker stands, like text, and
// hands its text to emit, escapes resolved: in pieces of whole blocks, but for
// the last. Half of a surrogate pair comes out as U+FFFD.
//
// Texts of prompts have an escape every line. Copying them eight bytes at a time
// while they are searched is twice as fast as a search, and a copy after it.
func (p *parser) spell(emit func([]byte)) error {
	start := p.i + 1
	p.i = start + plainRun(p.b[start:])
	if p.i < len(p.b) && p.b[p.i] == '"' {
		emit(p.b[start:p.i])
		p.i++
		return nil
	}
	if whole := (p.i - start) &^ (blockBytes - 1); whole > 0 {
		emit(p.b[start : start+whole])
		start += whole
	}
	buf, b := &p.scratch.text, p.b
	n := copy(buf[:], b[start:p.i])
	for {
		if n > len(buf)-16 {
			whole := n &^ (blockBytes - 1)
			emit(buf[:whole])
			n = copy(buf[:], buf[whole:n])
		}
		if len(b)-p.i >= 8 {
			stop := stops(b[p.i:])
			binary.LittleEndian.PutUint64(buf[n:], binary.LittleEndian.Uint64(b[p.i:]))
			if stop == 0 {
				p.i += 8
				n += 8
				continue
			}
			run := bits.TrailingZeros64(stop) / 8
			p.i += run
			n += run
		} else if p.i == len(b) {
			return p.fail("a closing quote")
		}
		switch c := b[p.i]; {
		case c == '"':
			p.i++
			emit(buf[:n])
			return nil
		case c == '\\':
			r, err := p.escape()
			if err != nil {
				return err
			}
			if utf16.IsSurrogate(r) {
				r = p.pair(r)
			}
			n += utf8.EncodeRune(buf[n:], r)
		case c < ' ':
			return p.fail("an escape")
		default:
			buf[n] = c
			n++
			p.i++
		}
	}
}

// pair gives the character that the half of a pair just read begins, if its
// other half follows.
func (p *parser) pair(high rune) rune {
	back := p.i
	if p.i < len(p.b) && p.b[p.i] == '\\' {
		if low, err := p.escape(); err == nil {
			if r := utf16.DecodeRune(high, low); r != utf8.RuneError {
				return r
			}
		}
	}
	p.i = back
	return utf8.RuneError
}
