package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"switchyard/admission"
)

// anonymous is the name of whoever has no key, or an unknown one.
const anonymous = "anonymous"

// requestID keeps the client's X-Request-ID if it can stand in logs and paths
// as it is, and makes one otherwise.
func requestID(h http.Header) string {
	if id := first(h, "X-Request-Id"); saneID(id) {
		return id
	}
	var b [16]byte
	for i := 0; i < len(b); i += 8 {
		n := rand.Uint64()
		for j := range 8 {
			b[i+j] = byte(n >> (8 * j))
		}
	}
	return hex.EncodeToString(b[:])
}

func saneID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		if c := id[i]; !lower(c|0x20) && !decimal(c) && strings.IndexByte("-_.:+=@~", c) < 0 {
			return false
		}
	}
	return true
}

// looped reports whether the request has passed this gateway before.
func (v *view) looped(h http.Header) bool {
	for _, line := range h["Via"] {
		for hop := range strings.SplitSeq(line, ",") {
			if f := strings.Fields(hop); len(f) >= 2 && strings.EqualFold(f[1], v.via) {
				return true
			}
		}
	}
	return false
}

// encoded reports whether the body is compressed.
func encoded(h http.Header) bool {
	for _, line := range h["Content-Encoding"] {
		for c := range strings.SplitSeq(line, ",") {
			if c = strings.TrimSpace(c); c != "" && !strings.EqualFold(c, "identity") {
				return true
			}
		}
	}
	return false
}

// findKey returns the configured key that the request shows, nil if it shows
// none that is known. Hashes are compared in constant time; those that share
// their first bytes with the shown one's are compared, which tells nothing of a
// key, since nobody can choose what theirs hashes to.
func (v *view) findKey(h http.Header) *Key {
	if len(v.Keys) == 0 {
		return nil
	}
	var found *Key
	for _, shown := range [...]string{bearer(h), strings.TrimSpace(first(h, "X-Api-Key"))} {
		if shown == "" {
			continue
		}
		sum := sha256.Sum256([]byte(shown))
		for _, i := range v.byHash[[8]byte(sum[:8])] {
			if subtle.ConstantTimeCompare(sum[:], v.Keys[i].Hash[:]) == 1 && found == nil {
				found = &v.Keys[i]
			}
		}
	}
	return found
}

func bearer(h http.Header) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(first(h, "Authorization")), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// mayUse reports whether the key may use the model. Ollama's x is x:latest.
func (k *Key) mayUse(model string) bool {
	if k == nil || len(k.Models) == 0 {
		return true
	}
	for _, m := range k.Models {
		if m == "*" || sameModel(m, model) {
			return true
		}
	}
	return false
}

// sameModel compares names as Ollama does: without a tag, :latest is meant.
func sameModel(a, b string) bool {
	return untagged(a) == untagged(b)
}

// headerClass is the class that the headers ask for; empty if they do not say.
func (v *view) headerClass(h http.Header) (string, *denial) {
	if said := h["X-Switchyard-Class"]; len(said) > 0 {
		name := strings.TrimSpace(said[0])
		if _, ok := v.ranks[name]; !ok {
			return "", deny(badRequest, "X-Switchyard-Class: there is no class %q; there are: %s",
				clipped(name), strings.Join(v.classNames(), ", ")).about("X-Switchyard-Class")
		}
		return name, nil
	}
	u, ok := urgency(h["Priority"])
	switch {
	case !ok:
		return "", nil
	case u <= 1:
		return v.Classes[0].Name, nil
	case u <= 4:
		return v.DefaultClass, nil
	}
	return v.leastUrgent(), nil
}

func (v *view) leastUrgent() string { return v.Classes[len(v.Classes)-1].Name }

func (v *view) classNames() []string {
	names := make([]string, len(v.Classes))
	for i, c := range v.Classes {
		names[i] = c.Name
	}
	return names
}

