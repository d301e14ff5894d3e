package gateway

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// breakage is a way in which a stream breaks after its first content.
type breakage struct {
	name   string
	then   func(f face, k *call)
	reason string // of switchyard_streams_broken_total
	code   string // the gateway's reason
}

var breakages = []breakage{
	{name: "connection closed", reason: brokeReset, code: "upstream_failed", then: func(face, *call) {}},
	{name: "connection reset", reason: brokeReset, code: "upstream_failed", then: func(_ face, k *call) { k.drained(); k.reset() }},
	{name: "clean end", reason: brokeEnd, code: "upstream_failed", then: func(_ face, k *call) { k.end() }},
	{name: "stall", reason: brokeStall, code: "upstream_timeout", then: func(_ face, k *call) { k.untilGone() }},
	{name: "comments only", reason: brokeStall, code: "upstream_timeout", then: func(f face, k *call) {
		for strings.HasPrefix(f.media, "text/") && k.wait(stallInTests/10) {
			k.chunk(":\n\n")
		}
		k.untilGone()
	}},
	{name: "malformed chunks", reason: brokeMalformed, code: "upstream_failed", then: func(_ face, k *call) { k.raw("zzz\r\n"); k.untilGone() }},
	{name: "half an event and closed", reason: brokeReset, code: "upstream_failed", then: func(f face, k *call) { k.chunk(f.content[1][:len(f.content[1])-3]) }},
	{name: "an event without its last line's end and a clean end", reason: brokeEnd, code: "upstream_failed", then: func(f face, k *call) {
		k.chunk(strings.TrimRight(f.content[1], "\n"))
		k.end()
	}},
	{name: "an event without its blank line and a clean end", reason: brokeEnd, code: "upstream_failed", then: func(f face, k *call) {
		k.chunk(strings.TrimRight(f.content[1], "\n"))
		if strings.HasPrefix(f.media, "text/") {
			k.chunk("\n")
		}
		k.end()
	}},
	{name: "half an event and a clean end", reason: brokeEnd, code: "upstream_failed", then: func(f face, k *call) {
		k.chunk(f.content[1][:len(f.content[1])/2])
		k.end()
	}},
}

const stallInTests = 150 * time.Millisecond

// R8, and the reports of streams that ended without a terminal event and were
// taken for complete, or got a [DONE] after an error (PAINS 3, 4, 5, 6): after
// the commit point a failure ends the stream with an error event in the
// client's own format, standing alone, and without anything like a proper end.
func TestBrokenStreamsSaySoR8(t *testing.T) {
	for _, b := range breakages {
		for _, f := range faces {
			t.Run(b.name+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				tr := newTroupe(t, func(k *call) {
					k.streamHead(f.media)
					k.chunk(f.begin + f.content[0])
					b.then(f, k)
				}, f.good(true))
				r := newRig(t, tr, func(o *rigging) {
					o.engine = f.engine
					o.settings.StallTimeout = time.Minute
					if b.reason == brokeStall {
						o.settings.StallTimeout = stallInTests
					}
				})
				got := r.post(f.path, f.body(true))
				require.Equal(t, 200, got.status)
				event, ok := strings.CutPrefix(strings.ReplaceAll(got.body, ":\n\n", ""), f.begin+f.content[0])
				require.True(t, ok, "%s", got.body)
				require.True(t, strings.HasPrefix(event, f.errorIs), "the error event stands alone: %q", event)
				require.Equal(t, 1, strings.Count(event, `"error"`)-strings.Count(event, `"type":"error"`), "%q", event)
				require.NotContains(t, got.body, f.reset)
				require.False(t, got.clean, "a broken answer has no clean end")
				require.Len(t, tr.calls(), 1, "nothing is tried again after the commit point")
				rec := r.seen.record(t, 1)
				require.Equal(t, "failed", rec.Outcome.String())
				require.EqualValues(t, b.code, rec.Reason)
				require.Equal(t, []string{b.reason}, r.seen.after(t, 1).broken)
				require.EqualValues(t, 1, r.failures())
			})
		}
	}
}

