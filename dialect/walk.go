package dialect

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// walker goes once through one JSON text and hands out pieces of the text
// itself: nothing is copied or decoded unless a name has escapes.
//
// It takes exactly what RFC 8259 calls JSON (a fuzz test holds it to jsontext),
// with two things left to others: names may repeat, Parse checks those at the top
// level; and strings may hold invalid UTF-8 (R17). It is our own because a long
// prompt is one long string, and looking at eight bytes of it at a time is four
// times as fast as the tokenizer of any library; see BenchmarkParse.
type walker struct {
	b     []byte
	i     int // what is before it has been read
	depth int
}

// maxDepth bounds nesting, and with it the stack a hostile text can claim.
const maxDepth = 1000

// syntaxError is where a text stops being JSON.
type syntaxError struct {
	at   int
	want string
	got  string
}

func (e *syntaxError) Error() string {
	return fmt.Sprintf("%s at byte %d where there should be %s", e.got, e.at, e.want)
}

// fail says what is wanted where the walker stands.
func (w *walker) fail(want string) error {
	got := "it ends"
	if w.i < len(w.b) {
		got = "there is " + strconv.QuoteRune(rune(w.b[w.i]))
		if w.b[w.i] >= 0x80 {
			got = fmt.Sprintf("there is \\x%02x", w.b[w.i])
		}
	}
	return &syntaxError{w.i, want, got}
}

