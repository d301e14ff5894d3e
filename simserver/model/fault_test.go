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

// Each fault that strikes single requests does so with the share that it is
// told; the others go on as if there were none.
func TestFaultRate(t *testing.T) {
	met := map[FaultKind]func(*Work, *Rejection) bool{
		FaultReset:            func(_ *Work, rej *Rejection) bool { return rej != nil && rej.Kind == RejectReset },
		FaultError:            func(_ *Work, rej *Rejection) bool { return rej != nil && rej.Kind == RejectError },
		FaultBusy:             func(_ *Work, rej *Rejection) bool { return rej != nil && rej.Kind == RejectBusy },
		FaultLoading:          func(_ *Work, rej *Rejection) bool { return rej != nil && rej.Kind == RejectLoading },
		FaultHang:             func(w *Work, _ *Rejection) bool { return w.Started.IsZero() },
		FaultHangAfterHeaders: func(w *Work, _ *Rejection) bool { return w.End == Running && w.Generated() == 0 },
		FaultStall:            func(w *Work, _ *Rejection) bool { return w.End == Running && w.Generated() == 1 },
		FaultCut:              func(w *Work, _ *Rejection) bool { return w.End == EndCut },
		FaultEmpty:            func(w *Work, _ *Rejection) bool { return w.End == EndEmpty },
		FaultGarbage:          func(w *Work, _ *Rejection) bool { return w.Garbage },
		FaultSlow:             func(w *Work, _ *Rejection) bool { return w.Ended.Sub(w.Arrived) > 500*time.Millisecond },
	}
	for kind, is := range met {
		w := newWorld(t, with(func(c *Config) { c.Slots, c.Output, c.Context = 250, Fixed(3), 100_000 }))
		w.fault(Fault{Kind: kind, Rate: 0.3, AfterTokens: 1, Factor: 10})
		n := 0
		for i := range 500 {
			w.until(time.Duration(i+1) * 10 * sec)
			work, rej := w.Submit(w.now, Request{Stream: true, Prompts: [][]Part{{{Hash: uint64(i), Tokens: 10}}}})
			w.until(time.Duration(i+1)*10*sec + 5*sec)
			switch {
			case is(work, rej):
				n++
			default:
				require.Nil(t, rej, kind)
				require.Equal(t, EndDone, work.End, kind)
				near(t, 210*time.Millisecond, work.Ended.Sub(work.Arrived), 1, string(kind))
			}
		}
		require.InDelta(t, 150, n, 45, kind)
	}
}

// Struck requests slow down the batches that they are in, and with them those
// beside them.
func TestFaultSlowWithARate(t *testing.T) {
	w := newWorld(t, base)
	w.fault(Fault{Kind: FaultSlow, Factor: 5, Rate: 0.5})
	for struck := false; !struck; {
		begin := w.now.Sub(w.start)
		work := w.ask(100)
		struck = work.Struck == FaultSlow
		w.drain()
		if struck {
			near(t, 5*4100*time.Millisecond, w.done[work]-begin, 1, "struck")
		} else {
			near(t, 4100*time.Millisecond, w.done[work]-begin, 1, "not struck")
		}
	}
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

// Crash for 5 s, then loading for 10 s, then slow x3 for 30 s: to the
// nanosecond, with every engine.
func TestFaultScript(t *testing.T) {
	for _, kind := range allKinds {
		w := newWorld(t, with(func(c *Config) { c.Kind, c.Models = kind, []string{"m"} }),
			TimedFault{At: 10 * sec, Fault: Fault{Kind: FaultCrash, For: 5 * sec}},
			TimedFault{At: 15 * sec, Fault: Fault{Kind: FaultLoading, For: 10 * sec}},
			TimedFault{At: 25 * sec, Fault: Fault{Kind: FaultSlow, Factor: 3, For: 30 * sec}})
		w.until(5 * sec)
		before := w.ask(100, m)
		w.until(9 * sec)
		lost := w.ask(100, m)
		w.until(10*sec - 1)
		require.Equal(t, EndDone, before.End)
		require.Equal(t, Running, lost.End)
		for _, r := range []struct {
			at   time.Duration
			kind RejectKind
		}{{10 * sec, RejectDown}, {15*sec - 1, RejectDown}, {15 * sec, RejectLoading}, {25*sec - 1, RejectLoading}} {
			w.until(r.at)
			require.Equal(t, r.kind, w.reject().Kind, "%s", r.at)
		}
		w.until(25 * sec)
		slow := w.ask(100, m)
		w.until(53 * sec)
		both := w.ask(100, m)
		w.drain()
		require.Equal(t, EndLost, lost.End)
		require.Equal(t, 9*sec+100*time.Millisecond, w.done[before])
		require.Equal(t, 10*sec, w.done[lost])
		require.Equal(t, 25*sec+3*4100*time.Millisecond, w.done[slow])
		// 0.3 s for the prompt and for each of six tokens more, the last of which
		// begins at 54.8 s; then 34 at the full speed.
		require.Equal(t, 53*sec+2100*time.Millisecond+3400*time.Millisecond, w.done[both])

		var turns []moment
		for _, ev := range w.log {
			if ev.Kind == FaultChanged {
				turns = append(turns, moment{ev.At.Sub(w.start), ev.Fault})
			}
		}
		require.Equal(t, []moment{
			{10 * sec, FaultCrash},
			{15 * sec, FaultNone},
			{15 * sec, FaultLoading},
			{25 * sec, FaultNone},
			{25 * sec, FaultSlow},
			{55 * sec, FaultNone},
		}, turns)
	}
}

type moment struct {
	at   time.Duration
	kind FaultKind
}

// A script goes on under faults that are set at run time: each replaces the one
// before.
func TestFaultScriptAndRunTime(t *testing.T) {
	w := newWorld(t, base, TimedFault{At: 10 * sec, Fault: Fault{Kind: FaultBusy, For: 5 * sec}})
	w.until(9 * sec)
	w.fault(Fault{Kind: FaultError, For: 20 * sec})
	require.Equal(t, RejectError, w.reject().Kind)
	w.until(10 * sec)
	require.Equal(t, RejectBusy, w.reject().Kind)
	w.until(15 * sec)
	w.ask(1)
	w.drain()
	require.Equal(t, FaultNone, w.Fault(w.now).Kind, "not the one from before")
}

func TestFaultCheck(t *testing.T) {
	for _, f := range []Fault{
		{},
		{Kind: "explode"},
		{Kind: FaultError, Status: 200},
		{Kind: FaultBusy, Status: 500},
		{Kind: FaultSlow, Factor: -1, For: -1},
		{Kind: FaultError, Rate: 2},
		{Kind: FaultCrash, Rate: 0.5},
		{Kind: FaultRunnerCrash, Rate: 0.5},
		{Kind: FaultRefuse, Rate: 0.5},
		{Kind: FaultCPU, Rate: 0.5},
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
