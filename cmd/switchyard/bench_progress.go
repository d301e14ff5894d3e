package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// benchProgress says what is run, how far it is and how long it will take: on a
// terminal in one line that changes, else in plain lines.
type benchProgress struct {
	c        *console
	terminal bool
	runs     int

	mu struct {
		sync.Mutex
		at          int // the run under way, from 1
		name        string
		began, here time.Time // all of it, this run
		said        time.Time
	}
}

// How often a line is written while a run goes on.
const (
	eachLine = 100 * time.Millisecond // on a terminal
	eachNews = 30 * time.Second       // elsewhere
)

func newBenchProgress(c *console, runs int) *benchProgress {
	p := &benchProgress{c: c, runs: runs}
	if f, ok := c.Out.(*os.File); ok {
		p.terminal = term.IsTerminal(int(f.Fd()))
	}
	p.mu.began = time.Now()
	return p
}

func (p *benchProgress) begin(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.at++
	p.mu.name, p.mu.here = name, time.Now()
	p.mu.said = p.mu.here
	if p.terminal {
		p.c.printf("\r\x1b[K[%d/%d] %s", p.mu.at, p.runs, name)
	}
}

// update is told how many requests of about how many have ended.
func (p *benchProgress) update(done, total int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	each := eachNews
	if p.terminal {
		each = eachLine
	}
	if now.Sub(p.mu.said) < each {
		return
	}
	p.mu.said = now
	line := fmt.Sprintf("[%d/%d] %s: %d of %d requests, %s", p.mu.at, p.runs, p.mu.name, done, total, clock(now.Sub(p.mu.here)))
	if left, ok := p.left(now, float64(done)/float64(max(total, done, 1))); ok {
		line += fmt.Sprintf(", all of it in about %s", clock(left))
	}
	if p.terminal {
		p.c.printf("\r\x1b[K%s", line)
		return
	}
	p.c.printf("%s\n", line)
}

// left is how long all runs will still take if they go on as they have; not
// told before a tenth of the first is done.
func (p *benchProgress) left(now time.Time, part float64) (time.Duration, bool) {
	passed := float64(p.mu.at-1) + part
	if passed < 0.1 {
		return 0, false
	}
	return time.Duration(float64(now.Sub(p.mu.began)) * (float64(p.runs)/passed - 1)), true
}

// done says what a run came to.
func (p *benchProgress) done(name, summary string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := ""
	if p.terminal {
		start = "\r\x1b[K"
	}
	p.c.printf("%s[%d/%d] %s: %s, in %s\n", start, p.mu.at, p.runs, name, summary, clock(time.Since(p.mu.here)))
}

// stop leaves the terminal with a fresh line.
func (p *benchProgress) stop() {
	if p.terminal {
		p.c.printf("\r\x1b[K")
	}
}

// clock writes a time with as many digits as anyone wants to know.
func clock(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
