package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (w *world) fault(f Fault) {
	f, err := f.Check()
	require.NoError(w, err)
	w.SetFault(w.now, f)
	w.take()
}

func (w *world) reject() *Rejection {
	_, rej := w.Submit(w.now, Request{Prompts: [][]Part{{{Hash: 1, Tokens: 1}}}})
	require.NotNil(w, rej)
	return rej
}

func TestFaultsThatAnswerAtOnce(t *testing.T) {
	w := newWorld(t, base)
	w.fault(Fault{Kind: FaultError})
	require.Equal(t, &Rejection{Kind: RejectError, Status: 500}, w.reject())
	w.fault(Fault{Kind: FaultBusy, Status: 429, RetryAfter: 3 * sec})
	require.Equal(t, &Rejection{Kind: RejectBusy, Status: 429, RetryAfter: 3 * sec}, w.reject())
	w.fault(Fault{Kind: FaultLoading})
	require.Equal(t, RejectLoading, w.reject().Kind)
	w.fault(Fault{Kind: FaultReset})
	require.Equal(t, RejectReset, w.reject().Kind)
	w.fault(Fault{Kind: FaultRefuse})
	require.Equal(t, RejectDown, w.reject().Kind)
	w.fault(Fault{Kind: FaultNone})
	w.ask(1)
	st := w.Stats(w.now)
	require.Equal(t, 6, st.Requests)
	require.Equal(t, 1, st.MaxInHand, "R1: what was not taken was never in hand")
}

func TestFaultRate(t *testing.T) {
	w := newWorld(t, base)
	w.fault(Fault{Kind: FaultError, Rate: 0.3})
	failed := 0
	for range 2000 {
		if _, rej := w.Submit(w.now, Request{Prompts: [][]Part{{{Hash: 1, Tokens: 1}}}}); rej != nil {
			failed++
		}
	}
	require.InDelta(t, 600, failed, 70)
}

func TestFaultHangHoldsUntilItIsOver(t *testing.T) {
	for kind, head := range map[FaultKind]bool{FaultHang: false, FaultHangAfterHeaders: true} {
		w := newWorld(t, base)
		before := w.ask(100)
		w.until(sec)
		w.fault(Fault{Kind: kind, For: 100 * sec})
		hung, left := w.ask(100), w.ask(100)
		w.until(10 * sec)
		require.Equal(t, EndDone, before.End, "what ran goes on")
		_, begun := w.begun[hung]
		require.Equal(t, head, begun)
		require.Zero(t, hung.Generated())
		require.Equal(t, 2, w.Stats(w.now).InHand, "R1: hung work is in hand")
		w.leave(left)
		require.Equal(t, EndLeft, left.End)
		w.drain()
		require.Equal(t, EndDone, hung.End)
		near(t, 101*sec+4100*time.Millisecond, w.done[hung], 1, "it goes on when the fault is over")
	}
}

func TestFaultStall(t *testing.T) {
	w := newWorld(t, base)
	running := w.ask(100)
	w.until(sec)
	w.fault(Fault{Kind: FaultStall, AfterTokens: 5})
	fresh := w.ask(100)
	w.until(20 * sec)
	require.InDelta(t, 10, running.Generated(), 1, "one that is past the mark stalls at once")
	require.Equal(t, 5, fresh.Generated())
	w.leave(running)
	require.Equal(t, EndLeft, running.End)
	w.fault(Fault{Kind: FaultNone})
	w.drain()
	require.Equal(t, EndDone, fresh.End)
}

func TestFaultCutAndEmpty(t *testing.T) {
	w := newWorld(t, base)
	running := w.ask(100)
	w.until(sec)
	w.fault(Fault{Kind: FaultCut, AfterTokens: 20, Reset: true})
	whole := w.ask(100, whole)
	w.drain()
	for _, work := range []*Work{running, whole} {
		require.Equal(t, EndCut, work.End)
		require.True(t, work.Reset)
		require.Equal(t, 20, work.Generated())
	}
	w.fault(Fault{Kind: FaultCut})
	at := w.ask(100)
	require.Equal(t, EndCut, at.End, "after no token: as soon as it has a slot")
	require.False(t, at.Reset)
	w.fault(Fault{Kind: FaultEmpty})
	require.Equal(t, EndEmpty, w.ask(100).End)
	st := w.Stats(w.now)
	require.Zero(t, st.InHand)
	require.Zero(t, st.Completed)
}

