package simserver

import (
	"net/http"
	"strconv"
	"time"

	"switchyard/simserver/model"
)

// call is one request on its way through the model. The handler's goroutine
// owns it but for what is said to be under the lock.
type call struct {
	s    *Server
	w    http.ResponseWriter
	r    *http.Request
	ask  *ask
	form form
	wake chan struct{} // room for one: something has happened

	work    *model.Work // its fields are read under the lock
	noticed bool        // under the lock: the engine knows that the client has left

	ans  answer
	sent []int // tokens sent of each task
	said []bool
	head bool // headers are out
	role bool // the first token is out
	buf  []byte

	processed int // prompt tokens that the client was told of; negative: nothing yet
}

// form is how an answer looks in one format: bytes are appended to b.
type form interface {
	contentType(stream bool) string
	// progress is said as a prompt begins and after each of its batches, where
	// the client asked.
	progress(b []byte, a *answer, processed int) []byte
	// first is what comes before the first token.
	first(b []byte, a *answer) []byte
	// piece is one output token.
	piece(b []byte, a *answer, task int, p piece) []byte
	// ended is said when one of several tasks has ended.
	ended(b []byte, a *answer, task int) []byte
	// last ends the stream.
	last(b []byte, a *answer) []byte
	// whole is an answer that is not streamed.
	whole(b []byte, a *answer) []byte
}

// mortal is a form that has a word for the death of Ollama's runner; elsewhere
// a stream just ends.
type mortal interface {
	died(b []byte, a *answer) []byte
}

// answer is what a form needs to know.
type answer struct {
	ask     *ask
	words   vocabulary
	number  int // of the work
	id      string
	model   string
	name    string // the model as the client wrote it
	created int64
	arrived time.Time
	now     time.Time
	load    time.Duration
	garbage bool
	tasks   []taskView
	pre     []byte // a form's own: what is the same in each event
	post    []byte
	events  int       // said so far, where a form numbers them
	items   int       // blocks or items begun, where a form has them
	saying  pieceKind // what the one that is open is made of
}

// taskView is a copy of a task's state.
type taskView struct {
	prompt, cached, processed, decoded int
	target                             int // output tokens there will be
	limited, done                      bool
	slot                               int
	promptTime, decodeTime             time.Duration
}

// headTime says when an engine sends the headers of a stream.
type headTime uint8

const (
	headAtOnce  headTime = iota // vLLM and others: when the request is accepted
	headAtStart                 // llama.cpp: when it gets its slot
	headAtToken                 // Ollama: with the first token
)

// llamaPing is how often llama.cpp says something to a stream that has had
// nothing yet: an SSE comment, even while it is queued.
const llamaPing = 30 * time.Second

// OutputHeader is a request's header that says exactly how many output tokens the
// answer has, up to its maximum: for who replays requests whose answers are known.
const OutputHeader = "X-Sim-Output-Tokens"

// infer runs one request from its acceptance to its end.
func (s *Server) infer(w http.ResponseWriter, r *http.Request, a *ask, f form) {
	if n, err := strconv.Atoi(r.Header.Get(OutputHeader)); err == nil && n > 0 {
		a.Output = n
	}
	c := &call{s: s, w: w, r: r, ask: a, form: f, wake: make(chan struct{}, 1), processed: -1}
	var rejected *model.Rejection
	s.do(func(now time.Time) {
		if c.work, rejected = s.model.Submit(now, a.Request); rejected == nil {
			c.work.User = c
		}
	})
	if rejected != nil {
		s.reject(w, r, rejected, a)
		return
	}
	n := len(c.work.Tasks)
	c.sent, c.said = make([]int, n), make([]bool, n)
	c.ans = answer{
		ask: a, words: s.words, number: c.work.ID, id: s.face.newID(c.work.ID), model: c.work.Model, name: a.name,
		created: c.work.Arrived.Unix(), arrived: c.work.Arrived, tasks: make([]taskView, n),
	}
	c.follow()
}