// R8: the replica's own error event is passed on as it is, and nothing after it.
func TestErrorEventOfTheReplicaEndsTheStreamR8(t *testing.T) {
	for _, f := range faces {
		t.Run(f.name, func(t *testing.T) {
			tr := newTroupe(t, func(k *call) {
				k.streamHead(f.media)
				k.chunk(f.begin + f.content[0] + f.failing + f.terminal)
				k.end()
			})
			r := newRig(t, tr, func(o *rigging) { o.engine = f.engine })
			got := r.post(f.path, f.body(true))
			require.Equal(t, f.begin+f.content[0]+f.failing, got.body)
			require.False(t, got.clean)
			require.Equal(t, []string{brokeError}, r.seen.after(t, 1).broken)
			require.EqualValues(t, 1, r.totals().Failed)
		})
	}
}

// R8: an OpenAI stream with a finish_reason for every choice and a clean end is
// whole without [DONE]; with one choice missing it is not.
func TestFinishReasonsCompleteR8(t *testing.T) {
	const finish = `data: {"choices":[{"finish_reason":"stop","index":%d,"delta":{}}],"object":"chat.completion.chunk"}` + "\n\n"
	f := faces[0]
	for _, c := range []struct {
		n, finished int
		whole       bool
	}{{1, 1, true}, {2, 2, true}, {2, 1, false}} {
		t.Run(fmt.Sprintf("%d of %d", c.finished, c.n), func(t *testing.T) {
			tr := newTroupe(t, func(k *call) {
				k.streamHead(f.media)
				k.chunk(f.content[0])
				for i := range c.finished {
					k.chunk(fmt.Sprintf(finish, i))
				}
				k.end()
			})
			r := newRig(t, tr)
			got := r.post(f.path, strings.Replace(f.body(true), `{`, fmt.Sprintf(`{"n":%d,`, c.n), 1))
			require.Equal(t, c.whole, got.clean)
			require.Equal(t, c.whole, !strings.Contains(got.body, `"error"`), "%s", got.body)
		})
	}
}

// R8: once the terminal event is out, how the replica's connection ends is of no
// concern to the client: it gets its answer, and the slot follows R1.
func TestAfterTheTerminalEventR8(t *testing.T) {
	for _, f := range faces {
		for name, then := range map[string]func(*call){"reset": (*call).reset, "closed": func(*call) {}} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				tr := newTroupe(t, func(k *call) {
					k.streamHead(f.media)
					k.chunk(f.events())
					then(k)
				})
				r := newRig(t, tr, func(o *rigging) { o.engine = f.engine })
				got := r.post(f.path, f.body(true))
				require.Equal(t, f.events(), got.body)
				require.True(t, got.clean)
				require.EqualValues(t, 1, r.totals().Completed)
			})
		}
	}
}

// R8: what the end of the body has cut of its last event's framing does not
// matter where that event ends the answer; it is passed on as it came.
func TestTheTerminalEventWithoutItsFramingR8(t *testing.T) {
	for _, f := range faces {
		for _, cut := range []string{"\n", "\n\n"} {
			t.Run(f.name, func(t *testing.T) {
				events := strings.TrimSuffix(f.events(), cut)
				tr := newTroupe(t, func(k *call) { k.streamHead(f.media); k.chunk(events); k.end() })
				r := newRig(t, tr, func(o *rigging) { o.engine = f.engine })
				got := r.post(f.path, f.body(true))
				require.Equal(t, events, got.body)
				require.True(t, got.clean)
				require.EqualValues(t, 1, r.totals().Completed)
				require.Zero(t, r.failures())
			})
		}
	}
}

// R7: content whose event the end of the body has cut is no content, and commits
// nothing.
func TestOnlyAnUnfinishedEventIsAFailedAttemptR7(t *testing.T) {
	for _, f := range faces {
		t.Run(f.name, func(t *testing.T) {
			tr := newTroupe(t, func(k *call) {
				k.streamHead(f.media)
				k.chunk(f.begin + strings.TrimRight(f.content[0], "\n"))
				k.end()
			}, f.good(true))
			r := newRig(t, tr, func(o *rigging) { o.engine = f.engine })
			got := r.post(f.path, f.body(true))
			require.Equal(t, f.events(), got.body)
			require.Equal(t, "2", got.header.Get("X-Switchyard-Attempts"))
			require.EqualValues(t, 1, r.failures())
		})
	}
}

