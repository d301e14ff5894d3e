package dialect

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// valid is the judgement of a library that is known to be right.
func valid(text []byte) bool {
	dec := jsontext.NewDecoder(bytes.NewBuffer(text), walkOptions...)
	if dec.SkipValue() != nil {
		return false
	}
	_, err := dec.ReadToken()
	return err == io.EOF
}

// R17: we call JSON what is JSON, wherever in a word of eight bytes it breaks.
func TestR17WalkerTakesWhatIsJSON(t *testing.T) {
	var texts []string
	for _, s := range []string{
		``, `{}`, `[]`, `""`, `0`, `-0`, `-`, `01`, `1.`, `.5`, `1.5e+10`, `1e`, `1E-7`, `+1`, `0x1`, `1 2`, `null`, `nul`, `nullx`, `True`,
		`true`, `false`, `{"a":1,}`, `{"a" 1}`, `{a:1}`, `{"a":1 "b":2}`, `{,}`, `[1,]`, `[,1]`, `[1 2]`, `[1}`, `{"a":1]`, `}`, `{"a":{"b":[{}]}}`,
		"\"a\tb\"", "\"\x00\"", "\"\x7f\"", `"\x"`, `"\u12"`, `"\u12g4"`, `"\ud800"`, `"\"`, `"\\"`, `"`, "\"\xff\xc3\"", "\"\xc3", `'a'`,
		"\xef\xbb\xbf{}", "{}\x00", "{}//", "\v{}", "\u00a0{}", `{"a":"b"}}`, `{"é":1}`, `{"a":1,"a":2}`,
	} {
		texts = append(texts, s, " \t\r\n"+s+" \n")
	}
	for n := range 80 {
		fill := strings.Repeat("x", n)
		for _, c := range []string{`"`, `\n`, `\u00e9`, `\`, "\n", "\x1f", "é", "\xff", "\x80"} {
			texts = append(texts, `"`+fill+c+`"`, `"`+fill+c+fill+`"`)
		}
	}
	for _, text := range texts {
		require.Equal(t, valid([]byte(text)), isJSON([]byte(text)), "%q", text)
	}
}

// R17: a plain run ends at the same byte wherever in a window that stands, and
// whatever else stands behind it.
func TestR17PlainRunEndsWhereItMust(t *testing.T) {
	stop := func(c byte) bool { return c < ' ' || c == '"' || c == '\\' }
	fill := []byte(strings.Repeat("plain é\x7f\xff text ", (shortRun+3*window)/8))
	require.Equal(t, len(fill), plainRun(fill))
	for c := range 256 {
		for _, near := range []int{0, 8, 32, shortRun, shortRun + 8, shortRun + window, shortRun + 2*window} {
			for i := max(0, near-10); i < near+10; i += 1 + c%3 {
				text := bytes.Clone(fill)
				text[i], text[i+1+c%40], text[i+300] = byte(c), "\"\\\n"[c%3], "\"\\\n"[i%3]
				require.Equal(t, slices.IndexFunc(text, stop), plainRun(text), "%#x at %d", c, i)
			}
		}
	}
}

func TestWalkerDepth(t *testing.T) {
	nested := func(n int) []byte { return []byte(strings.Repeat(`[`, n) + strings.Repeat(`]`, n)) }
	require.True(t, isJSON(nested(maxDepth)))
	require.False(t, isJSON(nested(maxDepth+1)))
	require.False(t, isJSON(bytes.Repeat([]byte(`{"a":`), 1<<20)))
}

// A skeleton is JSON of the same shape, however long the text and its strings.
func TestEliderKeepsJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := anyJSON(5).Draw(t, "text")
		var e elider
		for rest := []byte(text); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			e.feed(rest[:n])
			rest = rest[n:]
		}
		require.True(t, valid([]byte(text)))
		require.True(t, isJSON(e.out), "%s\n%s", text, e.out)
	})
}

func anyJSON(depth int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		kind := rapid.IntRange(0, 6).Draw(t, "kind")
		if depth == 0 {
			kind %= 4
		}
		switch kind {
		case 0:
			return rapid.SampledFrom([]string{"null", "true", "false", "0", "-1.5e7"}).Draw(t, "scalar")
		case 1, 2:
			b, _ := jsontext.AppendQuote(nil, rapid.String().Draw(t, "string"))
			return string(b)
		case 3:
			unit := rapid.SampledFrom([]string{"x", `\n`, `\u00e9`, "é", `\\`, `\"`}).Draw(t, "unit")
			return `"` + strings.Repeat(unit, rapid.IntRange(0, 2*keepString).Draw(t, "times")) + `"`
		case 4:
			return "[" + strings.Repeat("1 ,", rapid.IntRange(0, 2*keepElements).Draw(t, "times")) + anyJSON(depth-1).Draw(t, "last") + "]"
		case 5:
			return "[" + strings.Join(rapid.SliceOfN(anyJSON(depth-1), 0, 4).Draw(t, "elements"), ", ") + " ]"
		default:
			var b strings.Builder
			for i, v := range rapid.SliceOfN(anyJSON(depth-1), 0, 4).Draw(t, "members") {
				if i > 0 {
					b.WriteString(",")
				}
				b.WriteString(` "` + strings.Repeat("n", i) + `" : ` + v)
			}
			return "{" + b.String() + "}"
		}
	})
}
