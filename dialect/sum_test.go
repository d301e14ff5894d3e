package dialect

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func sumOf(t *testing.T, path string, body []byte) uint64 {
	a, err := Parse(at(t, path), body)
	require.NoError(t, err)
	require.NotZero(t, a.Sum)
	return a.Sum
}

// R4: a body is known again by its sum, and by nothing less than all of it: any
// other byte, in a text or beside it, makes another one.
func TestSumTellsBodiesApart(t *testing.T) {
	long := strings.Repeat("abcdefghij", longText/4)
	for _, path := range []string{chatPath, "/v1/embeddings"} {
		body := []byte(`{"model":"m","seed":1000,"messages":[{"role":"user","content":"` + long + `"},{"role":"user","content":"short"},` +
			`{"role":"user","content":"` + long + `\n` + long + `"}],"input":"x","top_k":40}`)
		sum := sumOf(t, path, body)
		require.Equal(t, sum, sumOf(t, path, bytes.Clone(body)))
		others := map[uint64]bool{sum: true}
		for i := range body {
			other := bytes.Clone(body)
			other[i] ^= 1
			a, err := Parse(at(t, path), other)
			if err != nil {
				continue // no JSON any more
			}
			require.False(t, others[a.Sum], "the byte at %d", i)
			others[a.Sum] = true
		}
		require.Greater(t, len(others), 3*len(long))
	}
}

// How a long text is written may make no difference, as for the chain.
func TestSumOfALongText(t *testing.T) {
	long := strings.Repeat("abcdefghij", longText)
	body := func(text string) []byte { return []byte(`{"messages":[{"role":"user","content":"` + text + `"}]}`) }
	require.Equal(t, sumOf(t, chatPath, body(long)), sumOf(t, chatPath, body(`\u0061`+long[1:])))
}
