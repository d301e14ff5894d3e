package gateway

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/breaker"
	"switchyard/replica"
)

// morgue is a gateway without a network, for the times of zombies.
type morgue struct {
	t   *testing.T
	gw  *Gateway
	eng replica.Engine
	n   int
}

func newMorgue(t *testing.T, engine replica.Engine) *morgue {
	cfg := admission.Config{
		Classes: []admission.Class{{Name: "standard", Deadline: time.Minute}}, DefaultClass: "standard",
		Queue:    admission.QueueLimits{MaxRequests: 10, MaxBytes: 1 << 20},
		Replicas: []replica.Config{{Name: "a", Engine: engine, Slots: map[string]int{"*": 4}}},
		Retry:    admission.Retry{MaxAttempts: 3, Budget: 1, FirstTokenFloor: time.Minute, LoadTimeout: time.Minute},
		Breaker:  breaker.Config{ConsecutiveFailures: 3, FailureShare: 0.5, Window: 20, Cooldown: 5 * time.Second, MaxCooldown: time.Minute, TrialStart: 0.05, TrialFactor: 1.6},
	}
	m := &morgue{t: t, eng: engine}
	m.gw = New(Settings{}, admission.New(cfg, time.Now()), &witness{})
	m.says(-1, -1)
	return m
}

// says is a probe's word about what the replica has in hand.
func (m *morgue) says(inHand, waiting int) {
	m.gw.Observe(time.Now(), "a", replica.Facts{
		At: time.Now(), Up: true, Engine: m.eng, AnyModel: true, ModelsRead: true, Slots: 4, InHand: inHand, Waiting: waiting, Progress: -1,
	})
}

// grant is an attempt under way.
func (m *morgue) grant() *admission.Assignment {
	m.n++
	now := time.Now()
	t := m.gw.controller.Arrive(now, admission.Arrival{ID: "r", Class: "standard", Key: "anonymous", At: now})
	ref := m.gw.controller.Admit(now, t, admission.Ask{Class: "standard", Path: "/completion", Engines: []replica.Engine{m.eng}, Width: 1})
	require.Nil(m.t, ref)
	g := <-t.C()
	require.NotNil(m.t, g.Assignment)
	m.gw.zombies.lives(g.Assignment, 1)
	return g.Assignment
}

// leave ends it while the replica may be working, as job.finish does.
func (m *morgue) leave(a *admission.Assignment) *zombie {
	m.gw.zombies.lives(a, -1)
	m.gw.controller.Finish(time.Now(), a, admission.AttemptResult{Kind: admission.ResultClientGone, Running: true})
	z := &zombie{a: a, width: 1, since: time.Now()}
	require.True(m.t, m.gw.zombies.add(z, func() { m.gw.unheard(z) }))
	return z
}

func (m *morgue) slots() admission.SlotState {
	synctest.Wait()
	return m.gw.controller.Snapshot(time.Now()).Replicas[0].Slots
}

// R1: the end of the connection plus a small margin frees a slot on an engine
// that closes when its handler has returned.
func TestZombieEndsWithItsConnectionR1(t *testing.T) {
	for _, e := range []replica.Engine{replica.EngineOllama, replica.EngineVLLM, replica.EngineOpenAI} {
		t.Run(string(e), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMorgue(t, e)
				z := m.leave(m.grant())
				time.Sleep(5 * time.Second)
				require.Equal(t, 1, m.slots().Zombie)
				m.gw.zombies.ended(z)
				time.Sleep(endMargin - time.Millisecond)
				require.Equal(t, 1, m.slots().Zombie)
				time.Sleep(2 * time.Millisecond)
				require.Zero(t, m.slots().Zombie)
			})
		})
	}
}

