package dialect

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// Part is one piece of a prompt in its prefix chain (R6). Its hash stands for the
// whole prompt up to its end: two prompts begin alike as far as the hashes of
// their chains are equal, and after a difference no two are. Bytes is the size of
// the piece alone; a token id counts as 4 bytes and a picture as 4×MediaTokens, so
// that a quarter of it is its tokens as in Ask.PromptTokens.
//
// A chain goes through tools, system prompt and messages in this order, wherever
// they stand in the body. The model is not in it: the name that a client uses may
// be an alias, or be ignored, so whoever keeps chains keeps them by model.
//
// Chains do not depend on the spacing of the JSON, the order of names, escapes,
// parameters (sampling, limits, stream, tool_choice, …), the id, "type", "detail"
// and "index" of a message or content part, marks for caching, signatures, members
// that are null or empty, nor on whether a message's text is a string or a list of
// one text, or a picture a data URL or bare base64. They do depend on the order of
// what is in lists, on how a number is written, on which texts of one message are
// one, and on tool arguments being a text or an object. OpenAI and Ollama chats of
// the same messages have equal chains; other formats have chains of their own.
//
// The hashes are quick ones of 64 bits, no defence against somebody who makes two
// prompts collide: all that comes of that is a wrong guess about a cache.
type Part struct {
	Hash  uint64
	Bytes int
}

// The size of parts. A message ends a part, and so does each blockBytes of a
// long text; past exactParts messages, or 32 blocks, a part is at least a 32nd
// of what is before it. Where a part ends depends on nothing that comes after
// it. A chain has at most maxParts parts and one for each kind of member that
// has a prompt in it; 256 KiB of one text make about 140.
const (
	blockBytes = 512
	exactParts = 128
	coarser    = 32
	maxParts   = 1024
)

// place is a member of the body that has a part of the prompt in it, in the
// order in which the engines put them together.
type place uint8

const (
	atTools place = iota
	atFunctions
	atSystem
	atInstructions
	atExtra
	atPrefix
	atContext
	atImages
	atMessages
	atPrompt
	atInput
	atSuffix
	atInputSuffix
	places
)

// Values of what has no bytes to hash.
const (
	seedPlace  = 0x9e3779b97f4a7c15
	seedTrue   = 0xd6e8feb86659fd93
	seedFalse  = 0xa0761d6478bd642f
	seedFormat = 0xe7037ed1a0b428db
)

// chain is the state of building one. Each place is hashed by itself, since the
// members of a body stand in any order; they are joined at the end.
type chain struct {
	*scratch
	chained bool // engines cache prompts of this kind
	spans   [places]struct{ from, to int32 }

	h     uint64 // over the place so far
	first int    // the place's first part
	began tally  // where the place began
	cutH  uint64 // h at the last part's end
	cut   int    // weight there

	sum    uint64 // of the body up to summed
	summed int

	message  int    // the turn's first part
	label    uint64 // of the turn: all that is neither text nor picture
	pictures uint64 // of the turn
	shown    uint64 // how many of them
}

// mix adds a value to a hash: for either of them, others give others.
func mix(h, v uint64) uint64 {
	h = (bits.RotateLeft64(h, 5) ^ v) * 0x9e3779b97f4a7c15
	return h ^ h>>32
}

// in reads a member of the body as a place of the prompt.
func (p *parser) in(at place, read func() error) error {
	p.h, p.first = mix(seedPlace, uint64(at)), len(p.parts)
	p.began, p.cut, p.cutH = p.prompt, p.prompt.weight(), p.h
	err := read()
	p.part()
	p.spans[at].from, p.spans[at].to = int32(p.first), int32(len(p.parts))
	return err
}

// begin opens a turn.
func (p *parser) begin() {
	p.message, p.label, p.pictures, p.shown = len(p.parts), 0, 0, 0
}

// finish closes a turn: its label enters all of its parts, since it may stand
// behind the texts.
func (p *parser) finish() {
	if label := p.label + p.pictures; label != 0 {
		for i := p.message; i < len(p.parts); i++ {
			p.parts[i].Hash = mix(p.parts[i].Hash, label)
		}
		p.add(label)
	}
	if len(p.parts)-p.first < exactParts {
		p.part()
	} else {
		p.partIfDue()
	}
}

// add takes a value into the chain.
func (p *parser) add(v uint64) { p.h = mix(p.h, v) }

// partIfDue ends a part where it is large enough.
func (p *parser) partIfDue() {
	now := p.prompt.weight()
	if now-p.cut >= max(blockBytes, (now-p.began.weight())/coarser) && len(p.parts) < maxParts {
		p.part()
	}
}

// part ends a part here, if there is anything in it.
func (p *parser) part() {
	if !p.chained || p.h == p.cutH {
		return
	}
	now := p.prompt.weight()
	p.parts = append(p.parts, Part{Hash: p.h, Bytes: now - p.cut})
	p.cut, p.cutH = now, p.h
}

