package bench

import (
	"math/rand/v2"
	"strconv"
	"strings"
)

// body is a request's body in OpenAI's form. Its text is as long as the
// request's tokens say, by the simulator's rule of four bytes a token and four
// tokens a message, and follows from the prompt's parts alone; of answers that
// are known, it is what was answered.
func body(r *Request, answers []string) []byte {
	b := make([]byte, 0, bytesPerToken*r.PromptTokens+bodyBytes+messageBytes*len(r.Prompt))
	b = append(b, `{"model":`...)
	b = strconv.AppendQuote(b, r.Model)
	if r.Stream {
		b = append(b, `,"stream":true,"stream_options":{"include_usage":true}`...)
	}
	if r.MaxTokens > 0 {
		b = strconv.AppendInt(append(b, `,"max_tokens":`...), int64(r.MaxTokens), 10)
	}
	b = append(b, `,"messages":[`...)
	for i, p := range r.Prompt {
		tokens := p.Tokens
		if p.Role != RoleSame || i == 0 {
			if i > 0 {
				b = append(b, `"},`...)
			}
			b = append(append(append(b, `{"role":"`...), p.Role.String()...), `","content":"`...)
			tokens -= messageTokens
		}
		if p.Role == RoleAssistant && len(answers) > 0 {
			b, answers = append(b, answers[0]...), answers[1:]
			continue
		}
		b = appendText(b, p.Seed, tokens)
	}
	return append(b, `"}]}`...)
}

// pieces are what texts are made of: a token each.
var pieces = strings.Fields(`the and for are but not you all any can had her was one our out day get has him
	his how man new now old see two way who did its let put say she too use air arm art ask bag bed big
	box buy car cup cut dry ear eat end eye far few fly gas gun hat hot ice job key law leg lie lot low map mix
	net oil own pay red rip row run sea set six sky sun tax tea ten top toy try war wet win yes`)

// appendText appends n tokens of the text that belongs to a number.
func appendText(b []byte, seed uint64, n int) []byte {
	random := rand.NewPCG(seed, 0x7e47)
	for n > 0 {
		for x := random.Uint64(); n > 0 && x > 0xff; x >>= 8 {
			b = append(append(b, pieces[x&0xff%uint64(len(pieces))]...), ' ')
			n--
		}
	}
	return b
}
