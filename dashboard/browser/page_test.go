package browser_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/stretchr/testify/require"
)

// state is what the test reads of /admin/state.
type state struct {
	Totals struct {
		Arrived, Completed, Refused, Failed, Cancelled, Queued, Running int
	}
	Promises struct{ Kept, Broken int }
	Replicas []struct {
		Name     string
		Draining bool
		Slots    struct{ Total, Free, Busy int }
		Breaker  struct{ State string }
	}
}

func (s *state) replica(name string) int {
	for i, r := range s.Replicas {
		if r.Name == name {
			return i
		}
	}
	return -1
}

// lane is a replica's lane in the page.
func lane(name string) string {
	return fmt.Sprintf(`document.querySelector('[data-replica="%s"]')`, name)
}

func chip(name string) string { return lane(name) + `.querySelector(".chip").textContent` }

// The page against a gateway under the demo's load: no error, no violation of
// its policy, no request elsewhere; a crash is seen within two seconds; the
// figures agree with /admin/state; a replica can be drained and resumed from
// it; pictures of it in daylight, at night and on a phone.
func TestDemoPage(t *testing.T) {
	t.Parallel() // most of it is waiting
	g := demo(t)
	b := open(t, g.admin, desktop)

	g.line("its process crashes now")
	took := b.until("the crash to be seen", `["down", "open", "failing"].includes(`+chip("llama")+`)`)
	t.Logf("the crash of llama was seen in the page %s after it", took.Round(time.Millisecond))
	require.Less(t, took, 2*time.Second)
	b.until("a sentence about it", `/^llama is (open since|down:|failing:)/m.test(document.getElementById("troubles").innerText.replaceAll("\n", " ").replace(/^(open|down|failing) /, ""))`)

	night := open(t, g.admin, night)
	handset := open(t, g.admin, phone)
	b.shoot("light")
	night.shoot("dark")
	handset.shoot("phone")
	require.LessOrEqual(t, eval[int](handset, `document.documentElement.scrollWidth`), 390, "the phone must not scroll sideways")

	b.front()
	story(b)
	agree(b)
	drains(b, g)
	b.clean()
	night.clean()
	handset.clean()
}

// story opens the explanation of a request by the keyboard.
func story(b *tab) {
	b.do(`[...document.querySelectorAll("#which button")].find((e) => e.textContent === "refused").focus()`)
	b.press("Enter", 13)
	b.until("only refused ones", `document.querySelectorAll("#ends .end").length > 0 && !document.querySelector("#ends .end:not(.refused)")`)
	b.do(`document.querySelector("#ends .row").focus()`)
	b.press("Enter", 13)
	b.until("the story", `document.getElementById("story").open`)
	b.until("its sentences", `/Refused on arrival|Turned away/.test(document.getElementById("story-body").innerText)`)
	b.shoot("story")
	b.press("Escape", 27)
	b.until("the story to be closed", `!document.getElementById("story").open`)
	b.do(`document.querySelector("#which button").click(); document.activeElement.blur()`)
}

// together reads the page's figures as soon as they are drawn, and the state at
// that moment.
const together = `new Promise((done) => new PerformanceObserver((_, o) => {
	o.disconnect();
	const text = (e) => document.querySelector(e).innerText;
	const page = {books: {...document.getElementById("books").dataset}, text: text("#books"), kept: text('[data-tile="kept"]'), queue: text('[data-tile="queue"] b')};
	fetch("/admin/state").then((a) => a.json()).then((state) => done({page, state}));
}).observe({entryTypes: ["measure"]}))`

// agree compares the page's figures with /admin/state. A request may come, have
// its first token or end between the two looks: then it looks again.
func agree(b *tab) {
	t := b.t
	type both struct {
		Page struct {
			Books             map[string]string
			Text, Kept, Queue string
		}
		State state
	}
	for limit := time.Now().Add(patience); ; {
		v := eval[both](b, together)
		now := v.State.Totals
		want := map[string]string{
			"arrived": fmt.Sprint(now.Arrived), "completed": fmt.Sprint(now.Completed), "refused": fmt.Sprint(now.Refused),
			"failed": fmt.Sprint(now.Failed), "cancelled": fmt.Sprint(now.Cancelled), "queued": fmt.Sprint(now.Queued), "running": fmt.Sprint(now.Running),
		}
		p := v.State.Promises
		kept := fmt.Sprintf("%d of %d in all", p.Kept, p.Kept+p.Broken)
		if !maps.Equal(want, v.Page.Books) || !strings.Contains(v.Page.Kept, kept) {
			require.True(t, time.Now().Before(limit), "the page's %v, %q and the state's %v, %q never met", v.Page.Books, v.Page.Kept, want, kept)
			continue
		}
		require.Contains(t, v.Page.Text, fmt.Sprintf("%d arrived = %d completed + %d refused", now.Arrived, now.Completed, now.Refused))
		require.Equal(t, want["queued"], v.Page.Queue)
		return
	}
}

// drains takes vllm out by the page's button, and back.
func drains(b *tab, g *gateway) {
	draining := func() bool {
		var s state
		g.get("/admin/state", &s)
		return s.Replicas[s.replica("vllm")].Draining
	}
	b.do(lane("vllm") + `.querySelector("button").click()`)
	b.until("the lane to say so", chip("vllm")+` === "draining" && `+lane("vllm")+`.querySelector("button").textContent === "Resume"`)
	require.True(b.t, draining())
	b.do(lane("vllm") + `.querySelector("button").click()`)
	b.until("the lane to say so", chip("vllm")+` !== "draining"`)
	require.False(b.t, draining())
}

// press presses a key as a keyboard does.
func (b *tab) press(key string, code int64) {
	b.t.Helper()
	text := ""
	if key == "Enter" {
		text = "\r"
	}
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeKeyDown, input.DispatchKeyEventTypeKeyUp} {
		p := input.DispatchKeyEventParams{Type: kind, Key: key, Code: key, WindowsVirtualKeyCode: code}
		if kind == input.DispatchKeyEventTypeKeyDown {
			p.Text = text
		}
		call(b, input.DispatchKeyEvent, p)
	}
}