// peek passes over space and gives the byte that comes then, 0 at the end.
func (w *walker) peek() byte {
	for w.i < len(w.b) {
		c := w.b[w.i]
		if !isSpace(c) {
			return c
		}
		w.i++
	}
	return 0
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// end is an error unless all but space has been read.
func (w *walker) end() error {
	w.peek()
	if w.i < len(w.b) {
		return w.fail("the end")
	}
	return nil
}

// object reads an object, calling read with each member's name, unescaped and
// without quotes; read must read the value. A value of another kind is read
// over.
func (w *walker) object(read func(name []byte) error) error {
	if w.peek() != '{' {
		return w.skip()
	}
	if err := w.enter(); err != nil {
		return err
	}
	if w.peek() == '}' {
		return w.leave()
	}
	for {
		if w.peek() != '"' {
			return w.fail("a name in quotes")
		}
		name, err := w.text()
		if err != nil {
			return err
		}
		if w.peek() != ':' {
			return w.fail("a colon")
		}
		w.i++
		if err := read(unquote(name)); err != nil {
			return err
		}
		switch w.peek() {
		case ',':
			w.i++
		case '}':
			return w.leave()
		default:
			return w.fail("a comma or a closing brace")
		}
	}
}

// array reads an array, calling read for each element; read must read it. A
// value of another kind is read over.
func (w *walker) array(read func() error) error {
	if w.peek() != '[' {
		return w.skip()
	}
	if err := w.enter(); err != nil {
		return err
	}
	if w.peek() == ']' {
		return w.leave()
	}
	for {
		if err := read(); err != nil {
			return err
		}
		switch w.peek() {
		case ',':
			w.i++
		case ']':
			return w.leave()
		default:
			return w.fail("a comma or a closing bracket")
		}
	}
}

func (w *walker) enter() error {
	if w.depth++; w.depth > maxDepth {
		return &syntaxError{w.i, fmt.Sprintf("no more than %d levels", maxDepth), "there is one more"}
	}
	w.i++
	return nil
}

func (w *walker) leave() error {
	w.depth--
	w.i++
	return nil
}

// value reads one whole value of any kind.
func (w *walker) value() (raw []byte, err error) {
	w.peek()
	start := w.i
	err = w.skip()
	return w.b[start:w.i], err
}

// skip reads over one whole value.
func (w *walker) skip() error {
	switch c := w.peek(); c {
	case '"':
		_, err := w.text()
		return err
	case '{':
		return w.object(w.skipMember)
	case '[':
		return w.array(w.skip)
	case 't':
		return w.literal("true")
	case 'f':
		return w.literal("false")
	case 'n':
		return w.literal("null")
	default:
		return w.digits()
	}
}

func (w *walker) skipMember([]byte) error { return w.skip() }

func (w *walker) literal(want string) error {
	if !bytes.HasPrefix(w.b[w.i:], []byte(want)) {
		return w.fail("a value")
	}
	w.i += len(want)
	return nil
}

// digits reads over a number.
func (w *walker) digits() error {
	if w.i < len(w.b) && w.b[w.i] == '-' {
		w.i++
	}
	switch {
	case w.i < len(w.b) && w.b[w.i] == '0':
		w.i++
	case !w.someDigits():
		return w.fail("a value")
	}
	if w.i < len(w.b) && w.b[w.i] == '.' {
		w.i++
		if !w.someDigits() {
			return w.fail("a digit")
		}
	}
	if w.i < len(w.b) && w.b[w.i]|0x20 == 'e' {
		w.i++
		if w.i < len(w.b) && (w.b[w.i] == '+' || w.b[w.i] == '-') {
			w.i++
		}
		if !w.someDigits() {
			return w.fail("a digit")
		}
	}
	return nil
}

// someDigits reads over digits; false if there are none.
func (w *walker) someDigits() bool {
	start := w.i
	for w.i < len(w.b) && w.b[w.i]-'0' <= 9 {
		w.i++
	}
	return w.i > start
}

// text reads a string, at whose opening quote the walker stands, and gives it
// with its quotes.
func (w *walker) text() (raw []byte, err error) {
	start := w.i
	w.i++
	for {
		w.i += plainRun(w.b[w.i:])
		if w.i == len(w.b) {
			return nil, w.fail("a closing quote")
		}
		switch w.b[w.i] {
		case '"':
			w.i++
			return w.b[start:w.i], nil
		case '\\':
			if _, err := w.escape(); err != nil {
				return nil, err
			}
		default:
			return nil, w.fail("an escape")
		}
	}
}

// escape reads an escape, at whose backslash the walker stands, and gives what it
// means: half of a pair is a code point of its own here.
func (w *walker) escape() (rune, error) {
	w.i++
	if w.i == len(w.b) {
		return 0, w.fail("an escape")
	}
	c := w.b[w.i]
	if plain := simple[c]; plain != 0 {
		w.i++
		return rune(plain), nil
	}
	if c != 'u' {
		return 0, w.fail("an escape")
	}
	w.i++
	var r rune
	if d := w.b[w.i:]; len(d) >= 4 {
		r = rune(digit[d[0]])<<12 | rune(digit[d[1]])<<8 | rune(digit[d[2]])<<4 | rune(digit[d[3]])
		if r <= 0xffff {
			w.i += 4
			return r, nil
		}
	}
	for w.i < len(w.b) && digit[w.b[w.i]] < 16 {
		w.i++
	}
	return 0, w.fail("a hexadecimal digit")
}

// digit is the value of a hexadecimal digit; of anything else it is too much
// wherever it stands among four.
var digit = func() (t [256]uint32) {
	for c := range t {
		t[c] = 1 << 16
	}
	for v, c := range "0123456789abcdef" {
		t[c] = uint32(v)
	}
	for v, c := range "ABCDEF" {
		t[c] = uint32(v) + 10
	}
	return t
}()

// simple is what a backslash and one character mean; 0: nothing.
var simple = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// plainRun is how many bytes at the start of b mean themselves in a JSON string:
// up to a quote, a backslash or a control character.
func plainRun(b []byte) int {
	n := 0
	if len(b) >= 8 { // names and words are short
		if stop := stops(b); stop != 0 {
			return bits.TrailingZeros64(stop) / 8
		}
		n = 8
	}
	for ; len(b)-n >= 32 && n < shortRun; n += 32 {
		p := b[n : n+32 : n+32]
		if stops(p)|stops(p[8:])|stops(p[16:])|stops(p[24:]) != 0 {
			break
		}
	}
	if n >= shortRun {
		n += longRun(b[n:])
	}
	for ; len(b)-n >= 8; n += 8 {
		if stop := stops(b[n:]); stop != 0 {
			return n + bits.TrailingZeros64(stop)/8
		}
	}
	for ; n < len(b); n++ {
		if c := b[n]; c < ' ' || c == '"' || c == '\\' {
			break
		}
	}
	return n
}

// From shortRun bytes on it is looked for one thing at a time, window by window.
const (
	shortRun = 256
	window   = 2 << 10
)

// longRun is a part of plainRun's work, and all but the last bytes of it where
// there is much: the library finds one byte faster than words can be looked at,
// and looking at them for control characters alone takes half the time.
func longRun(b []byte) (n int) {
	for {
		w := b[n:min(n+window, len(b))]
		if i := bytes.IndexByte(w, '"'); i >= 0 {
			w = w[:i]
		}
		if i := bytes.IndexByte(w, '\\'); i >= 0 {
			w = w[:i]
		}
		i := 0
		for ; len(w)-i >= 32; i += 32 {
			p := w[i : i+32 : i+32]
			if (controls(p)|controls(p[8:])|controls(p[16:])|controls(p[24:]))&highs != 0 {
				break
			}
		}
		if n += i; i < window {
			return n
		}
	}
}

const ones, highs = 0x0101010101010101, 0x8080808080808080

// stops marks, of the first eight bytes of b, those that are no plain text by
// their high bit: subtracting n borrows into the high bit of a byte below n, and
// with one bit turned the quote comes next after the control characters.
// Marks above the lowest may be false, and only the lowest is used.
func stops(b []byte) uint64 {
	x := binary.LittleEndian.Uint64(b)
	low, slash := (x^ones*2)-ones*(' '+1), (x^ones*'\\')-ones
	return (low | slash) &^ x & highs
}

// controls does the same for control characters, with more bits set than the high
// ones.
func controls(b []byte) uint64 {
	x := binary.LittleEndian.Uint64(b)
	return (x - ones*' ') &^ x
}

// number reads a value; what is no number is 0.
func (w *walker) number() (int, error) {
	raw, err := w.value()
	if err != nil {
		return 0, err
	}
	n, _ := toInt(raw)
	return n, nil
}

// truth reads a value and reports whether it is true.
func (w *walker) truth() (bool, error) {
	raw, err := w.value()
	return err == nil && raw[0] == 't', err
}

// unquote gives the content of a JSON string; it copies only if there are
// escapes or bytes that are no Unicode. The latter come out as U+FFFD, as Go's
// decoder has it.
func unquote(raw []byte) []byte {
	if isSimple(raw) {
		return raw[1 : len(raw)-1]
	}
	if bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw) {
		return raw[1 : len(raw)-1]
	}
	s, _ := jsontext.AppendUnquote(nil, raw)
	return s
}

// isSimple reports whether a string is short, and ASCII without an escape: most
// names are.
func isSimple(raw []byte) bool {
	if len(raw) > 24 {
		return false
	}
	for _, c := range raw {
		if c >= 0x80 || c == '\\' {
			return false
		}
	}
	return true
}

func isNumber(c byte) bool { return c == '-' || '0' <= c && c <= '9' }

// maxInt bounds numbers read from bodies so that sums and products of a few of
// them cannot overflow.
const maxInt = math.MaxInt32

// toInt reads a JSON number, rounding up what is no integer.
func toInt(raw []byte) (int, bool) {
	if !isNumber(raw[0]) {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil && f == 0 {
		return 0, false
	}
	return int(math.Ceil(min(max(f, -maxInt), maxInt))), true
}
