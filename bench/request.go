package bench

import "time"

// Request is one request as a client intends it: the same for every target. It
// is for reading; only Traffic makes it.
type Request struct {
	ID       string        // unique within the trial, the same for every target
	At       time.Duration // when it is sent, since the trial's start
	Class    string
	Key      string // a key's name; empty: anonymous
	Session  string // conversation; empty: none
	Turn     int    // from 1 in a conversation; else 0
	Model    string // empty: whatever there is
	Stream   bool
	Prompt   []Part        // several requests may share it
	Deadline time.Duration // for the first token, since At: stated, or of its class
	Stated   bool          // the client states Deadline itself
	Patience time.Duration // the client leaves when it has waited so long for a first token; 0: never

	PromptTokens int // the sum of Prompt
	MaxTokens    int // what the client allows; 0: it says nothing
	// OutputTokens is the length of the true answer, at most MaxTokens: a
	// property of the request, whoever serves it.
	OutputTokens int

	RetriedOf string // the ID of the try before this one; empty: the first
	Retry     int    // 0: the first try
	Origin    string // the ID of the first try: the X-Request-ID of all
	SDK       bool   // it counts its tries in X-Stainless-Retry-Count instead

	source *source
	seed   uint64 // its own random numbers come from here; tries share it
	talk   *talk  // the conversation that it belongs to
}

// Part is one piece of a prompt. Its text follows from Seed and Tokens, so two
// prompts share a prefix as far as their leading parts are equal.
type Part struct {
	Role   Role // a new message begins; RoleSame: the last one goes on
	Seed   uint64
	Tokens int
}

// Role is whose words a part is.
type Role uint8

// The roles.
const (
	RoleSame Role = iota // the part belongs to the message before it
	RoleSystem
	RoleUser
	RoleAssistant // in a conversation: what an earlier turn was answered
)

// String gives the role's name in a messages list.
func (r Role) String() string { return [...]string{"", "system", "user", "assistant"}[r] }

func tokensOf(parts []Part) int {
	n := 0
	for _, p := range parts {
		n += p.Tokens
	}
	return n
}
