package gateway

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"switchyard/admission"
	"switchyard/dialect"
)

// reasonInternal is the one code that is not in the interface: a fault of the
// gateway itself, which no client should ever see.
const reasonInternal admission.Reason = "internal_error"

// sdkPatience is the longest Retry-After that common SDKs obey; a longer one
// they ignore and are back within seconds (R14).
const sdkPatience = time.Minute

// statuses turns the gateway's own codes into HTTP statuses. Nothing else does.
var statuses = map[admission.Reason]int{
	admission.ReasonDeadlineUnmeetable: http.StatusTooManyRequests,
	admission.ReasonDeadlineExpired:    http.StatusTooManyRequests,
	admission.ReasonQueueFull:          http.StatusTooManyRequests,
	admission.ReasonRateRequests:       http.StatusTooManyRequests,
	admission.ReasonRateTokens:         http.StatusTooManyRequests,
	admission.ReasonTooManyRunning:     http.StatusTooManyRequests,
	admission.ReasonBadRequest:         http.StatusBadRequest,
	admission.ReasonUnauthorized:       http.StatusUnauthorized,
	admission.ReasonForbidden:          http.StatusForbidden,
	admission.ReasonModelNotFound:      http.StatusNotFound,
	admission.ReasonNotFound:           http.StatusNotFound,
	admission.ReasonMethodNotAllowed:   http.StatusMethodNotAllowed,
	admission.ReasonBodyTooLarge:       http.StatusRequestEntityTooLarge,
	admission.ReasonEncoding:           http.StatusUnsupportedMediaType,
	admission.ReasonNotSupported:       http.StatusNotImplemented,
	admission.ReasonLoop:               http.StatusLoopDetected,
	admission.ReasonUpstreamFailed:     http.StatusBadGateway,
	admission.ReasonUpstreamTimeout:    http.StatusGatewayTimeout,
	admission.ReasonNoReplica:          http.StatusServiceUnavailable,
	admission.ReasonDraining:           http.StatusServiceUnavailable,
}

func statusOf(r admission.Reason) int {
	if s, ok := statuses[r]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// outcomeOf says how a request ends that the gateway answers with the code (R13).
func outcomeOf(r admission.Reason) admission.Outcome {
	switch statusOf(r) {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		return admission.Failed
	}
	return admission.Refused
}

// denial is an answer of the gateway's own: a refusal and what only some
// answers need beside it.
type denial struct {
	admission.Refusal
	param string // the field or header at fault
	allow string // the methods there are, with method_not_allowed
}

func deny(r admission.Reason, format string, args ...any) *denial {
	return &denial{Refusal: admission.Refusal{Reason: r, Message: fmt.Sprintf(format, args...)}}
}

func (d *denial) about(param string) *denial {
	d.param = param
	return d
}

// refuse answers the client with a refusal, in its own format, and returns the
// status sent. X-Request-ID and, where known, X-Switchyard-Class are among w's
// headers already.
func (g *Gateway) refuse(w http.ResponseWriter, f dialect.Format, id string, ref admission.Refusal) int {
	return g.deny(w, f, id, &denial{Refusal: ref})
}

func (g *Gateway) deny(w http.ResponseWriter, f dialect.Format, id string, d *denial) int {
	status := statusOf(d.Reason)
	param := d.param
	if param == "" && d.Reason == admission.ReasonModelNotFound {
		param = "model"
	}
	contentType, body := dialect.ErrorBody(f, status, string(d.Reason), d.message(), param)
	h := w.Header()
	h["X-Request-Id"] = []string{id}
	h["X-Switchyard-Reason"] = []string{string(d.Reason)}
	h["Content-Type"] = []string{contentType}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	switch status {
	case http.StatusUnauthorized:
		h["Www-Authenticate"] = []string{"Bearer"}
	case http.StatusMethodNotAllowed:
		h["Allow"] = []string{d.allow}
	case http.StatusUnsupportedMediaType:
		h["Accept-Encoding"] = []string{"identity"}
	}
	if g.draining.Load() != nil { // it may have begun since the request came
		h["Connection"] = []string{"close"}
	}
	d.retryHeaders(h, status)
	w.WriteHeader(status)
	w.Write(body) // a client that is gone needs no answer
	return status
}

// retryHeaders says when to come back (R14). Every 429 and 503 has a time,
// other answers only where the refusal gives one.
func (d *denial) retryHeaders(h http.Header, status int) {
	wait := d.RetryAfter
	if wait <= 0 && (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) {
		wait = time.Second
	}
	if wait > 0 {
		h["Retry-After"] = []string{strconv.FormatInt(roundUp(wait, time.Second), 10)}
		h["Retry-After-Ms"] = []string{strconv.FormatInt(roundUp(wait, time.Millisecond), 10)}
	}
	if d.NoRetry || wait > sdkPatience {
		h["X-Should-Retry"] = []string{"false"}
	}
}

func roundUp(d, unit time.Duration) int64 { return int64((d + unit - 1) / unit) }

// message is the sentence for people.
func (d *denial) message() string {
	if d.Reason == admission.ReasonModelNotFound {
		return d.modelMessage()
	}
	if d.Message != "" {
		return d.Message
	}
	if m := defaultMessages[d.Reason]; m != "" {
		return m
	}
	return "the gateway failed on this request"
}

func (d *denial) modelMessage() string {
	const most = 20
	what := d.Message
	if what == "" {
		what = "there is no such model here"
	}
	switch n := len(d.Models); {
	case n == 0:
		return what
	case n > most:
		return fmt.Sprintf("%s; there are: %s and %d more", what, strings.Join(d.Models[:most], ", "), n-most)
	}
	return what + "; there are: " + strings.Join(d.Models, ", ")
}

var defaultMessages = map[admission.Reason]string{
	admission.ReasonDeadlineUnmeetable: "the first token would come after the deadline",
	admission.ReasonDeadlineExpired:    "the deadline can no longer be met",
	admission.ReasonQueueFull:          "the queue is full",
	admission.ReasonRateRequests:       "the key's requests per minute are used up",
	admission.ReasonRateTokens:         "the key's tokens per minute are used up",
	admission.ReasonTooManyRunning:     "the key has as many requests under way as it may",
	admission.ReasonUpstreamFailed:     "the inference server failed on this request",
	admission.ReasonUpstreamTimeout:    "the inference server did not answer in time",
	admission.ReasonNoReplica:          "every replica that could serve this request is out",
	admission.ReasonDraining:           "the gateway is stopping",
}
