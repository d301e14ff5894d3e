// Package compare measures the upstream client beside net/http's Transport and
// fasthttp's client: CPU of this process for a request and for a stream, and
// memory of a silent exchange. The replica is a process of its own.
//
//	cd gateway/upstream/compare
//	go test -run - -bench Request -benchtime 50x
//	taskset -c 1 go test -run - -bench Request -benchtime 50x -cpu 1 # all on one core
package compare

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	asReplica = "COMPARE_AS_REPLICA"
	events    = 1000
)

var addr string // of the replica

// TestMain is the replica, or starts one and runs the rest against it.
func TestMain(m *testing.M) {
	if os.Getenv(asReplica) != "" {
		serve()
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asReplica+"=1")
	stdin, _ := cmd.StdinPipe() // its end ends the replica
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		addr, err = bufio.NewReader(out).ReadString('\n')
		addr = strings.TrimSpace(addr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "starting the replica:", err)
		return 1
	}
	code := m.Run()
	stdin.Close()
	cmd.Wait()
	return code
}

func serve() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answer(c)
		}
	}()
	io.Copy(io.Discard, os.Stdin)
}

// answer does as little as a server can: it looks at the request's path and length.
func answer(c net.Conn) {
	defer c.Close()
	r := bufio.NewReaderSize(c, 4096)
	for {
		path, ok := request(r)
		if !ok {
			return
		}
		switch path {
		case "/burst":
			stream(c, 0)
		case "/paced":
			stream(c, 2*time.Millisecond)
		case "/silent":
			c.Write(streamHead)
			c.Write(event)
		default:
			c.Write(small)
		}
	}
}

func request(r *bufio.Reader) (path string, ok bool) {
	length := 0
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return "", false
		}
		if first {
			path = strings.Fields(string(line))[1]
			continue
		}
		if len(line) == 2 {
			break
		}
		if name, value, _ := bytes.Cut(line, []byte(":")); strings.EqualFold(string(name), "Content-Length") {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(value)))
		}
	}
	_, err := r.Discard(length)
	return path, err == nil
}

func stream(c net.Conn, pace time.Duration) {
	c.Write(streamHead)
	for range events {
		c.Write(event)
		if pace > 0 {
			time.Sleep(pace)
		}
	}
	c.Write([]byte("0\r\n\r\n"))
}

var (
	eventData = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}` + "\n\n"
	event     = fmt.Appendf(nil, "%x\r\n%s\r\n", len(eventData), eventData)

	streamHead = []byte("HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nKeep-Alive: timeout=5, max=100\r\n" +
		"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
	small = []byte("HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nKeep-Alive: timeout=5, max=100\r\n" +
		"Content-Type: application/json; charset=utf-8\r\nContent-Length: 1024\r\n\r\n" + smallBody)
	smallBody = strings.Repeat("x", 1024)
)
