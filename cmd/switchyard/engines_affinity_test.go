//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// R6: the second turn of a long conversation goes back to the server that has it
// in its prompt cache, and takes a part of the time there; without affinity it
// takes its chance.
func TestRealEngineAffinity(t *testing.T) {
	r := newEngineRig(t, false)
	for _, name := range []string{"a", "b"} { // load both, so that no turn waits for it
		r.chat(r.servers[name].URL(), []turn{{"user", "hello"}})
	}
	const talks = 8
	with := r.secondTurns("with", talks)
	r.more = "affinity: {enabled: false}\n"
	r.serve()
	without := r.secondTurns("without", talks)
	t.Logf("prompt of the second turn, %d conversations: with affinity %d stayed, %s (median); without %d stayed, %s",
		talks, with.stayed, with.median(), without.stayed, without.median())
	require.Equal(t, talks, with.stayed)
	require.Less(t, without.stayed, talks)
	require.Less(t, with.median(), with.first()/3, "a second turn's prompt against a first one's")
	require.Less(t, with.sum(), without.sum())
}

type turnTimes struct {
	stayed int
	firsts []time.Duration // for the first turns' prompts
	times  []time.Duration // for the second ones'
}

func middle(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

func (x turnTimes) median() time.Duration { return middle(x.times) }
func (x turnTimes) first() time.Duration  { return middle(x.firsts) }

func (x turnTimes) sum() (s time.Duration) {
	for _, d := range x.times {
		s += d
	}
	return s
}

// secondTurns has conversations of two turns, one after the other.
func (r *engineRig) secondTurns(what string, talks int) (x turnTimes) {
	for i := range talks {
		said := []turn{{"user", strings.Repeat(fmt.Sprintf("%s %d and so on, ", what, i), 90)}}
		first := r.chat(r.clients, said)
		said = append(said, turn{"assistant", first.Message.Content}, turn{"user", "and then?"})
		second := r.chat(r.clients, said)
		if first.replica == second.replica {
			x.stayed++
		}
		x.firsts = append(x.firsts, time.Duration(first.Prompt))
		x.times = append(x.times, time.Duration(second.Prompt))
		r.t.Logf("%s affinity, conversation %d: %d tokens in %s on %s; then %d tokens in %s on %s (%s)", what, i,
			first.Tokens, time.Duration(first.Prompt), first.replica, second.Tokens, time.Duration(second.Prompt), second.replica, second.affinity)
	}
	return x
}

// chatted is what is read of an answer of /api/chat.
type chatted struct {
	Message           struct{ Content string }
	Tokens            int   `json:"prompt_eval_count"`
	Prompt            int64 `json:"prompt_eval_duration"`
	replica, affinity string
}

func (r *engineRig) chat(base string, said []turn) (got chatted) {
	r.t.Helper()
	body, _ := json.Marshal(map[string]any{"model": nonsense, "stream": false, "messages": said, "options": map[string]int{"num_predict": 10}})
	req, err := http.NewRequestWithContext(r.ctx, http.MethodPost, base+"/api/chat", bytes.NewReader(body))
	require.NoError(r.t, err)
	resp, err := r.http.Do(req)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	require.Equal(r.t, http.StatusOK, resp.StatusCode)
	require.NoError(r.t, json.NewDecoder(resp.Body).Decode(&got))
	got.replica, got.affinity = resp.Header.Get("X-Switchyard-Replica"), resp.Header.Get("X-Switchyard-Affinity")
	return got
}