func TestFaultCutFreesTheSlotForWhatWaits(t *testing.T) {
	w := newWorld(t, base)
	w.ask(100)
	w.ask(100)
	w.fault(Fault{Kind: FaultEmpty})
	for range 5 {
		w.ask(100)
	}
	w.drain()
	require.Zero(t, w.Stats(w.now).InHand, "each takes the slot, is empty, and makes room for the next")
}

func TestFaultSlow(t *testing.T) {
	w := newWorld(t, base)
	w.fault(Fault{Kind: FaultSlow, Factor: 5})
	work := w.ask(100)
	w.drain()
	near(t, 5*4100*time.Millisecond, w.done[work], 1, "everything takes five times as long")
}

func TestFaultCrash(t *testing.T) {
	w := newWorld(t, with(func(c *Config) { c.CacheTokens, c.LoadTime = 1000, sec }))
	w.until(sec)
	same := func(r *Request) { r.Prompts = [][]Part{{{Hash: 7, Tokens: 100}}} }
	w.ask(0, same)
	w.until(7 * sec)
	var lost []*Work
	for range 5 {
		lost = append(lost, w.ask(100))
	}
	w.leave(lost[4])
	w.fault(Fault{Kind: FaultCrash, For: 3 * sec})
	for _, work := range lost {
		require.Equal(t, EndLost, work.End)
	}
	st := w.Stats(w.now)
	require.Zero(t, st.InHand)
	require.Equal(t, 5, st.MaxInHand, "what was counted stays")
	require.Equal(t, RejectDown, w.reject().Kind)
	w.until(10 * sec)
	require.Equal(t, FaultNone, w.Fault(w.now).Kind)
	require.Equal(t, RejectLoading, w.reject().Kind, "a fresh process loads its model")
	w.until(11 * sec)
	work := w.ask(0, same)
	w.drain()
	require.Equal(t, EndDone, work.End)
	require.Zero(t, work.Tasks[0].Cached, "the prompt cache is gone")
	require.Zero(t, w.cfg.Device.computing)
}

func TestFaultCrashWhileLoading(t *testing.T) {
	w := newWorld(t, ollama(func(c *Config) { c.LoadTime = 3 * sec }))
	work := w.ask(100, m)
	w.until(sec)
	w.fault(Fault{Kind: FaultCrash, For: sec})
	require.Equal(t, EndLost, work.End)
	w.until(2 * sec)
	require.False(t, w.Models(w.now)[0].Loading)
	again := w.ask(100, m)
	w.until(6 * sec)
	near(t, 5*sec, w.begun[again], 1, "loaded from the beginning")
}

func TestFaultScript(t *testing.T) {
	w := newWorld(t, base,
		TimedFault{At: 2 * sec, Fault: Fault{Kind: FaultCrash, For: 5 * sec}},
		TimedFault{At: 7 * sec, Fault: Fault{Kind: FaultLoading, For: 10 * sec}},
		TimedFault{At: 17 * sec, Fault: Fault{Kind: FaultSlow, Factor: 3, For: 30 * sec}})
	for _, want := range []struct {
		at   time.Duration
		kind FaultKind
	}{{sec, FaultNone}, {2 * sec, FaultCrash}, {6 * sec, FaultCrash}, {7 * sec, FaultLoading}, {16 * sec, FaultLoading}, {17 * sec, FaultSlow}, {46 * sec, FaultSlow}, {47 * sec, FaultNone}} {
		w.until(want.at)
		require.Equal(t, want.kind, w.Fault(w.now).Kind, want.at)
	}
	_, planned := w.Next()
	require.False(t, planned)
}

func TestFaultCheck(t *testing.T) {
	for _, f := range []Fault{
		{},
		{Kind: "explode"},
		{Kind: FaultError, Status: 200},
		{Kind: FaultBusy, Status: 500},
		{Kind: FaultSlow, Factor: -1, For: -1},
		{Kind: FaultError, Rate: 2},
		{Kind: FaultStall, AfterTokens: -1},
		{Kind: FaultBusy, RetryAfter: -1},
	} {
		_, err := f.Check()
		require.Error(t, err, "%+v", f)
	}
}

func TestReset(t *testing.T) {
	w := newWorld(t, base)
	w.ask(100)
	w.ask(100)
	w.ask(100)
	w.until(sec)
	w.fault(Fault{Kind: FaultHang})
	w.Reset(w.now)
	w.take()
	require.Equal(t, FaultNone, w.Fault(w.now).Kind)
	st := w.Stats(w.now)
	require.Equal(t, 3, st.MaxInHand, "what is in hand is in hand")
	require.Zero(t, st.Requests+st.TokensGenerated+st.OverSlotsEvents)
	w.drain()
	require.Equal(t, 3, w.Stats(w.now).Completed)
}