// R8: [DONE] ends an answer also where no choice has said why it finished, and
// how the connection ends then is of no concern; a finish_reason alone needs
// the clean end.
func TestDoneAloneIsTerminalR8(t *testing.T) {
	f := faces[0]
	finish := strings.TrimSuffix(f.terminal, "data: [DONE]\n\n")
	for _, c := range []struct {
		name, events string
		whole        bool
	}{
		{"after content", f.begin + f.content[0] + "data: [DONE]\n\n", true},
		{"alone", "data: [DONE]\n\n", true},
		{"with CRLF and an id", f.content[0] + "data:[DONE]\r\nid: 7\r\n\r\n", true},
		{"only a finish_reason", f.content[0] + finish, false},
		{"a finish_reason and text that names it", f.content[0] + strings.Replace(finish, `"delta":{}`, `"delta":{"content":"\ndata: [DONE]"}`, 1), false},
	} {
		for name, then := range map[string]func(*call){
			"closed": func(*call) {}, "reset": func(k *call) { k.drained(); k.reset() }, "malformed": func(k *call) { k.raw("zzz\r\n") },
		} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				tr := newTroupe(t, func(k *call) { k.streamHead(f.media); k.chunk(c.events); then(k) })
				r := newRig(t, tr)
				got := r.post(f.path, f.body(true))
				if !c.whole {
					require.True(t, strings.HasPrefix(got.body, c.events+f.errorIs), "%s", got.body)
					require.False(t, got.clean)
					return
				}
				require.Equal(t, c.events, got.body)
				require.True(t, got.clean)
				require.EqualValues(t, 1, r.totals().Completed)
				require.Zero(t, r.failures())
			})
		}
	}
}

// R7: comments and roles are no content. They never commit, however many there
// are: more of them than may be held back, or for longer than the first token
// may take, and the attempt has failed.
func TestNothingButCommentsIsAFailedAttemptR7(t *testing.T) {
	for _, f := range faces {
		idle := strings.Repeat(":\n\n", 40) + f.begin
		if !strings.HasPrefix(f.media, "text/") {
			idle = strings.Repeat(`{"model":"tiny","message":{"role":"assistant","content":""},"done":false}`+"\n", 4)
		}
		endless := func(gap time.Duration) act {
			return func(k *call) {
				k.streamHead(f.media)
				for k.wait(gap) {
					k.chunk(idle)
				}
			}
		}
		check := func(t *testing.T, gap time.Duration, result string, change func(*rigging)) {
			t.Parallel()
			tr := newTroupe(t, endless(gap), f.good(true))
			r := newRig(t, tr, func(o *rigging) { o.engine = f.engine }, change)
			got := r.post(f.path, f.body(true))
			require.Equal(t, f.events(), got.body[:min(len(got.body), 2<<10)])
			require.Equal(t, "2", got.header.Get("X-Switchyard-Attempts"))
			seen := r.seen.after(t, 1)
			require.Equal(t, result, seen.attempts[0])
			require.Empty(t, seen.broken)
			require.EqualValues(t, 1, r.failures())
		}
		t.Run("too many/"+f.name, func(t *testing.T) {
			check(t, time.Millisecond, "empty", func(o *rigging) { o.settings.RetryBuffer = 4 << 10 })
		})
		t.Run("too long/"+f.name, func(t *testing.T) {
			check(t, 5*time.Millisecond, "no_first_token", func(o *rigging) {
				o.retry.FirstTokenFloor, o.retry.LoadTimeout = stallInTests, stallInTests
			})
		})
	}
}

