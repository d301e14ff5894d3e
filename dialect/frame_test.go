package dialect

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// cut pushes a stream in the given pieces and returns the events.
func cut(f framing, pieces ...string) (events []string) {
	fr := framer{framing: f}
	var piece []byte
	for _, p := range pieces {
		fr.push([]byte(p))
		for {
			b, whole, ok := fr.next()
			if !ok {
				break
			}
			piece = append(piece, b...)
			if whole {
				events = append(events, string(piece))
				piece = nil
			}
		}
	}
	if rest := append(piece, fr.rest()...); len(rest) > 0 {
		events = append(events, "rest: "+string(rest))
	}
	return events
}

func TestFramingSSE(t *testing.T) {
	tests := []struct {
		name, stream string
		want         []string
	}{
		{"LF", "data: a\n\ndata: b\n\n", []string{"data: a\n\n", "data: b\n\n"}},
		{"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"data: a\r\n\r\n", "data: b\r\n\r\n"}},
		{"CR", "data: a\r\rdata: b\r\r", []string{"data: a\r\r", "data: b\r\r"}},
		{"LF after CRLF", "data: a\r\n\ndata: b\n\n", []string{"data: a\r\n\n", "data: b\n\n"}},
		{"CRLF after LF", "data: a\n\r\ndata: b\n\n", []string{"data: a\n\r", "\ndata: b\n\n"}},
		{"several lines", "event: x\nid: 1\ndata: a\ndata: b\n\n", []string{"event: x\nid: 1\ndata: a\ndata: b\n\n"}},
		{"a comment alone", ":\n", []string{":\n"}},
		{"comments between", ": hi\n: ho\ndata: a\n\n:\n\n", []string{": hi\n", ": ho\n", "data: a\n\n", ":\n", "\n"}},
		{"a comment inside", "event: x\n: hi\ndata: a\n\n", []string{"event: x\n: hi\ndata: a\n\n"}},
		{"comments with CRLF", "data: a\r\n\r\n: hi\r\n\r\n", []string{"data: a\r\n\r\n", ": hi\r\n", "\r\n"}},
		{"blank lines", "\n\ndata: a\n\n\n", []string{"\n", "\n", "data: a\n\n", "\n"}},
		{"unfinished", "data: a\n\ndata: b\n", []string{"data: a\n\n", "rest: data: b\n"}},
		{"a BOM", "\xef\xbb\xbfdata: a\n\n", []string{"\xef\xbb\xbfdata: a\n\n"}},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, cut(framingSSE, tt.stream), tt.name)
		require.Equal(t, tt.want, cut(framingSSE, strings.Split(tt.stream, "")...), "%s, byte by byte", tt.name)
	}
}

func TestFramingLines(t *testing.T) {
	stream := "{\"a\":1}\n\n{\"b\":2}\r\n{\"c\""
	want := []string{"{\"a\":1}\n", "\n", "{\"b\":2}\r\n", "rest: {\"c\""}
	require.Equal(t, want, cut(framingLines, stream))
	require.Equal(t, want, cut(framingLines, strings.Split(stream, "")...))
	require.Equal(t, []string{"rest: {\n}\n"}, cut(framingWhole, "{\n", "}\n"))
}

// PAINS 11: what the events are does not depend on how the stream was read.
func TestFramingDoesNotDependOnReads(t *testing.T) {
	parts := []string{"\n", "\r", "\r\n", ":", "data: ", "data:x", "event: y", "{}", ": hi\n", "data: a\n\n", "data: b\r\n\r\n", "é", " "}
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.SampledFrom([]framing{framingSSE, framingLines}).Draw(t, "framing")
		stream := strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 0, 30).Draw(t, "parts"), "")
		whole := cut(f, stream)
		require.Equal(t, stream, strings.ReplaceAll(strings.Join(whole, ""), "rest: ", ""))
		require.Equal(t, whole, cut(f, split3(t, stream)...))
	})
}

func split3(t *rapid.T, s string) (pieces []string) {
	for len(s) > 0 {
		n := rapid.IntRange(1, min(len(s), rapid.SampledFrom([]int{1, 3, 1000, 100_000}).Draw(t, "most"))).Draw(t, "n")
		pieces, s = append(pieces, s[:n]), s[n:]
	}
	return pieces
}

// R8: an event too long to keep passes in pieces, and little of it is held.
func TestR8LongEventsAreNotKept(t *testing.T) {
	fr := framer{framing: framingSSE}
	piece := bytes.Repeat([]byte("x"), 60_000)
	fr.push([]byte("data: "))
	_, _, ok := fr.next()
	require.False(t, ok)
	passed, held := 0, 0
	for range 100 {
		fr.push(piece)
		for {
			b, whole, ok := fr.next()
			if !ok {
				break
			}
			require.False(t, whole)
			passed += len(b)
		}
		held = max(held, cap(fr.held))
	}
	require.LessOrEqual(t, held, 2*maxEvent)
	require.Empty(t, fr.rest())
	require.True(t, fr.open)
	require.Equal(t, len("data: ")+100*60_000, passed)

	fr.push([]byte("\n\ndata: next\n\n"))
	b, whole, ok := fr.next()
	require.True(t, whole && ok)
	require.Equal(t, "\n\n", string(b))
	require.False(t, fr.open)
	b, _, _ = fr.next()
	require.Equal(t, "data: next\n\n", string(b))
}

// A stream at rest keeps no large buffer.
func TestAStreamAtRestHoldsLittle(t *testing.T) {
	fr := framer{framing: framingLines}
	for range 50 {
		fr.push(bytes.Repeat([]byte("x"), 4000))
		fr.next()
	}
	fr.push([]byte("\n"))
	_, whole, _ := fr.next()
	require.True(t, whole)
	_, _, ok := fr.next()
	require.False(t, ok)
	require.LessOrEqual(t, cap(fr.held), 4<<10)
}

// An event that came whole is handed out where it lies.
func TestWholeEventsAreNotCopied(t *testing.T) {
	in := []byte("data: a\n\ndata: b\n\n")
	fr := framer{framing: framingSSE}
	fr.push(in)
	a, _, _ := fr.next()
	b, _, _ := fr.next()
	require.Same(t, &in[0], &a[0])
	require.Same(t, &in[9], &b[0])
}
