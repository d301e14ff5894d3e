package gateway

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// playbook is a script whose next act a test can write while the rig runs.
type playbook struct {
	mu   sync.Mutex
	acts []act
}

func (p *playbook) write(acts ...act) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.acts = acts
}

func (p *playbook) play(k *call) {
	p.mu.Lock()
	a := p.acts[0]
	p.acts = p.acts[min(1, len(p.acts)-1):]
	p.mu.Unlock()
	a(k)
}

// texts are what a model might say to confuse whoever looks for the end of an
// answer, or of an event, in its text.
var texts = []string{
	" a", `[DONE]`, `\n\ndata: [DONE]\n\n`, `{\"done\":true}`, `\"finish_reason\":\"stop\"`, `event: error`, `\u0000`, "é", `\"error\":{`, "",
}

// stretch is the face's content event with a text in place of its own.
func (f face) stretch(text string) string {
	for _, own := range []string{" zm", " waren", " transaction", " nouveau"} {
		if strings.Contains(f.content[0], own) {
			return strings.Replace(f.content[0], own, text, 1)
		}
	}
	return f.content[0]
}

// R7, R8: whatever a stream says, however it is cut into pieces and wherever it
// breaks, the client gets whole events of one replica and no others; and if the
// stream broke after the first content, an error event behind them and no end.
func TestStreamsBrokenAnywhereR8(t *testing.T) {
	for _, f := range faces {
		t.Run(f.name, func(t *testing.T) {
			var book playbook
			r := newRig(t, newTroupe(t, book.play), func(o *rigging) {
				o.engine = f.engine
				o.retry.Budget = 1e6
				o.breaker.ConsecutiveFailures, o.breaker.Window, o.breaker.FailureShare = 1<<30, 1<<30, 2
			})
			rapid.Check(t, func(rt *rapid.T) { breakAnywhere(rt, f, r, &book) })
		})
	}
}

func breakAnywhere(t *rapid.T, f face, r *rig, book *playbook) {
	// A text that is empty makes no content event: it says nothing.
	said := rapid.SliceOfN(rapid.SampledFrom(texts), 1, 5).Draw(t, "said")
	events := []string{f.begin}
	first := -1 // how many bytes bring the first content
	total := len(f.begin)
	for _, text := range said {
		e := f.stretch(text)
		events = append(events, e)
		if total += len(e); text != "" && first < 0 {
			first = total
		}
	}
	content := strings.Join(events, "")
	whole := content + f.terminal
	if first < 0 {
		first = len(whole)
	}
	cut := rapid.IntRange(0, len(whole)).Draw(t, "cut")
	size := rapid.IntRange(16, max(16, len(whole))).Draw(t, "size")
	clean := rapid.Bool().Draw(t, "clean")
	book.write(func(k *call) {
		k.streamHead(f.media)
		for s := whole[:cut]; s != ""; {
			n := min(size, len(s))
			k.chunk(s[:n])
			s = s[n:]
		}
		if clean || cut == len(whole) {
			k.end()
		}
	}, f.good(true))
	got := r.post(f.path, f.body(true))
	require.Equal(t, 200, got.status, "%s", got.raw)
	hint := fmt.Sprintf("%d of %d bytes came in pieces of %d (clean: %v): %q", cut, len(whole), size, clean, got.body)
	switch {
	case got.header.Get("X-Switchyard-Attempts") == "2":
		require.Less(t, cut, first+1, hint)
		require.Equal(t, f.events(), got.body, hint)
		require.True(t, got.clean, hint)
	case got.clean:
		require.True(t, strings.HasPrefix(whole, got.body), hint)
		require.Greater(t, len(got.body), len(content), hint)
		require.LessOrEqual(t, len(got.body), cut, hint)
	default:
		at := strings.LastIndex(got.body, f.errorIs)
		require.GreaterOrEqual(t, at, 0, hint)
		passed := got.body[:at]
		require.True(t, strings.HasPrefix(whole, passed), hint)
		require.True(t, passed == "" || strings.HasSuffix(passed, "\n"), hint)
		require.Less(t, len(passed), len(whole), hint)
		require.Greater(t, cut, 0, hint)
	}
}
