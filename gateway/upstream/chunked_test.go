package upstream

import (
	"bytes"
	"io"
	"net/http/httputil"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// decodeAll feeds text in pieces of the given size.
func decodeAll(text string, step int) (data string, used int, d chunked, err error) {
	for used < len(text) && d.state != chunkedDone {
		piece := []byte(text[used:min(used+step, len(text))])
		p, n, err := d.decode(piece)
		data, used = data+string(p), used+n
		if err != nil {
			return data, used, d, err
		}
	}
	return data, used, d, nil
}

func TestChunkedAtEveryCut(t *testing.T) {
	for _, text := range []string{
		"0\r\n\r\n",
		"5\r\nhello\r\n1a;x=\"y;z\"\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\n",
		"005 \t;a ; b=c\r\nhello\r\n1A\r\nabcdefghijklmnopqrstuvwxyz\r\n00;last\r\nX-Checksum: 1\r\nServer-Timing: a\r\n\r\n",
	} {
		want := "helloabcdefghijklmnopqrstuvwxyz"
		if text[0] == '0' && text[1] == '\r' {
			want = ""
		}
		for step := 1; step <= len(text)+4; step++ {
			data, used, d, err := decodeAll(text+"NEXT", step)
			require.NoError(t, err)
			require.Equal(t, chunkedDone, d.state)
			require.Equal(t, want, data)
			require.Equal(t, len(text), used, "what follows is not the body's")
		}
	}
}

func TestChunkedIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"no size":                "\r\nabc\r\n",
		"only an extension":      ";x\r\nabc\r\n",
		"not hexadecimal":        "g\r\n",
		"0x":                     "0x3\r\nabc\r\n",
		"signed":                 "+3\r\nabc\r\n",
		"negative":               "-1\r\n",
		"space before":           " 3\r\nabc\r\n",
		"digits behind a blank":  "0 0\r\n\r\n",
		"size too large":         "1000000000000000\r\n",
		"bare LF behind size":    "3\nabc\r\n",
		"bare CR behind size":    "3\rabc\r\n",
		"bare LF in extension":   "3;x\nabc\r\n",
		"NUL in extension":       "3;\x00\r\nabc\r\n",
		"data too long":          "3\r\nabcd\r\n",
		"bare LF behind data":    "3\r\nabc\n0\r\n\r\n",
		"bare LF in trailer":     "0\r\nA: b\n\r\n",
		"bare LF at the end":     "0\r\n\n",
		"CR and no LF at end":    "0\r\n\rX",
		"CR and no LF, trailers": "0\r\nA: b\rX",
		"long extension":         "3;" + strings.Repeat("x", maxChunkLine) + "\r\n",
		"long trailers":          "0\r\n" + strings.Repeat("A: b\r\n", maxTrailer/4),
	} {
		t.Run(name, func(t *testing.T) {
			for _, step := range []int{1, 2, len(text)} {
				_, _, d, err := decodeAll(text, step)
				require.Error(t, err)
				require.NotEqual(t, chunkedDone, d.state)
			}
		})
	}
}

// Data that came before a malformed part is not lost.
func TestChunkedGivesDataBeforeAnError(t *testing.T) {
	var d chunked
	p, _, err := d.decode([]byte("3\r\nabc\r\n2\r\nde\r\nX"))
	require.ErrorIs(t, err, errChunk)
	require.Equal(t, "abcde", string(p))
}

// compareChunks checks that what is accepted here is read alike by net/http,
// whole and byte by byte.
func compareChunks(t *testing.T, body []byte) {
	data, used, d, err := decodeAll(string(body), max(1, len(body)))
	data1, used1, d1, err1 := decodeAll(string(body), 1)
	require.Equal(t, err == nil, err1 == nil)
	require.Equal(t, data, data1)
	require.Equal(t, used, used1)
	require.Equal(t, d, d1)
	if err != nil || d.state != chunkedDone || bytes.Contains(body, []byte(" ;")) || bytes.Contains(body, []byte("\t;")) {
		return // RFC 9112 allows a blank there, theirs does not
	}
	theirs, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(body)))
	require.NoError(t, err)
	require.Equal(t, string(theirs), data)
}

func FuzzChunked(f *testing.F) {
	f.Add([]byte("5\r\nhello\r\n0\r\n\r\n"))
	f.Add([]byte("5;a=b\r\nhello\r\n000\r\nA: b\r\n\r\nrest"))
	f.Add([]byte("1 \r\na\r\nF\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) { compareChunks(t, b) })
}
