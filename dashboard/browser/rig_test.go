// Package browser_test looks at the dashboard through a real browser: the page
// against a gateway under load. It is a module of its own, so that the gateway
// needs no browser's library.
package browser_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	browserdomain "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// patience is how long a condition may take that is sure to come.
const patience = 30 * time.Second

// binary is the gateway, built once.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "switchyard-browser")
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "switchyard")
	cmd := exec.Command("go", "build", "-o", file, "./cmd/switchyard")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the gateway: %w\n%s", err, out)
	}
	return file, nil
})

// browser is Chromium, started once; nil where there is none.
var browser = sync.OnceValue(func() context.Context {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
			chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(time.Minute))
		alloc, _ := chromedp.NewExecAllocator(context.Background(), opts...)
		ctx, _ := chromedp.NewContext(alloc)
		if _, err := chromedp.CallBrowser(ctx, browserdomain.GetVersion, cdp.Empty{}); err != nil {
			fmt.Fprintln(os.Stderr, "starting", path, "failed:", err)
			continue
		}
		return ctx
	}
	return nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if b := browser(); b != nil {
		_ = chromedp.Cancel(b)
	}
	if file, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(file))
	}
	os.Exit(code)
}

// gateway is a running switchyard.
type gateway struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string // what it prints
	data  string      // base URLs
	admin string
}

// start runs a subcommand that prints its addresses as serve and demo do.
func start(t *testing.T, env []string, args ...string) *gateway {
	t.Helper()
	file, err := binary()
	require.NoError(t, err)
	g := &gateway{t: t, cmd: exec.Command(file, args...), lines: make(chan string, 1000)}
	g.cmd.Env = append(os.Environ(), env...)
	out, err := g.cmd.StdoutPipe()
	require.NoError(t, err)
	g.cmd.Stderr = g.cmd.Stdout
	require.NoError(t, g.cmd.Start())
	t.Cleanup(g.stop)
	go func() {
		defer close(g.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			select {
			case g.lines <- s.Text():
			default:
			}
		}
	}()
	return g
}

var served = regexp.MustCompile(`(http://[^,\s]+), its dashboard on (http://[^/\s]+)`)

// demo starts the demo under its load.
func demo(t *testing.T, args ...string) *gateway {
	t.Helper()
	g := start(t, nil, append([]string{"demo", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, args...)...)
	m := served.FindStringSubmatch(g.line("its dashboard on"))
	g.data, g.admin = m[1], m[2]
	return g
}

// line waits for a line that holds what is asked for.
func (g *gateway) line(part string) string {
	g.t.Helper()
	limit := time.After(patience)
	var seen []string
	for {
		select {
		case l, ok := <-g.lines:
			require.True(g.t, ok, "the gateway has ended; it said:\n%s", strings.Join(seen, "\n"))
			if strings.Contains(l, part) {
				return l
			}
			seen = append(seen, l)
		case <-limit:
			require.FailNow(g.t, "waited in vain", "for %q; it said:\n%s", part, strings.Join(seen, "\n"))
		}
	}
}

func (g *gateway) stop() {
	if g.cmd.ProcessState != nil {
		return
	}
	_ = g.cmd.Process.Signal(syscall.SIGKILL)
	_ = g.cmd.Wait()
}

// get reads JSON from the admin side.
func (g *gateway) get(path string, v any) {
	g.t.Helper()
	resp, err := http.Get(g.admin + path)
	require.NoError(g.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(g.t, err)
	require.Equal(g.t, http.StatusOK, resp.StatusCode, "%s", b)
	require.NoError(g.t, json.Unmarshal(b, v))
}

// tab is a page in the browser, with what went wrong in it.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string
	mu   struct {
		sync.Mutex
		wrong   []string // console errors, exceptions, violations of the policy
		foreign []string // requests to anywhere else
	}
}

// screen is what a tab is shown on.
type screen struct {
	width, height int64
	dark          bool
}

var (
	desktop = screen{1280, 900, false}
	night   = screen{1280, 900, true}
	phone   = screen{390, 844, false}
)

const watchPolicy = `window.violations = []; addEventListener("securitypolicyviolation", (e) => violations.push(e.violatedDirective + " " + e.blockedURI));`

// open shows the page at base on a screen, once it is live.
func open(t *testing.T, base string, s screen) *tab {
	t.Helper()
	b := newTab(t, base, s)
	b.navigate()
	b.until("the page to be live", live)
	return b
}

func (b *tab) navigate() {
	b.t.Helper()
	call(b, page.Navigate, page.NavigateParams{URL: b.base + "/"})
}

func newTab(t *testing.T, base string, s screen) *tab {
	t.Helper()
	parent := browser()
	if parent == nil {
		t.Skip("no Chromium on this machine (Debian: apt-get install chromium): the page was not looked at")
	}
	ctx, cancel := chromedp.NewContext(parent)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx, base: base}
	require.NoError(t, chromedp.Listen(ctx, b.note))
	scheme := "light"
	if s.dark {
		scheme = "dark"
	}
	call(b, log.Enable, cdp.Empty{})
	call(b, network.Enable, network.EnableParams{})
	call(b, page.Enable, page.EnableParams{})
	call(b, runtime.Enable, cdp.Empty{})
	b.size(s.width, s.height)
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watchPolicy})
	return b
}