// R8: an event too large to keep goes through in pieces, and one that breaks
// there is closed before the error event.
func TestLargeEventsR8(t *testing.T) {
	f := faces[0]
	large := `data: {"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("0123456789abcdef", 64<<10) + `"}}]}` + "\n\n"
	t.Run("whole", func(t *testing.T) {
		tr := newTroupe(t, func(k *call) {
			k.streamHead(f.media)
			k.chunk(f.begin + f.content[0])
			k.chunk(large)
			k.chunk(f.terminal)
			k.end()
		})
		got := newRig(t, tr).post(f.path, f.body(true))
		require.Equal(t, f.begin+f.content[0]+large+f.terminal, got.body)
		require.True(t, got.clean)
	})
	t.Run("first", func(t *testing.T) {
		tr := newTroupe(t, func(k *call) {
			k.streamHead(f.media)
			k.chunk(f.begin + large + f.terminal)
			k.end()
		})
		got := newRig(t, tr).post(f.path, f.body(true))
		require.Equal(t, f.begin+large+f.terminal, got.body)
	})
	t.Run("broken", func(t *testing.T) {
		part := large[:600<<10]
		tr := newTroupe(t, func(k *call) {
			k.streamHead(f.media)
			k.chunk(f.content[0])
			k.chunk(part)
		})
		got := newRig(t, tr).post(f.path, f.body(true))
		rest, ok := strings.CutPrefix(got.body, f.content[0]+part+"\n\n"+f.errorIs)
		require.True(t, ok, "%.200s", rest)
		require.False(t, got.clean)
	})
	t.Run("beyond what is held back", func(t *testing.T) {
		tr := newTroupe(t, func(k *call) {
			k.streamHead(f.media)
			k.chunk(large + f.terminal)
			k.end()
		})
		r := newRig(t, tr, func(o *rigging) { o.settings.RetryBuffer = 300 << 10 })
		require.Equal(t, large+f.terminal, r.post(f.path, f.body(true)).body)
	})
}

// R7: an answer that is not streamed is held back up to retry.buffer; a larger
// one is committed there, and cut where it breaks.
func TestAnswersLargerThanTheBufferR7(t *testing.T) {
	f := faces[0]
	large := `{"choices":[{"index":0,"finish_reason":"stop","message":{"content":"` + strings.Repeat("x", 300<<10) + `"}}]}`
	small := func(o *rigging) { o.settings.RetryBuffer = 64 << 10 }
	t.Run("whole", func(t *testing.T) {
		tr := newTroupe(t, func(k *call) { k.whole(200, jsonMedia, large) })
		got := newRig(t, tr, small).post(f.path, f.body(false))
		require.Equal(t, large, got.body)
		require.Equal(t, fmt.Sprint(len(large)), got.header.Get("Content-Length"))
		require.True(t, got.clean)
	})
	t.Run("chunked", func(t *testing.T) {
		tr := newTroupe(t, func(k *call) { k.streamHead(jsonMedia); k.chunk(large); k.end() })
		got := newRig(t, tr, small).post(f.path, f.body(false))
		require.Equal(t, large, got.body)
		require.True(t, got.clean)
	})
	t.Run("broken", func(t *testing.T) {
		tr := newTroupe(t, func(k *call) {
			k.head(200, "Content-Type: "+jsonMedia, fmt.Sprintf("Content-Length: %d", len(large)))
			k.raw(large[:200<<10])
		}, f.good(false))
		r := newRig(t, tr, small)
		got := r.post(f.path, f.body(false))
		require.Equal(t, large[:200<<10], got.body, "no text of another replica is appended")
		require.False(t, got.clean)
		require.EqualValues(t, 1, r.totals().Failed)
		require.Len(t, tr.calls(), 1)
	})
	t.Run("broken after a stream that was not", func(t *testing.T) {
		tr := newTroupe(t, func(k *call) { k.streamHead(f.media); k.chunk(f.begin) }, func(k *call) {
			k.head(200, "Content-Type: "+jsonMedia, fmt.Sprintf("Content-Length: %d", len(large)))
			k.raw(large[:200<<10])
		})
		got := newRig(t, tr, small).post(f.path, f.body(true))
		require.Equal(t, large[:200<<10], got.body, "JSON is no place for an event")
		require.False(t, got.clean)
	})
}

