package config

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes, written as such or in KiB, MiB or GiB.
type Size int64

// The units of Size.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
)

// String gives the shortest exact form.
func (s Size) String() string {
	for _, u := range []struct {
		unit Size
		name string
	}{{GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if s != 0 && s%u.unit == 0 {
			return strconv.FormatInt(int64(s/u.unit), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

var (
	sizeText   = regexp.MustCompile(`^([0-9]+)(B|KiB|MiB|GiB)?$`)
	sizeAlmost = regexp.MustCompile(`^([0-9]+) ?([kKmMgG])i?[bB]?$`)
	numberText = regexp.MustCompile(`^-?(0|[1-9][0-9]*)?(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)
)

// parseSize reads a size; the error says what would be right.
func parseSize(text string) (Size, error) {
	m := sizeText.FindStringSubmatch(text)
	if m == nil {
		example := "64MiB"
		if m = sizeAlmost.FindStringSubmatch(text); m != nil {
			example = m[1] + strings.ToUpper(m[2]) + "iB"
		}
		return 0, fmt.Errorf("%s is not a size: want bytes, KiB, MiB or GiB, such as %s", quote(text), example)
	}
	unit := map[string]Size{"": 1, "B": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB}[m[2]]
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil || n > math.MaxInt64/int64(unit) {
		return 0, fmt.Errorf("%s is more than any memory: want bytes, KiB, MiB or GiB, such as 64MiB", quote(text))
	}
	return Size(n) * unit, nil
}

// parseDuration reads a duration; the error says what would be right.
func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err == nil {
		return d, nil
	}
	if numberText.MatchString(text) && text != "" {
		return 0, fmt.Errorf("%s has no unit: want a duration such as %ss", quote(text), text)
	}
	return 0, fmt.Errorf("%s is not a duration: want one such as 250ms, 10s, 1m30s or 2h", quote(text))
}

// parseInt reads a whole number, decimal only: 010 and 1e3 are traps.
func parseInt(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || !numberText.MatchString(text) {
		return 0, fmt.Errorf("%s is not a whole number", quote(text))
	}
	return n, nil
}

// parseFloat reads a number, finite and decimal.
func parseFloat(text string) (float64, error) {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !numberText.MatchString(text) {
		return 0, fmt.Errorf("%s is not a number", quote(text))
	}
	return x, nil
}

// quote shows a value from the file, shortened where it is long.
func quote(text string) string {
	const most = 60
	if r := []rune(text); len(r) > most {
		text = string(r[:most]) + "…"
	}
	return strconv.Quote(text)
}

// interval is a range of numbers, durations or sizes.
type interval struct {
	lo, hi         float64
	loText, hiText string // as the tag has them; hiText empty: no upper end
	loOpen, hiOpen bool   // the end itself is not allowed
}

// parseInterval reads the notation of the in tag, such as (0,24h].
func parseInterval(tag string, t reflect.Type) interval {
	lo, hi, _ := strings.Cut(tag[1:len(tag)-1], ",")
	return interval{
		lo: bound(lo, t), hi: bound(hi, t), loText: lo, hiText: hi,
		loOpen: tag[0] == '(', hiOpen: tag[len(tag)-1] == ')',
	}
}

// bound reads one end; an empty one is infinite.
func bound(text string, t reflect.Type) float64 {
	var x float64
	var err error
	switch {
	case text == "":
		return math.Inf(1)
	case t == durationType:
		var d time.Duration
		d, err = parseDuration(text)
		x = float64(d)
	case t == sizeType:
		var s Size
		s, err = parseSize(text)
		x = float64(s)
	default:
		x, err = parseFloat(text)
	}
	if err != nil {
		panic(fmt.Sprintf("config: bound %q of a field of type %v: %v", text, t, err))
	}
	return x
}

func (in interval) holds(x float64) bool {
	return (x > in.lo || x == in.lo && !in.loOpen) && (x < in.hi || x == in.hi && !in.hiOpen)
}

// String says the interval in words.
func (in interval) String() string {
	switch {
	case in.hiText == "" && in.loOpen:
		return "above " + in.loText
	case in.hiText == "":
		return in.loText + " or more"
	case in.loOpen && in.hiOpen:
		return "above " + in.loText + " and below " + in.hiText
	case in.loOpen:
		return "above " + in.loText + " and at most " + in.hiText
	case in.hiOpen:
		return "at least " + in.loText + " and below " + in.hiText
	default:
		return "from " + in.loText + " to " + in.hiText
	}
}

// show writes a value as it would stand in the file.
func show(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return FormatDuration(x)
	case fmt.Stringer:
		return x.String()
	case string:
		if x == "" {
			return `""`
		}
		return x
	case []string:
		return "[" + strings.Join(x, ", ") + "]"
	case float64:
		return strconv.FormatFloat(x, 'g', -1, 64)
	default:
		return fmt.Sprint(x)
	}
}

// FormatDuration writes a duration without trailing zero units: 5m, not 5m0s.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
