package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// form is the shape of a text.
type form struct {
	want   string                         // what would be right
	parse  func(s string) (string, error) // normalises, or says what is wrong
	secret bool                           // the text is never shown
}

// forms are the shapes the form tag may name. None repeats a text in its error
// where somebody may have put a secret by mistake.
var forms = map[string]form{
	"address": {"HOST:PORT such as 127.0.0.1:8700, or :8700 for every interface", parseAddress, false},
	"url":     {"http://HOST:PORT or https://HOST:PORT, with a path where the server has one", parseURL, true},
	"origin":  {`SCHEME://HOST or SCHEME://HOST:PORT as browsers send it, or "*"`, parseOrigin, false},
	"env":     secretPattern(`[A-Za-z_][A-Za-z0-9_]*`, "variable name", "the name of an environment variable (letters, digits and _), never the secret itself"),
	"sha256":  secretPattern(`[0-9a-f]{64}`, "SHA-256", "64 lower-case hexadecimal digits, as `switchyard key new NAME` prints them"),
	"header":  pattern("[A-Za-z0-9!#$%&'*+.^_`|~-]+", "header name", "one such as X-Session-ID"),
	"class":   pattern(`[A-Za-z0-9._-]{1,64}`, "class name", "1 to 64 letters, digits and . _ -"),
	"replica": pattern(`[A-Za-z0-9.:_@\[\]-]{1,128}`, "replica name", "1 to 128 letters, digits and . : _ @ [ ] -"),
	"model":   pattern(`[^\x00-\x1f\x7f]{1,256}`, "model name", "1 to 256 characters on one line"),
	"key":     {"1 to 64 letters, digits and . : _ @ -, other than anonymous and other", parseKeyName, false},
}

func (f *form) fits(s string) bool {
	_, err := f.parse(s)
	return err == nil
}

// pattern is a form that a regular expression tells, whole.
func pattern(expr, what, want string) form {
	re := regexp.MustCompile(`\A(?:` + expr + `)\z`)
	return form{want: want, parse: func(s string) (string, error) {
		if !re.MatchString(s) {
			return "", fmt.Errorf("%s is no %s", quote(s), what)
		}
		return s, nil
	}}
}

// secretPattern is a pattern for texts that errors must not show.
func secretPattern(expr, what, want string) form {
	f := pattern(expr, what, want)
	parse := f.parse
	f.secret = true
	f.parse = func(s string) (string, error) {
		if _, err := parse(s); err != nil {
			return "", errors.New("this is no " + what)
		}
		return s, nil
	}
	return f
}

var keyName = regexp.MustCompile(`\A[A-Za-z0-9.:_@-]{1,64}\z`)

// ValidKeyName checks the name of an API key. The two reserved names are what
// metrics call requests without a key, and all keys beyond the busiest.
func ValidKeyName(name string) error {
	if _, err := parseKeyName(name); err != nil {
		return fmt.Errorf("%w: want %s", err, forms["key"].want)
	}
	return nil
}

func parseKeyName(s string) (string, error) {
	if s == Anonymous || s == "other" {
		return "", fmt.Errorf("%q has a meaning of its own in metrics", s)
	}
	if !keyName.MatchString(s) {
		return "", fmt.Errorf("%s is no name for a key", quote(s))
	}
	return s, nil
}

var hostName = regexp.MustCompile(`\A[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9.])?\z`)

// parseHost accepts a name or an IP address, and lowers its case.
func parseHost(s string) (string, error) {
	if ip, err := netip.ParseAddr(s); err == nil {
		return ip.String(), nil
	}
	if !hostName.MatchString(s) {
		return "", fmt.Errorf("%s is no host name and no IP address", quote(s))
	}
	return strings.ToLower(s), nil
}

// parsePort accepts a decimal port.
func parsePort(s string, least int) error {
	if n, err := parseInt(s); err != nil || n < least || n > 65535 {
		return fmt.Errorf("port %s is not a number from %d to 65535", quote(s), least)
	}
	return nil
}

// parseAddress reads what to listen on. Port 0 lets the system choose one.
func parseAddress(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		if parsePort(s, 0) == nil {
			return "", fmt.Errorf("%s is a port without the colon before it", quote(s))
		}
		return "", fmt.Errorf("%s is not an address", quote(s))
	}
	if host != "" {
		if host, err = parseHost(host); err != nil {
			return "", err
		}
	}
	if err := parsePort(port, 0); err != nil {
		return "", err
	}
	return net.JoinHostPort(host, port), nil
}

// parseURL reads a replica's base URL: a trailing /v1 is dropped because
// clients' paths bring it, another path stays as a prefix. Errors do not repeat
// the URL: it may hold a password.
func parseURL(s string) (string, error) {
	u, err := url.Parse(s)
	switch {
	case !strings.Contains(s, "://"):
		return "", errors.New("this has no scheme")
	case err != nil:
		return "", errors.New("this is not a URL")
	case u.User != nil:
		return "", errors.New("a user name or password does not belong into the URL; api_key_env names a variable for it")
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("the scheme %s is not spoken here", quote(u.Scheme))
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(s, "#"):
		return "", errors.New("a query or fragment does not belong into the URL")
	}
	host, err := parseHost(u.Hostname())
	if err != nil {
		return "", err
	}
	if strings.Contains(host, ":") {
		host = "[" + strings.Replace(host, "%", "%25", 1) + "]"
	}
	if port := u.Port(); port != "" {
		if err := parsePort(port, 1); err != nil {
			return "", err
		}
		host += ":" + port
	} else if strings.HasSuffix(u.Host, ":") {
		return "", errors.New("the port after the colon is missing")
	}
	prefix := strings.TrimRight(u.EscapedPath(), "/")
	prefix = strings.TrimRight(strings.TrimSuffix(prefix, "/v1"), "/")
	for segment := range strings.SplitSeq(prefix, "/") {
		if segment == "." || segment == ".." {
			return "", fmt.Errorf("the path %s goes up or nowhere", quote(prefix))
		}
	}
	return u.Scheme + "://" + host + prefix, nil
}

// hostPort gives a replica's default name. The port of the scheme is spelt out.
func hostPort(base string) string {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return ""
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// metricsURL accepts the address of an exporter's metrics.
func metricsURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.User == nil
}

var origin = regexp.MustCompile(`\A([A-Za-z][A-Za-z0-9+.-]*)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]+)?\z`)

// parseOrigin reads an origin. Browsers send it in lower case and without the
// scheme's own port.
func parseOrigin(s string) (string, error) {
	if s == "*" {
		return s, nil
	}
	m := origin.FindStringSubmatch(s)
	if m == nil {
		return "", fmt.Errorf("%s is not an origin", quote(s))
	}
	scheme, host, port := strings.ToLower(m[1]), strings.ToLower(m[2]), m[3]
	if port != "" {
		if err := parsePort(port[1:], 1); err != nil {
			return "", err
		}
	}
	if own := map[string]int{"http": 80, "https": 443}[scheme]; own != 0 && port == ":"+strconv.Itoa(own) {
		port = ""
	}
	return scheme + "://" + host + port, nil
}