// R8 and PAINS 10: an event is with the client before the replica sends the next.
func TestEachEventIsFlushedR8(t *testing.T) {
	for _, f := range faces {
		t.Run(f.name, func(t *testing.T) {
			got := make(chan string)
			tr := newTroupe(t, func(k *call) {
				k.streamHead(f.media)
				k.chunk(f.begin)
				for _, e := range append(f.content, f.terminal) {
					k.chunk(e)
					select {
					case <-got:
					case <-time.After(patienceInTests):
						t.Error("an event did not come through")
					}
				}
				k.end()
			})
			r := newRig(t, tr, func(o *rigging) { o.engine = f.engine })
			c := r.connect(f.path, f.body(true))
			seen := ""
			buf := make([]byte, 4096)
			for _, e := range append(f.content, f.terminal) {
				last := strings.Split(strings.TrimSpace(e), "\n")
				for !strings.Contains(seen, last[len(last)-1]) {
					n, err := c.Read(buf)
					require.NoError(t, err)
					seen += string(buf[:n])
				}
				got <- e
			}
			for !strings.HasSuffix(seen, "\r\n0\r\n\r\n") {
				n, err := c.Read(buf)
				require.NoError(t, err)
				seen += string(buf[:n])
			}
		})
	}
}

// PAINS 11: how the replica's bytes are cut into reads changes nothing.
func TestReadBoundariesDoNotMatterR8(t *testing.T) {
	for _, f := range faces {
		for _, size := range []int{1, 2, 7, 61} {
			t.Run(fmt.Sprintf("%s by %d", f.name, size), func(t *testing.T) {
				t.Parallel()
				tr := newTroupe(t, func(k *call) {
					var b strings.Builder
					all := &call{t: k.t, conn: pretend{&b}}
					f.good(true)(all)
					for s := b.String(); s != ""; {
						n := min(size, len(s))
						k.raw(s[:n])
						s = s[n:]
					}
					k.keep = true
				})
				r := newRig(t, tr, func(o *rigging) { o.engine = f.engine })
				got := r.post(f.path, f.body(true))
				require.Equal(t, f.events(), got.body)
				require.True(t, got.clean)
			})
		}
	}
}

// Lines and events may end with CRLF; the bytes pass unchanged.
func TestCRLFStreamsPassR8(t *testing.T) {
	f := faces[0]
	crlf := strings.ReplaceAll(f.events(), "\n", "\r\n")
	tr := newTroupe(t, func(k *call) { k.streamHead(f.media); k.chunk(crlf); k.end() })
	got := newRig(t, tr).post(f.path, f.body(true))
	require.Equal(t, crlf, got.body)
	require.True(t, got.clean)
}

// A stream whose end is the connection's is whole if its terminal event came.
func TestStreamEndedByCloseR8(t *testing.T) {
	for _, f := range faces {
		t.Run(f.name, func(t *testing.T) {
			tr := newTroupe(t, func(k *call) { k.head(200, "Content-Type: "+f.media); k.raw(f.events()) })
			r := newRig(t, tr, func(o *rigging) { o.engine = f.engine })
			got := r.post(f.path, f.body(true))
			require.Equal(t, f.events(), got.body)
			require.True(t, got.clean)
			require.EqualValues(t, 1, r.totals().Completed)
		})
	}
}

// What the request asked for does not matter, what the answer says it is does:
// JSON to a request for a stream, and a stream to a request for none.
func TestContentTypeDecides(t *testing.T) {
	f := faces[0]
	t.Run("json", func(t *testing.T) {
		tr := newTroupe(t, f.good(false))
		got := newRig(t, tr).post(f.path, f.body(true))
		require.Equal(t, f.whole, got.body)
		require.Equal(t, fmt.Sprint(len(f.whole)), got.header.Get("Content-Length"))
	})
	t.Run("stream", func(t *testing.T) {
		tr := newTroupe(t, f.good(true))
		got := newRig(t, tr).post(f.path, f.body(false))
		require.Equal(t, f.events(), got.body)
	})
	t.Run("text", func(t *testing.T) {
		tr := newTroupe(t, func(k *call) { k.whole(200, "text/plain", "as you like") })
		got := newRig(t, tr).post(f.path, f.body(false))
		require.Equal(t, "as you like", got.body)
	})
}

var _ io.Writer = pretend{}
