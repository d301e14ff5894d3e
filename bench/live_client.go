package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"switchyard/simserver"
)

// caller is one client of a live run with one request: it measures from the
// moment at which the request was meant to be sent, not from when this process
// came round to it.
type caller struct {
	r         *Request
	rec       Record
	began     time.Time // the trial's start
	cancel    context.CancelCauseFunc
	impatient *time.Timer

	text    bytes.Buffer // of the answer, where a next turn repeats it
	keep    bool
	mute    bool // it says nothing of class and deadline
	whole   bool // the terminal event was seen
	events  int  // with content
	usage   *usageSaid
	timings *timingsSaid
}

// errImpatient ends a request whose client does not wait any longer.
var errImpatient = errors.New("the client's patience is over")

// call sends the request and takes the answer.
func (c *caller) call(ctx context.Context, client *http.Client, base string, body []byte) {
	ctx, c.cancel = context.WithCancelCause(ctx)
	defer c.cancel(nil)
	if p := c.r.Patience; p > 0 {
		c.impatient = time.AfterFunc(time.Until(c.began.Add(c.r.At+p)), func() { c.cancel(errImpatient) })
		defer c.impatient.Stop()
	}
	err := c.exchange(ctx, client, base, body)
	c.rec.EndS = c.since()
	switch {
	case errors.Is(context.Cause(ctx), errImpatient):
		c.rec.Status, c.rec.Error = 0, ErrLeft
	case err != nil:
		c.rec.Error = plainError(err)
	}
	c.count()
	c.rec.Judge()
}

func (c *caller) since() float64 { return time.Since(c.began).Seconds() }

func (c *caller) exchange(ctx context.Context, client *http.Client, base string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+chatPath, bytes.NewReader(body))
	if err != nil {
		return err
	}
	c.headers(req.Header)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	c.rec.Status = resp.StatusCode
	c.answered(resp.Header)
	switch {
	case resp.StatusCode/100 != 2:
		return c.refused(resp.Body)
	case c.r.Stream:
		return c.stream(resp.Body)
	}
	return c.take(resp.Body)
}

// headers says who asks, and what.
func (c *caller) headers(h http.Header) {
	r := c.r
	h.Set("Content-Type", "application/json")
	h.Set("X-Request-Id", requestID(r))
	h.Set(simserver.OutputHeader, strconv.Itoa(r.OutputTokens))
	if r.Class != "" && !c.mute {
		h.Set("X-Switchyard-Class", r.Class)
	}
	if r.Stated && !c.mute {
		h.Set("X-Switchyard-Deadline", r.Deadline.String())
	}
	if r.Key != "" {
		h.Set("Authorization", "Bearer "+KeySecret(r.Key))
	}
	if r.Session != "" {
		h.Set("X-Session-Id", r.Session)
	}
	if r.Retry > 0 && r.SDK {
		h.Set("X-Stainless-Retry-Count", strconv.Itoa(r.Retry))
	}
}

// requestID is the X-Request-ID that the client sends: the same for all tries of
// one that means to be known again.
func requestID(r *Request) string {
	if r.SDK {
		return r.ID
	}
	return r.Origin
}

// answered reads the answer's headers.
func (c *caller) answered(h http.Header) {
	c.rec.Code = h.Get("X-Switchyard-Reason")
	c.rec.Replica = h.Get("X-Switchyard-Replica")
	c.rec.Attempts, _ = strconv.Atoi(h.Get("X-Switchyard-Attempts"))
	c.rec.NoRetry = h.Get("X-Should-Retry") == "false"
	after, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64)
	after /= 1000
	if err != nil {
		after, err = strconv.ParseFloat(h.Get("Retry-After"), 64)
	}
	if err == nil {
		c.rec.RetryAfterS = &after
	}
}

// maxError is how much of an error's body is read.
const maxError = 64 << 10

// refused reads an answer that is no success.
func (c *caller) refused(from io.Reader) error {
	b, err := io.ReadAll(io.LimitReader(from, maxError))
	if err != nil {
		return err
	}
	if c.rec.Code == "" {
		c.rec.Code = codeOf(b)
	}
	return nil
}

// codeOf is the code in an error's body, "" if it has none.
func codeOf(b []byte) string {
	var said struct {
		Error struct {
			Code any    `json:"code"`
			Type string `json:"type"`
		} `json:"error"`
	}
	_ = json.Unmarshal(b, &said) // another form has no code
	if code, ok := said.Error.Code.(string); ok {
		return code
	}
	return said.Error.Type
}

