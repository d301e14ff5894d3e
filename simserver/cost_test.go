//go:build unix

package simserver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// listenerVariable makes the test program one that only listens: the clients of
// BenchmarkFleet, whose cost is not the simulation's.
const (
	listenerVariable = "SIMSERVER_LISTEN_TO"
	streamsEach      = 8 // at each replica
)

func init() {
	if addrs := os.Getenv(listenerVariable); addrs != "" {
		listen(addrs, streamsEach)
		os.Exit(0)
	}
}

// listen opens so many streams at each address, says so when all have begun,
// and reads on until its input ends.
func listen(addrs string, each int) {
	began := make(chan struct{})
	n := 0
	for addr := range strings.SplitSeq(addrs, ",") {
		for range each {
			n++
			go func() {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					fmt.Println(err)
					return
				}
				_, _ = io.WriteString(c, "POST "+chatPath+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: "+itoa(len(helloS))+"\r\n\r\n"+helloS)
				in := bufio.NewReaderSize(c, 64<<10)
				for seen := false; ; {
					line, err := in.ReadSlice('\n')
					if err != nil {
						fmt.Println(err)
						return
					}
					if !seen && strings.Contains(string(line), `"content":"`) {
						seen = true
						began <- struct{}{}
					}
				}
			}()
		}
	}
	for range n {
		<-began
	}
	fmt.Println("all have begun")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// used is the CPU time of this process.
func used() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkFleet is what the simulation of 64 replicas costs with 512 streams of
// 50 tokens a second in all, in cores: CPU time, user and system, over wall
// time. The clients are in a process of their own. An iteration is a second.
func BenchmarkFleet(b *testing.B) {
	for _, engine := range []string{"llamacpp", "ollama", "vllm"} {
		b.Run(engine, func(b *testing.B) {
			const replicas, speed = 64, 50
			var all []Options
			for i := range replicas {
				all = append(all, Options{
					Name: itoa(i), Engine: engine, Models: []string{"tiny"}, Slots: streamsEach,
					Decode: speed, OutputTokens: "fixed:1000000", Context: 2e6, Seed: uint64(i),
				})
			}
			fleet, err := StartFleet(all)
			require.NoError(b, err)
			defer fleet.Close()
			var addrs []string
			for _, s := range fleet {
				addrs = append(addrs, s.front.addr)
			}
			listener := exec.Command(os.Args[0])
			listener.Env = append(os.Environ(), listenerVariable+"="+strings.Join(addrs, ","))
			in, err := listener.StdinPipe()
			require.NoError(b, err)
			out, err := listener.StdoutPipe()
			require.NoError(b, err)
			require.NoError(b, listener.Start())
			defer func() {
				_ = in.Close()
				_ = listener.Wait()
			}()
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(b, err)
			require.Equal(b, "all have begun\n", line)

			made := func() (n int) {
				for _, s := range fleet {
					n += s.Stats().TokensGenerated
				}
				return n
			}
			cpu, tokens, began := used(), made(), time.Now()
			for b.Loop() {
				<-time.After(time.Second)
			}
			wall := time.Since(began).Seconds()
			b.ReportMetric((used()-cpu).Seconds()/wall, "cores")
			b.ReportMetric(float64(made()-tokens)/wall, "tokens/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