// size makes the window of that size; a narrow one is a phone's.
func (b *tab) size(width, height int64) {
	b.t.Helper()
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 600,
	})
}

// front shows the tab; others are hidden behind it, and draw nothing.
func (b *tab) front() {
	b.t.Helper()
	call(b, page.BringToFront, cdp.Empty{})
}

// call runs a command of the protocol.
func call[P, R any](b *tab, cmd cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	r, err := chromedp.Call(ctx, cmd, params)
	require.NoError(b.t, err, cmd.Method)
	return r
}

func (b *tab) note(ev any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch ev := ev.(type) {
	case *log.EventEntryAdded:
		if ev.Entry.Level == log.EntryLevelError || ev.Entry.Source == log.EntrySourceSecurity {
			b.mu.wrong = append(b.mu.wrong, fmt.Sprintf("%s: %s %s", ev.Entry.Source, ev.Entry.Text, ev.Entry.URL))
		}
	case *runtime.EventExceptionThrown:
		d := ev.ExceptionDetails
		if d.Exception != nil {
			d.Text += " " + d.Exception.Description
		}
		b.mu.wrong = append(b.mu.wrong, fmt.Sprintf("%s (%s line %d)", d.Text, d.URL, d.LineNumber+1))
	case *runtime.EventConsoleAPICalled:
		if ev.Type == runtime.ConsoleAPICalledTypeError || ev.Type == runtime.ConsoleAPICalledTypeWarning {
			said, _ := json.Marshal(ev.Args)
			b.mu.wrong = append(b.mu.wrong, "console: "+string(said))
		}
	case *network.EventRequestWillBeSent:
		if u := ev.Request.URL; b.base != "" && !strings.HasPrefix(u, b.base+"/") && u != "about:blank" {
			b.mu.foreign = append(b.mu.foreign, u)
		}
	}
}

// clean fails the test if anything went wrong in the page so far, but for
// connections that could not be made where they are meant not to.
func (b *tab) clean(lost ...bool) {
	b.t.Helper()
	require.Empty(b.t, eval[[]string](b, `window.violations`), "violations of the content security policy")
	b.mu.Lock()
	defer b.mu.Unlock()
	wrong := slices.DeleteFunc(b.mu.wrong, func(w string) bool { return len(lost) > 0 && strings.HasPrefix(w, "network:") })
	require.Empty(b.t, wrong, "errors in the console")
	require.Empty(b.t, b.mu.foreign, "requests to other hosts")
}

// eval gives the value of an expression in the page, or what it promises.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(b.t, err, expression)
	return v
}

// do runs a statement in the page.
func (b *tab) do(statement string) {
	b.t.Helper()
	eval[bool](b, "{"+statement+"}; true")
}

// until waits until an expression is true in the page, and says how long it took.
func (b *tab) until(what, expression string) time.Duration {
	b.t.Helper()
	from := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !eval[bool](b, "!!("+expression+")") {
		if time.Since(from) > patience {
			b.mu.Lock()
			defer b.mu.Unlock()
			require.FailNow(b.t, "waited in vain", "for %s; errors: %v", what, b.mu.wrong)
		}
		<-tick.C
	}
	return time.Since(from)
}

// shoot keeps a picture of the whole page. SCREENSHOTS names the folder; else
// it is the test's own.
func (b *tab) shoot(name string) {
	b.t.Helper()
	b.front()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		dir = b.t.TempDir()
	}
	require.NoError(b.t, os.MkdirAll(dir, 0o755))
	viewport := eval[[2]int64](b, `[innerWidth, innerHeight]`)
	height := viewport[1]
	for range 5 { // the whole page as one long window; what comes into sight takes its own height then
		now := eval[int64](b, `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(document.querySelector("footer").getBoundingClientRect().bottom + scrollY | 0))))`)
		if now == height {
			break
		}
		height = now
		b.size(viewport[0], height)
	}
	png := call(b, page.CaptureScreenshot, page.CaptureScreenshotParams{}).Data
	b.size(viewport[0], viewport[1])
	file := filepath.Join(dir, name+".png")
	require.NoError(b.t, os.WriteFile(file, png, 0o644))
	require.Greater(b.t, len(png), 20_000, "%s is empty", file)
	b.t.Logf("%s: %d KiB", file, len(png)/1024)
}
