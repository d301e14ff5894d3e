package gateway

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"switchyard/admission"
	"switchyard/dialect"
)

// tellQuota says what the request's key has left of its limits per minute, in
// OpenAI's headers, and for Anthropic's clients in theirs, too. Without limits
// it says nothing.
func (q *visit) tellQuota() {
	left := q.ticket.Quota()
	if left == (admission.Quota{}) {
		return
	}
	h := q.w.Header()
	openAIQuota(h, "Requests", left.Requests)
	openAIQuota(h, "Tokens", left.Tokens)
	if q.format == dialect.Anthropic {
		now := time.Now()
		anthropicQuota(h, "Requests", left.Requests, now)
		anthropicQuota(h, "Tokens", left.Tokens, now)
	}
}

// openAIQuota tells one limit; its reset is a duration such as 1s or 6m0s.
func openAIQuota(h http.Header, what string, a admission.Allowance) {
	if a.Limit == 0 {
		return
	}
	h["X-Ratelimit-Limit-"+what] = []string{strconv.Itoa(a.Limit)}
	h["X-Ratelimit-Remaining-"+what] = []string{strconv.Itoa(a.Remaining)}
	h["X-Ratelimit-Reset-"+what] = []string{(time.Duration(roundUp(a.Reset, time.Millisecond)) * time.Millisecond).String()}
}

// anthropicQuota tells one limit; its reset is a time, in whole seconds.
func anthropicQuota(h http.Header, what string, a admission.Allowance, now time.Time) {
	if a.Limit == 0 {
		return
	}
	h["Anthropic-Ratelimit-"+what+"-Limit"] = []string{strconv.Itoa(a.Limit)}
	h["Anthropic-Ratelimit-"+what+"-Remaining"] = []string{strconv.Itoa(a.Remaining)}
	full := now.Add(a.Reset + time.Second - 1)
	h["Anthropic-Ratelimit-"+what+"-Reset"] = []string{full.UTC().Truncate(time.Second).Format(time.RFC3339)}
}

// quotaHeader reports whether a header tells limits. What a replica says of
// the gateway's own must not be taken for the client's.
func quotaHeader(name string) bool {
	return strings.HasPrefix(name, "X-Ratelimit-") || strings.HasPrefix(name, "Anthropic-Ratelimit-")
}
