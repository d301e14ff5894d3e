package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

const (
	maxHead      = 64 << 10 // bytes of one head
	maxHeadLines = 512
	maxInterim   = 10 // 1xx answers before the real one
)

// Response is the head of an answer.
type Response struct {
	Status int
	// Header has the end-to-end headers under their canonical names: those of
	// the connection (Connection and what it names, Keep-Alive, Proxy-…, Te,
	// Trailer, Transfer-Encoding, Upgrade) are taken out.
	Header http.Header
	// ContentLength is the body's stated length, -1 if none is stated. The
	// answer to a HEAD, a 204 or a 304 has no body whatever it says.
	ContentLength int64
}

// framing is how the end of a body is known.
type framing uint8

const (
	noBody framing = iota
	byLength
	byChunks
	byClose
)

// head is a parsed response head with what concerns the connection.
type head struct {
	Response
	framing framing
	reuse   bool          // the server keeps the connection
	idle    time.Duration // for as long as it said to keep it unused; math.MaxInt64: it did not say
}

// headScan finds the end of a head that arrives in pieces, looking at each byte
// once, and refuses what is not HTTP as soon as it shows.
type headScan struct {
	line int // where the current line begins
	seen int // bytes looked at
	n    int // lines before the current one
}

const protocol = "HTTP/1."

// end gives the length of the head that b begins with, 0 while it is unfinished.
func (s *headScan) end(b []byte) (int, error) {
	if p := min(len(b), len(protocol)); s.n == 0 && string(b[:p]) != protocol[:p] {
		return 0, fmt.Errorf("the answer begins with %q, wanted %q", b[:min(len(b), 16)], protocol)
	}
	for {
		i := bytes.IndexByte(b[s.seen:], '\n')
		if i < 0 {
			s.seen = len(b)
			if len(b) >= maxHead {
				return 0, errHeadTooLong
			}
			return 0, nil
		}
		i += s.seen
		s.seen = i + 1
		switch {
		case i >= maxHead:
			return 0, errHeadTooLong
		case i == s.line || b[i-1] != '\r':
			return 0, errors.New("a line of the head ends without CR")
		case i-1 == s.line:
			return i + 1, nil
		}
		s.line = i + 1
		if s.n++; s.n > maxHeadLines {
			return 0, fmt.Errorf("more than %d lines in the head", maxHeadLines)
		}
	}
}

var (
	errHeadTooLong    = fmt.Errorf("a head of more than %d bytes", maxHead)
	errTooManyInterim = fmt.Errorf("more than %d interim answers (1xx)", maxInterim)
)

// parse parses a whole head of the given number of lines, blank line included
// in b. It knows no leniency: a replica that frames its answers in a way two
// readers could read differently is refused.
func (h *head) parse(b []byte, lines int, method string) error {
	*h = head{}
	text := string(b[:len(b)-2]) // the only copy: values are pieces of it
	line, rest, _ := strings.Cut(text, "\r\n")
	minor, err := h.parseStatus(line)
	if err != nil {
		return err
	}
	var hop hopByHop
	h.Header = make(http.Header, lines-1)
	values := make([]string, 0, lines-1)
	for rest != "" {
		line, rest, _ = strings.Cut(rest, "\r\n")
		name, value, err := parseLine(line)
		if err != nil {
			return err
		}
		if hop.take(name, value) {
			continue
		}
		if prev, ok := h.Header[name]; ok {
			h.Header[name] = append(prev, value)
			continue
		}
		values = append(values, value)
		n := len(values)
		h.Header[name] = values[n-1 : n : n]
	}
	if err := h.frame(&hop, method, minor); err != nil {
		return err
	}
	h.persist(&hop, minor)
	hop.dropNamed(h.Header)
	return nil
}

// hopByHop gathers the headers of the connection, lists joined.
type hopByHop struct {
	connection, keepAlive, coding string
	coded                         bool
}

// take says whether the header is one of those.
func (p *hopByHop) take(name, value string) bool {
	switch name {
	case "Connection":
		p.connection = join(p.connection, value)
	case "Keep-Alive":
		p.keepAlive = join(p.keepAlive, value)
	case "Transfer-Encoding":
		p.coding, p.coded = join(p.coding, value), true
	default:
		return isHopByHop(name)
	}
	return true
}

// dropNamed drops what Connection names.
func (p *hopByHop) dropNamed(header http.Header) {
	if p.connection == "" {
		return
	}
	for part := range strings.SplitSeq(p.connection, ",") {
		switch name := canonical(strings.Trim(part, " \t")); name {
		case "Content-Length", "Content-Type": // no server means these
		default:
			delete(header, name)
		}
	}
}

func join(list, more string) string {
	if list == "" {
		return more
	}
	return list + "," + more
}