// id reads a token id, the n-th of its list.
func (p *parser) id(n int) error {
	p.prompt.ids++
	start, v := p.i, uint64(0)
	for p.i < len(p.b) && p.b[p.i]-'0' <= 9 {
		v = v*10 + uint64(p.b[p.i]-'0')
		p.i++
	}
	// Whatever is more than digits goes the long way.
	if p.i == len(p.b) || p.b[p.i] != ',' && p.b[p.i] != ']' && !isSpace(p.b[p.i]) || p.b[start] == '0' || p.i-start > 19 {
		p.i = start
		if err := p.digits(); err != nil {
			return err
		}
		v = p.hash(p.b[start:p.i])
	}
	p.h = mix(p.h, v)
	if n%(blockBytes/4) == 0 {
		p.partIfDue()
	}
	return nil
}

// say reads a text of the prompt and takes it into the chain.
func (p *parser) say() error {
	if p.isData() {
		return p.picture()
	}
	start := p.i
	err := p.spell(p.feed)
	if p.chained && p.i-start >= longText {
		p.sum = mix(mix(p.sum, sum(p.b[p.summed:start])), p.h)
		p.summed = p.i
	}
	return err
}

// longText is what is not read again for Ask.Sum: its hash is known.
const longText = 2 * blockBytes

// feed takes text into the chain, block by block.
func (p *parser) feed(s []byte) {
	for p.chained && len(s) >= blockBytes {
		p.add(xxhash.Sum64(s[:blockBytes]))
		p.prompt.bytes += blockBytes
		p.partIfDue()
		s = s[blockBytes:]
	}
	if p.chained && len(s) > 0 {
		p.add(sum(s))
	}
	p.prompt.bytes += len(s)
}

// digest reads a string and gives the hash and the length of its text; an empty
// one has the hash 0.
func (p *parser) digest() (v uint64, n int, err error) {
	err = p.spell(func(s []byte) {
		n += len(s)
		for p.chained && len(s) > 0 {
			block := s[:min(len(s), blockBytes)]
			s = s[len(block):]
			v = mix(v, sum(block))
		}
	})
	return v, n, err
}

// isData reports whether the string that comes is a data URL, which is a picture.
func (p *parser) isData() bool {
	if !bytes.HasPrefix(p.b[p.i:], []byte(`"data:`)) {
		return false
	}
	head := p.b[p.i+1 : min(p.i+128, len(p.b))]
	if i := bytes.IndexByte(head, '"'); i >= 0 {
		head = head[:i]
	}
	return bytes.Contains(head, []byte(base64Mark))
}

const base64Mark = ";base64,"

// picture takes a picture into the turn: the string at which the walker stands.
// Of a data URL the base64 counts, so that it is the same as the bare picture of
// Ollama.
func (p *parser) picture() error {
	p.prompt.media++
	data := p.isData()
	var d xxhash.Digest
	d.Reset()
	err := p.spell(func(s []byte) {
		if !p.chained {
			return
		}
		if data {
			s, data = s[bytes.Index(s, []byte(base64Mark))+len(base64Mark):], false
		}
		_, _ = d.Write(s)
	})
	p.shown++
	p.pictures += mix(p.shown, d.Sum64())
	return err
}

// hash is a hash of bytes that mean themselves.
func (p *parser) hash(b []byte) uint64 {
	if !p.chained {
		return 0
	}
	return sum(b)
}

// sum is a hash of any bytes, quick for words.
func sum(b []byte) uint64 {
	n := len(b)
	var x, y uint64
	switch {
	case n > 16:
		return xxhash.Sum64(b)
	case n >= 8:
		x, y = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[n-8:])
	case n >= 4:
		x, y = uint64(binary.LittleEndian.Uint32(b)), uint64(binary.LittleEndian.Uint32(b[n-4:]))
	case n > 0:
		x, y = uint64(b[0])<<16|uint64(b[n/2])<<8|uint64(b[n-1]), 0
	}
	return mix(mix(uint64(n), x), y)
}

// scratch is what reading a body needs beside the stack.
type scratch struct {
	parts []Part
	text  [32 << 10]byte // of a string with escapes
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// link joins the places to one chain.
func (p *parser) link() {
	if len(p.parts) == 0 {
		return
	}
	h := mix(seedFormat, p.ep.chainFormat())
	out := make([]Part, 0, len(p.parts))
	for _, s := range p.spans {
		before := h
		for _, part := range p.parts[s.from:s.to] {
			h = mix(before, part.Hash)
			out = append(out, Part{h, part.Bytes})
		}
	}
	p.ask.Chain = out
}

// chainFormat tells formats apart whose chains must not be compared: what a
// message is in one is not what it is in another.
func (e *Endpoint) chainFormat() uint64 {
	f := e.Format
	if e.Kind == KindChat && f == Ollama {
		f = OpenAI
	}
	return uint64(f)<<8 | uint64(e.Kind)
}
