package engines

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func written(t *testing.T, m Model) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, m.Write(path))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

func TestModelIsTheSameForASeed(t *testing.T) {
	m := Model{Seed: 1, Dim: 64, Layers: 1, Context: 128}
	other := m
	other.Seed = 2
	require.Equal(t, written(t, m), written(t, m))
	require.NotEqual(t, written(t, m), written(t, other))
}

func TestModelFileIsLaidOutAsItsHeaderSays(t *testing.T) {
	m := Model{Seed: 1, Dim: 64, Layers: 2, Context: 128}
	v := newVocabulary(m.Seed)
	data := written(t, m)
	require.Equal(t, "GGUF", string(data[:4]))
	require.EqualValues(t, 3, binary.LittleEndian.Uint32(data[4:]))
	tensors := m.tensors(v)
	require.EqualValues(t, len(tensors), binary.LittleEndian.Uint64(data[8:]))
	require.EqualValues(t, len(m.metadata(v)), binary.LittleEndian.Uint64(data[16:]))
	size := 0
	for _, x := range tensors {
		size += aligned(x.bytes())
	}
	head := len(data) - size
	require.Zero(t, head%ggufAlignment)
	// The second tensor is a vector of ones: it stands where its offset says.
	at := head + aligned(tensors[0].bytes())
	require.Equal(t, "output_norm.weight", tensors[1].name)
	require.Equal(t, float32(1), math.Float32frombits(binary.LittleEndian.Uint32(data[at:])))
	require.Contains(t, string(data[:head]), "tokenizer.ggml.tokens")
}

func TestVocabularyCanSayAnythingAndSpeaksOnlyWords(t *testing.T) {
	v := newVocabulary(1)
	require.Len(t, v.scores, len(v.tokens))
	require.Len(t, v.kinds, len(v.tokens))
	require.Len(t, v.spoken, len(v.tokens))
	require.Equal(t, "</s>", v.tokens[tokenEnd])
	require.False(t, v.spoken[tokenEnd])
	bytesKnown, words := 0, 0
	for i, token := range v.tokens {
		if v.kinds[i] == kindByte {
			bytesKnown++
		}
		if v.spoken[i] {
			words++
			require.True(t, bytes.HasPrefix([]byte(token), []byte(space)), token)
		}
	}
	require.Equal(t, 256, bytesKnown)
	require.Greater(t, words, 300)
}

// single decodes a half float, as the other direction to test against.
func single(h uint16) float64 {
	sign := 1.0
	if h&0x8000 != 0 {
		sign = -1
	}
	exp, frac := int(h>>10&31), float64(h&0x3ff)
	if exp == 0 {
		return sign * math.Ldexp(frac, -24)
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

func TestHalfFloats(t *testing.T) {
	for h := range uint16(31 << 10) { // all finite ones
		require.Equal(t, h, half(float32(single(h))))
		require.Equal(t, h|0x8000, half(-float32(single(h))))
		if h > 0 {
			between := single(h-1) + 0.75*(single(h)-single(h-1))
			require.Equal(t, h, half(float32(between)), "%g is nearest to %g", between, single(h))
		}
	}
	require.Equal(t, uint16(0x7c00), half(1e6))
	require.Equal(t, uint16(0), half(1e-12))
}
