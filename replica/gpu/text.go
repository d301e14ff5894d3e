package gpu

import (
	"bytes"
	"math"
	"strconv"
	"strings"
)

// sample is one line of Prometheus text.
type sample struct {
	name   string
	labels map[string]string
	value  float64
}

// parseText reads the samples whose names begin with one of the prefixes.
// Lines that are none are passed over: what an exporter gets wrong in one place
// must not hide the rest.
func parseText(text []byte, prefixes ...string) []sample {
	var out []sample
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		for _, p := range prefixes {
			if bytes.HasPrefix(line, []byte(p)) {
				if s, ok := parseLine(string(line)); ok {
					out = append(out, s)
				}
				break
			}
		}
	}
	return out
}

// parseLine reads name{label="value",…} value [timestamp].
func parseLine(line string) (s sample, ok bool) {
	i := strings.IndexAny(line, "{ \t")
	if i < 0 {
		return s, false
	}
	s.name, line = line[:i], line[i:]
	if line[0] == '{' {
		if s.labels, line, ok = parseLabels(line[1:]); !ok {
			return s, false
		}
	}
	fields := strings.Fields(line)
	if len(fields) == 0 || len(fields) > 2 {
		return s, false
	}
	v, err := strconv.ParseFloat(fields[0], 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return s, false
	}
	s.value = v
	return s, true
}

// parseLabels reads labels up to the brace that closes them.
func parseLabels(line string) (labels map[string]string, rest string, ok bool) {
	labels = map[string]string{}
	for {
		line = strings.TrimLeft(line, " \t,")
		if rest, ok := strings.CutPrefix(line, "}"); ok {
			return labels, rest, true
		}
		name, after, found := strings.Cut(line, `="`)
		if !found {
			return nil, "", false
		}
		value, after, found := unquote(after)
		if !found {
			return nil, "", false
		}
		labels[strings.TrimSpace(name)], line = value, after
	}
}

// unquote reads a label's value up to its closing quote.
func unquote(s string) (value, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), s[i+1:], true
		case c == '\\' && i+1 < len(s):
			i++
			if s[i] == 'n' {
				b.WriteByte('\n')
			} else {
				b.WriteByte(s[i])
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}
