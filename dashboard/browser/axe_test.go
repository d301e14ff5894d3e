package browser_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

// axe-core finds nothing serious, in daylight, at night, on a phone, and with
// a dialog open. It comes by npm and is no part of the gateway.
func TestAccessibility(t *testing.T) {
	axe, err := os.ReadFile("node_modules/axe-core/axe.min.js")
	if err != nil {
		t.Skip("no axe-core here (npm ci in dashboard/browser brings it): accessibility was not checked")
	}
	f := newFleet(t, 6, 20)
	f.gpus()
	f.c.ReportGPU(time.Now(), "gpu001", replica.GPUFacts{At: time.Now(), Source: replica.SourceNVML, Fault: "GPU 0: Xid 79"})
	f.c.DrainReplica(time.Now(), "gpu003", true)
	f.turn(10)
	f.keep(1)
	for name, s := range map[string]screen{"desktop": desktop, "night": night, "phone": phone} {
		b := open(t, f.url, s)
		b.front()
		b.until("all of it", `document.querySelectorAll(".lane").length === 6 && document.querySelectorAll("#ends .end").length > 5 && document.querySelectorAll(".chart canvas").length > 4`)
		// the protocol's evaluation is not bound by the page's policy
		call(b, runtime.Evaluate, runtime.EvaluateParams{Expression: string(axe)})
		b.inspect(name)
		b.do(`document.querySelector("#ends .row").click()`)
		b.until("the story", `document.getElementById("story").open`)
		b.inspect(name + ", a request's story")
		b.do(`document.getElementById("story-close").click()`)
	}
}

// inspect has axe look at the page as it is.
func (b *tab) inspect(what string) {
	b.t.Helper()
	type finding struct {
		ID, Impact, Help string
		Nodes            []struct{ HTML, FailureSummary string }
	}
	found := eval[[]finding](b, `axe.run({resultTypes: ["violations"]}).then((r) => r.violations)`)
	for _, v := range found {
		said := make([]string, 0, len(v.Nodes))
		for _, n := range v.Nodes {
			said = append(said, n.HTML+"\n"+n.FailureSummary)
		}
		serious := v.Impact == "serious" || v.Impact == "critical"
		b.t.Logf("%s: %s (%s): %s", what, v.ID, v.Impact, v.Help)
		require.False(b.t, serious, "%s: %s: %s\n%s", what, v.ID, v.Help, strings.Join(said, "\n"))
	}
}