func (h *head) parseStatus(line string) (minor byte, err error) {
	const shortest = len("HTTP/1.1 200")
	ok := len(line) >= shortest && line[8] == ' ' && (len(line) == shortest || line[shortest] == ' ')
	if ok {
		minor = line[7]
		ok = minor == '0' || minor == '1'
	}
	if ok {
		n, err := strconv.ParseUint(line[9:shortest], 10, 16) // three characters, no sign
		h.Status = int(n)
		ok = err == nil && 100 <= n && n <= 599
	}
	for i := shortest; ok && i < len(line); i++ {
		ok = valueChar(line[i])
	}
	if !ok {
		return 0, fmt.Errorf("malformed status line %q", line[:min(len(line), 64)])
	}
	return minor, nil
}

func parseLine(line string) (name, value string, err error) {
	i := 0
	for i < len(line) && tokenChar[line[i]] {
		i++
	}
	if i == 0 || i == len(line) || line[i] != ':' {
		return "", "", fmt.Errorf("malformed header line %q", line[:min(len(line), 64)])
	}
	value = strings.Trim(line[i+1:], " \t")
	for j := range len(value) {
		if !valueChar(value[j]) {
			return "", "", fmt.Errorf("header %s holds a control character", line[:i])
		}
	}
	return canonical(line[:i]), value, nil
}

func valueChar(c byte) bool { return c >= ' ' && c != 0x7f || c == '\t' }

// frame finds out how the body's end is known (RFC 9112, 6.3).
func (h *head) frame(hop *hopByHop, method string, minor byte) error {
	length, err := contentLength(h.Header)
	if err != nil {
		return err
	}
	h.ContentLength = length
	switch {
	case hop.coded && !strings.EqualFold(hop.coding, "chunked"):
		return fmt.Errorf("Transfer-Encoding %q, only chunked is known", hop.coding)
	case hop.coded && length >= 0:
		return errors.New("both Transfer-Encoding and Content-Length")
	case hop.coded && minor == '0':
		return errors.New("Transfer-Encoding in HTTP/1.0")
	case h.Status == http.StatusSwitchingProtocols:
		return errors.New("status 101, but no upgrade was asked for")
	}
	switch {
	case method == http.MethodHead || h.Status < 200 || h.Status == 204 || h.Status == 304:
		h.framing = noBody
	case hop.coded:
		h.framing = byChunks
	case length >= 0:
		h.framing = byLength
	default:
		h.framing = byClose
	}
	return nil
}

// contentLength gives -1 if none is stated. The same length twice is one.
func contentLength(header http.Header) (int64, error) {
	values := header["Content-Length"]
	if len(values) == 0 {
		return -1, nil
	}
	first, _, _ := strings.Cut(values[0], ",")
	first = strings.Trim(first, " \t")
	for _, list := range values {
		for part := range strings.SplitSeq(list, ",") {
			if part = strings.Trim(part, " \t"); part != first {
				return -1, fmt.Errorf("two Content-Lengths, %q and %q", first, part)
			}
		}
	}
	n, err := strconv.ParseUint(first, 10, 63) // no sign passes
	if err != nil {
		return -1, fmt.Errorf("Content-Length %q is not a number", first)
	}
	if first != values[0] || len(values) > 1 {
		header["Content-Length"] = []string{first}
	}
	return int64(n), nil
}

// persist finds out whether, and for how long, the connection may be kept.
func (h *head) persist(hop *hopByHop, minor byte) {
	h.reuse = h.framing != byClose && !listed(hop.connection, "close") &&
		(minor == '1' || listed(hop.connection, "keep-alive"))
	h.idle = math.MaxInt64
	if hop.keepAlive == "" {
		return
	}
	for part := range strings.SplitSeq(hop.keepAlive, ",") {
		name, value, _ := strings.Cut(part, "=")
		n, err := strconv.ParseUint(strings.Trim(value, " \t\""), 10, 31)
		if err != nil {
			continue
		}
		switch name = strings.Trim(name, " \t"); {
		case strings.EqualFold(name, "timeout"):
			// A second less than the server's: ours must end first.
			if h.idle = (time.Duration(n) - 1) * time.Second; h.idle <= 0 {
				h.reuse = false
			}
		case strings.EqualFold(name, "max") && n <= 1:
			h.reuse = false
		}
	}
}

// canonical is textproto's, without a new string for the names that replicas use.
func canonical(name string) string {
	if s, ok := commonNames[name]; ok {
		return s
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

var commonNames = func() map[string]string {
	m := make(map[string]string)
	for _, name := range []string{
		"Access-Control-Allow-Origin", "Cache-Control", "Connection", "Content-Encoding", "Content-Length",
		"Content-Type", "Date", "Keep-Alive", "Retry-After", "Server", "Transfer-Encoding", "Vary",
		"X-Accel-Buffering", "X-Request-Id",
	} {
		m[name] = name
		m[strings.ToLower(name)] = name
	}
	return m
}()
