package gpu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// host looks up processes of this host; proc is /proc but in tests.
type host struct{ proc string }

// here reports whether a replica's address is one of this host's own, and in
// words why not.
func (h host) here(ctx context.Context, u *url.URL) (yes bool, why string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	name := u.Hostname()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return false, fmt.Sprintf("%s cannot be looked up: %v", name, err)
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false, fmt.Sprintf("this host's addresses cannot be read: %v", err)
	}
	for _, a := range addrs {
		a = a.Unmap()
		if a.IsLoopback() || slices.ContainsFunc(own, func(o net.Addr) bool {
			p, err := netip.ParsePrefix(o.String())
			return err == nil && p.Addr().Unmap() == a
		}) {
			return true, ""
		}
	}
	return false, name + " is not this host, or not seen to be it from here: name its GPU, gpu: {nvml: 0} or {exporter: URL, gpu: 0}"
}

// port is the port a replica listens on.
func port(u *url.URL) (uint16, error) {
	text := u.Port()
	if text == "" {
		text = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err
}

// listeners finds the processes that listen on a port: its sockets by
// /proc/net/tcp and tcp6, their holders by the links in /proc/PID/fd.
func (h host) listeners(port uint16) ([]int, error) {
	var sockets []string
	for _, table := range []string{"tcp", "tcp6"} {
		found, err := h.sockets(table, port)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		sockets = append(sockets, found...)
	}
	if len(sockets) == 0 {
		return nil, fmt.Errorf("nothing on this host is seen to listen on port %d", port)
	}
	pids, hidden := h.holders(sockets)
	if len(pids) == 0 && hidden {
		return nil, fmt.Errorf("the process that listens on port %d belongs to another user: run as the same one, or name the GPU, gpu: {nvml: 0}", port)
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("the process that listens on port %d is not seen from here (another container?): name the GPU, gpu: {nvml: 0}", port)
	}
	return pids, nil
}

// sockets gives the links of the sockets that listen on port. A line of the
// table: number, local address:port in hexadecimal, remote, state, …; the
// inode is the tenth field.
func (h host) sockets(table string, port uint16) ([]string, error) {
	const listening = "0A"
	f, err := os.Open(filepath.Join(h.proc, "net", table))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var links []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[3] != listening {
			continue
		}
		if _, p, ok := strings.Cut(fields[1], ":"); ok && strings.EqualFold(p, fmt.Sprintf("%04X", port)) {
			links = append(links, "socket:["+fields[9]+"]")
		}
	}
	return links, lines.Err()
}

// holders finds the processes that hold one of the sockets; hidden says that
// some processes could not be looked into.
func (h host) holders(sockets []string) (pids []int, hidden bool) {
	entries, _ := os.ReadDir(h.proc) // without /proc there are no sockets either
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(h.proc, e.Name(), "fd")
		fds, err := os.ReadDir(dir)
		hidden = hidden || errors.Is(err, fs.ErrPermission)
		for _, fd := range fds {
			if link, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && slices.Contains(sockets, link) {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids, hidden
}

// alive reports whether a process is there still.
func (h host) alive(pid int) bool {
	_, err := os.Stat(filepath.Join(h.proc, strconv.Itoa(pid)))
	return err == nil
}

// under reports whether a process is one of the roots or descends from one:
// Ollama and vLLM do the work in children of the process that listens.
func (h host) under(pid int, roots []int) bool {
	for range 64 { // deeper than any tree, and an end to a wrong one
		if slices.Contains(roots, pid) {
			return true
		}
		if pid = h.parent(pid); pid <= 1 {
			return false
		}
	}
	return false
}

// parent reads a process's parent; 0 where there is none. The line: pid, the
// name in parentheses (which may hold anything), state, parent, …
func (h host) parent(pid int) int {
	line, err := os.ReadFile(filepath.Join(h.proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(line[strings.LastIndexByte(string(line), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// name is what a process is called.
func (h host) name(pid int) string {
	comm, err := os.ReadFile(filepath.Join(h.proc, strconv.Itoa(pid), "comm"))
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(comm))
}
