package gateway

import (
	"strings"

	"github.com/cespare/xxhash/v2"

	"switchyard/admission"
	"switchyard/dialect"
)

// chain is the prompt's prefix chain, its parts in estimated tokens (R6). Where
// the body says nothing of how its prompt begins, the session that the client
// names stands for it: a chain of one part, a hint where it went before.
func (q *visit) chain(ask *dialect.Ask) (chain []admission.Part, hint bool) {
	if len(ask.Chain) == 0 {
		return q.session(ask), true
	}
	out := make([]admission.Part, len(ask.Chain))
	end := 0
	for i, p := range ask.Chain {
		out[i] = admission.Part{Hash: p.Hash, Tokens: (end+p.Bytes)/4 - end/4}
		end += p.Bytes
	}
	return out, false
}

func (q *visit) session(ask *dialect.Ask) []admission.Part {
	if q.v.SessionHeader == "" || q.ep.Kind != dialect.KindChat && q.ep.Kind != dialect.KindGenerate || ask.Preload || ask.Unload {
		return nil
	}
	id := strings.TrimSpace(q.r.Header.Get(q.v.SessionHeader))
	if id == "" {
		return nil
	}
	var d xxhash.Digest
	d.Reset()
	d.WriteString("session")
	d.WriteString(q.keyName())
	d.Write([]byte{0})
	d.WriteString(id)
	return []admission.Part{{Hash: d.Sum64(), Tokens: 1}}
}
