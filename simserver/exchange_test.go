package simserver

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testdata/*.txt are exchanges with real servers, llama-server v0.4.0 and Ollama
// v0.17.4, each under the title that it had when it was recorded; after a colon,
// one of several under that title. Where only a status or a line was recorded, the
// rest is that of the engine's ordinary answer. All are there that a client or
// the gateway can meet, but for
//   - what has no answer of its own to compare: how many are served or refused at
//     once, when headers and tokens come, how soon a departure is noticed, which
//     slot and how much of its cache a prompt gets, what a reload waits for. Those
//     are tests of the model and of the timing (model/, departure_test.go);
//   - SIGTERM and SIGKILL of the whole process: fault crash, fault_test.go;
//   - the idle time and the hundred requests of a connection: engine_test.go and
//     face_test.go;
//   - what Ollama v0.6.5 and v0.33.0-rc2 do in another way: only v0.17.4 is
//     imitated. The differences of v0.6.5 are listed in real_test.go; v0.33 adds
//     context_length, embedding_length and capabilities to /api/tags, calls an unknown model's error not_found_error
//     and names it with its tag, has a role only in a stream's first delta and an
//     empty one in the last, answers embeddings with 501 for a model that is not
//     for them, and repeats llama.cpp's words when a prompt is too long.

// exchange is one request and the answer that a real server gave.
type exchange struct {
	title        string
	setup        string // what must be so before: a key of setups
	method, path string
	headers      []string
	body         string
	status       string
	want         []string // headers of the answer
	answer       string
}

// recorded is the answer of an exchange.
func (x exchange) recorded() asked {
	a := asked{status: x.status, header: http.Header{}, body: x.answer}
	for _, h := range x.want {
		name, value, _ := strings.Cut(h, ":")
		if value = strings.TrimSpace(value); name == "Transfer-Encoding" {
			a.transfer = value
		} else {
			a.header.Add(name, value)
		}
	}
	return a
}

// exchanges reads a file of them: "==" a title, "!" a setup, ">" request line
// and headers, ">>" its body, "<" status and headers, then the answer's body.
func exchanges(t *testing.T, file string) (all []exchange) {
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, section := range strings.Split("\n"+string(data), "\n== ")[1:] {
		var x exchange
		var answer []string
		for i, line := range strings.Split(section, "\n") {
			switch {
			case i == 0:
				x.title = line
			case answer == nil && strings.HasPrefix(line, "! "):
				x.setup = line[2:]
			case answer == nil && strings.HasPrefix(line, ">> "):
				x.body = line[3:]
			case answer == nil && strings.HasPrefix(line, "> ") && x.method == "":
				x.method, x.path, _ = strings.Cut(line[2:], " ")
			case answer == nil && strings.HasPrefix(line, "> "):
				x.headers = append(x.headers, line[2:])
			case answer == nil && strings.HasPrefix(line, "< ") && x.status == "":
				x.status = line[2:]
			case answer == nil && strings.HasPrefix(line, "< "):
				x.want = append(x.want, line[2:])
			default:
				answer = append(answer, line)
			}
		}
		x.answer = strings.Join(answer, "\n")
		all = append(all, x)
	}
	return all
}

// asked is an answer in the parts that exchanges are compared by.
type asked struct {
	status, transfer, body string
	header                 http.Header
}

// askAs asks as an exchange does.
func askAs(t *testing.T, addr string, x exchange) asked {
	a, err := x.ask(addr)
	require.NoError(t, err, x.title)
	return a
}

// ask sends the request to a server and reads the answer. It looks at the raw
// headers, because the client of net/http hides some.
func (x exchange) ask(addr string) (asked, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return asked{}, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return asked{}, err
	}
	in := bufio.NewReader(c)
	head, body, expects := x.request()
	if _, err := io.WriteString(c, head); err != nil {
		return asked{}, err
	}
	if expects {
		first, err := http.ReadResponse(in, nil)
		if err != nil || first.StatusCode != http.StatusContinue {
			return asked{}, fmt.Errorf("waiting to be told to go on: %v, %w", first, err)
		}
	}
	if _, err = io.WriteString(c, body); err != nil {
		return asked{}, err
	}
	resp, err := http.ReadResponse(in, &http.Request{Method: x.method})
	if err != nil {
		return asked{}, err
	}
	b, err := io.ReadAll(resp.Body)
	if resp.Close && resp.Header.Get("Connection") == "" {
		resp.Header.Set("Connection", "close") // ReadResponse has taken it out
	}
	return asked{strconv.Itoa(resp.StatusCode), strings.Join(resp.TransferEncoding, ","), string(b), resp.Header}, err
}

// request is what goes over the wire; expects: the body only after a word.
func (x exchange) request() (head, body string, expects bool) {
	host, rest := "Host: 127.0.0.1", ""
	body = x.body
	chunked := false
	for _, h := range x.headers {
		switch {
		case strings.HasPrefix(h, "Host: "):
			host = h
			continue
		case h == "Transfer-Encoding: chunked":
			body = strconv.FormatInt(int64(len(body)), 16) + "\r\n" + body + "\r\n0\r\n\r\n"
			chunked = true
		case h == "Content-Encoding: gzip":
			body = zip(body)
		case h == "Expect: 100-continue":
			expects = true
		}
		rest += h + "\r\n"
	}
	if !chunked {
		rest += "Content-Length: " + strconv.Itoa(len(body)) + "\r\n"
	}
	return x.method + " " + x.path + " HTTP/1.1\r\n" + host + "\r\n" + rest + "\r\n", body, expects
}

func zip(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, s) // into memory
	_ = w.Close()
	return b.String()
}