// R1: with no sign at all a slot is free after 30 s.
func TestZombieWithoutASignR1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMorgue(t, replica.EngineOpenAI)
		m.leave(m.grant())
		time.Sleep(zombieLimit - time.Millisecond)
		require.Equal(t, 1, m.slots().Zombie)
		time.Sleep(2 * time.Millisecond)
		require.Zero(t, m.slots().Zombie)
	})
}

// R1: /slots of a llama.cpp has the last word: it closes a connection before it
// has stopped.
func TestLlamaCppHasTheLastWordR1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMorgue(t, replica.EngineLlamaCpp)
		live := m.grant()
		z := m.leave(m.grant())
		time.Sleep(2 * time.Second)
		m.says(2, -1)
		require.Equal(t, 1, m.slots().Zombie, "both are in hand")
		m.says(1, -1)
		require.Equal(t, 1, m.slots().Zombie, "one is in hand, but which?")
		m.gw.zombies.ended(z)
		time.Sleep(time.Second)
		require.Equal(t, 1, m.slots().Zombie, "the word is to come")
		m.says(2, -1)
		require.Equal(t, 1, m.slots().Zombie, "closed, but not stopped")
		time.Sleep(2 * time.Second)
		m.says(1, -1)
		require.Zero(t, m.slots().Zombie, "the one in hand is the living one")
		require.Equal(t, 1, m.slots().Busy)
		m.gw.controller.Finish(time.Now(), live, admission.AttemptResult{})
	})
}

// R1: a llama.cpp that goes on saying that it is busy holds the slot beyond
// 30 s; a request that is not streamed may run to its end there.
func TestBusyLlamaCppKeepsItsZombieR1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMorgue(t, replica.EngineLlamaCpp)
		m.leave(m.grant())
		for range 60 { // two minutes
			time.Sleep(2 * time.Second)
			m.says(1, -1)
			require.Equal(t, 1, m.slots().Zombie)
		}
		m.says(0, 1)
		require.Equal(t, 1, m.slots().Zombie, "it waits inside")
		m.says(0, 0)
		require.Zero(t, m.slots().Zombie)
	})
}

// R1: a word that a llama.cpp gave before it can have begun with a request does
// not speak of it.
func TestWordTooEarlyR1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMorgue(t, replica.EngineLlamaCpp)
		m.leave(m.grant())
		time.Sleep(100 * time.Millisecond)
		m.says(0, 0)
		require.Equal(t, 1, m.slots().Zombie)
		time.Sleep(2 * time.Second)
		m.says(0, 0)
		require.Zero(t, m.slots().Zombie)
	})
}

// R1: without a word of late, the end of the connection decides on a llama.cpp,
// too (started with --no-slots); a word that stays away is no sign.
func TestLlamaCppWithoutSlotsR1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMorgue(t, replica.EngineLlamaCpp)
		m.gw.zombies.ended(m.leave(m.grant()))
		time.Sleep(endMargin + time.Millisecond)
		require.Zero(t, m.slots().Zombie)
		m.leave(m.grant())
		m.says(1, -1)
		time.Sleep(zombieLimit + time.Millisecond)
		require.Zero(t, m.slots().Zombie)
	})
}

// R1: no process, no work.
func TestZombiesOfAProcessThatIsGoneR1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMorgue(t, replica.EngineLlamaCpp)
		m.leave(m.grant())
		m.leave(m.grant())
		m.gw.Observe(time.Now(), "a", replica.Facts{At: time.Now(), Gone: true, Err: "connection refused", InHand: -1})
		require.Zero(t, m.slots().Zombie)
	})
}

// The gateway's end waits for no zombie, and takes none in.
func TestZombiesAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMorgue(t, replica.EngineOpenAI)
		m.leave(m.grant())
		a := m.grant()
		m.gw.Close()
		require.Zero(t, m.slots().Zombie)
		z := &zombie{a: a, width: 1, since: time.Now()}
		require.False(t, m.gw.zombies.add(z, func() {}))
		m.gw.controller.Finish(time.Now(), a, admission.AttemptResult{})
	})
}