// happened wakes the handler; the lock is held.
func (c *call) happened(ev model.Event) {
	switch {
	case ev.Kind == model.Noticed:
		c.noticed = true
	case ev.Kind == model.Token && !c.ask.Stream, ev.Kind == model.Progress && !c.ask.returnProgress:
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// state is a copy of what a work's end depends on.
type state struct {
	end     model.End
	started bool
	noticed bool
	reset   bool
	struck  model.FaultKind
}

// look copies the work's state.
func (c *call) look() state {
	c.s.share.Lock()
	defer c.s.share.Unlock()
	w, a := c.work, &c.ans
	now := w.Ended
	if now.IsZero() {
		now = time.Now()
	}
	a.now, a.load, a.garbage = now, w.Load, w.Garbage
	for i := range w.Tasks {
		t, v := &w.Tasks[i], &a.tasks[i]
		v.prompt, v.cached, v.processed, v.decoded = t.Prompt, t.Cached, t.Processed, t.Decoded
		v.target, v.limited, v.done, v.slot = t.Target, t.Limited, t.Done(), t.Slot
		switch {
		case t.Started.IsZero():
		case t.First.IsZero():
			v.promptTime = now.Sub(t.Started)
		default:
			v.promptTime = t.First.Sub(t.Started)
			to := t.Ended
			if to.IsZero() {
				to = now
			}
			v.decodeTime = to.Sub(t.First)
		}
	}
	return state{end: w.End, started: !w.Started.IsZero(), noticed: c.noticed, reset: w.Reset, struck: w.Struck}
}

// follow sleeps until something has happened and says it to the client.
func (c *call) follow() {
	if c.ask.Stream && c.s.face.headTime() == headAtOnce && c.look().struck != model.FaultHang {
		c.sendHead()
	}
	gone := c.r.Context().Done()
	var ping <-chan time.Time
	if c.ask.Stream && c.s.config.Kind == model.LlamaCpp {
		t := time.NewTicker(c.s.opts.scaled(llamaPing))
		defer t.Stop()
		ping = t.C
	}
	for {
		select {
		case <-c.wake:
		case <-ping:
			if !c.role && gone != nil && c.look().struck == model.FaultNone {
				c.sendHead()
				_, _ = c.w.Write([]byte(":\n\n"))
				c.flush()
			}
			continue
		case <-gone:
			gone = nil
			c.s.do(func(now time.Time) { c.s.model.Leave(now, c.work) })
		case <-c.s.done:
			panic(http.ErrAbortHandler)
		}
		st := c.look()
		switch {
		case st.end == model.EndLost:
			closeConn(c.r)
		case gone == nil: // nobody listens; the connection ends when the engine knows
			if st.noticed || st.end != model.Running {
				panic(http.ErrAbortHandler)
			}
		case c.ask.Stream:
			if c.stream(st) {
				return
			}
		default:
			if c.wait(st) {
				return
			}
		}
	}
}

func (c *call) sendHead() {
	if !c.head {
		c.head = true
		c.s.face.streamHeaders(c.w.Header(), c.form.contentType(true))
		c.w.WriteHeader(http.StatusOK)
		c.flush()
	}
}

func (c *call) flush() { _ = http.NewResponseController(c.w).Flush() }

// stream says what is new to a client that streams; true: that was all.
func (c *call) stream(st state) bool {
	if st.started && (c.s.face.headTime() != headAtToken || st.struck == model.FaultHangAfterHeaders) {
		c.sendHead()
	}
	b := c.buf[:0]
	if c.ask.returnProgress && st.started && !c.role {
		b = c.progress(b, &c.ans.tasks[0])
	}
	for i := range c.ans.tasks {
		t := &c.ans.tasks[i]
		for ; c.sent[i] < t.decoded; c.sent[i]++ {
			if !c.role {
				c.role = true
				b = c.form.first(b, &c.ans)
			}
			b = c.form.piece(b, &c.ans, i, c.ans.piece(i, c.sent[i]))
		}
		if t.done && !c.said[i] {
			c.said[i] = true
			b = c.form.ended(b, &c.ans, i)
		}
	}
	switch st.end {
	case model.EndDone:
		c.remember()
		b = c.form.last(b, &c.ans)
	case model.EndDied:
		if !c.head {
			return c.wait(st)
		}
		if f, ok := c.form.(mortal); ok {
			b = f.died(b, &c.ans)
		}
	}
	c.buf = b
	if len(b) > 0 || st.end != model.Running {
		c.sendHead()
		_, _ = c.w.Write(b)
		if st.end == model.Running || st.end == model.EndCut {
			c.flush()
		}
	}
	if st.end == model.EndCut && st.reset {
		resetConn(c.r)
	}
	return st.end != model.Running
}

// progress says how far the prompt is: first what the cache had of it.
func (c *call) progress(b []byte, t *taskView) []byte {
	if c.processed < 0 {
		c.processed = t.cached
		b = c.form.progress(b, &c.ans, t.cached)
	}
	if t.processed > c.processed {
		c.processed = t.processed
		b = c.form.progress(b, &c.ans, t.processed)
	}
	return b
}

// wait says the whole answer when it is there; true: it was said.
func (c *call) wait(st state) bool {
	switch st.end {
	case model.EndDied:
		c.s.face.fail(c.w, c.r, problem{status: http.StatusInternalServerError, message: runnerDied})
		return true
	case model.Running:
		if st.started && st.struck == model.FaultHangAfterHeaders && !c.head {
			c.head = true
			c.s.face.headers(c.w.Header(), c.r, c.form.contentType(false))
			c.w.WriteHeader(http.StatusOK)
			c.flush()
		}
		return false
	case model.EndEmpty:
		c.s.face.headers(c.w.Header(), c.r, c.form.contentType(false))
		c.w.Header().Set("Content-Length", "0")
		c.w.WriteHeader(http.StatusOK)
		return true
	}
	c.remember()
	body := c.form.whole(nil, &c.ans)
	h := c.w.Header()
	if !c.head {
		c.s.face.headers(h, c.r, c.form.contentType(false))
		if c.s.config.Kind != model.Ollama || st.end == model.EndCut {
			h.Set("Content-Length", strconv.Itoa(len(body)))
		}
	}
	if st.end != model.EndCut {
		_, _ = c.w.Write(body)
		return true
	}
	_, _ = c.w.Write(body[:len(body)/2])
	c.flush()
	if st.reset {
		resetConn(c.r)
	}
	panic(http.ErrAbortHandler)
}

// remember lets the next turn of a conversation find this answer in the cache.
func (c *call) remember() {
	if !c.ask.messages || len(c.ans.tasks) == 0 || len(c.ask.Prompts) == 0 {
		return
	}
	text := c.ans.text(0)
	parts := chain(append([]model.Part(nil), c.ask.Prompts[0]...), "assistant", text, messageTokens)
	c.s.do(func(now time.Time) { c.s.model.Remember(now, c.work, parts) })
}

// totals sums prompt, cached and output tokens over all tasks; copies of one
// prompt count it once.
func (a *answer) totals() (prompt, cached, output int) {
	copies := max(a.ask.Copies, 1)
	for i := range a.tasks {
		t := &a.tasks[i]
		if i%copies == 0 {
			prompt += t.prompt
			cached += t.cached
		}
		output += t.decoded
	}
	return prompt, cached, output
}
