package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/simserver"
)

// touchy is a llama.cpp that answers 500 to a body it cannot bear, as the real
// one does to some mistakes of clients, and is well otherwise.
type touchy struct {
	name   string
	sim    *simserver.Server
	server *httptest.Server
	proxy  *httputil.ReverseProxy
	hit    atomic.Int64 // times it met such a body
}

const (
	poison       = "poison"
	poisonAnswer = `{"error":{"code":500,"message":"Value is not callable: null at row 1, column 72","type":"server_error"}}`
)

func newTouchy(t *testing.T, name string) *touchy {
	sim, err := simserver.Start(simserver.Options{
		Name: name, Engine: "llamacpp", Models: []string{simModel}, Slots: 2, Prefill: 20000, Decode: 2000,
	})
	require.NoError(t, err)
	to, err := url.Parse(sim.URL())
	require.NoError(t, err)
	p := &touchy{name: name, sim: sim, proxy: &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1,
		Transport:     &http.Transport{},
	}}
	p.server = httptest.NewServer(p)
	t.Cleanup(func() {
		p.server.Close()
		p.proxy.Transport.(*http.Transport).CloseIdleConnections()
		sim.Close()
	})
	return p
}

func (p *touchy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if !bytes.Contains(body, []byte(poison)) {
		r.Body = io.NopCloser(bytes.NewReader(body))
		p.proxy.ServeHTTP(w, r)
		return
	}
	p.hit.Add(1)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(http.StatusInternalServerError)
	_, _ = io.WriteString(w, poisonAnswer)
}

// Poison (R7): a request that the engines answer with 500 fails with the
// engine's own answer, is not sent to every replica, and is nobody's illness.
func TestR7PoisonIsNotPassedAround(t *testing.T) {
	for _, fleet := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("%d replicas", fleet), func(t *testing.T) {
			var replicas []*touchy
			var s setup
			for i := range fleet {
				p := newTouchy(t, fmt.Sprint("r", i))
				replicas = append(replicas, p)
				s.others = append(s.others, fmt.Sprintf("%s=%s,engine=llamacpp", p.name, p.server.URL))
			}
			r := newRig(t, s)
			done := r.books()
			good := func(n int) {
				for i := range n {
					l := tonguesOf("llamacpp")[i%3]
					l.ask(t.Context(), r.client, r.base, query{prompt: prompt(i, 10), stream: i%2 == 0, tokens: 3}).mustBe(t, "whole")
				}
			}
			good(2 * fleet)
			bad := func(i int) {
				before := hits(replicas)
				l := tonguesOf("llamacpp")[i%3]
				x := l.ask(t.Context(), r.client, r.base, query{prompt: poison + prompt(i, 10), stream: i%2 == 0, tokens: 3})
				x.mustBe(t, "error")
				require.Equal(t, http.StatusInternalServerError, x.status)
				require.Equal(t, poisonAnswer, x.body, "the replica's own answer passes byte for byte")
				require.LessOrEqual(t, hits(replicas)-before, int64(2))
			}
			for i := range 3 { // three such bodies in a row
				bad(i)
			}
			good(2 * fleet)
			for range 3 { // and the same one again and again
				bad(0)
			}
			good(2 * fleet)
			r.untilFree()
			done()
			require.Empty(t, r.notes.changed(admission.EventOpened))
			for _, x := range r.state().Replicas {
				require.Equal(t, "closed", x.Breaker.State, "%+v", x)
			}
			totals := r.state().Totals
			require.EqualValues(t, 6, totals.Failed, "%+v", totals)
			require.EqualValues(t, 6*fleet, totals.Completed, "%+v", totals)
		})
	}
}

func hits(replicas []*touchy) (n int64) {
	for _, p := range replicas {
		n += p.hit.Load()
	}
	return n
}

// R7: where the answered error is the replica's own illness after all, clients
// of the last replica see it, and it serves again as soon as it is well.
func TestR7TheLastReplicaIsNotShutOut(t *testing.T) {
	o := wide()[:1]
	r := newRig(t, setup{replicas: o})
	require.NoError(t, r.fleet[0].SetFault(simserver.Fault{Kind: "error"}))
	for i := range 12 {
		x := openAI.ask(t.Context(), r.client, r.base, query{prompt: prompt(i, 10), tokens: 2})
		x.mustBe(t, "error")
		require.Equal(t, http.StatusInternalServerError, x.status, "%s", x)
		require.True(t, strings.Contains(x.body, "simulated failure"), "%s", x)
	}
	require.NoError(t, r.fleet[0].SetFault(simserver.Fault{Kind: "none"}))
	openAI.ask(t.Context(), r.client, r.base, query{prompt: "well again", tokens: 2}).mustBe(t, "whole")
}
