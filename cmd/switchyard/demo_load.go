package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// demoLoad sends requests in an open loop: it never waits for an answer before
// it sends the next, as real clients do not.
type demoLoad struct {
	base   string
	rate   float64
	client *http.Client
	random *rand.Rand
	under  sync.WaitGroup
}

func newDemoLoad(base string, rate float64) *demoLoad {
	return &demoLoad{
		base: base, rate: rate, random: rand.New(rand.NewPCG(1, 7)), //nolint:gosec // traffic, not secrets
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
}

// send starts one request and says how long until the next: exponential gaps,
// a Poisson stream.
func (l *demoLoad) send() time.Duration {
	class := [...]string{"interactive", "standard", "standard", "standard", "batch"}[l.random.IntN(5)]
	body, _ := json.Marshal(map[string]any{
		"model":      "demo",
		"stream":     l.random.IntN(5) > 0,
		"max_tokens": 200,
		"messages":   []map[string]string{{"role": "user", "content": strings.Repeat("tell me more ", 5+l.random.IntN(60))}},
	})
	l.under.Go(func() { l.one(class, body) })
	return time.Duration(l.random.ExpFloat64() / l.rate * float64(time.Second))
}

func (l *demoLoad) one(class string, body []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.base+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Switchyard-Class", class)
	resp, err := l.client.Do(req)
	if err != nil {
		return // the gateway's books tell what became of it
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
}

func (l *demoLoad) wait() { l.under.Wait() }
