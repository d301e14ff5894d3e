package gateway

import (
	"net/http"
	"strings"

	"switchyard/admission"
	"switchyard/dialect"
)

// route finds the endpoint of a request. Paths are taken as they stand on the
// wire: none is cleaned, since a path that two servers read differently is how
// requests slip past checks. An endpoint comes with a denial where the path is
// known but the method is wrong.
func route(r *http.Request) (*dialect.Endpoint, *denial) {
	if r.Method == http.MethodConnect || upgrades(r.Header) {
		return nil, deny(admission.ReasonNotSupported, "this gateway speaks plain HTTP requests only: no CONNECT, no protocol upgrades")
	}
	path := r.URL.EscapedPath()
	ep, ok := dialect.Lookup(path)
	if !ok {
		return nil, deny(admission.ReasonNotFound, "there is nothing at %s", clipped(path))
	}
	if !ep.Allows(r.Method) {
		d := deny(admission.ReasonMethodNotAllowed, "%s takes %s", clipped(path), strings.Join(ep.Methods, ", "))
		d.allow = strings.Join(ep.Methods, ", ")
		return ep, d
	}
	return ep, nil
}

// upgrades reports whether the client wants another protocol. An offer of h2c
// is none: it asks only for another framing of the same, is made unasked by
// whole ecosystems (Java's client), and may be passed over.
func upgrades(h http.Header) bool {
	for _, line := range h["Upgrade"] {
		for p := range strings.SplitSeq(line, ",") {
			if p = strings.TrimSpace(p); p != "" && !strings.EqualFold(p, "h2c") {
				return true
			}
		}
	}
	return false
}

// formatOf guesses the client's format where there is no endpoint to tell.
func formatOf(path string) dialect.Format {
	switch {
	case strings.HasPrefix(path, "/api/"):
		return dialect.Ollama
	case strings.HasPrefix(path, "/v1/messages"):
		return dialect.Anthropic
	}
	return dialect.OpenAI
}

// clipped bounds what of a client's text goes into a message.
func clipped(s string) string {
	const most = 100
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
