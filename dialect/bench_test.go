package dialect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
)

// conversation is a chat body of about size bytes: turns of a few KiB of text
// with the line breaks and quotes that text has.
func conversation(size int) []byte {
	text := strings.Repeat(`She said: "It is the third one on the left, I think."`+"\nAnd then nobody said anything for a while, which was new. ", 30)
	text = text[:min(len(text), size/2)]
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	var messages []message
	for n := 0; n < size-len(text)/2; n += len(text) {
		messages = append(messages, message{"user", text})
	}
	b, _ := json.Marshal(map[string]any{
		"messages": messages, "model": "qwen3:8b", "stream": true, "max_tokens": 512, "temperature": 0.7,
		"stream_options": map[string]bool{"include_usage": true},
	})
	return b
}

// plainText is a chat body with one long message that needs no escapes.
func plainText(size int) []byte {
	return fmt.Appendf(nil, `{"stream":true,"max_tokens":10,"model":"m","messages":[{"role":"user","content":"%s"}]}`,
		strings.Repeat("the quick brown fox ", size/20))
}

// tokenIDs is a completions body whose prompt is given as numbers.
func tokenIDs(size int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"model":"m","prompt":[0`)
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, ",%d", 100+i*7919%32000)
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

var walkOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// tokenize is the yardstick: one pass of jsontext's tokenizer that looks at nothing.
func tokenize(dec *jsontext.Decoder, in *bytes.Buffer, body []byte) error {
	*in = *bytes.NewBuffer(body)
	dec.Reset(in, walkOptions...)
	for {
		if _, err := dec.ReadToken(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// BenchmarkParse also reports how many times the tokenizer's own pass a Parse
// takes ("x-tokenizer"): the least time of each, taken in turn, so that a busy
// machine does not decide it.
func BenchmarkParse(b *testing.B) {
	for _, bm := range []struct {
		name, path string
		body       []byte
	}{
		{"chat-1KiB", "/v1/chat/completions", conversation(1 << 10)},
		{"chat-256KiB", "/v1/chat/completions", conversation(256 << 10)},
		{"plain-256KiB", "/v1/chat/completions", plainText(256 << 10)},
		{"ids-256KiB", "/v1/completions", tokenIDs(256 << 10)},
	} {
		ep := at(b, bm.path)
		b.Run(bm.name, func(b *testing.B) {
			b.SetBytes(int64(len(bm.body)))
			b.ReportAllocs()
			var dec jsontext.Decoder
			var in bytes.Buffer
			ours, theirs := time.Hour, time.Hour
			for b.Loop() {
				start := time.Now()
				if _, err := Parse(ep, bm.body); err != nil {
					b.Fatal(err)
				}
				ours = min(ours, time.Since(start))
				b.StopTimer()
				start = time.Now()
				if err := tokenize(&dec, &in, bm.body); err != nil {
					b.Fatal(err)
				}
				theirs = min(theirs, time.Since(start))
				b.StartTimer()
			}
			b.ReportMetric(float64(ours.Nanoseconds()), "min-ns")
			b.ReportMetric(float64(ours)/float64(theirs), "x-tokenizer")
		})
	}
}

func TestParseAllocatesLittle(t *testing.T) {
	ep, body := at(t, "/v1/chat/completions"), conversation(1<<10)
	n := testing.AllocsPerRun(100, func() {
		_, err := Parse(ep, body)
		require.NoError(t, err)
	})
	require.LessOrEqual(t, n, 6.0)
}
