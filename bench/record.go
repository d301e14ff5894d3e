package bench

import (
	"fmt"

	"switchyard/simserver"
)

// Record is one line of the raw log: what became of one request as its client
// saw it. Times are seconds since the trial's start.
type Record struct {
	Target       string   `json:"target"`
	Trial        int      `json:"trial"`         // from 1
	Load         float64  `json:"load,omitzero"` // where the scenario has several
	ID           string   `json:"id"`
	ArrivalS     float64  `json:"arrival_s"` // when it was meant to be sent
	Class        string   `json:"class"`
	Key          string   `json:"key"`
	Weight       float64  `json:"weight,omitzero"` // of the key, where it is not 1
	Session      string   `json:"session"`
	Turn         int      `json:"turn"`
	PromptTokens int      `json:"prompt_tokens"`
	MaxTokens    int      `json:"max_tokens"`
	DeadlineS    float64  `json:"deadline_s"`        // after arrival_s
	Status       int      `json:"status"`            // 0: there was no answer
	Code         string   `json:"code"`              // X-Switchyard-Reason, or the code in an error body or event
	RetryAfterS  *float64 `json:"retry_after_s"`     // null: none was said
	NoRetry      bool     `json:"no_retry,omitzero"` // x-should-retry: false
	RetriedOf    string   `json:"retried_of"`
	FirstTokenS  *float64 `json:"first_token_s"` // null: none came
	EndS         float64  `json:"end_s"`         // last byte, or when the client gave up
	OutputTokens int      `json:"output_tokens"`
	CachedTokens int      `json:"cached_tokens"`
	Replica      string   `json:"replica"`
	Attempts     int      `json:"attempts"`
	Error        string   `json:"error"`   // what went wrong; ErrLeft: the client's patience ended
	OnTime       bool     `json:"on_time"` // a whole answer, its first token within deadline_s
}

// ErrLeft is the Error of a request whose client left because no first token
// had come for as long as it would wait.
const ErrLeft = "left"

// ReplicaRecord is the raw log's line for one replica at the end of a trial.
type ReplicaRecord struct {
	Target  string          `json:"target"`
	Trial   int             `json:"trial"`
	Load    float64         `json:"load,omitzero"`
	Replica string          `json:"replica"`
	Stats   simserver.Stats `json:"stats"`
}

// Trial is what a runner brings back: one target, one trial.
type Trial struct {
	Records    []Record        // in order of arrival
	Replicas   []ReplicaRecord // none for real replicas
	Violations []string        // rules that were broken: books (R13), slots (R1), waste
}

// New begins the record of a request with what is known as it is sent. Target,
// Trial, Load and Weight are filled in where the log is written.
func (r *Request) New() Record {
	return Record{
		ID: r.ID, ArrivalS: r.At.Seconds(), Class: r.Class, Key: r.Key, Session: r.Session, Turn: r.Turn,
		PromptTokens: r.PromptTokens, MaxTokens: r.MaxTokens, DeadlineS: r.Deadline.Seconds(), RetriedOf: r.RetriedOf,
	}
}

// slack is what times lose by being written with six digits, twice.
const slack = 2e-6

// Judge sets OnTime from the other fields.
func (r *Record) Judge() { r.OnTime = r.inTime() }

func (r *Record) inTime() bool {
	return r.Status/100 == 2 && r.Error == "" && r.FirstTokenS != nil && *r.FirstTokenS-r.ArrivalS <= r.DeadlineS+slack
}

// outcome is which column of the tables counts a record: each exactly one.
type outcome uint8

const (
	onTime  outcome = iota
	late            // a whole answer after its deadline, or the client left when that had passed
	refused         // told to come another time: 429 or 503
	failed          // everything else
)

var outcomes = [...]string{"on time", "late", "refused", "failed"}

func (r *Record) outcome() outcome {
	switch {
	case r.OnTime:
		return onTime
	case r.Error == ErrLeft && r.EndS-r.ArrivalS >= r.DeadlineS-slack:
		return late
	case comeBack(r.Status):
		return refused
	case r.Status/100 == 2 && r.Error == "":
		return late
	}
	return failed
}

// Summary is a trial in one line.
func (t *Trial) Summary() string {
	var n [len(outcomes)]int
	for i := range t.Records {
		n[t.Records[i].outcome()]++
	}
	return fmt.Sprintf("%d requests: %d on time, %d late, %d refused, %d failed", len(t.Records), n[onTime], n[late], n[refused], n[failed])
}
