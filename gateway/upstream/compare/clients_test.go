package compare

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/valyala/fasthttp"

	"switchyard/gateway/upstream"
)

const stall = 30 * time.Second

var (
	body   = bytes.Repeat([]byte("y"), 1024)
	header = http.Header{
		"Content-Type": {"application/json"}, "Accept": {"text/event-stream"}, "User-Agent": {"OpenAI/Python 2.0.0"},
		"X-Request-Id": {"3f1c6f2e-8d1a-4a66-9b55-0c8f2f3c9f11"}, "X-Stainless-Lang": {"python"}, "X-Stainless-Retry-Count": {"0"},
	}
)

// client asks for path and reads the answer to its end, or to its first event.
type client struct {
	name string
	ask  func(path string) (int, error)
	// first reads up to the first event and gives what waits for more.
	first func(path string) (wait, end func(), err error)
}

func clients() []client { return []client{ours(), netHTTP(), fast()} }

func ours() client {
	c := upstream.New(upstream.Options{Base: &url.URL{Scheme: "http", Host: addr}})
	begin := func(path string) (*upstream.Exchange, error) {
		r := &upstream.Request{Method: "POST", Target: path, Header: header, Body: body, Extra: []string{"Via", "1.1 switchyard"}}
		e, err := c.Start(context.Background(), r, time.Now().Add(stall))
		if err == nil {
			_, err = e.Head(time.Now().Add(stall))
		}
		return e, err
	}
	return client{
		name: "upstream",
		ask: func(path string) (n int, err error) {
			e, err := begin(path)
			if err != nil {
				return 0, err
			}
			defer e.Close()
			for {
				p, err := e.Next(time.Now().Add(stall))
				n += len(p)
				if err == io.EOF {
					return n, nil
				}
				if err != nil {
					return n, err
				}
			}
		},
		first: func(path string) (wait, end func(), err error) {
			e, err := begin(path)
			if err != nil {
				return nil, nil, err
			}
			_, err = e.Next(time.Now().Add(stall))
			return func() { e.Next(time.Now().Add(time.Hour)); e.Close() }, e.Interrupt, err
		},
	}
}

func netHTTP() client {
	tr := &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}
	begin := func(ctx context.Context, path string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, "POST", "http://"+addr+path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		r.Header = header.Clone()
		r.Header.Set("Via", "1.1 switchyard")
		return tr.RoundTrip(r)
	}
	return client{
		name: "net-http",
		ask: func(path string) (int, error) {
			ctx, cancel := context.WithTimeout(context.Background(), stall)
			defer cancel()
			resp, err := begin(ctx, path)
			if err != nil {
				return 0, err
			}
			defer resp.Body.Close()
			return drain(resp.Body)
		},
		first: func(path string) (wait, end func(), err error) {
			ctx, cancel := context.WithCancel(context.Background())
			resp, err := begin(ctx, path)
			if err != nil {
				cancel()
				return nil, nil, err
			}
			buf := make([]byte, 4096)
			_, err = resp.Body.Read(buf)
			return func() { resp.Body.Read(buf); resp.Body.Close() }, cancel, err
		},
	}
}

func fast() client {
	c := &fasthttp.HostClient{
		Addr: addr, StreamResponseBody: true, MaxConns: 4096, ReadTimeout: stall, WriteTimeout: stall,
		MaxIdleConnDuration: 3500 * time.Millisecond, MaxIdemponentCallAttempts: 1,
	}
	begin := func(path string) (*fasthttp.Response, error) {
		req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
		defer fasthttp.ReleaseRequest(req)
		req.Header.SetMethod("POST")
		req.SetRequestURI("http://" + addr + path)
		for name, values := range header {
			req.Header.Set(name, values[0])
		}
		req.Header.Set("Via", "1.1 switchyard")
		req.SetBodyRaw(body)
		return resp, c.Do(req, resp)
	}
	return client{
		name: "fasthttp",
		ask: func(path string) (int, error) {
			resp, err := begin(path)
			defer fasthttp.ReleaseResponse(resp)
			if err != nil {
				return 0, err
			}
			defer resp.CloseBodyStream()
			return drain(resp.BodyStream())
		},
		first: func(path string) (wait, end func(), err error) {
			resp, err := begin(path)
			if err != nil {
				return nil, nil, err
			}
			buf := make([]byte, 4096)
			_, err = resp.BodyStream().Read(buf)
			return func() { resp.BodyStream().Read(buf); fasthttp.ReleaseResponse(resp) }, func() { resp.CloseBodyStream() }, err
		},
	}
}

var buffers = make(chan []byte, 64)

func drain(r io.Reader) (n int, err error) {
	var buf []byte
	select {
	case buf = <-buffers:
	default:
		buf = make([]byte, 16<<10)
	}
	defer func() { buffers <- buf }()
	for {
		m, err := r.Read(buf)
		n += m
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, fmt.Errorf("after %d bytes: %w", n, err)
		}
	}
}
