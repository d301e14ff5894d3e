package simserver

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/cespare/xxhash/v2"

	"switchyard/simserver/model"
)

// ask is what a body asks, in whatever format it was said.
type ask struct {
	model.Request
	name     string   // the model's name as the client wrote it
	messages bool     // a conversation: the answer is part of the next prompt
	said     []string // the prompts of a completion, echoed by llama.cpp
	image    bool
	grammar  string
	think    bool      // the answer begins with reasoning
	call     *toolCall // the answer is a tool call

	includeUsage   bool
	perToken       bool // timings with each event
	returnProgress bool
	inputs         int // texts to embed or documents to rank
	base64         bool
	unload         bool
	store          bool      // Responses: keep the answer
	previous       string    // Responses: the response that this one follows
	turn           []message // Responses: what is new in it
}

// Sizes: a token is four bytes of text, and a message costs a few more.
const (
	bytesPerToken = 4
	messageTokens = 4
	pieceBytes    = 256 // a long text is remembered in pieces of this size
)

func countTokens(n int) int { return (n + bytesPerToken - 1) / bytesPerToken }

// chain adds a text to a prompt: one part per piece, each hash over all before.
func chain(parts []model.Part, role, text string, extra int) []model.Part {
	var h uint64
	if n := len(parts); n > 0 {
		h = parts[n-1].Hash
	}
	h = hashOn(h, role)
	for first := true; first || text != ""; first = false {
		piece := text[:min(len(text), pieceBytes)]
		text = text[len(piece):]
		h = hashOn(h, piece)
		tokens := countTokens(len(piece))
		if first {
			tokens += extra
		}
		if tokens > 0 {
			parts = append(parts, model.Part{Hash: h, Tokens: tokens})
		}
	}
	return parts
}

func tokensOfParts(parts []model.Part) int {
	n := 0
	for _, p := range parts {
		n += p.Tokens
	}
	return n
}

func hashOn(h uint64, s string) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(h)
	_, _ = d.WriteString(s)
	var size [8]byte
	binary.LittleEndian.PutUint64(size[:], uint64(len(s)))
	_, _ = d.Write(size[:])
	return d.Sum64()
}

// message is one turn of a conversation in any of the formats.
type message struct {
	Role    string  `json:"role"`
	Content content `json:"content"`
}

// content is a string, or a list of parts of which the texts count.
type content struct {
	text  string
	image bool
}

var errContent = errors.New("expected 'content' to be a string or an array")

func (c *content) UnmarshalJSON(b []byte) error {
	switch b[0] {
	case 'n':
		return nil
	case '"':
		return json.Unmarshal(b, &c.text)
	case '[':
		var list []struct {
			Type    string   `json:"type"`
			Text    string   `json:"text"`
			Content *content `json:"content"` // tool results
		}
		if err := json.Unmarshal(b, &list); err != nil {
			return err
		}
		for _, p := range list {
			c.text += p.Text
			if p.Content != nil {
				c.text += p.Content.text
			}
			c.image = c.image || p.Type == "image_url" || p.Type == "input_image" || p.Type == "image"
		}
		return nil
	}
	return errContent
}

// promptOf chains system text, tools and messages.
func promptOf(system string, offered tools, messages []message) []model.Part {
	var parts []model.Part
	if len(offered.raw) > 0 {
		parts = chain(parts, "tools", string(offered.raw), 0)
	}
	if system != "" {
		parts = chain(parts, "system", system, messageTokens)
	}
	for _, m := range messages {
		parts = chain(parts, m.Role, m.Content.text, messageTokens)
	}
	return parts
}

// texts is a prompt or input: a string, tokens, or a list of either.
type texts struct {
	list [][]model.Part
	said []string
}

func (t *texts) UnmarshalJSON(b []byte) error {
	var one string
	var many []string
	var ids []int64
	var manyIDs [][]int64
	switch {
	case b[0] == 'n':
	case json.Unmarshal(b, &one) == nil:
		t.add(one)
	case json.Unmarshal(b, &many) == nil:
		for _, s := range many {
			t.add(s)
		}
	case json.Unmarshal(b, &ids) == nil:
		t.addIDs(ids)
	case json.Unmarshal(b, &manyIDs) == nil:
		for _, l := range manyIDs {
			t.addIDs(l)
		}
	default:
		return errPrompt
	}
	return nil
}

var errPrompt = errors.New("\"prompt\" must be a string, an list of tokens, a list of mixed strings & tokens, or a list of prompts")

func (t *texts) add(s string) {
	t.said = append(t.said, s)
	t.list = append(t.list, chain(nil, "text", s, 1))
}

func (t *texts) addIDs(ids []int64) {
	var parts []model.Part
	var h uint64
	const step = pieceBytes / bytesPerToken
	for len(ids) > 0 {
		piece := ids[:min(len(ids), step)]
		ids = ids[len(piece):]
		h = hashOn(h, fmt.Sprint(piece))
		parts = append(parts, model.Part{Hash: h, Tokens: len(piece)})
	}
	t.said = append(t.said, "")
	t.list = append(t.list, parts)
}

// readBody reads a whole body, up to 256 MiB.
func readBody(r *http.Request) ([]byte, error) {
	var b bytes.Buffer
	if r.ContentLength > 0 {
		b.Grow(int(min(r.ContentLength, 64<<20)))
	}
	_, err := io.Copy(&b, io.LimitReader(r.Body, 256<<20))
	return b.Bytes(), err
}

// maxTokens is a limit as the engines read it: none, or at least one.
func maxTokens(limits ...*int) int {
	for _, l := range limits {
		if l != nil && *l >= 0 {
			return max(*l, 1)
		}
	}
	return 0
}