// take reads an answer that is not streamed.
func (c *caller) take(from io.Reader) error {
	b, err := io.ReadAll(from)
	if err != nil {
		return err
	}
	var said event
	if json.Unmarshal(b, &said) != nil || len(said.Choices) == 0 {
		return errors.New("a success whose body is no answer")
	}
	c.token()
	c.said(&said)
	if c.keep {
		c.text.WriteString(said.Choices[0].Message.Content)
	}
	return nil
}

// stream reads an answer of server-sent events to its end.
func (c *caller) stream(from io.Reader) error {
	in := bufio.NewReaderSize(from, 4<<10)
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			rest, err2 := in.ReadBytes('\n')
			line, err = append(bytes.Clone(line), rest...), err2
		}
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if wrong := c.event(bytes.TrimSpace(data)); wrong != nil {
				return wrong
			}
		}
		switch {
		case errors.Is(err, io.EOF) && c.whole:
			return nil
		case errors.Is(err, io.EOF) && c.rec.FirstTokenS == nil:
			return errors.New("the answer ended before its first token")
		case errors.Is(err, io.EOF):
			return errors.New("the stream broke off")
		case err != nil:
			return fmt.Errorf("the stream broke off: %w", err)
		}
	}
}

// event is what is read of one event, or of a whole answer.
type event struct {
	Choices []struct {
		Delta   made    `json:"delta"`
		Message made    `json:"message"`
		Finish  *string `json:"finish_reason"`
	} `json:"choices"`
	Usage   *usageSaid      `json:"usage"`
	Timings *timingsSaid    `json:"timings"`
	Error   json.RawMessage `json:"error"`
}

type made struct {
	Content   string          `json:"content"`
	Reasoning string          `json:"reasoning_content"`
	Thinking  string          `json:"reasoning"`
	Calls     json.RawMessage `json:"tool_calls"`
}

type usageSaid struct {
	Output  int `json:"completion_tokens"`
	Details struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

type timingsSaid struct {
	Cached int `json:"cache_n"`
	Output int `json:"predicted_n"`
}

// event takes one event in.
func (c *caller) event(data []byte) error {
	if bytes.Equal(data, []byte("[DONE]")) {
		c.whole = true
		return nil
	}
	if c.rec.FirstTokenS != nil && !c.keep && ordinary(data) {
		c.events++
		return nil
	}
	var said event
	if json.Unmarshal(data, &said) != nil {
		return errors.New("the stream has an event that is no JSON")
	}
	if len(said.Error) > 0 && string(said.Error) != "null" {
		c.rec.Code = codeOf(data)
		return errors.New("the stream broke off with an error event")
	}
	c.said(&said)
	for _, ch := range said.Choices {
		d := &ch.Delta
		if d.Content != "" || d.Reasoning != "" || d.Thinking != "" || len(d.Calls) > 2 && string(d.Calls) != "null" {
			c.events++
			c.token()
		}
		if ch.Finish != nil && *ch.Finish != "" {
			c.whole = true
			c.token()
		}
		if c.keep {
			c.text.WriteString(d.Content)
		}
	}
	return nil
}

// ordinary reports whether an event after the first token has nothing but one
// more token: reading thousands of streams must not keep the clock waiting.
func ordinary(data []byte) bool {
	for _, word := range [...]string{`"usage"`, `"timings"`, `"error"`, `"finish_reason":"`, `"finish_reason": "`} {
		if bytes.Contains(data, []byte(word)) {
			return false
		}
	}
	return bytes.HasPrefix(data, []byte("{")) && bytes.HasSuffix(data, []byte("}"))
}

// token notes the first content.
func (c *caller) token() {
	if c.rec.FirstTokenS == nil {
		at := c.since()
		c.rec.FirstTokenS = &at
		if c.impatient != nil {
			c.impatient.Stop()
		}
	}
}

func (c *caller) said(e *event) {
	if e.Usage != nil {
		c.usage = e.Usage
	}
	if e.Timings != nil {
		c.timings = e.Timings
	}
}

// count sets the tokens: as the answer says, else one for each event.
func (c *caller) count() {
	c.rec.OutputTokens = c.events
	if t := c.timings; t != nil {
		c.rec.OutputTokens, c.rec.CachedTokens = t.Output, t.Cached
	}
	if u := c.usage; u != nil {
		c.rec.OutputTokens = u.Output
		c.rec.CachedTokens = max(c.rec.CachedTokens, u.Details.Cached)
	}
}

// plainError says what went wrong without addresses, so that equal errors read
// alike in the log.
func plainError(err error) string {
	var dns *net.OpError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connection reset"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "the connection ended in the middle"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.As(err, &dns):
		return dns.Op + ": " + dns.Err.Error()
	}
	return strings.TrimSpace(err.Error())
}
