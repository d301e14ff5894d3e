package browser_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// With an admin token the page asks for it once, and says when it was wrong. A
// gateway that hangs or is gone is shown as such, with what was known greyed
// out; the page finds it again by itself.
func TestTokenAndLostConnection(t *testing.T) {
	t.Parallel() // most of it is waiting
	b := newTab(t, "", desktop)
	data, admin := freePort(t), freePort(t)
	config := filepath.Join(t.TempDir(), "switchyard.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
listen: %s
admin: {listen: %s, token_env: PAGE_TOKEN}
replicas: [{name: nowhere, url: "http://127.0.0.1:1", engine: openai, slots: 2}]
`, data, admin), 0o600))
	serve := func() *gateway {
		g := start(t, []string{"PAGE_TOKEN=open-sesame"}, "serve", "-c", config)
		untilListens(t, admin)
		return g
	}
	g := serve()
	b.base = "http://" + admin
	b.navigate()
	ask := func(token string) {
		b.until("the question for the token", `document.getElementById("ask-token")?.open`)
		b.do(fmt.Sprintf(`document.getElementById("token").value = %q; document.getElementById("token").focus()`, token))
		b.press("Enter", 13)
	}
	ask("open-sesam")
	b.until("the refusal", `document.getElementById("ask-token").open && !document.getElementById("token-wrong").hidden`)
	ask("open-sesame")
	b.until("the page to be live", live)
	b.until("the outage to be told", `/^Not serving/.test(document.getElementById("headline").textContent) && document.getElementById("troubles").innerText.includes("nowhere is")`)
	b.shoot("not-serving")

	gone := func(why string) time.Duration {
		took := b.until("the loss to be seen", `document.getElementById("link").textContent === "disconnected" && !document.getElementById("lost").hidden`)
		b.until("why", fmt.Sprintf(`document.getElementById("lost").textContent.includes(%q)`, why))
		require.True(t, eval[bool](b, `document.body.classList.contains("stale")`))
		return took
	}
	back := func() {
		b.until("the page to be live again", live)
		require.True(t, eval[bool](b, `document.getElementById("lost").hidden && !document.body.classList.contains("stale") && !document.getElementById("ask-token").open`))
	}
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGSTOP))
	hung := gone("nothing was heard for 5 s")
	t.Logf("a gateway that hangs was seen after %s", hung.Round(time.Millisecond))
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGCONT))
	back()

	g.stop()
	t.Logf("a gateway that is gone was seen after %s", gone("the gateway").Round(time.Millisecond))
	b.shoot("disconnected")
	serve()
	back()
	b.clean(true)
}

const live = `document.getElementById("link")?.textContent === "live" && document.querySelectorAll(".tile").length === 7`

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func untilListens(t *testing.T, addr string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(patience); ; <-tick.C {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
			return
		}
		require.True(t, time.Now().Before(limit), "%v", err)
	}
}
