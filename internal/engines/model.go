package engines

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
)

// Model is a Llama-shaped model with random weights. It writes fluent nonsense:
// whole made-up words, one a token, and never the end of its text, so that the
// client's maximum says how long an answer is. The same Model gives the same
// file, byte for byte.
type Model struct {
	Seed    uint64
	Dim     int // width; 64 a head
	Layers  int
	Context int // tokens it says it was trained for
}

// Small makes a few megabytes that a CPU runs at some milliseconds a token:
// slow enough to be interrupted, fast enough to wait for.
func Small(seed uint64) Model {
	return Model{Seed: seed, Dim: 256, Layers: 6, Context: 2048}
}

const (
	headDim = 64
	// loud is the value that every token's first channel keeps through all
	// layers. The output rows read it: see outputRow.
	loud = 4
	// never is what that channel takes off the score of a token that must not
	// be chosen.
	never = -40
)

// Write makes the GGUF file at path.
func (m Model) Write(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("making a model file: %w", err)
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	v := newVocabulary(m.Seed)
	if err := writeGGUF(f, m.metadata(v), m.tensors(v)); err != nil {
		return fmt.Errorf("writing the model file %s: %w", path, err)
	}
	return nil
}

func (m Model) metadata(v *vocabulary) []pair {
	return []pair{
		{"general.architecture", "llama"},
		{"general.name", "fluent nonsense"},
		{"general.file_type", uint32(ggmlF16)},
		{"llama.context_length", uint32(m.Context)},
		{"llama.embedding_length", uint32(m.Dim)},
		{"llama.block_count", uint32(m.Layers)},
		{"llama.feed_forward_length", uint32(m.feedForward())},
		{"llama.attention.head_count", uint32(m.Dim / headDim)},
		{"llama.attention.head_count_kv", uint32(m.Dim / headDim)},
		{"llama.attention.layer_norm_rms_epsilon", float32(1e-5)},
		{"llama.rope.dimension_count", uint32(headDim)},
		{"llama.rope.freq_base", float32(10000)},
		{"llama.vocab_size", uint32(len(v.tokens))},
		{"tokenizer.ggml.model", "llama"},
		{"tokenizer.ggml.tokens", v.tokens},
		{"tokenizer.ggml.scores", v.scores},
		{"tokenizer.ggml.token_type", v.kinds},
		{"tokenizer.ggml.unknown_token_id", uint32(tokenUnknown)},
		{"tokenizer.ggml.bos_token_id", uint32(tokenBegin)},
		{"tokenizer.ggml.eos_token_id", uint32(tokenEnd)},
		{"tokenizer.ggml.add_bos_token", true},
		{"tokenizer.ggml.add_eos_token", false},
		{"tokenizer.ggml.add_space_prefix", false},
		{"tokenizer.chat_template", chatTemplate},
	}
}

func (m Model) feedForward() int { return m.Dim * 11 / 4 / 32 * 32 }

func (m Model) tensors(v *vocabulary) []tensor {
	d, ff := m.Dim, m.feedForward()
	out := []tensor{
		{name: "token_embd.weight", cols: d, rows: len(v.tokens), half: true, row: m.embedding()},
		{name: "output_norm.weight", cols: d, rows: 1, row: ones},
		{name: "output.weight", cols: d, rows: len(v.tokens), half: true, row: m.outputRow(v)},
	}
	for i := range m.Layers {
		name := func(part string) string { return fmt.Sprintf("blk.%d.%s.weight", i, part) }
		out = append(
			out,
			tensor{name: name("attn_norm"), cols: d, rows: 1, row: ones},
			tensor{name: name("attn_q"), cols: d, rows: d, half: true, row: m.random(name("attn_q"), d)},
			tensor{name: name("attn_k"), cols: d, rows: d, half: true, row: m.random(name("attn_k"), d)},
			tensor{name: name("attn_v"), cols: d, rows: d, half: true, row: m.random(name("attn_v"), d)},
			tensor{name: name("attn_output"), cols: d, rows: d, half: true, row: m.quietFirst(name("attn_output"), d)},
			tensor{name: name("ffn_norm"), cols: d, rows: 1, row: ones},
			tensor{name: name("ffn_gate"), cols: d, rows: ff, half: true, row: m.random(name("ffn_gate"), d)},
			tensor{name: name("ffn_up"), cols: d, rows: ff, half: true, row: m.random(name("ffn_up"), d)},
			tensor{name: name("ffn_down"), cols: ff, rows: d, half: true, row: m.quietFirst(name("ffn_down"), ff)},
		)
	}
	return out
}

func ones(_ int, out []float32) {
	for i := range out {
		out[i] = 1
	}
}

// random gives rows that keep the size of what goes through them; each tensor
// has a generator of its own, named after it.
func (m Model) random(name string, inputs int) func(int, []float32) {
	g := m.generator(name)
	scale := float32(1 / math.Sqrt(float64(inputs)))
	return func(_ int, out []float32) {
		for i := range out {
			out[i] = float32(g.NormFloat64()) * scale
		}
	}
}

// quietFirst is random but for the first row, which is zero: what a layer adds
// leaves the first channel as it was.
func (m Model) quietFirst(name string, inputs int) func(int, []float32) {
	row := m.random(name, inputs)
	return func(r int, out []float32) {
		if r > 0 {
			row(r, out)
		}
	}
}

// embedding gives each token a random place, loud in the first channel.
func (m Model) embedding() func(int, []float32) {
	row := m.random("token_embd", 1)
	return func(r int, out []float32) {
		row(r, out)
		out[0] = loud
	}
}

// outputRow scores the next token. The first channel is the same positive
// number wherever the text goes, so a weight on it is a bias, which a Llama
// has no other place for: words get none, everything else, the end of the text
// above all, one that no chance makes good.
func (m Model) outputRow(v *vocabulary) func(int, []float32) {
	row := m.random("output", m.Dim)
	return func(r int, out []float32) {
		row(r, out)
		for i := range out {
			out[i] *= 2
		}
		out[0] = 0
		if !v.spoken[r] {
			out[0] = never
		}
	}
}

func (m Model) generator(name string) *rand.Rand {
	h := uint64(14695981039346656037) // FNV-1a
	for _, c := range []byte(name) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return rand.New(rand.NewPCG(m.Seed, h))
}
