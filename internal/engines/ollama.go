//go:build unix

package engines

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Missing is what a test says when there is no real Ollama.
const Missing = "no real Ollama: set SWITCHYARD_OLLAMA=/path/to/ollama or install it (docs/engines.md)"

// FindOllama looks for the program: SWITCHYARD_OLLAMA first, then PATH. A
// variable that names no program is an error rather than a reason to skip.
func FindOllama() (path string, found bool, err error) {
	if path = os.Getenv("SWITCHYARD_OLLAMA"); path != "" {
		if path, err = exec.LookPath(path); err != nil {
			return "", false, fmt.Errorf("SWITCHYARD_OLLAMA must name the ollama program: %w", err)
		}
		return path, true, nil
	}
	path, err = exec.LookPath("ollama")
	return path, err == nil, nil
}

// OllamaVersion is the module version that the program was built from: one
// built by go install calls itself 0.0.0.
func OllamaVersion(path string) string {
	info, err := buildinfo.ReadFile(path)
	if err != nil || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}

// Ollama is one server with its own address, home and models. It survives
// Kill: Start brings it back with the same address and models.
type Ollama struct {
	Program  string // path of ollama
	Dir      string // where it keeps everything
	Parallel int    // requests it runs at once, each model for itself
	Queue    int    // requests that may wait for a load; 0: its own default
	Context  int    // tokens; 0: 2048
	Addr     string // host:port, known from the first Start on

	child *Child
}

// URL is where it answers.
func (o *Ollama) URL() string { return "http://" + o.Addr }

// Log is what the running (or last) process wrote.
func (o *Ollama) Log() string {
	if o.child == nil {
		return ""
	}
	return o.child.Log.String()
}

func (o *Ollama) command(args ...string) Command {
	env := []string{
		"OLLAMA_HOST=" + o.Addr,
		"OLLAMA_MODELS=" + filepath.Join(o.Dir, "models"),
		"OLLAMA_NUM_PARALLEL=" + strconv.Itoa(o.Parallel),
		"OLLAMA_CONTEXT_LENGTH=" + strconv.Itoa(cmp.Or(o.Context, 2048)),
		"OLLAMA_KEEP_ALIVE=30m",
		"OLLAMA_NOPRUNE=1",
		"OLLAMA_NOHISTORY=1",
		"GIN_MODE=release",
		"CUDA_VISIBLE_DEVICES=-1", // the CPU, so that all machines see the same
		"NO_PROXY=127.0.0.1",
	}
	if o.Queue > 0 {
		env = append(env, "OLLAMA_MAX_QUEUE="+strconv.Itoa(o.Queue))
	}
	return Command{Path: o.Program, Args: args, Dir: o.Dir, Env: env}
}

const (
	listening = "Listening on "
	taken     = "address already in use"
)

// Start starts the server and waits until it listens. The first time the system
// chooses its port, and the server's own word tells which: nothing else can be
// taken for it.
func (o *Ollama) Start(ctx context.Context) error {
	if o.Addr == "" {
		o.Addr = "127.0.0.1:0"
	}
	return Poll(ctx, 100*time.Millisecond, func() (bool, error) {
		err := o.start(ctx)
		if err != nil && strings.Contains(o.Log(), taken) {
			return false, nil // somebody has the port of the one that was killed, for the moment
		}
		return true, err
	})
}

func (o *Ollama) start(ctx context.Context) error {
	child, err := o.command("serve").Start()
	if err != nil {
		return err
	}
	o.child = child
	line, err := child.Log.Await(ctx, func(line string) bool { return strings.Contains(line, listening) })
	if err != nil {
		o.Kill()
		return fmt.Errorf("starting Ollama on %s: %w; it wrote:\n%s", o.Addr, err, o.Log())
	}
	_, rest, _ := strings.Cut(line, listening)
	o.Addr, _, _ = strings.Cut(rest, " ")
	return nil
}

// Kill ends the server and its runners with SIGKILL. It may be called twice.
func (o *Ollama) Kill() {
	if o.child != nil {
		o.child.Kill()
	}
}

// KillRunners ends the processes that hold the models with SIGKILL and leaves
// the server alive. It gives how many there were.
func (o *Ollama) KillRunners() (int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, fmt.Errorf("looking for Ollama's runners: %w", err)
	}
	n := 0
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended since
		}
		pid, group, ok := processGroup(string(data))
		if !ok || group != o.child.Pid() || pid == group || pid == o.child.guard.Process.Pid {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err == nil {
			n++
		}
	}
	return n, nil
}

// processGroup reads a line of /proc/PID/stat: the fields after the name, which
// is in parentheses and may hold anything, are state, parent, group.
func processGroup(stat string) (pid, group int, ok bool) {
	first, _, _ := strings.Cut(stat, " ")
	_, rest, found := strings.Cut(stat[strings.LastIndexByte(stat, ')')+1:], " ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 3 {
		return 0, 0, false
	}
	pid, errPid := strconv.Atoi(first)
	group, errGroup := strconv.Atoi(fields[2])
	return pid, group, errPid == nil && errGroup == nil
}

// Create gives the server a model under name, made of the GGUF file.
func (o *Ollama) Create(ctx context.Context, name, gguf string) error {
	modelfile := filepath.Join(o.Dir, "Modelfile")
	// One thread, so that two servers share a small machine fairly.
	text := fmt.Sprintf("FROM %s\nTEMPLATE \"\"\"%s\"\"\"\nPARAMETER num_thread 1\n", gguf, goTemplate)
	if err := os.WriteFile(modelfile, []byte(text), 0o600); err != nil {
		return fmt.Errorf("writing the Modelfile of %s: %w", name, err)
	}
	child, err := o.command("create", name, "-f", modelfile).Start()
	if err != nil {
		return err
	}
	defer child.Kill()
	select {
	case <-child.Done():
	case <-ctx.Done():
		return fmt.Errorf("creating the model %s in Ollama: %w; it wrote:\n%s", name, ctx.Err(), child.Log)
	}
	if code := child.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("creating the model %s in Ollama: %s; it wrote:\n%s", name, child.cmd.ProcessState, child.Log)
	}
	return nil
}

// Poll asks every so often until the answer is yes, an error, or the context ends.
func Poll(ctx context.Context, every time.Duration, ask func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if ok, err := ask(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
