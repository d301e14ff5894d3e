package simserver

import (
	"strconv"
	"strings"
)

// tokenize cuts a text into the tokens that prompts are counted in: up to four
// bytes each, told by a number from which the bytes can be had back.
func tokenize(s string) []int64 {
	ids := make([]int64, 0, countTokens(len(s)))
	for s != "" {
		n := min(len(s), bytesPerToken)
		id := int64(1)
		for i := range n {
			id = id<<8 | int64(s[i])
		}
		ids, s = append(ids, id), s[n:]
	}
	return ids
}

// detokenize is the reverse.
func detokenize(ids []int64) string {
	var b []byte
	for _, id := range ids {
		var piece []byte
		for ; id > 1; id >>= 8 {
			piece = append(piece, byte(id))
		}
		for i := len(piece) - 1; i >= 0; i-- {
			b = append(b, piece[i])
		}
	}
	return string(b)
}

func appendIDs(b []byte, ids []int64) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, id, 10)
	}
	return append(b, ']')
}

// tokenRequest is the body of the paths around the tokenizer.
type tokenRequest struct {
	Model    string    `json:"model"`
	Content  string    `json:"content"` // llama.cpp
	Prompt   string    `json:"prompt"`  // vLLM
	Tokens   []int64   `json:"tokens"`
	Messages []message `json:"messages"`
	System   content   `json:"system"`
	Tools    tools     `json:"tools"`
}

// template is a conversation as the text that the model would see.
func template(messages []message) string {
	var s strings.Builder
	for _, m := range messages {
		s.WriteString("<|" + m.Role + "|>\n" + m.Content.text + "</s>\n")
	}
	return s.String() + "<|assistant|>\n"
}

// count is the number of tokens in a conversation.
func (q *tokenRequest) count() int {
	return tokensOfParts(promptOf(q.System.text, q.Tools, q.Messages))
}
