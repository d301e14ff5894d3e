package probe

import (
	"bytes"
	"math"
	"strconv"
)

// readMetrics reads Prometheus text and adds up the samples of each wanted
// family over all its labels. A family that is absent, or has no sample that
// is a number, is absent from the result. Lines that are not samples are
// passed over: what one exporter gets wrong must not hide the rest.
func readMetrics(text []byte, wanted ...string) map[string]float64 {
	sums := map[string]float64{}
	for line := range bytes.Lines(text) {
		name, rest, ok := cutName(line)
		if !ok {
			continue
		}
		for _, w := range wanted {
			if string(name) != w {
				continue
			}
			if v, ok := sampleValue(rest); ok {
				sums[w] += v
			}
		}
	}
	return sums
}

// cutName splits a sample line after the metric's name.
func cutName(line []byte) (name, rest []byte, ok bool) {
	line = bytes.TrimSpace(line)
	i := bytes.IndexAny(line, "{ \t")
	if i <= 0 || line[0] == '#' {
		return nil, nil, false
	}
	return line[:i], line[i:], true
}

// sampleValue reads the value that follows a name and its labels. A label's
// value may hold anything, a closing brace too.
func sampleValue(rest []byte) (float64, bool) {
	if rest[0] == '{' {
		end := labelsEnd(rest)
		if end < 0 {
			return 0, false
		}
		rest = rest[end:]
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 || len(fields) > 2 {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(fields[0]), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return 0, false
	}
	return v, true
}

// labelsEnd is the index after the brace that closes the labels; -1 if none does.
func labelsEnd(s []byte) int {
	quoted := false
	for i := 1; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case !quoted && s[i] == '}':
			return i + 1
		}
	}
	return -1
}

// count turns a sum of samples into a count; -1 where the family was absent.
func count(sums map[string]float64, name string) int {
	v, ok := sums[name]
	if !ok {
		return -1
	}
	return int(min(v, 1<<53))
}

// readLabel gives the value of a label of the first sample of a family, as it
// stands in the text; "" if there is none.
func readLabel(text []byte, family, label string) string {
	for line := range bytes.Lines(text) {
		name, rest, ok := cutName(line)
		if !ok || string(name) != family || rest[0] != '{' {
			continue
		}
		end := labelsEnd(rest)
		if end < 0 {
			continue
		}
		for rest := rest[1 : end-1]; len(rest) > 0; {
			key, value, ok := bytes.Cut(rest, []byte(`="`))
			if !ok {
				break
			}
			n := 0
			for n < len(value) && value[n] != '"' {
				if value[n] == '\\' {
					n++
				}
				n++
			}
			n = min(n, len(value))
			if string(bytes.Trim(key, ", \t")) == label {
				return string(value[:n])
			}
			rest = value[min(n+1, len(value)):]
		}
	}
	return ""
}
