package gateway

import (
	"net/http"
	"slices"
	"strings"
)

// exposed are the answer headers that a page of an allowed origin may read.
const exposed = "X-Request-ID, X-Switchyard-Replica, X-Switchyard-Attempts, X-Switchyard-Class, " +
	"X-Switchyard-Queue-Ms, X-Switchyard-Affinity, X-Switchyard-Reason, Retry-After, retry-after-ms, x-should-retry, " +
	"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, " +
	"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"

// cors adds what lets a browser's page of an allowed origin read the answer,
// and reports whether r was a preflight that needs nothing but that.
func (v *view) cors(h http.Header, r *http.Request) (preflight bool) {
	if len(v.Origins) == 0 {
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	preflight = r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != ""
	h.Add("Vary", "Origin")
	if !v.allowed(origin) {
		return preflight
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", exposed)
	if !preflight {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE")
	h.Set("Access-Control-Max-Age", "600")
	if asked := r.Header.Get("Access-Control-Request-Headers"); headerNames(asked) {
		h.Set("Access-Control-Allow-Headers", asked)
	}
	return true
}

func (v *view) allowed(origin string) bool {
	return slices.ContainsFunc(v.Origins, func(o string) bool {
		return o == "*" || strings.EqualFold(o, origin)
	})
}

// headerNames reports whether list is a list of header names and nothing else.
func headerNames(list string) bool {
	if list == "" {
		return false
	}
	return !strings.ContainsFunc(list, func(r rune) bool {
		alnum := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !alnum && !strings.ContainsRune("-_, ", r)
	})
}
