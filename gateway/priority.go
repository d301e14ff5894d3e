package gateway

import "strings"

// urgency reads u from Priority headers (RFC 9218: a dictionary of structured
// fields). A field that is not a well-formed dictionary is ignored whole, as
// the standard wants, and so is a u that is no integer from 0 to 7.
func urgency(lines []string) (u int, ok bool) {
	if len(lines) == 0 {
		return 0, false
	}
	p := fieldParser{s: strings.Join(lines, ",")}
	p.spaces()
	for p.s != "" {
		key, found := p.key()
		if !found {
			return 0, false
		}
		value, good := p.member()
		if !good {
			return 0, false
		}
		if key == "u" { // the last one counts
			u, ok = digit(value)
		}
		p.blanks()
		if p.s == "" {
			return u, ok
		}
		if !p.take(',') {
			return 0, false
		}
		p.blanks()
		if p.s == "" { // a trailing comma
			return 0, false
		}
	}
	return u, ok
}

// digit is the urgency a bare integer stands for.
func digit(value string) (int, bool) {
	if len(value) == 1 && value[0] >= '0' && value[0] <= '7' {
		return int(value[0] - '0'), true
	}
	return 0, false
}

// fieldParser reads structured fields (RFC 9651) from the front of s. It
// checks what it skips, so that a malformed field is known for one.
type fieldParser struct{ s string }

func (p *fieldParser) spaces() { p.s = strings.TrimLeft(p.s, " ") }
func (p *fieldParser) blanks() { p.s = strings.TrimLeft(p.s, " \t") }

func (p *fieldParser) take(c byte) bool {
	if p.s == "" || p.s[0] != c {
		return false
	}
	p.s = p.s[1:]
	return true
}

// while takes the longest run of bytes that fit.
func (p *fieldParser) while(fits func(byte) bool) string {
	n := 0
	for n < len(p.s) && fits(p.s[n]) {
		n++
	}
	run := p.s[:n]
	p.s = p.s[n:]
	return run
}

func (p *fieldParser) key() (string, bool) {
	if p.s == "" || !lower(p.s[0]) && p.s[0] != '*' {
		return "", false
	}
	return p.while(func(c byte) bool {
		return lower(c) || decimal(c) || strings.IndexByte("_-.*", c) >= 0
	}), true
}

// member takes what follows a key: =item or =(inner list), or nothing, which
// means true; and its parameters. Of an item it returns the text.
func (p *fieldParser) member() (value string, ok bool) {
	if p.take('=') {
		if value, ok = p.itemOrList(); !ok {
			return "", false
		}
	}
	return value, p.parameters()
}

func (p *fieldParser) itemOrList() (string, bool) {
	if !p.take('(') {
		return p.item()
	}
	for {
		p.spaces()
		if p.take(')') {
			return "()", true
		}
		if _, ok := p.item(); !ok || !p.parameters() {
			return "", false
		}
		if p.s == "" || p.s[0] != ' ' && p.s[0] != ')' {
			return "", false
		}
	}
}

func (p *fieldParser) parameters() bool {
	for p.take(';') {
		p.spaces()
		if _, ok := p.key(); !ok {
			return false
		}
		if p.take('=') {
			if _, ok := p.item(); !ok {
				return false
			}
		}
	}
	return true
}

// item takes a bare item and returns its text.
func (p *fieldParser) item() (string, bool) {
	if p.s == "" {
		return "", false
	}
	switch c := p.s[0]; {
	case c == '-' || decimal(c):
		return p.number()
	case c == '"':
		return p.quoted()
	case c == '?':
		return p.boolean()
	case c == ':':
		return p.bytes()
	case c == '*' || lower(c|0x20):
		return p.while(func(c byte) bool { return tokenByte(c) || c == ':' || c == '/' }), true
	}
	return "", false
}

// number takes an integer of up to 15 digits, or a decimal of up to 12 and 3.
func (p *fieldParser) number() (string, bool) {
	sign := ""
	if p.take('-') {
		sign = "-"
	}
	whole := p.while(decimal)
	if whole == "" || len(whole) > 15 {
		return "", false
	}
	if !p.take('.') {
		return sign + whole, true
	}
	part := p.while(decimal)
	return sign + whole + "." + part, len(whole) <= 12 && part != "" && len(part) <= 3
}

func (p *fieldParser) quoted() (string, bool) {
	for i := 1; i < len(p.s); i++ {
		switch c := p.s[i]; {
		case c == '"':
			text := p.s[:i+1]
			p.s = p.s[i+1:]
			return text, true
		case c == '\\':
			i++
			if i == len(p.s) || p.s[i] != '"' && p.s[i] != '\\' {
				return "", false
			}
		case c < ' ' || c > '~':
			return "", false
		}
	}
	return "", false
}

func (p *fieldParser) boolean() (string, bool) {
	p.take('?')
	if p.take('0') {
		return "?0", true
	}
	return "?1", p.take('1')
}

func (p *fieldParser) bytes() (string, bool) {
	p.take(':')
	text := p.while(func(c byte) bool {
		return lower(c|0x20) || decimal(c) || strings.IndexByte("+/=", c) >= 0
	})
	return text, p.take(':')
}

func lower(c byte) bool   { return c >= 'a' && c <= 'z' }
func decimal(c byte) bool { return c >= '0' && c <= '9' }

// tokenByte reports whether c may stand in an HTTP token.
func tokenByte(c byte) bool {
	return lower(c|0x20) || decimal(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
