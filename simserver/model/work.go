package model

import "time"

// Request is what a client asks.
type Request struct {
	Model   string   // only Ollama, vLLM and OpenAI look at it
	Prompts [][]Part // usually one; each is a task of its own
	Copies  int      // answers wanted per prompt (n, best_of); 0: 1
	Max     int      // most output tokens; 0: not said
	Output  int      // exact output tokens of each answer (up to Max); 0: drawn from Config.Output by the prompt
	Stream  bool

	NoOutput  bool          // embeddings, rerank: done when the prompt is processed
	NoCache   bool          // leaves the prompt cache alone
	Strict    bool          // Ollama: refuse a prompt that is too long instead of cutting it
	Detached  bool          // llama.cpp: goes on after the client has left
	Preload   bool          // Ollama: only makes the model resident
	Context   int           // Ollama: context size wanted; 0: the default
	KeepAlive time.Duration // Ollama: how long to stay resident after it; 0: the default, negative: for ever
}

// End says how a piece of work ended.
type End uint8

// The ends.
const (
	Running  End = iota // it has not
	EndDone             // the whole answer was made
	EndCut              // fault cut: the connection ends without a last word
	EndEmpty            // fault empty: 200 and nothing
	EndLeft             // the client had left and the engine noticed
	EndLost             // the engine crashed
	EndDied             // the process that held the model died, the server did not
)

// Work is one request inside the engine. Its fields are for reading, and
// change only inside calls of the engine.
type Work struct {
	ID      int
	Request Request
	Model   string // the name of the model that serves it
	Tasks   []Task // prompt by prompt, copies beside each other
	Arrived time.Time
	Started time.Time     // the first task got its slot; zero: queued
	Load    time.Duration // what it waited for the model to load
	Left    time.Time     // the client left; zero: it is there
	Ended   time.Time
	End     End
	Garbage bool      // its text is nonsense
	Reset   bool      // with EndCut: reset the connection
	Struck  FaultKind // the fault it met on arrival or as it began
	User    any       // the caller's own

	runner     *runner
	single     [1]Task
	epoch      int // the fault that struck it
	unfinished int
	hand       int // what it adds to in_hand
	notice     noticeMode
	due        time.Time
}

// Task is one prompt with one answer: what one slot works on.
type Task struct {
	Prompt    int // prompt tokens
	Cached    int // of them found in the prompt cache
	Processed int // of them processed so far, cached ones included
	Decoded   int // output tokens made
	Target    int // output tokens there will be
	Limited   bool
	Slot      int    // -1: in none
	Seed      uint64 // of what it answers: the same for the same prompt and OutputSeed
	Started   time.Time
	First     time.Time // the prompt was done, the first token made
	Ended     time.Time

	work    *Work
	parts   []Part
	leader  *Task // the copy that processes the prompt for this one
	turn    int64 // its place in the queue
	queued  bool
	ended   bool
	inBatch bool
	chunk   int // prompt tokens in the running batch
}

func (t *Task) prompting() bool { return t.Processed < t.Prompt }

// Done reports whether the task has ended well.
func (t *Task) Done() bool { return t.ended && t.Decoded >= t.Target }

// newWork lays out the tasks of a request.
func newWork(id int, req Request, seed uint64, now time.Time) *Work {
	w := &Work{ID: id, Request: req, Arrived: now}
	copies := max(req.Copies, 1)
	n := max(len(req.Prompts), 1) * copies
	w.Tasks = w.single[:]
	if n > 1 {
		w.Tasks = make([]Task, n)
	}
	for i := range w.Tasks {
		t := &w.Tasks[i]
		t.work, t.Slot = w, -1
		if p := i / copies; p < len(req.Prompts) {
			t.parts = req.Prompts[p]
		}
		t.Prompt = max(tokensOf(t.parts), 1)
		t.Seed = mix(seed, uint64(i%copies))
		if n := len(t.parts); n > 0 {
			t.Seed = mix(t.Seed, t.parts[n-1].Hash)
		}
		if i%copies > 0 {
			t.leader = &w.Tasks[i-i%copies]
		}
	}
	w.unfinished = n
	return w
}

// Generated is the number of output tokens made in all tasks.
func (w *Work) Generated() int {
	n := 0
	for i := range w.Tasks {
		n += w.Tasks[i].Decoded
	}
	return n
}

// meets reports whether the work is under the given fault now.
func (w *Work) meets(e *Engine, k FaultKind) bool {
	return w.Struck == k && w.epoch == e.faultEpoch
}

// held reports whether the task makes no progress because of a fault.
func (t *Task) held(e *Engine) bool {
	w := t.work
	return w.meets(e, FaultHang) || w.meets(e, FaultHangAfterHeaders) ||
		w.meets(e, FaultStall) && t.Decoded >= e.fault.AfterTokens
}

// EventKind says what happened.
type EventKind uint8

// The events.
const (
	Started      EventKind = iota // the work's first task got its slot
	Progress                      // a batch of its prompt is done, not yet the whole; not with Milestones
	Token                         // a task has one more output token; with Milestones: its first
	TaskDone                      // one of its tasks ended
	Finished                      // the work ended: see Work.End
	Noticed                       // the engine noticed that the client had left; Finished follows when it has stopped
	FaultChanged                  // another fault is active; it has no work
)

// Event is something that happened inside the engine.
type Event struct {
	Kind  EventKind
	At    time.Time
	Work  *Work
	Task  int       // index of the task, for Token and TaskDone
	Fault FaultKind // for FaultChanged
}

// RejectKind says why a request was not taken.
type RejectKind uint8

// The reasons.
const (
	RejectDown      RejectKind = iota + 1 // crashed or refusing: no connection
	RejectReset                           // the connection is reset
	RejectError                           // Status
	RejectBusy                            // Status, RetryAfter
	RejectLoading                         // the model loads
	RejectQueueFull                       // its own queue is full
	RejectModel                           // unknown model
	RejectTooLong                         // the prompt exceeds the context
)

// Rejection is why a request was not taken.
type Rejection struct {
	Kind          RejectKind
	Status        int
	RetryAfter    time.Duration
	PromptTokens  int
	ContextTokens int
}