// class is the class a request gets: what its headers ask for, else its body's
// service_tier, else its key's, else the default; never above what its key may
// have.
func (v *view) class(byHeader, serviceTier string, k *Key) string {
	name := byHeader
	if name == "" {
		switch serviceTier {
		case "priority":
			name = v.Classes[0].Name
		case "default", "auto":
			name = v.DefaultClass
		case "flex":
			name = v.leastUrgent()
		}
	}
	if k == nil {
		return orDefault(name, v.DefaultClass)
	}
	name = orDefault(orDefault(name, k.Class), v.DefaultClass)
	if k.MaxClass != "" && v.rank(name) < v.rank(k.MaxClass) {
		return k.MaxClass
	}
	return name
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// patience is how long the client is willing to wait for its first token.
type patience struct {
	wait   time.Duration // 0: it does not say
	soft   bool          // an SDK's timeout: counts only where shorter than the class's
	capped bool          // it said more than limits.max_deadline
}

// headerDeadline reads what the headers say about the deadline.
func (v *view) headerDeadline(h http.Header) (patience, *denial) {
	var p patience
	if said := h["X-Switchyard-Deadline"]; len(said) > 0 {
		d, err := parseDeadline(strings.TrimSpace(said[0]))
		if err != nil {
			return p, deny(badRequest, "X-Switchyard-Deadline: %v", err).about("X-Switchyard-Deadline")
		}
		p.wait = d
	} else if d, ok := preferWait(h["Prefer"]); ok {
		p.wait = d
	} else if d, ok := sdkTimeout(h); ok {
		p.wait, p.soft = d, true
	}
	if p.wait > v.Limits.MaxDeadline {
		p.wait, p.capped = v.Limits.MaxDeadline, true
	}
	return p, nil
}

// deadline is the moment the first token is due. stated says that the client
// set it itself, so that it also bounds a whole answer that is not streamed;
// a wish beyond limits.max_deadline is not the client's own word any more.
func (v *view) due(headersAt time.Time, p patience, class string) (due time.Time, stated bool) {
	ofClass := v.deadline(class)
	if p.wait <= 0 || p.soft && p.wait >= ofClass {
		return headersAt.Add(ofClass), false
	}
	return headersAt.Add(p.wait), !p.capped
}

// longest bounds times read from headers: far beyond any use, far from overflow.
const longest = 365 * 24 * time.Hour

var errDeadlineForm = errors.New("want a duration like 8s or 1m30s, or seconds as a number, above 0")

// parseDeadline reads a Go duration, or seconds as a decimal number.
func parseDeadline(s string) (time.Duration, error) {
	if d, ok := seconds(s); ok {
		if d <= 0 {
			return 0, errDeadlineForm
		}
		return d, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, errDeadlineForm
	}
	return min(d, longest), nil
}

// seconds reads digits with at most one decimal point.
func seconds(s string) (time.Duration, bool) {
	if s == "" || len(s) > 32 || strings.Trim(s, "0123456789.") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, false
	}
	if f >= longest.Seconds() {
		return longest, true
	}
	return time.Duration(f * float64(time.Second)), true
}

// preferWait reads wait=SECONDS from Prefer (RFC 7240); of several the first
// counts. What is malformed, or asks for no wait at all, is ignored.
func preferWait(lines []string) (time.Duration, bool) {
	for _, line := range lines {
		for pref := range strings.SplitSeq(line, ",") {
			pref, _, _ = strings.Cut(pref, ";")
			name, value, ok := strings.Cut(pref, "=")
			if !ok || !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			value = strings.TrimSpace(value)
			if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' {
				value = value[1 : n-1]
			}
			if strings.Contains(value, ".") {
				return 0, false
			}
			d, ok := seconds(value)
			return d, ok && d > 0
		}
	}
	return 0, false
}

// sdkTimeout reads how long the OpenAI and Anthropic SDKs will wait.
func sdkTimeout(h http.Header) (time.Duration, bool) {
	for _, name := range [...]string{"X-Stainless-Read-Timeout", "X-Stainless-Timeout"} {
		if d, ok := seconds(strings.TrimSpace(first(h, name))); ok && d > 0 {
			return d, true
		}
	}
	return 0, false
}

// untagged is an Ollama name without the tag that goes without saying.
func untagged(name string) string { return strings.TrimSuffix(name, ":latest") }

// tryOf is what OpenAI's and Anthropic's SDKs say of earlier tries.
func tryOf(h http.Header) admission.Try {
	said := first(h, "X-Stainless-Retry-Count")
	if said == "" { // mostly, and Atoi would make an error of it
		return admission.TryUnsaid
	}
	switch n, err := strconv.Atoi(said); {
	case err != nil || n < 0:
		return admission.TryUnsaid
	case n == 0:
		return admission.TryFirst
	}
	return admission.TryAgain
}
