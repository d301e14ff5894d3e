package gateway

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/dialect"
	"switchyard/replica"
)

// R6: in every format a prompt is known again where it was processed, its body
// goes as it came, and the header says what was expected.
func TestPromptsAreKnownAgainR6(t *testing.T) {
	for _, f := range faces {
		t.Run(f.name, func(t *testing.T) {
			tr := newTroupe(t, f.good(true))
			r := newRig(t, tr, func(o *rigging) { o.engine, o.affinity, o.replicas = f.engine, true, 1 })
			body := regexp.MustCompile(`"(content|prompt|input)": ?"`).ReplaceAllString(f.body(true), "${0}"+strings.Repeat("once upon a time ", 500))
			require.Greater(t, len(body), 8000)
			first := r.post(f.path, body)
			require.Equal(t, "miss", first.header.Get("X-Switchyard-Affinity"))
			for range 3 {
				again := r.post(f.path, body)
				require.Equal(t, "hit", again.header.Get("X-Switchyard-Affinity"))
			}
			for _, c := range tr.calls() {
				require.Equal(t, body, c.body)
			}
		})
	}
}

// R6: affinity.pin_slots adds a slot to the body for llama.cpp and nothing else;
// a conversation keeps its slot, one that runs beside it has another.
func TestPinnedSlotsR6(t *testing.T) {
	for _, f := range faces {
		if f.path != "/v1/chat/completions" && f.path != "/completion" {
			continue
		}
		tr := newTroupe(t, f.good(true))
		r := newRig(t, tr, func(o *rigging) { o.engine, o.affinity, o.pinned, o.replicas = replica.EngineLlamaCpp, true, true, 1 })
		body := func(prompt string) string {
			return fmt.Sprintf(`{"model":"m","stream":true,"prompt":%q,"messages":[{"role":"user","content":%q}]}`, prompt, prompt)
		}
		slot := func(prompt string) int {
			require.Equal(t, 200, r.post(f.path, body(prompt)).status)
			calls := tr.calls()
			var n int
			sent := calls[len(calls)-1].body
			_, err := fmt.Sscanf(sent, `{"id_slot":%d,`, &n)
			require.NoError(t, err, sent)
			require.Equal(t, body(prompt)[1:], sent[len(fmt.Sprintf(`{"id_slot":%d,`, n)):])
			return n
		}
		one, two := slot("one"), slot("two")
		require.NotEqual(t, one, two)
		require.Equal(t, one, slot("one"))
		require.Equal(t, two, slot("two"))
	}
}

// The parts of a chain add up to the estimate of the whole, whatever their sizes.
func TestChainTokensAddUp(t *testing.T) {
	q := &visit{}
	ask := dialect.Ask{Chain: []dialect.Part{{Hash: 1, Bytes: 3}, {Hash: 2, Bytes: 0}, {Hash: 3, Bytes: 6}, {Hash: 4, Bytes: 4003}}}
	chain, hint := q.chain(&ask)
	require.False(t, hint)
	require.Equal(t, []admission.Part{{Hash: 1, Tokens: 0}, {Hash: 2, Tokens: 0}, {Hash: 3, Tokens: 2}, {Hash: 4, Tokens: 1001}}, chain)
}

// R6: a session is one of its key's, and stands in only where a prompt could be
// cached.
func TestSessionsR6(t *testing.T) {
	of := func(path, header, id string, key *Key, ask dialect.Ask) []admission.Part {
		ep, _ := dialect.Lookup(path)
		q := &visit{v: &view{Settings: Settings{SessionHeader: header}}, r: httptest.NewRequest(http.MethodPost, path, nil), ep: ep, key: key}
		q.r.Header.Set("X-Session-ID", id)
		chain, _ := q.chain(&ask)
		return chain
	}
	const chat = "/v1/chat/completions"
	one := of(chat, "X-Session-ID", "one", nil, dialect.Ask{})
	require.Len(t, one, 1)
	require.Equal(t, one, of("/completion", "X-Session-ID", " one ", nil, dialect.Ask{}))
	require.NotEqual(t, one, of(chat, "X-Session-ID", "two", nil, dialect.Ask{}))
	require.NotEqual(t, one, of(chat, "X-Session-ID", "one", &Key{Name: "team"}, dialect.Ask{}))
	require.Empty(t, of(chat, "", "one", nil, dialect.Ask{}))
	require.Empty(t, of(chat, "X-Other", "one", nil, dialect.Ask{}))
	require.Empty(t, of(chat, "X-Session-ID", " ", nil, dialect.Ask{}))
	require.Empty(t, of("/v1/embeddings", "X-Session-ID", "one", nil, dialect.Ask{}))
	require.Empty(t, of("/api/generate", "X-Session-ID", "one", nil, dialect.Ask{Preload: true}))
}
