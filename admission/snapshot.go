package admission

import (
	"time"

	"switchyard/replica"
)

// Snapshot is the whole state at one instant: the one source of /admin/state,
// the gauges of /metrics and the dashboard. Its JSON names are the interface.
type Snapshot struct {
	At       time.Time      `json:"time"`
	Serving  bool           `json:"serving"`
	Draining bool           `json:"draining"`
	UptimeS  float64        `json:"uptime_s"`
	Version  string         `json:"version"`
	Totals   Totals         `json:"totals"`
	Promises Promises       `json:"promises"`
	Classes  []ClassState   `json:"classes"`
	Replicas []ReplicaState `json:"replicas"`
	Waiting  *Waiting       `json:"waiting,omitempty"` // Watch alone fills it in
}

// Totals are the books of rule R13.
type Totals struct {
	Arrived   int64 `json:"arrived"`
	Completed int64 `json:"completed"`
	Refused   int64 `json:"refused"`
	Failed    int64 `json:"failed"`
	Cancelled int64 `json:"cancelled"`
	Queued    int64 `json:"queued"`
	Running   int64 `json:"running"`
}

// Balanced reports whether the books balance.
func (t Totals) Balanced() bool {
	return t.Arrived == t.Completed+t.Refused+t.Failed+t.Cancelled+t.Queued+t.Running
}

// Promises counts accepted requests by whether their first token came in time.
type Promises struct {
	Kept   int64 `json:"kept"`
	Broken int64 `json:"broken"`
}

// ClassState is one priority class, most urgent first.
type ClassState struct {
	Name          string  `json:"name"`
	Queued        int     `json:"queued"`
	QueuedBytes   int64   `json:"queued_bytes"`
	Running       int     `json:"running"`
	ForecastWaitS float64 `json:"forecast_wait_s"`
	Arrived       int64   `json:"arrived"`
	Kept          int64   `json:"kept"`
	Broken        int64   `json:"broken"`

	Booked      int      `json:"booked"`       // places of refused requests that may come back (R14)
	ReturnShare float64  `json:"return_share"` // of refused clients, as learned; 0: none was refused yet
	WouldRefuse Observed `json:"would_refuse"` // admission.mode: observe
}

// Observed counts the requests that would have been refused by forecast, by
// what then happened.
type Observed struct {
	Late    int64 `json:"late"`    // they missed their deadline: refusing them would have been right
	InTime  int64 `json:"in_time"` // it would have been a mistake
	Unknown int64 `json:"unknown"` // they left or failed first
}

// ReplicaState is one replica.
type ReplicaState struct {
	Name              string            `json:"name"`
	URL               string            `json:"url"`
	Engine            string            `json:"engine"`
	EngineVersion     string            `json:"engine_version,omitempty"`
	Up                bool              `json:"up"`
	Loading           bool              `json:"loading"`
	Err               string            `json:"error,omitempty"`
	Draining          bool              `json:"draining"`
	Tier              int               `json:"tier"`
	Slots             SlotState         `json:"slots"`
	Breaker           BreakerState      `json:"breaker"`
	HeldOffS          float64           `json:"held_off_s"`
	Models            []ModelState      `json:"models"`
	AnyModel          bool              `json:"any_model"`
	ModelsRead        bool              `json:"models_read"`
	PromptTokensPerS  float64           `json:"prompt_tokens_per_s"`
	DecodeTokensPerS  float64           `json:"decode_tokens_per_s"`
	Misconfigured     string            `json:"misconfigured,omitempty"`
	Slow              string            `json:"slow,omitempty"` // why forecasts take it for slower than it was or could be
	GPU               *replica.GPUFacts `json:"gpu"`            // nil until it was read
	Attempts          int64             `json:"attempts"`
	AttemptsFailed    int64             `json:"attempts_failed"`
	ConsecutiveFailed int               `json:"consecutive_failed"`
	BusyByClass       []int             `json:"busy_by_class,omitempty"` // slots, classes as in Classes; Watch alone fills it in
	PromptTokens      int64             `json:"prompt_tokens"`           // of attempts that have ended, as these three
	CachedTokens      int64             `json:"cached_tokens"`
	OutputTokens      int64             `json:"output_tokens"`
}

// SlotState is a replica's slot ledger. Total = Free + Busy + Zombie + Foreign
// unless a reload or an engine's new word lowered Total below what is held.
type SlotState struct {
	Total   int `json:"total"`
	Free    int `json:"free"`
	Busy    int `json:"busy"`
	Zombie  int `json:"zombie"`
	Foreign int `json:"foreign"`
}

// BreakerState is a replica's breaker.
type BreakerState struct {
	State      string  `json:"state"`     // closed, half-open, open
	Allowance  float64 `json:"allowance"` // share of slots, 0…1
	Reason     string  `json:"reason,omitempty"`
	OpenS      float64 `json:"open_s"` // for how long it has been open; 0 unless open
	NextTrialS float64 `json:"next_trial_s"`
}

// ModelState is one model of a replica; Slots is set where slots are per model.
type ModelState struct {
	Name     string     `json:"name"`
	Resident bool       `json:"resident"`
	Context  int        `json:"context"`
	OnCPU    bool       `json:"on_cpu,omitempty"`
	Slots    *SlotState `json:"slots,omitempty"`
}
