package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"switchyard/config"
)

// reloadTo applies a configuration with only these replicas of the fleet.
func (r *rig) reloadTo(names ...string) {
	r.t.Helper()
	r.app.read = func() (*config.Config, error) {
		next := *r.app.site.cfg
		next.Replicas = nil
		flags := config.Flags{}
		for _, s := range r.fleet {
			if slices.Contains(names, s.Name()) {
				flags.Replicas = append(flags.Replicas, s.Name()+"="+s.URL()+",engine=llamacpp")
			}
		}
		return next.With(flags)
	}
	require.NoError(r.t, r.app.reload())
}

// R15, R1, R13: replicas come and go under load, again and again: nobody's
// request is dropped, the books balance, and a replica that comes back while
// what it had is still running gets no more than its slots.
func TestR15ReloadsUnderLoad(t *testing.T) {
	all := append(two("llamacpp"), two("llamacpp")[0])
	all[2].Name = "c"
	r := newRig(t, setup{replicas: all})
	done := r.books()
	l := startLoad(r, tonguesOf("llamacpp"), 24)
	served := func(by int) func() bool {
		before := r.fleet[by].Stats().Requests
		return func() bool { return r.fleet[by].Stats().Requests >= before+4 }
	}
	for range 4 {
		for _, change := range []struct {
			replicas []string
			busy     int // one of them that must get work then
		}{{[]string{"b", "c"}, 1}, {[]string{"c"}, 2}, {[]string{"a", "c"}, 0}, {[]string{"a", "b", "c"}, 1}} {
			r.reloadTo(change.replicas...)
			require.Len(t, r.state().Replicas, len(change.replicas))
			eventually(t, "the new configuration to be used", served(change.busy))
		}
	}
	replies := l.stop()
	for _, x := range replies {
		x.mustBe(t, "whole")
	}
	r.untilFree()
	done()
	require.Equal(t, len(replies), int(r.state().Totals.Completed))
	t.Logf("%d requests through 16 reloads", len(replies))
}

// R1, R15: a replica that is taken out and put back while it works has its
// slots taken still.
func TestR1AReplicaThatComesBack(t *testing.T) {
	r := newRig(t, setup{replicas: patient("llamacpp")})
	crowd := r.send(8, query{prompt: "long", stream: true, tokens: 6000})
	crowd.first.Wait()
	require.Equal(t, 4, r.fleet[0].Stats().InHand)
	r.reloadTo("b")
	r.reloadTo("a", "b")
	eventually(t, "a to be found again", func() bool { return r.replica("a").Up })
	more := r.send(2, query{prompt: "more", stream: true, tokens: 3})
	r.untilUnderWay(8, 2)
	require.Zero(t, r.fleet[0].Stats().OverSlotsEvents, "%+v", r.replica("a"))
	crowd.leave()
	more.ended.Wait()
	r.untilFree()
}
