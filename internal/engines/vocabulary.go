package engines

import (
	"fmt"
	"math/rand/v2"
)

// The ids and kinds that a SentencePiece vocabulary has in GGUF.
const (
	tokenUnknown, tokenBegin, tokenEnd = 0, 1, 2

	kindNormal, kindUnknown, kindControl, kindByte = 1, 2, 3, 6
)

// chatTemplate is how the conversation is written for the model. Nothing was
// learned from it; it only makes prompts whose length follows the messages'.
const chatTemplate = `{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }}
{% endfor %}<assistant>`

// goTemplate is the same in the form that an Ollama Modelfile takes.
const goTemplate = `{{- range .Messages }}<{{ .Role }}> {{ .Content }}
{{ end }}<assistant>`

const (
	space = "▁" // how SentencePiece writes a space
	words = 320
)

// vocabulary is a small made-up one: the control tokens, one token a byte (so
// that any text can be a prompt), letters, syllables, and words of two
// syllables, each reachable by merging pairs.
type vocabulary struct {
	tokens []string
	scores []float32
	kinds  []int32
	spoken []bool // words that an answer may be made of
	have   map[string]bool
}

func newVocabulary(seed uint64) *vocabulary {
	v := &vocabulary{have: map[string]bool{}}
	v.add("<unk>", kindUnknown, false)
	v.add("<s>", kindControl, false)
	v.add("</s>", kindControl, false)
	for b := range 256 {
		v.add(fmt.Sprintf("<0x%02X>", b), kindByte, false)
	}
	v.add(space, kindNormal, false)
	for c := 'a'; c <= 'z'; c++ {
		v.add(string(c), kindNormal, false)
	}
	var syllables []string
	for _, c := range "bdfgklmnprstvz" {
		for _, vowel := range "aeiou" {
			syllables = append(syllables, string(c)+string(vowel))
		}
	}
	for _, s := range syllables {
		v.add(s, kindNormal, false)
	}
	for _, s := range syllables {
		v.add(space+s, kindNormal, true)
	}
	g := rand.New(rand.NewPCG(seed, 1))
	for range words {
		v.add(space+syllables[g.IntN(len(syllables))]+syllables[g.IntN(len(syllables))], kindNormal, true)
	}
	return v
}

// add appends a token once. Later ones are merged later.
func (v *vocabulary) add(token string, kind int32, spoken bool) {
	if v.have[token] {
		return
	}
	v.have[token] = true
	score := float32(0)
	if kind == kindNormal {
		score = -float32(len(v.tokens))
	}
	v.tokens = append(v.tokens, token)
	v.scores = append(v.scores, score)
	v.kinds = append(v.kinds, kind)
	v.spoken = append(v.spoken, spoken)
}
