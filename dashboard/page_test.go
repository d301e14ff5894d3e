package dashboard

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/telemetry"
)

// maxPage is how large the page may be in all, in bytes.
const maxPage = 250 << 10

func TestPageIsSmall(t *testing.T) {
	total := int64(0)
	require.NoError(t, fs.WalkDir(page, "page", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		total += info.Size()
		return err
	}))
	t.Logf("the page is %d KiB in all", total>>10)
	require.Positive(t, total)
	require.Less(t, total, int64(maxPage))
}

// The page needs nothing from anywhere else, and nothing that its policy
// forbids: no inline script or style, no evaluation of strings.
func TestPageIsSelfContained(t *testing.T) {
	foreign := regexp.MustCompile(`(?i)(src|href|url|import|fetch|from)\s*[=(]?\s*["'(]?(https?:)?//`)
	inline := regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=["']|innerHTML|insertAdjacentHTML|\beval\(|new Function`)
	require.NoError(t, fs.WalkDir(page, "page", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(path, "/uplot/") {
			return err
		}
		b, err := fs.ReadFile(page, path)
		require.NotRegexp(t, foreign, string(b), path)
		require.NotRegexp(t, inline, string(b), path)
		return err
	}))
	licence, err := fs.ReadFile(page, "page/uplot/LICENSE")
	require.NoError(t, err)
	require.Contains(t, string(licence), "MIT License")
}

// newAdmin is an admin side over the replicas' controller.
func newAdmin(t testing.TB, c *admission.Controller) (*Admin, *telemetry.Decisions) {
	t.Helper()
	d, err := telemetry.NewDecisions("")
	require.NoError(t, err)
	return &Admin{
		Controller: c, Decisions: d, Registry: prometheus.NewRegistry(), Reload: func() error { return nil }, Ready: func() bool { return true },
	}, d
}

func TestPageIsServed(t *testing.T) {
	a, _ := newAdmin(t, admission.New(admission.Config{Classes: []admission.Class{{Name: "standard", Deadline: time.Minute}}}, time.Now()))
	h := a.Handler()
	defer a.Close()
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1"+path, nil))
		return w
	}
	for path, kind := range map[string]string{
		"/": "text/html; charset=utf-8", "/dashboard/": "text/html; charset=utf-8", "/dashboard/page.css": "text/css; charset=utf-8",
		"/dashboard/main.js": "text/javascript; charset=utf-8", "/dashboard/uplot/uPlot.iife.min.js": "text/javascript; charset=utf-8", "/dashboard/icon.svg": "image/svg+xml",
	} {
		w := get(path)
		require.Equal(t, http.StatusOK, w.Code, path)
		require.Equal(t, kind, w.Header().Get("Content-Type"), path)
		policy := w.Header().Get("Content-Security-Policy")
		require.Contains(t, policy, "default-src 'none'", path)
		require.NotContains(t, policy, "unsafe", path)
	}
	require.Equal(t, http.StatusOK, get("/admin/history?span=15m").Code)
	require.Contains(t, get("/admin/history?span=6h").Body.String(), `"step_s":60`)
	require.Equal(t, http.StatusBadRequest, get("/admin/history?span=1d").Code)
}
