package upstream

import (
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// Request is what to ask a replica. It is not changed, and must not be until
// Head has returned an answer or the exchange is over: until then it may have
// to be sent again.
type Request struct {
	Method string
	Target string // path and query, put after the base's path
	// Header is sent as it is, but for what belongs to the connection it came
	// on (hop-by-hop headers and those that Connection names), for Host, which
	// is the replica's own, for Content-Length, which is that of Body, and for
	// Expect, since the body follows at once.
	Header http.Header
	// Extra are names and values in turn. They replace the headers of Header
	// that have the same name; an empty value only removes them.
	Extra []string
	Body  []byte
	// Stall bounds the writing of a request that does not fit one buffer: how
	// long the server may accept no byte of it. As long as it accepts some the
	// deadline of Start does not end the writing. Zero: that deadline bounds it.
	Stall time.Duration
}

// check refuses what would break the framing of the request.
func (r *Request) check() error {
	if !isToken(r.Method) {
		return fmt.Errorf("method %q is not a token", r.Method)
	}
	if !strings.HasPrefix(r.Target, "/") {
		return fmt.Errorf("target %q does not begin with /", r.Target)
	}
	for i := range len(r.Target) {
		if c := r.Target[i]; c <= ' ' || c == 0x7f {
			return fmt.Errorf("target %q holds a space or control character; it must be percent-encoded", r.Target)
		}
	}
	if len(r.Extra)%2 != 0 {
		return fmt.Errorf("%d extra names and values, wanted pairs", len(r.Extra))
	}
	return nil
}

// appendHead appends the request's head with its blank line to b.
func (r *Request) appendHead(b []byte, c *Client) []byte {
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, c.prefix...)
	b = append(b, r.Target...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, c.host...)
	b = append(b, "\r\n"...)
	named := r.Header["Connection"]
	for name, values := range r.Header {
		if !passes(name) || r.replaces(name) || isNamed(named, name) {
			continue
		}
		for _, v := range values {
			b = appendHeader(b, name, v)
		}
	}
	for i := 0; i+1 < len(r.Extra); i += 2 {
		name, v := r.Extra[i], r.Extra[i+1]
		if v != "" && passes(name) {
			b = appendHeader(b, name, v)
		}
	}
	if len(r.Body) > 0 || expectsBody(r.Method) {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, int64(len(r.Body)), 10)
		b = append(b, "\r\n"...)
	}
	return append(b, "\r\n"...)
}

// appendHeader makes every character that could end the line, or a server's
// string, a space.
func appendHeader(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	from := len(b)
	b = append(b, value...)
	for i := from; i < len(b); i++ {
		if b[i] < ' ' && b[i] != '\t' || b[i] == 0x7f {
			b[i] = ' '
		}
	}
	return append(b, "\r\n"...)
}

func expectsBody(method string) bool {
	return method == "POST" || method == "PUT" || method == "PATCH"
}

func (r *Request) replaces(name string) bool {
	for i := 0; i+1 < len(r.Extra); i += 2 {
		if strings.EqualFold(r.Extra[i], name) {
			return true
		}
	}
	return false
}

// passes says whether a header may be sent as it is: not if this client sets or
// answers for it itself.
func passes(name string) bool {
	if !isToken(name) {
		return false
	}
	switch name = textproto.CanonicalMIMEHeaderKey(name); name { // no copy if it is canonical
	case "Host", "Content-Length", "Expect":
		return false
	}
	return !isHopByHop(name)
}

// isHopByHop: headers that belong to one connection. The name is canonical.
func isHopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return strings.HasPrefix(name, "Proxy-")
}

// isNamed says whether one of the Connection headers names the header.
func isNamed(connection []string, name string) bool {
	for _, list := range connection {
		if listed(list, name) {
			return true
		}
	}
	return false
}

// listed says whether the comma-separated list holds the token.
func listed(list, token string) bool {
	for part := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(strings.Trim(part, " \t"), token) {
			return true
		}
	}
	return false
}

func isToken(s string) bool {
	for i := range len(s) {
		if !tokenChar[s[i]] {
			return false
		}
	}
	return s != ""
}

// tokenChar is RFC 9110's tchar.
var tokenChar = func() (t [256]bool) {
	for c := byte('0'); c <= 'z'; c++ {
		t[c] = c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c
	}
	for _, c := range []byte("!#$%&'*+-.^_`|~") {
		t[c] = true
	}
	return t
}()
