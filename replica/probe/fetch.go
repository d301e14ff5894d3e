package probe

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

const (
	maxAnswer = 4 << 20 // a list of thousands of models still fits
	// keepIdle is shorter than the 5 s after which llama.cpp closes an idle
	// connection, so that a round does not run into the closing.
	keepIdle = 3500 * time.Millisecond
)

// DialFunc opens a connection, as net.Dialer.DialContext does.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// client sends a probe's GET requests to one replica: HTTP/1.1, no proxy from
// the environment, no redirects, no cookies, nothing unbounded.
type client struct {
	base    *url.URL
	key     Secret
	timeout time.Duration // of one request, answer included
	http    *http.Client
}

// answer is a whole HTTP answer.
type answer struct {
	path   string
	status int
	header http.Header
	body   []byte
}

func newClient(t Target, dial DialFunc) *client {
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &client{base: t.URL, key: t.Key, http: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:            dial,
			TLSClientConfig:        &tls.Config{RootCAs: t.Roots},
			Protocols:              protocols,
			DisableCompression:     true,
			MaxIdleConnsPerHost:    1,
			IdleConnTimeout:        keepIdle,
			MaxResponseHeaderBytes: 64 << 10,
		},
	}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// get asks for path, which is appended to the replica's own prefix and may end
// in a query. An error means that no whole answer came; its text names what
// was asked and what went wrong.
func (c *client) get(ctx context.Context, path string) (answer, error) {
	a, err := c.glance(ctx, path, maxAnswer+1)
	if err == nil && len(a.body) > maxAnswer {
		err = fmt.Errorf("GET %s: the answer is longer than %d MiB", path, maxAnswer>>20)
	}
	return a, err
}

// glance is get for an answer of which only the first bytes matter.
func (c *client) glance(ctx context.Context, path string, most int64) (answer, error) {
	a := answer{path: path}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	u := *c.base
	own, query, _ := strings.Cut(path, "?")
	u.Path, u.RawPath, u.RawQuery = strings.TrimSuffix(u.Path, "/")+own, "", query
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return a, fmt.Errorf("GET %s: %w", path, err)
	}
	req.Header.Set("User-Agent", "switchyard")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+string(c.key))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return a, c.explain(path, err)
	}
	defer resp.Body.Close()
	a.status, a.header = resp.StatusCode, resp.Header
	a.body, err = io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return a, c.explain(path, err)
	}
	return a, nil
}

// explain says what went wrong in words an operator can act on. The cause
// stays wrapped.
func (c *client) explain(path string, err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // the address is known, and it may hold a password
	}
	var dns *net.DNSError
	var record tls.RecordHeaderError
	var authority x509.UnknownAuthorityError
	switch {
	case isTimeout(err):
		return fmt.Errorf("no answer to GET %s within %v: %w", path, c.timeout, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nothing listens at %s: %w", c.base.Host, err)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("connection reset at GET %s: %w", path, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("connection closed before GET %s was answered: %w", path, err)
	case errors.As(err, &dns):
		return fmt.Errorf("the name %s cannot be resolved: %w", c.base.Hostname(), err)
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%s does not speak TLS, write http:// in url: %w", c.base.Host, err)
	case errors.As(err, &authority):
		return fmt.Errorf("the certificate of %s is signed by nobody known here, name the authority in ca_file: %w", c.base.Host, err)
	}
	return fmt.Errorf("GET %s: %w", path, err)
}

// isTimeout reports whether err is a request that got no answer in time.
func isTimeout(err error) bool {
	var n net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &n) && n.Timeout()
}

// isGone reports whether err says that nothing listens there.
func isGone(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// server reports whether the Server header names the software.
func (a answer) server(name string) bool {
	return strings.Contains(strings.ToLower(a.header.Get("Server")), name)
}

// loading reports whether this is a llama.cpp that still loads its model.
func (a answer) loading() bool {
	return a.status == http.StatusServiceUnavailable && bytes.Contains(bytes.ToLower(a.body), []byte("loading model"))
}

// hidden reports whether the server keeps what was asked for to itself: it
// wants another key, or has no such path.
func (a answer) hidden() bool {
	switch a.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound,
		http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return true
	}
	return false
}

// busy reports whether the server may well give another answer soon.
func (a answer) busy() bool {
	return a.status == http.StatusServiceUnavailable || a.status == http.StatusTooManyRequests
}

// refused says that the server wants a key, or another one; "" if it does not.
func (a answer) refused(c *client) string {
	switch {
	case a.status != http.StatusUnauthorized && a.status != http.StatusForbidden:
		return ""
	case c.key == "":
		return fmt.Sprintf("it wants an API key (GET %s: %d): name its variable in api_key_env", a.path, a.status)
	default:
		return fmt.Sprintf("it refuses the key of api_key_env (GET %s: %d)", a.path, a.status)
	}
}

// broken is the error that an answer stands for which a serving replica does
// not give: 500, 502, 504, a redirect. 503 and 429 are busy, not broken.
func (a answer) broken() error {
	switch a.status {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		return fmt.Errorf("GET %s: %s", a.path, a.summary())
	}
	if a.status >= 300 && a.status < 400 {
		return fmt.Errorf("GET %s is redirected (%d) to %q: redirects are not followed, write that address in url",
			a.path, a.status, a.header.Get("Location"))
	}
	return nil
}

// summary is the status and the beginning of the body, for people.
func (a answer) summary() string {
	body := string(bytes.TrimSpace(a.body))
	if len(body) > 120 {
		body = body[:120] + "…"
	}
	if body == "" {
		return fmt.Sprintf("%d", a.status)
	}
	return fmt.Sprintf("%d %q", a.status, body)
}

// decode reads the body of a 200 as JSON into v, and reports whether it was.
func (a answer) decode(v any) bool {
	return a.status == http.StatusOK && json.Unmarshal(a.body, v) == nil
}
